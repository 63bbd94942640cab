"""How far long work is: told to a function of whoever waits for it, or drawn on their terminal."""

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
"""Work that ends sooner draws nothing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a piece of work is. what: such as "objcat: compact"; done: of `total`, in units such as "rows"; total: None where nobody
    knows."""

    what: str
    done: int
    total: int | None
    unit: str


Advance = Callable[[int], None]
"""Is told of every step that is done."""

_listener: ContextVar[Callable[[Progress], None] | None] = ContextVar("objcat_progress", default=None)
_current: ContextVar[Advance | None] = ContextVar("objcat_advance", default=None)


@contextmanager
def report_progress(to: Callable[[Progress], None]) -> Iterator[None]:
    """Work that this thread begins in the block tells a function how far it is, and draws nothing.

        with objcat.report_progress(lambda at: print(at.what, at.done, at.total)):
            table.maintenance.compact()

    to: is called when a piece of work begins and after each of its steps, by one thread at a time, though not always by this one; so it
    should be quick. An error of it is logged once, and disturbs nothing.
    """
    token = _listener.set(to)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def shown_progress(env: Env, what: str, total: int | None, *, unit: str) -> Iterator[Advance]:
    """Gives a function that is told of every step done, in the units of `total`: to the listener of `report_progress`, where there is one;
    else a bar is drawn on stderr, and taken away in the end.

    Draws nothing where stderr is no terminal, and before `QUIET_S` seconds have passed. what: such as "objcat: compact". unit: such as
    "rows". The function may be called by several threads. A terminal that is gone is no error.
    """
    listener = _listener.get()
    if listener is not None:
        with _as_current(_told(listener, what, total, unit)) as advance:
            yield advance
        return
    is_part = _current.get() is not None
    if is_part or sys.stderr is None or not sys.stderr.isatty():
        # Of work that is part of other work the whole is drawn.
        with _as_current(_nobody) as advance:
            yield advance
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    bar = Bar(console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task(escape(visible(what)), total=total)
    began_s, lock = env.monotonic_s(), threading.Lock()

    def draw(steps: int) -> None:
        with lock, suppress(OSError):
            bar.advance(task, steps)
            if not bar.live.is_started and env.monotonic_s() - began_s >= QUIET_S:
                bar.start()
            if bar.live.is_started:
                bar.refresh()

    try:
        with _as_current(draw) as advance:
            yield advance
    finally:
        if bar.live.is_started:
            with suppress(OSError):
                bar.stop()


def advance_of_now() -> Advance:
    """That of the work which this thread has under way; one that tells nobody where there is none. For steps that are done deeper down."""
    return _current.get() or _nobody


def counted(items: Iterable[T], advance: Advance, size: Callable[[T], int]) -> Iterator[T]:
    """The items; each is told when the next one is asked for."""
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
                logger.warning("what was to be told of the progress of %r failed: %r", what, error)

    tell(0)
    return tell


def _nobody(_steps: int) -> None:
    pass
