"""Progress of long work, for a listener function or as a bar on the terminal."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from fileio.env import Env
from objcat.common.terminal import visible

logger = logging.getLogger("objcat")

T = TypeVar("T")

QUIET_S = 2.0
"""Seconds. Work that ends sooner draws nothing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a piece of work.

    Args:
        what: The work, such as "objcat: compact".
        done: Units done so far.
        total: Units in all. None: unknown.
        unit: The unit, such as "rows".
    """

    what: str
    done: int
    total: int | None
    unit: str


Advance = Callable[[int], None]
"""Is called with the number of units of every step that is done."""

_listener: ContextVar[Callable[[Progress], None] | None] = ContextVar("objcat_progress", default=None)
_current: ContextVar[Advance | None] = ContextVar("objcat_advance", default=None)


@contextmanager
def report_progress(to: Callable[[Progress], None]) -> Iterator[None]:
    """Report the progress of work in the block to a function, instead of drawing a bar.

    This is for work that this thread begins.

        with objcat.report_progress(lambda at: print(at.what, at.done, at.total)):
            table.maintenance.compact()

    Args:
        to: Called with a `Progress` when a piece of work begins and after each of its steps. Only one thread calls it at a time, but not
            always this one. It should be quick. Its first error is logged, and disturbs nothing.

    Yields:
        None.
    """
    token = _listener.set(to)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def shown_progress(env: Env, what: str, total: int | None, *, unit: str) -> Iterator[Advance]:
    """Yields a function to call after every step, with the number of units done.

    It reports to the listener of `report_progress`. Without one, it draws a bar on stderr, and removes it at the end. It draws nothing if
    stderr is no terminal, or before `QUIET_S` seconds have passed. Several threads may call it. A terminal that is gone is no error.

    Args:
        what: Such as "objcat: compact".
        total: Units in all. None: unknown.
        unit: Such as "rows".
    """
    listener = _listener.get()
    if listener is not None:
        with _as_current(_told(listener, what, total, unit)) as advance:
            yield advance
        return
    if _current.get() is not None or sys.stderr is None:
        # For work that is part of other work, only the whole is drawn.
        with _as_current(_nobody) as advance:
            yield advance
        return
    bar = _Bar(env, what, total)
    try:
        with _as_current(bar.advance) as advance:
            yield advance
    finally:
        bar.stop()


class _Bar:
    """A bar on stderr, which is made at the first step after `QUIET_S` seconds if stderr is a terminal. Most work ends before."""

    def __init__(self, env: Env, what: str, total: int | None) -> None:
        self._env, self._what, self._total = env, what, total
        self._began_s, self._lock = env.monotonic_s(), threading.Lock()
        self._done = 0
        self._draw: Callable[[int], None] | None = None
        self._stop: Callable[[], None] | None = None

    def advance(self, steps: int) -> None:
        """Count steps, and draw them."""
        with self._lock, suppress(OSError):
            self._done += steps
            if self._draw is None and self._env.monotonic_s() - self._began_s >= QUIET_S:
                self._draw = _nobody
                if sys.stderr.isatty():
                    self._draw = self._begin()
            if self._draw is not None:
                self._draw(self._done)

    def stop(self) -> None:
        """Remove the bar."""
        with self._lock, suppress(OSError):
            if self._stop is not None:
                self._stop()

    def _begin(self) -> Callable[[int], None]:
        """Show the bar. Returns what draws it with so many units done."""
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress as RichBar

        bar = RichBar(console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        task = bar.add_task(escape(visible(self._what)), total=self._total)
        self._stop = bar.stop
        bar.start()
        return lambda done: bar.update(task, completed=done, refresh=True)


def current_advance() -> Advance:
    """The `Advance` of this thread's current work, for steps done deeper down. Without work, one that does nothing."""
    return _current.get() or _nobody


def counted(items: Iterable[T], advance: Advance, size: Callable[[T], int]) -> Iterator[T]:
    """The items. Each counts as done when the next one is requested."""
    for item in items:
        yield item
        advance(size(item))


@contextmanager
def _as_current(advance: Advance) -> Iterator[Advance]:
    token = _current.set(advance)
    try:
        yield advance
    finally:
        _current.reset(token)


def _told(listener: Callable[[Progress], None], what: str, total: int | None, unit: str) -> Advance:
    lock = threading.Lock()
    done, failed = 0, False

    def tell(steps: int) -> None:
        nonlocal done, failed
        with lock:
            done += steps
            if failed:
                return
            try:
                listener(Progress(what, done if total is None else min(done, total), total, unit))
            except Exception as error:  # noqa: BLE001 - the work goes on, whatever others make of its progress
                failed = True
                logger.warning("The progress listener failed for %r: %r", what, error)

    tell(0)
    return tell


def _nobody(_steps: int) -> None:
    pass
