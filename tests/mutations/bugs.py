"""Bugs of the protocol, each planted in the real code by replacing one function; and the cells in which each must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import fileio.read_back
import fileio.store
import fileio.write_outcomes
import objcat.timeline.commit
import objcat.timeline.conflicts
import objcat.timeline.intents
import objcat.timeline.log
import objcat.timeline.rollback
import objcat.write.transaction
import tests.explorer.roles
from fileio.contract import OutcomeUnknown, Overwrite, PreconditionFailed, PutOutcome, Written
from fileio.errors import Throttled
from fileio.store import FileIO
from fileio.write_outcomes import Absent, Foreign, WriteIsOurs
from objcat.errors import CommitConflict, CommitUnknown
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.conflicts import ConflictSide
from objcat.timeline.entry import Action, Entry, Txn, data_prefix, encode_entry, log_key
from objcat.timeline.intents import remove_files
from objcat.timeline.log import Log
from objcat.timeline.log_state import LogState
from objcat.timeline.rollback import CommittedAt, Resolution, RolledBackAt
from tests.explorer.cast import HOUR_MS
from tests.explorer.store import STORE_TIME_MS

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Bug:
    """plant: puts it in. broken: the property that must break. cells: where it is looked for, in this order."""

    name: str
    plant: Plant
    broken: str
    cells: tuple[str, ...]


BUGS: list[Bug] = []


def bug(name: str, broken: str, *cells: str) -> Callable[[Plant], Plant]:
    """Registers the function below as the planter of a bug."""

    def register(plant: Plant) -> Plant:
        BUGS.append(Bug(name, plant, broken, cells))
        return plant

    return register


# ---- settling ----------------------------------------------------------------------------------------------------


def _not_ours(meta: Any, write_id: str, mode: Any) -> Any:
    found = fileio.write_outcomes.evidence_of(meta, write_id, mode)
    return Foreign(found.version, came_instead=True) if isinstance(found, WriteIsOurs) else found


@bug("own failed condition taken as defeat", "P0", "write, rollback: 1 fault")
def _own_conflict(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fileio.read_back, "evidence_of", _not_ours)


@bug("own failed condition taken as defeat, and own entry not recognised", "P2", "write, write: 3 late requests", "write, write: 1 fault")
def _own_conflict_and_own_entry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fileio.read_back, "evidence_of", _not_ours)
    judge = objcat.timeline.commit._settled_by

    def blind(candidate: CommitAttempt, found: Entry) -> Entry | None:
        return None if found.txn == candidate.txn else judge(candidate, found)

    patch.setattr(objcat.timeline.commit, "_settled_by", blind)


@bug("whatever is found taken as one's own", "P3", "write, write: 1 fault", "write, write")
def _all_ours(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fileio.read_back, "evidence_of", lambda meta, write_id, mode: WriteIsOurs(meta.version))


@bug("a failed condition believed without reading back", "P0", "write, rollback: 1 fault")
def _no_read_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fileio.write_outcomes, "_judge", lambda read_back, *, mode, ambiguous: PreconditionFailed(None))


@bug("a read-back that finds nothing taken as failure", "P4", "write, write without retries: 2 faults")
def _absent_is_failure(patch: pytest.MonkeyPatch) -> None:
    def last_look(read_back: Any, cause: Exception) -> PutOutcome:
        found = read_back()
        if isinstance(found, Absent):
            raise Throttled("nothing is there")
        return Written(found.version) if isinstance(found, WriteIsOurs) else OutcomeUnknown(cause)

    patch.setattr(fileio.write_outcomes, "_last_look", last_look)


@bug("a failed condition with nothing behind it taken as certain", "P4", "write, write without retries: 2 faults")
def _contradiction_is_certain(patch: pytest.MonkeyPatch) -> None:
    last_look = fileio.write_outcomes._last_look

    def certain(read_back: Any, cause: Exception) -> PutOutcome:
        if isinstance(cause, fileio.write_outcomes.Contradicted):
            raise cause
        return last_look(read_back, cause)

    patch.setattr(fileio.write_outcomes, "_last_look", certain)


@bug("an unknown outcome raised as refusal", "P4", "write, write without retries: 2 faults")
def _unknown_is_refused(patch: pytest.MonkeyPatch) -> None:
    settle = fileio.write_outcomes.resolve_write_outcome

    def certain(*arguments: Any, **named: Any) -> PutOutcome:
        outcome = settle(*arguments, **named)
        if isinstance(outcome, OutcomeUnknown):
            raise Throttled("no answer, so it failed")
        return outcome

    patch.setattr(fileio.store, "resolve_write_outcome", certain)


@bug("an SDK that repeats a put unseen", "P2", "write, write: 3 late requests", "write, write: 1 fault")
def _blind_retry(patch: pytest.MonkeyPatch) -> None:
    """The second answer is believed; and so is the log, which is only asked who won, not whether it was oneself."""

    def repeat(attempt: Callable[[], PutOutcome], *_: Any, **__: Any) -> PutOutcome:
        outcome = attempt()
        return attempt() if isinstance(outcome, OutcomeUnknown) else outcome

    patch.setattr(fileio.store, "resolve_write_outcome", repeat)
    judge = objcat.timeline.commit._settled_by
    patch.setattr(objcat.timeline.commit, "_settled_by", lambda mine, found: None if found.txn == mine.txn else judge(mine, found))


# ---- the commit loop ---------------------------------------------------------------------------------------------


@bug("no fence check", "P2", "write, rollback")
def _no_fence(patch: pytest.MonkeyPatch) -> None:
    judge = objcat.timeline.commit._settled_by

    def blind(candidate: CommitAttempt, found: Entry) -> Entry | None:
        return None if found.rollback_of == candidate.txn else judge(candidate, found)

    patch.setattr(objcat.timeline.commit, "_settled_by", blind)


@bug("acknowledged because a slot names the transaction", "P3", "write, rollback")
def _named_is_committed(patch: pytest.MonkeyPatch) -> None:
    judge = objcat.timeline.commit._settled_by

    def names(candidate: CommitAttempt, found: Entry) -> Entry | None:
        return found if candidate.txn == found.rollback_of else judge(candidate, found)

    patch.setattr(objcat.timeline.commit, "_settled_by", names)


def _skipping_log(committed_at_ms: int) -> type[Log]:
    """A log that says of the next slot that somebody has it, since then, without reading it."""

    class Skipping(Log):
        def read_after(self, slot: int, **_: Any) -> list[Entry]:
            unread = Txn("20270115T080000000Z-ff00000000000001")
            return [Entry(format=1, slot=slot + 1, action=Action.DELTA_COMMIT, txn=unread, base=slot, committed_at_ms=committed_at_ms)]

    return Skipping


@bug("a slot skipped without reading who has it", "P2", "write, rollback")
def _skip_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.commit, "Log", _skipping_log(STORE_TIME_MS + HOUR_MS))


@bug("a slot skipped without reading its time", "P6", "write, write")
def _skip_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.commit, "Log", _skipping_log(0))


@bug("a lost slot asked for again for ever", "P11", "write, write")
def _never_on(patch: pytest.MonkeyPatch) -> None:
    class Deaf(Log):
        def read_after(self, slot: int, **_: Any) -> list[Entry]:
            return []

    patch.setattr(objcat.timeline.commit, "Log", Deaf)


@bug("no overlap check", "P9", "insert, insert")
def _no_overlap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.commit, "find_conflicts", lambda *_: ())


@bug("a base file below log rows that came first", "P9", "insert, write: 1 fault")
def _no_append_rule(patch: pytest.MonkeyPatch) -> None:
    def created(mine: ConflictSide, later: ConflictSide) -> Any:
        return objcat.timeline.conflicts._common(mine.footprint.creates, later.footprint.creates)

    patch.setattr(objcat.timeline.conflicts, "RULES", {"both created": created})


@bug("a creation does not mind another", "P3", "create, create")
def _create_over(patch: pytest.MonkeyPatch) -> None:
    overlaps = Committer._overlaps

    def careless(self: Committer, candidate: CommitAttempt, found: Entry) -> Any:
        return () if candidate.action is Action.CREATE else overlaps(self, candidate, found)

    patch.setattr(Committer, "_overlaps", careless)


@bug("raw wall clock", "P6", "write, write, store without a clock, an hour ahead and behind: 1 fault")
def _raw_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.commit, "max", lambda _, now_ms: now_ms, raising=False)


@bug("a slot put without a condition", "P1", "write, write")
def _overwrite(patch: pytest.MonkeyPatch) -> None:
    def put(self: Committer, entry: Entry) -> PutOutcome:
        return self.fileio.put(log_key(entry.slot), encode_entry(entry), Overwrite())

    patch.setattr(Committer, "_put", put)


@bug("an unknown commit taken as failed, its files deleted", "P4", "write, write without retries: 2 faults")
def _unknown_is_failed(patch: pytest.MonkeyPatch) -> None:
    commit = Committer.try_commit

    def certain(self: Committer, candidate: CommitAttempt, **named: Any) -> Any:
        try:
            return commit(self, candidate, **named)
        except CommitUnknown as error:
            raise CommitConflict("no answer, so it failed", winner_slot=-1) from error

    patch.setattr(Committer, "try_commit", certain)


@bug("an unknown commit's intent deleted", "P8", "write, write without retries: 2 faults")
def _intent_of_unknown(patch: pytest.MonkeyPatch) -> None:
    commit = Committer.try_commit

    def tidy(self: Committer, candidate: CommitAttempt, **named: Any) -> Any:
        try:
            return commit(self, candidate, **named)
        except CommitUnknown:
            self.delete_intent(candidate.txn)
            raise

    patch.setattr(Committer, "try_commit", tidy)


@bug("an unknown commit's files deleted", "P8", "write, write without retries: 2 faults")
def _files_of_unknown(patch: pytest.MonkeyPatch) -> None:
    commit = Committer.try_commit

    def tidy(self: Committer, candidate: CommitAttempt, **named: Any) -> Any:
        try:
            return commit(self, candidate, **named)
        except CommitUnknown:
            remove_files(self.fileio, list(self.fileio.list_keys(data_prefix(candidate.txn))), why="tidy")
            raise

    patch.setattr(Committer, "try_commit", tidy)


@bug("a loser of a slot deletes its files and goes on", "P7", "write, write")
def _loser_deletes(patch: pytest.MonkeyPatch) -> None:
    overlaps = Committer._overlaps

    def tidy(self: Committer, candidate: CommitAttempt, found: Entry) -> Any:
        remove_files(self.fileio, list(self.fileio.list_keys(data_prefix(candidate.txn))), why="tidy")
        return overlaps(self, candidate, found)

    patch.setattr(Committer, "_overlaps", tidy)


# ---- the log -----------------------------------------------------------------------------------------------------


@bug("a gap in the log ignored", "P0", "write, write, read")
def _gap_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "_fill_gaps", lambda self, first, found: [entry for entry in found if entry is not None])


@bug("a gap in the log taken as corruption at once", "P0", "write, write, read")
def _gap_is_corrupt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.log, "REREADS_MAX", 0)


@bug("a read that stops before the head", "P10", "write, write, read")
def _early_end(patch: pytest.MonkeyPatch) -> None:
    read_after = Log.read_after

    def short(self: Log, slot: int, **_: Any) -> list[Entry]:
        return read_after(self, slot, until=slot + 1)

    patch.setattr(Log, "read_after", short)


# ---- rollback ----------------------------------------------------------------------------------------------------


@bug("a rollback deletes before it claims", "P8", "write, rollback")
def _delete_first(patch: pytest.MonkeyPatch) -> None:
    claim = objcat.timeline.rollback._claim

    def tidy(fileio: Any, txn: Any, entries: Any) -> Entry:
        remove_files(fileio, list(fileio.list_keys(data_prefix(txn))), why=txn)
        return claim(fileio, txn, entries)

    patch.setattr(objcat.timeline.rollback, "_claim", tidy)


@bug("a rollback that claims no slot", "P8", "write, rollback")
def _no_claim(patch: pytest.MonkeyPatch) -> None:
    def claim(_: Any, txn: Any, log: LogState) -> Entry:
        return Entry(format=1, slot=log.slot + 1, action=Action.ROLLBACK, txn=txn + "-none", base=-1, committed_at_ms=0, rollback_of=txn)

    patch.setattr(objcat.timeline.rollback, "_claim", claim)


@bug("a rollback that does not look whether its target committed meanwhile", "P2", "write, rollback")
def _no_look(patch: pytest.MonkeyPatch) -> None:
    judge = objcat.timeline.commit._settled_by

    def blind(candidate: CommitAttempt, found: Entry) -> Entry | None:
        return None if found.txn == candidate.rollback_of else judge(candidate, found)

    patch.setattr(objcat.timeline.commit, "_settled_by", blind)


@bug("a rollback that does not see another one", "P2", "write, rollback, rollback")
def _two_rollbacks(patch: pytest.MonkeyPatch) -> None:
    judge = objcat.timeline.commit._settled_by

    def blind(candidate: CommitAttempt, found: Entry) -> Entry | None:
        own = found.rollback_of is not None and found.rollback_of == candidate.rollback_of and found.txn != candidate.txn
        return None if own else judge(candidate, found)

    patch.setattr(objcat.timeline.commit, "_settled_by", blind)


@bug("a rollback that does not look its target up first", "P2", "write, rollback")
def _no_look_up(patch: pytest.MonkeyPatch) -> None:
    def resolve(store: FileIO, txn: Txn) -> Resolution:
        found = objcat.timeline.rollback._claim(store, txn, LogState().advance(Log(store).read_after(-1)))
        return CommittedAt(found.slot) if found.txn == txn else RolledBackAt(found.slot, 0)

    patch.setattr(tests.explorer.roles, "resolve", resolve)


@bug("a rollback that deletes the files of somebody else", "P8", "write, write, rollback")
def _wrong_files(patch: pytest.MonkeyPatch) -> None:
    def newest(txn: Txn) -> str:
        return data_prefix(Txn(txn[:20] + "02" + txn[22:]))

    patch.setattr(objcat.timeline.rollback, "data_prefix", newest)


@bug("a heartbeat that brings back the intent that a rollback deleted", "P8", "slow write, rollback")
def _undead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.intents, "Update", lambda _: Overwrite())
