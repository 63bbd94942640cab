"""`LogView` and `TimelineReader`: a log as of one slot, with the state that its entries replay to, and how views are opened.

A `TimelineReader` opens, refreshes and rewinds views, and changes nothing in the store. `log_view.Timeline` adds what writers publish. A
`LogReducer` gives the entries their meaning: tables, or names of a catalog.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from fileio.env import map_io
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.common.validation import whole_number
from objcat.errors import CheckpointCollected, CheckpointUnreadable, CorruptTable, InvalidInput, ObjcatError
from objcat.timeline import checkpoint
from objcat.timeline.checkpoint import BrokenRoot, FoundRoot, Hint, Root
from objcat.timeline.entry import Entry, log_key
from objcat.timeline.error_location import says_where
from objcat.timeline.hints import HINT_SLOTS, FoundHint, Hints, small
from objcat.timeline.log import LOOK_BEYOND_S, Log, absent_slot, with_changes
from objcat.timeline.log_reducer import LogReducer
from objcat.timeline.log_state import LogState
from objcat.timeline.shared_views import SharedViews
from objcat.timeline.turns import Turns
from objcat.timeline.txn_outcomes import OutcomeSegment, TxnOutcomes

logger = logging.getLogger("objcat.timeline")

S = TypeVar("S")

REFRESH_SLOTS_MAX = 64
"""A view that is further behind looks for a newer checkpoint instead of reading every entry."""
TAIL_ENTRIES_MAX = 128
"""Entries that a view remembers, for the hint and to move to a newer checkpoint without reading them again."""


@dataclass(frozen=True, slots=True)
class LogView(Generic[S]):
    """A log as of `log.slot`: immutable, shareable, picklable.

    Args:
        checkpoint: The slot of the root that it was opened from, -1 for none.
        outcomes: Of every transaction up to the slot.
        tail: The newest entries above the checkpoint, without changes that are in side objects.
        milestone: The view at the newest slot above the checkpoint that may have a root. It has no milestone of its own.
        root: That of the checkpoint, for the hint. None without one, and where it is too large for a hint.
    """

    log: LogState
    state: S
    checkpoint: int = -1
    outcomes: TxnOutcomes = field(default_factory=TxnOutcomes, repr=False)
    tail: tuple[Entry, ...] = field(default=(), repr=False)
    milestone: LogView[S] | None = field(default=None, repr=False)
    root: Root | None = field(default=None, repr=False, compare=False)

    @property
    def slot(self) -> int:
        """The slot of the view."""
        return self.log.slot


class TimelineReader(Generic[S]):
    """One log and what it means, for who only reads it. Callers hold the views. Safe for many threads.

    Args:
        hints: What the process knows of the hint of this log. None: nothing yet.
    """

    def __init__(self, fileio: FileIO, reducer: LogReducer[S], hints: Hints | None = None) -> None:
        self.fileio = fileio
        self.reducer = reducer
        self.log = Log(fileio)
        self.turns = Turns(fileio)
        self._hints = hints or Hints()
        self.views = SharedViews(fileio, type(reducer))
        self._looked_s = fileio.env.monotonic_s()
        self._unusable: set[str] = set()
        self._passes_over_all = False

    def read_hint(self) -> FoundHint:
        """The hint. One GET."""
        found = checkpoint.read_hint(self.fileio)
        self._hints.saw(*found)
        return found

    def foresee(self, hint: FoundHint) -> LogView[S] | None:
        """The view that a hint carries, which may be stale or wrong: nothing was asked of the log. None when it carries none."""
        return None if hint[0] is None or self._passes_over_all else self._carried_by(hint[0])

    @says_where
    def open(self, found: FoundHint | None = None) -> LogView[S]:
        """The newest view. For an empty log, a view at slot -1.

        A checkpoint is a cache. An unreadable one is logged once, and an older one or the log itself is used instead.

        Costs the hint, and then the slot that it names with the few after it, at once. Where the hint carries nothing, the root and the
        entries above it take their place, with two slots that are absent: the second shows that none was deleted by hand. O(log n) requests
        more if the hint is missing or stale. Raises UnsupportedFormat, CorruptTable.

        Args:
            found: The hint, if it was just read.
        """
        self._looked_s = self.fileio.env.monotonic_s()
        if self._passes_over_all:
            return self.advance(self._empty(), self._entries(-1))
        hint, _ = found or self.read_hint()
        if hint is None:
            return self._catch_up(self._empty(), window=HINT_SLOTS + 1, reach=checkpoint.TAIL_SLOTS_MAX + 1, looks_beyond=True)
        opened = self._open_by(hint, checkpoint.TAIL_SLOTS_MAX + 1)
        self.turns.notice(hint.turns, slot=opened.slot, outcomes=opened.outcomes)
        return opened

    def _open_by(self, hint: Hint, reach: int) -> LogView[S]:
        """The newest view, from what a hint carries, or from the root that it names."""
        view = self._carried_by(hint)
        if view is not None:
            # Its own slot, those that should be there before the next hint, and two that are absent.
            above = self._hints.every + 1
            entries = self.log.read_after(view.slot - 1, until=view.slot + above, window=above + 1)
            if entries and _ends_with(view, entries[0]):
                view = self._followed(view, entries[1:], reach)
                if len(entries) >= above:
                    view = self._catch_up(view, window=2 * above + 1, reach=reach, looks_beyond=True)
                if view.checkpoint < 0 or view.checkpoint >= view.log.root_bound:
                    return view
        # It carries nothing, something else than the log says, or a root that is gone meanwhile.
        return self._open_at_root(hint, reach)

    def _carried_by(self, hint: Hint) -> LogView[S] | None:
        """The view that a hint carries. None when it carries none, or one that cannot be used."""
        try:
            carried = checkpoint.decode_carried(hint)
            if carried is None or (carried[0] is not None and not self._is_usable(carried[0])):
                return None
            root, entries = carried
            return self._advanced(self._empty() if root is None else self._standing_on(root), entries)
        except (ObjcatError, NotFound):
            return None  # The log itself says what is wrong, if anything is. The hint may be of another one.

    def _open_at_root(self, hint: Hint, reach: int) -> LogView[S]:
        """The newest view, from the root that a hint names. It is read together with the entries above it."""
        base = hint.checkpoint
        if base < 0:
            return self._catch_up(self._empty(), window=HINT_SLOTS + 1, reach=reach, looks_beyond=True)
        # With nothing above the root, its own slot shows that the log reaches that far.
        slots = range(base + (hint.slot > base), min(hint.slot, base + checkpoint.TAIL_SLOTS_MAX) + 3)
        asked: list[Callable[[], FoundRoot | Entry | None]] = [partial(checkpoint.read_root, self.fileio, base)]
        asked += [partial(self.log.read_stub, slot) for slot in slots]
        found, *stubs = map_io(self.fileio.env, lambda one: one(), asked)
        root = found.root if isinstance(found, FoundRoot) else None
        if not isinstance(root, Root) or not self._is_usable(root):
            return self._jump(self._empty(), hint.slot if self.fileio.exists(log_key(hint.slot)) else -1)
        view = self._standing_on(root)
        known = [stub for stub in stubs if not isinstance(stub, FoundRoot)]
        entries = self.log.read_after(slots.start - 1, until=base + reach, window=len(slots), stubs=known, looks_beyond=True)
        own = entries.pop(0) if hint.slot == base and entries else None
        opened = self._followed(view, entries, reach)
        if opened.slot == view.slot:
            self._check_checkpoint(view, own or self.log.read_stub(view.slot))
        return opened

    def pass_over(self, error: CheckpointCollected) -> None:
        """From now on use no checkpoint that names an object which is gone or damaged.

        Call this on such an error, before you open the log again.
        """
        self.views.pass_over()
        if error.path and error.path not in self._unusable:
            self._unusable.add(error.path)
            if isinstance(error, CheckpointUnreadable):
                logger.warning("A checkpoint of %s cannot be read, and is passed over: %s", self.fileio.url, error)

    def pass_over_all(self) -> None:
        """Use no checkpoint until this process has published one: replay the log itself."""
        self.views.pass_over()
        self._passes_over_all = True

    @says_where
    def refresh(self, view: LogView[S], stubs: Sequence[Entry | None] = ()) -> LogView[S]:
        """The newest view. One GET when nothing is new. Far behind, it begins at a newer checkpoint than `view`. Raises as `open`.

        Once in `LOOK_BEYOND_S`, when nothing is new, one request more makes sure of it. Where another thread has a newer view, it begins
        there, and sends two GETs instead of one.

        stubs: what the slots after the view were a moment ago, see `Log.read_after`.
        """
        newest, is_newest = (view, False) if stubs or self._passes_over_all else self.views.checked(view)
        if not is_newest:
            newest = self._catch_up(newest, window=1, reach=REFRESH_SLOTS_MAX, stubs=stubs)
        if newest.slot == view.slot:
            self.look_beyond(view)
        return newest

    @says_where
    def look_beyond(self, view: LogView[S]) -> None:
        """Once in `LOOK_BEYOND_S`, make sure that nothing is behind the end of the log, which is at the view. Raises CorruptTable."""
        now_s = self.fileio.env.monotonic_s()
        if now_s - self._looked_s >= LOOK_BEYOND_S:
            self.log.check_end(view.slot)
            self._looked_s = now_s

    @says_where
    def advance(self, view: LogView[S], entries: Sequence[Entry]) -> LogView[S]:
        """The view after further entries. They must follow its slot without a gap.

        Raises CorruptTable for an entry that does not fit. The error names the checkpoint if that belongs to another log.
        """
        try:
            return self._advanced(view, entries)
        except CorruptTable as error:
            if not 0 <= view.slot == view.checkpoint:
                raise
            self.check_checkpoint(view)
            raise CorruptTable(f"{error} Or {checkpoint.root_key(view.slot)}, the checkpoint below it, belongs to another log.") from error

    def _advanced(self, view: LogView[S], entries: Sequence[Entry]) -> LogView[S]:
        for entry in with_changes(self.fileio, entries):
            light = entry if entry.side is None else msgspec.structs.replace(entry, changes={})
            view = LogView(
                view.log.advance([entry]),
                self.reducer.advance(view.state, entry, partial(self._restored, view.log)),
                view.checkpoint,
                view.outcomes.advance([entry]),
                (*view.tail[1 - TAIL_ENTRIES_MAX :], light),
                view.milestone,
                view.root,
            )
            if entry.slot % checkpoint.SPACING_SLOTS == 0 and entry.slot >= checkpoint.SPACING_SLOTS:
                view = replace(view, milestone=replace(view, milestone=None, tail=()))
        return view

    @says_where
    def at(self, slot: int) -> LogView[S]:
        """The view as of an earlier slot, from the newest checkpoint at or below it.

        Raises InvalidInput when there is no such slot. The caller decides about SnapshotExpired.
        """
        whole_number(slot, what="slot", least=None)
        return self._as_of(slot, self._newest_root(slot))

    def _as_of(self, slot: int, root: Root | None) -> LogView[S]:
        """`at`, from a root."""
        view = self._empty() if root is None else self._standing_on(root)
        entries = self._entries(view.slot, until=slot)
        if view.slot + len(entries) < slot or slot < 0:
            self.check_absent(view.slot + len(entries) + 1, slot)
            raise InvalidInput(f"{self.fileio.url} has no slot {slot}. Its slots go from 0 to {view.slot + len(entries)}.")
        return self.advance(view, entries)

    @says_where
    def at_time(self, when_ms: int, newest: LogView[S] | None = None) -> LogView[S]:
        """The view as of the newest commit at or before a time. Commit times increase, so O(log n) GETs find it.

        Args:
            when_ms: Milliseconds since 1970 UTC.
            newest: A view that saves opening the log. Commits after it are not looked for.

        Raises:
            InvalidInput: There is no such commit.
        """
        newest = newest or self.open()
        slot = self.slot_at_time(when_ms, newest)
        if slot < 0:
            first = "The log is empty" if newest.slot < 0 else "Its first commit is later"
            raise InvalidInput(f"The log of {self.fileio.url} has no commit at or before {when_ms} ms since 1970. {first}.")
        return newest if slot == newest.slot else self.at(slot)

    @says_where
    def slot_at_time(self, when_ms: int, newest: LogView[S]) -> int:
        """The newest slot up to `newest` that was committed at or before a time, -1 for none. O(log n) GETs. Raises CorruptTable."""
        if newest.slot >= 0 and newest.log.committed_at_ms <= when_ms:
            return newest.slot
        low, high = -1, newest.slot
        while high - low > 1:
            middle = (low + high) // 2
            entry = self.log.read_stub(middle)
            if entry is None:
                raise CorruptTable(absent_slot(middle))
            if entry.committed_at_ms <= when_ms:
                low = middle
            else:
                high = middle
        return low

    def adopt_checkpoint(self, view: LogView[S], standing: LogView[S]) -> LogView[S]:
        """The same slot as `view`, based on the newer checkpoint of `standing`. `view` itself when that is not newer, or is later.

        It uses entries that the view remembers, and reads entries again only when too many are forgotten.
        """
        if standing.checkpoint <= view.checkpoint or standing.slot > view.slot:
            return view
        entries = [entry for entry in view.tail if entry.slot > standing.slot]
        if len(entries) < view.slot - standing.slot:
            entries = self._entries(standing.slot, until=view.slot)
        return self.advance(standing, entries)

    def check_checkpoint(self, view: LogView[S]) -> None:
        """Compare the root of a view that is right on its checkpoint with the entry of its slot. Called after a contradiction.

        One GET. Raises CorruptTable that names the root.
        """
        if 0 <= view.slot == view.checkpoint:
            self._check_checkpoint(view, self.log.read_stub(view.slot))

    def _check_checkpoint(self, view: LogView[S], entry: Entry | None) -> None:
        """`check_checkpoint`, with the entry of its slot."""
        if entry is None or not _ends_with(view, entry):
            raise CorruptTable(
                f"{checkpoint.root_key(view.slot)} does not belong to the log below {self.fileio.url}. Slot {view.slot} of that log "
                f"{'is missing' if entry is None else 'is another entry'}. Restore log/ and checkpoints/ from one backup of the bucket."
            )

    # ---- how

    def _restored(self, log: LogState, slot: int) -> S:
        """The state of an earlier slot, for an entry that follows `log` and restores it.

        It must not depend on a checkpoint that is being expired, since later checkpoints will depend on it too.
        """
        kept = slot >= log.root_bound or slot in log.pins
        return self._as_of(slot, self._newest_root(slot) if kept else None).state

    def _empty(self) -> LogView[S]:
        return LogView(LogState(), self.reducer.begin())

    def _standing_on(self, root: Root) -> LogView[S]:
        return LogView(root.log, self.reducer.load(root.payload), root.slot, root.all_outcomes(), root=small(root))

    def _catch_up(
        self, view: LogView[S], *, window: int, reach: int, stubs: Sequence[Entry | None] = (), looks_beyond: bool = False
    ) -> LogView[S]:
        """The newest view: read up to `reach` entries in order, and jump when there are more. stubs, looks_beyond: see `Log.read_after`."""
        entries = self.log.read_after(view.slot, until=view.slot + reach, window=window, stubs=stubs, looks_beyond=looks_beyond)
        return self._followed(view, entries, reach)

    def _followed(self, view: LogView[S], entries: Sequence[Entry], reach: int) -> LogView[S]:
        """The newest view, from the entries after `view`, of which up to `reach` were read."""
        self.views.shared.note(view.log, entries)
        try:
            advanced = self.advance(view, entries)
        except CheckpointCollected:
            # An erasure removed partitions of which the view holds rows. The newest checkpoint is above the erasure.
            return self._jump(self._empty(), view.slot + len(entries))
        return advanced if len(entries) < reach else self._jump(advanced, view.slot + reach)

    def _jump(self, view: LogView[S], known: int) -> LogView[S]:
        """The newest view, when the head is far from `view`: from the newest root below it. known: an existing slot, or -1."""
        head = checkpoint.find_head(self.fileio, known)
        root = self._newest_root(head)
        if root is not None and root.slot > view.slot:
            view = self._standing_on(root)
        return self.advance(view, self._entries(view.slot))

    def _newest_root(self, slot: int) -> Root | None:
        """The newest usable root at or below a slot."""
        return None if self._passes_over_all else checkpoint.newest_root(self.fileio, slot, self._is_usable)

    def _is_usable(self, root: Root | BrokenRoot) -> bool:
        """Whether a view can use a root: it is readable, and so is all that it names, as far as this process knows."""
        why = root.why if isinstance(root, BrokenRoot) else ""
        if isinstance(root, Root):
            try:
                self.reducer.load(root.payload)
                if self._unusable.isdisjoint(self._objects(root.payload, root.segments)):
                    return True
            except CorruptTable as error:
                why = f"{checkpoint.root_key(root.slot)}: {error}"
        if why and why not in self._unusable:
            self._unusable.add(why)
            logger.warning("The checkpoint of %s at slot %d cannot be read, and is passed over: %s", self.fileio.url, root.slot, why)
        return False

    def _entries(self, after: int, *, until: int | None = None) -> list[Entry]:
        """The entries above a slot. Raises CorruptTable. The error says when a skipped checkpoint could replace the missing entries."""
        try:
            return self.log.read_after(after, until=until, window=checkpoint.TAIL_SLOTS_MAX, looks_beyond=True)
        except CorruptTable as error:
            if not self._unusable:
                raise
            passed = min(self._unusable)
            raise CorruptTable(
                f"{error} The checkpoint that could replace it cannot be read either. Restore one of the two. {passed}"
            ) from error

    def check_absent(self, first: int, slot: int) -> None:
        """Check that no later slot exists. Raises CorruptTable. slot: the requested one, at or above `first`, which is absent."""
        if slot >= 0 and self.fileio.exists(log_key(max(slot, first + 1))):
            raise CorruptTable(absent_slot(first))

    def _objects(self, payload: msgspec.Raw, segments: Sequence[OutcomeSegment]) -> frozenset[str]:
        """Everything that a root names."""
        return self.reducer.objects(payload) | {segment.path for segment in segments}


def _ends_with(view: LogView[Any], entry: Entry) -> bool:
    """Whether an entry is the one of the view's slot, as far as the view knows it."""
    said = {outcome.txn for outcome in view.outcomes.recent if outcome.slot == view.slot}
    return entry.committed_at_ms == view.log.committed_at_ms and said <= {*entry.txns, entry.rollback_of}
