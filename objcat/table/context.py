"""Where a handle stands in a log: at the newest view that it has seen, on a checkpoint that is still there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from objcat.metadata.table_state import Tables
from objcat.timeline.entry import Entry
from objcat.timeline.log_view import LogView, Timeline, reopening

R = TypeVar("R")


class LatestView:
    """The newest view that a handle has seen; it never goes back. Safe for many threads."""

    def __init__(self, timeline: Timeline[Tables], view: LogView[Tables]) -> None:
        self._timeline = timeline
        self._view = view
        self._lock = threading.Lock()

    @property
    def view(self) -> LogView[Tables]:
        """No request."""
        return self._view

    def refresh(self) -> LogView[Tables]:
        """The newest view: one GET when nothing is new."""
        return self.keep(self._timeline.refresh(self._view))

    def keep(self, view: LogView[Tables]) -> LogView[Tables]:
        """Keep a view unless another thread has kept a newer one meanwhile. Returns the one that is kept."""
        with self._lock:
            if view.slot > self._view.slot:
                self._view = view
            return self._view

    def advance(self, entries: Sequence[Entry]) -> None:
        """Fold entries that may overlap what another thread has folded meanwhile."""
        view = self._view
        new = [entry for entry in entries if entry.slot > view.slot]
        if new and new[0].slot == view.slot + 1:
            self.keep(self._timeline.advance(view, new))

    def rebase(self, standing: LogView[Tables]) -> None:
        """Stand on the checkpoint of `standing` when it is newer than the own one, wherever the handle is by now."""
        while True:
            view = self._view
            rebased = self._timeline.rebase(view, standing)
            with self._lock:
                if self._view is view:
                    self._view = rebased
                    return

    def retry_on_new_checkpoint(self, work: Callable[[], R]) -> R:
        """What `work` returns; done again from another checkpoint when the one that the handle stands on was collected meanwhile, or is
        damaged; in the end from the log itself."""
        return reopening(self._timeline, work, lambda: self._stand(self._timeline.open()))

    def _stand(self, opened: LogView[Tables]) -> None:
        """Keep a view that was opened anew, also at the slot of the one that is kept."""
        with self._lock:
            if opened.slot >= self._view.slot:
                self._view = opened
