"""Cleaning: slots below a bound expire, and files that nothing readable names any more are deleted, after a slot of the log says so.

A clean that is cut short between its slot and its deletes is finished by the next one: whatever a CLEAN removes is listed in its entry, and
a CLEAN stands in the log only after everything that was listed up to its base has been deleted. So only the lists above the base of the
newest CLEAN can be unfinished, and the log since the old bound holds them all. Its cost follows what happened since that bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from objcat.errors import InvalidInput
from objcat.services.perform import Proposal, Service, perform
from objcat.table import Manifests, Snapshot, TableDelta, Tables
from objcat.table.files import decode_delta, encode_delta
from objcat.timeline import Action, Entry, Footprint, Home, Summary, Timeline, Txn, View
from objcat.timeline.commit import remove_files
from objcat.timeline.side import with_changes


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """A clean. slot, txn: None when there was nothing to delete. bound: slots below it are expired, but for saved ones. files: that it
    deletes."""

    slot: int | None
    txn: Txn | None
    bound: int
    files: int


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """What a clean deletes: `removes`, once its slot says so, and `leftovers`, which earlier slots say already."""

    bound: int
    removes: tuple[str, ...]
    leftovers: tuple[str, ...]


def clean(timeline: Timeline[Tables], table: str, *, keep_slots: int | None = None, before: int | None = None) -> CleanResult:
    """Expire old slots of a table, and delete the files that only they name. Savepoints stay readable.

    keep_slots: how many of the newest slots stay readable, at least 1. before: the oldest slot that stays readable. Give one of them.
    The bound never goes back, and moves only when there is something to delete. Deletes nothing that the log does not name: files of
    transactions under way, or rolled back, are not its business. May be stopped at any moment; the next clean finishes it.
    Raises InvalidInput, CommitConflict, CommitUnknown and storage errors: then nothing new was deleted. A delete that fails after the slot
    is logged, and left to the next clean.
    """
    if (keep_slots is None) == (before is None):
        raise InvalidInput("clean() takes keep_slots or before: give exactly one of them")
    if (keep_slots is not None and keep_slots < 1) or (before is not None and before < 0):
        raise InvalidInput(
            f"keep_slots={keep_slots}, before={before}: the newest slot always stays, give keep_slots=1 or more, before=0 or more"
        )
    service = Service(
        action=Action.CLEAN,
        table=table,
        plan=lambda view: plan_clean(timeline, view, table, keep_slots=keep_slots, before=before),
        run=lambda plan, _txn: _run(timeline, plan),
    )
    view = timeline.open()
    done = perform(timeline, service, view)
    if done is None:
        return CleanResult(slot=None, txn=None, bound=timeline.refresh(view).log.marks(table).bound, files=0)
    entry = done.committed.entry
    remove_files(timeline.fileio, list(done.plan.removes), why=f"the CLEAN at slot {entry.slot}")
    return CleanResult(
        slot=entry.slot, txn=entry.txn, bound=done.view.log.marks(table).bound, files=len({*done.plan.removes, *done.plan.leftovers})
    )


def plan_clean(
    timeline: Timeline[Tables], view: View[Tables], table: str, *, keep_slots: int | None = None, before: int | None = None
) -> CleanPlan | None:
    """What a clean would delete as of a view; None when there is nothing. Reads the log since the bound, and deletes nothing."""
    marks = view.log.marks(table)
    wanted = view.slot - keep_slots + 1 if keep_slots is not None else min(before or 0, view.slot)
    bound = max(marks.bound, wanted)
    since = with_changes(timeline.fileio, timeline.log.read_after(marks.bound, until=view.slot))
    plan = CleanPlan(bound, _unneeded(timeline, view, table, bound, since), tuple(sorted(_leftovers(table, since))))
    return plan if plan.removes or plan.leftovers else None


def _run(timeline: Timeline[Tables], plan: CleanPlan) -> Proposal:
    """What an earlier CLEAN left is deleted before the own slot, which says so."""
    for result in timeline.fileio.delete(plan.leftovers) if plan.leftovers else ():
        if result.error is not None:
            raise result.error
    changes = encode_delta(TableDelta(removes=plan.removes)) if plan.removes else None
    return Proposal(footprint=Footprint(bound=plan.bound), changes=changes, summary=Summary(files=len(plan.removes)))


# ---- what is needed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Homes:
    """A set of homes as a container that also finds what shares keys with them under another bucket count.

    everything: every home. partitions: all homes of these. buckets: by (partition, bucket count).
    """

    everything: bool = False
    partitions: frozenset[str] = frozenset()
    buckets: Mapping[tuple[str, int], frozenset[int]] = field(default_factory=dict)

    @staticmethod
    def of(homes: Iterable[Home], *, partitions: Iterable[str] = (), everything: bool = False) -> Homes:
        buckets: dict[tuple[str, int], set[int]] = {}
        for home in homes:
            buckets.setdefault((home.partition, home.bucket_count), set()).add(home.bucket)
        return Homes(everything, frozenset(partitions), {key: frozenset(numbers) for key, numbers in buckets.items()})

    def __contains__(self, home: object) -> bool:
        if not isinstance(home, Home):
            return False
        if self.everything or home.partition in self.partitions:
            return True
        return any(
            home.bucket in numbers if count == home.bucket_count else any(Home(partition, n, count).is_common(home) for n in numbers)
            for (partition, count), numbers in self.buckets.items()
            if partition == home.partition
        )


def _leftovers(table: str, since: Sequence[Entry]) -> set[str]:
    """What CLEANs list that no later CLEAN vouches for."""
    cleans = [entry for entry in since if entry.action is Action.CLEAN and table in entry.footprint]
    done_to = max((entry.base for entry in cleans), default=-1)
    return {path for entry in cleans if entry.slot > done_to for path in _delta_of(entry, table).removes}


def _unneeded(timeline: Timeline[Tables], view: View[Tables], table: str, bound: int, since: Sequence[Entry]) -> tuple[str, ...]:
    """Files that snapshots below the bound name, but none at or above it, and no saved one.

    since: all entries above the old bound. What was unneeded at the old bound already was removed by the clean that set it, but for what
    savepoints kept that were released since.
    """
    marks = view.log.marks(table)
    if bound == marks.bound and not _released(table, since):
        return ()
    manifests = Manifests(timeline.fileio)
    reader = _Files(timeline, view, table, manifests)
    passed = [entry for entry in since if entry.slot <= bound and table in entry.footprint]
    ahead = [entry for entry in since if entry.slot > bound and table in entry.footprint]
    touched = _touched(table, passed)
    former = {} if bound == marks.bound else reader.at(marks.bound, touched)
    for entry in passed:
        former |= _added(entry, table)
        restored = entry.footprint[table].restores
        if restored is not None:
            former |= reader.at(restored, Homes(everything=True))
    for slot in _released(table, since):
        if slot < marks.bound:
            former |= reader.at(slot, Homes(everything=True))
    if not former:
        return ()
    homes = Homes.of(home for of_file in former.values() for home in of_file)
    restores = {entry.footprint[table].restores for entry in ahead}
    needed = {bound, *(slot for slot in marks.saved if slot < bound), *(slot for slot in restores if slot is not None)}
    kept: set[str] = set()
    for slot in sorted(needed):
        kept.update(reader.at(slot, homes))
    listed = {path for entry in since if entry.action is Action.CLEAN for path in _delta_of(entry, table).removes}
    return tuple(sorted(former.keys() - kept - listed))


def _released(table: str, since: Sequence[Entry]) -> set[int]:
    """Slots of savepoints that were released after the base of the newest CLEAN: no clean has looked at them yet."""
    done_to = max((entry.base for entry in since if entry.action is Action.CLEAN and table in entry.footprint), default=-1)
    released = (entry.footprint[table].releases for entry in since if entry.slot > done_to and table in entry.footprint)
    return {slot for slot in released if slot is not None}


def _touched(table: str, entries: Sequence[Entry]) -> Homes:
    """Where entries may have taken files out of the table's state."""
    footprints = [entry.footprint[table] for entry in entries]
    homes = [home for footprint in footprints for home in (*footprint.replaces, *footprint.retires)]
    partitions = [partition for footprint in footprints for partition in footprint.overwrites]
    everything = any(footprint.restores is not None for footprint in footprints) or any(entry.action is Action.CLOSE for entry in entries)
    return Homes.of(homes, partitions=partitions, everything=everything)


def _added(entry: Entry, table: str) -> dict[str, tuple[Home, ...]]:
    """Files that an entry brings, with the homes of their rows."""
    delta = _delta_of(entry, table)
    files: dict[str, tuple[Home, ...]] = {base.path: (base.home,) for base in delta.bases}
    return files | {log.path: tuple(rows.home for rows in log.homes) for log in delta.logs}


def _delta_of(entry: Entry, table: str) -> TableDelta:
    raw = entry.changes.get(table)
    return TableDelta() if raw is None else decode_delta(raw)


@dataclass(frozen=True, slots=True)
class _Files:
    """Which files the table's state names at a slot."""

    timeline: Timeline[Tables]
    view: View[Tables]
    table: str
    manifests: Manifests

    def at(self, slot: int, homes: Homes) -> dict[str, tuple[Home, ...]]:
        """The files of the groups in some homes, with the homes of their rows; none when there was no table, or it was dropped."""
        view = self.view if slot == self.view.slot else self.timeline.at(slot)
        state = view.state.get(self.table)
        if state is None or view.log.marks(self.table).closed_at is not None:
            return {}
        files: dict[str, tuple[Home, ...]] = {}
        for group in Snapshot(view.log, state).file_groups(self.manifests, homes=homes):
            if group.base is not None:
                files[group.base.path] = (group.base.home,)
            for rows in group.logs:
                files[rows.object.path] = tuple(part.home for part in rows.object.homes)
        return files
