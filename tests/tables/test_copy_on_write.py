"""Copy-on-write tables: reads merge nothing, what a write did is exact, and the rows are those of a merge-on-read table."""

from __future__ import annotations

import random
import threading
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.faults import FaultyBackend, Request
from objcat.common.validation import TableType
from objcat.timeline.entry import Action
from tests.effort import seeds

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string()), pa.field("version", pa.int64())])


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("cow")))


def create(
    lake: objcat.Lake, name: str = "t", *, kind: TableType = "copy_on_write", buckets: int = 4, ordering: str | None = None
) -> objcat.Table:
    return lake.create_table(name, SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(buckets), ordering=ordering)


def rows(*keys: int, value: str = "a", version: int = 1) -> list[dict[str, Any]]:
    return [{"id": key, "value": value, "version": version} for key in keys]


def values(table: objcat.Table, **scan: Any) -> dict[int, str]:
    found = table.scan(**scan).to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: row["value"] for row in found}


def writers(table: objcat.Table) -> dict[int, str]:
    """The transaction that wrote each row, as the hidden column of the base files says."""
    found: dict[int, str] = {}
    for group in table.refresh().file_groups(table._context.manifests):
        assert group.base is not None
        file = pq.read_table(pa.BufferReader(table._context.fileio.read(group.base.path)))
        found |= dict(zip(file.column(0).to_pylist(), file.column("_objcat_txn").to_pylist(), strict=True))
    return found


def test_what_a_write_did_is_exact_and_reads_merge_nothing(lake: objcat.Lake) -> None:
    table = create(lake)
    first = table.insert(rows(*range(10)))
    assert (first.rows, first.inserted, first.updated, first.deleted) == (10, 10, 0, 0)
    second = table.upsert(rows(*range(8, 14), value="b"))
    assert (second.rows, second.inserted, second.updated, second.deleted) == (6, 4, 2, 0)
    third = table.delete([{"id": 0}, {"id": 13}, {"id": 99}])
    assert (third.rows, third.inserted, third.updated, third.deleted) == (3, 0, 0, 2)
    assert values(table) == dict.fromkeys(range(1, 8), "a") | dict.fromkeys(range(8, 13), "b")
    assert values(table, as_of=first.slot) == dict.fromkeys(range(10), "a")
    assert not table.scan().plan.merged
    actions = [(entry.action, entry.summary) for entry in table.inspect.history()[1:]]
    assert [action for action, _ in actions] == [Action.COMMIT] * 3
    assert [(s.inserted, s.updated, s.deleted) for _, s in actions if s] == [(10, 0, 0), (4, 2, 0), (0, 0, 2)]


def test_a_row_keeps_the_transaction_that_wrote_it(lake: objcat.Lake) -> None:
    table = create(lake, buckets=1)
    first = table.upsert(rows(1, 2, 3)).txn
    second = table.upsert(rows(2)).txn
    table.delete([{"id": 3}])
    assert writers(table) == {1: first, 2: second}


def test_only_the_touched_buckets_are_rewritten(lake: objcat.Lake) -> None:
    table = create(lake, buckets=8)
    table.upsert(rows(*range(100)))
    before = {group.group_id: group.base for group in table.snapshot.file_groups(table._context.manifests)}
    result = table.upsert(rows(7, value="b"))
    after = {group.group_id: group.base for group in table.snapshot.file_groups(table._context.manifests)}
    assert len(before) == 8
    assert sum(before[group_id] != after[group_id] for group_id in before) == 1
    assert (result.files, result.updated) == (1, 1)
    entry = table.inspect.history()[-1]
    footprint = entry.footprint[table.id]
    assert len(footprint.replaces) == 1
    assert not footprint.creates
    assert not footprint.appends


def test_a_batch_that_changes_nothing_writes_no_file(lake: objcat.Lake) -> None:
    table = create(lake, ordering="version")
    table.upsert(rows(1, 2, 3, version=5))
    late = table.upsert(rows(1, 2, value="late", version=4))
    assert (late.rows, late.inserted, late.updated, late.files) == (2, 0, 0, 0)
    missing = table.delete([{"id": 77}])
    assert (missing.deleted, missing.files) == (0, 0)
    assert values(table) == dict.fromkeys((1, 2, 3), "a")


def test_the_last_row_of_a_bucket_may_go(lake: objcat.Lake) -> None:
    table = create(lake, buckets=1)
    table.upsert(rows(1, 2))
    assert table.delete([{"id": 1}, {"id": 2}]).deleted == 2
    assert values(table) == {}
    assert table.upsert(rows(2, value="c")).inserted == 1
    assert values(table) == {2: "c"}


def test_a_delete_with_an_ordering_value_keeps_late_rows_out_through_rewrites(lake: objcat.Lake) -> None:
    table = create(lake, buckets=1, ordering="version")
    table.upsert(rows(1, 2, version=5))
    assert table.delete([{"id": 1, "version": 6}, {"id": 9, "version": 6}]).deleted == 1
    assert not table.scan().plan.merged
    assert table.upsert(rows(3, version=1)).inserted == 1
    late = table.upsert(rows(1, 9, value="late", version=5))
    assert (late.inserted, late.updated) == (0, 0)
    assert values(table) == {2: "a", 3: "a"}
    assert table.upsert(rows(1, 9, value="new", version=7)).inserted == 2
    assert values(table) == {1: "new", 2: "a", 3: "a", 9: "new"}
    table.delete([{"id": 1, "version": 8}])
    table.delete([{"id": 1}])
    assert table.upsert(rows(1, value="after the barrier", version=0)).inserted == 1


@pytest.mark.parametrize("ordering", [None, "version"])
@pytest.mark.parametrize("seed", seeds(3, with_all=6))
def test_the_rows_are_those_of_a_merge_on_read_table(lake: objcat.Lake, seed: int, ordering: str | None) -> None:
    chance = random.Random(seed)
    tables = [create(lake, kind, kind=kind, buckets=2, ordering=ordering) for kind in ("copy_on_write", "merge_on_read")]
    for step in range(25):
        keys = [chance.randrange(12) for _ in range(chance.randrange(1, 6))]
        batch = [{"id": key, "value": f"{step}.{i}", "version": chance.randrange(9)} for i, key in enumerate(keys)]
        operation = chance.choice(["upsert", "upsert", "insert", "delete"])
        if operation == "delete" and chance.random() < 0.5:
            batch = [{"id": row["id"]} for row in batch]
        before = values(tables[0])
        result, _ = [getattr(table, operation)(batch) for table in tables]
        after = values(tables[0])
        assert after == values(tables[1]), f"seed {seed}, step {step}: {operation} of {batch}"
        assert result.inserted == len(after.keys() - before.keys())
        assert result.deleted == len(before.keys() - after.keys())
        assert result.updated == sum(before[key] != after[key] for key in before.keys() & after.keys())


def test_many_writers_of_one_bucket_lose_nothing(lake: objcat.Lake) -> None:
    create(lake, buckets=1)
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            table = lake.table("t")
            for step in range(5):
                table.upsert(rows(number * 10 + step))
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert set(values(lake.table("t"))) == {number * 10 + step for number in range(6) for step in range(5)}


def test_a_delete_that_stands_alone_outlives_a_compaction_that_came_in_between() -> None:
    """Its file group gets no base file, and the compaction, planned before it, took nothing of it over."""
    backend = MemoryBackend("cow-alone")
    table = create(objcat.Lake(FileIO(backend)), buckets=1, ordering="version")
    table.insert(rows(1))
    table.delete([{"id": 9, "version": 5}])
    pending = [table.maintenance.compact]

    def before(request: Request) -> None:
        if pending and request.kind == "put" and "/log/" in request.key:
            assert pending.pop()() is not None

    objcat.Lake(FileIO(FaultyBackend(backend, before=before))).table("t").delete([{"id": 8, "version": 5}])
    table.upsert(rows(8, 9, version=3))
    assert [entry.action for entry in table.inspect.history()][3:] == [Action.COMPACTION, Action.COMMIT, Action.COMMIT]
    assert values(table) == {1: "a"}


def test_a_later_batch_of_a_transaction_takes_over_the_deletes_of_an_earlier_one(lake: objcat.Lake) -> None:
    """Of equal values of the ordering column the later write counts, also when other deletes are laid over the row afterwards."""
    table = lake.create_table(
        "t", SCHEMA, key=["id"], table_type="copy_on_write", index=objcat.BucketIndex(1), ordering="version", shared_log="d"
    )
    table.insert(rows(1, 2))
    with lake.transaction() as transaction:
        transaction["t"].delete([{"id": 1, "version": 5}, {"id": 2, "version": 5}])
        transaction["t"].upsert(rows(1, value="b", version=5))
    table.refresh()
    assert values(table) == {1: "b"}
    table.delete([{"id": 99, "version": 1}])
    assert values(table) == {1: "b"}
    table.upsert(rows(2, version=4))
    assert values(table) == {1: "b"}
