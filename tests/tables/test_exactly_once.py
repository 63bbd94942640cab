"""A write with an application's version counts once, however often and from wherever it is tried."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.common.validation import TableType
from objcat.errors import CommitUnknown, InvalidInput, StreamRewound
from objcat.metadata.replay import TablesReducer
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Footprint, new_txn
from objcat.timeline.log_view import Timeline
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string())])
KINDS = ["merge_on_read", "copy_on_write"]


@pytest.fixture
def backend() -> RacingBackend:
    return RacingBackend("once")


@pytest.fixture
def lake(backend: RacingBackend) -> objcat.Lake:
    return objcat.Lake(FileIO(backend, env=FakeEnv()))


def create(lake: objcat.Lake, kind: TableType = "merge_on_read") -> objcat.Table:
    return lake.create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(2))


def batch(version: int, app: str = "stream") -> tuple[list[dict[str, Any]], objcat.AppVersion]:
    return [{"id": version, "value": app}], objcat.AppVersion(app=app, version=version)


def write(table: objcat.Table, version: int, app: str = "stream", operation: str = "upsert") -> objcat.CommitResult:
    rows, app_version = batch(version, app)
    result: objcat.CommitResult = getattr(table, operation)(rows, app=app_version)
    return result


def keys(table: objcat.Table) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_arrow().column("id").to_pylist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", ["upsert", "insert", "delete"])
def test_a_version_that_the_table_has_is_not_written_again(lake: objcat.Lake, kind: TableType, operation: str) -> None:
    table = create(lake, kind)
    first = write(table, 7, operation=operation)
    before = set(table._context.fileio.list_keys())
    # A restarted process knows nothing of what it did before.
    again = write(lake.table("t"), 7, operation=operation)
    assert again.already_applied
    assert not first.already_applied
    assert (again.slot, again.txn, again.committed_at_ms) == (first.slot, first.txn, first.committed_at_ms)
    assert (again.rows, again.files, again.bytes, again.inserted, again.updated, again.deleted) == (0, 0, 0, 0, 0, 0)
    assert not [kind for kind in again.requests if kind.startswith("put")]
    assert set(table._context.fileio.list_keys()) == before
    assert len(table.inspect.history()) == 2


def test_an_older_version_is_not_written_either_and_the_next_one_is(lake: objcat.Lake) -> None:
    table = create(lake)
    write(table, 7)
    assert write(table, 3).already_applied
    assert not write(table, 8).already_applied
    assert not write(table, 1, app="another").already_applied
    assert keys(table) == [1, 7, 8]


def test_a_stale_handle_asks_before_it_writes(lake: objcat.Lake) -> None:
    create(lake)
    stale = lake.table("t")
    write(lake.table("t"), 7)
    result = write(stale, 7)
    assert result.already_applied
    assert not [kind for kind in result.requests if kind.startswith("put")]


def test_a_version_that_the_table_has_is_found_where_a_read_misses_its_slot_once(backend: RacingBackend, lake: objcat.Lake) -> None:
    create(lake)
    first = write(lake.table("t"), 7)
    slot = f"log/{first.slot:020d}.json"
    armed: list[bool] = []
    missed = Rule(kinds=frozenset({"get"}), key=lambda key: bool(armed) and key.endswith(slot), fault=Fault.MISSING)
    faulty = FaultyBackend(backend, [missed])
    table = objcat.Lake(FileIO(faulty, env=FakeEnv(3))).table("t")
    armed.append(True)
    again = write(table, 7)
    assert again.already_applied
    assert (again.slot, again.txn) == (first.slot, first.txn)
    assert sum(faulty.fired.values()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_zombie_and_its_successor_one_counts(lake: objcat.Lake, backend: RacingBackend, kind: TableType) -> None:
    """Both looked, both wrote their files; the slot decides."""
    table = create(lake, kind)
    backend.races = [lambda: write(lake.table("t"), 7)]
    result = write(table, 7)
    assert result.already_applied
    assert result.slot == 1
    assert [entry.action for entry in table.inspect.history()[1:]] == [Action.COMMIT if kind == "copy_on_write" else Action.DELTA_COMMIT]
    names = {key.split("/")[1] for key in table._context.fileio.list_keys("data/")}
    assert names == {result.txn}, "the one that did not count left files"
    assert not list(table._context.fileio.list_keys("intents/"))
    assert keys(table) == [7]


def test_a_write_whose_outcome_nobody_knew_is_simply_tried_again(backend: RacingBackend, lake: objcat.Lake) -> None:
    create(lake)
    slot = f"log/{1:020d}.json"
    armed: list[bool] = []
    rules = [
        Rule(kinds=frozenset({"put"}), key=lambda key: key.endswith(slot), fault=Fault.AFTER, times=100),
        Rule(kinds=frozenset({"head", "get"}), key=lambda key: bool(armed) and key.endswith(slot), fault=Fault.BEFORE, times=100),
    ]
    unlucky = objcat.Lake(FileIO(FaultyBackend(backend, rules), env=FakeEnv(3), policy=RetryPolicy(attempts_max=2)))
    backend.races = [lambda: armed.append(True)]
    with pytest.raises(CommitUnknown):
        write(unlucky.table("t"), 7)
    again = write(lake.table("t"), 7)
    assert again.already_applied
    assert keys(lake.table("t")) == [7]


def test_a_stream_whose_commits_were_taken_back_is_told_so(lake: objcat.Lake) -> None:
    table = create(lake)
    for version in (1, 2, 3):
        write(table, version)
    view = Timeline(table._context.fileio, TablesReducer()).open()
    restore = CommitAttempt(
        txn=new_txn(table._context.fileio.env),
        action=Action.RESTORE,
        base=view.log,
        changes={},
        footprint={table.id: Footprint(restores=1)},
        apps={table.id: {"stream": 1}},
    )
    slot = Committer(table._context.fileio).commit(restore).entry.slot
    assert keys(table) == [1]
    with pytest.raises(StreamRewound, match=r"Nothing was written\. Start it again from version 2, with resumed_after=4"):
        write(table, 4)
    rows, _ = batch(2)
    assert not table.upsert(rows, app=objcat.AppVersion(app="stream", version=2, resumed_after=slot)).already_applied
    assert keys(table) == [1, 2]


@pytest.mark.parametrize(("app", "version", "says"), [("", 1, "app is empty"), ("a", -1, "from 0 up"), ("a", True, "from 0 up")])
def test_a_version_that_is_none_is_refused(app: str, version: int, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        objcat.AppVersion(app=app, version=version)


def test_what_an_application_has_reached_comes_with_its_commit(lake: objcat.Lake) -> None:
    table = create(lake)
    assert table.applied("stream") is None
    write(table, 3)
    rows, app = batch(4)
    done = table.upsert(rows, app=app, metadata={"offsets": "0:12"})
    write(table, 9, app="another")
    reached = lake.table("t").applied("stream")
    assert reached == objcat.AppliedVersion(
        app="stream", version=4, slot=done.slot, txn=done.txn, committed_at_ms=done.committed_at_ms, metadata={"offsets": "0:12"}
    )
    restored = table.restore(to=1).slot
    again = table.applied("stream")
    assert again is not None
    assert (again.version, again.slot, again.rewound_at) == (3, restored, restored)
    with pytest.raises(InvalidInput):
        table.applied("")
