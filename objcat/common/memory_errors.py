"""Full memory: one typed error for what every library raises, while a commit that happened stays one.

Arrow, numpy and Python raise MemoryErrors of their own kinds. DuckDB, threads and the loader of libraries raise other errors. The public
classes turn them into `OutOfMemory`, at the entry of each public method. A commit treats them like every error from outside.
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
"""Messages of Python, Arrow and the loader of libraries, which have no error class for it."""


def is_full(error: BaseException) -> bool:
    """Whether an error means that memory, or the process's share of it, has ended."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, (RuntimeError, ImportError, OSError)) or type(error).__module__.startswith("pyarrow"):
        return any(words in str(error) for words in _WORDS)
    duckdb = sys.modules.get("duckdb")
    return duckdb is not None and isinstance(error, duckdb.OutOfMemoryException)


def address_room_bytes() -> int | None:
    """How much more this process may map under its limit of addresses (RLIMIT_AS). None without a limit, or if it is unknown."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm", "rb") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return None
    return None if limit == resource.RLIM_INFINITY else max(0, limit - taken)


def check_room(needed_bytes: int, *, library: str) -> None:
    """Raise MemoryError if a limit of addresses leaves less than a library needs that ends the process when memory does."""
    room = address_room_bytes()
    if room is not None and room < needed_bytes:
        raise MemoryError(f"{library} needs {needed_bytes // 1024**2} MiB of addresses. The process may have {room // 1024**2} MiB more.")


def reports_full_memory(kind: C) -> C:
    """A class decorator: its public methods raise OutOfMemory when memory ends.

    Lazy parts of a class use `reporting` themselves.
    """
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and (not name.startswith("_") or name in ("__enter__", "__exit__")):
            setattr(kind, name, _reporting_method(method))
    return kind


def _reporting_method(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            # Public methods call each other. The outermost one says what it was doing.
            cause = error.__cause__ if isinstance(error, OutOfMemory) else error
            if not isinstance(cause, Exception) or not is_full(cause):
                raise
            what = f"{type(self).__name__}.{method.__name__}()"
            raise out_of_memory(cause, what, self, args[0] if args else None) from cause

    return run


@contextmanager
def reporting(what: str, holder: object) -> Iterator[None]:
    """Raise OutOfMemory when memory ends in the block. what: is done. holder: the object whose method does it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not is_full(error):
            raise
        raise out_of_memory(error, what, holder) from error


@contextmanager
def after_commit(slot: int) -> Iterator[None]:
    """Log a full memory in the block: the commit before it is durable and must be reported."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        with suppress(MemoryError):
            logger.warning("Memory ended after the commit of slot %d, which is durable: %s", slot, error)


def out_of_memory(error: Exception, what: str, holder: object = None, data: object = None) -> OutOfMemory:
    """The OutOfMemory for a user.

    Args:
        what: The call.
        holder: Its object, if it has one.
        data: The data that was passed in, if any.
    """
    rows, size = getattr(data, "num_rows", None), getattr(data, "nbytes", None)
    size_text = f" of {rows:,} rows and {size:,} bytes" if isinstance(rows, int) and isinstance(size, int) else ""
    reason = (str(error).splitlines() or [""])[0] or "no more memory"
    return OutOfMemory(
        f"Memory ended in {what}{size_text}{'' if holder is None else f' on {shown(holder)}'} ({type(error).__name__}: {reason}). "
        "The commit that was under way did not happen. Earlier commits stay. "
        "Write or read fewer rows at once (scans: to_batches(), columns=, where=), raise the limit of the process (ulimit -v), "
        "or connect with env=fileio.SystemEnv(parallelism=2, memory_bytes=...), which uses less."
    )
