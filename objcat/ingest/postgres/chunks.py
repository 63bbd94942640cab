"""Chunks of a snapshot of PostgreSQL: read by COPY in one transaction, which says which others it has seen."""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from objcat.ingest.decoding import decode_column, nulled_values
from objcat.ingest.model import BadRecord, KeyOrder, KeyValues, SnapshotChunk, SourceTable
from objcat.ingest.postgres.catalog import KeyColumn, PostgresCatalog, PostgresTable
from objcat.ingest.postgres.connection import PostgresConnector, literal, quoted, rows_of, run
from objcat.ingest.postgres.types import INT2, INT4, INT8, TEXT, UUID, VARCHAR
from objcat.ingest.postgres.visibility import VisibleTransactions

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

CHUNK_BYTES_MAX = 64 * 1024 * 1024
"""A chunk whose text is larger is read again with fewer rows."""
LOCK_WAIT_MS = 5_000
"""How long a chunk waits for a change of the schema. Then the stream goes on first."""
_INTEGERS = {INT2, INT4, INT8}
_TEXTS = {TEXT, VARCHAR}


class _TooLarge(Exception):
    """The text of a chunk goes beyond the limit."""


class _BoundedText(io.RawIOBase):
    """Collects what COPY sends, as far as there is room. The rest is dropped: a COPY that is broken off spoils the connection."""

    def __init__(self, bytes_max: int) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self._bytes_max = bytes_max

    def write(self, data: Any) -> int:
        """Take a piece."""
        self.size += len(data)
        if self.size <= self._bytes_max:
            self.parts.append(bytes(data))
        return len(data)

    def data(self) -> bytes:
        """All of it. Raises _TooLarge."""
        if self.size > self._bytes_max:
            raise _TooLarge
        return b"".join(self.parts)


@dataclass(slots=True)
class _RowsMax:
    """So many rows of a table a chunk may have, as its rows are large."""

    rows: int


class PostgresChunks:
    """Reads chunks and single rows by one connection. For one thread.

    Args:
        connector, connection: the connection, in autocommit.
        catalog: by the same connection, so that it sees what the chunk sees.
        mark_end: gives a position that comes after everything that a chunk has seen.
        bytes_max: of the text of a chunk.
    """

    def __init__(
        self,
        connector: PostgresConnector,
        connection: Connection,
        catalog: PostgresCatalog,
        mark_end: Callable[[], Mapping[str, Any]],
        *,
        bytes_max: int = CHUNK_BYTES_MAX,
    ) -> None:
        self._connector = connector
        self._connection = connection
        self._catalog = catalog
        self._mark_end = mark_end
        self._bytes_max = bytes_max
        self._rows_max: dict[str, _RowsMax] = {}
        self._settled_from = 0

    def wait_for_running(self) -> None:
        """Tables may just have been published: transactions that run now may hold changes of them that the stream leaves out. The first
        chunk of a table waits until these have ended."""
        found = rows_of(self._connection, "select pg_current_snapshot()::text")
        self._settled_from = VisibleTransactions.parse(found[0][0]).xmax

    def is_settled(self, seen: str) -> bool:
        """Whether a snapshot comes after all transactions whose changes the stream may leave out."""
        return VisibleTransactions.parse(seen).xmin >= self._settled_from

    def read(self, known: PostgresTable, after: KeyValues | None, *, rows_max: int, order: KeyOrder) -> SnapshotChunk | None:
        """See `ChangeSource.read_chunk`."""
        limit = self._rows_max.setdefault(known.table.name, _RowsMax(rows_max))
        rows_max = min(rows_max, limit.rows) if known.keys else 0
        with self._connector.errors(f"reading {known.table.name}"):
            run(self._connection, "begin isolation level repeatable read read only")
            try:
                found = self._read_in_transaction(known, after, rows_max, order)
            except _TooLarge:
                if rows_max <= 1:
                    self._bytes_max *= 4
                limit.rows = max(1, rows_max // 4)
                return None
            finally:
                run(self._connection, "rollback")
        if found is None:
            return None
        table, texts, seen = found
        last = None
        if rows_max and texts.num_rows == rows_max:
            last = tuple(texts.column(name)[-1].as_py() for name in table.key)
        rows, bad, nulled = _decoded(table, texts)
        return SnapshotChunk(
            table=table, rows=rows, after=after, last=last, order=order, covers=seen, until=self._mark_end(), bad=tuple(bad), nulled=nulled
        )

    def _read_in_transaction(
        self, known: PostgresTable, after: KeyValues | None, rows_max: int, order: KeyOrder
    ) -> tuple[SourceTable, pa.Table, str] | None:
        # The lock comes before the snapshot: a table that is rewritten or truncated in between would look empty.
        run(self._connection, f"set local lock_timeout = {LOCK_WAIT_MS}")
        try:
            run(self._connection, f"lock table {known.sql} in access share mode")
        except self._connector.psycopg2.errors.LockNotAvailable:
            return None
        seen = str(rows_of(self._connection, "select pg_current_snapshot()::text")[0][0])
        if after is None and not self.is_settled(seen):
            return None
        now = self._catalog.tables([known.oid]).get(known.table.name)
        if now is None or now.table.key != known.table.key:
            return None
        query = _select(now, after, rows_max, order)
        return now.table, self._copied(query, [column.name for column in now.table.columns]), seen

    def fetch(self, known: PostgresTable, keys: Sequence[KeyValues], columns: Sequence[str]) -> dict[KeyValues, dict[str, Any]]:
        """See `ChangeSource.fetch_rows`."""
        names = list(dict.fromkeys([*known.table.key, *columns]))
        wanted = ", ".join(f"({_values(known.keys, key)})" for key in keys)
        listed = ", ".join(quoted(name) for name in names)
        mine = ", ".join(quoted(key.name) for key in known.keys)
        with self._connector.errors(f"reading rows of {known.table.name}"):
            texts = self._copied(f"select {listed} from {known.sql} where ({mine}) in ({wanted})", names)  # noqa: S608
        rows = texts.to_pylist()
        return {tuple(row[name] for name in known.table.key): {name: row[name] for name in columns} for row in rows}

    def place(self, known: PostgresTable, keys: Sequence[KeyValues], bounds: Sequence[KeyValues], order: KeyOrder) -> list[int]:
        """See `ChangeSource.place_keys`."""
        by_bytes = order is KeyOrder.BYTES
        if all(_compares_here(key, by_bytes=by_bytes) for key in known.keys):
            sorted_bounds = [_comparable(known.keys, bound) for bound in bounds]
            return [bisect_left(sorted_bounds, _comparable(known.keys, key)) for key in keys]
        names = ", ".join(f"k{place}" for place in range(len(known.keys)))
        bound_rows = ", ".join(f"({_values(known.keys, bound)})" for bound in bounds)
        key_rows = ", ".join(f"({number}, {_values(known.keys, key)})" for number, key in enumerate(keys))
        less = _compared("b", "k", known.keys, by_bytes=by_bytes)
        query = (
            f"with bounds({names}) as (values {bound_rows}) select k.n, (select count(*) from bounds b where {less})::int "  # noqa: S608
            f"from (values {key_rows}) k(n, {names}) order by k.n"
        )
        with self._connector.errors(f"comparing keys of {known.table.name}"):
            return [place for _, place in rows_of(self._connection, query)]

    def _copied(self, query: str, names: Sequence[str]) -> pa.Table:
        """The rows of a query, every value as text."""
        target = _BoundedText(self._bytes_max)
        with self._connection.cursor() as cursor:
            cursor.copy_expert(f"copy ({query}) to stdout (format csv)", target)
        schema = {name: pa.string() for name in names}
        if not target.size:
            return pa.table({name: pa.array([], pa.string()) for name in names})
        return csv.read_csv(
            pa.BufferReader(target.data()),
            read_options=csv.ReadOptions(column_names=list(names), block_size=target.size + 1, use_threads=False),
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) > 1),
            convert_options=csv.ConvertOptions(
                column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )


def _select(now: PostgresTable, after: KeyValues | None, rows_max: int, order: KeyOrder) -> str:
    columns = ", ".join(f"t.{quoted(column.name)}" for column in now.table.columns)
    query = f"select {columns} from {now.sql} t"  # noqa: S608
    if not now.keys:
        return query
    by_bytes = order is KeyOrder.BYTES
    terms = [_term(f"t.{quoted(key.name)}", key, by_bytes=by_bytes) for key in now.keys]
    if after is not None:
        bounds = [_term(f"{literal(value)}::{key.cast}", key, by_bytes=by_bytes) for key, value in zip(now.keys, after, strict=True)]
        query += f" where ({', '.join(terms)}) > ({', '.join(bounds)})"
    return f"{query} order by {', '.join(terms)} limit {rows_max}"


def _term(expression: str, key: KeyColumn, *, by_bytes: bool) -> str:
    """A key column as it is compared."""
    return f'({expression})::text collate "C"' if by_bytes and key.type_oid in _TEXTS and not key.is_bytes else expression


def _compared(left: str, right: str, keys: Sequence[KeyColumn], *, by_bytes: bool) -> str:
    sides = [", ".join(_term(f"{side}.k{place}", key, by_bytes=by_bytes) for place, key in enumerate(keys)) for side in (left, right)]
    return f"({sides[0]}) < ({sides[1]})"


def _values(keys: Sequence[KeyColumn], values: KeyValues) -> str:
    return ", ".join(f"{literal(value)}::{key.cast}" for key, value in zip(keys, values, strict=True))


def _compares_here(key: KeyColumn, *, by_bytes: bool) -> bool:
    """Whether Python compares the text of values as the server compares the values."""
    return key.type_oid in _INTEGERS or key.type_oid == UUID or (key.type_oid in _TEXTS and (by_bytes or key.is_bytes))


def _comparable(keys: Sequence[KeyColumn], values: KeyValues) -> tuple[int | bytes, ...]:
    return tuple(int(value) if key.type_oid in _INTEGERS else value.encode() for key, value in zip(keys, values, strict=True))


def _decoded(table: SourceTable, texts: pa.Table) -> tuple[pa.Table, list[BadRecord], int]:
    """Rows of text with their types, without those that do not fit, and how many values are null since no type holds them."""
    arrays, errors, nulled = [], dict[int, str](), 0
    for column in table.columns:
        chunk = texts.column(column.name).combine_chunks()
        text = chunk if isinstance(chunk, pa.Array) else pa.concat_arrays(chunk.chunks)
        array, bad = decode_column(column, text)
        arrays.append(array)
        nulled += nulled_values(column, text, array, bad)
        errors |= {place: f"{column.name}: {why}" for place, why in bad.items()}
    made = pa.Table.from_arrays(arrays, names=[column.name for column in table.columns])
    if not errors:
        return made, [], nulled
    records = [
        BadRecord(table=table.name, payload=str(texts.slice(place, 1).to_pylist()[0]).encode(), error=why)
        for place, why in sorted(errors.items())
    ]
    return made.filter(pc.invert(pc.is_in(pa.array(range(made.num_rows)), pa.array(list(errors))))), records, nulled
