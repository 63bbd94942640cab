"""`Subject`: a store under the conformance suite, with its known deviations.

A third party runs the whole suite like this:

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
    """A test that a store is known to fail. The test still runs; when it passes, the run fails, because the entry is out of date.

    Args:
        test: Name of the test function.
        reason: What the store does instead.
        case: The parameter of the test; None means all.
        raises: The class of the failure. Any other fails the run.
        sometimes: It takes a race, so the test may also pass.
    """

    test: str
    reason: str
    case: str | None = None
    raises: type[BaseException] | tuple[type[BaseException], ...] = AssertionError
    sometimes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A store to test.

    Args:
        name: The name in reports.
        open: Opens a store over the keys below a prefix, with its own connections.
        missing: Opens a store whose bucket does not exist; None when the first write creates the bucket.
        uploads: The keys of uploads in progress in the whole bucket, where the store can list them.
        deviations: The tests that it is known to fail.
        secrets: Texts that must never be shown.
        clients: The number of clients in races.
        increments: The number of increments of each client.
        filled: Places that tests only read, created once per subject.
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

    def __repr__(self) -> str:
        return f"Subject({self.name!r})"


def described(name: str, description: StoreDescription, **more: Any) -> Subject:
    """The subject that a picklable description opens. `more`: other fields of `Subject`."""
    return Subject(name=name, open=lambda prefix: description.child(prefix).open(), **more)


@dataclass(slots=True)
class Place:
    """The keys of one test, below a prefix that no other test uses."""

    subject: Subject
    prefix: str
    opened: list[FileIO] = field(default_factory=list)

    def open(self) -> FileIO:
        """Another client of the keys."""
        store = self.subject.open(self.prefix)
        self.opened.append(store)
        return store

    def clear(self) -> None:
        """Delete the keys, as far as the store allows, and close the clients."""
        with contextlib.suppress(FileIOError):
            found = self.open()
            found.delete(found.list_keys())
        for store in self.opened:
            store.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, subject: Subject) -> Iterator[Place]:
    """A fresh prefix of the subject, emptied afterwards as far as the store allows."""
    expect_deviation(request, subject)
    found = Place(subject, f"conformance-{default_env().new_id()}")
    yield found
    found.clear()


@pytest.fixture
def store(place: Place) -> FileIO:
    """One client of the place."""
    return place.open()


def expect_deviation(request: pytest.FixtureRequest, subject: Subject) -> None:
    """Mark the test as one that must fail if the subject lists it."""
    item = request.node
    assert isinstance(item, pytest.Function)
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")
    for deviation in subject.deviations:
        if deviation.test == item.originalname and deviation.case in (None, case):
            reason = f"{subject.name}: {deviation.reason}"
            item.add_marker(pytest.mark.xfail(strict=not deviation.sometimes, raises=deviation.raises, reason=reason))


# ---- helpers of the suite ----------------------------------------------------------------------------------------


def written(outcome: PutOutcome) -> Written:
    """Return the outcome, which must be Written."""
    assert isinstance(outcome, Written), f"the write ended as {outcome!r}"
    return outcome


def race(clients: int, act: Callable[[int], R]) -> list[R]:
    """The results of `act(0)` to `act(clients - 1)`, which start at once, each in its own thread."""
    gate = threading.Barrier(clients)

    def start(number: int) -> R:
        gate.wait(timeout=60)
        return act(number)

    return list(SystemEnv(parallelism=clients).map(start, range(clients)))


__all__ = ["Deviation", "Place", "Subject", "described", "expect_deviation", "place", "race", "store", "written"]
