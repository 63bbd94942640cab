"""The errors of a commit: what each one says of the transaction, and the next step."""

from __future__ import annotations

from objcat.errors import CommitUnknown, Contention, WriterFenced
from objcat.timeline.entry import Entry, Txn


def outcome_unknown_after(txn: Txn, error: Exception) -> CommitUnknown:
    """The CommitUnknown after an error from outside, such as a signal handler or a full memory."""
    return CommitUnknown(
        f"It is not known whether {txn} was committed. It was interrupted while it claimed a slot ({type(error).__name__}: {error}). "
        "Nothing was deleted. Call table.resolve(txn) before you write again. It settles the outcome.",
        txn,
    )


def contended(txn: Txn, *, slots_lost: int, slot: int) -> Contention:
    """The Contention of a writer that gives up. slot: the last slot that it lost."""
    return Contention(
        f"{txn} gave up after it lost {slots_lost} slots to other writers, the last one slot {slot}. Nothing was written. "
        "Write again later, or with fewer writers.",
        winner_slot=slot,
    )


def fenced_by(rollback: Entry) -> WriterFenced:
    """The WriterFenced of a writer that finds its own rollback in the log."""
    return WriterFenced(
        f"{rollback.rollback_of} was rolled back at slot {rollback.slot} by {rollback.txn}, which took its writer for dead. "
        "Nothing was written. Write again."
    )


def outcome_open(txn: Txn, error: Exception, *, until: int) -> CommitUnknown:
    """The CommitUnknown of a writer that failed while others may still commit its transaction. until: the last slot that may."""
    return CommitUnknown(
        f"It is not known whether {txn} was committed. It asked other writers to commit it, up to slot {until}, and failed before it could "
        f"see whether they did ({type(error).__name__}: {error}). Nothing was deleted. Call table.resolve(txn) before you write again. "
        "It settles the outcome.",
        txn,
    )


def unread_after_put(txn: Txn, slot: int, cause: Exception) -> CommitUnknown:
    """The CommitUnknown of a writer that got no answer for its slot, and cannot read it."""
    return CommitUnknown(
        f"It is not known whether {txn} was committed at slot {slot} ({cause}). Nothing was deleted. "
        "Call table.resolve(txn) before you write again. It settles the outcome.",
        txn,
    )
