"""What executors of Spark make of the changes of one table: one row for each key, as it is written. `reduce_changes` runs on workers.

It combines changes by `ChangeBatch`, as a single process does. Rows of one step of the commit have the number of their group.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from objcat.ingest.change_batch import ChangeBatch, TableWrite, WriteAction
from objcat.ingest.kafka.topic_rows import changed_row
from objcat.ingest.model import BadRecord, ChangeStamp, KeyValues, Row, SourceTable
from objcat.ingest.routes import RoutedTable

PIECE_CHANGES, PIECE_BYTES = 20_000, 32 * 1024 * 1024
"""About so many changes, or bytes of them, are combined at once: those of a key always together."""
PARTIAL_ROWS = 5_000
"""So many rows that lack columns are handed to the driver at once."""
BAD, NULLED = -1, -2
"""The groups of rows that could not be decoded, and of values that became null."""
GROUP, COUNT, DATA = "group", "count", "data"


@dataclass(frozen=True, slots=True)
class KnownSchema:
    """A schema of rows.

    Args:
        table: the schema.
        missing: columns of the lake that it lacks: they are written as null.
        joins: of these, those with a default, and when the oldest row was committed that has it. Rows that are not newer have the default.
    """

    table: SourceTable
    missing: tuple[pa.Field, ...]
    joins: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RowGroup:
    """What rows of a group have in common: how they are written, and their columns."""

    action: WriteAction
    columns: tuple[str, ...]

    @property
    def number(self) -> int:
        """By which rows name it, the same in every process."""
        return zlib.crc32(repr((str(self.action), self.columns)).encode())


def reduced_schema(lake: pa.Schema) -> pa.Schema:
    """The columns of the rows: those of the table of the lake by number, then the group, how many rows this one stands for, and bytes.

    The bytes are of rows that are no rows of the table: a `RowGroup` that comes first in a task, records, and rows that lack columns.
    """
    fields = [pa.field(str(at), field.type) for at, field in enumerate(lake)]
    return pa.schema([*fields, pa.field(GROUP, pa.int64()), pa.field(COUNT, pa.int64()), pa.field(DATA, pa.binary())])


def reduce_changes(
    routed: RoutedTable, schemas: Mapping[str, KnownSchema], lake: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On a worker: changes as rows of `reduced_schema`.

    Args:
        routed: the table.
        schemas: of the rows, by their texts.
        lake: the columns of the table of the lake.
        batches: see `ROW_SCHEMA`. Changes of a key come one after the other, in their order, and no other task has any of them.
    """
    combined = ChangeBatch(_find_nothing)
    tables = _TablesOfRows(schemas, combined)
    made = _ReducedRows(lake)
    last: bytes | None = None
    size = 0
    names = ("topic", "partition", "offset", "kind", "schema", "key", "committed_ms", "data")
    for batch in batches:
        for topic, partition, offset, kind, schema, key, committed_ms, data in zip(
            *(batch.column(name).to_pylist() for name in names), strict=True
        ):
            is_piece = combined.count >= PIECE_CHANGES or size >= PIECE_BYTES
            if is_piece and (routed.appends or key != last):
                yield from made.rows(combined)
                size = 0
            last = key
            size += len(data)
            stamp = ChangeStamp(committed_ms, f"{topic}/{partition}@{offset}")
            combined.add(routed, changed_row(tables.table_of(schema, committed_ms), kind, data, stamp), stamp)
    yield from made.rows(combined)


def partial_rows(data: bytes) -> pa.Table:
    """Rows that lack columns, of the bytes that hold them."""
    return pa.ipc.open_stream(data).read_all()


class _TablesOfRows:
    """The tables of rows: one for each schema, and for the columns that join after a row."""

    def __init__(self, schemas: Mapping[str, KnownSchema], combined: ChangeBatch) -> None:
        self._schemas = schemas
        self._combined = combined
        self._made: dict[tuple[str, tuple[str, ...]], SourceTable] = {}

    def table_of(self, schema: str, committed_ms: int | None) -> SourceTable:
        """The table of a row that was committed then."""
        known = self._schemas[schema]
        joining = () if committed_ms is None else tuple(name for name, since_ms in known.joins if committed_ms <= since_ms)
        table = self._made.get((schema, joining))
        if table is None:
            table = self._made[schema, joining] = replace(known.table, joins_later=joining)
            self._combined.set_null_columns(table, [field for field in known.missing if field.name not in joining])
        return table


class _ReducedRows:
    """Makes rows of what a `ChangeBatch` has."""

    def __init__(self, lake: pa.Schema) -> None:
        self._lake = lake
        self._schema = reduced_schema(lake)
        self._told: set[int] = set()

    def rows(self, combined: ChangeBatch) -> Iterator[pa.RecordBatch]:
        """All rows of a batch, which is empty after it."""
        writes, bad = combined.drain()
        for write in writes:
            yield from self._written(write)
        if bad:
            yield self._note(BAD, len(bad), pickle.dumps(list[BadRecord](bad), 5))
        if combined.nulled:
            yield self._note(NULLED, combined.nulled, None)
            combined.nulled = 0

    def _written(self, write: TableWrite) -> Iterator[pa.RecordBatch]:
        rows: Any = write.rows
        group = RowGroup(write.action, tuple(rows.column_names))
        if group.number not in self._told:
            self._told.add(group.number)
            yield self._note(group.number, 0, pickle.dumps(group, 5))
        if write.action is WriteAction.UPSERT_PARTIAL:
            for at in range(0, rows.num_rows, PARTIAL_ROWS):
                some = rows.slice(at, PARTIAL_ROWS)
                held = io.BytesIO()
                with pa.ipc.new_stream(held, some.schema) as stream:
                    stream.write_table(some)
                yield self._note(group.number, some.num_rows, held.getvalue())
            return
        arrays: list[pa.Array] = []
        for field in self._lake:
            if field.name in rows.column_names:
                arrays.append(_array(rows.column(field.name)).cast(field.type))
            else:
                arrays.append(pa.nulls(rows.num_rows, field.type))
        own = [
            pa.array([value] * rows.num_rows, kind) for value, kind in ((group.number, pa.int64()), (1, pa.int64()), (None, pa.binary()))
        ]
        yield pa.RecordBatch.from_arrays([*arrays, *own], schema=self._schema)

    def _note(self, group: int, count: int, data: bytes | None) -> pa.RecordBatch:
        values: list[Any] = [*(None for _ in self._lake), group, count, data]
        return pa.RecordBatch.from_arrays(
            [pa.array([value], field.type) for value, field in zip(values, self._schema, strict=True)], schema=self._schema
        )


def _array(column: pa.ChunkedArray) -> pa.Array:
    made = column.combine_chunks()
    return made if isinstance(made, pa.Array) else pa.concat_arrays(made.chunks)


def _find_nothing(routed: RoutedTable, table: SourceTable, old_key: KeyValues, key: KeyValues, columns: Sequence[str]) -> Row:  # noqa: ARG001
    raise AssertionError(f"{table.name}: a changed key {key!r} with values that were not sent came to {routed.name}")
