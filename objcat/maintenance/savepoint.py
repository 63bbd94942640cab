"""Savepoints: a slot stays readable, whatever is cleaned, until it is released."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fileio.errors import FileIOError
from objcat.common.validation import text, whole_number
from objcat.errors import InvalidInput, ObjcatError, SnapshotExpired
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_state import Tables
from objcat.timeline.entry import Action, Footprint, Txn
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.service_commit import Service, ServiceResult, run_service

logger = logging.getLogger("objcat.maintenance")

NAME_KEY = "savepoint"
"""Key of an entry's metadata: the name that the user gave the savepoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointResult:
    """A savepoint that was set or released at `slot`. `saved`: the slot that it retains."""

    slot: int
    txn: Txn
    saved: int


def savepoint(timeline: Timeline[Tables], table: str, *, slot: int | None = None, name: str = "") -> SavepointResult | None:
    """Retain a slot until it is released; None when it is saved already. A clean that commits first may refuse it.

    Args:
        slot: to retain; the newest one when None.
        name: for people, shown in the log.

    Raises:
        InvalidInput: the slot does not exist, or comes before the table.
        SnapshotExpired: the slot was cleaned.
        TableClosed, CommitConflict, CommitUnknown, storage errors: see `objcat.errors`.
    """
    text(name, what="name", empty=True)
    url = timeline.fileio.url
    view = timeline.open()
    saved = view.slot if slot is None else slot
    check_slot(view.log, saved, what="slot", where=url)
    then = view if saved == view.slot else timeline.at(saved)
    if table not in then.state:
        raise InvalidInput(f"Table {table} did not exist at slot {saved}. Save a later slot.")
    _publish(timeline, then)

    def plan(now: LogView[Tables]) -> int | None:
        snapshot_of(now, table, where=url)
        if saved in now.log.marks(table).saved:
            return None
        check_readable(now.log, table, saved, where=url)
        return saved

    metadata = {NAME_KEY: name} if name else {}
    return _perform(timeline, table, view, plan, lambda slot, _txn: ServiceResult(footprint=Footprint(saves=slot), metadata=metadata))


def release(timeline: Timeline[Tables], table: str, *, slot: int) -> SavepointResult | None:
    """Release a savepoint, so that the next clean may delete what only it retained; None when the slot is not saved. Raises as
    `savepoint`."""
    view = timeline.open()
    check_slot(view.log, slot, what="slot", where=timeline.fileio.url)

    def plan(now: LogView[Tables]) -> int | None:
        return slot if slot in now.log.marks(table).saved else None

    return _perform(timeline, table, view, plan, lambda slot, _txn: ServiceResult(footprint=Footprint(releases=slot)))


def check_readable(log: LogState, table: str, slot: int, *, where: str) -> None:
    """Raises SnapshotExpired when the files of a table as of `slot` may be gone, by that state of the log."""
    marks = log.marks(table)
    if not marks.is_readable(slot):
        saved = f" and the savepoints {', '.join(str(kept) for kept in sorted(marks.saved))}" if marks.saved else ""
        raise SnapshotExpired(f"Slot {slot} of table {table} at {where} was cleaned. Use a slot from {marks.bound} on{saved}.")


def check_slot(log: LogState, slot: int, *, what: str, where: str) -> None:
    """Raises InvalidInput for a number that is no slot of the log."""
    whole_number(slot, what=what, least=None)
    if not 0 <= slot <= log.slot:
        raise InvalidInput(f"The table at {where} has no slot {slot}. Use a slot from 0 to {log.slot}.")


def _publish(timeline: Timeline[Tables], view: LogView[Tables]) -> None:
    """Publish the checkpoint of a slot that is to be saved, which pins it, so that opening the slot stays cheap.

    Best effort: without it the slot is replayed from an older checkpoint.
    """
    try:
        timeline.publish(view)
    except (ObjcatError, FileIOError) as error:
        logger.warning(
            "The checkpoint of slot %d of %s, which is to be saved, was not published: %s", view.slot, timeline.fileio.url, error
        )


def _perform(
    timeline: Timeline[Tables],
    table: str,
    view: LogView[Tables],
    plan: Callable[[LogView[Tables]], int | None],
    run: Callable[[int, Txn], ServiceResult],
) -> SavepointResult | None:
    done = run_service(timeline, Service(action=Action.SAVEPOINT, table=table, plan=plan, run=run), view)
    if done is None:
        return None
    return SavepointResult(slot=done.entry.slot, txn=done.entry.txn, saved=done.plan)
