"""Compaction changes no row, keeps what late rows are measured by, and stands in nobody's way."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio.testing.faults import Request
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.errors import AlreadyDone, CommitConflict, TableClosed, WriterFenced
from objcat.maintenance.clean import clean
from objcat.maintenance.compact import CompactionPlan, compact, schedule_compaction, scheduled_compactions
from objcat.maintenance.restore import restore
from objcat.timeline.entry import Action, FileGroupId, new_txn
from objcat.timeline.rollback import resolve
from tests.services.world import World, close, history, once, planned, rows


@pytest.mark.parametrize("ordered", [True, False])
def test_a_compaction_changes_no_row_and_leaves_plain_files(ordered: bool) -> None:
    world = World(ordered=ordered)
    world.upsert(*rows(10))
    world.delete((1, 5), (2, 0))
    world.upsert((3, 7, 2))
    result = compact(world.timeline(), world.id)
    world.model.same()
    assert result is not None and result.slot == 4 and result.as_of == 3
    world.check()
    plan = objcat.Lake(world.store()).table("t").scan().plan
    assert len(plan.plain) == 2 and not plan.merged
    assert compact(world.timeline(), world.id) is None


def test_rows_keep_the_transaction_that_wrote_them() -> None:
    world = World(buckets=1)
    world.upsert((1, 1, 1), (2, 1, 1), (3, 1, 1))
    world.upsert((2, 2, 2))
    for _ in range(2):
        compact(world.timeline(), world.id)
        world.upsert((3, 3, 3))
    compact(world.timeline(), world.id)
    newest = world.timeline().open().slot
    (path,) = world.named(newest)
    found = pq.read_table(pa.BufferReader(world.timeline().fileio.read(path)), columns=["id", TXN_COLUMN]).to_pylist()
    entries = history(world)
    last = max(entry.slot for entry in entries if entry.action is Action.DELTA_COMMIT)
    assert {row["id"]: row[TXN_COLUMN] for row in found} == {1: entries[1].txn, 2: entries[2].txn, 3: entries[last].txn}


def test_late_update_after_a_compacted_delete() -> None:
    world = World()
    world.upsert(*rows(6, order=1))
    world.delete(*((key, 5) for key in range(4)))
    compact(world.timeline(), world.id)
    world.model.same()
    world.upsert((0, 9, 4), (1, 9, 5), (2, 9, 6))
    world.check()
    assert world.read().keys() == {1, 2, 4, 5}
    compact(world.timeline(), world.id)
    world.model.same()
    world.upsert((3, 9, 4), (2, 9, 5))
    world.check()


def test_a_delete_that_a_compaction_keeps_counts_below_log_rows_that_it_left() -> None:
    """Equal ordering values are decided by the slot, and a barrier ends tombstones before it: the tombstone's own slot is the older one."""
    world = World(buckets=1)
    world.upsert((1, 1, 1), (2, 1, 1))
    world.delete((1, 5), (2, 5))
    plan = planned(world)
    world.upsert((1, 7, 5))
    world.delete((2, None))
    world.upsert((2, 8, 3))
    assert compact(world.timeline(), world.id, plan=plan) is not None
    world.model.same()
    assert world.read() == {1: 7, 2: 8}
    world.check()


def test_a_barrier_and_an_older_late_row() -> None:
    world = World()
    world.upsert(*rows(4, order=9))
    world.delete((1, None), (2, None))
    compact(world.timeline(), world.id)
    world.model.same()
    world.upsert((1, 3, 0))
    world.check()
    assert world.read() == {0: 1, 1: 3, 3: 1}


def test_two_first_writes_of_a_bucket_are_compacted_into_one_base() -> None:
    world = World(buckets=1)
    other = objcat.Lake(world.store()).table("t")
    world.upsert((1, 1, 1))
    other.upsert([{"id": 2, "v": 2, "o": 2}])
    world.model.upsert([(2, 2, 2)])
    compact(world.timeline(), world.id)
    world.model.same()
    world.check()
    assert len(world.named(3)) == 1


def test_writers_go_on_during_a_compaction_and_never_conflict() -> None:
    world = World()
    world.upsert(*rows(6))

    def write() -> None:
        world.upsert((1, 50, 50), (6, 1, 1))
        world.delete((2, 50))

    for at in range(1, 60):
        acted: list[int] = []

        def act(request: Request, at: int = at, acted: list[int] = acted) -> None:
            if request.number == at and not acted:
                acted.append(1)
                write()

        done = compact(world.timeline(act), world.id)
        if done is not None:
            world.model.same()
        world.check()
        if not acted:
            break
    else:
        pytest.fail("a compaction sends less requests than that")
    assert all(entry.summary is None or entry.summary.attempts == 1 for entry in history(world))


def test_two_workers_execute_one_compaction_plan_the_older_last() -> None:
    world = World()
    world.upsert(*rows(6))
    plan = CompactionPlan(1, planned(world).file_groups, new_txn(world.store().env))
    raced: list[Any] = []
    late = world.timeline(once("put", "log/", lambda: raced.append(compact(world.timeline(), world.id, plan=plan))))
    with pytest.raises(AlreadyDone):
        compact(late, world.id, plan=plan)
    assert raced[0].slot == 2
    world.model.same()
    world.upsert((1, 3, 3))
    with pytest.raises(AlreadyDone):
        compact(world.timeline(), world.id, plan=plan)
    world.check()
    world.check_files_after_clean()


def test_a_scheduled_plan_is_executed_once_whoever_finds_it() -> None:
    world = World()
    world.upsert(*rows(6))
    plan = schedule_compaction(world.timeline(), world.id)
    assert plan is not None and scheduled_compactions(world.timeline(), world.id) == [plan]
    world.upsert((1, 3, 3))
    raced: list[Any] = []
    late = world.timeline(once("put", "log/", lambda: raced.append(compact(world.timeline(), world.id, plan=plan))))
    with pytest.raises(AlreadyDone):
        compact(late, world.id, plan=plan)
    world.model.same()
    assert raced[0].as_of == 1 and history(world)[3].plan == plan.txn
    assert scheduled_compactions(world.timeline(), world.id) == []
    world.check()
    world.check_files_after_clean()
    assert schedule_compaction(world.timeline(), world.id) is not None


def test_two_compactors_share_the_work() -> None:
    """The slower one leaves the file groups that the faster one took, and does the others."""
    world = World(buckets=4)
    world.upsert(*rows(20))
    first = [FileGroupId("", 0, 4), FileGroupId("", 3, 4)]
    slow = world.timeline(once("put", "log/", lambda: compact(world.timeline(), world.id, file_groups=first)))
    done = compact(slow, world.id)
    assert done is not None and done.slot == 3
    assert set(done.file_groups) == {FileGroupId("", 1, 4), FileGroupId("", 2, 4)}
    world.model.same()
    world.model.same()
    world.check()
    world.check_files_after_clean()


def test_a_compactor_that_comes_too_late_for_everything_has_nothing_to_do() -> None:
    world = World()
    world.upsert(*rows(6))
    slow = world.timeline(once("put", "log/", lambda: compact(world.timeline(), world.id)))
    assert compact(slow, world.id) is None
    world.model.same()
    world.check()
    world.check_files_after_clean()


def test_a_rolled_back_plan_whose_executor_commits() -> None:
    world = World()
    world.upsert(*rows(6))
    txn = new_txn(world.store().env)
    plan = CompactionPlan(1, planned(world).file_groups, txn)
    slow = world.timeline(once("put", "log/", lambda: resolve(world.timeline().fileio, txn)))
    with pytest.raises(WriterFenced):
        compact(slow, world.id, plan=plan)
    world.model.same()
    world.check()
    world.check_files_after_clean()


def test_a_compaction_after_a_restore_plans_again() -> None:
    world = World()
    world.upsert(*rows(6))
    world.upsert(*rows(6, value=2, order=2))
    slow = world.timeline(once("put", "log/", lambda: restore(world.timeline(), world.id, to=1)))
    done = compact(slow, world.id)
    assert done is not None and done.as_of == 3
    world.model.restore(1)
    world.model.same()
    world.check()
    world.check_files_after_clean()


def test_a_plan_older_than_a_restore_is_refused() -> None:
    world = World()
    world.upsert(*rows(6))
    plan = planned(world)
    world.upsert(*rows(6, value=2, order=2))
    restore(world.timeline(), world.id, to=1)
    world.model.restore(1)
    with pytest.raises(CommitConflict, match="restored the table"):
        compact(world.timeline(), world.id, plan=plan)
    world.check()


def test_a_clean_under_a_compaction_makes_it_plan_again() -> None:
    """The files that it was to read are gone: that is no corruption, and the next plan finds others."""
    world = World(buckets=1)
    world.upsert((1, 1, 1))
    compact(world.timeline(), world.id)
    world.model.same()
    world.upsert((2, 2, 2))

    def overtake() -> None:
        compact(world.timeline(), world.id)
        clean(world.timeline(), world.id, keep_slots=1)
        world.model.same()
        world.model.same()
        world.upsert((3, 3, 3))

    slow = world.timeline(once("get", "data/", overtake))
    assert compact(slow, world.id) is not None
    world.model.same()
    world.check()


def test_a_dropped_table_is_not_compacted() -> None:
    world = World()
    world.upsert(*rows(3))

    def drop() -> None:
        close(world)

    with pytest.raises(TableClosed):
        compact(world.timeline(once("put", "log/", drop)), world.id)
    assert world.stored() == world.named(1)
