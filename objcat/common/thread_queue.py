"""`ThreadQueue`: a fair queue of the threads of one process, for work that they would otherwise do in competition."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from fileio.env import on_fork

OVERDUE_S = 5.0
"""A turn that lasts longer than this is over for those who wait, whatever its thread still does."""
OVERDUE_TURNS_MAX = 3
"""A thread that has seen so many overdue turns goes on alone."""


class ThreadQueue:
    """Threads take turns in the order in which they asked. Advice only: nothing may depend on being alone.

    Nobody waits for a thread that hangs: after `OVERDUE_S` its turn passes on, and after `OVERDUE_TURNS_MAX` such turns a waiting thread
    goes on without one. A thread that asks within its own turn, such as a signal handler, goes on at once. A forked process starts with an
    empty queue.
    """

    def __init__(self, *, overdue_s: float = OVERDUE_S) -> None:
        self._overdue_s = overdue_s
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Forget the threads, which a fork does not copy, and the lock, which one of them may have held."""
        self._lock = threading.RLock()  # A signal handler may ask while its thread holds it.
        self._waiting: deque[ThreadTurn] = deque()
        self._current: ThreadTurn | None = None
        self._ended = 0
        self._overdue = 0

    @contextmanager
    def turn(self) -> Iterator[ThreadTurn]:
        """A block that no other thread runs at the same time, unless one of them took too long. Gives what `outside` takes."""
        own = ThreadTurn(threading.get_ident())
        try:
            self._await(own)
            yield own
        finally:
            self._end(own)

    @contextmanager
    def outside(self, own: ThreadTurn) -> Iterator[None]:
        """A block within a turn, during which others have theirs. Afterwards it is queued for again."""
        self._end(own)
        yield
        own.has_begun.clear()
        self._await(own)

    def _await(self, own: ThreadTurn) -> None:
        with self._lock:
            if self._current is None:
                self._current = own
                return
            if self._current.thread == own.thread:
                return
            self._waiting.append(own)
            ended, overdue = self._ended, self._overdue
        while not own.has_begun.wait(self._overdue_s):
            with self._lock:
                if self._current is own or self._overdue - overdue >= OVERDUE_TURNS_MAX:
                    return
                if self._ended == ended:
                    self._overdue += 1
                    self._pass_on()
                ended = self._ended

    def _end(self, own: ThreadTurn) -> None:
        with self._lock:
            if self._current is own:
                self._pass_on()
            elif own in self._waiting:
                self._waiting.remove(own)

    def _pass_on(self) -> None:
        self._ended += 1
        self._current = self._waiting.popleft() if self._waiting else None
        if self._current is not None:
            self._current.has_begun.set()


class ThreadTurn:
    """One request for a turn."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.has_begun = threading.Event()
