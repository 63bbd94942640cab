"""What the conformance suite is run against: a store, and by name whatever it is known to do otherwise.

A project of its own runs the whole suite like this:

    from fileio.testing.conformance import *
    from fileio.testing.conformance import Subject, described

    @pytest.fixture
    def subject() -> Subject:
        return described("mine", describe_store("mine://bucket/prefix", {...}))
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from fileio.contract import PutOutcome, Written
from fileio.env import SystemEnv, default_env
from fileio.errors import FileIOError
from fileio.store import FileIO, StoreDescription

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One test that a store is known to fail, and why. The test runs all the same; when it passes, the run fails: the entry is out of date.

    test: name of the test function. case: of its parameter, None: all of them. reason: what the store does instead.
    raises: how the failure shows; anything else fails the run. sometimes: it takes a race, so that the test may also pass.
    """

    test: str
    reason: str
    case: str | None = None
    raises: type[BaseException] | tuple[type[BaseException], ...] = AssertionError
    sometimes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A store to test.

    open: a store of its own, on connections of its own, over the keys below the given prefix. missing: a store whose bucket does not exist;
    None when the scheme makes its bucket with the first write. uploads: the keys of uploads in progress in the whole bucket, where that can
    be asked.
    secrets: strings that must never be shown. clients, increments: size of the races.
    """

    name: str
    open: Callable[[str], FileIO]
    missing: Callable[[], FileIO] | None = None
    uploads: Callable[[], Sequence[str]] | None = None
    deviations: Sequence[Deviation] = ()
    secrets: Sequence[str] = ()
    clients: int = 16
    increments: int = 100
    filled: dict[str, Place] = field(default_factory=dict)
    """Places that tests only read, made once a subject."""

    def __repr__(self) -> str:
        return f"Subject({self.name!r})"


def described(name: str, description: StoreDescription, **more: Any) -> Subject:
    """The subject that a picklable description opens. more: further fields of `Subject`."""
    return Subject(name=name, open=lambda prefix: description.child(prefix).open(), **more)


@dataclass(slots=True)
class Place:
    """Keys of one test: a prefix that no other test uses. open: another client of them."""

    subject: Subject
    prefix: str
    opened: list[FileIO] = field(default_factory=list)

    def open(self) -> FileIO:
        store = self.subject.open(self.prefix)
        self.opened.append(store)
        return store

    def clear(self) -> None:
        """Delete its keys, as far as the store lets us, and close its clients."""
        with contextlib.suppress(FileIOError):
            found = self.open()
            found.delete(found.list_keys())
        for store in self.opened:
            store.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, subject: Subject) -> Iterator[Place]:
    """A fresh prefix of the subject, emptied afterwards as far as the store lets us."""
    expect_deviation(request, subject)
    found = Place(subject, f"conformance-{default_env().new_id()}")
    yield found
    found.clear()


@pytest.fixture
def store(place: Place) -> FileIO:
    """One client of the place."""
    return place.open()


def expect_deviation(request: pytest.FixtureRequest, subject: Subject) -> None:
    """Mark the test as one that must fail, when the subject lists it."""
    item = request.node
    assert isinstance(item, pytest.Function)
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")
    for deviation in subject.deviations:
        if deviation.test == item.originalname and deviation.case in (None, case):
            reason = f"{subject.name}: {deviation.reason}"
            item.add_marker(pytest.mark.xfail(strict=not deviation.sometimes, raises=deviation.raises, reason=reason))


# ---- helpers of the suite ----------------------------------------------------------------------------------------


def written(outcome: PutOutcome) -> Written:
    """The outcome, which must be Written."""
    assert isinstance(outcome, Written), f"the write ended as {outcome!r}"
    return outcome


def race(clients: int, act: Callable[[int], R]) -> list[R]:
    """What `act(0)` to `act(clients - 1)` return when all start at once, each in a thread of its own."""
    gate = threading.Barrier(clients)

    def start(number: int) -> R:
        gate.wait(timeout=60)
        return act(number)

    return list(SystemEnv(parallelism=clients).map(start, range(clients)))


__all__ = ["Deviation", "Place", "Subject", "described", "expect_deviation", "place", "race", "store", "written"]
