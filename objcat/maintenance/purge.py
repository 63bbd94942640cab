"""Purging: the data files of a table that was dropped long ago are deleted, after a slot of its log says that it cannot come back.

It is a clean whose bound is the CLOSE: no slot that shows a row of the table can be read from then on, so nothing brings it back, and a
purge that is cut short is finished by the next one. The log, and the checkpoints of it, stay: other tables may share them, and they still
say what became of every transaction.
"""

from __future__ import annotations

from objcat.common.validation import seconds
from objcat.errors import InvalidInput, TableExists
from objcat.maintenance.clean import CleanPlan, CleanResult, clean_by, plan_clean
from objcat.metadata.table_state import Tables
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, new_txn
from objcat.timeline.log_view import LogView, Timeline


def purge(timeline: Timeline[Tables], table: str, *, older_than_s: float) -> CleanResult:
    """Delete the data files of a table that was dropped at least `older_than_s` seconds ago, by the store's clock (by the local one where
    it has none). For good: from its slot on the table cannot be brought back.

    Safe beside everything: an undrop that comes first wins, one that comes later is refused. May be stopped at any moment; called again it
    goes on. Raises InvalidInput (dropped too recently, or a savepoint keeps a slot of it), TableExists for a table that is not dropped,
    CommitConflict, CommitUnknown and storage errors: then some of its files may be left, and the table cannot come back if the log says so.
    """
    seconds(older_than_s, what="older_than_s")
    view = timeline.open()
    closed = _closed_at(view, table, where=timeline.fileio.url)
    _check_age(timeline, closed, _store_now_ms(timeline, view), older_than_s)

    def plan(now: LogView[Tables]) -> CleanPlan | None:
        if _closed_at(now, table, where=timeline.fileio.url) != closed:
            raise TableExists(f"table {table} at {timeline.fileio.url} was brought back and dropped again meanwhile: nothing was deleted")
        found = plan_clean(timeline, now, table, before=closed)
        # A table without files is purged too: its slot refuses whoever would bring it back.
        return found or (CleanPlan(closed, (), ()) if now.log.marks(table).bound < closed else None)

    return clean_by(timeline, view, table, plan, must_delete=True)


def plan_purge(timeline: Timeline[Tables], table: str, *, older_than_s: float) -> CleanPlan:
    """What `purge` would delete now; sends reads only, and so tells the age of the drop by the local clock. Raises as it does."""
    seconds(older_than_s, what="older_than_s")
    view = timeline.open()
    closed = _closed_at(view, table, where=timeline.fileio.url)
    _check_age(timeline, closed, timeline.fileio.env.now_ms(), older_than_s)
    return plan_clean(timeline, view, table, before=closed) or CleanPlan(closed, (), ())


def _check_age(timeline: Timeline[Tables], closed: int, now_ms: int, older_than_s: float) -> None:
    """Raises InvalidInput for a table that was dropped too recently."""
    # Commit times increase by 1 ms at least, so that the newest may be a little ahead of the clock.
    age_s = max(0, now_ms - timeline.log.read_known(closed).committed_at_ms) / 1000
    if age_s < older_than_s:
        raise InvalidInput(
            f"the table at {timeline.fileio.url} was dropped {age_s:,.0f} s ago: purge it {older_than_s:,.0f} s after its drop, "
            "or with a smaller older_than_s; nothing was deleted"
        )


def _closed_at(view: LogView[Tables], table: str, *, where: str) -> int:
    """The slot at which a table was dropped. Raises TableExists, and InvalidInput where a savepoint keeps a slot of it."""
    marks = view.log.marks(table)
    if marks.closed_at is None:
        raise TableExists(f"table {table} at {where} is not dropped: nothing was deleted")
    if marks.saved:
        kept = ", ".join(map(str, sorted(marks.saved)))
        raise InvalidInput(
            f"table {table} at {where} has savepoints ({kept}), which keep its files: bring it back, release them and drop it again; "
            "nothing was deleted"
        )
    return marks.closed_at


def _store_now_ms(timeline: Timeline[Tables], view: LogView[Tables]) -> int:
    """What time it is by the store's clock: announcing oneself tells."""
    fileio = timeline.fileio
    committer, own = Committer(fileio), new_txn(fileio.env)
    intent = committer.announce(own, Action.CLEAN, view.log, engine="purge")
    try:
        return fileio.env.now_ms() + intent.result()
    finally:
        committer.delete_intent(own).result()
