"""Clean: expire slots below a bound, then delete the files that no readable slot names.

`_plan` chooses the bound: `_oldest_kept` from the properties `keep_...`, and `objcat.mirror.retention` for mirrors that are behind.

The files are deleted after a CLEAN entry lists them. A clean that stops between its slot and its deletes is finished by the next one. A
CLEAN is committed only after everything listed up to its base has been deleted. So only the lists above the base of the newest CLEAN can be
unfinished, and the log since the old bound holds them all. The cost follows what happened since that bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fileio.env import map_io
from objcat.common.progress import shown_progress
from objcat.common.validation import whole_number
from objcat.errors import InvalidInput
from objcat.maintenance.clean_positions import superseded_states
from objcat.metadata.files import TableDelta, decode_delta, encode_delta
from objcat.metadata.in_place import SOURCES
from objcat.metadata.maintenance_policy import Retention
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_state import Tables
from objcat.mirror.retention import oldest_mirrored
from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, Summary, Txn, log_key
from objcat.timeline.intents import remove_files
from objcat.timeline.log import WINDOW_SLOTS_MAX, with_changes
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.index_plugin import forget_files
from objcat.write.service_commit import Service, ServiceResult, run_service

logger = logging.getLogger("objcat")

CLEANED_SLOTS_MIN = 32
"""The fewest slots that an automatic clean expires."""
LOOKED_BACK_SLOTS = 4
"""The newest clean is looked for in so many slots first."""
CLEANED_SHARE = 3
"""An automatic clean also expires at least this part (a third) of the slots since the bound."""
DELETED_AT_ONCE, PARTS_MAX = 1000, 20
"""Files per delete request at least, and requests at most. Progress is shown after each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """The outcome of a clean.

    Attributes:
        slot, txn: of its commit; None when there was nothing to delete.
        bound: slots below it are expired, except saved ones.
        files: files that are gone.
        earlier: those of them that an earlier clean listed. They may have been gone before, but no slot said so.
        failed: files whose delete failed, not in `files`. The next clean deletes them.
        doubt: which commit times a clean by hours did not trust, and why.
    """

    slot: int | None
    txn: Txn | None
    bound: int
    files: int
    earlier: int = 0
    failed: int = 0
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """What a clean deletes: `removes` after its own slot, and `leftovers`, which earlier slots list. `doubt`: see CleanResult."""

    bound: int
    removes: tuple[str, ...]
    leftovers: tuple[str, ...]
    doubt: str = ""


def clean(
    timeline: Timeline[Tables],
    table: str,
    *,
    keep_slots: int | None = None,
    before: int | None = None,
    retention: Retention | None = None,
    view: LogView[Tables] | None = None,
    waits_for_mirrors: bool = True,
) -> CleanResult:
    """Expire old slots of a table and delete the files that only they name. Savepoints stay readable.

    The bound never goes back, and moves only when there is something to delete. Only files that the log names are deleted; files of
    transactions that are under way or rolled back are left alone. It may stop at any moment; the next clean finishes it. A delete that
    fails after the slot is logged, counted as `failed`, and left to the next clean.

    Args:
        keep_slots: how many of the newest slots stay readable, at least 1.
        before: the oldest slot that stays readable.
        retention: what stays readable, in commits, versions or hours. Give exactly one of these three.
        view: where to begin; a new one when None.
        waits_for_mirrors: retain what mirrors of the table still name, see `objcat.mirror.retention`.

    Raises:
        InvalidInput, TableClosed, CommitConflict, CommitUnknown, storage errors: nothing new was deleted.
    """
    if (keep_slots, before, retention).count(None) != 2:
        raise InvalidInput(
            "clean() got none or several of keep_slots, before and a retention in commits, versions or hours. Give exactly one of them."
        )
    if keep_slots is not None:
        whole_number(keep_slots, what="keep_slots", least=1)
    if before is not None:
        whole_number(before, what="before")

    doubts: list[str] = []
    first = timeline.open() if view is None else view
    mirrored = oldest_mirrored(timeline, first, table) if waits_for_mirrors else None

    def plan(now: LogView[Tables]) -> CleanPlan | None:
        # A dropped table comes back with all its rows until it is purged, and its newest slot names no file.
        snapshot_of(now, table, where=timeline.fileio.url)
        found = _plan(timeline, now, table, keep_slots=keep_slots, before=before, retention=retention, mirrored=mirrored)
        doubts[:] = [found.doubt] if found.doubt else []
        return found if found.removes or found.leftovers else None

    done = clean_by(timeline, first, table, plan)
    for doubt in doubts:
        logger.warning("%s: %s", timeline.fileio.url, doubt)
    return replace(done, doubt=" ".join(doubts))


def clean_by(
    timeline: Timeline[Tables],
    view: LogView[Tables],
    table: str,
    plan: Callable[[LogView[Tables]], CleanPlan | None],
    *,
    must_delete: bool = False,
) -> CleanResult:
    """Run a clean of what `plan` makes of the newest view.

    Args:
        view: where to begin.
        plan: what to delete; None for nothing.
        must_delete: raise the error of a delete that fails after the slot, instead of leaving the file to the next clean.

    Raises:
        ObjcatError: what `clean` and `plan` raise.
    """
    service = Service(action=Action.CLEAN, table=table, plan=plan, run=lambda plan, _txn: _run(timeline, plan))
    done = run_service(timeline, service, view)
    if done is None:
        return CleanResult(slot=None, txn=None, bound=timeline.refresh(view).log.marks(table).bound, files=0)
    entry = done.entry

    def delete(paths: Sequence[str]) -> int:
        if must_delete:
            return _delete(timeline, paths)
        return remove_files(timeline.fileio, paths, why=f"the CLEAN at slot {entry.slot}")

    failed = _delete_in_parts(timeline, done.plan.removes, delete)
    forget_files(view.state[table].spec, sorted({*done.plan.removes, *done.plan.leftovers}))
    return CleanResult(
        slot=entry.slot,
        txn=entry.txn,
        bound=done.log.marks(table).bound,
        files=len({*done.plan.removes, *done.plan.leftovers}) - failed,
        earlier=len(set(done.plan.leftovers).difference(done.plan.removes)),
        failed=failed,
    )


def plan_clean(
    timeline: Timeline[Tables],
    view: LogView[Tables],
    table: str,
    *,
    keep_slots: int | None = None,
    before: int | None = None,
    retention: Retention | None = None,
) -> CleanPlan | None:
    """What a clean would delete as of a view; None when there is nothing. Deletes nothing.

    Reads the entries that expire, those since the newest clean and, where a file may go, all since the bound. So a clean that closely
    follows another one reads few entries, however much is retained. Retention in commits or versions is counted in the entries since the
    bound.
    """
    plan = _plan(timeline, view, table, keep_slots=keep_slots, before=before, retention=retention, mirrored=None)
    return plan if plan.removes or plan.leftovers else None


def _plan(
    timeline: Timeline[Tables],
    view: LogView[Tables],
    table: str,
    *,
    keep_slots: int | None,
    before: int | None,
    retention: Retention | None,
    mirrored: int | None,
) -> CleanPlan:
    """Like `plan_clean`, but an empty plan when there is nothing to delete. mirrored: a slot that stays readable, with all later ones."""
    doubt = ""
    marks = view.log.marks(table)
    read = _Entries(timeline, view)
    if retention is not None:
        wanted, doubt = _oldest_kept(timeline, view, table, retention, read)
    else:
        wanted = view.slot - keep_slots + 1 if keep_slots is not None else min(before or 0, view.slot)
    bound = max(marks.bound, wanted if mirrored is None else min(wanted, mirrored))
    recent = _since_newest_clean(read, table)
    unpinned = {slot for slot in _released(table, recent) if slot < marks.bound}
    removes: tuple[str, ...] = ()
    if unpinned or any(_ends_files(entry, table) for entry in read.after(marks.bound, until=bound)):
        removes = _unneeded(timeline, view, table, bound, unpinned, read.after(marks.bound))
    states = superseded_states(timeline, view, bound, unpinned, lambda after: read.after(after, until=bound))
    removes = tuple(sorted(path for path in {*removes, *states} if not path.startswith(f"{SOURCES}/")))
    return CleanPlan(bound, removes, tuple(sorted(_leftovers(table, recent))), doubt)


def is_clean_due(timeline: Timeline[Tables], view: LogView[Tables], table: str, retention: Retention, *, since_slot: int | None) -> bool:
    """Whether a clean under a retention is worth its cost now.

    A clean reads the log since the bound. So it is due only when a good part of it can expire and, after writes, once in as many slots.
    Each committed slot then costs a few reads, however long the retention is; up to twice what was asked for is retained. Sends no request
    where the number of slots decides, and O(log n) GETs for hours.

    Args:
        since_slot: where the log was before the write that asks; None when a person asks.
    """
    bound = view.log.marks(table).bound
    span = view.slot - bound
    share = span // CLEANED_SHARE
    # After writes in round numbers, so that the writer that passes one has looked at all.
    step = max(1, share) if since_slot is None else max(1, share // CLEANED_SLOTS_MIN) * CLEANED_SLOTS_MIN
    if span < step or (since_slot is not None and since_slot // step == view.slot // step):
        return False
    if max(retention.commits or 0, retention.versions or 0) + step > span:
        return False
    return retention.hours is None or _slot_before(timeline, view, retention.hours, bound)[0] - bound >= step


def _oldest_kept(timeline: Timeline[Tables], view: LogView[Tables], table: str, retention: Retention, read: _Entries) -> tuple[int, str]:
    """The oldest slot that a retention keeps (the bound when it keeps all), and which times it did not trust.

    What the newest N commits left is readable from the slot of the N-th newest on.
    """
    bound = view.log.marks(table).bound
    count = max(retention.commits or 0, retention.versions or 0)
    doubt = ""
    if count > view.slot - bound:
        return bound, doubt
    own = [entry for entry in read.after(bound) if table in entry.footprint] if count else []
    kept = [view.slot]
    if retention.commits is not None:
        kept.append(_nth_newest([entry.slot for entry in own if _changes_rows(entry, table)], retention.commits, bound))
    if retention.versions is not None:
        kept.append(_nth_newest([entry.slot for entry in own if _delta_of(entry, table).bases], retention.versions, bound))
    if retention.hours is not None:
        slot, doubt = _slot_before(timeline, view, retention.hours, bound)
        kept.append(slot)
    return max(bound, min(kept)), doubt


def _nth_newest(slots: Sequence[int], count: int, otherwise: int) -> int:
    return slots[-count] if len(slots) >= count else otherwise


def _changes_rows(entry: Entry, table: str) -> bool:
    delta = _delta_of(entry, table)
    changes = delta.bases or delta.logs or delta.retires or entry.footprint[table].restores is not None
    return bool(changes) and entry.action is not Action.COMPACTION


def _slot_before(timeline: Timeline[Tables], view: LogView[Tables], hours: int, bound: int) -> tuple[int, str]:
    """The newest slot that many hours before the newest commit (-1 for none), and which times were not trusted.

    Where the store has a clock, the times of the log are its own. Otherwise they come from writers, and one clock may be wrong. Then a slot
    counts as that old only when its entry and its file both say so, compared with the newest commit, its file, and the clock of this
    process. The age of slots below `bound` does not matter.
    """
    fileio, span_ms = timeline.fileio, hours * 3_600_000
    told = timeline.slot_at_time(view.log.committed_at_ms - span_ms, view)
    if told <= bound or fileio.capabilities.store_clock:
        return told, ""

    def file_ms(slot: int) -> int:
        return fileio.head(log_key(slot)).modified_ms

    until_ms = min(view.log.committed_at_ms, file_ms(view.slot), fileio.env.now_ms()) - span_ms
    found = told if until_ms == view.log.committed_at_ms - span_ms else timeline.slot_at_time(until_ms, view)
    if found > bound and file_ms(found) > until_ms:
        low, high = bound, found
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if file_ms(middle) <= until_ms else (low, middle)
        found = low
    if found >= told:
        return told, ""
    return found, (
        f"By commit times, slots below {told} are older than {hours} hours. By the files' own times and this machine's "
        f"clock, only slots below {max(found, bound)} are. The others are retained. A writer's clock was wrong, or the "
        "files were copied."
    )


def _run(timeline: Timeline[Tables], plan: CleanPlan) -> ServiceResult:
    """Delete what an earlier CLEAN left before committing the own slot, which says that it is deleted."""
    _delete_in_parts(timeline, plan.leftovers, partial(_delete, timeline))
    changes = encode_delta(TableDelta(removes=plan.removes)) if plan.removes else None
    return ServiceResult(footprint=Footprint(bound=plan.bound), changes=changes, summary=Summary(files=len(plan.removes)))


def _delete_in_parts(timeline: Timeline[Tables], paths: Sequence[str], delete: Callable[[Sequence[str]], int]) -> int:
    """Delete files in parts and show the progress. `delete` returns how many of its part failed; returns the sum."""
    if not paths:
        return 0
    failed, size = 0, max(DELETED_AT_ONCE, -(-len(paths) // PARTS_MAX))
    with shown_progress(timeline.fileio.env, "objcat: delete files", len(paths), unit="files") as advance:
        for at in range(0, len(paths), size):
            part = paths[at : at + size]
            failed += delete(part)
            advance(len(part))
    return failed


def _delete(timeline: Timeline[Tables], paths: Sequence[str]) -> int:
    """Delete files and return 0. Raises the error of the first delete that fails."""
    for result in timeline.fileio.delete(paths) if paths else ():
        if result.error is not None:
            raise result.error
    return 0


# ---- the log ----------------------------------------------------------------------------------------------------


class _Entries:
    """Entries of a log up to a view, with their changes; each is read once."""

    def __init__(self, timeline: Timeline[Tables], view: LogView[Tables]) -> None:
        self._timeline = timeline
        self._known: dict[int, Entry] = {}
        self.view = view

    def after(self, slot: int, *, until: int | None = None) -> list[Entry]:
        """The entries above a slot, up to the view or to `until`, in order."""
        slots = range(slot + 1, (self.view.slot if until is None else until) + 1)
        missing = [one for one in slots if one not in self._known]
        if missing:
            found = self._timeline.log.read_after(missing[0] - 1, until=missing[-1], window=min(len(missing), WINDOW_SLOTS_MAX))
            self._known |= {entry.slot: entry for entry in with_changes(self._timeline.fileio, found)}
        return [self._known[one] for one in slots]


def _since_newest_clean(read: _Entries, table: str) -> Sequence[Entry]:
    """The entries above the base of the newest CLEAN of the table, and perhaps some earlier ones. Empty when there was no CLEAN."""
    bound = read.view.log.marks(table).bound
    span = LOOKED_BACK_SLOTS
    while bound:
        # A CLEAN that sets a bound commits after it.
        after = max(bound, read.view.slot - span)
        base = _done_to(table, read.after(after))
        if base >= after or after == bound:
            return read.after(after)
        span = read.view.slot - base if base >= 0 else span * 4
    return ()


def _ends_files(entry: Entry, table: str) -> bool:
    """Whether files that were named before the entry may not be named after it."""
    footprint = entry.footprint.get(table)
    if footprint is None:
        return False
    restored = footprint.restores is not None
    return bool(footprint.replaces or footprint.retires or footprint.overwrites) or restored or entry.action is Action.CLOSE


# ---- what is needed ----------------------------------------------------------------------------------------------


def _leftovers(table: str, since: Sequence[Entry]) -> set[str]:
    """Files that CLEANs list, and that no later CLEAN confirms as deleted."""
    done_to = _done_to(table, since)
    return {path for entry in since if entry.slot > done_to for path in _delta_of(entry, table).removes}


def _done_to(table: str, since: Sequence[Entry]) -> int:
    """The base of the newest CLEAN of the table's files, not of checkpoints. Lists and releases up to it are dealt with."""
    return max((entry.base for entry in since if table in entry.footprint and entry.footprint[table].bound is not None), default=-1)


def _released(table: str, since: Sequence[Entry]) -> set[int]:
    """Slots of savepoints released after the base of the newest CLEAN. No clean has looked at them yet."""
    done_to = _done_to(table, since)
    released = (entry.footprint[table].releases for entry in since if entry.slot > done_to and table in entry.footprint)
    return {slot for slot in released if slot is not None}


def _unneeded(
    timeline: Timeline[Tables], view: LogView[Tables], table: str, bound: int, unpinned: Collection[int], since: Sequence[Entry]
) -> tuple[str, ...]:
    """Files that snapshots below the bound name, but no snapshot at or above it and no saved one.

    What was unneeded at the old bound was removed by the clean that set it, except what savepoints kept. A file in the state at the bound,
    or added later, stays: a state above the bound names another one only after a RESTORE.

    Args:
        since: all entries above the old bound.
        unpinned: slots below it whose savepoints were released, and which no clean has seen since.
    """
    marks = view.log.marks(table)
    own = [entry for entry in since if table in entry.footprint]
    passed = [entry for entry in own if entry.slot <= bound]
    came_back = {entry.footprint[table].restores for entry in own if entry.slot > bound}
    needed = {bound, *(slot for slot in marks.saved if slot < bound), *(slot for slot in came_back if slot is not None)}
    listed = {path for entry in own for path in _delta_of(entry, table).removes}
    files = _NamedFiles(timeline, view, table, Manifests(timeline.fileio))
    added = {path: group_ids for entry in passed for path, group_ids in _added(entry, table).items()}
    restored = {entry.footprint[table].restores for entry in passed} - {None}
    sweeping = any(entry.footprint[table].overwrites or entry.action is Action.CLOSE for entry in passed)
    former = None
    if not (unpinned or restored or sweeping):
        touched = {group_id for entry in passed for group_id in (*entry.footprint[table].replaces, *entry.footprint[table].retires)}
        former = files.of(marks.bound, touched)
    if former is not None:
        former |= added
        group_ids = {group_id for of_file in former.values() for group_id in of_file}
        kept = {path for slot in sorted(needed) for path in files.paths(slot, group_ids)} if former else set()
        return tuple(sorted(former.keys() - kept - listed))
    looked_at = {*unpinned, *(slot for slot in restored if slot is not None), *(() if bound == marks.bound else (marks.bound,))}
    known = {path for slot in sorted(looked_at) for path in files.paths(slot)} | added.keys()
    return tuple(sorted(known - {path for slot in sorted(needed) for path in files.paths(slot)} - listed))


def _added(entry: Entry, table: str) -> dict[str, frozenset[FileGroupId]]:
    """Files that an entry adds, with the file group ids of their rows."""
    delta = _delta_of(entry, table)
    found: dict[str, frozenset[FileGroupId]] = {}
    for part in (delta, *(() if delta.index is None else (delta.index,))):
        found |= {file.path: frozenset([base.group_id]) for base in part.bases for file in base.data_files}
        found |= {log.path: frozenset(rows.group_id for rows in log.slices) for log in part.logs}
    return found


def _delta_of(entry: Entry, table: str) -> TableDelta:
    raw = entry.changes.get(table)
    return TableDelta() if raw is None else decode_delta(raw)


@dataclass(frozen=True, slots=True)
class _NamedFiles:
    """Which files the table names at a slot; none where there was no table or it was dropped."""

    timeline: Timeline[Tables]
    view: LogView[Tables]
    table: str
    manifests: Manifests

    def paths(self, slot: int, group_ids: Collection[FileGroupId] | None = None) -> Collection[str]:
        """The files of all groups that share keys with some file groups; of every group when None."""
        snapshot = self._snapshot(slot)
        if snapshot is None:
            return ()
        if group_ids is None:
            return snapshot.paths(self.manifests)
        groups = snapshot.all_groups(self.manifests, group_ids=group_ids)
        bases = {file.path for group in groups if group.base is not None for file in group.base.data_files}
        return bases | {rows.object.path for group in groups for rows in group.logs}

    def of(self, slot: int, group_ids: Collection[FileGroupId]) -> dict[str, frozenset[FileGroupId]] | None:
        """The files of all groups that share keys with some file groups, each with the file groups of all its rows.

        None when the entries that say so are archived or gone.
        """
        snapshot = self._snapshot(slot)
        if snapshot is None or not group_ids:
            return {}
        groups = snapshot.all_groups(self.manifests, group_ids=group_ids)
        bases = [group.base for group in groups if group.base is not None]
        files = {file.path: frozenset([base.group_id]) for base in bases for file in base.data_files}
        named_at = {rows.object.path: rows.named_at for group in groups for rows in group.logs}
        found = map_io(self.timeline.fileio.env, self.timeline.log.read_slot, sorted(set(named_at.values())))
        entries = with_changes(self.timeline.fileio, [entry for entry in found if entry is not None])
        known = {path: of_file for entry in entries for path, of_file in _added(entry, self.table).items()}
        return files | {path: known[path] for path in named_at} if known.keys() >= named_at.keys() else None

    def _snapshot(self, slot: int) -> Snapshot | None:
        view = self.view if slot == self.view.slot else self.timeline.at(slot)
        state = view.state.get(self.table)
        if state is None or view.log.marks(self.table).closed_at is not None:
            return None
        return Snapshot(view.log, state)
