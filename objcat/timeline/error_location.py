"""`says_where`: a decorator that adds the URL of the store to errors about objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fileio.store import FileIO
from objcat.errors import CheckpointCollected, CorruptTable, UnsupportedFormat

P = ParamSpec("P")
R = TypeVar("R")

OF_OBJECTS = (CheckpointCollected, CorruptTable, UnsupportedFormat)
"""Errors raised over an object by code that knows its key alone."""


def says_where(function: Callable[P, R]) -> Callable[P, R]:
    """Make errors of a function end with the URL of the store that it reads, unless they name it.

    Args:
        function: One of its arguments is a store, or has one as `fileio` or `_fileio`, as `self` does.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except OF_OBJECTS as error:
            url = next((store.url for store in map(_store_of, args) if store is not None), None)
            if url is not None and url not in str(error):
                error.args = (f"{error} The log is at {url}.", *error.args[1:])
            raise

    return run


def _store_of(argument: Any) -> FileIO | None:
    for found in (argument, getattr(argument, "fileio", None), getattr(argument, "_fileio", None)):
        if isinstance(found, FileIO):
            return found
    return None
