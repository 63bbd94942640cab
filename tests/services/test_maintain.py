"""A round of maintenance does what the policy says is due, within its budget, and says what it did and what it left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.testing.faults import Fault, FaultyBackend, Rule
from objcat.common.validation import TableType
from objcat.errors import InvalidInput, TableClosed
from objcat.inspection.doctor import examine
from objcat.maintenance.maintain import maintain
from objcat.timeline.entry import Action
from objcat.timeline.log_view import LogView, Timeline
from tests.services.world import World, history, once, rows

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def ran(done: objcat.MaintenanceReport) -> list[str]:
    return [step.service for step in done.did]


def test_nothing_is_due_in_a_young_table() -> None:
    world = World()
    world.upsert(*rows(6))
    done = maintain(world.timeline(), world.id, name="t")
    assert (done.table, done.steps, done.io_bytes) == ("t", (), 0)
    world.check()


def test_what_is_due_is_done_once() -> None:
    world = World()
    for number in range(6):
        world.upsert(*rows(3, value=number, order=number))
    before = world.read()
    world.table.set_properties({"compact_after_commits": "6", "split_above_bytes": "1000", "keep_commits": "2"})
    done = maintain(world.timeline(), world.id)
    assert ran(done) == ["split", "compact"], done
    assert not done.left and done.io_bytes > 0
    assert world.read() == before
    for number in range(2):
        world.table.upsert([{"id": 1, "v": 50 + number, "o": 50}])
    world.table.set_properties(unset=["split_above_bytes"])
    again = maintain(world.timeline(), world.id)
    # The states that only log rows of before the compaction make up are not kept any more.
    assert ran(again) == ["clean"]
    assert world.read() == {**before, 1: 51}


def test_a_budget_of_bytes_leaves_groups_and_says_so() -> None:
    world = World(buckets=4)
    world.table.set_properties({"compact_after_commits": "1000"})
    for number in range(3):
        world.upsert(*rows(20, value=number, order=number))
    world.table.set_properties({"compact_after_commits": "2", "compact_io_bytes_max": "1"})
    before = world.read()
    one = maintain(world.timeline(), world.id, io_bytes_max=1)
    assert ran(one) == ["compact"]
    (left,) = one.left
    assert left.service == "compact" and "the budget ends before 3 file groups" in left.why and not left.failed
    # Without a bound, a commit for each group, as the policy's own bound says.
    rest = maintain(world.timeline(), world.id)
    assert ran(rest) == ["compact"] * 3 and not rest.left
    assert world.read() == before
    assert maintain(world.timeline(), world.id, seconds_max=0).did == ()
    assert all("no time left" in step.why for step in maintain(world.timeline(), world.id, seconds_max=0).left)


def test_two_machines_do_one_work_once() -> None:
    world = World()
    world.upsert(*rows(6))
    for number in range(16):
        world.upsert((number % 6, number, number + 2))
    before = world.read()
    raced: list[objcat.MaintenanceReport] = []
    late = world.timeline(once("put", "log/", lambda: raced.append(maintain(world.timeline(), world.id))))
    mine = maintain(late, world.id)
    # The other one has seen that somebody is at it, and left it.
    assert ran(mine) == ["compact"]
    assert ran(raced[0]) == [] and "is compacting the table" in raced[0].left[0].why
    assert world.read() == before
    assert [entry.action for entry in history(world)].count(Action.COMPACTION) == 1


def test_a_scheduled_compaction_is_executed_and_counts() -> None:
    world = World()
    world.upsert(*rows(6))
    plan = world.table.maintenance.schedule_compaction()
    done = maintain(world.timeline(), world.id)
    assert plan is not None and ran(done) == ["execute"] and done.io_bytes > 0
    assert history(world)[-1].plan == plan.txn


def test_a_service_that_fails_is_left_and_the_others_go_on() -> None:
    world = World()
    for number in range(20):
        world.upsert((1, number, number), (2, number, number))
    store = FaultyBackend(
        world.backend,
        [Rule(kinds=frozenset({"put", "upload_start"}), key=lambda key: "/data/" in key, fault=Fault.BEFORE, times=10_000)],
    )
    done = maintain(world.on(world.store_on(store)), world.id)
    assert [(step.service, step.failed) for step in done.left] == [("compact", True)] and done.did == ()
    world.check()
    assert ran(maintain(world.timeline(), world.id)) == ["compact"]


def test_a_lake_is_maintained_within_one_budget(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    names = ["a.one", "a.two", "b.three"]
    for name in names:
        table = lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(1))
        for number in range(17):
            table.upsert([{"id": number % 3, "v": number}])
    lake.create_table("b.dropped", SCHEMA, key=["id"])
    lake.drop_table("b.dropped")
    first = lake.maintain(io_bytes_max=1)
    assert [done.table for done in first] == names
    # The budget is spent with the first file group; each other table is told that there is only a byte left, and takes one all the same.
    assert all(ran(done) == ["compact"] for done in first)
    assert [done.steps for done in lake.maintain()] == [(), (), ()]
    assert [done.table for done in lake.maintain(namespace="a")] == names[:2]
    with pytest.raises(InvalidInput, match="io_bytes_max"):
        lake.maintain(io_bytes_max=0)


def test_a_dropped_table_is_not_maintained() -> None:
    world = World()
    objcat.Lake(world.store()).drop_table("t")
    with pytest.raises(TableClosed):
        maintain(world.timeline(), world.id)


# ---- metrics, and who wants to know of commits


def parsed(text: str) -> dict[str, float]:
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}


def test_metrics_are_what_the_table_is() -> None:
    world = World()
    world.insert(*rows(10))
    world.upsert(*rows(4, value=2, order=2))
    world.table.maintenance.schedule_compaction()
    values = parsed(world.table.maintenance.metrics())
    assert values['objcat_slot{table="t"}'] == 2 and values['objcat_scheduled_plans{table="t"}'] == 1
    assert values['objcat_log_to_base_ratio{table="t"}'] > 0 and values['objcat_file_groups_unmerged{table="t"}'] == 2
    assert values['objcat_recent_commits{table="t",action="DELTA_COMMIT"}'] == 2
    assert values['objcat_recent_requests{table="t",kind="put_create"}'] >= 4
    assert values['objcat_recent_conflicts{table="t"}'] == 0
    assert values['objcat_recent_commit_seconds{table="t",quantile="1.0"}'] >= 0
    assert values['objcat_data_lag_seconds{table="t"}'] >= 0
    world.table.maintenance.compact()
    assert parsed(world.table.maintenance.metrics())['objcat_log_to_base_ratio{table="t"}'] == 0


def test_metrics_of_a_lake_name_each_metric_once(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    for name in ("one", "tw-o"):
        lake.create_table(name, SCHEMA, key=["id"]).upsert([{"id": 1, "v": 1}])
    text = lake.metrics()
    helps = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
    assert len(helps) == len(set(helps)) > 12
    assert parsed(text)['objcat_slot{table="one"}'] == parsed(text)['objcat_slot{table="tw-o"}'] == 1


def test_listeners_are_told_of_commits_and_cannot_fail_them(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    told: list[Any] = []

    def fail(result: objcat.CommitResult) -> None:
        raise ValueError(f"slot {result.slot} is none of mine")

    end = world.table.on_commit(told.append)
    world.table.on_commit(fail)
    slot = world.upsert(*rows(3))
    done = world.table.delete("id = 1")
    app = objcat.AppVersion(app="a", version=1)
    for _ in range(2):
        world.table.upsert([{"id": 9, "v": 9, "o": 9}], app=app)
    assert [result.slot for result in told] == [slot, done.slot if done else None, slot + 2]
    assert "A listener of" in caplog.text
    end()
    end()
    world.table.upsert([{"id": 1, "v": 1, "o": 1}])
    assert len(told) == 3


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_a_record_index_that_has_much_to_merge_is_merged_without_the_rows(tmp_path: Path, kind: TableType) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.RecordIndex(1))
    for number in range(20):
        table.upsert([{"id": number, "v": 0}])
    table.set_properties({"compact_after_commits": "1000"})
    bases = set(table.inspect.files().column("path").to_pylist())
    done = table.maintenance.run()
    assert ran(done) == ["index"], done
    assert set(table.inspect.files().column("path").to_pylist()) == bases
    index = table.snapshot.index
    assert index is not None
    assert not any(group.logs for group in index.file_groups(table._context.manifests))
    assert ran(table.maintenance.run()) == []
    assert table.upsert([{"id": 7, "v": 1}]).updated in (1, None)
    assert table.scan().count() == 20
    assert examine(table._context.timeline, deep=True).healthy


def test_a_round_opens_the_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(40):
        world.upsert(*rows(2, value=number, order=number))
    maintain(world.timeline(), world.id)
    opened: list[int] = []
    open_log = Timeline.open

    def counted(timeline: Timeline[Any]) -> LogView[Any]:
        before = timeline.fileio.metrics.snapshot()
        view = open_log(timeline)
        opened.append((timeline.fileio.metrics.snapshot() - before).request_count)
        return view

    monkeypatch.setattr(Timeline, "open", counted)
    timeline = world.timeline()
    opened.clear()
    before = timeline.fileio.metrics.snapshot()
    done = maintain(timeline, world.id, verify_bytes_max=0)
    assert not done.steps and len(opened) == 1
    # Each service looks for newer entries, and some list what writers left.
    assert (timeline.fileio.metrics.snapshot() - before).request_count - opened[0] <= 20
