"""Settling a transaction whose writer died or does not know: the log decides, and only what lost is deleted."""

from __future__ import annotations

import pytest

from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.errors import Fenced
from objcat.timeline import Action, CommittedAt, Committer, Log, RolledBackAt, new_txn, resolve
from objcat.timeline.entry import data_prefix, intent_key
from tests.timeline.test_commit import candidate


def test_a_dead_writer_is_fenced_first_and_its_files_go_then() -> None:
    fileio = FileIO(MemoryBackend("dead"))
    Committer(fileio).commit(candidate(fileio, -1))
    own = candidate(fileio, 0)
    Committer(fileio).announce(own.txn, own.action, 0, engine="test").result()
    fileio.put(data_prefix(own.txn) + "a.parquet", b"rows")
    assert resolve(fileio, own.txn) == RolledBackAt(1, files=1)
    entry = Log(fileio).read_slot(1)
    assert entry is not None and (entry.action, entry.rollback_of) == (Action.ROLLBACK, own.txn)
    assert list(fileio.list_keys(data_prefix(own.txn))) == []
    assert not fileio.exists(intent_key(own.txn))
    with pytest.raises(Fenced):
        Committer(fileio).commit(own)
    assert Log(fileio).read_slot(2) is None


def test_a_committed_transaction_stays_committed_and_keeps_its_files() -> None:
    fileio = FileIO(MemoryBackend("committed"))
    own = candidate(fileio, -1)
    Committer(fileio).commit(own)
    fileio.put(data_prefix(own.txn) + "a.parquet", b"rows")
    assert resolve(fileio, own.txn) == CommittedAt(0)
    assert list(fileio.list_keys(data_prefix(own.txn))) == [data_prefix(own.txn) + "a.parquet"]
    assert Log(fileio).read_slot(1) is None


def test_rolling_back_twice_takes_one_slot_and_finishes_the_deletes() -> None:
    fileio = FileIO(MemoryBackend("twice"))
    txn = new_txn(fileio.env)
    assert resolve(fileio, txn) == RolledBackAt(0, files=0)
    fileio.put(data_prefix(txn) + "late.parquet", b"written by a zombie")
    assert resolve(fileio, txn) == RolledBackAt(0, files=1)
    assert Log(fileio).read_slot(1) is None


def test_a_rollback_that_loses_its_slot_to_the_target_reports_the_commit() -> None:
    memory = MemoryBackend("race")
    fileio = FileIO(memory)
    own = candidate(fileio, -1)

    class TargetFirst(MemoryBackend):
        """The target commits between the rollback's look at the log and its claim."""

        def put(self, key, data, mode, metadata):
            if key.startswith("log/") and b'"ROLLBACK"' in bytes(data) and Log(fileio).read_slot(0) is None:
                Committer(fileio).commit(own)
            return memory.put(key, data, mode, metadata)

        def __getattribute__(self, name):
            return object.__getattribute__(self, name) if name == "put" else getattr(memory, name)

    assert resolve(FileIO(TargetFirst("race")), own.txn) == CommittedAt(0)
    assert Log(fileio).read_slot(1) is None
