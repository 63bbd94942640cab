"""How a transaction ends, for each way in which its block can end: what becomes of its files, its intent and its slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fileio.errors import FileIOError
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import AlreadyDone, CommitConflict, CommitUnknown, ObjcatError, SharedTransaction
from objcat.timeline.attempt import CommitAttempt, Committed
from objcat.timeline.commit import Committer
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import Action, FileGroupId, Footprint, Txn, data_prefix, intent_key, new_txn, requested_key
from objcat.timeline.log import Log
from tests.timeline.test_commit import candidate

FROM_OUTSIDE = [KeyError("a handler of signals"), MemoryError("full"), RuntimeError("can't start new thread")]
CERTAIN = [ObjcatError("refused"), FileIOError("the store says no")]


@pytest.fixture
def fileio() -> FileIO:
    made = FileIO(MemoryBackend("sessions"), env=FakeEnv())
    Committer(made).commit(candidate(made, -1))
    return made


def begun(fileio: FileIO, own: CommitAttempt, *, plan: Txn | None = None, waits: bool = True) -> CommitSession:
    """A session that has announced itself and written one file."""
    session = CommitSession(Committer(fileio), own.txn, plan=plan, waits=waits)
    session.announce(own.action, own.base, engine="test")()
    fileio.put(data_prefix(own.txn) + "a.parquet", b"rows")
    return session


def left(fileio: FileIO, txn: Txn) -> tuple[bool, bool]:
    """Whether there are files and an intent of a transaction."""
    return bool(list(fileio.list_keys(data_prefix(txn)))), fileio.exists(intent_key(txn))


def test_a_commit_keeps_its_files_and_deletes_its_intent_and_its_plan(fileio: FileIO) -> None:
    own, plan = candidate(fileio, 0), new_txn(fileio.env)
    fileio.put(requested_key(plan), b"{}")
    with begun(fileio, own, plan=plan) as session:
        assert isinstance(session.try_commit(own, skew_ms=0), Committed)
    assert left(fileio, own.txn) == (True, False)
    assert not fileio.exists(requested_key(plan))


def test_what_a_commit_does_not_name_is_deleted(fileio: FileIO) -> None:
    own = candidate(fileio, 0)
    with begun(fileio, own) as session:
        fileio.put(data_prefix(own.txn) + "b.parquet", b"rows")
        session.superseded.append(data_prefix(own.txn) + "b.parquet")
        session.commit(own, skew_ms=0)
    assert list(fileio.list_keys(data_prefix(own.txn))) == [data_prefix(own.txn) + "a.parquet"]


def conflicting(fileio: FileIO) -> CommitAttempt:
    """A candidate at slot 0 that what stands in slot 1 leaves no room for."""
    footprint = {"t": Footprint(replaces=(FileGroupId("", 0, 1),))}
    Committer(fileio).commit(replace(candidate(fileio, 0), action=Action.COMMIT, footprint=footprint))
    return replace(candidate(fileio, 0), action=Action.COMMIT, footprint=footprint)


def test_a_conflict_leaves_nothing(fileio: FileIO) -> None:
    own = conflicting(fileio)
    with begun(fileio, own) as session:
        assert not isinstance(session.try_commit(own, skew_ms=0), Committed)
    assert left(fileio, own.txn) == (False, False)
    again = replace(own, txn=new_txn(fileio.env))
    with pytest.raises(CommitConflict), begun(fileio, again) as session:
        session.commit(again, skew_ms=0)
    assert left(fileio, again.txn) == (False, False)


@pytest.mark.parametrize("error", [*CERTAIN, *FROM_OUTSIDE], ids=repr)
def test_an_error_before_a_slot_was_asked_for_leaves_nothing(fileio: FileIO, error: Exception) -> None:
    own = candidate(fileio, 0)
    with pytest.raises(type(error), match=str(error.args[0])), begun(fileio, own):
        raise error
    assert left(fileio, own.txn) == (False, False)


def commit_and_raise(fileio: FileIO, own: CommitAttempt, error: Exception) -> None:
    with begun(fileio, own) as session:
        session.try_commit(own, skew_ms=0)
        raise error


@pytest.mark.parametrize("error", [*CERTAIN, *FROM_OUTSIDE], ids=repr)
def test_an_error_after_a_conflict_leaves_nothing(fileio: FileIO, error: Exception) -> None:
    own = conflicting(fileio)
    with pytest.raises(type(error)):
        commit_and_raise(fileio, own, error)
    assert left(fileio, own.txn) == (False, False)


def failing(session: CommitSession, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Callable[[CommitAttempt], object]:
    """A claim during which something raises."""

    def raises(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(session.committer, "_put", raises)
    return lambda own: session.try_commit(own, skew_ms=0)


@pytest.mark.parametrize("error", CERTAIN, ids=repr)
def test_a_refusal_of_the_slot_leaves_nothing(fileio: FileIO, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    own = candidate(fileio, 0)
    with pytest.raises(type(error)), begun(fileio, own) as session:
        failing(session, error, monkeypatch)(own)
    assert left(fileio, own.txn) == (False, False)


@pytest.mark.parametrize("error", FROM_OUTSIDE, ids=repr)
def test_an_error_from_outside_at_the_slot_is_an_unknown_outcome(fileio: FileIO, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    own = candidate(fileio, 0)
    with pytest.raises(CommitUnknown) as caught, begun(fileio, own) as session:
        failing(session, error, monkeypatch)(own)
    assert caught.value.txn == own.txn and caught.value.__cause__ is error
    assert left(fileio, own.txn) == (True, True)


@pytest.mark.parametrize("error", [*CERTAIN, *FROM_OUTSIDE], ids=repr)
def test_an_error_after_the_commit_deletes_nothing(fileio: FileIO, error: Exception) -> None:
    own = candidate(fileio, 0)
    with pytest.raises(CommitUnknown):
        commit_and_raise(fileio, own, error)
    assert left(fileio, own.txn) == (True, True)
    entry = Log(fileio).read_slot(1)
    assert entry is not None and entry.txn == own.txn


def test_an_unknown_outcome_deletes_nothing(fileio: FileIO) -> None:
    own = candidate(fileio, 0)
    with pytest.raises(CommitUnknown), begun(fileio, own):
        raise CommitUnknown("nobody knows", own.txn)
    assert left(fileio, own.txn) == (True, True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_the_end_of_the_process_deletes_nothing(fileio: FileIO, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    own = candidate(fileio, 0)
    with pytest.raises(type(error)), begun(fileio, own):
        raise error
    assert left(fileio, own.txn) == (True, True)
    own = candidate(fileio, 0)
    with pytest.raises(type(error)), begun(fileio, own) as session:
        failing(session, error, monkeypatch)(own)
    assert left(fileio, own.txn) == (True, True)


def test_a_plan_that_another_executed_goes_with_the_files(fileio: FileIO) -> None:
    own, plan = candidate(fileio, 0), new_txn(fileio.env)
    fileio.put(requested_key(plan), b"{}")
    with pytest.raises(ObjcatError), begun(fileio, own, plan=plan):
        raise ObjcatError("refused")
    assert fileio.exists(requested_key(plan))
    own = candidate(fileio, 0)
    with pytest.raises(AlreadyDone), begun(fileio, own, plan=plan):
        raise AlreadyDone("executed by another", winner_slot=0)
    assert left(fileio, own.txn) == (False, False)
    assert not fileio.exists(requested_key(plan))


def test_files_of_another_operation_with_the_same_id_stay(fileio: FileIO) -> None:
    """Its intent is there already, and the own work fails before anybody asks how the announcement went."""
    other = candidate(fileio, 0)
    begun(fileio, other)
    session = CommitSession(Committer(fileio), other.txn)
    session.announce(other.action, other.base, engine="test")
    with pytest.raises(ObjcatError, match="refused"), session:
        raise ObjcatError("refused")
    assert left(fileio, other.txn) == (True, True)
    second = CommitSession(Committer(fileio), other.txn)
    skew_ms = second.announce(other.action, other.base, engine="test")
    with pytest.raises(SharedTransaction), second:
        skew_ms()
    assert left(fileio, other.txn) == (True, True)
