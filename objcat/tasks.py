"""The task functions that every engine runs: small picklable values in, Arrow in, file entries or Arrow out. They never touch the log."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.env import Env
from fileio.store import FileIO
from objcat.predicate import Predicate
from objcat.storage.batch import conform, conform_delete
from objcat.storage.files import base_path, log_path, read_base, read_log, write_base, write_log
from objcat.storage.hashing import bucket_of
from objcat.storage.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, merge
from objcat.table import BaseFile, FileGroup, LogObject, TableSpec
from objcat.timeline import Txn

T = TypeVar("T")
R = TypeVar("R")

LOG_BATCH_BYTES = 128 * 1024**2
"""Arrow bytes that become one log object: the number of objects follows bytes, not buckets."""


class Operation(enum.StrEnum):
    """What a write does to the keys of its rows."""

    UPSERT = "upsert"
    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Write rows of one transaction. live_buckets: those that have a file group, where an insert goes to log rows."""

    spec: TableSpec
    txn: Txn
    operation: Operation
    live_buckets: frozenset[int] = frozenset()


class WriteResult(msgspec.Struct, frozen=True):
    """Files that a task wrote. rows: after folding repeated keys."""

    bases: tuple[BaseFile, ...] = ()
    logs: tuple[LogObject, ...] = ()
    rows: int = 0

    def __add__(self, other: WriteResult) -> WriteResult:
        return WriteResult(self.bases + other.bases, self.logs + other.logs, self.rows + other.rows)


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
        result += _write_log(fileio, task, f"{name}-{number}", fitted, buckets)
    return result


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
        fitted.append_column(pa.field(OP_COLUMN, pa.int8(), nullable=False), op),
        key=[column.physical for column in spec.key_columns],
        ordering=None if ordering is None else ordering.physical,
        keep_deletes=True,
    )
    buckets = bucket_of([fitted.column(column.physical) for column in spec.bucket_columns], spec.index.count)
    order = np.argsort(buckets, kind="stable")
    return fitted.take(pa.array(order)), buckets[order]


def _write_log(fileio: FileIO, task: WriteTask, name: str, rows: pa.Table, buckets: npt.NDArray[np.int32]) -> WriteResult:
    schema = task.spec.table_schema.to_arrow_physical(nullable=True).append(rows.schema.field(OP_COLUMN))
    path = log_path(task.txn, task=name, attempt=fileio.env.new_id())
    log = write_log(fileio, path, rows.cast(schema), buckets, task.spec)
    return WriteResult(logs=(log,), rows=log.rows)


# ---- reading -----------------------------------------------------------------------------------------------------


def scan_groups(fileio: FileIO, task: ScanTask) -> Iterator[pa.Table]:
    """The merged rows of every file group of a task, one table a group, under logical names."""
    spec = task.spec
    needed = _physical_columns(task)
    logs = _read_logs(fileio, task.groups, needed)
    ordering = spec.ordering_column
    for group in task.groups:
        parts = []
        if group.base is not None:
            base = read_base(fileio, group.base, needed)
            parts.append(base.append_column(OP_COLUMN, pa.array(np.full(base.num_rows, OP_UPSERT, dtype=np.int8))) if group.logs else base)
        parts.extend(logs[rows.object.path, rows.start] for rows in group.logs)
        merged = pa.concat_tables([_bare(part) for part in parts])
        if group.logs:
            key = [column.physical for column in spec.key_columns]
            merged = merge(merged, key=key, ordering=None if ordering is None else ordering.physical)
        yield _project(merged, task)


def scan_schema(spec: TableSpec, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of what a scan of these logical columns yields."""
    schema = spec.table_schema.to_arrow()
    return pa.schema([schema.field(name) for name in columns])


def _physical_columns(task: ScanTask) -> list[str]:
    """Physical names to read: what is selected, filtered by, and merged by."""
    spec = task.spec
    names = {*task.columns, *(task.where.columns if task.where else ())}
    wanted = {spec.table_schema.column(name).physical for name in names}
    if any(group.logs for group in task.groups):
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
