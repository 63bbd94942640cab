"""Memory that ends: what every library raises then becomes one typed error, and a commit that took place stays one.

Arrow, numpy and Python raise MemoryError of their own kinds. DuckDB, threads and the loader of libraries raise others. The classes that
users hold turn them into `OutOfMemory`, at the entry of each public method. Whoever asks for a slot treats it as every error from outside.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar

from objcat.common.validation import shown
from objcat.errors import OutOfMemory

C = TypeVar("C", bound=type[Any])

logger = logging.getLogger("objcat")


_WORDS = ("can't start new thread", "Failed to launch worker thread", "annot allocate memory", "failed to map segment")
"""What Python, Arrow and the loader of libraries say: they have no class of errors for it."""


def is_full(error: BaseException) -> bool:
    """Whether an error says that memory, or what a process may have of it, has ended."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, (RuntimeError, ImportError, OSError)) or type(error).__module__.startswith("pyarrow"):
        return any(words in str(error) for words in _WORDS)
    duckdb = sys.modules.get("duckdb")
    return duckdb is not None and isinstance(error, duckdb.OutOfMemoryException)


def address_room_bytes() -> int | None:
    """How much more this process may map under its limit of addresses (RLIMIT_AS); None where it has no limit, or nobody can tell."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm", "rb") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return None
    return None if limit == resource.RLIM_INFINITY else max(0, limit - taken)


def reports_full_memory(kind: C) -> C:
    """Have the public methods of a class raise OutOfMemory where memory ends. What is lazy in them looks after itself, by `reporting`."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and (not name.startswith("_") or name in ("__enter__", "__exit__")):
            setattr(kind, name, _reporting_method(method, f"{kind.__name__}.{name}()"))
    return kind


def _reporting_method(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            # Public methods call one another: the outermost one says what it was to do.
            cause = error.__cause__ if isinstance(error, OutOfMemory) else error
            if not isinstance(cause, Exception) or not is_full(cause):
                raise
            raise out_of_memory(cause, what, self, args[0] if args else None) from cause

    return run


@contextmanager
def reporting(what: str, holder: object) -> Iterator[None]:
    """Raise OutOfMemory where memory ends. what: is done. holder: whose method that is."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not is_full(error):
            raise
        raise out_of_memory(error, what, holder) from error


@contextmanager
def after_commit(slot: int) -> Iterator[None]:
    """What follows a commit: the commit is durable and must be reported, so that a full memory is logged and no more."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        with suppress(MemoryError):
            logger.warning("memory ended after the commit of slot %d, which is durable: %s", slot, error)


def out_of_memory(error: Exception, what: str, holder: object, data: object = None) -> OutOfMemory:
    """What is said to a user. what: was called. holder: on which object. data: that was handed to it, if any."""
    rows, size = getattr(data, "num_rows", None), getattr(data, "nbytes", None)
    given = f" of {rows:,} rows and {size:,} bytes" if isinstance(rows, int) and isinstance(size, int) else ""
    reason = (str(error).splitlines() or [""])[0] or "no more was to be had"
    return OutOfMemory(
        f"memory ended in {what}{given} on {shown(holder)} ({type(error).__name__}: {reason}). "
        "The commit that was under way did not happen; what was committed before it stays. "
        "Write or read fewer rows at once (scans: to_batches(), columns=, where=), raise the limit of the process (ulimit -v), "
        "or connect with env=fileio.SystemEnv(parallelism=2, memory_bytes=...), which holds less"
    )
