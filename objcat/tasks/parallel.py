"""Running one function over many items on the Env's threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from fileio.env import Env

T = TypeVar("T")
R = TypeVar("R")


def run_all(env: Env, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`env.map`, but raises the first failure only after every item has ended: then nothing writes any more behind a clean-up."""

    def run(item: T) -> R | Exception:
        try:
            return function(item)
        except Exception as error:  # noqa: BLE001 - raised below
            return error

    results = []
    failure: Exception | None = None
    for result in env.map(run, items):
        if isinstance(result, Exception):
            failure = failure or result
        else:
            results.append(result)
    if failure is not None:
        raise failure
    return results
