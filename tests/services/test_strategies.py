"""Which file groups a compaction takes; and plans that one process makes and another executes."""

from __future__ import annotations

import datetime as dt
import hashlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat import CompactionStrategy
from objcat.errors import AlreadyDone, InvalidInput
from objcat.maintenance.compact import compact, execute_scheduled, schedule_compaction, scheduled_compactions
from objcat.maintenance.restore import restore
from objcat.timeline.entry import Action
from objcat.timeline.rollback import resolve
from tests.services.world import World, history, once, rows

SCHEMA = pa.schema([pa.field("day", pa.string(), nullable=False), pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
DAYS = ("2026-11-01", "2026-11-02", "2026-11-03")


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    """Three days of one bucket each: the first has much to merge, in one run of log rows, the second little in three, the third little."""
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["day", "id"], partition_by=["day"], index=objcat.BucketIndex(1))
    table.insert([{"day": day, "id": number, "v": "-"} for day in DAYS for number in range(100)])
    table.upsert([{"day": DAYS[0], "id": number, "v": hashlib.sha256(bytes([number])).hexdigest()} for number in range(100)])
    for number in range(3):
        table.upsert([{"day": DAYS[1], "id": number, "v": "x"}])
    table.upsert([{"day": DAYS[2], "id": 1, "v": "x"}])
    return table


def merged(table: objcat.Table, **strategy: Any) -> list[str]:
    done = table.maintenance.compact(strategy=CompactionStrategy(**strategy))
    return [] if done is None else [DAYS[DAYS.index(group_id.partition.removeprefix("day="))] for group_id in done.file_groups]


@pytest.mark.parametrize(
    ("strategy", "days"),
    [
        ({}, DAYS),
        ({"log_count_min": 3}, DAYS[1:2]),
        ({"log_count_min": 4}, ()),
        ({"log_bytes_min": 3_000}, DAYS[:1]),
        ({"log_bytes_min": 1}, DAYS),
        ({"partitions_newest": 1}, DAYS[2:]),
        ({"partitions_newest": 2, "log_count_min": 2}, DAYS[1:2]),
        ({"partitions_older": 1}, DAYS[:2]),
        ({"partitions_older": 3}, ()),
        ({"where": "day >= '2026-11-02'"}, DAYS[1:]),
        ({"where": "day = '2026-11-02' and id < 1000"}, DAYS[1:2]),
        ({"io_bytes_max": 1}, DAYS[:1]),
        ({"io_bytes_max": 1, "order": "log_count"}, DAYS[1:2]),
        ({"io_bytes_max": 1, "order": "newest"}, DAYS[2:]),
        ({"io_bytes_max": 10**9, "order": "newest"}, DAYS),
    ],
    ids=str,
)
def test_a_strategy_takes_what_it_says(table: objcat.Table, strategy: dict[str, Any], days: tuple[str, ...]) -> None:
    before = table.scan().to_arrow().sort_by([("day", "ascending"), ("id", "ascending")])
    assert merged(table, **strategy) == list(days)
    assert table.scan().to_arrow().sort_by([("day", "ascending"), ("id", "ascending")]) == before
    assert table.inspect.stats().groups_unmerged == 3 - len(days)


def test_the_newest_partitions_are_those_of_the_table_and_not_of_what_is_left_to_merge(table: objcat.Table) -> None:
    assert merged(table, partitions_newest=1) == [DAYS[2]]
    assert merged(table, partitions_newest=1) == []
    assert merged(table, partitions_older=1) == list(DAYS[:2])
    assert table.inspect.stats().groups_unmerged == 0


VALUES: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.int64(), "p", [-100, -9, 2, 10]),
    (pa.int64(), "truncate(p, 10)", [-100, -9, 2, 10]),
    (pa.float64(), "p", [float("-inf"), -2.5, 1e-7, 3.0, 1e16, float("nan")]),
    (pa.decimal128(6, 2), "p", [Decimal("-10.50"), Decimal("-2.00"), Decimal("9.99"), Decimal("10.00")]),
    (pa.string(), "p", ["10", "9", "~", "\u00e9"]),
    (pa.date32(), "p", [dt.date(1969, 12, 31), dt.date(2025, 9, 30), dt.date(2025, 10, 1)]),
    (pa.timestamp("us"), "year(p)", [dt.datetime(1, 1, 1), dt.datetime(999, 1, 1), dt.datetime(2025, 10, 1)]),
    (pa.timestamp("us", "UTC"), "hour(p)", [dt.datetime(2025, 9, 30, 9, tzinfo=dt.UTC), dt.datetime(2025, 9, 30, 10, tzinfo=dt.UTC)]),
    (pa.bool_(), "p", [False, True]),
    (pa.binary(), "p", [b"\x09", b"\x10", b"\xff"]),
]


@pytest.mark.parametrize(("kind", "by", "values"), VALUES, ids=[f"{by} of {kind}" for kind, by, _ in VALUES])
def test_the_newest_partition_is_the_greatest_value(tmp_path: Path, kind: pa.DataType, by: str, values: list[Any]) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("p", kind)])
    table = objcat.connect(tmp_path).create_table(
        "t", schema, key=["id"], key_scope="partition", partition_by=[by], index=objcat.BucketIndex(1), properties={"auto_clean": "false"}
    )
    table.upsert(pa.table({"id": range(len(values) + 1), "p": pa.array([values[-1], None, *values[:-1]], kind)}, schema=schema))
    told: list[int] = []
    for _ in range(len(values) + 1):
        table.maintenance.compact(strategy=CompactionStrategy(io_bytes_max=1, order="newest"))
        merged_now = {row["id"] for row in table.scan(mode="read_optimized").to_arrow().to_pylist()}
        told += sorted(merged_now.difference(told))
    # The greatest value was given first, the null second, and the others ascending.
    assert told == [0, *range(len(values), 1, -1), 1]
    table.upsert(pa.table({"id": range(len(values) + 1), "p": pa.array([values[-1], None, *values[:-1]], kind)}, schema=schema))
    done = table.maintenance.compact(strategy=CompactionStrategy(partitions_older=1))
    assert done is not None and len(done.file_groups) == len(values)


def test_partitions_of_an_earlier_partitioning_are_the_oldest(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("z", pa.int64(), nullable=False), pa.field("a", pa.int64(), nullable=False)]
    )
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id", "z", "a"], partition_by=["z"], index=objcat.BucketIndex(1))
    table.upsert([{"id": 1, "z": 9, "a": 1}])
    table.alter.set_partitioning(["a"])
    table.upsert([{"id": 2, "z": 8, "a": 2}])
    done = table.maintenance.compact(strategy=CompactionStrategy(partitions_newest=1))
    assert done is not None and [group_id.partition for group_id in done.file_groups] == ["a=2"]
    done = table.maintenance.compact(strategy=CompactionStrategy(partitions_older=1))
    assert done is not None and [group_id.partition for group_id in done.file_groups] == ["z=9"]


def test_a_bound_of_bytes_leaves_out_the_large_and_takes_the_small(table: objcat.Table) -> None:
    sizes = {row["day"]: row["bytes"] for row in files_of(table)}
    assert merged(table, io_bytes_max=2 * (sizes[DAYS[1]] + sizes[DAYS[2]]) + 100, where="day > '2026-11-01'") == list(DAYS[1:])
    assert merged(table, io_bytes_max=1) == [DAYS[0]]
    assert merged(table) == []


def files_of(table: objcat.Table) -> list[dict[str, Any]]:
    """Bytes of each day, base files and log objects."""
    found: dict[str, int] = dict.fromkeys(DAYS, 0)
    for row in table.inspect.files().to_pylist():
        if row["partition"] is not None:
            found[row["partition"].removeprefix("day=")] += row["bytes"]
        else:
            # Each log object of this table is of one day: those of the second day are its three small ones.
            day = DAYS[0] if row["rows"] == 100 else (DAYS[2] if row["slot"] == 6 else DAYS[1])
            found[day] += row["bytes"]
    return [{"day": day, "bytes": size} for day, size in found.items()]


@pytest.mark.parametrize(
    "wrong",
    [
        {"log_bytes_min": 0},
        {"log_count_min": -1},
        {"io_bytes_max": 1.5},
        {"order": "oldest"},
        {"partitions_newest": 1, "partitions_older": 1},
    ],
    ids=str,
)
def test_what_is_no_strategy_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        CompactionStrategy(**wrong)


def test_a_filter_that_names_no_column_is_refused_and_nothing_is_left(table: objcat.Table) -> None:
    with pytest.raises(InvalidInput, match="nonsense"):
        table.maintenance.compact(strategy=CompactionStrategy(where="nonsense = 1"))
    with pytest.raises(InvalidInput, match="strategy"):
        table.maintenance.compact(strategy="everything")  # type: ignore[arg-type]
    assert table.maintenance.compact() is not None


# ---- schedule and execute apart


def test_one_process_plans_and_another_executes(table: objcat.Table, tmp_path: Path) -> None:
    plan = table.maintenance.schedule_compaction(strategy=CompactionStrategy(partitions_newest=2))
    assert plan is not None and len(plan.file_groups) == 2
    slot = table.snapshot.slot
    elsewhere = objcat.connect(tmp_path).table("t")
    table.upsert([{"day": DAYS[2], "id": 1, "v": "later"}])
    (executed,) = elsewhere.maintenance.execute_scheduled()
    assert executed.result is not None and executed.result.as_of == slot and executed.plan == plan
    assert elsewhere.maintenance.scheduled_compactions() == [] and elsewhere.maintenance.execute_scheduled() == []
    assert table.scan(where="day = '2026-11-03' and id = 1").to_arrow()["v"].to_pylist() == ["later"]
    assert table.refresh().slot == slot + 2


def test_two_executors_of_the_plans_that_wait() -> None:
    world = World(buckets=4)
    world.upsert(*rows(20))
    plan = schedule_compaction(world.timeline(), world.id)
    raced: list[Any] = []
    late = world.timeline(once("put", "log/", lambda: raced.append(execute_scheduled(world.timeline(), world.id))))
    (mine,) = execute_scheduled(late, world.id)
    ((theirs,),) = raced
    assert mine.plan == theirs.plan == plan
    assert mine.result is None and "was executed by" in mine.why and theirs.result is not None
    world.model.same()
    world.check()
    assert scheduled_compactions(world.timeline(), world.id) == []
    world.check_files_after_clean()


def test_plans_that_cannot_be_executed_any_more_do_not_wait_for_ever() -> None:
    """Of one plan the file groups were compacted by somebody else, another is older than a RESTORE, and one was taken back."""
    world = World()
    world.upsert(*rows(6))
    plans = [schedule_compaction(world.timeline(), world.id)]
    compact(world.timeline(), world.id)
    world.model.same()
    world.upsert(*rows(6, value=2, order=2))
    plans.append(schedule_compaction(world.timeline(), world.id))
    restore(world.timeline(), world.id, to=1)
    world.model.restore(1)
    plans.append(schedule_compaction(world.timeline(), world.id))
    assert all(plan is not None and plan.txn is not None for plan in plans)
    taken_back = plans[2]
    assert taken_back is not None and taken_back.txn is not None
    resolve(world.timeline().fileio, taken_back.txn)
    world.model.same()
    done = execute_scheduled(world.timeline(), world.id)
    assert [executed.plan for executed in done] == plans
    assert all(executed.result is None and executed.why for executed in done)
    assert scheduled_compactions(world.timeline(), world.id) == []
    # Two of them were rolled back, so that nobody executes them later.
    assert [entry.action for entry in history(world)][-2:] == [Action.ROLLBACK] * 2
    world.model.same()
    world.model.same()
    world.check()
    with pytest.raises((AlreadyDone, objcat.errors.WriterFenced, objcat.errors.CommitConflict)):
        compact(world.timeline(), world.id, plan=plans[0])
    world.check_files_after_clean()
