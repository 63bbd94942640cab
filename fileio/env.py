"""The one source of nondeterminism: clock, sleep, randomness, identifiers and threads; and what memory may be held.

Everything else in `fileio` and `objcat` is a pure function of its inputs and of what the store answers, so that the real code can run under
a state explorer. `time`, `random`, `uuid`, `datetime.now` and thread pools are banned elsewhere by lint.
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
"""How long work that nobody waits for gives way between two of its steps, at most."""
MEMORY_BYTES = 1024**3
"""What work with rows holds in a process that nobody has said anything of."""
STEP_S_MIN = 0.001
"""Work that nobody waits for goes on for as long before it gives way again."""


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

    def submit(self, function: Callable[[], R], *, idle: bool = False) -> Future[R]:
        """Run a task, perhaps in another thread; at most `parallelism` run at once, in order of submission.

        A process that is about to end begins no thread for anybody: what is asked of it then is done at once, by whoever asks, so that
        threads which outlive the main one, and what is called at exit, get on all the same. So does a process that may begin no
        more threads, as under a limit of its memory. idle: nobody waits for this task, and the end of the process shall not either: in
        both cases it is refused with RuntimeError, and at the end so is whatever it asks for.
        """

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Apply `function`, a task, to every item, perhaps in parallel; results in the order of the items."""

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
        """Run one call to a store (its retries included) beside the tasks, perhaps in another thread.

        Tasks may wait for such calls, so the calls have threads of their own; a call waits for nothing but the store.
        """

    def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:
        """Call `function` every so many seconds, beside everything else, until what is returned is called.

        first_s: when to call it first, in seconds from now; after `every_s` when None. What is stopped before costs next to nothing.
        It must not raise. A call that is under way when it is stopped comes to its end. It ends with the process; a forked one has none.
        """

    def urgent(self) -> AbstractContextManager[None]:
        """Somebody waits for what is done within, such as a write: what runs beside it gives way."""

    def give_way(self) -> None:
        """For work that nobody waits for, between two steps of it: come back when something urgent has just ended, or none is under way.

        So each of many short writes meets one step at most. It is a courtesy: it ends after `GIVE_WAY_S_MAX` in any case, and what it
        waits for must not wait for the caller. A step may be as small as one likes: before `STEP_S_MIN` of one is over, this does nothing.
        """

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""

    @property
    def memory_bytes(self) -> int:
        """About how much memory whoever works with rows may hold in this process: the rest waits on disk, or for its turn."""


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

    def __init__(self, *, parallelism: int = 16, io_parallelism: int = 32, memory_bytes: int = MEMORY_BYTES) -> None:
        self.memory_bytes = memory_bytes
        self._tasks = _Pool(parallelism, "objcat")
        self._io = _Pool(io_parallelism, "objcat-io")
        self._way = _Way()
        self._idle = threading.local()

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

    def submit(self, function: Callable[[], R], *, idle: bool = False) -> Future[R]:
        return self._tasks.submit(partial(self._idly, function), needs_thread=True) if idle else self._submitted(self._tasks, function)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        listed = list(items)
        if len(listed) < 2 or self._tasks.is_mine():
            return iter([function(item) for item in listed])
        return _results(deque(self._submitted(self._tasks, partial(function, item)) for item in listed))

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
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

    def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:
        repetition = _Repetition(function, every_s)
        _alarm.ring(every_s if first_s is None else first_s, repetition)
        return repetition.stop

    def urgent(self) -> AbstractContextManager[None]:
        return self._way.used()

    def give_way(self) -> None:
        self._way.wait()


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


_ENDING = "cannot schedule new futures after"
"""What Python's pools say once the main thread has ended, although other threads may go on, and before functions are called at exit."""


def is_ending(error: RuntimeError) -> bool:
    """Whether a pool has refused a task because the main thread has ended."""
    return _ENDING in str(error)


def _results(futures: deque[Future[R]]) -> Iterator[R]:
    """As `Executor.map` gives them."""
    try:
        while futures:
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()


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

    def submit(self, function: Callable[[], R], *, needs_thread: bool = False) -> Future[R]:
        """Run a task in one of the threads; here and now when it is asked for in one of them, or where no thread can be begun.

        needs_thread: raise RuntimeError in the last case.
        """
        if self.is_mine():
            return done_at_once(function)
        task = _Task(function)
        try:
            self.executor().submit(task)
        except RuntimeError as error:
            # The task may stand in the queue all the same, and a thread that is there may have taken it.
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
    """A function that is called once, whoever comes first: a thread of a pool, or whoever asked for it. future: of what it returns."""

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


class _Way:
    """How many urgent things are under way, and how many have ended."""

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
                self._running = max(0, self._running - 1)  # A forked process begins with none, and may end one that began before.
                self._ended += 1
                self._changed.notify_all()

    def wait(self) -> None:
        """Once in `STEP_S_MIN` in each thread, so that what is done in many small steps does not take many waits."""
        if time.monotonic() < getattr(self._next, "step_s", 0.0):
            return
        with self._changed:
            before = self._ended
            self._changed.wait_for(lambda: not self._running or self._ended > before, timeout=GIVE_WAY_S_MAX)
        self._next.step_s = time.monotonic() + STEP_S_MIN


@dataclass(eq=False, slots=True)
class _Repetition:
    """A function that is called again and again, in a thread of its own from its first call on."""

    function: Callable[[], None]
    every_s: float
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stopped.is_set():
            self.function()
            self.stopped.wait(self.every_s)

    def stop(self) -> None:
        self.stopped.set()
        self.function = _do_nothing  # The alarm may hold this for a while, and must not hold what the function needs.


def _do_nothing() -> None:
    pass


class _Alarm:
    """One thread that waits for the first calls of all repetitions, since most are stopped before: so they need no thread each."""

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
                with suppress(RuntimeError):  # At the end of the process nothing is called any more.
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
