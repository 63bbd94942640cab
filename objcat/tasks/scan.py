"""Reads file groups: merged rows, a few row groups at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fileio.store import FileIO
from objcat.datafile.adopted_files import AdoptedParquet
from objcat.datafile.bucket_hash import bucket_of
from objcat.datafile.casting import logical, named
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.in_place_rows import POSITION, KnownPart, pieces_in_place
from objcat.datafile.lateness import drop_late_rows
from objcat.datafile.log_reader import EXPANSION, LogReader
from objcat.datafile.merge import OP_COLUMN, OP_DELETE, merge, overlay
from objcat.datafile.open_files import open_parquet
from objcat.datafile.ordering_bounds import are_later, ordering_bounds
from objcat.datafile.parquet import BASE_ROW_GROUP_ROWS, as_of_schema, base_pieces, constant, read_log, txn_of_path
from objcat.datafile.streaming_merge import cut_sorted, sort_by_key
from objcat.metadata.column_parts import with_parts
from objcat.metadata.files import BaseFile, FileGroup, LogObject, LogSlice
from objcat.metadata.manifest import Pruning
from objcat.metadata.schema import Column, TableSchema
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.parts import known_part
from objcat.tasks.model import Filter, ScanTask
from objcat.tasks.parallel import interleave
from objcat.tasks.row_order import by_key, lies_otherwise, sorting_bytes
from objcat.tasks.scan_parts import cast_to, schema_read
from objcat.timeline.entry import FileGroupId

FILE_COLUMN = "_file"
"""Hidden column: the data file of the row, as a path below the prefix of the table's log."""
HIDDEN_FIELDS = (pa.field(FILE_COLUMN, pa.string()), pa.field(TXN_COLUMN, pa.string()))
"""Fields that a task can select in addition to the table's columns."""
GROUP_LOGS_BYTES_MAX = 64 * 1024**2
"""Arrow bytes of log rows of one file group that are merged from memory. A larger amount is read during the merge."""
AHEAD_BYTES_MAX = 256 * 1024**2
"""Arrow bytes that a scan reads ahead of its consumer, about."""

_SOURCE = "_objcat_source"
"""The number of the file of a row, during the merge."""


def scan_groups(fileio: FileIO, task: ScanTask, *, at_once: int = 1, lazy: bool = False) -> Iterator[pa.Table]:
    """The merged rows of a task's file groups as tables of about a row group each, under logical names.

    Rows of a file group come roughly by key. Holds a few row groups of each file group being read, and the log rows that fit, see
    `LogReader`.
    Raises CorruptTable and storage errors.

    Args:
        at_once: number of file groups to read concurrently.
        lazy: read nothing before it is requested, log objects included. Then file groups are read one after another.
    """
    reader = _GroupReader(fileio, task)
    # Deletes that a compaction retained change nothing in the rows that it wrote.
    groups = [replace(group, logs=()) if group.is_plain else group for group in task.groups]
    try:
        if lazy:
            for group in groups:
                reader.logs.load([group])
                yield from reader.rows(group)
            return
        reader.logs.load(groups)
        yield from interleave(fileio.env, (reader.rows(group) for group in groups), at_once=at_once)
    finally:
        reader.logs.close()


def ahead_of(groups: Iterable[FileGroup], *, most: int) -> int:
    """How many file groups to read concurrently, so that read-ahead stays within its limit."""
    largest = 1
    for group in groups:
        if group.base is not None:
            rows = min(BASE_ROW_GROUP_ROWS, group.base.rows)
            largest = max(largest, EXPANSION * group.base.bytes * rows // max(1, group.base.rows))
            if group.logs and lies_otherwise(group):
                largest = max(largest, sorting_bytes(group))
    return max(1, min(most, AHEAD_BYTES_MAX // largest))


def scan_schema(spec: TableSpec, columns: Sequence[str], parts: Sequence[Column] = ()) -> pa.Schema:
    """The Arrow schema of a scan of these logical and hidden columns. parts: as of `ScanTask`."""
    schema = with_parts(spec.table_schema, parts).to_arrow()
    hidden = {field.name: field for field in HIDDEN_FIELDS}
    return pa.schema([hidden[name] if name in hidden else schema.field(name) for name in columns])


class _GroupReader:
    """Reads the file groups of one task. Thread-safe."""

    def __init__(self, fileio: FileIO, task: ScanTask) -> None:
        self._fileio = fileio
        self._task = task
        self._spec = task.spec
        self._columns = _physical_columns(task)
        self._key = [column.physical for column in task.spec.key_columns]
        self._ordering = task.spec.ordering_physical
        wanted = _physical_columns(task, to_merge_by_key=True)
        self._without_ordering = [name for name in self._columns if name in wanted]
        self._schema = scan_schema(task.spec, task.columns, task.parts)
        # Only files in place are read by fields.
        self._fields_read = schema_read(task.spec.table_schema, task.columns, task.parts, task.where)
        where = task.where
        self._plain_where = None if where is None else where.to_pruning()
        # A base row that may win over a log row is dropped only if its key cannot pass. Without it the log row would appear.
        key = None if not self._ordering else [column.name for column in task.spec.key_columns]
        self._merged_where = None if where is None else where.to_pruning(only=key)
        self.logs = LogReader(fileio, self._columns, task.spec.table_schema)

    def rows(self, group: FileGroup) -> Iterator[pa.Table]:
        """The selected rows of a file group that pass the filter."""
        try:
            for rows in self._merged(group) if group.logs else self._base(group):
                projected = self._project(rows, group)
                if projected.num_rows:
                    yield projected
        finally:
            self.logs.done(group)

    def _merged(self, group: FileGroup) -> Iterator[pa.Table]:
        numbered = [(part, number) for number, part in enumerate(group.logs, start=1)]
        if not self._key:
            # Without a key nothing is merged or deleted.
            yield from self._base(group)
            for part, number in numbered:
                for rows in self.logs.pieces(part):
                    yield self._of_log(rows, group, part, number).drop_columns([OP_COLUMN])
            return
        if self.logs.bytes_of(group) > GROUP_LOGS_BYTES_MAX:
            yield from self._replayed(group, self._base(group), [self._log_pieces(group, part, number) for part, number in numbered])
            return
        # The base file, or its footer, is read while the log objects are.
        if not self._ordering:
            base = _begun(self._base(group))
            yield from self._replayed(group, base, [self._log_rows(numbered, group)[1]])
            return
        with nullcontext() if group.base is None else open_parquet(self._fileio, group.base, self._spec.table_schema) as file:
            parts, together = self._log_rows(numbered, group)
            by_key_alone = file is not None and self._are_settled(group, parts, file)
            base = self._base(group, opened=file, by_key_alone=by_key_alone)
            yield from self._replayed(group, base, [together], by_key_alone=by_key_alone)

    def _log_rows(self, numbered: Sequence[tuple[LogSlice, int]], group: FileGroup) -> tuple[list[pa.Table], list[pa.Table]]:
        """The rows of each slice, and all of them in one table that is sorted by key."""
        parts = [self._of_log(self.logs.rows(part), group, part, number) for part, number in numbered]
        return parts, [sort_by_key(pa.concat_tables(parts), key=self._key)]

    def _replayed(
        self, group: FileGroup, base: Iterator[pa.Table], logs: Sequence[Iterable[pa.Table]], *, by_key_alone: bool = False
    ) -> Iterator[pa.Table]:
        """The merged rows. by_key_alone: every log row wins over the base row of its key."""
        sources: list[Iterable[pa.Table]] = [by_key(base, key=self._key) if lies_otherwise(group) else base, *logs]
        for before, *after in cut_sorted(sources, key=self._key):
            present = [rows for rows in after if rows is not None]
            if not present:
                assert before is not None
                yield before
                continue
            on_top = pa.concat_tables(present)
            if before is None:
                yield merge(on_top, key=self._key, ordering=self._ordering)
            elif by_key_alone:
                newest = merge(on_top, key=self._key, ordering=self._ordering, keep_deletes=True)
                yield from overlay(before, newest, key=self._key, ordering=())
            else:
                yield from overlay(before, on_top, key=self._key, ordering=self._ordering)

    def _are_settled(self, group: FileGroup, parts: Sequence[pa.Table], file: pq.ParquetFile | AdoptedParquet) -> bool:
        """Whether every log row is known to win over the base row of its key by its ordering value. parts: the rows of each slice."""
        if group.is_adopted:
            return False
        ordering = self._spec.ordering_columns
        bounds = ordering_bounds(file.metadata, file.schema_arrow, ordering)
        if bounds is None:
            return False
        for part, rows in zip(group.logs, parts, strict=True):
            # A compaction leaves no row of a key whose delete it retains.
            retained = part.slot <= group.as_of and pc.all(pc.equal(rows.column(OP_COLUMN), OP_DELETE), min_count=0).as_py()
            if not retained and not are_later(rows, ordering, bounds):
                return False
        return True

    def _base(
        self, group: FileGroup, *, opened: pq.ParquetFile | AdoptedParquet | None = None, by_key_alone: bool = False
    ) -> Iterator[pa.Table]:
        base = group.base
        if base is None:
            return
        columns = self._without_ordering if by_key_alone else self._columns
        columns = [*columns, *([TXN_COLUMN] if TXN_COLUMN in self._task.columns else [])]
        where = self._merged_where if group.logs and not by_key_alone else self._plain_where
        if base.source is not None:
            yield from self._in_place(base, columns, where)
            return
        for rows in base_pieces(self._fileio, base, columns, where=where, spec=self._spec, opened=opened):
            yield self._numbered(bare(own_rows(rows, self._spec, group, base.group_id)), 0)

    def _in_place(self, base: BaseFile, columns: Sequence[str], where: Pruning | None) -> Iterator[pa.Table]:
        """The rows of a file in place, which is alone in its file group."""
        part = known_part_of(self._task.where)
        parts = self._fields_read
        for rows in pieces_in_place(self._fileio, base, columns, self._spec, where=where, known_part=part, parts=parts):
            yield self._numbered(bare(as_of_schema(rows, columns, parts)), 0)

    def _log_pieces(self, group: FileGroup, part: LogSlice, number: int) -> Iterator[pa.Table]:
        for rows in self.logs.pieces(part):
            yield self._of_log(rows, group, part, number)

    def _of_log(self, rows: pa.Table, group: FileGroup, part: LogSlice, number: int) -> pa.Table:
        rows = bare(rows_of_slice(rows, self._spec, group, part))
        if TXN_COLUMN in self._task.columns:
            # After the columns of base files, in their order.
            op = rows.column_names.index(OP_COLUMN)
            rows = rows.add_column(op, TXN_COLUMN, constant(txn_of_path(part.object.path), rows.num_rows))
        return self._numbered(rows, number)

    def _numbered(self, rows: pa.Table, number: int) -> pa.Table:
        if FILE_COLUMN not in self._task.columns:
            return rows
        return rows.append_column(_SOURCE, pa.array(np.full(rows.num_rows, number, dtype=np.int32)))

    def _project(self, rows: pa.Table, group: FileGroup) -> pa.Table:
        """Logical names, filtered."""
        in_place = group.base is not None and group.base.source is not None
        rows = logical(rows, self._fields_read if in_place else self._spec.table_schema)
        if self._task.where is not None:
            rows = rows.filter(self._task.where.to_arrow())
        if FILE_COLUMN in self._task.columns:
            paths = [None if group.base is None else group.base.path, *(part.object.path for part in group.logs)]
            rows = rows.append_column(FILE_COLUMN, pa.array(paths, pa.string()).take(rows.column(_SOURCE)))
        return named(cast_to(rows, self._schema, self._task.parts), self._schema)


def known_part_of(where: Filter | None) -> KnownPart | None:
    """What a filter says of some columns alone, as `pieces_in_place` asks for it."""
    return None if where is None else partial(known_part, where)


def _begun(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same pieces, of which the first one is read now."""
    first = list(islice(pieces, 1))
    return chain(first, pieces)


def rows_of_slice(rows: pa.Table, spec: TableSpec, group: FileGroup, part: LogSlice) -> pa.Table:
    """The rows of a slice that count in a file group: its own, and not too late. rows: with the ordering columns, if any."""
    return drop_late_rows(own_rows(rows, spec, group, part.group_id), spec, part.committed_at_ms)


def own_rows(rows: pa.Table, spec: TableSpec, group: FileGroup, group_id: FileGroupId) -> pa.Table:
    """The rows addressed to `group_id` that belong to the file group. A split divides file groups and leaves their files as they are.

    rows: physical names, the hashed columns among them.
    """
    if not group.is_shared(group_id):
        return rows
    buckets = bucket_of([rows.column(column.physical) for column in spec.bucket_columns], group.group_id.bucket_count)
    return rows.filter(pa.array(buckets == group.group_id.bucket))


def _physical_columns(task: ScanTask, *, to_merge_by_key: bool = False) -> list[str]:
    """Physical names to read: for the selection, the filter and the merge. to_merge_by_key: where keys alone decide."""
    spec = task.spec
    hidden = {field.name for field in HIDDEN_FIELDS}
    names = {*task.columns, *(task.where.columns if task.where else ())} - hidden
    wanted = {spec.table_schema.column(name).physical for name in names}
    if any(not group.is_plain for group in task.groups):
        wanted |= {column.physical for column in spec.key_columns}
        wanted |= set() if to_merge_by_key else set(spec.ordering_physical)
    if not wanted:
        wanted = {(spec.key_columns or spec.table_schema.columns)[0].physical}
    return [column.physical for column in spec.table_schema.columns if column.physical in wanted]


def read_logs(fileio: FileIO, groups: Sequence[FileGroup], columns: Sequence[str], schema: TableSchema) -> dict[tuple[str, int], pa.Table]:
    """The log rows of all file groups by (object, first row), cast to `schema`. Each log object is opened once."""
    wanted: dict[str, tuple[LogObject, list[tuple[int, int]]]] = {}
    for group in groups:
        for rows in group.logs:
            wanted.setdefault(rows.object.path, (rows.object, []))[1].append((rows.start, rows.end))
    tables: dict[tuple[str, int], pa.Table] = {}
    for path, (log, ranges) in wanted.items():
        for (start, _), table in zip(ranges, read_log(fileio, log, ranges, columns, schema), strict=True):
            tables[path, start] = table
    return tables


def numbered(rows: pa.Table, first: int) -> pa.Table:
    """Rows with their numbers in their file, in the column `POSITION`. first: of the first row."""
    return rows.append_column(pa.field(POSITION, pa.int64()), pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64)))


def bare(rows: pa.Table) -> pa.Table:
    """Rows without field metadata and with nullable fields, so that base and log rows concatenate."""
    return rows.cast(pa.schema([pa.field(field.name, field.type) for field in rows.schema]))
