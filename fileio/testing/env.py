"""An Env in which time passes only when somebody sleeps, and which answers the same on every run."""

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
    """Virtual time, a seeded source of randomness, and work done at once in the calling thread.

    seed: gives the random numbers and the identifiers; two actors of one test need different seeds, or their identifiers are equal.
    now_ms: wall clock at the beginning, milliseconds since 1970 UTC. Not for use by several threads.
    """

    def __init__(self, seed: int = 0, *, now_ms: int = 1_700_000_000_000) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._began_ms = now_ms
        self._elapsed_s = 0.0
        self._ids = 0
        self.sleeps_s: list[float] = []
        """Every pause that was asked for, in order, seconds."""
        self.repeated: list[Callable[[], None]] = []
        """What is to be called again and again; nobody does but the test."""

    @property
    def parallelism(self) -> int:
        return 1

    @property
    def memory_bytes(self) -> int:
        return MEMORY_BYTES

    def now_ms(self) -> int:
        return self._began_ms + int(self._elapsed_s * 1000)

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def sleep(self, seconds: float) -> None:
        self.sleeps_s.append(seconds)
        self._elapsed_s += seconds

    def advance(self, seconds: float) -> None:
        """Let time pass without a pause of the code under test."""
        self._elapsed_s += seconds

    def random(self) -> float:
        return self._random.random()

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._seed & 0xFFFFFFFF:08x}{self._ids:08x}"

    def submit(self, function: Callable[[], R], *, idle: bool = False) -> Future[R]:  # noqa: ARG002 - nothing runs beside anything
        return done_at_once(function)

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
        return done_at_once(function)

    def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:  # noqa: ARG002
        """Keeps the function in `repeated` until it is stopped."""
        self.repeated.append(function)
        return lambda: self.repeated.remove(function) if function in self.repeated else None

    def urgent(self) -> AbstractContextManager[None]:
        return nullcontext()

    def give_way(self) -> None:
        """Nothing is under way while the only thread is here."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        return iter([function(item) for item in items])


__all__ = ["FakeEnv"]
