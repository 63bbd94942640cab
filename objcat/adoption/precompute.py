"""Writes precomputed columns: for a file in place, a Parquet file of ours with some of its columns, row for row."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa

from fileio.store import FileIO
from objcat.datafile.in_place import changed_error, held_columns, settings_of, source_pieces
from objcat.datafile.in_place_rows import SPAN_COLUMNS, unmasked
from objcat.datafile.parquet import BaseWriter, as_of_schema
from objcat.datafile.statistics import RunningBounds
from objcat.metadata.column_parts import bounded_fields, fields_within, part_of, with_parts
from objcat.metadata.files import Adoption, BaseFile, PrecomputedColumns
from objcat.metadata.schema import Column
from objcat.metadata.table_spec import TableSpec
from objcat.sourcefiles.layout import Span
from objcat.timeline.entry import FileGroupId, Txn

WRITTEN_ROWS = 16 * 1024
"""Rows that are handed to the writer together. It looks at all that it holds each time."""
_ANY_GROUP = FileGroupId("", 0, 1)


def wanted_columns(spec: TableSpec, adopted: Adoption) -> list[Column]:
    """The columns of a file in place that its table wants precomputed, of those that the file may hold, with the wanted fields only."""
    settings = settings_of(spec)
    ids = {*settings.precompute, *settings.precompute_fields}
    return [part for column in held_columns(spec.table_schema.columns, adopted).values() if (part := part_of(column, ids)) is not None]


def lacks_columns(spec: TableSpec, base: BaseFile) -> bool:
    """Whether the precomputed columns of a file in place are others than its table wants."""
    assert base.adopted is not None and base.source is not None
    wanted = wanted_columns(spec, base.adopted)
    there = frozenset() if base.source.precomputed is None else base.source.precomputed.ids
    return _ids(spec, wanted) != there


def _ids(spec: TableSpec, columns: Sequence[Column]) -> frozenset[int]:
    """The ids of whole columns, and of the fields that a table wants, in columns as of `wanted_columns`."""
    settings = settings_of(spec)
    inside = {path[-1].id for path in fields_within(columns)}
    return frozenset({column.id for column in columns} & set(settings.precompute)) | (inside & set(settings.precompute_fields))


class ColumnsWriter:
    """A context manager that writes the precomputed columns of one file. It discards an unfinished one. For one thread.

    Args:
        fileio: the store of the table.
        columns: which ones, as `wanted_columns` gives them.
        txn: the transaction that will name the file.
        spans: whether the file is one of lines, whose spans are kept.
    """

    def __init__(self, fileio: FileIO, spec: TableSpec, columns: Sequence[Column], txn: Txn, *, spans: bool) -> None:
        self._names = [column.physical for column in columns]
        self._ids = _ids(spec, columns)
        self._fields = self._ids & set(settings_of(spec).precompute_fields)
        self._schema = with_parts(spec.table_schema, columns)
        self._spans = SPAN_COLUMNS if spans else ()
        schema = self._schema.to_arrow_physical(nullable=True, only=self._names)
        self._names = schema.names
        for name in self._spans:
            schema = schema.append(pa.field(name, pa.int64()))
        path = f"data/{txn}/{fileio.env.new_id()}-{fileio.env.new_id()}.columns.parquet"
        self._writer = BaseWriter(fileio, path, schema, _ANY_GROUP, statistics=spec.statistics)
        self._held: list[pa.Table] = []
        self._rows = self._held_rows = 0

    def add(self, rows: pa.Table, span: Span | None) -> None:
        """Add the next rows of the file, under physical names. Columns that it lacks may be missing."""
        own = as_of_schema(rows, self._names, self._schema)
        for name, value in zip(self._spans, (*(span or (0, 0)), self._rows), strict=False):
            own = own.append_column(name, pa.array(np.full(rows.num_rows, value, np.int64)))
        self._held.append(own)
        self._rows += own.num_rows
        self._held_rows += own.num_rows
        if self._held_rows >= WRITTEN_ROWS:
            self._write()

    def _write(self) -> None:
        if self._held:
            self._writer.write(pa.concat_tables(self._held))
        self._held, self._held_rows = [], 0

    def finish(self) -> PrecomputedColumns:
        """Complete the file."""
        self._write()
        done = self._writer.finish()
        return PrecomputedColumns(
            path=done.path,
            bytes=done.bytes,
            columns=tuple(sorted(self._ids - self._fields)),
            fields=tuple(sorted(self._fields)),
            digest=done.digest,
            footer=done.footer,
        )

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, trace)


def has_spans(spec: TableSpec) -> bool:
    """Whether the files of a table are ones of lines, of which parts can be read."""
    return settings_of(spec).format in ("json", "text")


def precompute(fileio: FileIO, spec: TableSpec, base: BaseFile, txn: Txn) -> BaseFile:
    """A file in place with the precomputed columns that its table wants, which are written here.

    Raises SourceFileChanged and storage errors.
    """
    assert base.adopted is not None and base.source is not None
    columns = wanted_columns(spec, base.adopted)
    made = None
    fields = bounded_fields(spec)
    bounds = RunningBounds((), fields=fields) if fields else None
    if columns:
        with ColumnsWriter(fileio, spec, columns, txn, spans=has_spans(spec)) as writer:
            rows = 0
            whole = [spec.table_schema.by_id(column.id) for column in columns]
            masked = np.asarray(base.source.masked, np.int64).reshape(-1, 2)
            with closing(source_pieces(fileio, base, whole, spec)) as pieces:
                for piece in pieces:
                    writer.add(piece.rows, piece.span)
                    rows += piece.rows.num_rows
                    if bounds is not None:
                        bounds.add(unmasked(piece.rows, piece.first, masked))
            if rows != base.stored_rows:
                raise changed_error(spec, base, f"It gives {rows:,} rows.")
            made = writer.finish()
    # Bounds of fields come and go with the fields.
    columns_bounded = {column.id for column in spec.table_schema.columns}
    kept = {column_id: bound for column_id, bound in base.bounds.items() if column_id in columns_bounded}
    source = msgspec.structs.replace(base.source, precomputed=made)
    adopted = msgspec.structs.replace(base.adopted, source=source)
    return msgspec.structs.replace(base, adopted=adopted, bounds={**kept, **({} if bounds is None else bounds.found())})
