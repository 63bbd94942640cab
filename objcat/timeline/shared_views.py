"""`SharedViews`: the threads of one process share the newest view of a log, so that each entry is read and replayed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from fileio.env import map_io
from fileio.store import FileIO
from objcat.timeline.entry import Entry
from objcat.timeline.log import Log
from objcat.timeline.log_state import LogState
from objcat.timeline.process_log import ProcessLog, process_log


class _View(Protocol):
    """A `LogView`."""

    @property
    def log(self) -> LogState: ...

    @property
    def slot(self) -> int: ...

    @property
    def checkpoint(self) -> int: ...


V = TypeVar("V", bound=_View)


class SharedViews:
    """The views of one log by reducers of one kind, within this process. Safe for many threads.

    kind: of reducer. Reducers of one kind make equal views of equal entries.
    """

    def __init__(self, fileio: FileIO, kind: type) -> None:
        self._fileio = fileio
        self._kind: Any = kind
        self.shared: ProcessLog = process_log(fileio)
        self._passed_over: set[int] = set()
        """Checkpoints whose views are not taken from other threads, which may still offer them."""

    def checked(self, view: V) -> tuple[V, bool]:
        """The newest view of this process, and whether nothing is above it. `view` itself, and False, when there is no newer one.

        Sends nothing in that case, else two GETs at once: whether its slot is still there, and whether there is another.
        """
        newer = self._newer(view)
        if newer is view:
            return view, False
        there, above = map_io(self._fileio.env, Log(self._fileio).read_stub, (newer.slot, newer.slot + 1))
        if there is None or there.committed_at_ms != newer.log.committed_at_ms:
            self.shared.forget()
            return view, False
        return newer, above is None

    def catch_up(self, view: V, entries: Sequence[Entry], advance: Callable[[V, Sequence[Entry]], V]) -> V:
        """The view after further entries, and after those that other threads have replayed. One thread at a time replays.

        Args:
            entries: Up to a commit of this process. They may begin below the view. With a gap above it, nothing is replayed.
            advance: Replays entries. Its errors are raised.
        """
        with self.replaying():
            view = self._newer(view)
            new = [entry for entry in entries if entry.slot > view.slot]
            if new and new[0].slot == view.slot + 1:
                view = advance(view, new)
            self.offer(view)
            return view

    def replaying(self) -> AbstractContextManager[object]:
        """A block that replays entries. Other threads wait for it, and find done what it did."""
        return self.shared.replays.turn()

    def offer(self, view: V) -> None:
        """Share a view, unless another thread has a newer one."""
        self.shared.offer_view(self._kind, view)

    def pass_over(self) -> None:
        """Share no view until the next one is offered. From now on take none that stands on the checkpoint of the one that was shared.

        Another thread that has not met the damage may offer such a view again and again.
        """
        newest = self.shared.withdraw_view(self._kind)
        if newest is not None and newest.checkpoint >= 0:
            self._passed_over.add(newest.checkpoint)

    def _newer(self, view: V) -> V:
        """The newest view of this process if it is newer and can be used, else `view`."""
        newer: V = self.shared.newer_view(self._kind, view)
        return view if newer.checkpoint in self._passed_over else newer
