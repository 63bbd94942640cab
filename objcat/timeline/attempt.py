"""A commit attempt and its outcomes: the values that `Committer` takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from fileio.wrappers import MetricsSnapshot
from objcat.errors import CommitConflict, TableMoved
from objcat.timeline.conflicts import Conflict
from objcat.timeline.entry import (
    Action,
    Entry,
    Footprint,
    Summary,
    Txn,
)
from objcat.timeline.log_state import MOVED_TO, AppVersion, LogState
from objcat.timeline.position import PositionWrite
from objcat.version import writer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRetryPolicy:
    """Limits of one commit.

    Args:
        slots_max: Slots lost to other writers before the commit gives up.
        deadline_s: Seconds from the first try of a slot until the commit gives up.
        pause_s_max: Longest pause between two tries, in seconds.
        attempts_max: How often an operation may repeat its work when others change what it has read.
    """

    slots_max: int = 10_000
    attempts_max: int = 100
    deadline_s: float = 300.0
    pause_s_max: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt:
    """An operation that wants a slot.

    Args:
        base: The log as the operation knows it. All its reads were at this state.
        changes: What it changes, by table id.
        footprint: What it touched, by table id.
        app: An application version, for every table of the footprint.
        position: Of a source. The log must have the version that it builds on.
        plan: The txn of the plan that it executes.
        rollback_of: The transaction that a ROLLBACK fences.
        summary: What it did, as far as it is known before the slot is.
        began: The store's request counts when the operation began.
        shares_slot: Whether others may commit it in one slot with theirs, if it only appends.
    """

    txn: Txn
    action: Action
    base: LogState
    changes: Mapping[str, msgspec.Raw]
    footprint: Mapping[str, Footprint]
    writer: str = writer_of("local")
    features: Mapping[str, str] = field(default_factory=dict)
    writer_features: Mapping[str, str] = field(default_factory=dict)
    app: AppVersion | None = None
    position: PositionWrite | None = None
    apps: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    plan: Txn | None = None
    rollback_of: Txn | None = None
    summary: Summary | None = None
    began: MetricsSnapshot | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    shares_slot: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is durable at `entry.slot`.

    Args:
        read: Entries of other writers between its base and its slot, in order.
        slots_lost: Tries of a slot that others won.
    """

    entry: Entry
    read: tuple[Entry, ...]
    slots_lost: int


@dataclass(frozen=True, slots=True)
class Conflicted:
    """The attempt conflicts with commits above its base. Nothing of it is visible, and nothing ever will be in this form.

    Args:
        overlaps: Every later entry that it conflicts with, and why.
        read: All entries above its base up to the head, every one checked. An attempt that repeats the conflicting work may go on from
            there, under the same txn.
        slots_lost: As in `Committed`.
    """

    txn: Txn
    overlaps: tuple[tuple[Entry, Conflict], ...]
    read: tuple[Entry, ...]
    slots_lost: int

    def error(self, *, attempts: int = 1) -> CommitConflict | TableMoved:
        """The error for a caller that does not repeat the work, or has repeated it too often: TableMoved if the table moved meanwhile."""
        for found, overlap in self.overlaps:
            if found.action is Action.CLOSE and MOVED_TO in found.metadata:
                return moved_error(overlap.table, found.metadata[MOVED_TO], found.slot)
        found, overlap = self.overlaps[0]
        group_ids = tuple(str(group_id) for group_id in overlap.group_ids)
        touched = f" (file groups {', '.join(group_ids[:5])})" if group_ids else ""
        tried = f" It was tried {attempts} times." if attempts > 1 else ""
        return CommitConflict(
            f"{self.txn} conflicts with the {found.action} {found.txn} at slot {found.slot}: {overlap.rule}{touched}.{tried} "
            "Nothing was written. Read the table again, and repeat the write.",
            winner_slot=found.slot,
            file_groups=group_ids,
        )


def moved_error(table: str, shared_log: str, slot: int) -> TableMoved:
    """The TableMoved of a handle on the log that a table has left. slot: of its CLOSE."""
    return TableMoved(
        f"Table {table} moved to the shared log {shared_log!r} at slot {slot}. This handle is of the log that it left. Nothing was "
        "written. Open the table by its name, lake.table(...), and write again."
    )
