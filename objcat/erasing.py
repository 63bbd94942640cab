"""Erasure: rows are deleted, and so is every file that ever held them, and a certificate says which ones these were.

Nothing here is a step of its own: rows are deleted by a commit, log rows are merged away, dead writers' files go, and a clean expires every
older slot. Each of them may be cut short, and each is finished by the next call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fileio.errors import Unavailable
from objcat.arguments import text
from objcat.errors import InvalidInput
from objcat.services import compact, plan_clean

if TYPE_CHECKING:
    from objcat.handle import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePlan:
    """What `Table.erase` would do. rows: that pass now. slots: that can be read now, and would expire. files: that would be deleted at
    once; more come, those that the merge replaces. saved: slots that savepoints keep and that hold such rows: they must be released
    first."""

    rows: int
    slots: int
    files: tuple[str, ...]
    saved: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What `Table.erase` did.

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
    """As of `Table.plan_erasure`."""
    rows = table.scan(where=text(where, what="where")).count()
    view = table.timeline.open()
    plan = plan_clean(table.timeline, view, table.id, before=view.slot)
    return ErasurePlan(
        rows=rows,
        slots=view.slot - view.log.marks(table.id).bound,
        files=() if plan is None else tuple(sorted({*plan.removes, *plan.leftovers})),
        saved=_saved_with(table, where),
    )


def erase(table: Table, where: str, *, older_than_s: float) -> Certificate:
    """As of `Table.erase`."""
    kept = _saved_with(table, where)
    if kept:
        slots = ", ".join(map(str, kept))
        raise InvalidInput(
            f"savepoints of {table.name} hold such rows, at slots {slots}: release them first (table.release, or `objcat release`); "
            "nothing was erased"
        )
    deleted = table.delete(text(where, what="where"))
    # A record index holds keys, too: of it everything is merged, so that a clean takes what it was before.
    compact(table.timeline, table.id, whole_index=True)
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


def _saved_with(table: Table, where: str) -> tuple[int, ...]:
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
