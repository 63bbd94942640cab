"""Writing a batch: log objects, and base files of homes that have none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.store import FileIO
from objcat.storage.batch import conform, conform_delete
from objcat.storage.files import base_path, log_path, write_base, write_log
from objcat.storage.hashing import bucket_of
from objcat.storage.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, merge
from objcat.table import BaseFile, TableSpec
from objcat.tasks.model import OP_FIELD, Operation, WriteResult, WriteTask
from objcat.tasks.parallel import run_all

LOG_BATCH_BYTES = 128 * 1024**2
"""Arrow bytes that become one log object: the number of objects follows bytes, not buckets."""


def write_rows(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    """Write batches of the user's as log objects, for an upsert or a delete. name: of this task within the transaction.

    Holds about `LOG_BATCH_BYTES` of rows at a time. Raises InvalidBatch and NullKey before the batch at fault is written.
    """
    result = WriteResult()
    for number, rows in enumerate(_gather(batches)):
        fitted, buckets = prepare(task, rows)
        if fitted.num_rows:
            result += put_log(fileio, task, f"{name}-{number}", fitted, buckets)
    return result


def write_inserts(fileio: FileIO, task: WriteTask, name: str, rows: pa.Table) -> WriteResult:
    """Write rows that hold *every* row of their buckets in this transaction: base files for buckets that have no file group, log rows
    else."""
    fitted, buckets = prepare(task, rows)
    live = np.isin(buckets, np.fromiter(task.live_buckets, dtype=np.int32))
    result = WriteResult()
    if live.any():
        chosen = np.flatnonzero(live)
        result += put_log(fileio, task, name, fitted.take(pa.array(chosen)), buckets[chosen])
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


def prepare(task: WriteTask, rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int32]]:
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


def put_log(fileio: FileIO, task: WriteTask, name: str, rows: pa.Table, buckets: npt.NDArray[np.int32]) -> WriteResult:
    schema = task.spec.table_schema.to_arrow_physical(nullable=True).append(OP_FIELD)
    path = log_path(task.txn, task=name, attempt=fileio.env.new_id())
    log = write_log(fileio, path, rows.cast(schema), buckets, task.spec)
    return WriteResult(logs=(log,), rows=log.rows)


def log_schema(spec: TableSpec) -> pa.Schema:
    """The columns of a log object."""
    return spec.table_schema.to_arrow_physical(nullable=True).append(OP_FIELD)


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
