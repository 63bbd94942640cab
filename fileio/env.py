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
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
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
        """Run a task, perhaps in another thread; at most `parallelism` run at once, in order of submission."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Apply `function`, a task, to every item, perhaps in parallel; results in the order of the items."""

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
        """Run one call to a store (its retries included) beside the tasks, perhaps in another thread.

        Tasks may wait for such calls, so the calls have threads of their own; a call waits for nothing but the store.
        """

    def repeat(self, function: Callable[[], None], every_s: float) -> Callable[[], None]:
        """Call `function` every so many seconds, the first time after as many, beside everything else, until what is returned is called.

        It must not raise. A call that is under way when it is stopped comes to its end. It ends with the process; a forked one has none.
        """

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""


def map_io(env: Env, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Apply `function`, one call to a store, to every item by `submit_io`; results in the order of the items.

    Raises the first error in that order, after the calls that have begun; the others are dropped.
    """
    listed = list(items)
    if len(listed) < 2:
        return [function(item) for item in listed]
    futures = [env.submit_io(partial(function, item)) for item in listed]
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        wait(futures)
        raise


class SystemEnv:
    """The real world: system clocks, `secrets`, and two lazily started pools of threads per process, for tasks and for calls to stores.

    No thread of a pool ever waits for the same pool: what a task submits as a task runs at once within it, and so does a call's call.
    """

    def __init__(self, *, parallelism: int = 16, io_parallelism: int = 32) -> None:
        self._tasks = _Pool(parallelism, "objcat")
        self._io = _Pool(io_parallelism, "objcat-io")

    @property
    def parallelism(self) -> int:
        return self._tasks.threads

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
        return self._tasks.submit(function)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        listed = list(items)
        if len(listed) < 2 or self._tasks.is_mine():
            return iter([function(item) for item in listed])
        return self._tasks.executor().map(function, listed)

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
        return self._io.submit(function)

    def repeat(self, function: Callable[[], None], every_s: float) -> Callable[[], None]:
        stopped = threading.Event()

        def run() -> None:
            while not stopped.wait(every_s):
                function()

        threading.Thread(target=run, name="objcat-repeat", daemon=True).start()
        return stopped.set


class Forkable(Protocol):
    """Something that holds what a fork cannot share: locks, threads, connections."""

    def after_fork(self) -> None:
        """Called in the child, where only the thread that forked is left."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()


def on_fork(holder: Forkable) -> None:
    """Call `holder.after_fork()` in every process that is forked from this one, before anything else runs there, while `holder` lives."""
    _forkables.add(holder)


def _after_fork() -> None:
    for holder in list(_forkables):
        holder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Pool:
    """Threads that are started when they are first needed, and anew in a forked process."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self._name = name
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._mine = threading.local()
        on_fork(self)

    def after_fork(self) -> None:
        """Threads do not come along, and one of them may have held the lock."""
        self._lock = threading.Lock()
        self._executor = None

    def is_mine(self) -> bool:
        """Whether the calling thread belongs to this pool."""
        return getattr(self._mine, "yes", False)

    def submit(self, function: Callable[[], R]) -> Future[R]:
        return done_at_once(function) if self.is_mine() else self.executor().submit(function)

    def executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.threads, thread_name_prefix=self._name, initializer=self._mark)
            return self._executor

    def _mark(self) -> None:
        self._mine.yes = True


def done_at_once(function: Callable[[], R]) -> Future[R]:
    """A future that already holds what `function` returned or raised, here and now."""
    future: Future[R] = Future()
    try:
        future.set_result(function())
    except Exception as error:  # noqa: BLE001  (the caller meets it in the future)
        future.set_exception(error)
    return future


_default = SystemEnv()


def default_env() -> Env:
    """The process-wide `SystemEnv`."""
    return _default
