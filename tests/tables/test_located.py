"""Tables whose index is no hash: a key lives in whatever file group took it, and a write finds it there, whoever else writes."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidInput, NullKey
from objcat.inspection.doctor import examine
from objcat.inspection.findings import Severity
from objcat.tasks.key_lookup import LocateTask
from objcat.timeline import conflicts
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string()), pa.field("v", pa.int64())])
KINDS = ("merge_on_read", "copy_on_write")
READING = (objcat.SimpleIndex(), objcat.BloomIndex())
"""Indexes under which a write reads keys."""
INDEXES = (*READING, objcat.MemoryIndex(), objcat.RecordIndex(4))
Rows = list[tuple[int, str, int]]

pytestmark = pytest.mark.parametrize("kind", KINDS)


class IndexedLake(objcat.Lake):
    """index: of the tables of a test."""

    index: objcat.SimpleIndex | objcat.BloomIndex | objcat.MemoryIndex | objcat.RecordIndex


@pytest.fixture
def backend() -> RacingBackend:
    return RacingBackend("located")


@pytest.fixture(params=INDEXES, ids=lambda index: type(index).__name__.lower())
def lake(backend: RacingBackend, request: pytest.FixtureRequest) -> IndexedLake:
    lake = IndexedLake(FileIO(backend))
    lake.index = request.param
    return lake


def create(lake: IndexedLake, kind: TableType, *, target: int = 1024, **settings: Any) -> objcat.Table:
    return lake.create_table(
        "t",
        SCHEMA,
        key=["id"],
        partition_by=["part"],
        key_scope="partition",
        table_type=kind,
        index=lake.index,
        properties={"target_file_bytes": str(target)},
        **settings,
    )


def batch(*keys: int, part: str = "x", v: int = 0) -> list[dict[str, Any]]:
    return [{"id": key, "part": part, "v": v} for key in keys]


def rows(table: objcat.Table) -> Rows:
    found = [(row["id"], row["part"], row["v"]) for row in table.scan().to_arrow().to_pylist()]
    assert len({row[:2] for row in found}) == len(found), "a key is there twice"
    return sorted(found)


def test_an_update_goes_to_the_file_group_that_holds_its_key(lake: IndexedLake, kind: TableType) -> None:
    table = create(lake, kind)
    for key in range(4):
        table.insert(batch(key))
    group_ids = [group.group_id for group in table.refresh().file_groups(table._context.manifests)]
    assert len(group_ids) == 4  # A file is larger than the target is.
    table.upsert(batch(0, 2, v=1))
    after = table.refresh().file_groups(table._context.manifests)
    assert [group.group_id for group in after] == group_ids
    touched = [group for group in after if group.logs or group.base_slot == table.snapshot.slot]
    assert len(touched) == 2
    assert rows(table) == [(0, "x", 1), (1, "x", 0), (2, "x", 1), (3, "x", 0)]


def test_new_keys_fill_the_smallest_file_group_that_has_room(lake: IndexedLake, kind: TableType) -> None:
    table = create(lake, kind, target=10**6)
    table.insert(batch(*range(100)))
    table.insert(batch(*range(100, 200)))
    assert len(table.refresh().file_groups(table._context.manifests)) == 1
    assert len(rows(table)) == 200


def test_a_large_insert_is_dealt_to_files_of_about_the_target(lake: IndexedLake, kind: TableType) -> None:
    table = create(lake, kind, target=20_000)
    table.bulk_insert(batch(*range(1000)))
    sizes = [group.base.rows for group in table.refresh().file_groups(table._context.manifests) if group.base is not None]
    assert len(sizes) == 5 and sum(sizes) == 1000 and min(sizes) > 100


def test_inserting_a_key_that_is_there_updates_it(lake: IndexedLake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert(batch(1, 2))
    table.insert(batch(2, 3, v=5))
    assert rows(table) == [(1, "x", 0), (2, "x", 5), (3, "x", 5)]


def test_one_key_in_two_partitions_is_two_rows(lake: IndexedLake, kind: TableType) -> None:
    table = create(lake, kind)
    table.upsert([*batch(1, v=1), *batch(1, part="y", v=2)])
    table.upsert([*batch(1, part="y", v=4), *batch(1, v=3)])
    assert rows(table) == [(1, "x", 3), (1, "y", 4)]
    table.delete(batch(1, part="y"))
    assert rows(table) == [(1, "x", 3)]


def test_two_inserts_of_one_key_at_once_make_one_row(lake: IndexedLake, backend: RacingBackend, kind: TableType) -> None:
    table = create(lake, kind)
    other = lake.table("t")
    backend.races.append(lambda: other.insert(batch(7, v=1)))
    result = table.insert(batch(7, 8, v=2))
    assert result.attempts == 2
    assert rows(table) == [(7, "x", 2), (8, "x", 2)]


def test_two_inserts_of_many_keys_at_once_make_one_row_each(lake: IndexedLake, backend: RacingBackend, kind: TableType) -> None:
    table = create(lake, kind, target=10**6)
    other = lake.table("t")
    backend.races.append(lambda: other.insert(batch(*range(1000), v=1)))
    assert table.insert(batch(*range(999, 2000), v=2)).attempts == 2
    assert [key for key, _, _ in rows(table)] == list(range(2000))
    # What was written for nothing is removed in the background.
    assert {finding.severity for finding in examine(table._context.timeline, deep=True).findings} <= {Severity.LEFTOVER}


def test_a_key_would_be_there_twice_if_nobody_compared_digests(
    lake: IndexedLake, backend: RacingBackend, kind: TableType, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {sentence: rule for sentence, rule in conflicts.RULES.items() if rule is not conflicts.placed_one_key}
    monkeypatch.setattr(conflicts, "RULES", rules)
    table = create(lake, kind)
    other = lake.table("t")
    backend.races.append(lambda: other.insert(batch(7, v=1)))
    table.insert(batch(7, v=2))
    with pytest.raises(AssertionError, match="a key is there twice"):
        rows(table)


def test_inserts_of_other_keys_at_once_do_not_disturb_one_another(lake: IndexedLake, backend: RacingBackend, kind: TableType) -> None:
    table = create(lake, kind)
    other = lake.table("t")
    backend.races.append(lambda: other.insert(batch(1)))
    assert table.insert(batch(2)).attempts == 1
    assert rows(table) == [(1, "x", 0), (2, "x", 0)]


@pytest.mark.parametrize(
    ("race", "mine", "expected"),
    [
        (lambda t: t.insert(batch(9, v=1)), lambda t: t.delete(batch(9)), [(1, "x", 0)]),
        (lambda t: t.delete(batch(1)), lambda t: t.upsert(batch(1, v=2)), [(1, "x", 2)]),
        (lambda t: t.upsert(batch(1, v=1)), lambda t: t.upsert(batch(1, v=2)), [(1, "x", 2)]),
        (lambda t: t.upsert(batch(1, v=1)), lambda t: t.delete("v = 0"), [(1, "x", 1)]),
        (lambda t: t.insert(batch(9, v=0)), lambda t: t.delete("v = 0"), [(9, "x", 0)]),
        (lambda t: t.maintenance.compact(), lambda t: t.upsert(batch(1, v=2)), [(1, "x", 2)]),
    ],
    ids=["delete after insert", "update after delete", "update after update", "filter after update", "filter after insert", "compaction"],
)
def test_races_for_one_key(
    lake: IndexedLake,
    backend: RacingBackend,
    kind: TableType,
    race: Callable[[objcat.Table], object],
    mine: Callable[[objcat.Table], object],
    expected: Rows,
) -> None:
    table = create(lake, kind)
    table.upsert(batch(1))
    other = lake.table("t")
    backend.races.append(lambda: race(other))
    mine(table)
    assert rows(table) == expected


def test_a_transaction_finds_the_keys_of_its_earlier_batches(lake: IndexedLake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert(batch(1))
    with lake.transaction() as tx:
        tx["t"].insert(batch(2, 3))
        tx["t"].upsert(batch(1, 2, 4, v=1))
        tx["t"].delete(batch(3))
    assert rows(table) == [(1, "x", 1), (2, "x", 1), (4, "x", 1)]


def test_a_row_that_was_deleted_and_came_back_elsewhere_is_one_change(lake: IndexedLake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert(batch(1))
    since = table.insert(batch(2)).slot
    table.delete(batch(1))
    table.maintenance.compact()
    table.upsert(batch(1, v=5))
    told = table.changes(since=since, net=True).to_arrow().to_pylist()
    assert [(row["_change_type"], row["id"], row["v"]) for row in told] == [("update_before", 1, 0), ("update_after", 1, 5)]
    every = table.changes(since=since).to_arrow().to_pylist()
    assert [(row["_change_type"], row["v"]) for row in every] == [("delete", 0), ("insert", 5)]
    assert [row["v"] for row in table.incremental(since=since).to_arrow().to_pylist()] == [5]


@pytest.mark.parametrize("lake", READING, indirect=True)
def test_only_file_groups_that_may_hold_a_key_are_read(lake: IndexedLake, kind: TableType, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each insert makes one file: two are more than the target, and one is not.
    table = create(lake, kind, target=1500)
    for key in range(8):
        table.insert(batch(10 * key, 10 * key + 9))
    assert len(table.refresh().file_groups(table._context.manifests)) == 8
    asked: list[int] = []
    init = LocateTask.__init__

    def counted(self: LocateTask, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        asked.append(len(self.groups))

    monkeypatch.setattr(LocateTask, "__init__", counted)
    table.upsert(batch(41, 45))
    assert asked == [1]
    table.upsert(batch(41, part="z"))
    assert asked == [1, 0]
    table.upsert(batch(1, 75, 1000))
    assert asked == [1, 0, 2]


def test_no_key_is_overlooked_whatever_its_type(lake: IndexedLake, kind: TableType) -> None:
    day = dt.date(1969, 12, 1)
    values: dict[pa.DataType, list[Any]] = {
        pa.int8(): list(range(-100, 100, 3)),
        pa.date32(): [day + dt.timedelta(days=at) for at in range(0, 600, 9)],
        pa.timestamp("us", tz="UTC"): [dt.datetime(1969, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=at**2) for at in range(60)],
        pa.decimal128(12, 3): [decimal.Decimal(at * at - 500) / 8 for at in range(60)],
        pa.string(): [f"{'x' * (at % 80)}{at}" for at in range(70)],
        pa.binary(): [bytes([at, 255 - at]) for at in range(60)],
        pa.float32(): [at / 4 for at in range(-30, 30)],
        pa.int64(): [-(2**63), 2**63 - 1, *range(-3, 60)],
    }
    for number, (data_type, keys) in enumerate(values.items()):
        schema = pa.schema([pa.field("k", data_type), pa.field("v", pa.int64())])
        table = lake.create_table(
            f"k{number}", schema, key=["k"], table_type=kind, index=lake.index, properties={"target_file_bytes": "1024"}
        )
        for part in (keys[::3], keys[1::3]):
            table.insert(pa.table({"k": pa.array(part, data_type), "v": [0] * len(part)}))
        result = table.upsert(pa.table({"k": pa.array(keys, data_type), "v": [1] * len(keys)}))
        found = table.scan().to_arrow()
        assert result.rows == len(keys) == found.num_rows and set(found.column("v").to_pylist()) == {1}


def test_what_cannot_be_written_is_said(lake: IndexedLake, kind: TableType) -> None:
    table = create(lake, kind)
    with pytest.raises(NullKey, match="'id' is null in row 1"):
        table.upsert([*batch(1), {"id": None, "part": "x", "v": 1}])
    with pytest.raises(InvalidBatch, match="empty"):
        table.upsert(pa.Table.from_pylist([], SCHEMA))
    with pytest.raises(InvalidInput, match="no buckets to split"):
        table.maintenance.split_buckets(partition="part=x")
    assert rows(table) == [] and table.refresh().slot == 0


def test_columns_are_added_as_under_any_index(lake: IndexedLake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert(batch(1))
    table.upsert([{"id": 1, "part": "x", "v": 2, "w": 3}, {"id": 2, "part": "x", "v": 2, "w": 4}], schema_mode="add")
    assert sorted(row["w"] for row in table.scan().to_arrow().to_pylist()) == [3, 4]


def test_keys_that_are_floats_are_found_as_they_compare(lake: IndexedLake, kind: TableType) -> None:
    schema = pa.schema([pa.field("k", pa.float64()), pa.field("v", pa.int64())])
    table = lake.create_table("f", schema, key=["k"], table_type=kind, index=lake.index, properties={"target_file_bytes": "1024"})
    table.insert([{"k": 0.0, "v": 1}, {"k": float("nan"), "v": 1}])
    table.insert([{"k": 5.0, "v": 1}])
    table.upsert([{"k": -0.0, "v": 2}, {"k": float("nan"), "v": 2}])
    assert sorted(row["v"] for row in table.scan().to_arrow().to_pylist()) == [1, 2, 2]


def test_a_stream_is_located_batch_by_batch(lake: IndexedLake, kind: TableType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.engine.spooled_batch.SPOOL_BYTES_MAX", 1000)
    table = create(lake, kind, target=10**6)
    table.insert(batch(*range(0, 300, 2)))
    parts = [pa.Table.from_pylist(batch(*range(at, at + 100), v=1), SCHEMA).to_batches()[0] for at in range(0, 300, 100)]
    table.upsert(pa.RecordBatchReader.from_batches(SCHEMA, parts))
    assert rows(table) == [(key, "x", 1) for key in range(300)]


@pytest.mark.parametrize("lake", READING, indirect=True)
def test_files_that_cannot_hold_a_key_are_not_read(lake: IndexedLake, kind: TableType) -> None:
    # Each insert makes one file: two are more than the target, and one is not.
    table = create(lake, kind, target=1500)
    for key in range(8):
        table.insert(batch(10 * key, 10 * key + 9))
    assert len(table.refresh().file_groups(table._context.manifests)) == 8
    hidden = {
        group.base.path: table._context.fileio.read(group.base.path)
        for group in table.refresh().file_groups(table._context.manifests)
        if group.base
    }
    keys = {path: pq.read_table(pa.BufferReader(data)).column("id").to_pylist() for path, data in hidden.items()}
    hidden = {path: data for path, data in hidden.items() if 40 not in keys[path]}
    assert len(hidden) == 7
    table._context.fileio.delete(hidden)
    table.upsert(batch(40, 49, v=1))
    for path, data in hidden.items():
        table._context.fileio.put(path, data)
    assert [row for row in rows(table) if row[2]] == [(40, "x", 1), (49, "x", 1)]
