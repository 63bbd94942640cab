"""`Env`: the one source of clock, sleep, randomness, identifiers and threads, and the limit of memory. `SystemEnv` is the real one.

All other code in `fileio` and `objcat` is a pure function of its inputs and of the store's answers. So a state explorer can run the real
code. Lint bans `time`, `random`, `uuid`, `datetime.now` and thread pools elsewhere.
"""

from __future__ import annotations

import heapq
import os
import random
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


GIVE_WAY_S_MAX = 0.05
"""The longest time that background work gives way between two steps."""
MEMORY_BYTES = 1024**3
"""The default limit of memory for work with rows in a process."""
IDLE_WAITS_MAX = 8
"""Threads for calls to stores that may let time pass at once."""
STEP_S_MIN = 0.001
"""The time that background work runs before it gives way again."""


class Env(Protocol):
    """What a program may ask of the world besides the store."""

    def now_ms(self) -> int:
        """The wall clock, in ms since 1970-01-01 UTC."""

    def monotonic_s(self) -> float:
        """A clock in seconds that never goes back. Only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Let at least this many seconds pass."""

    def random(self) -> float:
        """A uniform number in [0, 1), for jitter."""

    def new_id(self) -> str:
        """A new identifier of 16 hexadecimal digits (64 bits). No other call anywhere returns it."""

    def submit(self, function: Callable[[], R], *, idle: bool = False) -> Future[R]:
        """Run a task, perhaps in another thread. At most `parallelism` tasks run at once, in order of submission.

        A process that is about to end starts no threads. Then the calling thread runs the task at once. So threads that outlive the main
        one, and functions called at exit, still work. A process that may not start more threads, as under a memory limit, does the same.

        Args:
            function: The task.
            idle: Nobody waits for this task, and the end of the process must not wait either. In both cases above it is refused with
                RuntimeError. At the end of the process, so is everything that it submits.
        """

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Apply `function`, a task, to every item, perhaps in parallel. Results are in the order of the items."""

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
        """Run one call to a store, its retries included, perhaps in another thread.

        Tasks may wait for such calls, so the calls have their own threads. A call waits for nothing but the store.
        """

    def idle_wait(self) -> AbstractContextManager[bool]:
        """A block in which a call of `submit_io` lets time pass. Gives False where as many do as may: then the call should end.

        Its thread is kept from other calls meanwhile.
        """

    def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:
        """Call a function repeatedly, in parallel to everything else.

        A repetition that is stopped before its first call costs almost nothing. It ends with the process; a forked process has none.

        Args:
            function: Must not raise.
            every_s: The pause between calls, in seconds.
            first_s: The time until the first call, in seconds; None means `every_s`.

        Returns:
            A function that stops the repetition. A call in progress comes to its end.
        """

    def urgent(self) -> AbstractContextManager[None]:
        """A block whose result somebody waits for, such as a write. Background work gives way to it."""

    def give_way(self) -> None:
        """Called by background work between two steps. Returns when something urgent has just ended, or nothing urgent runs.

        So each of many short writes meets one step at most. It returns after `GIVE_WAY_S_MAX` in any case. What it waits for must not wait
        for the caller. Steps may be arbitrarily small: less than `STEP_S_MIN` after the last wait this does nothing.
        """

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once."""

    @property
    def memory_bytes(self) -> int:
        """About how much memory work with rows may use in this process. The rest goes to disk or waits."""


def map_io(env: Env, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Apply `function`, one call to a store, to every item by `submit_io`. Results are in the order of the items.

    Raises the first error in that order, after the calls that have begun. The other calls are dropped.
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
    """The real world: system clocks, `secrets`, and two pools of threads per process, for tasks and for calls to stores.

    The threads start on first use. No thread of a pool waits for what is submitted later: a task runs the tasks that it submits at once,
    in its own thread, and so does a call. It may wait for what was submitted before it, since tasks begin in that order.

    Args:
        parallelism: The number of threads for tasks.
        io_parallelism: The number of threads for calls to stores.
        memory_bytes: About how much memory work with rows may use.
    """

    def __init__(self, *, parallelism: int = 16, io_parallelism: int = 32, memory_bytes: int = MEMORY_BYTES) -> None:
        self.memory_bytes = memory_bytes
        self._tasks = _Pool(parallelism, "objcat")
        self._io = _Pool(io_parallelism, "objcat-io")
        self._way = _Way()
        self._places = _Places()
        self._idle = threading.local()

    @property
    def parallelism(self) -> int:
        """The number of threads for tasks."""
        return self._tasks.threads

    def now_ms(self) -> int:
        """From `time.time_ns`."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """From `time.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """By `time.sleep`."""
        time.sleep(seconds)

    def random(self) -> float:
        """From `random.random`."""
        return random.random()

    def new_id(self) -> str:
        """From `secrets`."""
        return secrets.token_hex(8)

    def submit(self, function: Callable[[], R], *, idle: bool = False) -> Future[R]:
        """In a thread of the pool for tasks."""
        return self._tasks.submit(partial(self._idly, function), needs_thread=True) if idle else self._submitted(self._tasks, function)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """In the pool for tasks. One item alone, or a call within a task, runs here."""
        listed = list(items)
        if len(listed) < 2 or self._tasks.is_mine():
            return iter([function(item) for item in listed])
        return _results(deque(self._submitted(self._tasks, partial(function, item)) for item in listed))

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
        """In a thread of the pool for calls."""
        return self._submitted(self._io, function)

    def _submitted(self, pool: _Pool, function: Callable[[], R]) -> Future[R]:
        try:
            return pool.submit(function)
        except RuntimeError as error:
            if not is_ending(error) or getattr(self._idle, "yes", False):
                raise
            return done_at_once(function)

    def _idly(self, function: Callable[[], R]) -> R:
        self._idle.yes = True
        try:
            return function()
        finally:
            self._idle.yes = False

    @contextmanager
    def idle_wait(self) -> Iterator[bool]:
        """`IDLE_WAITS_MAX` at once."""
        places = self._places.free
        has_one = places.acquire(blocking=False)
        try:
            yield has_one
        finally:
            if has_one:
                places.release()

    def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:
        """One thread waits for the first calls of all repetitions. A repetition gets its own thread from then on."""
        repetition = _Repetition(function, every_s)
        _alarm.ring(every_s if first_s is None else first_s, repetition)
        return repetition.stop

    def urgent(self) -> AbstractContextManager[None]:
        """Counts what runs; see `give_way`."""
        return self._way.used()

    def give_way(self) -> None:
        """Waits on the count of `urgent`."""
        self._way.wait()


class Forkable(Protocol):
    """An object that holds what a fork cannot share: locks, threads, connections."""

    def after_fork(self) -> None:
        """Called in the child, where only the thread that forked exists."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()


def on_fork(holder: Forkable) -> None:
    """Call `holder.after_fork()` in every process forked from this one, before other code runs there, while `holder` lives."""
    _forkables.add(holder)


def _after_fork() -> None:
    for holder in list(_forkables):
        holder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_ENDING = "cannot schedule new futures after"
"""What Python's pools say after the main thread has ended. Other threads, and functions called at exit, may still run."""


def is_ending(error: RuntimeError) -> bool:
    """Whether a pool refused a task because the main thread has ended."""
    return _ENDING in str(error)


def _results(futures: deque[Future[R]]) -> Iterator[R]:
    """The results, as `Executor.map` yields them."""
    try:
        while futures:
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()


class _Pool:
    """Threads that start on first use, and again in a forked process."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self._name = name
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._mine = threading.local()
        on_fork(self)

    def after_fork(self) -> None:
        """Forget the threads, which a fork does not copy, and the lock, which one of them may have held."""
        self._lock = threading.Lock()
        self._executor = None

    def is_mine(self) -> bool:
        """Whether the calling thread belongs to this pool."""
        return getattr(self._mine, "yes", False)

    def submit(self, function: Callable[[], R], *, needs_thread: bool = False) -> Future[R]:
        """Run a task in a thread of the pool. A call within such a thread, or without any thread to be had, runs it here at once.

        `needs_thread`: raise RuntimeError when there is no thread to be had.
        """
        if self.is_mine():
            return done_at_once(function)
        task = _Task(function)
        try:
            self.executor().submit(task)
        except RuntimeError as error:
            # The task may still be in the queue, and an existing thread may have taken it.
            if is_ending(error) or (needs_thread and task.future.cancel()):
                raise
            task()
        return task.future

    def executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.threads, thread_name_prefix=self._name, initializer=self._mark)
            return self._executor

    def _mark(self) -> None:
        self._mine.yes = True


class _Task(Generic[R]):
    """A function that is called once, by a thread of the pool or by the submitter. `future` holds its result."""

    def __init__(self, function: Callable[[], R]) -> None:
        self.future: Future[R] = Future()
        self._function = function
        self._claim = threading.Lock()

    def __call__(self) -> None:
        if not self._claim.acquire(blocking=False) or not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - the caller meets it in the future
            self.future.set_exception(error)
            del self  # The error holds this frame, and the frame would hold the future that holds the error.
        else:
            self.future.set_result(result)


class _Places:
    """Counts the idle waits that a process may begin."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """All are free in a new process."""
        self.free = threading.BoundedSemaphore(IDLE_WAITS_MAX)


class _Way:
    """Counts what is urgent and still runs, and what has ended."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        self._changed = threading.Condition()
        self._next = threading.local()
        self._running = 0
        self._ended = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        with self._changed:
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running = max(0, self._running - 1)  # A forked process starts at 0, and may end a block that began before.
                self._ended += 1
                self._changed.notify_all()

    def wait(self) -> None:
        """Waits once per `STEP_S_MIN` in each thread, so that work in many small steps does not wait often."""
        if time.monotonic() < getattr(self._next, "step_s", 0.0):
            return
        with self._changed:
            before = self._ended
            self._changed.wait_for(lambda: not self._running or self._ended > before, timeout=GIVE_WAY_S_MAX)
        self._next.step_s = time.monotonic() + STEP_S_MIN


@dataclass(eq=False, slots=True)
class _Repetition:
    """A function that is called repeatedly, from its first call on in its own thread."""

    function: Callable[[], None]
    every_s: float
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stopped.is_set():
            self.function()
            self.stopped.wait(self.every_s)

    def stop(self) -> None:
        self.stopped.set()
        self.function = _do_nothing  # The alarm may hold this object longer, but must not hold what the function needs.


def _do_nothing() -> None:
    pass


class _Alarm:
    """One thread that waits for the first calls of all repetitions. Most are stopped before, and so need no thread."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, _Repetition]] = []
        self._count = 0
        self._is_awake = False

    def ring(self, seconds: float, repetition: _Repetition) -> None:
        """Begin a repetition after so many seconds, unless it is stopped by then."""
        with self._changed:
            self._count += 1
            due = (time.monotonic() + seconds, self._count, repetition)
            heapq.heappush(self._due, due)
            if not self._is_awake:
                with suppress(RuntimeError):  # Nothing is called at the end of the process.
                    threading.Thread(target=self._watch, args=(self._changed,), name="objcat-alarm", daemon=True).start()
                    self._is_awake = True
            elif self._due[0] is due:
                self._changed.notify()

    def _watch(self, changed: threading.Condition) -> None:
        with changed:
            while True:
                while self._due and self._due[0][2].stopped.is_set():
                    heapq.heappop(self._due)
                pause_s = self._due[0][0] - time.monotonic() if self._due else None
                if pause_s is None or pause_s > 0:
                    changed.wait(pause_s)
                    continue
                repetition = heapq.heappop(self._due)[2]
                with suppress(RuntimeError):  # The process is about to end.
                    threading.Thread(target=repetition.run, name="objcat-repeat", daemon=True).start()


_alarm = _Alarm()


def done_at_once(function: Callable[[], R]) -> Future[R]:
    """A future that already holds what `function` returned or raised."""
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
