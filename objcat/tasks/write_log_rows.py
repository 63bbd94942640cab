"""Writes a batch as log objects, and prepares rows for all write functions.

`put_log` chooses the path of a log object, and `write_log` in `objcat.datafile.parquet` writes it. `by_group` assigns each key to a file
group by its hash. For rows without a hash bucket, `objcat.write.file_sizing` chooses the file groups instead. A log slice is a range of
rows of a log object, and has no file of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.store import FileIO
from objcat.datafile.batch_checks import conform, conform_delete, conform_mixed
from objcat.datafile.bucket_hash import key_digests, spark_hash
from objcat.datafile.casting import cast_rows as under
from objcat.datafile.casting import plain
from objcat.datafile.late_changes import without_late_changes
from objcat.datafile.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, has_order, winners
from objcat.datafile.parquet import log_path, write_log
from objcat.datafile.row_selection import RowSelection
from objcat.errors import InvalidBatch
from objcat.metadata.files import LogRows
from objcat.metadata.key_index_table import BUCKET_FIELD, PARTITION_FIELD
from objcat.metadata.partitioning import Codes
from objcat.metadata.table_spec import PARTITION_SCOPE, RecordIndexSpec, TableSpec
from objcat.predicate.parse import Predicate
from objcat.tasks.model import OP_FIELD, PLACE_COLUMN, PLACE_FIELD, Operation, WriteResult, WriteTask
from objcat.timeline.entry import FileGroupId

LOG_BATCH_BYTES = 128 * 1024**2
"""Arrow bytes that become one log object. The number of objects depends on bytes, not on buckets."""


def write_rows(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    """Write a user's batches as log objects, for an upsert or a delete.

    Holds about `LOG_BATCH_BYTES` of rows at a time, or what the table sets. Raises InvalidBatch and NullKey before the batch at fault is
    written.

    name: of this task within the transaction.
    """
    result = WriteResult()
    size_max = task.spec.target_log_bytes
    numbers = count()
    for rows in gather(batches if size_max is None else bounded(batches, size_max), size_max):
        prepared = prepare(task, rows)
        # Rows are let go of as soon as they are not needed, so that the next ones do not come beside them.
        del rows
        result += WriteResult(late=prepared.late, keys=prepared.keys)
        runs, sorted_rows = prepared.runs, prepared.rows.table()
        del prepared
        if runs:
            result += put_log(fileio, task, f"{name}-{next(numbers)}", sorted_rows, runs)
        del sorted_rows
    return result


class Prepared(NamedTuple):
    """Rows of a batch, sorted by (file group, key).

    runs: which rows belong to which file group. placed, updated, late, keys: see `WriteResult`. entries: changes of the record index, see
    `index_changes`.
    """

    rows: RowSelection
    runs: tuple[LogRows, ...]
    placed: bytes = b""
    updated: bytes = b""
    entries: pa.Table | None = None
    late: int = 0
    keys: bytes = b""


def prepare(task: WriteTask, rows: pa.Table) -> Prepared:
    """The rows cast to the table, with their operation, each key once, sorted by file group.

    File groups are sorted by partition, then bucket. Rows below the watermark of the table are left out.
    """
    timely = without_late_changes(rows, task.spec)
    return _prepared(task, timely)._replace(late=rows.num_rows - timely.num_rows)


def _prepared(task: WriteTask, rows: pa.Table) -> Prepared:
    spec = task.spec
    if spec.is_located:
        return _by_place(task, _conformed_in_place(task, rows))
    fitted = _conformed(task, rows)
    partitions = spec.partition_of(fitted, task.previous_partitions)
    key = [column.physical for column in spec.key_columns]
    digested = [fitted.column(name) for name in key] if task.tells_keys else []
    if digested and spec.key_scope == PARTITION_SCOPE:
        digested.insert(0, pa.DictionaryArray.from_arrays(pa.array(partitions.codes), pa.array(partitions.texts)))
    keys = key_digests(digested).tobytes() if digested else b""
    if len(partitions.texts) > 1:
        fitted = fitted.append_column(_PARTITION_FIELD, pa.array(partitions.codes))
        # Equal keys in two partitions are two rows, if the table allows that.
        key = [_PARTITION_FIELD.name, *key] if spec.key_scope == PARTITION_SCOPE else key
    by_key = winners(fitted, key=key, ordering=spec.ordering_physical)
    codes = np.zeros(len(by_key), np.int32)
    if len(partitions.texts) > 1:
        codes = np.asarray(partitions.codes)[by_key]
        fitted = fitted.drop_columns([_PARTITION_FIELD.name])
    return Prepared(*by_group(task, fitted, by_key, partitions.texts, codes), keys=keys)


def _conformed(task: WriteTask, rows: pa.Table) -> pa.Table:
    """The rows under physical names, with their operation."""
    if task.delete_when is not None:
        deleted = deleted_by(rows, task.delete_when)
        meant = rows.select(written_columns(rows.column_names, task.spec, task.delete_when))
        op = np.where(deleted, np.int8(OP_DELETE), np.int8(OP_UPSERT))
        return conform_mixed(meant, task.spec, deleted).append_column(OP_FIELD, pa.array(op))
    deleting = task.operation is Operation.DELETE
    fitted = conform_delete(rows, task.spec) if deleting else conform(rows, task.spec)
    return fitted.append_column(OP_FIELD, pa.array(np.full(fitted.num_rows, OP_DELETE if deleting else OP_UPSERT, dtype=np.int8)))


def _conformed_in_place(task: WriteTask, rows: pa.Table) -> pa.Table:
    """Like `_conformed`, with the place of every row. A key that leaves a file group becomes a delete there."""
    places = np.asarray(rows.column(PLACE_COLUMN).to_numpy())
    rows = rows.drop_columns([PLACE_COLUMN])
    leaving = places < 0
    if not leaving.any():
        return _conformed(task, rows).append_column(PLACE_FIELD, pa.array(places))
    schema = log_schema(task.spec)
    stays, goes = np.flatnonzero(~leaving), np.flatnonzero(leaving)
    keys = rows.select([column.name for column in task.spec.key_columns]).take(pa.array(goes))
    ends = conform_delete(keys, task.spec).append_column(OP_FIELD, pa.array(np.full(len(goes), OP_DELETE, np.int8)))
    both = pa.concat_tables([_conformed(task, rows.take(pa.array(stays))).cast(schema), ends.cast(schema)])
    return both.append_column(PLACE_FIELD, pa.array(np.concatenate((places[stays], places[goes]))))


def deleted_by(rows: pa.Table, delete_when: Predicate) -> npt.NDArray[np.bool_]:
    """The rows of a batch for which a filter is true, neither false nor null. Raises InvalidBatch."""
    wanted = delete_when.schema.to_arrow()
    try:
        seen = under(rows, pa.schema([wanted.field(name) for name in delete_when.columns]))
    except pa.ArrowInvalid as error:
        names = ", ".join(repr(name) for name in sorted(delete_when.columns))
        raise InvalidBatch(
            f"delete_when reads {names} of the batch, where a value does not fit any type of a table ({str(error).splitlines()[0]}). "
            "Nothing was written. Cast it yourself."
        ) from error
    numbered = seen.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    deleted = np.zeros(rows.num_rows, np.bool_)
    deleted[numbered.filter(delete_when.to_arrow()).column(_NUMBER).to_numpy()] = True
    return deleted


def written_columns(given: Sequence[str], spec: TableSpec, delete_when: Predicate | None) -> list[str]:
    """The columns of a batch to store: without those that only serve `delete_when`."""
    if delete_when is None:
        return list(given)
    known = set(spec.table_schema.names)
    return [name for name in given if name in known or name not in delete_when.columns]


_NUMBER = "_objcat_number"
_GROUP = "_objcat_file_group"
_PARTITION_FIELD = pa.field("_objcat_partition", pa.int32(), nullable=False)


def by_group(
    task: WriteTask, fitted: pa.Table, by_key: npt.NDArray[np.int64], texts: Sequence[str], codes: Codes
) -> tuple[RowSelection, tuple[LogRows, ...]]:
    """Rows sorted by (file group, key), without those of excluded file groups.

    by_key: row numbers in key order. codes: the partition number of each.
    """
    if not len(by_key):
        return RowSelection(fitted, by_key), ()
    counts = np.array([task.bucket_count(text) for text in texts], dtype=np.int32)
    hashes = spark_hash([fitted.column(column.physical) for column in task.spec.bucket_columns])[by_key]
    # NumPy sorts 16-bit numbers by radix, which is several times faster.
    buckets = np.mod(hashes, counts[codes] if len(texts) > 1 else counts[0]).astype(np.uint16)
    order = np.argsort(buckets, kind="stable")
    if len(texts) > 1:
        by_partition = codes[order].astype(np.uint16) if len(texts) <= _UINT16_VALUES else codes[order]
        order = order[np.argsort(by_partition, kind="stable")]
    buckets, codes = buckets[order], codes[order]
    changes = np.diff(buckets.astype(np.int32), prepend=-1) != 0
    changes |= np.diff(codes, prepend=-1) != 0
    starts = np.flatnonzero(changes)
    ends = np.append(starts[1:], len(order)).tolist()
    runs = [
        LogRows(task.group_id(bucket, texts[code]), start, end)
        for bucket, code, start, end in zip(buckets[starts].tolist(), codes[starts].tolist(), starts.tolist(), ends, strict=True)
    ]
    selected = RowSelection(fitted, by_key[order], parts=len(runs))
    if task.only is None:
        return selected, tuple(runs)
    return take_runs(selected, [run for run in runs if run.group_id in task.only])


_UINT16_VALUES = 2**16


def _by_place(task: WriteTask, fitted: pa.Table) -> Prepared:
    """Rows that name their file groups, sorted by (file group, key), each key once per file group."""
    if not fitted.num_rows:
        return Prepared(RowSelection(fitted.drop_columns([PLACE_COLUMN]), np.zeros(0, np.int64)), ())
    spec = task.spec
    places = np.asarray(fitted.column(PLACE_COLUMN).to_numpy())
    group_numbers = np.where(places < 0, -1 - places, places >> 1)
    # A key is in one file group of its partition. A key that moves is in both.
    numbered = fitted.append_column(_GROUP, pa.array(group_numbers))
    by_key = winners(numbered, key=[_GROUP, *(column.physical for column in spec.key_columns)], ordering=spec.ordering_physical)
    places, group_numbers = places[by_key], group_numbers[by_key]
    rows = fitted.take(pa.array(by_key)).drop_columns([PLACE_COLUMN])
    numbers, group_of_row = np.unique(group_numbers, return_inverse=True)
    group_ids = [task.group_ids[number] for number in numbers.tolist()]
    deleted = np.asarray(rows.column(OP_COLUMN).to_numpy()) == OP_DELETE
    is_placed = ((places & 1) == 1) | deleted
    digested = [rows.column(column.physical) for column in spec.key_columns]
    if not spec.is_global:
        texts = pa.array([group_id.partition for group_id in group_ids])
        digested.insert(0, pa.DictionaryArray.from_arrays(pa.array(group_of_row.astype(np.int32)), texts))
    digests = key_digests(digested)
    by_group = sorted(range(len(group_ids)), key=group_ids.__getitem__)
    rank = np.empty(len(group_ids), np.int64)
    rank[by_group] = np.arange(len(group_ids))
    ranks = rank[group_of_row]
    ends = np.cumsum(np.bincount(ranks, minlength=len(group_ids))).tolist()
    runs = tuple(LogRows(group_ids[number], start, end) for number, start, end in zip(by_group, [0, *ends], ends, strict=False))
    order = np.argsort(ranks, kind="stable")
    entries = index_changes(task, rows, group_ids, group_of_row, places) if isinstance(spec.index, RecordIndexSpec) else None
    return Prepared(RowSelection(rows, order, parts=len(runs)), runs, digests[is_placed].tobytes(), digests[~is_placed].tobytes(), entries)


def index_changes(
    task: WriteTask, rows: pa.Table, group_ids: Sequence[FileGroupId], group_of_row: npt.NDArray[np.int64], places: npt.NDArray[np.int32]
) -> pa.Table:
    """The changes of the record index: keys, file group ids, and whether each key is stored there now.

    A key is stored where it has a row, or a delete with an ordering value, which rejects older rows.

    Args:
        rows: each key once per file group.
        group_ids: the file groups.
        group_of_row: for every row, the number of its file group.
        places: the values of `PLACE_COLUMN`.
    """
    spec = task.spec
    leaving = places < 0
    ends = np.asarray(rows.column(OP_COLUMN).to_numpy()) == OP_DELETE
    if spec.ordering is not None:
        ends &= ~np.asarray(has_order(rows, spec.ordering_physical).to_numpy(), dtype=bool)
    # An upsert changes the index for new keys and for those that leave. With deletes, a later run of the batch may
    # remove a key that an earlier one added, or add one again that it removed.
    told = leaving | ((places & 1) == 1)
    if task.delete_when is not None or task.operation is Operation.DELETE:
        told[:] = True
    chosen = np.flatnonzero(told)
    at = group_of_row[chosen]
    partitions = pa.array([group_id.partition for group_id in group_ids], pa.string()).take(pa.array(at))
    buckets = np.array([group_id.bucket for group_id in group_ids], np.int32)[at]
    return pa.table(
        {
            **{column.physical: rows.column(column.physical).take(pa.array(chosen)) for column in spec.key_columns},
            PARTITION_FIELD: partitions,
            BUCKET_FIELD: pa.array(buckets),
            OP_COLUMN: pa.array(np.where(ends[chosen], np.int8(OP_DELETE), np.int8(OP_UPSERT))),
        }
    )


def take_runs(rows: RowSelection, runs: Sequence[LogRows]) -> tuple[RowSelection, tuple[LogRows, ...]]:
    """The rows of some file groups, one after another."""
    lengths = [run.end - run.start for run in runs]
    if sum(lengths) == rows.num_rows:
        return rows, tuple(runs)
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    moved = tuple(LogRows(run.group_id, end - length, end) for run, length, end in zip(runs, lengths, ends, strict=True))
    return rows.only([(run.start, run.end) for run in runs]), moved


def put_log(fileio: FileIO, task: WriteTask, name: str, rows: pa.Table, runs: tuple[LogRows, ...]) -> WriteResult:
    """Write one log object. runs: which rows belong to which file group, for all rows in order."""
    path = log_path(task.txn, task=name, attempt=fileio.env.new_id())
    log = write_log(fileio, path, rows.cast(log_schema(task.spec)), runs, statistics=task.spec.statistics)
    return WriteResult(logs=(log,), rows=log.rows)


def log_schema(spec: TableSpec) -> pa.Schema:
    """The columns of a log object."""
    return spec.table_schema.to_arrow_physical(nullable=True).append(OP_FIELD)


PIECES_OF_A_LOG = 8
"""A log file exceeds the size that the table sets by less than one of so many pieces."""


def bounded(batches: Iterable[pa.RecordBatch], size_max: int) -> Iterator[pa.RecordBatch]:
    """The batches, large ones cut to a part of `size_max` Arrow bytes, for a caller that gathers about that much."""
    piece = max(1, size_max // PIECES_OF_A_LOG)
    for batch in batches:
        rows = batch.num_rows if batch.nbytes <= piece else max(1, batch.num_rows * piece // batch.nbytes)
        for at in range(0, batch.num_rows, max(1, rows)):
            yield batch.slice(at, rows)
        del batch


def gather(batches: Iterable[pa.RecordBatch], size_max: int | None = None) -> Iterator[pa.Table]:
    """The batches as tables of about `size_max` Arrow bytes (`LOG_BATCH_BYTES` if None), without empty ones."""
    size_max = LOG_BATCH_BYTES if size_max is None else size_max
    held: list[pa.RecordBatch] = []
    size = 0
    # polars and pandas produce column types that Arrow can neither sort nor take rows of.
    for batch in map(plain, batches):
        if batch.num_rows == 0:
            continue
        held.append(batch)
        size += batch.nbytes
        del batch
        if size >= size_max:
            size = 0
            yield _given_up(held)
    if held:
        yield _given_up(held)


def _given_up(held: list[pa.RecordBatch]) -> pa.Table:
    """The batches as a table. Only the caller holds it."""
    rows = pa.Table.from_batches(held)
    held.clear()
    return rows
