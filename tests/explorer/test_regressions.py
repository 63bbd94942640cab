"""Counterexamples that the explorer found in the code, each as a plain test."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fileio.contract import Create, OutcomeUnknown, Written
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.errors import CommitUnknown
from objcat.lake.standalone import create_table_at, table_at
from objcat.metadata.replay import TablesReducer
from objcat.timeline import checkpoint
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Footprint, new_txn
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import Timeline

LOG = "log/"
SCHEMA = pa.schema([("k", pa.int64())])


def test_a_repeated_put_whose_read_back_is_stale_is_not_a_failure() -> None:
    """Our own first copy made the condition of its repetition fail, and the read did not see it yet: it was reported as never written."""
    memory = MemoryBackend("repeated")
    rules = [Rule(fault=Fault.TWICE, kinds=frozenset({"put"})), Rule(fault=Fault.STALE, kinds=frozenset({"head"}))]
    store = FileIO(FaultyBackend(memory, rules), env=FakeEnv(), policy=RetryPolicy(attempts_max=1))
    outcome = store.put("log/1", b"entry", Create())
    assert isinstance(outcome, (Written, OutcomeUnknown))
    assert memory.head("log/1").size == len(b"entry")


def test_the_intent_of_a_creation_that_may_still_land_stays() -> None:
    memory = MemoryBackend("create")
    rules = [Rule(fault=Fault.LATER, kinds=frozenset({"put"}), key=lambda key: LOG in key, times=99)]
    backend = FaultyBackend(memory, rules)
    place = FileIO(backend, env=FakeEnv(), policy=RetryPolicy(attempts_max=2)).child("t")
    with pytest.raises(CommitUnknown) as caught:
        create_table_at(place, SCHEMA, key=["k"])
    intents = list(place.list_keys("intents/"))
    assert intents == [f"intents/{caught.value.txn}.inflight.json"]
    backend.release()
    assert table_at(place).snapshot.slot == 0


def test_a_commit_that_is_found_in_its_slot_is_not_failed_by_what_comes_after() -> None:
    """The put was not answered, the entry was found, and then the look at the next slot failed: it was reported as failed."""
    memory = MemoryBackend("found")
    table = create_table_at(FileIO(memory, env=FakeEnv()), SCHEMA, key=["k"])
    rules = [
        Rule(fault=Fault.AFTER, kinds=frozenset({"put"}), key=lambda key: key.endswith("1.json")),
        Rule(fault=Fault.BEFORE, kinds=frozenset({"get"}), key=lambda key: key.endswith("1.json")),
        Rule(fault=Fault.BEFORE, kinds=frozenset({"get"}), key=lambda key: key.endswith("2.json"), times=99),
    ]
    fileio = FileIO(FaultyBackend(memory, rules), env=FakeEnv(), policy=RetryPolicy(attempts_max=1))
    log = LogState().advance(table.inspect.history())
    own = CommitAttempt(txn=new_txn(fileio.env), action=Action.DELTA_COMMIT, base=log, changes={}, footprint={table.id: Footprint()})
    assert Committer(fileio).commit(own).entry.slot == 1
    assert table.refresh().slot == 1


def test_the_intent_of_a_collection_that_may_still_land_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was deleted whatever came of the collection, so nobody could see any more that one was under way."""
    monkeypatch.setattr(checkpoint, "SPACING_SLOTS", 2)
    memory = MemoryBackend("collection")
    table = create_table_at(FileIO(memory, env=FakeEnv()), SCHEMA, key=["k"])
    timeline = Timeline(FileIO(memory, env=FakeEnv()), TablesReducer())
    for number in range(5):
        table.upsert([{"k": number}])
        timeline.publish(timeline.open())
    rules = [Rule(fault=Fault.LATER, kinds=frozenset({"put"}), key=lambda key: LOG in key, times=99)]
    faulty = FileIO(FaultyBackend(memory, rules), env=FakeEnv(), policy=RetryPolicy(attempts_max=2))
    with pytest.raises(CommitUnknown) as caught:
        collect_checkpoints(Timeline(faulty, TablesReducer()), Committer(faulty), keep=1)
    assert list(timeline.fileio.list_keys("intents/")) == [f"intents/{caught.value.txn}.inflight.json"]
