"""The task functions that every engine runs: small picklable values in, Arrow in, file entries or Arrow out. They never touch the log."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fileio.env import Env
from fileio.store import FileIO
from objcat.predicate import Predicate
from objcat.storage.batch import conform, conform_delete
from objcat.storage.files import TXN_COLUMN, base_path, constant, log_path, read_base, read_log, txn_of_path, write_base, write_log
from objcat.storage.hashing import bucket_of
from objcat.storage.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, merge
from objcat.table import BaseFile, FileGroup, LogObject, TableSpec
from objcat.timeline import Home, Txn

T = TypeVar("T")
R = TypeVar("R")

OP_FIELD = pa.field(OP_COLUMN, pa.int8(), nullable=False)
TXN_FIELD = pa.field(TXN_COLUMN, pa.string(), nullable=False)
LOG_BATCH_BYTES = 128 * 1024**2
"""Arrow bytes that become one log object: the number of objects follows bytes, not buckets."""


class Operation(enum.StrEnum):
    """What a write does to the keys of its rows."""

    UPSERT = "upsert"
    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Write rows of one transaction.

    live_buckets: of an insert into a merge-on-read table: those that have a file group, where rows go to log rows. groups: of a
    copy-on-write table: what is live, by bucket. only: the buckets whose rows are written, None for all; the others are left out.
    """

    spec: TableSpec
    txn: Txn
    operation: Operation
    live_buckets: frozenset[int] = frozenset()
    groups: Mapping[int, FileGroup] = field(default_factory=dict)
    only: frozenset[int] | None = None

    @property
    def routed(self) -> bool:
        """Whether all rows of a bucket must meet in one task."""
        return self.spec.rewrites or self.operation is Operation.INSERT


class Rewritten(msgspec.Struct, frozen=True, array_like=True):
    """What came of one home of a copy-on-write table.

    rows: of the batch. inserted, updated, deleted: rows of the home. changed: else the batch left its rows as they were.
    """

    home: Home
    rows: int
    inserted: int
    updated: int
    deleted: int
    changed: bool


class WriteResult(msgspec.Struct, frozen=True):
    """Files that a task wrote. rows: after folding repeated keys. rewritten: the homes that a copy-on-write task has read."""

    bases: tuple[BaseFile, ...] = ()
    logs: tuple[LogObject, ...] = ()
    rows: int = 0
    rewritten: tuple[Rewritten, ...] = ()

    def __add__(self, other: WriteResult) -> WriteResult:
        return WriteResult(self.bases + other.bases, self.logs + other.logs, self.rows + other.rows, self.rewritten + other.rewritten)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Read and merge the rows of some file groups. columns: logical names, in order. where: keeps the rows for which it is true."""

    spec: TableSpec
    groups: tuple[FileGroup, ...]
    columns: tuple[str, ...]
    where: Predicate | None


# ---- writing -----------------------------------------------------------------------------------------------------


def write_rows(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    """Write batches of the user's as log objects, for an upsert or a delete. name: of this task within the transaction.

    Holds about `LOG_BATCH_BYTES` of rows at a time. Raises InvalidBatch and NullKey before the batch at fault is written.
    """
    result = WriteResult()
    for number, rows in enumerate(_gather(batches)):
        fitted, buckets = _prepare(task, rows)
        if fitted.num_rows:
            result += _write_log(fileio, task, f"{name}-{number}", fitted, buckets)
    return result


def write_routed(fileio: FileIO, task: WriteTask, name: str, rows: pa.Table) -> WriteResult:
    """Write rows that hold *every* row of their buckets in this transaction. Raises as `write_rows`."""
    return (rewrite_homes if task.spec.rewrites else write_inserts)(fileio, task, name, rows)


def write_inserts(fileio: FileIO, task: WriteTask, name: str, rows: pa.Table) -> WriteResult:
    """Write rows that hold *every* row of their buckets in this transaction: base files for buckets that have no file group, log rows
    else."""
    fitted, buckets = _prepare(task, rows)
    live = np.isin(buckets, np.fromiter(task.live_buckets, dtype=np.int32))
    result = WriteResult()
    if live.any():
        chosen = np.flatnonzero(live)
        result += _write_log(fileio, task, name, fitted.take(pa.array(chosen)), buckets[chosen])
    starts = np.flatnonzero(np.diff(np.where(live, -1, buckets), prepend=-1))
    runs = [(int(buckets[start]), int(start)) for start in starts if not live[start]]
    edges = np.append(np.flatnonzero(np.diff(buckets, prepend=-1)), len(buckets))

    def write_one(run: tuple[int, int]) -> BaseFile:
        bucket, start = run
        end = int(edges[np.searchsorted(edges, start, side="right")])
        home = task.spec.home(bucket)
        path = base_path(task.txn, home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
        return write_base(fileio, path, fitted.slice(start, end - start).drop_columns([OP_COLUMN]), home, task.txn)

    bases = tuple(run_all(fileio.env, write_one, runs))
    return result + WriteResult(bases=bases, rows=sum(base.rows for base in bases))


def rewrite_homes(fileio: FileIO, task: WriteTask, name: str, rows: pa.Table) -> WriteResult:
    """Merge rows, which hold *every* row of their buckets in this transaction, with the file groups of a copy-on-write table.

    A home whose rows change gets a new base file. Deletes that keep older late rows out go, of all homes together, into one log object.
    """
    fitted, buckets = _prepare(task, rows)
    starts = np.flatnonzero(np.diff(buckets, prepend=-1))
    ends = np.append(starts[1:], len(buckets))
    batch = fitted.append_column(TXN_FIELD, constant(task.txn, fitted.num_rows))
    runs = [(int(buckets[start]), batch.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)]
    homes = run_all(fileio.env, lambda run: _rewrite_home(fileio, task, *run), runs)
    result = WriteResult(
        bases=tuple(home.base for home in homes if home.base is not None),
        rows=fitted.num_rows,
        rewritten=tuple(home.rewritten for home in homes),
    )
    kept = [home for home in homes if home.tombstones.num_rows]
    if kept:
        of_rows = np.repeat([home.rewritten.home.bucket for home in kept], [home.tombstones.num_rows for home in kept]).astype(np.int32)
        tombstones = pa.concat_tables([home.tombstones for home in kept]).cast(log_schema(task.spec))
        result += WriteResult(logs=_write_log(fileio, task, name, tombstones, of_rows).logs)
    return result


@dataclass(frozen=True, slots=True)
class _RewrittenHome:
    """What one home becomes. base: None when its rows stay as they are. tombstones: to be written for it, physical columns."""

    rewritten: Rewritten
    base: BaseFile | None
    tombstones: pa.Table


def _rewrite_home(fileio: FileIO, task: WriteTask, bucket: int, batch: pa.Table) -> _RewrittenHome:
    spec = task.spec
    home = spec.home(bucket)
    key = [column.physical for column in spec.key_columns]
    ordering = spec.ordering_column
    before = current_rows(fileio, spec, task.groups.get(bucket, FileGroup(home)))
    rows_before = before.num_rows - _count(before, OP_COLUMN, OP_DELETE)
    merged = merge(
        pa.concat_tables([before, _bare(batch).select(before.column_names)]),
        key=key,
        ordering=None if ordering is None else ordering.physical,
        keep_deletes=True,
    )
    deleted = pc.equal(merged.column(OP_COLUMN), OP_DELETE)
    rows, tombstones = merged.filter(pc.invert(deleted)), _tombstones(merged.filter(deleted), spec)
    written = _count(rows, TXN_COLUMN, task.txn)
    if task.operation is Operation.DELETE:
        counts = (0, 0, rows_before - rows.num_rows)
    else:
        inserted = rows.num_rows - rows_before
        counts = (inserted, written - inserted, 0)
    # A delete without an ordering value may end no row but a tombstone, which is gone once a new base file stands for the home.
    changed = any(counts) or tombstones.num_rows < before.num_rows - rows_before
    if not changed:
        # What was there stays, so only what the batch adds to it is written.
        tombstones = tombstones.filter(pc.equal(tombstones.column(TXN_COLUMN), task.txn))
    base = None
    if changed:
        path = base_path(task.txn, home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
        schema = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
        base = write_base(fileio, path, rows.select(schema.names).cast(schema), home, task.txn)
    return _RewrittenHome(Rewritten(home, batch.num_rows, *counts, changed=changed), base, tombstones.drop_columns([TXN_COLUMN]))


def current_rows(fileio: FileIO, spec: TableSpec, group: FileGroup) -> pa.Table:
    """The rows of a file group and the tombstones that it still needs, each key once, with their operation and the txn that wrote them."""
    columns = [column.physical for column in spec.table_schema.columns]
    names = [*columns, OP_COLUMN, TXN_COLUMN]
    parts = [spec.table_schema.to_arrow_physical().append(OP_FIELD).append(TXN_FIELD).empty_table()]
    if group.base is not None:
        base = own_rows(read_base(fileio, group.base, [*columns, TXN_COLUMN]), spec, group, group.base.home)
        parts.append(base.append_column(OP_COLUMN, pa.array(np.full(base.num_rows, OP_UPSERT, dtype=np.int8))))
    logs = _read_logs(fileio, [group], columns)
    for rows in group.logs:
        table = own_rows(logs[rows.object.path, rows.start], spec, group, rows.home)
        parts.append(table.append_column(TXN_COLUMN, constant(txn_of_path(rows.object.path), table.num_rows)))
    merged = pa.concat_tables([_bare(part.select(names)) for part in parts])
    if not group.logs:
        return merged
    ordering = spec.ordering_column
    key = [column.physical for column in spec.key_columns]
    merged = merge(merged, key=key, ordering=None if ordering is None else ordering.physical, keep_deletes=True)
    deleted = pc.equal(merged.column(OP_COLUMN), OP_DELETE)
    return pa.concat_tables([merged.filter(pc.invert(deleted)), _tombstones(merged.filter(deleted), spec)])


def log_schema(spec: TableSpec) -> pa.Schema:
    """The columns of a log object."""
    return spec.table_schema.to_arrow_physical(nullable=True).append(OP_FIELD)


def _tombstones(deletes: pa.Table, spec: TableSpec) -> pa.Table:
    """Those of a home's winning deletes that rows yet to come are measured by: barriers, and deletes of tables without an ordering column,
    have done their work."""
    ordering = spec.ordering_column
    if ordering is None:
        return deletes.slice(0, 0)
    return deletes.filter(pc.is_valid(deletes.column(ordering.physical)))


def _count(rows: pa.Table, column: str, value: int | str) -> int:
    return int(pc.sum(pc.equal(rows.column(column), value)).as_py() or 0)


def run_all(env: Env, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`env.map`, but raises the first failure only after every item has ended: then nothing writes any more behind a clean-up."""

    def run(item: T) -> R | Exception:
        try:
            return function(item)
        except Exception as error:  # noqa: BLE001 - raised below
            return error

    results = []
    failure: Exception | None = None
    for result in env.map(run, items):
        if isinstance(result, Exception):
            failure = failure or result
        else:
            results.append(result)
    if failure is not None:
        raise failure
    return results


def _gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= LOG_BATCH_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _prepare(task: WriteTask, rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int32]]:
    """The rows fitted to the table with their operation, each key once, sorted by (bucket, key); and the bucket of each."""
    spec = task.spec
    deleting = task.operation is Operation.DELETE
    fitted = conform_delete(rows, spec) if deleting else conform(rows, spec)
    op = pa.array(np.full(fitted.num_rows, OP_DELETE if deleting else OP_UPSERT, dtype=np.int8))
    ordering = spec.ordering_column
    fitted = merge(
        fitted.append_column(OP_FIELD, op),
        key=[column.physical for column in spec.key_columns],
        ordering=None if ordering is None else ordering.physical,
        keep_deletes=True,
    )
    buckets = bucket_of([fitted.column(column.physical) for column in spec.bucket_columns], spec.index.count)
    order = np.argsort(buckets, kind="stable")
    if task.only is not None:
        order = order[np.isin(buckets[order], np.fromiter(task.only, dtype=np.int32))]
    return fitted.take(pa.array(order)), buckets[order]


def _write_log(fileio: FileIO, task: WriteTask, name: str, rows: pa.Table, buckets: npt.NDArray[np.int32]) -> WriteResult:
    schema = task.spec.table_schema.to_arrow_physical(nullable=True).append(OP_FIELD)
    path = log_path(task.txn, task=name, attempt=fileio.env.new_id())
    log = write_log(fileio, path, rows.cast(schema), buckets, task.spec)
    return WriteResult(logs=(log,), rows=log.rows)


# ---- reading -----------------------------------------------------------------------------------------------------


def scan_groups(fileio: FileIO, task: ScanTask) -> Iterator[pa.Table]:
    """The merged rows of every file group of a task, one table a group, under logical names."""
    spec = task.spec
    needed = _physical_columns(task)
    # Deletes that a compaction kept change nothing in the rows that it wrote.
    groups = [replace(group, logs=()) if group.is_plain else group for group in task.groups]
    logs = _read_logs(fileio, groups, needed)
    ordering = spec.ordering_column
    for group in groups:
        parts = []
        if group.base is not None:
            base = own_rows(read_base(fileio, group.base, needed), spec, group, group.base.home)
            parts.append(base.append_column(OP_COLUMN, pa.array(np.full(base.num_rows, OP_UPSERT, dtype=np.int8))) if group.logs else base)
        parts.extend(own_rows(logs[rows.object.path, rows.start], spec, group, rows.home) for rows in group.logs)
        merged = pa.concat_tables([_bare(part) for part in parts])
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


def _read_logs(fileio: FileIO, groups: Sequence[FileGroup], columns: Sequence[str]) -> dict[tuple[str, int], pa.Table]:
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


def _bare(rows: pa.Table) -> pa.Table:
    """Without field metadata and with every field nullable, so that base and log rows concatenate."""
    return rows.cast(pa.schema([pa.field(field.name, field.type) for field in rows.schema]))
