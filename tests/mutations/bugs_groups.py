"""Bugs of writers that commit together, planted as in `bugs.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

import objcat.timeline.commit
import objcat.timeline.commit_group
import objcat.timeline.dead_writers
import objcat.timeline.shared_slots
import objcat.timeline.txn_outcomes
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit_group import CommitGroup
from objcat.timeline.entry import Entry, Txn
from objcat.timeline.shared_slots import CommitRequest, may_commit, with_requests
from objcat.timeline.txn_outcomes import TxnOutcome
from tests.mutations.bugs import bug

HASTY = "together: write, write in haste: 1 fault"
ROLLBACK = "together: write, write, rollback"
ROLLBACK_AND_FAULT = "together: write, write, rollback: 1 fault at the log and the requests"
FAULTS = "together: write, write: 2 faults at the log and the requests"


@bug("a transaction is committed for another writer although a slot has it", "P2", HASTY, FAULTS)
def _included_twice(patch: pytest.MonkeyPatch) -> None:
    def wrong(request: CommitRequest, later: Iterable[Entry], *, slot: int) -> bool:
        return may_commit(request, [entry for entry in later if request.txn not in entry.txns], slot=slot)

    patch.setattr(objcat.timeline.commit_group, "may_commit", wrong)


@bug("entries below the base of who commits for others are not judged for these", "P2", "together: write, write, fresh write")
def _bases_left_out(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: CommitGroup, base: int, slot: int) -> list[Entry]:
        return [entry for number, entry in self._entries.items() if base < number < slot]

    patch.setattr(CommitGroup, "_later", wrong)


@bug("a transaction is committed for another writer although it is rolled back", "P2", ROLLBACK, ROLLBACK_AND_FAULT)
def _included_although_rolled_back(patch: pytest.MonkeyPatch) -> None:
    def wrong(request: CommitRequest, later: Iterable[Entry], *, slot: int) -> bool:
        return may_commit(request, [entry for entry in later if entry.rollback_of != request.txn], slot=slot)

    patch.setattr(objcat.timeline.commit_group, "may_commit", wrong)


@bug("a writer does not find itself in the slot of another one", "P2", "together: write, write", FAULTS)
def _not_found(patch: pytest.MonkeyPatch) -> None:
    settled_by = objcat.timeline.commit._settled_by

    def wrong(candidate: CommitAttempt, found: Entry) -> Entry | None:
        return settled_by(candidate, msgspec.structs.replace(found, also=()))

    patch.setattr(objcat.timeline.commit, "_settled_by", wrong)


@bug("the rows of others count before those of whose entry it is", "P5", "together: write, write", FAULTS)
def _others_first(patch: pytest.MonkeyPatch) -> None:
    def wrong(entry: Entry, requests: Sequence[CommitRequest]) -> Entry:
        made = with_requests(entry, requests)
        logs = {table: msgspec.json.decode(raw)["logs"] for table, raw in made.changes.items()}
        return msgspec.structs.replace(made, changes={table: _raw({"logs": found[::-1]}) for table, found in logs.items()})

    patch.setattr(objcat.timeline.commit, "with_requests", wrong)


@bug("a writer that fails forgets that others may commit it", "P4", "together: write, write: 1 fault", FAULTS)
def _forgets_its_request(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitGroup, "is_open", property(lambda _: False))


@bug("the outcomes of a log know one transaction of each slot", "P2", ROLLBACK, ROLLBACK_AND_FAULT)
def _one_outcome(patch: pytest.MonkeyPatch) -> None:
    outcomes_of = objcat.timeline.txn_outcomes.outcomes_of

    def wrong(entry: Entry) -> Iterable[TxnOutcome]:
        return outcomes_of(msgspec.structs.replace(entry, also=()))

    patch.setattr(objcat.timeline.txn_outcomes, "outcomes_of", wrong)


@bug(
    "a conflict of another writer is not looked for",
    "P7",
    "together: write, fresh write, restore",
)
def _conflict_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.shared_slots, "find_conflicts", lambda *_: ())


@bug("a sweep takes the files of a transaction in another one's slot for garbage", "P8", "together: write, write, sweep: 1 crash")
def _swept(patch: pytest.MonkeyPatch) -> None:
    unnamed = objcat.timeline.dead_writers._unnamed

    def wrong(timeline: Any, slot: int, txn: Txn, found: Any, names_of: Any) -> tuple[Entry, list[str]]:
        entry, _ = unnamed(timeline, slot, txn, found, names_of)
        return entry, [] if entry.txn == txn else list(found.files)

    patch.setattr(objcat.timeline.dead_writers, "_unnamed", wrong)


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
