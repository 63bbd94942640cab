"""Where the tasks of a service run: in this process, or on workers that somebody else has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from fileio.store import FileIO
from objcat.common.progress import shown_progress
from objcat.tasks.model import WriteResult

T = TypeVar("T")

Advance = Callable[[int], None]
"""Is told of every file group that is done."""


class Workers(Protocol):
    """Runs the tasks of services, each for itself.

    at_once: how many tasks it runs beside one another; work is divided into a few times as many, where it has parts enough.
    """

    at_once: int

    def run(self, function: Callable[[FileIO, T, Advance], WriteResult], tasks: Sequence[T], *, service: str, groups: int) -> WriteResult:
        """Run a function of a module over every task; the files in the order of the tasks. Raises what a task raised, after all have ended.

        service: for people. groups: how many file groups the tasks have together.
        """


class LocalWorkers:
    """This process: one task after the other, each on all threads."""

    at_once = 1

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio

    def run(self, function: Callable[[FileIO, T, Advance], WriteResult], tasks: Sequence[T], *, service: str, groups: int) -> WriteResult:
        """As of `Workers`."""
        with shown_progress(self._fileio.env, f"objcat: {service}", groups, unit="file groups") as advance:
            return sum((function(self._fileio, task, advance) for task in tasks), WriteResult())
