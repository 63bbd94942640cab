"""Erasure: rows are deleted, and so is every file that ever held them, and a certificate says which ones these were.

Nothing here is a step of its own: rows are deleted by a commit, log rows are merged away, dead writers' files go, and a clean expires every
older slot. Each of them may be cut short, and each is finished by the next call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fileio.errors import Unavailable
from objcat.arguments import text
from objcat.errors import InvalidInput
from objcat.handle import Table
from objcat.services import plan_clean


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePlan:
    """What an erasure would do. rows: that pass now. slots: that can be read now, and would expire. files: that would be deleted at once;
    more come, those that the merge replaces. saved: slots that savepoints keep and that hold such rows: they must be released first."""

    rows: int
    slots: int
    files: tuple[str, ...]
    saved: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What an erasure did.

    deleted: rows; None where nobody counted them. delete_slot: of their delete, None when none passed any more. clean_slot: after which
    files went, None when there was nothing to delete. files: deleted, and gone from the store when this was made. checked_slot: the table
    at that slot was read again, and `found` rows passed: 0, unless somebody wrote such rows meanwhile.
    """

    table: str
    url: str
    where: str
    deleted: int | None
    delete_slot: int | None
    clean_slot: int | None
    readable_from: int
    files: tuple[str, ...]
    checked_slot: int
    found: int
    made_at_ms: int


def plan_erasure(table: Table, where: str) -> ErasurePlan:
    """What `erase` would do now; sends reads only. Raises InvalidPredicate, and as `Table.scan`."""
    rows = table.scan(where=text(where, what="where")).count()
    view = table.timeline.open()
    plan = plan_clean(table.timeline, view, table.id, before=view.slot)
    return ErasurePlan(
        rows=rows,
        slots=view.slot - view.log.marks(table.id).bound,
        files=() if plan is None else tuple(sorted({*plan.removes, *plan.leftovers})),
        saved=_saved_with(table, where),
    )


def erase(table: Table, where: str, *, older_than_s: float = 3600) -> Certificate:
    """Delete the rows for which a filter is true, and every file that holds them or held them; all slots but the newest expire.

    Log rows of the whole table are merged, since a log file has rows of many file groups; what writers left that have been silent for
    `older_than_s` is rolled back, as by `Table.rollback_dead`. Writers go on meanwhile: what they write is not touched. Cut short, it is
    finished when it is called again.
    Raises InvalidInput when a savepoint keeps such rows (it names them: release them first), Unavailable when the store did not delete
    a file (call it again), InvalidPredicate, CommitConflict, Fenced, CommitUnknown and storage errors.
    """
    kept = _saved_with(table, where)
    if kept:
        slots = ", ".join(map(str, kept))
        raise InvalidInput(
            f"savepoints of {table.name} hold such rows, at slots {slots}: release them first (table.release, or `objcat release`); "
            "nothing was erased"
        )
    deleted = table.delete(where)
    table.compact()
    dead = [one for one in table.rollback_dead(older_than_s=older_than_s) if one.files]
    timeline = table.timeline
    view = timeline.open()
    plan = plan_clean(timeline, view, table.id, before=view.slot)
    cleaned = table.clean(before=view.slot)
    files = () if plan is None else tuple(sorted({*plan.removes, *plan.leftovers}))
    left = set(files).intersection(table.fileio.list_keys("data/")) if files else set()
    if left:
        raise Unavailable(f"the store kept {len(left)} files of {table.name} that were to be deleted, {min(left)} among them: erase again")
    again = table.scan(where=where)
    return Certificate(
        table=table.name,
        url=table.fileio.url,
        where=where,
        deleted=None if deleted is None else deleted.deleted,
        delete_slot=None if deleted is None else deleted.slot,
        clean_slot=cleaned.slot,
        readable_from=cleaned.bound,
        files=(*files, *(f"data/{one.txn}/" for one in dead)),
        checked_slot=again.plan.snapshot.slot,
        found=again.count(),
        made_at_ms=table.fileio.env.now_ms(),
    )


def _saved_with(table: Table, where: Any) -> tuple[int, ...]:
    """Slots of savepoints that hold such rows, or columns that the filter cannot be asked of."""
    log = table.timeline.open().log
    held = []
    for slot in sorted(log.marks(table.id).saved):
        try:
            found = table.scan(where=where, as_of=slot, limit=1).count()
        except InvalidInput:
            found = 1
        if found:
            held.append(slot)
    return tuple(held)
