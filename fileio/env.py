"""The one source of nondeterminism: clock, sleep, randomness, identifiers and threads.

Everything else in `fileio` and `objcat` is a pure function of its inputs and of what the store answers, so that the real code can run under
a state explorer. `time`, `random`, `uuid`, `datetime.now` and thread pools are banned elsewhere by lint.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Env(Protocol):
    """What a program may ask of the world besides the store."""

    def now_ms(self) -> int:
        """Wall clock: milliseconds since 1970-01-01 UTC."""

    def monotonic_s(self) -> float:
        """A clock in seconds that never goes back; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Let at least this many seconds pass."""

    def random(self) -> float:
        """A uniform number in [0, 1), for jitter."""

    def new_id(self) -> str:
        """A fresh identifier of 16 hexadecimal digits (64 bits) that no other call anywhere returns."""

    def submit(self, function: Callable[[], R]) -> Future[R]:
        """Run `function`, perhaps in another thread; at most `parallelism` run at once, in order of submission."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Apply `function` to every item, perhaps in parallel; results in the order of the items."""

    @property
    def parallelism(self) -> int:
        """How many submitted functions run at once."""


class SystemEnv:
    """The real world: system clocks, `secrets`, and one lazily started pool of threads per process.

    Functions given to `submit` and `map` must not themselves wait for work that they submit to the same Env.
    """

    def __init__(self, *, parallelism: int = 16) -> None:
        self._parallelism = parallelism
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pool_pid = 0

    @property
    def parallelism(self) -> int:
        return self._parallelism

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def random(self) -> float:
        return random.random()

    def new_id(self) -> str:
        return secrets.token_hex(8)

    def submit(self, function: Callable[[], R]) -> Future[R]:
        return self._executor().submit(function)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        listed = list(items)
        if len(listed) < 2:
            return iter([function(item) for item in listed])
        return self._executor().map(function, listed)

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None or self._pool_pid != os.getpid():
                self._pool = ThreadPoolExecutor(self._parallelism, thread_name_prefix="objcat")
                self._pool_pid = os.getpid()
            return self._pool


_default = SystemEnv()


def default_env() -> Env:
    """The process-wide `SystemEnv`."""
    return _default
