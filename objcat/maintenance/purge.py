"""Purge: delete the data files of a table that was dropped long ago, after a slot of its log says that it cannot come back.

A purge is a clean whose bound is the CLOSE. From then on no slot that shows a row of the table is readable, so nothing brings it back. A
purge that stops halfway is finished by the next one. The log and its checkpoints stay: other tables may share them, and they still tell the
outcome of every transaction.
"""

from __future__ import annotations

from objcat.common.validation import seconds
from objcat.errors import InvalidInput, TableExists
from objcat.maintenance.clean import CleanPlan, CleanResult, clean_by, plan_clean
from objcat.metadata.table_state import Tables
from objcat.mirror.formats import PREFIXES, folder_of, remove_mirror
from objcat.timeline.commit import Committer
from objcat.timeline.commit_group import delete_requests
from objcat.timeline.entry import Action, new_txn
from objcat.timeline.log_view import LogView, Timeline


def purge(timeline: Timeline[Tables], table: str, *, older_than_s: float) -> CleanResult:
    """Delete the data files of a table that was dropped at least `older_than_s` seconds ago. It cannot be restored afterwards.

    The age is measured by the store's clock, or by the local one where the store has none. Safe next to everything: an undrop that comes
    first wins, and a later one is refused. It may stop at any moment; called again it goes on.

    Raises:
        InvalidInput: dropped too recently, or a savepoint retains a slot of it.
        TableExists: the table is not dropped.
        CommitConflict, CommitUnknown, storage errors: some files may be left. The table cannot come back if the log says so.
    """
    seconds(older_than_s, what="older_than_s")
    view = timeline.open()
    closed = _closed_at(view, table, where=timeline.fileio.url)
    _check_age(timeline, closed, _store_now_ms(timeline, view), older_than_s)

    def plan(now: LogView[Tables]) -> CleanPlan | None:
        if _closed_at(now, table, where=timeline.fileio.url) != closed:
            raise TableExists(
                f"Table {table} at {timeline.fileio.url} was restored and dropped again meanwhile. Nothing was deleted. Purge "
                "it again when its new drop is old enough."
            )
        found = plan_clean(timeline, now, table, before=closed)
        # A table without files is purged too: its slot refuses a later undrop.
        return found or (CleanPlan(closed, (), ()) if now.log.marks(table).bound < closed else None)

    done = clean_by(timeline, view, table, plan, must_delete=True)
    delete_requests(timeline.fileio)  # They hold bounds. Other tables of the log do without.
    folder = folder_of(timeline, table, table)
    for name in PREFIXES:
        remove_mirror(folder, name)
    return done


def plan_purge(timeline: Timeline[Tables], table: str, *, older_than_s: float) -> CleanPlan:
    """What `purge` would delete now. It only reads, so it tells the age of the drop by the local clock. Raises as `purge`."""
    seconds(older_than_s, what="older_than_s")
    view = timeline.open()
    closed = _closed_at(view, table, where=timeline.fileio.url)
    _check_age(timeline, closed, timeline.fileio.env.now_ms(), older_than_s)
    return plan_clean(timeline, view, table, before=closed) or CleanPlan(closed, (), ())


def _check_age(timeline: Timeline[Tables], closed: int, now_ms: int, older_than_s: float) -> None:
    """Raises InvalidInput for a table that was dropped too recently."""
    # Commit times increase by at least 1 ms, so the newest may be a little ahead of the clock.
    age_s = max(0, now_ms - timeline.log.read_known(closed).committed_at_ms) / 1000
    if age_s < older_than_s:
        raise InvalidInput(
            f"The table at {timeline.fileio.url} was dropped {age_s:,.0f} s ago. Nothing was deleted. Purge it "
            f"{older_than_s:,.0f} s after its drop, or with a smaller older_than_s."
        )


def _closed_at(view: LogView[Tables], table: str, *, where: str) -> int:
    """The slot at which a table was dropped. Raises TableExists, and InvalidInput where a savepoint retains a slot of it."""
    marks = view.log.marks(table)
    if marks.closed_at is None:
        raise TableExists(f"Table {table} at {where} is not dropped. Nothing was deleted. Drop it first.")
    if marks.saved:
        kept = ", ".join(map(str, sorted(marks.saved)))
        raise InvalidInput(
            f"Table {table} at {where} has savepoints ({kept}), which retain its files. Nothing was deleted. Bring the table "
            "back, release the savepoints and drop it again."
        )
    return marks.closed_at


def _store_now_ms(timeline: Timeline[Tables], view: LogView[Tables]) -> int:
    """The store's time. Announcing a transaction tells it."""
    fileio = timeline.fileio
    committer, own = Committer(fileio), new_txn(fileio.env)
    intent = committer.announce(own, Action.CLEAN, view.log, engine="purge")
    try:
        return fileio.env.now_ms() + intent.result()
    finally:
        committer.delete_intent(own).result()
