"""`LogReducer`: what replays the entries of a log into a state. Tables and the catalog each have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from fileio.store import FileIO
from objcat.timeline.entry import Entry

S = TypeVar("S")


class LogReducer(Protocol[S]):
    """Replays the entries of a log to a state: of tables, or of names. Values of S are immutable and picklable."""

    def begin(self) -> S:
        """The state of an empty log."""

    def advance(self, state: S, entry: Entry, at: Callable[[int], S]) -> S:
        """The state after one more entry. Sends no request.

        Args:
            at: The state as of an earlier slot, for an entry that restores it.
        """

    def save(self, fileio: FileIO, state: S, folder: str) -> tuple[msgspec.Raw, S]:
        """Write what a checkpoint of the state needs besides its root. These are immutable objects below `folder`, with unique names.

        Objects that the state already uses are named again, not written again.

        Returns:
            What the root holds (JSON), and the same state, which now uses these objects.

        Raises:
            CheckpointCollected: An object of the state is gone.
        """

    def load(self, payload: msgspec.Raw) -> S:
        """The state of a root. Sends no request: objects are read when they are needed. Raises CorruptTable.

        A later read of a missing object raises CheckpointCollected, and the caller opens the log again.
        """

    def objects(self, payload: msgspec.Raw) -> frozenset[str]:
        """Paths of all objects that a root's state uses."""
