"""Chunks of a snapshot: read in a consistent snapshot of InnoDB, which says by global transaction ids what it has seen."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from objcat.ingest.decoding import decode_column, nulled_values
from objcat.ingest.model import BadRecord, KeyOrder, KeyValues, SnapshotChunk
from objcat.ingest.mysql.catalog import MysqlCatalog, MysqlTable
from objcat.ingest.mysql.connection import TABLE_CHANGED, MysqlConnector, is_mariadb, quoted, rows_of, run
from objcat.ingest.mysql.gtids import Gtids, MariaDbGtids, MysqlGtids
from objcat.ingest.mysql.key_order import compares_here, greater_than, key_arguments, key_literal, key_term, place_here, repeated
from objcat.ingest.mysql.types import MysqlType

if TYPE_CHECKING:
    from pymysql.connections import Connection

CHUNK_BYTES_MAX = 64 * 1024 * 1024
"""A chunk ends where its values are larger."""
logger = logging.getLogger("objcat")

FETCH_ROWS = 1_000
_XA_COMMITS = "show global status like 'Com_xa_commit'"
_VALUE_BYTES = 40
_PLACED_KEYS = 500


class MysqlChunkReader:
    """Reads chunks and single rows by one connection. For one thread.

    Args:
        connector, connection: the connection, in autocommit.
        catalog: by the same connection, so that it sees what the chunk sees.
        gtids_field: the name of the transaction ids in a position.
        bytes_max: of the values of a chunk.
    """

    def __init__(
        self,
        connector: MysqlConnector,
        connection: Connection[Any],
        catalog: MysqlCatalog,
        *,
        gtids_field: str,
        bytes_max: int = CHUNK_BYTES_MAX,
    ) -> None:
        self._connector = connector
        self._connection = connection
        self._catalog = catalog
        self._gtids_field = gtids_field
        self._bytes_max = bytes_max
        self._is_mariadb = is_mariadb(connection)
        self._has_warned = False

    def seen(self) -> tuple[Gtids, Gtids]:
        """Begin a transaction with a snapshot.

        Returns:
            Two positions: the snapshot has seen all transactions up to the first, and none after the second. On MariaDB they are one: the
            server says where its binlog was. MySQL does not, so a transaction between the two may have been seen.
        """
        if not self._is_mariadb:
            before = self._executed()
            run(self._connection, "start transaction with consistent snapshot, read only")
            return before, self._executed()
        run(self._connection, "start transaction with consistent snapshot, read only")
        found = dict(rows_of(self._connection, "show status like 'binlog_snapshot_%'"))
        names = {str(name).lower(): value for name, value in found.items()}
        at = (names["binlog_snapshot_file"], int(names["binlog_snapshot_position"]))
        text = rows_of(self._connection, "select binlog_gtid_pos(%s, %s)", at)[0][0]
        position = MariaDbGtids.parse(text or "")
        return position, position

    def seen_in_calm(self) -> tuple[Gtids, Gtids] | None:
        """As `seen`; None when that would not be true of transactions of two phases, and the caller has to try again.

        MariaDB writes XA COMMIT to its binlog first, and rows become visible after that, so a snapshot between the two lacks them. It is
        not between them when no transaction was prepared before it, and no XA COMMIT began meanwhile.
        """
        if not self._is_mariadb:
            return self.seen()
        begun = rows_of(self._connection, _XA_COMMITS)
        if rows_of(self._connection, "xa recover"):
            return None
        found = self.seen()
        return found if rows_of(self._connection, _XA_COMMITS) == begun else None

    def end(self) -> None:
        """End the transaction."""
        run(self._connection, "rollback")

    def newest(self) -> Gtids:
        """All transactions of the binlog."""
        if not self._is_mariadb:
            return self._executed()
        return MariaDbGtids.parse(rows_of(self._connection, "select @@global.gtid_binlog_pos")[0][0] or "")

    def parse(self, text: str) -> Gtids:
        """A position from its text."""
        return MariaDbGtids.parse(text) if self._is_mariadb else MysqlGtids.parse(text)

    def read(self, known: MysqlTable, after: KeyValues | None, *, rows_max: int, order: KeyOrder) -> SnapshotChunk | None:
        """See `ChangeSource.read_chunk`."""
        with self._connector.errors(f"reading {known.table.name}"):
            try:
                seen = self.seen_in_calm()
                if seen is None:
                    self._warn_of_two_phases(known.table.name)
                    return None
                covers, until = seen
                # From here to the end nobody changes the table: its columns, and the rows below, belong together.
                rows_of(self._connection, f"select 1 from {known.sql} limit 1")  # noqa: S608
                now = self._catalog.table(known.database, known.name)
                if now is None or now.table.key != known.table.key:
                    return None
                rows, is_cut = self._rows(now, after, rows_max, order)
            except self._connector.pymysql.Error as error:
                if error.args and error.args[0] in TABLE_CHANGED:
                    return None
                raise
            finally:
                self.end()
        last = None
        places = [list(now.types).index(name) for name in now.table.key]
        if rows and places and (is_cut or len(rows) == rows_max):
            last = tuple(kind.key_value(rows[-1][place]) for kind, place in zip(now.key_types, places, strict=True))
        made, bad, nulled = _decoded(now, rows)
        return SnapshotChunk(
            table=now.table,
            rows=made,
            after=after,
            last=last,
            order=order,
            covers=str(covers),
            until={self._gtids_field: str(until)},
            bad=tuple(bad),
            nulled=nulled,
        )

    def fetch(self, known: MysqlTable, keys: Sequence[KeyValues], columns: Sequence[str]) -> dict[KeyValues, dict[str, Any]]:
        """See `ChangeSource.fetch_rows`."""
        names = list(dict.fromkeys([*known.table.key, *columns]))
        selected = ", ".join(_selected(name, known.types[name]) for name in names)
        one = " and ".join(f"{quoted(name)} = {key_literal(kind)}" for name, kind in zip(known.table.key, known.key_types, strict=True))
        found = {}
        with self._connector.errors(f"reading rows of {known.table.name}"):
            for start in range(0, len(keys), _PLACED_KEYS):
                some = keys[start : start + _PLACED_KEYS]
                arguments = [argument for key in some for argument in key_arguments(known.key_types, key)]
                query = f"select {selected} from {known.sql} where {' or '.join([f'({one})'] * len(some))}"  # noqa: S608
                for row in rows_of(self._connection, query, arguments):
                    values = dict(zip(names, row, strict=True))
                    key = tuple(known.types[name].key_value(values[name]) for name in known.table.key)
                    found[key] = {name: values[name] for name in columns}
        return found

    def place(self, known: MysqlTable, keys: Sequence[KeyValues], bounds: Sequence[KeyValues], order: KeyOrder) -> list[int]:
        """See `ChangeSource.place_keys`."""
        kinds = known.key_types
        if all(compares_here(kind, order) for kind in kinds):
            return place_here(kinds, keys, bounds)
        names = [f"k{place}" for place in range(len(kinds))]
        literals = [key_literal(kind) for kind in kinds]
        listed = ", ".join(f"{literal} as {name}" for literal, name in zip(literals, names, strict=True))
        sides = [[key_term(f"{side}.{name}", kind, order) for name, kind in zip(names, kinds, strict=True)] for side in ("k", "b")]
        bound_rows = " union all ".join([f"select {listed}"] * len(bounds))
        bound_arguments = [argument for bound in bounds for argument in key_arguments(kinds, bound)]
        placed: list[int] = []
        with self._connector.errors(f"comparing keys of {known.table.name}"):
            for start in range(0, len(keys), _PLACED_KEYS):
                some = keys[start : start + _PLACED_KEYS]
                key_rows = " union all ".join([f"select %s as n, {listed}"] * len(some))
                key_values = [one for place, key in enumerate(some) for one in (place, *key_arguments(kinds, key))]
                query = (
                    f"select k.n, count(b.k0) from ({key_rows}) k left join ({bound_rows}) b "  # noqa: S608
                    f"on {greater_than(*sides)} group by k.n order by k.n"
                )
                placed += [int(count) for _, count in rows_of(self._connection, query, [*key_values, *bound_arguments])]
        return placed

    # ---- helpers

    def _warn_of_two_phases(self, name: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s is read as soon as no transaction of two phases (XA) is prepared. XA RECOVER lists them.", name)

    def _executed(self) -> MysqlGtids:
        return MysqlGtids.parse(rows_of(self._connection, "select @@global.gtid_executed")[0][0])

    def _rows(self, now: MysqlTable, after: KeyValues | None, rows_max: int, order: KeyOrder) -> tuple[list[tuple[Any, ...]], bool]:
        """Rows of a chunk, and whether there are more since they are large."""
        query, arguments = _select(now, after, rows_max, order)
        rows: list[tuple[Any, ...]] = []
        size, is_cut = 0, False
        with self._connector.stream_cursor(self._connection) as cursor:
            cursor.execute(query, arguments or None)
            while found := cursor.fetchmany(FETCH_ROWS):
                if is_cut:
                    continue  # The rest is read and dropped, since the connection has to be free again.
                rows += found
                size += sum(_size(row) for row in found)
                is_cut = bool(now.table.key) and size > self._bytes_max
        return rows, is_cut


def _select(now: MysqlTable, after: KeyValues | None, rows_max: int, order: KeyOrder) -> tuple[str, list[Any]]:
    columns = ", ".join(_selected(name, kind) for name, kind in now.types.items())
    query = f"select {columns} from {now.sql}"  # noqa: S608
    if not now.table.key:
        return query, []
    kinds = now.key_types
    terms = [key_term(quoted(name), kind, order) for name, kind in zip(now.table.key, kinds, strict=True)]
    arguments: list[Any] = []
    if after is not None:
        bounds = [key_term(key_literal(kind), kind, order) for kind in kinds]
        query += f" where {greater_than(terms, bounds)}"
        arguments = repeated(key_arguments(kinds, after))
    return f"{query} order by {', '.join(terms)} limit {rows_max}", arguments


def _selected(name: str, kind: MysqlType) -> str:
    # A query rounds a float to six digits. As a double it has all of its own.
    return f"{quoted(name)} + 0e0" if kind.name == "float" else quoted(name)


def _size(row: Sequence[Any]) -> int:
    return sum(_VALUE_BYTES + (len(value) if isinstance(value, (str, bytes)) else 0) for value in row)


def _decoded(now: MysqlTable, rows: Sequence[Sequence[Any]]) -> tuple[pa.Table, list[BadRecord], int]:
    """Rows with their types, without those that do not fit, and how many values are null since no type holds them."""
    table = now.table
    values: Mapping[str, Sequence[Any]] = dict(zip(now.types, zip(*rows, strict=True), strict=True)) if rows else {}
    arrays, errors, nulled = [], dict[int, str](), 0
    for column in table.columns:
        raw = list(values.get(column.name, ()))
        array, bad = decode_column(column, raw)
        arrays.append(array)
        nulled += nulled_values(column, raw, array, bad)
        errors |= {place: f"{column.name}: {why}" for place, why in bad.items()}
    made = pa.Table.from_arrays(arrays, names=[column.name for column in table.columns])
    if not errors:
        return made, [], nulled
    records = [
        BadRecord(table=table.name, payload=repr(dict(zip(now.types, rows[place], strict=True))).encode(), error=why)
        for place, why in sorted(errors.items())
    ]
    return made.filter(pc.invert(pc.is_in(pa.array(range(made.num_rows)), pa.array(list(errors))))), records, nulled
