"""Settling a transaction whose writer died or does not know: the log decides, and only what lost is deleted."""

from __future__ import annotations

import msgspec
import pytest

from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import CheckpointCollected, WriterFenced
from objcat.timeline import txn_outcomes
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Txn, data_prefix, intent_key, new_txn
from objcat.timeline.log import Log
from objcat.timeline.log_view import LogView
from objcat.timeline.rollback import CommittedAt, RolledBackAt, resolve
from objcat.timeline.txn_outcomes import TxnOutcome, TxnOutcomes
from tests.timeline.test_commit import candidate
from tests.timeline.toy import grow, open_toy


def test_a_dead_writer_is_fenced_first_and_its_files_go_then() -> None:
    fileio = FileIO(MemoryBackend("dead"))
    Committer(fileio).commit(candidate(fileio, -1))
    own = candidate(fileio, 0)
    Committer(fileio).announce(own.txn, own.action, own.base, engine="test").result()
    fileio.put(data_prefix(own.txn) + "a.parquet", b"rows")
    assert resolve(fileio, own.txn) == RolledBackAt(1, files=1)
    entry = Log(fileio).read_slot(1)
    assert entry is not None and (entry.action, entry.rollback_of) == (Action.ROLLBACK, own.txn)
    assert list(fileio.list_keys(data_prefix(own.txn))) == []
    assert not fileio.exists(intent_key(own.txn))
    with pytest.raises(WriterFenced):
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


# ---- the table of outcomes


def test_the_outcome_of_any_transaction_is_found_without_reading_the_log() -> None:
    fileio = FileIO(MemoryBackend("outcomes"), env=FakeEnv(3))
    timeline = open_toy(fileio)
    view, dead = timeline.open(), []
    for _ in range(30):
        view = grow(timeline, 20, view=view)
        dead.append(new_txn(fileio.env))
        resolve(fileio, dead[-1], view=view)
        view = timeline.refresh(view)
    assert view.outcomes.segments and view.checkpoint > 550
    entries = timeline.log.read_after(-1)
    for known in (None, view, timeline.at(100)):
        for entry in entries[::17]:
            before = fileio.metrics.snapshot()
            assert resolve(fileio, entry.txn, view=known) == CommittedAt(entry.slot)
            asked = (fileio.metrics.snapshot() - before).requests
            assert asked.get("list", 0) == 0
            assert asked["get"] <= (40 if known is None else 4 if known is view else 150), asked
        for number, txn in enumerate(dead):
            assert resolve(fileio, txn, view=known) == RolledBackAt(21 * number + 20, files=0)
    assert timeline.refresh(view).slot == view.slot


def test_segments_of_outcomes_are_merged_and_searched_by_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txn_outcomes, "INLINE_MAX", 4)
    monkeypatch.setattr(txn_outcomes, "MERGE_COUNT", 3)
    monkeypatch.setattr(txn_outcomes, "MERGED_MAX", 60)
    monkeypatch.setattr(txn_outcomes, "BLOCK_RECORDS", 5)
    fileio = FileIO(MemoryBackend("segments"))
    known = TxnOutcomes()
    shuffled = [Txn(f"20261121T093000123Z-{(slot * 7919) % 1009:016x}") for slot in range(500)]
    for slot, txn in enumerate(shuffled):
        known = TxnOutcomes(known.segments, (*known.recent, TxnOutcome(txn, slot, slot % 3 > 0, slot * 10)))
        if slot % 4 == 3:
            known = known.spilled(fileio, f"checkpoints/{slot:020d}/x/")
    assert sum(segment.count for segment in known.segments) + len(known.recent) == 500
    assert len(known.segments) < 25
    assert max(segment.count for segment in known.segments) <= 60
    slots = [(segment.first_slot, segment.last_slot) for segment in known.segments]
    assert slots == sorted(slots)
    for slot, txn in enumerate(shuffled):
        assert known.find(fileio, txn) == TxnOutcome(txn, slot, slot % 3 > 0, slot * 10)
    assert known.find(fileio, Txn("20261121T093000123Z-ffffffffffffffff")) is None
    assert known.find(fileio, Txn("20261121T093000123Z-0000000000000399")) is None
    fileio.delete([known.segments[0].path])
    with pytest.raises(CheckpointCollected, match="Open the table again"):
        known.find(fileio, known.segments[0].first_txn)


def test_a_view_whose_segments_were_collected_is_opened_anew() -> None:
    fileio = FileIO(MemoryBackend("collected"), env=FakeEnv(4))
    timeline = open_toy(fileio)
    view = grow(timeline, 300)
    old, txn = view.outcomes.segments[0], timeline.log.read_after(-1, until=0)[0].txn
    gone = LogView(view.log, view.state, view.checkpoint, TxnOutcomes((msgspec.structs.replace(old, path="checkpoints/gone.txt"),)))
    assert resolve(fileio, txn, view=gone) == CommittedAt(0)
