"""Clustering across file groups where keys are looked up: groups of a partition end, and others begin with their rows, in one slot.

A key is in any one file group of its partition, so it may move like a row without a key. With it move deletes that have an ordering value,
which must go on keeping older rows out, and its row of a record index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.merge import OP_COLUMN, OP_UPSERT
from objcat.datafile.parquet import BaseWriter, base_path, constant, log_path, write_log
from objcat.datafile.streaming_merge import sort_by_key
from objcat.errors import CorruptTable
from objcat.maintenance.workers import Advance
from objcat.metadata.files import BaseFile, FileGroup, LogRows, Order
from objcat.metadata.key_index_table import BUCKET_FIELD, PARTITION_FIELD, index_spec
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.key_index import put_index
from objcat.tasks.merged_rows import current_cuts, current_empty, loaded_logs, split_by_group
from objcat.tasks.model import TXN_FIELD, Operation, WriteResult, WriteTask
from objcat.tasks.row_order import sorted_rows
from objcat.tasks.write_log_rows import log_schema
from objcat.timeline.entry import FileGroupId, Txn


@dataclass(frozen=True, slots=True)
class RelocateTask:
    """Rewrite some file groups of one partition together, under one transaction.

    Attributes:
        name: of the task within the transaction.
        group_ids: unused file groups that the rows go to, in order; fewer are used where there are few rows.
        order: in which the rows lie; None for that of the key.
    """

    spec: TableSpec
    txn: Txn
    name: str
    groups: tuple[FileGroup, ...]
    group_ids: tuple[FileGroupId, ...]
    order: Order | None


def relocate_groups(fileio: FileIO, task: RelocateTask, advance: Advance) -> WriteResult:
    """Write the base files of a task, its deletes that must outlive them, and the index rows of its keys.

    There is at least one base file, so that the partition stays live; the deletes go with the first. Holds all rows in memory. Calls
    `advance` for every group. Raises CorruptTable, storage errors.
    """
    spec, schema = task.spec, task.spec.table_schema.to_arrow_physical().append(TXN_FIELD)
    logs = loaded_logs(fileio, spec, task.groups)
    cuts = [split_by_group(rows) for group in task.groups for rows, _ in current_cuts(fileio, spec, group, logs)]
    rows = pa.concat_tables([current_empty(spec), *(live for live, _ in cuts)]).select(schema.names)
    deletes = pa.concat_tables([current_empty(spec), *(ended for _, ended in cuts)])
    key = [column.physical for column in spec.key_columns]
    _check_apart(task, [rows.select(key), deletes.select(key)], key, where=fileio.url)
    rows = sort_by_key(rows, key=key) if task.order is None else sorted_rows(rows, _columns(task.order, spec), zorder=task.order.zorder)
    size = max(1, -(-rows.num_rows // len(task.group_ids)))
    parts = [
        (group_id, rows.slice(number * size, size))
        for number, group_id in enumerate(task.group_ids)
        if number * size < max(1, rows.num_rows)
    ]
    result = WriteResult(tuple(_written(fileio, task, group_id, part, schema) for group_id, part in parts), rows=rows.num_rows)
    if deletes.num_rows:
        kept = sort_by_key(deletes, key=key).drop_columns([TXN_COLUMN]).cast(log_schema(spec))
        path = log_path(task.txn, task=task.name, attempt=fileio.env.new_id())
        log = write_log(fileio, path, kept, (LogRows(parts[0][0], 0, kept.num_rows),), statistics=spec.statistics)
        result += WriteResult(logs=(log,))
    if index_spec(spec) is not None:
        living = [*parts, (parts[0][0], deletes)]
        changes = pa.concat_tables([_entries(part.select(key), group_id) for group_id, part in living])
        if changes.num_rows:
            result += put_index(fileio, WriteTask(spec, task.txn, Operation.UPSERT), f"{task.name}-index", changes)
    advance(len(task.groups))
    return result


def _columns(order: Order, spec: TableSpec) -> list[str]:
    return [spec.table_schema.by_id(column_id).physical for column_id in order.columns]


def _check_apart(task: RelocateTask, tables: Sequence[pa.Table], key: list[str], *, where: str) -> None:
    """Raises CorruptTable when a key is in two of the groups. Joined, one of its rows would be lost or both would stay."""
    keys = pa.concat_tables(tables)
    if keys.num_rows and keys.group_by([pc.field(name) for name in key]).aggregate([]).num_rows < keys.num_rows:
        raise CorruptTable(
            f"A key is stored in two file groups of {task.groups[0].group_id.partition or 'the table'} in {where}. Nothing "
            "was committed. Run `objcat doctor --deep` to see which key."
        )


def _written(fileio: FileIO, task: RelocateTask, group_id: FileGroupId, rows: pa.Table, schema: pa.Schema) -> BaseFile:
    spec = task.spec
    path = base_path(task.txn, group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    with BaseWriter(fileio, path, schema, group_id, statistics=spec.statistics, filtered=spec.filtered, order=task.order) as writer:
        writer.write(rows)
        return writer.finish()


def _entries(keys: pa.Table, group_id: FileGroupId) -> pa.Table:
    """The rows of a record index that say in which file group keys are now."""
    count = keys.num_rows
    keys = keys.append_column(PARTITION_FIELD, constant(group_id.partition, count))
    keys = keys.append_column(BUCKET_FIELD, pa.array(np.full(count, group_id.bucket, np.int32)))
    return keys.append_column(OP_COLUMN, pa.array(np.full(count, OP_UPSERT, np.int8)))
