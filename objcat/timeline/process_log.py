"""`ProcessLog`: what the threads of one process share of a log, so that they neither fight for slots nor each read the same entries.

Threads that commit to one log take turns at its slots. One whose turn it is judges the entries that the process has committed or read
meanwhile, and claims the slot above them. So a slot is lost to other processes only.

It is a cache of the log, which holds nothing that the store does not. An operation uses it only after a `BaseCheck`, the request that
every operation sends anyway: the newest slot that the process knows must still hold the entry that it knows. So a log that was deleted or
restored by hand is noticed.

The parts: `Committer` claims slots, `Timeline` shares views, and both find the one object for their log by `process_log`.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from fileio.env import Env, on_fork
from fileio.store import FileIO
from fileio.store_identity import identity_of
from objcat.common.thread_queue import ThreadQueue
from objcat.errors import TableNotFound
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.entry import Action, Entry, Footprint, Txn
from objcat.timeline.log import LOOK_BEYOND_S, Log
from objcat.timeline.log_state import LogState
from objcat.timeline.slot_offers import SlotOffers

ENTRIES_MAX = 512
BYTES_MAX = 4 * 1024 * 1024
"""The newest entries that are shared, and about their bytes. Up to twice as many are kept. An operation whose base is older reads the log
itself."""
ENTRY_BYTES = 1024
"""About what an entry takes besides its changes."""


@dataclass(slots=True)
class Publishing:
    """How far this process is with a checkpoint of a log. Any thread may change it; a lost change costs a request.

    Args:
        until_s: Until then, by the monotonic clock, nobody begins another checkpoint.
        failed_at_slot: Where the newest attempt failed.
    """

    until_s: float | None = None
    failed_at_slot: int | None = None


@dataclass(frozen=True, slots=True)
class KnownEntries:
    """The entries above a base that the process knows.

    Args:
        entries: All of them, in order, up to the newest.
        to_judge: Those that may concern an operation which only adds log rows, besides its own.
        state: The log after them.
    """

    entries: tuple[Entry, ...]
    to_judge: tuple[Entry, ...]
    state: LogState


@dataclass(frozen=True, slots=True)
class _KnownPart:
    """A part of the log without a gap. It is replaced as a whole, so a thread that is interrupted leaves nothing half done.

    Args:
        start: The log below the entries. None: it was forgotten, as they became too many.
        state: The log after them.
        by_txn: All of them.
        judged: Those that may concern an attempt which only appends.
        bytes: About what the entries take in memory.
    """

    start: LogState | None = None
    state: LogState = field(default_factory=LogState)
    entries: tuple[Entry, ...] = ()
    by_txn: Mapping[Txn, Entry] = field(default_factory=dict)
    judged: tuple[Entry, ...] = ()
    bytes: int = 0

    def place(self, base: LogState) -> int | None:
        """How many of the entries the base includes. None when the entries do not follow it."""
        if self.start is not None and base.slot == self.start.slot:
            return 0 if base.committed_at_ms == self.start.committed_at_ms else None
        place = base.slot - self.entries[0].slot if self.entries else -1
        if not 0 <= place < len(self.entries) or self.entries[place].committed_at_ms != base.committed_at_ms:
            return None
        return place + 1

    def contradicts(self, entry: Entry) -> bool:
        """Whether another entry than this one is known in its slot."""
        place = entry.slot - self.entries[0].slot if self.entries else -1
        return 0 <= place < len(self.entries) and self.entries[place].txn != entry.txn

    def followed(self, entries: Sequence[Entry]) -> _KnownPart:
        """With the entries above the state. Changes that are in side objects are read from there again, when somebody needs them."""
        light = [each if each.side is None else msgspec.structs.replace(each, changes={}) for each in entries]
        known = _KnownPart(
            self.start,
            self.state.advance(light),
            (*self.entries, *light),
            {**self.by_txn, **{txn: each for each in light for txn in each.txns}},
            (*self.judged, *(each for each in light if not only_adds(each))),
            self.bytes + sum(map(_bytes_of, light)),
        )
        return known if len(known.entries) <= 2 * ENTRIES_MAX and known.bytes <= 2 * BYTES_MAX else known._shortened()

    def _shortened(self) -> _KnownPart:
        count = size = 0
        for entry in reversed(self.entries[-ENTRIES_MAX:]):
            size += _bytes_of(entry)
            if count and size > BYTES_MAX:
                break
            count += 1
        kept = self.entries[-count:]
        judged = tuple(each for each in self.judged if each.slot >= kept[0].slot)
        return _KnownPart(None, self.state, kept, {txn: each for each in kept for txn in each.txns}, judged, sum(map(_bytes_of, kept)))


def _bytes_of(entry: Entry) -> int:
    return ENTRY_BYTES + sum(len(raw) for raw in entry.changes.values())


class ProcessLog:
    """The newest part of one log, as this process knows it, and whose turn it is. Safe for many threads. Use `process_log`."""

    def __init__(self, env: Env) -> None:
        self._env = env  # The registry knows it by its address.
        self.publishing = Publishing()
        self.looked: dict[str, int] = {}
        """By table, the slot of the view at which this process last looked what maintenance is due."""
        self.offers = SlotOffers()
        self.turns = ThreadQueue()
        self.replays = ThreadQueue()
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Begin again: another thread may have been at work when the process forked."""
        self._lock = threading.RLock()  # A signal handler may commit too.
        self._generation = 0
        self._known = _KnownPart()
        self._views: dict[type, Any] = {}

    # ---- entries

    def newest(self, base: LogState) -> tuple[int, int, int]:
        """The newest known slot at or above that of a base, its commit time in ms, and the generation, for `known_after`."""
        with self._lock:
            known = self._known
            newest = base if known.place(base) is None else known.state
            return newest.slot, newest.committed_at_ms, self._generation

    def known_after(self, candidate: CommitAttempt, generation: int | None) -> KnownEntries | None:
        """The entries above the base of an attempt. None when the process does not know them, or nothing newer.

        Args:
            generation: Of the `BaseCheck` of the operation. None: it made none, so it must read for itself.
        """
        base = candidate.base
        with self._lock:
            known = self._known
            place = known.place(base)
            if generation != self._generation or place is None or place == len(known.entries):
                return None
        entries = known.entries[place:]
        if not only_appends(candidate):
            return KnownEntries(entries, entries, known.state)
        own = known.by_txn.get(candidate.txn)
        to_judge = [entry for entry in known.judged if entry.slot > base.slot]
        if own is not None and own.slot > base.slot and own not in to_judge:
            to_judge = sorted([*to_judge, own], key=lambda entry: entry.slot)
        return KnownEntries(entries, tuple(to_judge), known.state)

    def entries_up_to(self, state: LogState) -> tuple[Entry, ...]:
        """The newest entries up to that state, in order, without a gap. Empty when the process does not know it."""
        with self._lock:
            known = self._known
        place = known.place(state)
        return () if place is None else known.entries[:place]

    def extend(self, base: LogState, entries: Sequence[Entry]) -> None:
        """Note entries that were committed or read. They follow the base without a gap."""
        if not entries:
            return
        with self._lock:
            known = self._known
            if known.place(base) is None or base.slot < 0:
                if base.slot >= 0 and entries[-1].slot <= known.state.slot:
                    return  # The base is older than what is kept.
                known = _KnownPart(base, base)
            elif any(known.contradicts(entry) for entry in entries):
                known = _KnownPart(base, base)  # The log was restored by hand, and went on.
            above = entries[max(0, known.state.slot - base.slot) :]
            if above:
                self._known = known.followed(above)

    def note(self, base: LogState, entries: Sequence[Entry]) -> None:
        """`extend`, for a reader: a process that does not commit to the log keeps nothing."""
        if self._known.entries:
            self.extend(base, entries)

    def forget(self) -> None:
        """Forget everything: the store holds something else."""
        with self._lock:
            self._generation += 1
            self._known = _KnownPart()
            self._views = {}
            self.looked.clear()
            self.publishing.failed_at_slot = None

    # ---- views

    def newer_view(self, kind: type, view: Any) -> Any:
        """The newest view of this log, if it is newer than `view` and known to follow it. Else `view`. kind: of reducer."""
        with self._lock:
            newest = self._views.get(kind)
            if newest is None or newest.slot <= view.slot or self._known.place(view.log) is None or self._known.place(newest.log) is None:
                return view
            return newest

    def offer_view(self, kind: type, view: Any) -> None:
        """Share a view with the other threads, unless they have a newer one. kind: of reducer."""
        with self._lock:
            newest = self._views.get(kind)
            if newest is None or view.slot >= newest.slot or self._known.place(newest.log) is None:
                self._views[kind] = view

    def withdraw_view(self, kind: type) -> Any:
        """Share no view until the next one is offered: what it is based on cannot be used. Returns the one that was shared, or None."""
        with self._lock:
            views, self._views = self._views, {}
        return views.get(kind)


class BaseCheck:
    """One request of an operation: whether the log is still what the operation and its process know of it.

    Deleting objects by hand is outside of the protocol. This check finds it, unless it happens between this look and the commit.
    """

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio
        self._shared = process_log(fileio)
        self.generation: int | None = None
        """Set once the check has succeeded; see `ProcessLog.known_after`."""

    def run(self, base: LogState) -> None:
        """Look at the newest known slot. base: the log as the operation knows it. One GET; two after the log was changed by hand, and one
        HEAD more where that slot is old.

        Raises:
            TableNotFound: The slot of the base is gone, or holds another entry.
            CorruptTable: A slot is missing below another one.
        """
        if base.slot < 0:
            return
        log = Log(self._fileio)
        slot, committed_at_ms, generation = self._shared.newest(base)
        found = log.read_base(slot, is_old=self._is_old(committed_at_ms))
        if slot > base.slot and (found is None or found.committed_at_ms != committed_at_ms):
            self._shared.forget()
            slot, (_, _, generation) = base.slot, self._shared.newest(base)
            found = log.read_base(slot, is_old=self._is_old(base.committed_at_ms))
        if slot == base.slot:
            check_log_unchanged(base, found, where=self._fileio.url)
        self.generation = generation

    def _is_old(self, committed_at_ms: int) -> bool:
        """Whether the last slot that is known is so old that a later one is looked for before the next one is claimed."""
        return self._fileio.env.now_ms() - committed_at_ms >= 1000 * LOOK_BEYOND_S


def check_log_unchanged(base: LogState, found: Entry | None, *, where: str) -> None:
    """Check that the log was not deleted or replaced by hand since it was read. No reader would come that far.

    Args:
        base: The log as it was read.
        found: The entry that is in the slot of the base now.
        where: The URL of the log, for the error.

    Raises:
        TableNotFound: The slot is gone, or holds another entry.
    """
    if found is None or found.committed_at_ms != base.committed_at_ms:
        raise TableNotFound(
            f"Slot {base.slot} of the log at {where} is gone, or holds another entry. The log was deleted by hand or replaced. "
            "Nothing was written. Open the table again."
        )


def only_appends(candidate: CommitAttempt) -> bool:
    """Whether an attempt does nothing but append log rows, whatever they are."""
    if candidate.action not in _WRITES or candidate.plan is not None or candidate.rollback_of is not None:
        return False
    return all(footprint == Footprint(appends=footprint.appends) for footprint in candidate.footprint.values())


def only_adds(entry: Entry) -> bool:
    """Whether an entry did nothing but add rows to tables. Then no attempt that `only_appends` conflicts with it."""
    if entry.action not in _WRITES or entry.plan is not None or entry.rollback_of is not None or entry.history is not None or entry.erased:
        return False
    return all(own == Footprint(appends=own.appends, creates=own.creates) for own in entry.footprint.values())


_WRITES = frozenset({Action.COMMIT, Action.DELTA_COMMIT})


class _Registry:
    """The one `ProcessLog` of each log that this process uses."""

    def __init__(self) -> None:
        self._logs: WeakValueDictionary[tuple[int, Hashable], ProcessLog] = WeakValueDictionary()
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Forget the lock. Handles from before the fork hold their `ProcessLog`, and those that are opened now must find it."""
        self._lock = threading.RLock()

    def of(self, fileio: FileIO) -> ProcessLog:
        key = id(fileio.env), identity_of(fileio)
        with self._lock:
            found = self._logs.get(key)
            if found is None:
                found = self._logs[key] = ProcessLog(fileio.env)
            return found


_registry = _Registry()


def process_log(fileio: FileIO) -> ProcessLog:
    """What this process shares of the log at a store. It lives as long as somebody holds it."""
    return _registry.of(fileio)
