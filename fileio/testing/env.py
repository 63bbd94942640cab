"""`FakeEnv`: an `Env` whose time passes only on sleep, and which behaves the same on every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from fileio.env import MEMORY_BYTES, done_at_once

T = TypeVar("T")
R = TypeVar("R")


class FakeEnv:
    """Virtual time, seeded randomness, and work done at once in the calling thread. For one thread only.

    Args:
        seed: The source of random numbers and identifiers. Two actors of one test need different seeds, or their identifiers are equal.
        now_ms: The wall clock at the start, in ms since 1970 UTC.
    """

    def __init__(self, seed: int = 0, *, now_ms: int = 1_700_000_000_000) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._began_ms = now_ms
        self._elapsed_s = 0.0
        self._ids = 0
        self.sleeps_s: list[float] = []
        """Every pause, in order, in seconds."""
        self.repeated: list[Callable[[], None]] = []
        """The functions of `repeat`. Only the test calls them."""

    @property
    def parallelism(self) -> int:
        """Always 1."""
        return 1

    @property
    def memory_bytes(self) -> int:
        """The default of `SystemEnv`."""
        return MEMORY_BYTES

    def now_ms(self) -> int:
        """The start plus the time slept."""
        return self._began_ms + int(self._elapsed_s * 1000)

    def monotonic_s(self) -> float:
        """The time slept."""
        return self._elapsed_s

    def sleep(self, seconds: float) -> None:
        """Advance the time at once, and note the pause in `sleeps_s`."""
        self.sleeps_s.append(seconds)
        self._elapsed_s += seconds

    def advance(self, seconds: float) -> None:
        """Let time pass without a pause of the code under test."""
        self._elapsed_s += seconds

    def random(self) -> float:
        """From the seed."""
        return self._random.random()

    def new_id(self) -> str:
        """The seed and a counter."""
        self._ids += 1
        return f"{self._seed & 0xFFFFFFFF:08x}{self._ids:08x}"

    def submit(self, function: Callable[[], R], *, idle: bool = False) -> Future[R]:  # noqa: ARG002 - nothing runs in parallel
        """Runs here at once."""
        return done_at_once(function)

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
        """Runs here at once."""
        return done_at_once(function)

    def idle_wait(self) -> AbstractContextManager[bool]:
        """Time passes at once, so there is always a place."""
        return nullcontext(True)

    def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:  # noqa: ARG002
        """Holds the function in `repeated` until it is stopped. The test calls it."""
        self.repeated.append(function)
        return lambda: self.repeated.remove(function) if function in self.repeated else None

    def urgent(self) -> AbstractContextManager[None]:
        """Nothing runs in parallel."""
        return nullcontext()

    def give_way(self) -> None:
        """Nothing runs in parallel."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Runs here at once."""
        return iter([function(item) for item in items])


__all__ = ["FakeEnv"]
