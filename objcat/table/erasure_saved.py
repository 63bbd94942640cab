"""Savepoints that hold rows which are to be erased."""

from __future__ import annotations

import pyarrow as pa

from objcat.datafile.casting import logical
from objcat.datafile.parquet import base_pieces, log_pieces
from objcat.errors import CorruptTable, InvalidInput, SnapshotExpired
from objcat.metadata.snapshot import Snapshot
from objcat.table.context import TableContext
from objcat.table.open_scan import open_scan
from objcat.tasks.merged_rows import split_by_group
from objcat.tasks.model import Filter


def check_saved(table: TableContext, where: str, *, left: str) -> None:
    """Raises InvalidInput when savepoints retain such rows. `left`: what was done, as a sentence."""
    kept = saved_with(table, where)
    if kept:
        slots = ", ".join(map(str, kept))
        raise InvalidInput(
            f"Savepoints of {table.name} hold such rows, at slots {slots}. {left} Release them "
            "(table.maintenance.release_savepoint, or `objcat release`), then erase again."
        )


def saved_with(table: TableContext, where: str) -> tuple[int, ...]:
    """Slots of savepoints whose files hold such rows, visible or not, or lack columns of the filter."""
    return tuple(slot for slot in sorted(table.refresh().log.marks(table.id).saved) if _is_held_at(table, where, slot))


def _is_held_at(table: TableContext, where: str, slot: int) -> bool:
    try:
        plan = open_scan(table, where=where, as_of=slot).plan
        return any(_holds(table, snapshot, plan.where) for snapshot in (plan.snapshot, plan.snapshot.index) if snapshot is not None)
    except InvalidInput:
        return True
    except SnapshotExpired:
        return False
    except CorruptTable:
        if table.timeline.open().log.marks(table.id).is_readable(slot):
            raise
        return False  # It was released and cleaned while its files were read.


def _holds(table: TableContext, snapshot: Snapshot, where: Filter | None) -> bool:
    """Whether a file that a snapshot needs holds a row that passes.

    Rows of a log file, and of a base file that was split, may also be of other file groups, which have rewritten them.
    """
    assert where is not None, "an erasure has a filter"
    spec = snapshot.spec
    names = spec.table_schema.names
    if not set(where.columns) <= set(names):
        return False  # An index holds only keys.
    groups = snapshot.file_groups(table.manifests)
    near = snapshot.file_groups(table.manifests, where=where.to_pruning())
    shared = (group for group in groups if group.base is not None and group.is_shared(group.base.group_id))
    bases = {group.base.path: group.base for group in (*near, *shared) if group.base is not None}
    logs = {part.object.path: part.object for group in groups for part in group.logs}
    columns = [spec.table_schema.column(name).physical for name in where.columns]

    def passes(rows: pa.Table) -> bool:
        return bool(logical(rows.select(columns), spec.table_schema).filter(where.to_arrow()).num_rows)

    for base in bases.values():
        if any(passes(rows) for rows in base_pieces(table.fileio, base, columns, where=where.to_pruning(), spec=spec)):
            return True
    for log in logs.values():
        for rows in log_pieces(table.fileio, log, 0, log.rows, columns, spec.table_schema):
            if passes(split_by_group(rows)[0]):
                return True
    return False
