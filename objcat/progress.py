"""How far long work is, on the terminal of whoever waits for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fileio.env import Env
from objcat.terminal import visible

QUIET_S = 2.0
"""Work that ends sooner shows nothing."""


@contextmanager
def shown_progress(env: Env, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told of every step done, in the units of `total`; draws a bar on stderr, and takes it away in the end.

    Draws nothing where stderr is no terminal, and before `QUIET_S` seconds have passed. what: such as "objcat: compact". The function may
    be called by several threads. A terminal that is gone is no error.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _steps: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task(escape(visible(what)), total=total)
    began_s, lock = env.monotonic_s(), threading.Lock()

    def advance(steps: int) -> None:
        with lock, suppress(OSError):
            bar.advance(task, steps)
            if not bar.live.is_started and env.monotonic_s() - began_s >= QUIET_S:
                bar.start()
            if bar.live.is_started:
                bar.refresh()

    try:
        yield advance
    finally:
        if bar.live.is_started:
            with suppress(OSError):
                bar.stop()
