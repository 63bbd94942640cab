"""Where the tasks of a service run: in this process, or on the workers of an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from fileio.store import FileIO
from objcat.common.progress import shown_progress
from objcat.tasks.model import WriteResult

T = TypeVar("T")

Advance = Callable[[int], None]
"""Called with the number of file groups that are done."""


class Workers(Protocol):
    """Runs the tasks of services independently. `at_once`: tasks that run in parallel; work is split into a few times as many."""

    at_once: int

    def run(self, function: Callable[[FileIO, T, Advance], WriteResult], tasks: Sequence[T], *, service: str, groups: int) -> WriteResult:
        """Run a function of a module over every task; returns the files in the order of the tasks.

        Raises what a task raised, after all have ended.

        Args:
            service: its name, for people.
            groups: how many file groups the tasks have together.
        """


class LocalWorkers:
    """This process: one task after the other, each on all threads."""

    at_once = 1

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio

    def run(self, function: Callable[[FileIO, T, Advance], WriteResult], tasks: Sequence[T], *, service: str, groups: int) -> WriteResult:
        """See `Workers.run`."""
        with shown_progress(self._fileio.env, f"objcat: {service}", groups, unit="file groups") as advance:
            return sum((function(self._fileio, task, advance) for task in tasks), WriteResult())
