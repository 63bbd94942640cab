"""Tables without a key: every row is kept, inserts fill files up to a size, and no two of them ever conflict."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import FaultyBackend
from objcat.common.validation import TableType
from objcat.errors import InvalidInput
from objcat.inspection.doctor import examine
from objcat.metadata.files import BaseFile, FileGroup
from objcat.tasks import append_rows
from objcat.tasks.model import WriteResult
from objcat.timeline.entry import FileGroupId
from objcat.write.file_sizing import assign_file_groups, size_of
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string())])
KINDS = pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
TARGET = 20_000
_names = itertools.count()


def create(lake: objcat.Lake, kind: TableType = "merge_on_read", by: tuple[str, ...] = (), *, target: int = TARGET) -> objcat.Table:
    return lake.create_table("t", SCHEMA, key=None, partition_by=by, table_type=kind, properties={"target_file_bytes": str(target)})


def a_lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend(f"append-{next(_names)}"), env=FakeEnv(next(_names))))


def batch(*ids: int, city: str | None = "Rome") -> list[dict[str, Any]]:
    return [{"id": key, "city": city} for key in ids]


def many(count: int) -> pa.Table:
    """Rows that compress little."""
    return pa.table({"id": [key * 2654435761 % 2**40 for key in range(count)], "city": ["Rome"] * count})


def counted(table: objcat.Table, **scan: Any) -> Counter[Any]:
    return Counter((row["id"], row["city"]) for row in table.scan(**scan).to_arrow().to_pylist())


def groups(table: objcat.Table) -> list[FileGroup]:
    return table.refresh().file_groups(table._context.manifests)


def stored(table: objcat.Table) -> set[str]:
    return {key for key in table._context.fileio.list_keys("data/") if key.endswith(".parquet")}


def named(table: objcat.Table) -> set[str]:
    bases = {group.base.path for group in groups(table) if group.base is not None}
    return bases | {part.object.path for group in groups(table) for part in group.logs}


@KINDS
def test_every_row_is_kept(kind: TableType) -> None:
    table = create(a_lake(), kind)
    for _ in range(3):
        result = table.insert(batch(1, 1, 2))
        assert (result.rows, result.inserted) == (3, 3)
    assert counted(table) == Counter({(1, "Rome"): 6, (2, "Rome"): 3})
    assert table.scan(where="id = 2", columns=["city"]).to_arrow().num_rows == 3
    assert counted(table, as_of=1) == Counter({(1, "Rome"): 2, (2, "Rome"): 1})


@KINDS
def test_inserts_fill_the_smallest_file_and_then_begin_another(kind: TableType) -> None:
    table = create(a_lake(), kind)
    lengths = [500 + 100 * number for number in range(8)]
    for number, length in enumerate(lengths):
        table.insert(many(12_000).slice(1500 * number, length))
    sizes = sorted(size_of(group) for group in groups(table))
    assert 2 <= len(sizes) <= 5
    # All but the last are as full as another batch of such a size would leave them.
    assert all(TARGET * 0.5 <= size <= TARGET * 1.6 for size in sizes[1:])
    assert table.scan().to_arrow().num_rows == sum(lengths)


@KINDS
def test_a_large_batch_becomes_files_of_the_target_size(kind: TableType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.tasks.write_log_rows.LOG_BATCH_BYTES", 4096)
    table = create(a_lake(), kind)
    reader = pa.Table.from_batches(many(12_000).to_batches(max_chunksize=250))
    table.insert(reader)
    sizes = [size_of(group) for group in groups(table)]
    assert len(sizes) >= 3
    assert all(TARGET * 0.5 <= size <= TARGET * 1.6 for size in sorted(sizes)[1:])
    assert counted(table) == Counter((row["id"], "Rome") for row in many(12_000).to_pylist())


def test_a_small_insert_becomes_log_rows_and_compaction_merges_them() -> None:
    table = create(a_lake())
    table.insert(many(500))
    for key in range(4):
        table.insert(batch(key))
    (group,) = groups(table)
    assert group.base is not None and len(group.logs) == 4
    assert table.maintenance.compact() is not None
    (compacted,) = groups(table)
    assert compacted.is_plain and compacted.group_id == group.group_id
    assert table.maintenance.compact() is None
    assert table.scan().to_arrow().num_rows == 504
    assert table.maintenance.clean(keep_slots=1).files == 5
    assert stored(table) == named(table)


def test_a_small_insert_into_a_copy_on_write_table_rewrites_the_smallest_file() -> None:
    table = create(a_lake(), "copy_on_write")
    table.insert(many(500))
    result = table.insert(batch(1))
    (group,) = groups(table)
    assert group.is_plain
    assert (result.files, result.rows) == (1, 1)
    entry = table.inspect.history()[-1].footprint[table.id]
    assert entry.replaces == (group.group_id,) and not entry.creates
    # Rows keep the transaction that wrote them, and the file that was written on the way is gone.
    table._context.fileio.env.map(lambda _: None, range(8))
    assert stored(table) == named(table) | {base for base in stored(table) if base.startswith(f"data/{table.inspect.history()[1].txn}")}


def test_an_append_asks_for_no_news_and_is_not_lost_where_there_are_some() -> None:
    """A small upsert sends as much: a look at the slot that it stands on, the rows and the slot."""
    store = MemoryBackend("news")
    table = create(objcat.Lake(FileIO(store, env=FakeEnv(1))))
    table.insert(batch(1))
    assert table.insert(batch(2)).requests == {"get": 1, "put_create": 2}
    other = objcat.Lake(FileIO(store, env=FakeEnv(2))).table("t")  # As of another process: those of one know of each other.
    other.insert(many(500))
    assert other.maintenance.compact() is not None
    result = table.insert(batch(3))
    assert result.slots_lost == 1
    assert (
        counted(table)
        == counted(other)
        == Counter([(1, "Rome"), (2, "Rome"), (3, "Rome"), *((row["id"], "Rome") for row in many(500).to_pylist())])
    )


def test_small_inserts_into_very_many_partitions_share_an_object() -> None:
    table = create(a_lake(), by=("id",))
    table.insert(batch(*range(append_rows.PARTITIONS_FEW + 1)))
    assert len(stored(table)) == 1
    assert counted(table, where="id = 3") == Counter({(3, "Rome"): 1})
    table.maintenance.compact()
    assert len(groups(table)) == append_rows.PARTITIONS_FEW + 1
    assert examine(table._context.timeline, deep=True).healthy


@KINDS
@pytest.mark.parametrize("first", [0, 1])
def test_two_inserts_that_chose_one_file_both_land(kind: TableType, first: int) -> None:
    backend = RacingBackend(f"append-{next(_names)}")
    table = create(objcat.Lake(FileIO(backend, env=FakeEnv(1))), kind)
    expected = Counter({(0, "Rome"): 1})
    if first:
        table.insert(batch(0))
    else:
        expected.clear()
    other = objcat.Lake(FileIO(backend, env=FakeEnv(2))).table("t")
    backend.races = [lambda: other.insert(batch(7))]
    result = table.insert(batch(8))
    table.refresh()
    assert result.slots_lost == 1
    assert result.attempts == (2 if kind == "copy_on_write" and first else 1)
    assert counted(table) == expected + Counter({(7, "Rome"): 1, (8, "Rome"): 1})
    table._context.fileio.env.map(lambda _: None, range(8))
    table.maintenance.clean(keep_slots=1)
    assert stored(table) == named(table)
    assert examine(table._context.timeline, deep=True).healthy


def test_a_loser_writes_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that draw one free group_id: the second is given another, and its files stay."""
    backend = RacingBackend(f"append-{next(_names)}")
    lake = objcat.Lake(FileIO(backend, env=FakeEnv(1)))
    table = create(lake)
    written: list[str] = []
    watched = objcat.Lake(
        FileIO(FaultyBackend(backend, before=lambda r: written.append(r.key) if "/data/" in r.key else None), env=FakeEnv(2))
    )

    def packed(spec: Any, pieces: Any, live: Any, draw: Any, *, fills: Any) -> Any:
        return assign_file_groups(spec, pieces, live, lambda: 5, fills=fills)

    monkeypatch.setattr("objcat.write.table_writer.assign_file_groups", packed)
    backend.races = [lambda: table.insert(batch(7))]
    result = watched.table("t").insert(batch(8))
    assert (result.attempts, result.slots_lost) == (2, 1)
    assert len([key for key in written if key.endswith(".parquet")]) == 1
    assert sorted(group.group_id.bucket for group in groups(table)) == [5, 6]
    assert counted(table) == Counter({(7, "Rome"): 1, (8, "Rome"): 1})


@KINDS
def test_several_inserts_of_one_transaction_share_files(kind: TableType) -> None:
    lake = a_lake()
    table = create(lake, kind, by=("city",))
    table.insert(batch(1))
    with lake.transaction() as tx:
        for key in range(2, 5):
            tx["t"].insert([*batch(key), *batch(key, city="Oslo")])
    assert counted(table) == Counter({(key, "Rome"): 1 for key in range(1, 5)}) + Counter({(key, "Oslo"): 1 for key in range(2, 5)})
    assert len(groups(table)) == 2
    assert examine(table._context.timeline, deep=True).healthy


def test_what_needs_a_key_is_refused() -> None:
    lake = a_lake()
    table = create(lake)
    before = set(lake.fileio.list_keys())
    for write in (table.upsert, table.delete):
        with pytest.raises(InvalidInput, match="The table has no key"):
            write(batch(1))
    with lake.transaction() as tx, pytest.raises(InvalidInput, match="The table has no key"):
        tx["t"].upsert(batch(1))
    with pytest.raises(InvalidInput, match="no buckets to split"):
        table.maintenance.split_buckets()
    assert set(lake.fileio.list_keys()) == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ordering": "id"}, r"has no key\. Leave ordering out"),
        ({"index": objcat.BucketIndex(4)}, r"has no key\. Leave index out"),
        ({"properties": {"target_file_bytes": "many"}}, "'target_file_bytes' is 'many'"),
        ({"properties": {"target_file_bytes": "0"}}, "whole number from 1,024"),
        ({"key": []}, "needs a key"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], says: str) -> None:
    lake = a_lake()
    with pytest.raises(InvalidInput, match=says):
        lake.create_table("t", SCHEMA, **{"key": None, **given})
    assert lake.tables() == []


def test_the_target_size_is_a_property_that_may_change() -> None:
    table = create(a_lake())
    with pytest.raises(InvalidInput, match="target_file_bytes"):
        table.set_properties({"target_file_bytes": "-1"})
    table.set_properties({"target_file_bytes": "2000000"})
    for number in range(4):
        table.insert(many(3000).slice(number))
    assert len(groups(table)) == 1


def test_a_partition_that_is_full_says_so() -> None:
    spec = create(a_lake()).spec
    piece = BaseFile(path="p", bytes=1, rows=1, group_id=FileGroupId("", 0, spec.index.count))
    live = {group_id: FileGroup(group_id) for group_id in (FileGroupId("", bucket, spec.index.count) for bucket in range(spec.index.count))}
    with pytest.raises(InvalidInput, match=r"which is the maximum. Nothing was written. Raise the property 'target_file_bytes'"):
        assign_file_groups(spec, WriteResult(bases=(piece,), rows=1), live, lambda: 0, fills=False)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"size_bytes": 0}, 1),
        ({"size_bytes": 10**9}, 1),
        ({"size_bytes": 10**9 + 1}, 2),
        ({"size_bytes": 100 * 10**9}, 128),
        ({"rows": 10**9}, 128),
        ({"rows": 10**6, "row_bytes": 10_000}, 16),
        ({"size_bytes": 10**18}, 65_536),
    ],
)
def test_a_bucket_count_for_a_size(given: dict[str, Any], count: int) -> None:
    assert objcat.BucketIndex.for_size(**given).count == count
    assert objcat.BucketIndex.for_size(**given, columns=("id",)).columns == ("id",)


@pytest.mark.parametrize("given", [{}, {"size_bytes": 1, "rows": 1}, {"rows": -1}, {"size_bytes": 1.5}, {"rows": 1, "row_bytes": 0}])
def test_a_size_that_is_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        objcat.BucketIndex.for_size(**given)


def test_buckets_of_a_wrong_size_are_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.write.bucket_size_warning.BUCKET_BYTES_MAX", 500)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = a_lake().create_table("t", schema, key=["id"], index=objcat.BucketIndex(1))
    for _ in range(3):
        table.insert([{"id": 1}])
    said = [record.message for record in caplog.records if "split_buckets" in record.message]
    assert len(said) == 1
    caplog.clear()
    monkeypatch.undo()
    monkeypatch.setattr("objcat.write.bucket_size_warning.BUCKETS_MANY", 8)
    small = a_lake().create_table("t", schema, key=["id"], index=objcat.BucketIndex(64), table_type="copy_on_write")
    for _ in range(3):
        small.upsert([{"id": key} for key in range(64)])
    assert len([record for record in caplog.records if "for_size" in record.message]) == 1


class Appends(RuleBasedStateMachine):
    """Whatever is done, every row that was inserted is there as often as it was."""

    @initialize(kind=st.sampled_from(["merge_on_read", "copy_on_write"]), by=st.sampled_from([(), ("city",), ("truncate(id, 4)", "city")]))
    def create(self, kind: TableType, by: tuple[str, ...]) -> None:
        self.backend = MemoryBackend(f"append-{next(_names)}")
        self.table = create(objcat.Lake(FileIO(self.backend, env=FakeEnv(next(_names)))), kind, by, target=2000)
        self.model: Counter[Any] = Counter()
        self.states = [self.model]

    def _moved(self) -> None:
        head = self.table.refresh().slot
        self.states += [self.model] * (head + 1 - len(self.states))

    @rule(rows=st.lists(st.tuples(st.none() | st.integers(0, 9), st.sampled_from(["Rome", "東京", None])), min_size=1, max_size=6))
    def insert(self, rows: list[Any]) -> None:
        self.table.insert([{"id": key, "city": city} for key, city in rows])
        self.model = self.model + Counter(rows)
        self._moved()

    @rule(count=st.integers(100, 900))
    def insert_many(self, count: int) -> None:
        self.table.insert(many(count))
        self.model = self.model + Counter((row["id"], row["city"]) for row in many(count).to_pylist())
        self._moved()

    @rule()
    def compact(self) -> None:
        self.table.maintenance.compact()
        self._moved()

    @rule(by=st.sampled_from([(), ("city",), ("id",)]))
    def repartition(self, by: tuple[str, ...]) -> None:
        self.table.alter.set_partitioning(by)
        self._moved()

    @rule(keep=st.integers(1, 5))
    def clean(self, keep: int) -> None:
        self.table.maintenance.clean(keep_slots=keep)
        self._moved()

    @rule(back=st.integers(1, 3))
    def restore(self, back: int) -> None:
        slot = len(self.states) - 1 - back
        if slot >= max(0, self.table.refresh().log.marks(self.table.id).bound):
            self.table.restore(to=slot)
            self.model = self.states[slot]
            self._moved()

    @invariant()
    def holds_every_row(self) -> None:
        if hasattr(self, "table"):
            assert counted(self.table) == self.model
            assert sum(counted(self.table, where="city = '東京'").values()) == sum(n for key, n in self.model.items() if key[1] == "東京")

    def teardown(self) -> None:
        if hasattr(self, "table"):
            assert examine(self.table._context.timeline, deep=True).healthy


TestAppends = Appends.TestCase
TestAppends.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)


def _insert_some(table: objcat.Table, number: int) -> None:
    for i in range(5):
        table.insert(batch(number * 10 + i))


def test_threads_insert_side_by_side() -> None:
    lake = a_lake()
    create(lake, by=("city",))
    handles: list[Callable[[], Any]] = []
    for number in range(4):
        table = objcat.Lake(lake.fileio).table("t")
        handles.append(partial(_insert_some, table, number))
    list(lake.fileio.env.map(lambda work: work(), handles))
    assert counted(lake.table("t")) == Counter({(number * 10 + i, "Rome"): 1 for number in range(4) for i in range(5)})
