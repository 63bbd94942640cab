"""A log as of one slot, with what its changes mean: opened, refreshed, looked at as of an earlier slot or time, saved as checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from fileio.contract import Create, OutcomeUnknown, PreconditionFailed, Update, Written
from fileio.store import FileIO
from objcat.common.validation import whole_number
from objcat.errors import CheckpointCollected, CheckpointUnreadable, CorruptTable, InvalidInput
from objcat.timeline import checkpoint
from objcat.timeline.checkpoint import AnyRoot, BrokenRoot, Root, VoidRoot
from objcat.timeline.entry import FORMAT_VERSION, Entry, log_key
from objcat.timeline.error_location import says_where
from objcat.timeline.log import Log, with_changes
from objcat.timeline.log_state import LogState
from objcat.timeline.txn_outcomes import OutcomeSegment, TxnOutcomes

logger = logging.getLogger("objcat.timeline")

S = TypeVar("S")
R = TypeVar("R")

REFRESH_SLOTS_MAX = 64
"""A view that is further behind looks for a newer checkpoint instead of reading every entry."""
TAIL_ENTRIES_MAX = 96
"""Entries that a view keeps, to move to a newer checkpoint without reading them again."""
PUBLISHING_S_MAX = 60.0
"""While a checkpoint is being published, no second one is begun, unless it takes longer than this."""
HINT_PAUSE_S = 1.0


class LogReducer(Protocol[S]):
    """What the changes of a log mean to whoever keeps it: tables, or names. Values of S are immutable and picklable."""

    def begin(self) -> S:
        """The state of an empty log."""

    def advance(self, state: S, entry: Entry, at: Callable[[int], S]) -> S:
        """The state after one more entry. at: the state as of an earlier slot, for an entry that brings it back. Sends no request."""

    def save(self, fileio: FileIO, state: S, folder: str) -> tuple[msgspec.Raw, S]:
        """Write what a checkpoint of the state needs besides its root: immutable objects below `folder`, under names that nobody else uses.

        Objects that the state stands on already are named again, not written again. Returns what the root holds (JSON), and the same
        state, which stands on those objects from now on. Raises CheckpointCollected.
        """

    def load(self, payload: msgspec.Raw) -> S:
        """The state of a root. Sends no request: objects are read when they are needed. Raises CorruptTable.

        Whoever reads an object of the state later and finds it missing raises CheckpointCollected: the caller opens the log again.
        """

    def objects(self, payload: msgspec.Raw) -> frozenset[str]:
        """Paths of all objects that a root's state stands on."""


@dataclass(frozen=True, slots=True)
class LogView(Generic[S]):
    """A log as of `log.slot`: immutable, shareable, picklable. checkpoint: the slot of the root that it was opened from, -1 for none.

    outcomes: of every transaction up to the slot. tail: the newest entries above the checkpoint, without changes that lie beside the log.
    milestone: the view at the newest slot above the checkpoint that may have a root, without a milestone of its own.
    """

    log: LogState
    state: S
    checkpoint: int = -1
    outcomes: TxnOutcomes = field(default_factory=TxnOutcomes, repr=False)
    tail: tuple[Entry, ...] = field(default=(), repr=False)
    milestone: LogView[S] | None = field(default=None, repr=False)

    @property
    def slot(self) -> int:
        return self.log.slot


class Timeline(Generic[S]):
    """One log and what it means. Holds no view: callers do. Safe for many threads."""

    def __init__(self, fileio: FileIO, fold: LogReducer[S]) -> None:
        self.fileio = fileio
        self.fold = fold
        self.log = Log(fileio)
        self._publishing_until_s: float | None = None
        self._failed_at_slot: int | None = None
        self._hinted_s: float | None = None
        self._unusable: set[str] = set()
        self._passes_over_all = False

    # ---- reading

    @says_where
    def open(self) -> LogView[S]:
        """The newest view; of an empty log, one at slot -1.

        A checkpoint is a cache: one that cannot be read is logged once, and passed over for an older one, or for the log itself.
        Costs the hint, a root, the entries above it and one look that finds nothing; O(log n) looks more when the hint is missing or stale.
        Raises UnsupportedFormat, CorruptTable.
        """
        if self._passes_over_all:
            return self.advance(self._empty(), self._entries(-1))
        hint, _ = checkpoint.read_hint(self.fileio)
        if hint is None:
            return self._catch_up(self._empty(), window=1, reach=checkpoint.TAIL_SLOTS_MAX + 1)
        found = checkpoint.read_root(self.fileio, hint.checkpoint)
        if found is None or isinstance(found.root, VoidRoot) or not self._is_usable(found.root) or isinstance(found.root, BrokenRoot):
            known = hint.slot if self.fileio.exists(log_key(hint.slot)) else -1
            return self._jump(self._empty(), known)
        view = self._standing_on(found.root)
        reach = checkpoint.TAIL_SLOTS_MAX + 1
        opened = self._catch_up(view, window=min(reach, hint.slot - view.slot + 1), reach=reach)
        if opened.slot == view.slot:
            # With nothing above a root, its own slot shows that the log reaches as far.
            self.check_checkpoint(view)
        return opened

    def pass_over(self, error: CheckpointCollected) -> None:
        """Stand on no checkpoint from now on that names an object which is gone or damaged. Whoever meets such an error calls this before
        the log is opened again."""
        if error.path and error.path not in self._unusable:
            self._unusable.add(error.path)
            if isinstance(error, CheckpointUnreadable):
                logger.warning("a checkpoint of %s cannot be read, and is passed over: %s", self.fileio.url, error)

    def pass_over_all(self) -> None:
        """Stand on no checkpoint until this process has published one: fold the log itself."""
        self._passes_over_all = True

    @says_where
    def refresh(self, view: LogView[S]) -> LogView[S]:
        """The newest view: one GET when nothing is new. Far behind, it stands on a newer checkpoint than `view`. Raises as `open`."""
        return self._catch_up(view, window=1, reach=REFRESH_SLOTS_MAX)

    @says_where
    def advance(self, view: LogView[S], entries: Sequence[Entry]) -> LogView[S]:
        """The view after further entries, which must follow its slot without a gap.

        Raises CorruptTable for one that does not fit, which names the checkpoint where that is of another log.
        """
        try:
            return self._advanced(view, entries)
        except CorruptTable as error:
            if not 0 <= view.slot == view.checkpoint:
                raise
            self.check_checkpoint(view)
            raise CorruptTable(f"{error}; or else {checkpoint.root_key(view.slot)}, on which it is to follow, is of another log") from error

    def _advanced(self, view: LogView[S], entries: Sequence[Entry]) -> LogView[S]:
        for entry in with_changes(self.fileio, entries):
            kept = entry if entry.side is None else msgspec.structs.replace(entry, changes={})
            view = LogView(
                view.log.advance([entry]),
                self.fold.advance(view.state, entry, partial(self._brought_back, view.log)),
                view.checkpoint,
                view.outcomes.advance([entry]),
                (*view.tail[1 - TAIL_ENTRIES_MAX :], kept),
                view.milestone,
            )
            if entry.slot % checkpoint.SPACING_SLOTS == 0 and entry.slot >= checkpoint.SPACING_SLOTS:
                view = replace(view, milestone=replace(view, milestone=None, tail=()))
        return view

    @says_where
    def at(self, slot: int) -> LogView[S]:
        """The view as of an earlier slot: from the newest checkpoint at or below it.

        Raises InvalidInput when there is no such slot; SnapshotExpired is for the caller to judge.
        """
        whole_number(slot, what="slot", least=None)
        return self._as_of(slot, self._newest_root(slot))

    def _as_of(self, slot: int, root: Root | None) -> LogView[S]:
        """`at`, from a root."""
        view = self._empty() if root is None else self._standing_on(root)
        entries = self._entries(view.slot, until=slot)
        if view.slot + len(entries) < slot or slot < 0:
            self.check_absent(view.slot + len(entries) + 1, slot)
            raise InvalidInput(f"{self.fileio.url} has no slot {slot}: slots go from 0 to {view.slot + len(entries)}")
        return self.advance(view, entries)

    @says_where
    def at_time(self, when_ms: int, newest: LogView[S] | None = None) -> LogView[S]:
        """The view as of the newest commit at or before a time (ms since 1970 UTC), found by O(log n) GETs: commit times increase.

        newest: a view that saves opening the log; later commits are not looked for. Raises InvalidInput when there is no such commit.
        """
        newest = newest or self.open()
        slot = self.slot_at_time(when_ms, newest)
        if slot < 0:
            first = "it is empty" if newest.slot < 0 else "its first commit is later"
            raise InvalidInput(f"the log of {self.fileio.url} has no commit at or before {when_ms} ms since 1970: {first}")
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
                raise CorruptTable(f"{log_key(middle)} is missing although later slots exist: restore it from a backup of the bucket")
            if entry.committed_at_ms <= when_ms:
                low = middle
            else:
                high = middle
        return low

    # ---- checkpoints

    def publish(self, view: LogView[S]) -> LogView[S]:
        """Save the newest slot up to `view.slot` that may have a root as a checkpoint. Returns the same view, standing on it.

        When somebody else has published that slot, theirs is loaded instead. When nobody may any more, or there is nothing to save, the
        view comes back as it is. Raises storage errors; nothing that was saved is used then.
        """
        published = self._publish(view)
        if published.checkpoint > view.checkpoint:
            self._hint(published)
        return published

    def publish_afresh(self, slot: int, renew: Callable[[S, str], S]) -> Root | None:
        """Save a slot that may have a root as a checkpoint whose state `renew` has written anew; None when that slot has a root already.

        renew: given the state and a folder for new objects, the same state standing on objects of its own. Raises as `publish`.
        """
        folder = f"{checkpoint.folder_of(slot)}{self.fileio.env.new_id()}/"
        target = self.at(slot)
        if target.checkpoint == slot:
            return None
        payload, _ = self.fold.save(self.fileio, renew(target.state, folder), folder)
        outcomes = target.outcomes.spilled(self.fileio, folder)
        root = _root_of(target, payload, outcomes)
        match checkpoint.put_root(self.fileio, root, Create()):
            case Written():
                self._hint(LogView(target.log, target.state, slot, outcomes))
                return root
            case OutcomeUnknown(cause):
                raise cause
            case PreconditionFailed():
                own = self._objects(payload, outcomes.segments)
                self.fileio.delete(sorted(path for path in own if path.startswith(folder)))
                return None

    def adopt_checkpoint(self, view: LogView[S], standing: LogView[S]) -> LogView[S]:
        """The same slot as `view`, on the newer checkpoint that `standing` is at; `view` itself when that is not newer, or later.

        From what the view remembers; only when it has forgotten too much, entries are read again.
        """
        if standing.checkpoint <= view.checkpoint or standing.slot > view.slot:
            return view
        entries = [entry for entry in view.tail if entry.slot > standing.slot]
        if len(entries) < view.slot - standing.slot:
            entries = self._entries(standing.slot, until=view.slot)
        return self.advance(standing, entries)

    def after_commit(self, view: LogView[S], keep: Callable[[LogView[S]], None]) -> None:
        """Publish a checkpoint when `view` has folded enough above its own: in the background, best effort, logged.

        To be called by whoever holds a view, after it has grown. Returns at once and never raises. keep: called, perhaps in another thread,
        with a view of a published checkpoint that is not newer than `view`; the holder, whose view may have grown meanwhile, replaces it
        by `rebase(its view, that one)`, so that what it holds above the checkpoint stays small.
        """
        env = self.fileio.env
        if view.milestone is None or view.slot - view.checkpoint < checkpoint.TAIL_SLOTS_MAX:
            return
        if self._failed_at_slot is not None and view.slot < self._failed_at_slot + checkpoint.SPACING_SLOTS:
            return
        if self._publishing_until_s is not None and env.monotonic_s() < self._publishing_until_s:
            return
        self._publishing_until_s = env.monotonic_s() + PUBLISHING_S_MAX
        try:
            env.submit_io(partial(self._publish_quietly, view, keep))
        except RuntimeError as error:
            logger.warning("no checkpoint of %s is published at slot %d, as the process ends: %s", self.fileio.url, view.slot, error)

    def check_checkpoint(self, view: LogView[S]) -> None:
        """Hold the root of a view that is right on its checkpoint against the entry of its slot: for whoever has met what cannot be.

        One GET. Raises CorruptTable that names the root.
        """
        if not 0 <= view.slot == view.checkpoint:
            return
        entry = self.log.read_stub(view.slot)
        said = {outcome.txn for outcome in view.outcomes.recent if outcome.slot == view.slot}
        is_other = entry is not None and (entry.committed_at_ms != view.log.committed_at_ms or not said <= {entry.txn, entry.rollback_of})
        if entry is None or is_other:
            raise CorruptTable(
                f"{checkpoint.root_key(view.slot)} is not of the log below {self.fileio.url}, whose slot {view.slot} "
                f"{'is missing' if entry is None else 'is another one'}: restore log/ and checkpoints/ from one backup of the bucket"
            )

    # ---- how

    def _brought_back(self, log: LogState, slot: int) -> S:
        """The state of an earlier slot, for an entry that follows `log` and brings it back.

        It must not stand on a checkpoint that is being collected, as checkpoints that are published later will stand on it too.
        """
        kept = slot >= log.root_bound or slot in log.pins
        return self._as_of(slot, self._newest_root(slot) if kept else None).state

    def _empty(self) -> LogView[S]:
        return LogView(LogState(), self.fold.begin())

    def _standing_on(self, root: Root) -> LogView[S]:
        return LogView(root.log, self.fold.load(root.payload), root.slot, root.all_outcomes())

    def _catch_up(self, view: LogView[S], *, window: int, reach: int) -> LogView[S]:
        """The newest view, by reading up to `reach` entries one after another, and by jumping when there are more."""
        entries = self.log.read_after(view.slot, until=view.slot + reach, window=window)
        try:
            advanced = self.advance(view, entries)
        except CheckpointCollected:
            # An erasure has forgotten partitions of which the view holds rows: the newest checkpoint stands above that.
            return self._jump(self._empty(), view.slot + len(entries))
        return advanced if len(entries) < reach else self._jump(advanced, view.slot + reach)

    def _jump(self, view: LogView[S], known: int) -> LogView[S]:
        """The newest view, when the head is far from `view`: from the newest root below it. known: a slot that exists, or -1."""
        head = checkpoint.find_head(self.fileio, known)
        root = self._newest_root(head)
        if root is not None and root.slot > view.slot:
            view = self._standing_on(root)
        return self.advance(view, self._entries(view.slot))

    def _newest_root(self, slot: int) -> Root | None:
        """The newest root at or below a slot that is good to stand on."""
        return None if self._passes_over_all else checkpoint.newest_root(self.fileio, slot, self._is_usable)

    def _is_usable(self, root: Root | BrokenRoot) -> bool:
        """Whether a view can stand on a root: it can be read, and so can all that it names, as far as this process knows."""
        why = root.why if isinstance(root, BrokenRoot) else ""
        if isinstance(root, Root):
            try:
                self.fold.load(root.payload)
                if self._unusable.isdisjoint(self._objects(root.payload, root.segments)):
                    return True
            except CorruptTable as error:
                why = f"{checkpoint.root_key(root.slot)}: {error}"
        if why and why not in self._unusable:
            self._unusable.add(why)
            logger.warning("the checkpoint of %s at slot %d cannot be read, and is passed over: %s", self.fileio.url, root.slot, why)
        return False

    def _entries(self, after: int, *, until: int | None = None) -> list[Entry]:
        """The entries above a slot. Raises CorruptTable, which says so where a checkpoint that was passed over could stand for them."""
        try:
            return self.log.read_after(after, until=until, window=checkpoint.TAIL_SLOTS_MAX)
        except CorruptTable as error:
            if not self._unusable:
                raise
            passed = min(self._unusable)
            raise CorruptTable(f"{error}; what stands for it cannot be read either, so restore one of the two: {passed}") from error

    def check_absent(self, first: int, slot: int) -> None:
        """Raises CorruptTable when a slot is absent below others that are there. slot: that was asked for, at or above it."""
        if slot >= 0 and self.fileio.exists(log_key(max(slot, first + 1))):
            raise CorruptTable(f"{log_key(first)} is missing although later slots exist: restore that object from a backup of the bucket")

    def _publish(self, view: LogView[S]) -> LogView[S]:
        """`publish`, without the hint."""
        target = view.milestone
        if target is None or target.slot <= view.checkpoint:
            return view
        found = checkpoint.read_root(self.fileio, target.slot)
        if found is None:
            standing = self._save(target, Create())
        elif isinstance(found.root, VoidRoot) or self._is_usable(found.root):
            standing = self._theirs(target, found.root)
        else:
            # It cannot be read, so it is replaced, unless a collection, or an erasure, has gone beyond it meanwhile: then it becomes void.
            newest = self.refresh(view)
            standing = None if target.slot < newest.log.root_bound else self._save(target, Update(found.version))
        return view if standing is None else self.adopt_checkpoint(view, standing)

    def _theirs(self, target: LogView[S], root: AnyRoot | BrokenRoot) -> LogView[S] | None:
        """The view of a root that somebody else has published at `target.slot`; None when the slot was given up, or the root is damaged."""
        if not isinstance(root, Root) or not self._is_usable(root):
            return None
        if root.log.committed_at_ms != target.log.committed_at_ms:
            raise CorruptTable(
                f"{checkpoint.root_key(root.slot)} is not of the log below {self.fileio.url}: restore log/ and checkpoints/ from one backup"
            )
        return self._standing_on(root)

    def _save(self, target: LogView[S], mode: Create | Update) -> LogView[S] | None:
        """Save a view that is at a slot of a checkpoint. Only what a published root names is used afterwards. mode: of the put of the root,
        which takes the place of none, or of one that cannot be read."""
        if max(target.checkpoint, 0) < target.log.root_bound:
            # What this view stands on may be collected; a root that is published from now on must stand on younger ones only.
            target = self.at(target.slot)
        if target.checkpoint == target.slot:
            return target
        folder = f"{checkpoint.folder_of(target.slot)}{self.fileio.env.new_id()}/"
        saved = self._save_objects(target, folder)
        if saved is None:
            # What the view stands on was collected, deleted by hand, or is damaged. What is there now, or the log itself, says the same.
            target = self.at(target.slot)
            if target.checkpoint == target.slot:
                return target
            saved = self._save_objects(target, folder) or self._write_objects(self._as_of(target.slot, None), folder)
        payload, state, outcomes = saved
        root = _root_of(target, payload, outcomes)
        self.fileio.env.give_way()
        match checkpoint.put_root(self.fileio, root, mode):
            case Written():
                self._passes_over_all = False
                return LogView(target.log, state, target.slot, outcomes)
            case OutcomeUnknown(cause):
                raise cause
            case PreconditionFailed():
                own = self._objects(payload, outcomes.segments)
                self.fileio.delete(sorted(path for path in own if path.startswith(folder)))
                found = checkpoint.read_root(self.fileio, target.slot)
                return None if found is None else self._theirs(target, found.root)

    def _save_objects(self, target: LogView[S], folder: str) -> tuple[msgspec.Raw, S, TxnOutcomes] | None:
        """`_write_objects`; None when something that would be named again is not named by the root that the view stands on any more."""
        try:
            payload, state, outcomes = self._write_objects(target, folder)
        except CheckpointCollected as error:
            self.pass_over(error)
            return None
        again = {path for path in self._objects(payload, outcomes.segments) if not path.startswith(folder)}
        if again:
            found = checkpoint.read_root(self.fileio, target.checkpoint) if target.checkpoint >= 0 else None
            root = None if found is None else found.root
            if not isinstance(root, Root) or not self._is_usable(root) or not again <= self._objects(root.payload, root.segments):
                return None
        return payload, state, outcomes

    def _write_objects(self, target: LogView[S], folder: str) -> tuple[msgspec.Raw, S, TxnOutcomes]:
        """What a root of the view holds, and what then stands on it. Raises CheckpointCollected."""
        payload, state = self.fold.save(self.fileio, target.state, folder)
        return payload, state, target.outcomes.spilled(self.fileio, folder)

    def _objects(self, payload: msgspec.Raw, segments: Sequence[OutcomeSegment]) -> frozenset[str]:
        """Everything that a root names."""
        return self.fold.objects(payload) | {segment.path for segment in segments}

    def _publish_quietly(self, view: LogView[S], keep: Callable[[LogView[S]], None]) -> None:
        """`publish` in the background: a commit that has succeeded stays a success whatever happens here."""
        try:
            self.fileio.env.give_way()
            published = self._publish(view)
            self._failed_at_slot = view.slot if published.checkpoint == view.checkpoint else None
            if published.checkpoint > view.checkpoint:
                keep(published)
                self._hint(published)
        except Exception as error:  # noqa: BLE001  (a fold is not ours, and nobody waits for this)
            self._failed_at_slot = view.slot
            logger.warning("no checkpoint of %s was published at slot %d: %r", self.fileio.url, view.slot, error)
        finally:
            self._publishing_until_s = None

    def _hint(self, view: LogView[S]) -> None:
        """Advance the hint, at most once a second: a store may refuse to write one key more often."""
        env = self.fileio.env
        if self._hinted_s is not None:
            env.sleep(max(0.0, self._hinted_s + HINT_PAUSE_S - env.monotonic_s()))
        self._hinted_s = env.monotonic_s()
        env.give_way()
        checkpoint.advance_hint(self.fileio, slot=view.slot, checkpoint=view.checkpoint)


def _root_of(view: LogView[Any], payload: msgspec.Raw, outcomes: TxnOutcomes) -> Root:
    return Root(
        format=FORMAT_VERSION,
        slot=view.slot,
        log=view.log,
        features=dict(view.log.features),
        payload=payload,
        outcomes=outcomes.recent,
        segments=outcomes.segments,
    )
