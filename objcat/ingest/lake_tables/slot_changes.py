"""The changes of tables that share a log, slot by slot: a slot is one transaction of the source, with all its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from objcat.ingest.model import Change, ChangeKind, RowBatch, SourceTable
from objcat.table.reader import TableReader
from objcat.tasks.change_columns import CHANGE_FIELDS, CHANGE_TYPE, COMMIT_SLOT, COMMIT_TIME, DELETE, INSERT, UPDATE_AFTER

_KINDS = {DELETE: ChangeKind.DELETE, INSERT: ChangeKind.INSERT, UPDATE_AFTER: ChangeKind.UPDATE}
"""In the order in which the changes of a slot are applied."""
_HIDDEN = [column.name for column in CHANGE_FIELDS]


@dataclass(slots=True)
class SlotChanges:
    """What one slot changed.

    Args:
        slot: the slot.
        committed_at_ms: its commit time.
        changes: of all tables.
        count: of rows.
        size_bytes: of the rows.
    """

    slot: int
    committed_at_ms: int | None = None
    changes: list[Change] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0


def read_slots(tables: Mapping[str, tuple[TableReader, SourceTable]], *, since: int, until: int) -> Iterator[SlotChanges]:
    """The slots of a range that changed rows, in order.

    Args:
        tables: handles that have seen `until`, with the schemas that they have there.
        since: excluded.
        until: included.

    Raises:
        SnapshotExpired: files of the range were cleaned.
    """
    found: dict[int, SlotChanges] = {}
    for handle, table in tables.values():
        rows = handle.changes(since=since, until=until).to_arrow()
        if not rows.num_rows:
            continue
        rows = rows.sort_by(COMMIT_SLOT)
        slots, starts = np.unique(rows.column(COMMIT_SLOT).to_numpy(), return_index=True)
        ends = [*starts[1:].tolist(), rows.num_rows]
        for slot, start, end in zip(slots.tolist(), starts.tolist(), ends, strict=True):
            one = found.setdefault(slot, SlotChanges(slot))
            _add(one, table, rows.slice(start, end - start))
    for slot in sorted(found):
        yield found[slot]


def _add(one: SlotChanges, table: SourceTable, rows: pa.Table) -> None:
    """Add the changes of one table in one slot, deletes first.

    A key has at most one change there, so the order matters only for a key that the route names. By it, a row that a table without a key
    updates, or that moves to another partition, is a delete and an insert.
    """
    at = rows.column(COMMIT_TIME)[0].as_py()
    one.committed_at_ms = None if at is None else int(at.timestamp() * 1000)
    kinds = rows.column(CHANGE_TYPE)
    for name, kind in _KINDS.items():
        mine = rows.filter(pc.equal(kinds, name)).drop_columns(_HIDDEN)
        if mine.num_rows:
            one.changes.append(RowBatch(table, kind, mine.combine_chunks()))
            one.count += mine.num_rows
            one.size_bytes += mine.nbytes
