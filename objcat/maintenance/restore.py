"""Restore: a table gets the rows, schema and application versions of an earlier slot again. The slots since then stay readable."""

from __future__ import annotations

from dataclasses import dataclass

from objcat.errors import InvalidInput
from objcat.maintenance.savepoint import check_readable, check_slot
from objcat.metadata.table_state import Tables
from objcat.timeline.entry import Action, Footprint, Txn
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.service_commit import Service, ServiceResult, run_service


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """A restore that is durable at `slot`. `restored`: the slot whose state the table has again."""

    slot: int
    txn: Txn
    restored: int


def restore(timeline: Timeline[Tables], table: str, *, to: int) -> RestoreResult:
    """Bring back the state that a table had at a slot, in one commit that writes no data. A dropped table is open again.

    Clean bounds, savepoints and the outcomes of transactions stay. Writers and services that planned before it conflict, and plan again.
    Applications learn from which version to go on (StreamRewound).

    Raises:
        InvalidInput: the table did not exist at that slot, or was dropped.
        SnapshotExpired: the slot was cleaned.
        CommitConflict, CommitUnknown, storage errors: see `objcat.errors`.
    """
    view = timeline.open()
    url = timeline.fileio.url
    check_slot(view.log, to, what="to", where=url)
    check_readable(view.log, table, to, where=url)
    then = view if to == view.slot else timeline.at(to)
    marks = then.log.marks(table)
    if table not in then.state:
        raise InvalidInput(f"Table {table} did not exist at slot {to}. Restore a later slot.")
    if marks.closed_at is not None:
        raise InvalidInput(f"Table {table} was dropped at slot {marks.closed_at}, so slot {to} has no rows. Restore an earlier slot.")
    apps = {app: reached.version for app, reached in marks.apps.items() if reached.version >= 0}

    def plan(now: LogView[Tables]) -> int:
        check_readable(now.log, table, to, where=url)
        return to

    service = Service(
        action=Action.RESTORE,
        table=table,
        plan=plan,
        run=lambda slot, _txn: ServiceResult(footprint=Footprint(restores=slot), apps=apps),
    )
    done = run_service(timeline, service, view)
    assert done is not None, "a restore always has something to do"
    return RestoreResult(slot=done.entry.slot, txn=done.entry.txn, restored=to)
