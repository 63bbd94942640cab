"""A process that ends itself after some commits of a lake."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from objcat.table.transaction import Transaction


def end_after(once: Callable[[], object], commits: int) -> None:
    """In a process of its own: ends it by SIGKILL when a transaction of the lake has committed for the so-manieth time."""
    done = 0
    leave = Transaction.__exit__

    def left(self: Any, *arguments: Any) -> None:
        nonlocal done
        leave(self, *arguments)
        done += 1
        if done > commits:
            os.kill(os.getpid(), signal.SIGKILL)

    Transaction.__exit__ = left  # type: ignore[method-assign]
    once()
    os._exit(0)
