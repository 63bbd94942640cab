"""A write that another commit forestalls does again what that commit touched, and nothing else; where that does not help, it says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.common.validation import TableType
from objcat.engine.local import LocalEngine
from objcat.errors import CommitConflict, CommitUnknown, InvalidBatch, TableClosed
from objcat.metadata.manifest import Manifests
from objcat.metadata.replay import TablesReducer
from objcat.tasks.model import Operation, WriteResult, WriteTask
from objcat.timeline.attempt import CommitAttempt, CommitRetryPolicy
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, FileGroupId, Footprint, new_txn
from objcat.timeline.log_view import Timeline
from objcat.write.transaction import WriteOperation
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string())])
BUCKETS = 4


@pytest.fixture
def backend() -> RacingBackend:
    return RacingBackend("redo")


@pytest.fixture
def lake(backend: RacingBackend) -> objcat.Lake:
    return objcat.Lake(FileIO(backend))


def create(lake: objcat.Lake, kind: TableType = "copy_on_write", buckets: int = BUCKETS) -> objcat.Table:
    return lake.create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(buckets))


def rows(*keys: int, value: str = "a") -> list[dict[str, Any]]:
    return [{"id": key, "value": value} for key in keys]


def values(table: objcat.Table) -> dict[int, str]:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: row["value"] for row in found}


def files_of(table: objcat.Table, txn: str) -> set[str]:
    return set(table._context.fileio.list_keys(f"data/{txn}/"))


def named_by(table: objcat.Table, slot: int) -> set[str]:
    """The data files that the entry of a slot names."""
    snapshot = table.refresh()
    paths = {group.base.path for group in snapshot.file_groups(table._context.manifests) if group.base and group.base_slot == slot}
    for group in snapshot.file_groups(table._context.manifests):
        paths |= {part.object.path for part in group.logs if part.slot == slot}
    return paths


def operation(table: objcat.Table, committer: Committer, data: Any, engine: Any = None) -> WriteOperation[Any]:
    return WriteOperation(
        timeline=table._context.timeline,
        table=table.id,
        manifests=Manifests(table._context.fileio),
        committer=committer,
        engine=engine or LocalEngine(table._context.fileio),
        data=pa.Table.from_pylist(data) if isinstance(data, list) else data,
        operation=Operation.UPSERT,
    )


def test_only_the_bucket_that_another_commit_rewrote_is_done_again(lake: objcat.Lake, backend: RacingBackend) -> None:
    table = create(lake)
    table.upsert(rows(*range(40)))
    written: list[frozenset[FileGroupId] | None] = []
    engine = Recording(table._context.fileio, written)
    other = lake.table("t")
    backend.races = [lambda: other.upsert(rows(7, value="theirs"))]
    result, followed = operation(table, Committer(table._context.fileio), rows(*range(40, 80)), engine).run(table._context.timeline.open())
    assert (result.attempts, result.slots_lost, result.slot) == (2, 1, 3)
    assert (result.inserted, result.updated, result.files) == (40, 0, BUCKETS)
    assert [entry.slot for entry in followed] == [2, 3]
    theirs = other.inspect.history()[2].footprint[table.id].replaces
    assert written == [None, frozenset(theirs)]
    assert values(table) == dict.fromkeys(range(80), "a") | {7: "theirs"}
    # What the second try replaced is gone; everything that is there is named.
    assert files_of(table, result.txn) == named_by(table, result.slot)
    assert not list(table._context.fileio.list_keys("intents/"))


class Recording(LocalEngine):
    """A local engine that notes which buckets it was asked for."""

    def __init__(self, fileio: FileIO, written: list[frozenset[FileGroupId] | None]) -> None:
        super().__init__(fileio)
        self._written = written

    def write(self, data: pa.Table, task: WriteTask) -> WriteResult:
        self._written.append(task.only)
        return super().write(data, task)


def test_a_first_base_file_gives_way_to_rows_that_came_first(lake: objcat.Lake, backend: RacingBackend) -> None:
    table = create(lake, "merge_on_read")
    other = lake.table("t")
    backend.races = [lambda: other.upsert(rows(7, value="theirs"))]
    result = table.insert(rows(*range(20)))
    assert (result.attempts, result.inserted, result.rows) == (2, 20, 20)
    entry = table.inspect.history()[-1]
    footprint = entry.footprint[table.id]
    (bucket,) = other.inspect.history()[1].footprint[table.id].appends
    assert footprint.appends == (bucket,)
    assert len(footprint.creates) == BUCKETS - 1
    assert values(table) == dict.fromkeys(range(20), "a")
    assert files_of(table, result.txn) == named_by(table, result.slot)


def test_several_commits_in_a_row_are_each_given_way_to(lake: objcat.Lake, backend: RacingBackend) -> None:
    table = create(lake)
    other = lake.table("t")
    backend.races = [
        lambda: other.upsert(rows(1, value="first")),
        lambda: other.upsert(rows(2, value="second")),
        lambda: other.delete([{"id": 1}]),
    ]
    result = table.upsert(rows(3, 4, 5, 6, 7, 8, 9, 10))
    assert result.attempts == 4
    assert values(table) == {2: "second"} | dict.fromkeys(range(3, 11), "a")


class BusyEnv(FakeEnv):
    """While it sleeps, somebody else works."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.meanwhile: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.meanwhile()


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_a_writer_that_waits_wins_against_one_that_never_does(backend: RacingBackend, lake: objcat.Lake, kind: TableType) -> None:
    """What it claims after a pause is above all that was committed in the pause. It waits for whoever has waited longer, or conflicts."""
    create(lake, kind, buckets=1)
    others = [lake.table("t") for _ in range(3)]
    for _ in range(10):
        others[0].upsert(rows(50, value="before"))
    env = BusyEnv(7)
    table = objcat.Lake(FileIO(backend, env=env)).table("t")
    env.meanwhile = lambda: others[0].upsert(rows(102, value="theirs"))
    backend.races = [lambda: others[1].upsert(rows(100, value="theirs")), lambda: others[2].upsert(rows(101, value="theirs"))]
    result = table.upsert(rows(1))
    assert (result.slots_lost, len(env.sleeps_s)) == (2, 1)
    assert values(table) == {50: "before", 100: "theirs", 101: "theirs", 102: "theirs", 1: "a"}


def test_a_write_that_is_redone_keeps_its_transaction_and_can_still_be_fenced(lake: objcat.Lake, backend: RacingBackend) -> None:
    table = create(lake, buckets=1)
    other = lake.table("t")

    def roll_back() -> None:
        (txn,) = {key.split("/")[1] for key in other._context.fileio.list_keys("data/")} - {entry.txn for entry in other.inspect.history()}
        other.resolve(txn)

    backend.races = [lambda: other.upsert(rows(1)), roll_back]
    with pytest.raises(objcat.errors.WriterFenced):
        table.upsert(rows(2))
    assert values(lake.table("t")) == {1: "a"}


def test_what_others_appended_to_read_rows_is_never_lost(lake: objcat.Lake, backend: RacingBackend) -> None:
    """A delete that finds nothing depends on that."""
    table = create(lake, buckets=1)
    table.upsert(rows(1))
    other = lake.table("t")
    backend.races = [lambda: other.upsert(rows(2, value="theirs"))]
    assert table.delete([{"id": 2}]).deleted == 1
    assert values(table) == {1: "a"}


def test_attempts_are_bounded_and_the_error_says_who_won(lake: objcat.Lake, backend: RacingBackend) -> None:
    table = create(lake, buckets=1)
    other = lake.table("t")
    backend.races = [lambda: other.upsert(rows(1)), lambda: other.upsert(rows(1)), lambda: other.upsert(rows(1))]
    committer = Committer(table._context.fileio, CommitRetryPolicy(attempts_max=2))
    view = table._context.timeline.open()
    with pytest.raises(CommitConflict, match="It was tried 2 times") as caught:
        operation(table, committer, rows(2)).run(view)
    winner = other.inspect.history()[2]
    assert caught.value.winner_slot == 2
    assert winner.txn in str(caught.value)
    assert "bucket 0/1" in str(caught.value)
    named = {txn.txn for txn in other.inspect.history()}
    left = {key.split("/")[1] for key in table._context.fileio.list_keys("data/")}
    assert left <= named, "the loser left files behind"
    assert not list(table._context.fileio.list_keys("intents/"))


def test_nothing_is_redone_where_that_would_not_help(lake: objcat.Lake, backend: RacingBackend) -> None:
    table = create(lake)
    timeline = Timeline(table._context.fileio, TablesReducer())

    def close() -> None:
        Committer(table._context.fileio).commit(
            CommitAttempt(
                txn=new_txn(table._context.fileio.env),
                action=Action.CLOSE,
                base=timeline.open().log,
                changes={},
                footprint={table.id: Footprint()},
            )
        )

    backend.races = [close]
    with pytest.raises(CommitConflict, match="dropped") as caught:
        operation(table, Committer(table._context.fileio), rows(1)).run(table._context.timeline.open())
    assert caught.value.file_groups == ()
    with pytest.raises(TableClosed):
        table.upsert(rows(1))


def test_a_batch_that_changes_between_two_tries_is_refused(lake: objcat.Lake, backend: RacingBackend) -> None:
    table = create(lake, buckets=1)
    other = lake.table("t")
    backend.races = [lambda: other.upsert(rows(1))]

    class Fickle(LocalEngine):
        calls = 0

        def write(self, data: pa.Table, task: WriteTask) -> WriteResult:
            self.calls += 1
            return super().write(data.slice(0, data.num_rows - self.calls + 1), task)

    view = table._context.timeline.open()
    with pytest.raises(InvalidBatch, match="Cache or checkpoint"):
        operation(table, Committer(table._context.fileio), rows(2, 3), Fickle(table._context.fileio)).run(view)
    assert values(table) == {1: "a"}


def test_files_that_a_redo_replaced_stay_while_the_outcome_is_not_known(lake: objcat.Lake, backend: RacingBackend) -> None:
    create(lake, buckets=1)
    other = lake.table("t")

    armed: list[bool] = []

    def is_slot_2(key: str) -> bool:
        return bool(armed) and key.endswith(f"log/{2:020d}.json")

    rules = [
        Rule(kinds=frozenset({"put"}), key=lambda key: key.endswith(f"log/{2:020d}.json"), fault=Fault.AFTER, times=100),
        Rule(kinds=frozenset({"get", "head"}), key=is_slot_2, fault=Fault.BEFORE, times=100),
    ]
    unlucky = objcat.Lake(FileIO(FaultyBackend(backend, rules), env=FakeEnv(5), policy=RetryPolicy(attempts_max=2)))
    table = unlucky.table("t")
    backend.races = [lambda: other.upsert(rows(1)), lambda: armed.append(True)]
    with pytest.raises(CommitUnknown) as caught:
        table.upsert(rows(2))
    assert len(files_of(other, caught.value.txn)) == 2
    assert other.resolve(caught.value.txn) == objcat.CommittedAt(2)
    assert values(other) == {1: "a", 2: "a"}
