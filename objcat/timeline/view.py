"""A log as of one slot, with what its changes mean: opened, refreshed, and looked at as of an earlier slot or time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from fileio.store import FileIO
from objcat.timeline.entry import Entry
from objcat.timeline.log import Log
from objcat.timeline.side import with_changes
from objcat.timeline.state import LogState

S = TypeVar("S")


class Fold(Protocol[S]):
    """What the changes of a log mean to whoever keeps it: tables, or names. Values of S are immutable and picklable."""

    def begin(self) -> S:
        """The state of an empty log."""

    def advance(self, state: S, entry: Entry, at: Callable[[int], S]) -> S:
        """The state after one more entry. at: the state as of an earlier slot, for an entry that brings it back. Sends no request."""

    def save(self, fileio: FileIO, state: S, folder: str) -> tuple[msgspec.Raw, S]:
        """Write what a checkpoint of the state needs besides its root: immutable objects below `folder`, under names that nobody else uses.

        Objects that the state stands on already are named again, not written again. Returns what the root holds (JSON), and the same
        state, which stands on those objects from now on.
        """

    def load(self, payload: msgspec.Raw) -> S:
        """The state of a root. Sends no request: objects are read when they are needed. Raises CorruptTable."""

    def objects(self, payload: msgspec.Raw) -> frozenset[str]:
        """Paths of all objects that a root's state stands on."""


@dataclass(frozen=True, slots=True)
class View(Generic[S]):
    """A log as of `log.slot`: immutable, shareable, picklable. checkpoint: the slot of the root that it was opened from, -1 for none."""

    log: LogState
    state: S
    checkpoint: int = -1

    @property
    def slot(self) -> int:
        return self.log.slot


class Timeline(Generic[S]):
    """One log and what it means. Holds no view: callers do. Safe for many threads."""

    def __init__(self, fileio: FileIO, fold: Fold[S]) -> None:
        self.fileio = fileio
        self.log = Log(fileio)
        self._fold = fold

    def open(self) -> View[S]:
        """The newest view; of an empty log, one at slot -1."""
        return self.refresh(View(LogState(), self._fold.begin()))

    def refresh(self, view: View[S]) -> View[S]:
        """The newest view: one GET when nothing is new."""
        return self.advance(view, self.log.read_after(view.slot))

    def advance(self, view: View[S], entries: Sequence[Entry]) -> View[S]:
        """The view after further entries, which must follow its slot without a gap."""
        state = view.state
        for entry in with_changes(self.fileio, entries):
            state = self._fold.advance(state, entry, lambda slot: self.at(slot).state)
        return View(view.log.advance(entries), state, view.checkpoint)

    def at(self, slot: int) -> View[S]:
        """The view as of an earlier slot. Raises InvalidInput when there is no such slot, SnapshotExpired is for the caller to judge."""
        entries = self.log.read_after(-1, until=slot)
        return self.advance(View(LogState(), self._fold.begin()), entries)
