"""`RowsRead`: the rows that a step of a block has read by a filter, and whether another commit can have changed them.

A footprint names file groups and partitions, so a filter over other columns conflicts with every writer of the table. The files that the
other entry names have bounds, which tell more. No file is read for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from objcat.metadata.files import BaseFile, LogObject, LogSlice, TableDelta
from objcat.metadata.group_filter import GroupFilter
from objcat.metadata.manifest_rows import ManifestChange, rows_of
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.model import Filter
from objcat.timeline.entry import FileGroupId, Footprint

_NO_GROUP = FileGroupId("", 0, 1)


@dataclass(frozen=True, slots=True)
class RowsRead:
    """The rows of a table for which a filter is true, in a table whose columns stay as they are. The step computed others from them.

    Rows that it wrote itself have keys that can pass the filter too.
    """

    where: Filter
    spec: TableSpec

    def may_change(self, delta: TableDelta, footprint: Footprint, written: GroupFilter) -> bool:
        """Whether a later commit may have changed these rows, or may have added some.

        In file groups where the block wrote, the commit may have changed any row whose key can pass. In the others no row passed before,
        and none was written. So only new rows that pass matter there.

        Args:
            delta: the files of the commit.
            footprint: the file groups that it touched. It ended no partition and split none.
            written: all file groups to which the block wrote.
        """
        files: list[tuple[BaseFile | LogObject, list[FileGroupId]]] = [
            *((base, [base.group_id]) for base in delta.bases),
            *((log, [rows.group_id for rows in log.slices]) for log in delta.logs),
        ]
        covered = {group_id for _, group_ids in files for group_id in group_ids}
        touched = {*footprint.creates, *footprint.appends, *footprint.replaces, *footprint.retires}
        if any(map(written.has, touched - covered)):
            return True
        near = [file for file, group_ids in files if any(map(written.has, group_ids))]
        far = [file for file, group_ids in files if not any(map(written.has, group_ids))]
        key = {column.name for column in self.spec.key_columns}.intersection(self.where.columns)
        return self._may_pass(near, only=sorted(key)) or self._may_pass(far)

    def _may_pass(self, files: Sequence[BaseFile | LogObject], *, only: Sequence[str] | None = None) -> bool:
        """Whether a row of the files may pass. only: columns whose bounds count."""
        if not files:
            return False
        pruning = None if only == [] else self.where.to_pruning(only=only)
        if pruning is None:
            return True
        changes = [_bounded(file) for file in files]
        return bool(pruning.may_match(rows_of(changes, self.spec, pruning.columns), self.spec).any())


def _bounded(file: BaseFile | LogObject) -> ManifestChange:
    """A row of a manifest with the bounds of one file."""
    if isinstance(file, BaseFile):
        return ManifestChange(_NO_GROUP, base=file)
    return ManifestChange(_NO_GROUP, logs=(LogSlice(0, file, 0, file.rows, _NO_GROUP, 0),))
