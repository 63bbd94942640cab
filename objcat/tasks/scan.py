"""Reading file groups, merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from fileio.store import FileIO
from objcat.storage.files import read_base, read_log
from objcat.storage.hashing import bucket_of
from objcat.storage.merge import OP_COLUMN, OP_UPSERT, merge
from objcat.table import FileGroup, LogObject, TableSpec
from objcat.tasks.model import ScanTask
from objcat.timeline import Home


def scan_groups(fileio: FileIO, task: ScanTask) -> Iterator[pa.Table]:
    """The merged rows of every file group of a task, one table a group, under logical names."""
    spec = task.spec
    needed = _physical_columns(task)
    # Deletes that a compaction kept change nothing in the rows that it wrote.
    groups = [replace(group, logs=()) if group.is_plain else group for group in task.groups]
    logs = read_logs(fileio, groups, needed)
    ordering = spec.ordering_column
    for group in groups:
        parts = []
        if group.base is not None:
            base = own_rows(read_base(fileio, group.base, needed), spec, group, group.base.home)
            parts.append(base.append_column(OP_COLUMN, pa.array(np.full(base.num_rows, OP_UPSERT, dtype=np.int8))) if group.logs else base)
        parts.extend(own_rows(logs[rows.object.path, rows.start], spec, group, rows.home) for rows in group.logs)
        merged = pa.concat_tables([bare(part) for part in parts])
        if group.logs:
            key = [column.physical for column in spec.key_columns]
            merged = merge(merged, key=key, ordering=None if ordering is None else ordering.physical)
        yield _project(merged, task)


def own_rows(rows: pa.Table, spec: TableSpec, group: FileGroup, home: Home) -> pa.Table:
    """Those of the rows addressed to `home` that are of the group: a split divides file groups, and leaves their files as they are.

    rows: physical names, the hashed columns among them.
    """
    if not group.is_shared(home):
        return rows
    buckets = bucket_of([rows.column(column.physical) for column in spec.bucket_columns], group.home.bucket_count)
    return rows.filter(pa.array(buckets == group.home.bucket))


def scan_schema(spec: TableSpec, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of what a scan of these logical columns yields."""
    schema = spec.table_schema.to_arrow()
    return pa.schema([schema.field(name) for name in columns])


def _physical_columns(task: ScanTask) -> list[str]:
    """Physical names to read: what is selected, filtered by, and merged by."""
    spec = task.spec
    names = {*task.columns, *(task.where.columns if task.where else ())}
    wanted = {spec.table_schema.column(name).physical for name in names}
    if any(not group.is_plain for group in task.groups):
        wanted |= {column.physical for column in spec.key_columns}
        wanted |= {spec.ordering_column.physical} if spec.ordering_column else set()
    if not wanted:
        wanted = {spec.key_columns[0].physical}
    return [column.physical for column in spec.table_schema.columns if column.physical in wanted]


def read_logs(fileio: FileIO, groups: Sequence[FileGroup], columns: Sequence[str]) -> dict[tuple[str, int], pa.Table]:
    """The log rows of all groups by (object, first row), each log object opened once."""
    wanted: dict[str, tuple[LogObject, list[tuple[int, int]]]] = {}
    for group in groups:
        for rows in group.logs:
            wanted.setdefault(rows.object.path, (rows.object, []))[1].append((rows.start, rows.end))
    tables: dict[tuple[str, int], pa.Table] = {}
    for path, (log, ranges) in wanted.items():
        for (start, _), table in zip(ranges, read_log(fileio, log, ranges, columns), strict=True):
            tables[path, start] = table
    return tables


def _project(rows: pa.Table, task: ScanTask) -> pa.Table:
    """Logical names and types, filtered."""
    columns = {column.physical: column for column in task.spec.table_schema.columns}
    rows = rows.rename_columns([columns[name].name for name in rows.column_names])
    if task.where is not None:
        rows = rows.filter(task.where.to_arrow())
    return rows.select(list(task.columns)).cast(scan_schema(task.spec, task.columns))


def bare(rows: pa.Table) -> pa.Table:
    """Without field metadata and with every field nullable, so that base and log rows concatenate."""
    return rows.cast(pa.schema([pa.field(field.name, field.type) for field in rows.schema]))
