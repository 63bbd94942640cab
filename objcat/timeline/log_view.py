"""`Timeline` and `LogView`: a log as of one slot, with the state that its entries replay to.

A `Timeline` opens, refreshes and rewinds views, and publishes checkpoints. A `LogReducer` gives the entries their meaning: tables, or names
of a catalog.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from fileio.contract import Create, OutcomeUnknown, PreconditionFailed, Update, Written
from fileio.store import FileIO
from objcat.common.validation import whole_number
from objcat.errors import CheckpointCollected, CheckpointUnreadable, CorruptTable, InvalidInput
from objcat.timeline import checkpoint
from objcat.timeline.checkpoint import AnyRoot, BrokenRoot, Root, VoidRoot
from objcat.timeline.entry import FORMAT_VERSION, Entry, log_key
from objcat.timeline.error_location import says_where
from objcat.timeline.json_objects import RESTORE
from objcat.timeline.log import Log, with_changes
from objcat.timeline.log_reducer import LogReducer
from objcat.timeline.log_state import LogState
from objcat.timeline.turns import Turns
from objcat.timeline.txn_outcomes import OutcomeSegment, TxnOutcomes

logger = logging.getLogger("objcat.timeline")

S = TypeVar("S")
R = TypeVar("R")

REFRESH_SLOTS_MAX = 64
"""A view that is further behind looks for a newer checkpoint instead of reading every entry."""
TAIL_ENTRIES_MAX = 96
"""Entries that a view remembers, to move to a newer checkpoint without reading them again."""
PUBLISHING_S_MAX = 60.0
"""Seconds. While a checkpoint is being published, no second one begins, unless publishing takes longer than this."""


@dataclass(frozen=True, slots=True)
class LogView(Generic[S]):
    """A log as of `log.slot`: immutable, shareable, picklable.

    Args:
        checkpoint: The slot of the root that it was opened from, -1 for none.
        outcomes: Of every transaction up to the slot.
        tail: The newest entries above the checkpoint, without changes that are in side objects.
        milestone: The view at the newest slot above the checkpoint that may have a root. It has no milestone of its own.
    """

    log: LogState
    state: S
    checkpoint: int = -1
    outcomes: TxnOutcomes = field(default_factory=TxnOutcomes, repr=False)
    tail: tuple[Entry, ...] = field(default=(), repr=False)
    milestone: LogView[S] | None = field(default=None, repr=False)

    @property
    def slot(self) -> int:
        """The slot of the view."""
        return self.log.slot


class Timeline(Generic[S]):
    """One log and what it means. Holds no view: callers do. Safe for many threads."""

    def __init__(self, fileio: FileIO, reducer: LogReducer[S]) -> None:
        self.fileio = fileio
        self.reducer = reducer
        self.log = Log(fileio)
        self.turns = Turns(fileio)
        self._publishing_until_s: float | None = None
        self._failed_at_slot: int | None = None
        self._hint_writer = checkpoint.HintWriter(fileio)
        self._unusable: set[str] = set()
        self._passes_over_all = False

    # ---- reading

    @says_where
    def open(self) -> LogView[S]:
        """The newest view. For an empty log, a view at slot -1.

        A checkpoint is a cache. An unreadable one is logged once, and an older one or the log itself is used instead.

        Costs the hint, a root, the entries above it, and one request that finds nothing. O(log n) requests more if the hint is missing or
        stale. Raises UnsupportedFormat, CorruptTable.
        """
        if self._passes_over_all:
            return self.advance(self._empty(), self._entries(-1))
        hint, _ = checkpoint.read_hint(self.fileio)
        if hint is None:
            return self._catch_up(self._empty(), window=1, reach=checkpoint.TAIL_SLOTS_MAX + 1)
        opened = self._open_at(hint)
        self.turns.notice(hint.turns, slot=opened.slot, outcomes=opened.outcomes)
        return opened

    def _open_at(self, hint: checkpoint.Hint) -> LogView[S]:
        """The newest view, from where a hint says that the log is."""
        found = checkpoint.read_root(self.fileio, hint.checkpoint)
        if found is None or isinstance(found.root, VoidRoot) or not self._is_usable(found.root) or isinstance(found.root, BrokenRoot):
            known = hint.slot if self.fileio.exists(log_key(hint.slot)) else -1
            return self._jump(self._empty(), known)
        view = self._standing_on(found.root)
        reach = checkpoint.TAIL_SLOTS_MAX + 1
        opened = self._catch_up(view, window=min(reach, hint.slot - view.slot + 1), reach=reach)
        if opened.slot == view.slot:
            # With nothing above the root, its own slot shows that the log reaches that far.
            self.check_checkpoint(view)
        return opened

    def pass_over(self, error: CheckpointCollected) -> None:
        """From now on use no checkpoint that names an object which is gone or damaged.

        Call this on such an error, before you open the log again.
        """
        if error.path and error.path not in self._unusable:
            self._unusable.add(error.path)
            if isinstance(error, CheckpointUnreadable):
                logger.warning("A checkpoint of %s cannot be read, and is passed over: %s", self.fileio.url, error)

    def pass_over_all(self) -> None:
        """Use no checkpoint until this process has published one: replay the log itself."""
        self._passes_over_all = True

    @says_where
    def refresh(self, view: LogView[S]) -> LogView[S]:
        """The newest view. One GET when nothing is new. Far behind, it begins at a newer checkpoint than `view`. Raises as `open`."""
        return self._catch_up(view, window=1, reach=REFRESH_SLOTS_MAX)

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
                raise CorruptTable(f"{log_key(middle)} is missing although later slots exist. {RESTORE}")
            if entry.committed_at_ms <= when_ms:
                low = middle
            else:
                high = middle
        return low

    # ---- checkpoints

    def publish(self, view: LogView[S]) -> LogView[S]:
        """Save the newest slot up to `view.slot` that may have a root as a checkpoint. Returns the same view, based on it.

        If another process has published that slot, its checkpoint is loaded instead. If nobody may publish it any more, or there is nothing
        to save, the view comes back unchanged. Raises storage errors; then nothing that was saved is used.
        """
        published = self._publish(view)
        if published.checkpoint > view.checkpoint:
            self._hint(published, view)
        return published

    def publish_afresh(self, slot: int, renew: Callable[[S, str], S]) -> Root | None:
        """Save a slot as a checkpoint whose objects are all written again. None when that slot has a root.

        Raises as `publish`.

        Args:
            slot: A slot that may have a root.
            renew: From the state and a folder for new objects, returns the same state on objects of its own.
        """
        folder = f"{checkpoint.folder_of(slot)}{self.fileio.env.new_id()}/"
        target = self.at(slot)
        if target.checkpoint == slot:
            return None
        payload, _ = self.reducer.save(self.fileio, renew(target.state, folder), folder)
        outcomes = target.outcomes.spilled(self.fileio, folder)
        root = _root_of(target, payload, outcomes)
        match checkpoint.put_root(self.fileio, root, Create()):
            case Written():
                self._hint(LogView(target.log, target.state, slot, outcomes), target)
                return root
            case OutcomeUnknown(cause):
                raise cause
            case PreconditionFailed():
                own = self._objects(payload, outcomes.segments)
                self.fileio.delete(sorted(path for path in own if path.startswith(folder)))
                return None

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

    def after_commit(self, view: LogView[S], keep: Callable[[LogView[S]], None]) -> None:
        """Publish a checkpoint if `view` is far enough above its own: in the background, best effort, logged.

        The holder of a view calls this after the view has grown. Returns at once and never raises.

        Args:
            keep: Called, perhaps in another thread, with a view of a published checkpoint that is not newer than `view`. The holder, whose
                view may have grown meanwhile, replaces it by `adopt_checkpoint(its view, that one)`, so that little stays above the
                checkpoint.
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
            logger.warning("The process ends, so no checkpoint of %s is published at slot %d: %s", self.fileio.url, view.slot, error)

    def check_checkpoint(self, view: LogView[S]) -> None:
        """Compare the root of a view that is right on its checkpoint with the entry of its slot. Called after a contradiction.

        One GET. Raises CorruptTable that names the root.
        """
        if not 0 <= view.slot == view.checkpoint:
            return
        entry = self.log.read_stub(view.slot)
        said = {outcome.txn for outcome in view.outcomes.recent if outcome.slot == view.slot}
        is_other = entry is not None and (entry.committed_at_ms != view.log.committed_at_ms or not said <= {entry.txn, entry.rollback_of})
        if entry is None or is_other:
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
        return LogView(root.log, self.reducer.load(root.payload), root.slot, root.all_outcomes())

    def _catch_up(self, view: LogView[S], *, window: int, reach: int) -> LogView[S]:
        """The newest view: read up to `reach` entries in order, and jump when there are more."""
        entries = self.log.read_after(view.slot, until=view.slot + reach, window=window)
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
            return self.log.read_after(after, until=until, window=checkpoint.TAIL_SLOTS_MAX)
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
            raise CorruptTable(f"{log_key(first)} is missing although later slots exist. {RESTORE}")

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
            # It is unreadable, so it is replaced, unless an expiry or an erasure has gone beyond it meanwhile: then it becomes void.
            newest = self.refresh(view)
            standing = None if target.slot < newest.log.root_bound else self._save(target, Update(found.version))
        return view if standing is None else self.adopt_checkpoint(view, standing)

    def _theirs(self, target: LogView[S], root: AnyRoot | BrokenRoot) -> LogView[S] | None:
        """The view of a root that another process published at `target.slot`. None when the slot is void, or the root is damaged."""
        if not isinstance(root, Root) or not self._is_usable(root):
            return None
        if root.log.committed_at_ms != target.log.committed_at_ms:
            raise CorruptTable(
                f"{checkpoint.root_key(root.slot)} does not belong to the log below {self.fileio.url}. "
                "Restore log/ and checkpoints/ from one backup of the bucket."
            )
        return self._standing_on(root)

    def _save(self, target: LogView[S], mode: Create | Update) -> LogView[S] | None:
        """Save a view that is at a slot of a checkpoint. Only what a published root names is used afterwards.

        mode: of the put of the root, which replaces none, or an unreadable one.
        """
        if max(target.checkpoint, 0) < target.log.root_bound:
            # The objects of this view may be deleted. A root that is published from now on must use younger ones only.
            target = self.at(target.slot)
        if target.checkpoint == target.slot:
            return target
        folder = f"{checkpoint.folder_of(target.slot)}{self.fileio.env.new_id()}/"
        saved = self._save_objects(target, folder)
        if saved is None:
            # The objects of the view were deleted or are damaged. What is there now, or the log itself, says the same.
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
        """`_write_objects`. None when an object that would be named again is no longer named by the root of the view."""
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
        """What a root of the view holds, and the state and outcomes that use it. Raises CheckpointCollected."""
        payload, state = self.reducer.save(self.fileio, target.state, folder)
        return payload, state, target.outcomes.spilled(self.fileio, folder)

    def _objects(self, payload: msgspec.Raw, segments: Sequence[OutcomeSegment]) -> frozenset[str]:
        """Everything that a root names."""
        return self.reducer.objects(payload) | {segment.path for segment in segments}

    def _publish_quietly(self, view: LogView[S], keep: Callable[[LogView[S]], None]) -> None:
        """`publish` in the background: a successful commit stays a success whatever happens here."""
        try:
            self.fileio.env.give_way()
            published = self._publish(view)
            self._failed_at_slot = view.slot if published.checkpoint == view.checkpoint else None
            if published.checkpoint > view.checkpoint:
                keep(published)
                self._hint(published, view)
        except Exception as error:  # noqa: BLE001  (a reducer is not ours, and nobody waits for this)
            self._failed_at_slot = view.slot
            logger.warning("no checkpoint of %s was published at slot %d: %r", self.fileio.url, view.slot, error)
        finally:
            self._publishing_until_s = None

    def _hint(self, published: LogView[S], view: LogView[S]) -> None:
        """Advance the hint, and see who asks for a turn. view: which knows the outcomes that are not in segments yet."""
        notice = partial(self.turns.notice, slot=view.slot, outcomes=view.outcomes)
        self._hint_writer.advance(published.slot, published.checkpoint, notice)


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
