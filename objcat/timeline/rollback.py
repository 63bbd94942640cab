"""`resolve`: settle a transaction whose writer died or does not know its outcome.

It claims a ROLLBACK slot first, and only then deletes what the transaction wrote. Slots are dense, so the ROLLBACK takes the only slot in
which a pending request of its target could still land. A slow writer reads every slot below the one it claims, and sees its rollback. The
fence is the log, not a clock or a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from fileio.store import FileIO
from objcat.errors import CheckpointCollected
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import Action, Entry, Txn, data_prefix, intent_key, new_txn
from objcat.timeline.error_location import says_where
from objcat.timeline.intents import remove_files
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.reopening import reopening
from objcat.timeline.txn_outcomes import TxnOutcome


@dataclass(frozen=True, slots=True)
class CommittedAt:
    """The transaction is durable in this slot. Its files were left alone."""

    slot: int


@dataclass(frozen=True, slots=True)
class RolledBackAt:
    """The transaction never was and never will be committed: this slot fences it.

    Args:
        slot: Slot of the ROLLBACK.
        files: How many of its objects were deleted.
    """

    slot: int
    files: int


Resolution: TypeAlias = CommittedAt | RolledBackAt
"""The outcome of a settled transaction."""


@says_where
def resolve(fileio: FileIO, txn: Txn, *, view: LogView[Any] | None = None) -> Resolution:
    """Settle the outcome of `txn` for ever: committed, or rolled back by this call or an earlier one. A rollback deletes its files.

    The outcome of an old transaction is found by O(log n) GETs. Safe while its writer and other calls run.

    Args:
        view: Of this log, at any slot. It saves opening the log.

    Raises:
        CommitUnknown: The store does not answer. Call it again.
    """
    outcome, log = _look_up(fileio, txn, view)
    if outcome is None:
        entry = _claim(fileio, txn, log)
        outcome = TxnOutcome(txn, entry.slot, txn in entry.txns, entry.committed_at_ms)
    if outcome.committed:
        remove_files(fileio, [intent_key(txn)], why=txn)
        return CommittedAt(outcome.slot)
    keys = list(fileio.list_keys(data_prefix(txn)))
    remove_files(fileio, [*keys, intent_key(txn)], why=txn)
    return RolledBackAt(outcome.slot, len(keys))


def _look_up(fileio: FileIO, txn: Txn, view: LogView[Any] | None) -> tuple[TxnOutcome | None, LogState]:
    """What the log says of `txn`, and the log up to the slot that was read."""
    timeline = _Decisions(fileio, _NoReducer())
    if view is not None:
        try:
            known = timeline.refresh(LogView(view.log, None, view.checkpoint, view.outcomes))
            return known.outcomes.find(fileio, txn), known.log
        except CheckpointCollected as error:
            timeline.pass_over(error)  # The view is older than the remaining checkpoints, or uses a damaged one.

    def look() -> tuple[TxnOutcome | None, LogState]:
        known = timeline.open()
        return known.outcomes.find(fileio, txn), known.log

    return reopening(timeline, look)


class _NoReducer:
    """A reducer that ignores changes."""

    def begin(self) -> None:
        return None

    def advance(self, state: None, entry: Entry, at: Callable[[int], None]) -> None:  # noqa: ARG002  (changes are ignored)
        return None

    def save(self, fileio: FileIO, state: None, folder: str) -> tuple[msgspec.Raw, None]:
        raise AssertionError(f"a checkpoint in {fileio.url}/{folder} would lose what changes mean: {state}")

    def load(self, payload: msgspec.Raw) -> None:  # noqa: ARG002  (the same)
        return None

    def objects(self, payload: msgspec.Raw) -> frozenset[str]:  # noqa: ARG002  (the same)
        return frozenset()


class _Decisions(Timeline[None]):
    """A log of which only the outcomes matter: changes in side objects are not read."""

    def advance(self, view: LogView[None], entries: Sequence[Entry]) -> LogView[None]:
        return LogView(view.log.advance(entries), None, view.checkpoint, view.outcomes.advance(entries))


def _claim(fileio: FileIO, txn: Txn, log: LogState) -> Entry:
    """The entry that settles `txn`: a ROLLBACK of ours, or an earlier entry."""
    committer = Committer(fileio)
    own = new_txn(fileio.env)
    session = CommitSession(committer, own)
    skew_ms = session.announce(Action.ROLLBACK, log, engine="rollback")
    candidate = CommitAttempt(txn=own, action=Action.ROLLBACK, base=log, changes={}, footprint={}, rollback_of=txn)
    with session:
        return session.commit(candidate, skew_ms=skew_ms()).entry
