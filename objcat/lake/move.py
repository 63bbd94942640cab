"""Moves a table into a log that other tables share.

A table that is alone in its log makes that log the shared one, if there is none of that name: one change of names. Otherwise it is copied:

1. `objcat.maintenance.copy_table` commits the table to the shared log, without a name.
2. A CLOSE in its own log takes the slot right above the entries that were copied. It says where the table goes on. If somebody else has
   that slot and wrote to the table, the copy follows, and the CLOSE is tried again.
3. The catalog gives the name to the copy, and remembers the closed table as a dropped one.

The CLOSE decides. A writer that came first is part of the copy, and one that comes later is refused with TableMoved. A move that stops
before the CLOSE has changed nothing that anybody sees. One that stops after it is finished by the next one who opens the name
(`LakeContext.finish_move`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.catalog.names import NameBinding, log_prefix
from objcat.catalog.plans import PlanOutdated, plan_move, plan_share, plan_shared_log
from objcat.catalog.table_lifecycle import close, close_unchanged
from objcat.common.validation import case_folded
from objcat.datafile.parquet import txn_of_path
from objcat.errors import CommitUnknown, Contention, CorruptTable, ObjcatError, SharedTransaction, TableMoved
from objcat.lake.context import ATTEMPTS_MAX, LakeContext
from objcat.maintenance.copy_table import COPIED_FROM, SourceChanged, TableCopy
from objcat.maintenance.purge import purge
from objcat.maintenance.workers import LocalWorkers, Workers
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_state import Tables
from objcat.table.table import Table
from objcat.timeline.entry import Action, Footprint
from objcat.timeline.log_state import MOVED_TABLE, MOVED_TO
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.service_commit import Service, ServiceResult, run_service

logger = logging.getLogger("objcat")

FOLLOWED_MAX = 20
"""How often a copy follows writers before the move gives up."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The table as it is before the move."""

    timeline: Timeline[Tables]
    binding: NameBinding


def move_table(lake: LakeContext, name: str, shared_log: str, workers: Callable[[FileIO], Workers] | None = None) -> Table:
    """See `Lake.move_to_shared_log`. workers: make the executors of a Spark session for a store; this process copies when None."""
    lake.catalog.refresh()
    lake.catalog.check_writable()
    for _ in range(ATTEMPTS_MAX):
        binding = lake.newest_binding(name)
        target = lake.catalog.names.shared_logs.get(case_folded(shared_log))
        if target == binding.prefix:
            return lake.open_table(name)
        try:
            if target is None and not binding.shared_log:
                lake.catalog.change(partial(plan_share, before=binding, shared_log=shared_log, where=lake.fileio.url))
                return lake.open_table(name)
            if target is None:
                prefix = log_prefix(shared_log, lake.fileio.env.new_id())
                lake.catalog.change(lambda names: plan_shared_log(names, shared_log, prefix))  # noqa: B023 - called at once
                continue
            moved = _copied(lake, _Source(lake.timeline(binding.prefix), binding), target, shared_log, workers)
            if moved is not None:
                table = lake.open_table(moved)
                table._context.mirror_later()
                return table
        except (PlanOutdated, TableMoved):
            continue  # Another writer changed the names, or moved the table.
    raise lake.contended(f"The table {name!r} changed {ATTEMPTS_MAX} times while it was moved")


def _copied(lake: LakeContext, source: _Source, target: str, shared_log: str, workers: Callable[[FileIO], Workers] | None) -> str | None:
    """Move a table by a copy. Returns its name; None where it changed in a way that the copy cannot follow: begin again."""
    timeline = lake.timeline(target)
    _remove_leftovers(lake, source, timeline)
    copy = TableCopy(
        target=timeline,
        view=timeline.open(),
        prefix=source.binding.prefix,
        table=lake.fileio.env.new_id(),
        workers=LocalWorkers(timeline.fileio) if workers is None else workers(timeline.fileio),
    )
    try:
        closed = _followed(source, copy, target, shared_log)
    except (CommitUnknown, SharedTransaction):
        raise  # Of the CLOSE, which may have landed: then the copy is the table.
    except (ObjcatError, FileIOError):
        _discard(copy)
        raise
    if closed is None:
        _discard(copy)
        return None
    names = lake.catalog.change(lambda names: plan_move(names, source.binding.table, closed, _binding(copy, target, shared_log)))
    lake.remember(target, copy.view)
    bound = names.table_of(copy.table)
    return source.binding.name if bound is None else bound.binding.name


def _followed(source: _Source, copy: TableCopy, target: str, shared_log: str) -> int | None:
    """Copy a table until it can be closed where the copy is. The slot of the CLOSE; None where the copy cannot follow.

    Raises Contention after `FOLLOWED_MAX` rounds, TableClosed, CommitUnknown of the CLOSE, and what `TableCopy.follow` raises.
    """
    timeline, table = source.timeline, source.binding.table
    manifests = Manifests(timeline.fileio)
    view = timeline.open()
    for _ in range(FOLLOWED_MAX):
        snapshot = snapshot_of(view, table, where=timeline.fileio.url)
        try:
            _follow(copy, view, lambda: copy.follow(snapshot, manifests, view.log.marks(table)))  # noqa: B023 - called at once
        except SourceChanged:
            return None
        except CorruptTable:
            if timeline.refresh(view).log.marks(table).is_readable(view.slot):
                raise
            return None  # A clean has deleted files of that slot.
        closed = close_unchanged(timeline, view, table, metadata=_said(_binding(copy, target, shared_log)))
        if closed is not None:
            return closed
        view = timeline.refresh(view)
    raise Contention(
        f"The table {source.binding.name!r} was written to {FOLLOWED_MAX} times while it was moved, each time before its log could be "
        "closed. Nothing was changed. Move it when its writers pause.",
        winner_slot=view.slot,
    )


def _follow(copy: TableCopy, view: LogView[Tables], follow: Callable[[], None]) -> None:
    """Run a step of the copy. A commit of it with an unknown outcome is of a table that nobody can reach: it is a failure of the store."""
    try:
        follow()
    except CommitUnknown as error:
        if isinstance(error.__cause__, FileIOError):
            raise error.__cause__ from None
        raise Contention(
            f"It is not known whether the copy of slot {view.slot} was committed ({error}). Nobody can reach it, and nothing was changed. "
            "Move the table again.",
            winner_slot=copy.view.slot,
        ) from error


def _remove_leftovers(lake: LakeContext, source: _Source, target: Timeline[Tables]) -> None:
    """Remove copies of the table that earlier moves left when they died. A mover that is still at work is refused, and its copy goes too.

    The CLOSE of such a mover would take the slot above the entries that its copy has. So an empty slot of the source comes first: then it
    must follow, and finds its copy closed. If its CLOSE came before, the table has moved, and that slot is refused.
    """
    view, names = target.open(), lake.catalog.names
    named = {bound.binding.table for bound in names.tables.values()} | names.dropped.keys()
    for table in sorted(view.state.keys() - named):
        if view.log.marks(table).closed_at is not None or not _is_copy_of(target, view, table, source.binding.prefix):
            continue
        _fence(source)
        close(target, view, table)
        purge(target, table, older_than_s=0)
        view = target.refresh(view)


def _fence(source: _Source) -> None:
    """Commit a slot that changes nothing of the table, so that nobody closes it where it was before. Raises TableMoved, TableClosed."""
    timeline, table = source.timeline, source.binding.table

    def plan(view: LogView[Tables]) -> int:
        snapshot_of(view, table, where=timeline.fileio.url)
        return view.log.marks(table).bound

    service = Service(action=Action.CLEAN, table=table, plan=plan, run=lambda bound, _txn: ServiceResult(footprint=Footprint(bound=bound)))
    run_service(timeline, service, timeline.open())


def _is_copy_of(target: Timeline[Tables], view: LogView[Tables], table: str, prefix: str) -> bool:
    """Whether a table was copied from the log at a prefix. Its first file leads to the entry that says so."""
    path = min(snapshot_of(view, table, where=target.fileio.url).paths(Manifests(target.fileio)), default=None)
    outcome = None if path is None else view.outcomes.find(target.fileio, txn_of_path(path))
    if outcome is None:
        return False
    return target.log.read_known(outcome.slot).metadata.get(COPIED_FROM, "").partition(" ")[0] == prefix


def _discard(copy: TableCopy) -> None:
    """Remove a copy that never gets a name. Best effort: nobody sees what is left."""
    if copy.opened < 0:
        return
    try:
        close(copy.target, copy.view, copy.table)
        purge(copy.target, copy.table, older_than_s=0)
    except (ObjcatError, FileIOError) as error:
        logger.warning("A copy of a table in %s was not removed: %s", copy.target.fileio.url, error)


def _binding(copy: TableCopy, target: str, shared_log: str) -> NameBinding:
    return NameBinding(name="-", table=copy.table, prefix=target, shared_log=shared_log, opened=copy.opened)


def _said(binding: NameBinding) -> dict[str, str]:
    """The metadata of a CLOSE that ends a move."""
    return {MOVED_TO: binding.shared_log, MOVED_TABLE: msgspec.json.encode(binding).decode()}
