"""Deleting rows of a table without a key: file groups that hold such rows are rewritten without them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.storage.files import BaseWriter, base_path
from objcat.table import BaseFile, FileGroup, TableSpec
from objcat.tasks.current import current_cuts, loaded_logs, rewritten_at_once
from objcat.tasks.model import TXN_FIELD, Filter, Rewritten, WriteResult
from objcat.tasks.parallel import run_all
from objcat.timeline import Txn


@dataclass(frozen=True, slots=True)
class EraseTask:
    """Take the rows for which a filter is true out of some file groups of a table without a key, under one transaction."""

    spec: TableSpec
    txn: Txn
    groups: tuple[FileGroup, ...]
    where: Filter


def rewrite_without(fileio: FileIO, task: EraseTask) -> WriteResult:
    """A new base file for every group that holds such rows; the others are left alone.

    Memory is bounded: groups are read and written a row group at a time. Raises CorruptTable, storage errors.
    """
    logs = loaded_logs(fileio, task.spec, task.groups)

    def rewrite(group: FileGroup) -> tuple[BaseFile, int] | None:
        schema = task.spec.table_schema.to_arrow_physical().append(TXN_FIELD)
        path = base_path(task.txn, group.home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
        before = 0
        with BaseWriter(fileio, path, schema, group.home, bounded=task.spec.bounded, filtered=task.spec.filtered) as writer:
            after = 0
            for rows, _ in current_cuts(fileio, task.spec, group, logs):
                kept = _without(rows, task)
                before, after = before + rows.num_rows, after + kept.num_rows
                writer.write(kept.select(schema.names))
            return (writer.finish(), before - after) if after < before else None

    at_once = rewritten_at_once(task.groups, most=fileio.env.parallelism)
    found = [one for one in run_all(fileio.env, rewrite, task.groups, at_once=at_once) if one is not None]
    rewritten = tuple(Rewritten(base.home, count, 0, 0, count, changed=True) for base, count in found)
    return WriteResult(tuple(base for base, _ in found), rows=sum(count for _, count in found), rewritten=rewritten)


def _without(rows: pa.Table, task: EraseTask) -> pa.Table:
    """The rows for which the filter is false or null."""
    names = {column.physical: column.name for column in task.spec.table_schema.columns}
    logical = rows.select(list(names)).rename_columns(list(names.values()))
    numbered = logical.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    passed = numbered.filter(task.where.to_arrow()).column(_NUMBER)
    return rows.filter(pc.invert(pc.is_in(numbered.column(_NUMBER), value_set=passed.combine_chunks())))


_NUMBER = "_objcat_number"
