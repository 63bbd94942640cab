"""Settling a transaction whose writer died, or does not know: claim a ROLLBACK slot first, and only then delete what it wrote.

Slots are dense, so the ROLLBACK takes the only slot in which a pending request of its target could still land. A writer that was only slow
reads every slot below the one it claims and sees its rollback: the fence is the log, not a clock or a lease.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fileio.store import FileIO
from objcat.timeline.commit import Candidate, Committer, remove_files
from objcat.timeline.entry import Action, Entry, Txn, data_prefix, intent_key, new_txn
from objcat.timeline.log import Log
from objcat.timeline.state import LogState


@dataclass(frozen=True, slots=True)
class CommittedAt:
    """The transaction is durable in this slot; its files were left alone."""

    slot: int


@dataclass(frozen=True, slots=True)
class RolledBackAt:
    """The transaction never was and never will be committed: this slot fences it. files: objects of it that were deleted."""

    slot: int
    files: int


Resolution: TypeAlias = CommittedAt | RolledBackAt


def resolve(fileio: FileIO, txn: Txn) -> Resolution:
    """Settle the outcome of `txn` for ever: committed, or rolled back by this call (or by an earlier one), its files removed.

    Safe beside its writer and beside other calls. Raises CommitUnknown when the store does not answer: call it again.
    """
    entries = Log(fileio).read_after(-1)
    found = next((entry for entry in entries if txn in (entry.txn, entry.rollback_of)), None)
    if found is None:
        found = _claim(fileio, txn, entries)
    if found.txn == txn:
        remove_files(fileio, [intent_key(txn)], why=txn)
        return CommittedAt(found.slot)
    keys = list(fileio.list_keys(data_prefix(txn)))
    remove_files(fileio, [*keys, intent_key(txn)], why=txn)
    return RolledBackAt(found.slot, len(keys))


def _claim(fileio: FileIO, txn: Txn, entries: list[Entry]) -> Entry:
    """The entry that settles `txn`: a ROLLBACK of ours, or what came first."""
    committer = Committer(fileio)
    own = new_txn(fileio.env)
    skew_ms = committer.announce(own, Action.ROLLBACK, len(entries) - 1, engine="rollback").result()
    committed = committer.commit(
        Candidate(
            txn=own,
            action=Action.ROLLBACK,
            base=LogState().advance(entries),
            changes={},
            footprint={},
            rollback_of=txn,
        ),
        skew_ms=skew_ms,
    )
    committer.retract(own)
    return committed.entry
