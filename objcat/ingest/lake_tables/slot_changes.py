"""The changes of tables that share a log, slot by slot: a slot is one transaction of the source, with all its tables.

They are read some file groups at a time, and beyond a limit they wait on local disk: a slot may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from objcat.engine.spooled_batch import Rows, RowSpool, joined
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


def read_slots(tables: Mapping[str, tuple[TableReader, SourceTable]], *, since: int, until: int, bytes_max: int) -> Sequence[SlotChanges]:
    """The slots of a range that changed rows, in order.

    Args:
        tables: handles that have seen `until`, with the schemas that they have there.
        since: excluded.
        until: included.
        bytes_max: bytes of rows that are held in memory. The others are on local disk.

    Raises:
        SnapshotExpired: files of the range were cleaned.
        StoreFull: the local disk is full.
    """
    spool = RowSpool(bytes_max=bytes_max)
    found: dict[int, SlotChanges] = {}
    for handle, table in tables.values():
        parts: dict[tuple[int, str], list[Rows]] = {}
        for rows in handle.changes(since=since, until=until)._tables(bytes_max=bytes_max):
            for slot, mine in _by_slot(rows):
                one = found.setdefault(slot, SlotChanges(slot))
                at = mine.column(COMMIT_TIME)[0].as_py()
                one.committed_at_ms = None if at is None else int(at.timestamp() * 1000)
                for name, some in _by_kind(mine):
                    one.count += some.num_rows
                    one.size_bytes += some.nbytes
                    parts.setdefault((slot, name), []).append(spool.keep(some))
        _add(found, table, parts)
    return [found[slot] for slot in sorted(found)]


def _by_slot(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    if not rows.num_rows:
        return
    rows = rows.sort_by(COMMIT_SLOT)
    slots, starts = np.unique(rows.column(COMMIT_SLOT).to_numpy(), return_index=True)
    ends = [*starts[1:].tolist(), rows.num_rows]
    for slot, start, end in zip(slots.tolist(), starts.tolist(), ends, strict=True):
        yield slot, rows.slice(start, end - start)


def _by_kind(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    kinds = rows.column(CHANGE_TYPE)
    for name in _KINDS:
        mine = rows.filter(pc.equal(kinds, name)).drop_columns(_HIDDEN)
        if mine.num_rows:
            yield name, mine.combine_chunks()


def _add(found: Mapping[int, SlotChanges], table: SourceTable, parts: Mapping[tuple[int, str], Sequence[Rows]]) -> None:
    """Add the changes of one table, deletes first.

    A key has at most one change in a slot, so the order matters only for a key that the route names. By it, a row that a table without a
    key updates, or that moves to another partition, is a delete and an insert.
    """
    for slot in sorted({slot for slot, _ in parts}):
        for name, kind in _KINDS.items():
            if (slot, name) in parts:
                found[slot].changes.append(RowBatch(table, kind, joined(parts[slot, name])))
