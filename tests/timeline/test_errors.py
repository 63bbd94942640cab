"""Errors cross processes whole: whoever catches one in the parent needs the transaction to settle it."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

import fileio.errors
import objcat.errors
from fileio import GetResult, NotWritten, ObjectMeta, OutcomeUnknown, PreconditionFailed, PutOutcome, Unavailable, Version, require_written
from objcat.errors import AlreadyApplied, CommitUnknown

ERRORS = [
    kind
    for module in (fileio.errors, objcat.errors)
    for kind in vars(module).values()
    if inspect.isclass(kind) and issubclass(kind, Exception)
]
GIVEN: dict[str, Any] = {
    "outcome": PreconditionFailed(Version("v1")),
    "winner_slot": 7,
    "version": 3,
    "file_groups": ("a",),
    "txn": "20261121T033800756Z-54015a233f04e16b",
}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_crosses_with_all_that_it_holds(kind: type[Exception]) -> None:
    """A task on a worker of Spark's tells its errors in this way."""
    wanted = inspect.signature(kind).parameters if inspect.isfunction(kind.__init__) else {}
    error = kind("what happened", **{name: value for name, value in GIVEN.items() if name in wanted})
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind and str(found) == "what happened"
    assert vars(found) == vars(error)


@pytest.mark.parametrize(
    "outcome",
    [
        PreconditionFailed(Version("v1"), GetResult(ObjectMeta("key", 2, Version("v1"), 5), b"it")),
        PreconditionFailed(),
        OutcomeUnknown(Unavailable("no answer")),
    ],
    ids=str,
)
def test_a_write_that_was_taken_for_granted_keeps_its_outcome(outcome: PutOutcome) -> None:
    with pytest.raises(NotWritten) as caught:
        require_written(outcome, "data/1.parquet")
    found = pickle.loads(pickle.dumps(caught.value))
    assert str(found) == str(caught.value)
    match outcome, found.outcome:
        case OutcomeUnknown(cause), OutcomeUnknown(crossed):
            assert (type(crossed), str(crossed)) == (type(cause), str(cause))
        case _:
            assert found.outcome == outcome


def test_an_unknown_commit_keeps_its_transaction() -> None:
    error = pickle.loads(pickle.dumps(CommitUnknown("nobody knows", "20261121T033800756Z-54015a233f04e16b")))
    assert type(error) is CommitUnknown
    assert (str(error), error.txn) == ("nobody knows", "20261121T033800756Z-54015a233f04e16b")


def test_a_conflict_keeps_its_kind_and_its_winner() -> None:
    error = pickle.loads(pickle.dumps(AlreadyApplied("it is there", winner_slot=7, file_groups=("a",))))
    assert type(error) is AlreadyApplied
    assert (str(error), error.winner_slot, error.file_groups) == ("it is there", 7, ("a",))
