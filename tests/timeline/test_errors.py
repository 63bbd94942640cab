"""Errors cross processes whole: whoever catches one in the parent needs the transaction to settle it."""

from __future__ import annotations

import pickle

from objcat.errors import AlreadyApplied, CommitUnknown


def test_an_unknown_commit_keeps_its_transaction() -> None:
    error = pickle.loads(pickle.dumps(CommitUnknown("nobody knows", "20261121T033800756Z-54015a233f04e16b")))
    assert type(error) is CommitUnknown
    assert (str(error), error.txn) == ("nobody knows", "20261121T033800756Z-54015a233f04e16b")


def test_a_conflict_keeps_its_kind_and_its_winner() -> None:
    error = pickle.loads(pickle.dumps(AlreadyApplied("it is there", winner_slot=7, homes=("a",))))
    assert type(error) is AlreadyApplied
    assert (str(error), error.winner_slot, error.homes) == ("it is there", 7, ("a",))
