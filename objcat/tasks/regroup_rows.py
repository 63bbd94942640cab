"""Rewrites file groups of a table without a key: rows are changed or removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.datafile.casting import logical
from objcat.datafile.parquet import BaseWriter, base_path
from objcat.metadata.files import BaseFile, FileGroup
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.mask_rows import mask_rows, places_where
from objcat.tasks.merged_rows import current_cuts, loaded_logs, rewritten_at_once
from objcat.tasks.model import TXN_FIELD, Filter, GroupRewrite, WriteResult
from objcat.tasks.parallel import run_all
from objcat.timeline.entry import Txn


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The rows that remain, and how many were changed or removed."""

    rows: pa.Table
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class DeleteTask:
    """Remove the rows that a filter selects from some file groups of a table without a key."""

    spec: TableSpec
    txn: Txn
    groups: tuple[FileGroup, ...]
    where: Filter


def rewrite_groups(
    fileio: FileIO, spec: TableSpec, groups: Sequence[FileGroup], txn: Txn, change: Callable[[pa.Table], RewriteResult]
) -> WriteResult:
    """Rewrite the file groups of a table without a key in which rows change. Others stay as they are.

    change: receives the rows of a file group a few row groups at a time, under physical names, with the txn that wrote each. So memory is
    limited. Raises CorruptTable, storage errors, and what `change` raises.
    """
    logs = loaded_logs(fileio, spec, groups)

    def rewrite(group: FileGroup) -> tuple[BaseFile, int, int] | None:
        """The new base file of one file group, if a row changes."""
        schema = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
        path = base_path(txn, group.group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
        updated = deleted = 0
        with BaseWriter(fileio, path, schema, group.group_id, statistics=spec.statistics, filtered=spec.filtered) as writer:
            for rows, _ in current_cuts(fileio, spec, group, logs):
                changed = change(rows)
                updated, deleted = updated + changed.updated, deleted + changed.deleted
                writer.write(changed.rows.select(schema.names))
            if not updated and not deleted:
                return None
            promoted = None if group.base is None else group.base.promoted
            return msgspec.structs.replace(writer.finish(), promoted=promoted), updated, deleted

    at_once = rewritten_at_once(groups, fileio.env)
    found = [one for one in run_all(fileio.env, rewrite, groups, at_once=at_once) if one is not None]
    rewritten = tuple(GroupRewrite(base.group_id, updated + deleted, 0, updated, deleted, changed=True) for base, updated, deleted in found)
    return WriteResult(tuple(base for base, _, _ in found), rows=sum(group_id.rows for group_id in rewritten), rewritten=rewritten)


def rewrite_without(fileio: FileIO, task: DeleteTask) -> WriteResult:
    """A new base file for every file group with such rows. Others stay as they are. Rows of files in place are masked.

    Raises CorruptTable, SourceFileChanged and storage errors.
    """
    schema = task.spec.table_schema
    masked, own_groups = in_place_and_own(task.groups)
    found = WriteResult()
    if masked:
        found = mask_rows(fileio, task.spec, masked, lambda rows: places_where(rows, task.where.to_arrow()))

    def without(rows: pa.Table) -> RewriteResult:
        """The rows for which the filter is false or null."""
        own = rows.select([column.physical for column in schema.columns])
        numbered = logical(own, schema).append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
        passed = numbered.filter(task.where.to_arrow()).column(_NUMBER)
        kept = rows.filter(pc.invert(pc.is_in(numbered.column(_NUMBER), value_set=passed.combine_chunks())))
        return RewriteResult(kept, deleted=rows.num_rows - kept.num_rows)

    return found + rewrite_groups(fileio, task.spec, own_groups, task.txn, without) if own_groups else found


def in_place_and_own(groups: Sequence[FileGroup]) -> tuple[list[FileGroup], list[FileGroup]]:
    """The file groups whose files are in place, and the others."""
    in_place = [group for group in groups if group.base is not None and group.base.source is not None]
    return in_place, [group for group in groups if group.base is None or group.base.source is None]


_NUMBER = "_objcat_number"
