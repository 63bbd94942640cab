"""Changes: what every commit of a range inserted, updated and deleted, exactly."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.common.validation import TableType
from objcat.errors import InvalidInput, SnapshotExpired, TableClosed
from tests.effort import seeds
from tests.tables.followed import Followed

KINDS = ("merge_on_read", "copy_on_write")


def told(table: objcat.Table, since: Any, **options: Any) -> list[tuple[str, int, Any]]:
    rows = table.changes(since=since, **options).to_arrow().to_pylist()
    return [(row["_change_type"], row["_commit_slot"], row["id"]) for row in rows]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", seeds(1, with_all=3))
def test_any_range_of_any_history_gives_what_its_commits_changed(kind: TableType, ordered: bool, seed: int) -> None:
    chance = random.Random(100 + seed)
    followed = Followed(kind=kind, ordered=ordered)
    for _ in range(30):
        followed.step(chance)
    for since in range(-1, followed.head + 1, 4):
        for until in {since, followed.head, chance.randint(max(since, 0), followed.head)} - {-1}:
            assert followed.read_changes(since, until) == followed.changes(since, until), f"seed {seed}: slots {since} to {until}"
            assert followed.read_net(since, until) == followed.net(since, until), f"seed {seed}: net of slots {since} to {until}"


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_comes_with_what_the_row_was(kind: TableType) -> None:
    followed = Followed(kind=kind, buckets=1)
    followed.upsert(1, 2)
    followed.upsert(2, 3)
    followed.delete(1)
    rows = followed.table.changes(since=1, columns=["v", "id"]).to_arrow()
    assert rows.schema.names == ["_change_type", "_commit_slot", "_commit_time", "v", "id"]
    times = {entry.slot: entry.committed_at_ms for entry in followed.table.inspect.history()}
    assert [tuple(row[name] for name in ("_change_type", "_commit_slot", "id", "v")) for row in rows.to_pylist()] == [
        ("update_before", 2, 2, 2),
        ("update_after", 2, 2, 3),
        ("insert", 2, 3, 4),
        ("delete", 3, 1, 1),
    ]
    assert all(round(row["_commit_time"].timestamp() * 1000) == times[row["_commit_slot"]] for row in rows.to_pylist())
    assert followed.table.changes(since=3).to_arrow().num_rows == 0
    assert followed.table.changes(since=-1, until=0).to_arrow().schema == followed.table.changes(since=3).to_arrow().schema


def test_rows_that_came_late_and_lost_are_no_change() -> None:
    followed = Followed(ordered=True, buckets=1)
    followed.upsert(1, order=5)
    followed.delete(2, order=5)
    since = followed.head
    followed.upsert(1, 2, order=3)
    followed.delete(1, order=4)
    assert told(followed.table, since) == []
    followed.delete(1, order=5)
    followed.upsert(2, order=5)
    assert told(followed.table, since) == [("delete", since + 3, 1), ("insert", since + 4, 2)]
    assert followed.read_net(since) == followed.net(since, followed.head)


@pytest.mark.parametrize("kind", KINDS)
def test_services_change_nothing_and_a_restore_what_it_brings_back(kind: TableType) -> None:
    followed = Followed(kind=kind)
    followed.upsert(*range(8))
    good = followed.head
    followed.same(done=followed.table.maintenance.compact())
    followed.same(done=followed.table.maintenance.split_buckets())
    followed.same(done=followed.table.maintenance.compact())
    followed.same(done=followed.table.maintenance.savepoint(slot=good))
    assert told(followed.table, good) == []
    followed.upsert(1, 9)
    followed.delete(2)
    before = followed.head
    followed.restore(good)
    assert followed.read_changes(before) == followed.changes(before, followed.head)
    assert {kind for _, kind, _, _ in followed.changes(before, followed.head)} == {"insert", "update_before", "update_after", "delete"}
    assert followed.read_net(good) == []


def test_changes_since_a_cleaned_slot_are_refused_with_what_can_be_read() -> None:
    followed = Followed(kind="copy_on_write")
    for key in range(8):
        followed.upsert(key)
    followed.table.maintenance.savepoint(slot=2)
    followed.model.same()
    followed.same(done=followed.table.maintenance.clean(keep_slots=3).slot)
    bound = followed.table.snapshot.log.marks(followed.table.id).bound
    with pytest.raises(SnapshotExpired, match=f"Read changes since slot {bound}, or"):
        followed.table.changes(since=2)
    with pytest.raises(SnapshotExpired, match=f"Read changes since slot {bound}, or"):
        followed.table.changes(since=-1)
    assert followed.read_changes(bound) == followed.changes(bound, followed.head)


def test_a_feed_whose_files_are_cleaned_before_it_is_read_says_so() -> None:
    followed = Followed(kind="copy_on_write", buckets=1)
    for key in range(6):
        followed.upsert(key)
    feed = followed.table.changes(since=1)
    followed.table.maintenance.clean(keep_slots=1)
    with pytest.raises(SnapshotExpired):
        feed.to_arrow()


def test_rows_have_the_schema_of_the_end_of_the_range() -> None:
    followed = Followed(buckets=1)
    followed.upsert(1)
    followed.table.alter.add_column("note", pa.string())
    followed.table.alter.rename_column("v", "value")
    followed.table.upsert([{"id": 1, "value": 50, "o": 0, "note": "new"}])
    rows = followed.table.changes(since=0, columns=["value", "note"]).to_arrow().to_pylist()
    assert [(row["_change_type"], row["_commit_slot"], row["value"], row["note"]) for row in rows] == [
        ("insert", 1, 1, None),
        ("update_before", 4, 1, None),
        ("update_after", 4, 50, "new"),
    ]
    assert followed.table.changes(since=0, until=1).schema.names[3:] == ["id", "v", "o"]


@pytest.mark.parametrize("net", [False, True])
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_values_that_a_restore_has_no_type_for_any_more_are_told_in_theirs(kind: TableType, keyed: bool, net: bool) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("narrower"), env=FakeEnv(3)))
    nested = pa.struct([("x", pa.list_(pa.int32()))])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int32()), ("n", nested)])
    table = lake.create_table("t", schema, key=["id"] if keyed else None, table_type=kind)
    table.insert([{"id": 1, "v": 1, "n": {"x": [1]}}])
    table.alter.apply([objcat.WidenColumn("v", "bigint"), objcat.WidenColumn("n.x.element", "bigint")])
    table.insert([{"id": 2, "v": 2**40, "n": {"x": [2**40]}}])
    table.maintenance.cluster(by=["v"])
    widened = table.snapshot.slot
    table.restore(to=1)
    back = table.changes(since=widened, net=net).to_arrow()
    assert [(row["_change_type"], row["v"], row["n"]) for row in back.to_pylist()] == [("delete", 2**40, {"x": [2**40]})]
    assert (back.schema.field("v").type, table.schema.field("v").type) == (pa.int64(), pa.int32())
    table.insert([{"id": 3, "v": 3, "n": None}])
    told = table.changes(since=0, net=net).to_arrow()
    come = [(row["v"], row["n"]) for row in told.to_pylist() if row["_change_type"] == "insert"]
    assert come == [(1, {"x": [1]}), (3, None)] if net else come == [(1, {"x": [1]}), (2**40, {"x": [2**40]}), (3, None)]
    latest = table.incremental(since=widened, where="v <= 3", columns=["n", "v", "_commit_slot"]).to_arrow()
    assert latest.to_pylist() == [{"n": None, "v": 3, "_commit_slot": table.snapshot.slot}]
    assert latest.schema.field("v").type == pa.int32()


@pytest.mark.parametrize("net", [False, True])
def test_of_types_that_hold_not_the_values_of_each_other_none_is_rounded(net: bool) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("apart"), env=FakeEnv(3)))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int32())])
    table = lake.create_table("t", schema, key=["id"], index=objcat.BucketIndex(1))
    table.insert([{"id": 1, "v": 1}])
    table.alter.widen_column("v", "double")
    table.upsert([{"id": 1, "v": 2.5}])
    restored = table.restore(to=1).slot
    table.alter.widen_column("v", "decimal(12,0)")
    table.upsert([{"id": 1, "v": Decimal(3)}])
    for feed in (table.changes(since=0, net=net), table.incremental(since=2)):
        with pytest.raises(
            InvalidInput, match=r"No type holds both. Read the changes up to the slot of that RESTORE and those after it separately"
        ):
            feed.to_arrow()
    ranges = [table.changes(since=since, until=until, net=net) for since, until in ((0, restored), (restored, None))]
    values = [feed.to_arrow()["v"].to_pylist() for feed in ranges]
    assert values == [[1] if net else [1, 1, 2.5, 2.5, 1], [1, 3]]


def test_a_transaction_over_two_tables_changes_each_of_them_once() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("two-followed"), env=FakeEnv(5)))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    left, right = (lake.create_table(name, schema, key=["id"], index=objcat.BucketIndex(2), shared_log="d") for name in ("a", "b"))
    with lake.transaction() as tx:
        tx["a"].insert([{"id": 1, "v": 1}])
        tx["a"].upsert([{"id": 1, "v": 2}, {"id": 2, "v": 2}])
        tx["b"].upsert([{"id": 7, "v": 7}])
    slot = left.refresh().slot
    assert sorted(told(left, -1)) == [("insert", slot, 1), ("insert", slot, 2)]
    assert told(right, -1) == [("insert", slot, 7)]
    assert left.incremental(since=-1).to_arrow().sort_by("id").to_pylist() == [{"id": 1, "v": 2}, {"id": 2, "v": 2}]


def test_partitions_are_followed_one_by_one() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("parts-followed"), env=FakeEnv(5)))
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string(), nullable=False), pa.field("v", pa.int64())]
    )
    table = lake.create_table("t", schema, key=["id", "city"], partition_by=["city"], index=objcat.BucketIndex(2))
    table.insert([{"id": n, "city": city, "v": n} for n in range(4) for city in ("Rome", "Oslo")])
    table.upsert([{"id": 1, "city": "Rome", "v": 9}, {"id": 1, "city": "Lima", "v": 9}])
    table.delete([{"id": 2, "city": "Oslo"}])
    rows = table.changes(since=1).to_arrow().to_pylist()
    assert sorted((row["_change_type"], row["city"], row["id"], row["v"]) for row in rows) == [
        ("delete", "Oslo", 2, 2),
        ("insert", "Lima", 1, 9),
        ("update_after", "Rome", 1, 9),
        ("update_before", "Rome", 1, 1),
    ]
    found = table.incremental(since=1, where="city = 'Rome'").to_arrow().to_pylist()
    assert found == [{"id": 1, "city": "Rome", "v": 9}]


def test_keys_of_floats_and_text_are_told_apart_as_the_merge_does() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("floats-followed"), env=FakeEnv(5)))
    schema = pa.schema(
        [pa.field("id", pa.float64(), nullable=False), pa.field("name", pa.string(), nullable=False), pa.field("v", pa.int64())]
    )
    table = lake.create_table("t", schema, key=["id", "name"], index=objcat.BucketIndex(1))
    table.upsert([{"id": 0.0, "name": "", "v": 1}, {"id": float("nan"), "name": "ä", "v": 1}, {"id": 1.5, "name": "", "v": 1}])
    table.upsert([{"id": -0.0, "name": "", "v": 2}, {"id": float("nan"), "name": "ä", "v": 2}])
    rows = table.changes(since=1).to_arrow().to_pylist()
    assert sorted((row["_change_type"], row["name"], row["v"]) for row in rows) == [
        ("update_after", "", 2),
        ("update_after", "ä", 2),
        ("update_before", "", 1),
        ("update_before", "ä", 1),
    ]


def test_a_dropped_table_is_not_followed_and_its_columns_are_checked() -> None:
    followed = Followed()
    followed.upsert(1)
    with pytest.raises(InvalidInput, match="no column 'w'"):
        followed.table.changes(since=0, columns=["w"])
    followed.lake.drop_table("t")
    with pytest.raises(TableClosed):
        followed.table.changes(since=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_a_key_tells_rows_apart_by_what_they_are(kind: TableType) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend(f"without_key-followed-{kind}"), env=FakeEnv(5)))
    schema = pa.schema([("line", pa.int64()), ("tags", pa.list_(pa.string()))])
    table = lake.create_table("log", schema, key=None, table_type=kind)

    def read(since: int, **options: Any) -> list[tuple[str, int, int]]:
        rows = table.changes(since=since, **options).to_arrow().to_pylist()
        return sorted((row["_change_type"], row["_commit_slot"], row["line"]) for row in rows)

    for step in range(1, 5):
        table.insert([{"line": step, "tags": ["a"]}, {"line": step, "tags": ["a"]}, {"line": 10 * step, "tags": None}])
    assert sorted(table.incremental(since=2).to_arrow().column("line").to_pylist()) == [3, 3, 4, 4, 30, 40]
    assert read(3) == [("insert", 4, 4), ("insert", 4, 4), ("insert", 4, 40)]
    table.delete("line = 30 or line = 4")
    erased = table.refresh().slot
    assert read(4) == [("delete", erased, 4), ("delete", erased, 4), ("delete", erased, 30)]
    assert [(kind, line) for kind, _, line in read(3, net=True)] == [("delete", 30), ("insert", 40)]
    assert sorted(table.incremental(since=2).to_arrow().column("line").to_pylist()) == [3, 3, 40]
    table.maintenance.compact()
    since = table.refresh().slot
    table.restore(to=3)
    back = table.refresh().slot
    assert read(since) == [("delete", back, 40), ("insert", back, 30)]
    assert read(3, net=True) == []
    assert table.incremental(since=erased).to_arrow().column("line").to_pylist() == [30]
