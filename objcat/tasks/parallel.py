"""Runs one function over many items on the threads of the Env."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from itertools import islice
from typing import TypeVar

from fileio.env import Env

T = TypeVar("T")
R = TypeVar("R")


def run_all(env: Env, function: Callable[[T], R], items: Iterable[T], *, at_once: int | None = None) -> list[R]:
    """Like `env.map`, but raises the first failure only after every item has ended.

    So nothing writes any more during a clean-up. at_once: limit of concurrent items. None: the Env's own limit.
    """

    def run(item: T) -> R | Exception:
        """The result of one item, or its error."""
        try:
            return function(item)
        except Exception as error:  # noqa: BLE001 - raised below
            return error

    results = []
    failure: Exception | None = None
    for result in env.map(run, items) if at_once is None else _windowed(env, run, items, at_once):
        if isinstance(result, Exception):
            failure = failure or result
        else:
            results.append(result)
    if failure is not None:
        raise failure
    return results


def _windowed(env: Env, function: Callable[[T], R], items: Iterable[T], at_once: int) -> Iterator[R]:
    """Like `env.map`, with at most `at_once` items running or waiting to be taken."""
    if at_once == 1:
        yield from map(function, items)
        return
    under_way: deque[Future[R]] = deque()
    for item in items:
        if len(under_way) == at_once:
            yield under_way.popleft().result()
        under_way.append(env.submit(partial(function, item)))
    for future in under_way:
        yield future.result()


def interleave(env: Env, iterators: Iterable[Iterator[T]], *, at_once: int) -> Generator[T, None, None]:
    """The items of several iterators in turn: one of each, then the next of each.

    The order depends on nothing else. `at_once` iterators take their next step on the Env's threads, concurrent with the consumer, so at
    most
    as many items are held. When one ends, the next begins. Raises the error of an iterator after the running steps have ended.
    """
    waiting = iter(iterators)
    if at_once <= 1:
        for iterator in waiting:
            yield from iterator
        return
    turns: deque[tuple[Iterator[T], Future[list[T]]]] = deque()

    def enter(iterator: Iterator[T]) -> None:
        """Start the first step of an iterator."""
        turns.append((iterator, env.submit(partial(_step, iterator))))

    try:
        for iterator in islice(waiting, at_once):
            enter(iterator)
        while turns:
            iterator, future = turns.popleft()
            items = future.result()
            following = iterator if items else next(waiting, None)
            if following is not None:
                enter(following)
            yield from items
    finally:
        for _, future in turns:
            future.cancel()
        wait([future for _, future in turns])


def _step(iterator: Iterator[T]) -> list[T]:
    """The next item, or nothing at the end."""
    return list(islice(iterator, 1))
