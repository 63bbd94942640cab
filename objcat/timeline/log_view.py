"""`Timeline`: one log, with what its writers publish beside the commits: checkpoints and hints, so that others open it quickly.

It extends `TimelineReader`, which opens, refreshes and rewinds views. Publishing is best effort: a commit that happened stays a success.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import msgspec

from fileio.contract import Create, OutcomeUnknown, PreconditionFailed, Update, Written
from fileio.store import FileIO
from objcat.errors import CheckpointCollected, CorruptTable
from objcat.timeline import checkpoint
from objcat.timeline.checkpoint import AnyRoot, BrokenRoot, Root, TurnRequest, VoidRoot
from objcat.timeline.entry import FORMAT_VERSION, WRITER_FEATURES
from objcat.timeline.hints import Hints, hint_of, small
from objcat.timeline.log_reducer import LogReducer
from objcat.timeline.timeline_reader import REFRESH_SLOTS_MAX, TAIL_ENTRIES_MAX, LogView, S, TimelineReader
from objcat.timeline.txn_outcomes import TxnOutcomes

__all__ = ["PUBLISHING_S_MAX", "REFRESH_SLOTS_MAX", "TAIL_ENTRIES_MAX", "LogView", "R", "Timeline"]

logger = logging.getLogger("objcat.timeline")

R = TypeVar("R")

PUBLISHING_S_MAX = 60.0
"""Seconds. While a checkpoint is being published, no second one begins, unless publishing takes longer than this."""


class Timeline(TimelineReader[S]):
    """A log that is read and written. Callers hold the views. Safe for many threads. Arguments are those of `TimelineReader`."""

    def __init__(self, fileio: FileIO, reducer: LogReducer[S], hints: Hints | None = None) -> None:
        super().__init__(fileio, reducer, hints)
        self._committed: LogView[S] | None = None
        self._published: LogView[S] | None = None
        self._is_hinting = False
        self._publishing = self.views.shared.publishing

    def publish(self, view: LogView[S]) -> LogView[S]:
        """Save the newest slot up to `view.slot` that may have a root as a checkpoint. Returns the same view, based on it.

        If another process has published that slot, its checkpoint is loaded instead. If nobody may publish it any more, or there is nothing
        to save, the view comes back unchanged. Raises storage errors; then nothing that was saved is used.
        """
        published = self._publish(view)
        if published.checkpoint > view.checkpoint:
            self.publish_hint(published)
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
                self.publish_hint(LogView(target.log, target.state, slot, outcomes, root=small(root)))
                return root
            case OutcomeUnknown(cause):
                raise cause
            case PreconditionFailed():
                own = self._objects(payload, outcomes.segments)
                self.fileio.delete(sorted(path for path in own if path.startswith(folder)))
                return None

    def publish_hint(self, view: LogView[S]) -> None:
        """Put a hint of a view, unless a newer one is there. Best effort: waits up to a second, logged, never raises."""
        try:
            self._hint(view)
        except Exception as error:  # noqa: BLE001  (a reducer is not ours, and the hint is only advice)
            logger.warning("no hint of %s was put at slot %d: %r", self.fileio.url, view.slot, error)

    def after_commit(self, view: LogView[S], keep: Callable[[LogView[S]], None]) -> None:
        """Publish a checkpoint if `view` is far enough above its own, or a hint: in the background, best effort, logged.

        The holder of a view calls this after the view has grown. Returns at once and never raises.

        Args:
            keep: Called, perhaps in another thread, with a view of a published checkpoint that is not newer than `view`. The holder, whose
                view may have grown meanwhile, replaces it by `adopt_checkpoint(its view, that one)`, so that little stays above the
                checkpoint.
        """
        env = self.fileio.env
        if self._committed is None or self._committed.slot < view.slot:
            self._committed = view
        publishes = view.milestone is not None and view.slot - view.checkpoint >= checkpoint.TAIL_SLOTS_MAX
        if self._publishing.failed_at_slot is not None and view.slot < self._publishing.failed_at_slot + checkpoint.SPACING_SLOTS:
            publishes = False
        if self._publishing.until_s is not None and env.monotonic_s() < self._publishing.until_s:
            publishes = False
        try:
            if publishes:
                self._publishing.until_s = env.monotonic_s() + PUBLISHING_S_MAX
                env.submit_io(partial(self._publish_quietly, view, keep))
            if self._hints.is_due(view.slot) and not self._is_hinting:
                self._is_hinting = True
                env.submit_io(partial(self._hint_quietly, view))
        except RuntimeError as error:
            logger.warning("The process ends, so nothing of %s is published at slot %d: %s", self.fileio.url, view.slot, error)

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
                return LogView(target.log, state, target.slot, outcomes, root=small(root))
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

    def _publish_quietly(self, view: LogView[S], keep: Callable[[LogView[S]], None]) -> None:
        """`publish` in the background: a successful commit stays a success whatever happens here."""
        try:
            self.fileio.env.give_way()
            published = self._publish(view)
            self._publishing.failed_at_slot = view.slot if published.checkpoint == view.checkpoint else None
            if published.checkpoint > view.checkpoint:
                self._published = published
                keep(published)
                self._look_for_turns(view)
                if not self._is_hinting:
                    self._hint(published)
        except Exception as error:  # noqa: BLE001  (a reducer is not ours, and nobody waits for this)
            self._publishing.failed_at_slot = view.slot
            logger.warning("no checkpoint of %s was published at slot %d: %r", self.fileio.url, view.slot, error)
        finally:
            self._publishing.until_s = None

    def _look_for_turns(self, view: LogView[S]) -> None:
        """See at once who asks for a turn. A hint of this process may have to wait, or may not be due."""
        hint, _ = self.read_hint()
        self._notice(() if hint is None else hint.turns, view)

    def _notice(self, requests: Sequence[TurnRequest], view: LogView[S]) -> tuple[TurnRequest, ...]:
        return self.turns.notice(requests, slot=view.slot, outcomes=view.outcomes)

    def _hint_quietly(self, view: LogView[S]) -> None:
        """Advance the hint in the background, to what has been committed and published until it is put.

        A few at once wait for their second. The others put none, and their logs have one a few slots later: others need the threads.
        """
        env = self.fileio.env
        try:
            with env.idle_wait() if self._hints.pause_s(env.monotonic_s()) else nullcontext(True) as may_wait:
                if may_wait:
                    self.publish_hint(view)
        finally:
            self._is_hinting = False

    def _hint(self, view: LogView[S]) -> None:
        """Advance the hint to a view, at most once a second, or to a newer one that is there until then."""
        env = self.fileio.env
        pause_s = self._hints.pause_s(env.monotonic_s())
        if pause_s:
            env.sleep(pause_s)
        env.give_way()
        if self._committed is not None and self._committed.slot > view.slot:
            view = self.adopt_checkpoint(self._committed, view)
        if self._published is not None:
            view = self.adopt_checkpoint(view, self._published)
        if max(view.checkpoint, 0) < view.log.root_bound:
            return  # What it would carry may have been erased.
        above = view.slot - view.checkpoint
        # Entries of newer writers may have parts that this client would leave out.
        is_known = above <= len(view.tail) and not view.log.writer_features.keys() - WRITER_FEATURES
        entries = view.tail[len(view.tail) - above :] if is_known else None
        hint = hint_of(view.root, entries, slot=view.slot, checkpoint=view.checkpoint)
        if hint is not None:
            self._hints.put(self.fileio, hint, partial(self._notice, view=view))


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
