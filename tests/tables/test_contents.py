"""What a table says of itself: how much it holds, in which files and partitions, and what happened to it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.metadata.manifest import Manifests

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string(), nullable=False), ("raw", pa.binary())])


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("lake")))


def rows(ids: range, city: str) -> list[dict[str, Any]]:
    return [{"id": i, "city": city, "raw": bytes([255, i % 256])} for i in ids]


def create(lake: objcat.Lake, **settings: Any) -> objcat.Table:
    defaults: dict[str, Any] = {"key": ["id", "city"], "partition_by": ["city"], "index": objcat.BucketIndex(2)}
    return lake.create_table("t", SCHEMA, **defaults | settings)


def stored(table: objcat.Table) -> dict[str, int]:
    """The data files that lie in the store, with their sizes."""
    return {meta.key: meta.size for page in table._context.fileio.list("data/") for meta in page.objects}


def test_stats_count_what_there_is(lake: objcat.Lake) -> None:
    table = create(lake)
    empty = table.inspect.stats()
    assert (empty.rows, empty.rows_exact, empty.bytes, empty.groups, empty.partitions) == (0, True, 0, 0, 0)
    table.insert(rows(range(100), "Rome"))
    table.insert(rows(range(50), "Oslo"))
    plain = table.inspect.stats()
    assert (plain.slot, plain.rows, plain.rows_exact, plain.partitions) == (2, 150, True, 2)
    assert (plain.groups, plain.groups_unmerged, plain.base_files, plain.log_objects) == (4, 0, 4, 0)
    assert plain.bytes == plain.base_bytes == sum(stored(table).values())
    table.upsert(rows(range(10), "Rome"))
    merged = table.inspect.stats()
    assert (merged.rows, merged.rows_exact, merged.log_rows, merged.log_objects) == (160, False, 10, 1)
    assert merged.rows >= table.scan().count() == 150
    assert merged.groups_unmerged in (1, 2)
    table.maintenance.compact()
    compacted = table.inspect.stats()
    assert (compacted.rows, compacted.rows_exact, compacted.groups_unmerged) == (150, True, 0)


def test_files_are_those_that_the_snapshot_needs(lake: objcat.Lake) -> None:
    table = create(lake, partition_by=(), index=objcat.BucketIndex(1))
    table.insert(rows(range(100), "Rome"))
    table.upsert(rows(range(200, 210), "Oslo"))
    table.upsert(rows(range(300, 305), "Oslo"))
    files = table.inspect.files().to_pylist()
    assert {file["path"]: file["bytes"] for file in files} == stored(table)
    base, *logs = sorted(files, key=lambda file: file["slot"])
    assert (base["kind"], base["partition"], base["bucket"], base["rows"], base["slot"]) == ("base", "", 0, 100, 1)
    assert [(log["kind"], log["partition"], log["bucket"], log["rows"], log["slot"]) for log in logs] == [
        ("log", None, None, 10, 2),
        ("log", None, None, 5, 3),
    ]
    assert set(table.scan(columns=["_file"]).to_arrow().column(0).to_pylist()) == {file["path"] for file in files}


def test_bounds_of_files_are_text(lake: objcat.Lake) -> None:
    table = create(lake, index=objcat.BucketIndex(1))
    table.insert([*rows(range(100), "Rome"), *rows(range(7, 9), "Oslo")])
    found = {file["partition"]: file for file in table.inspect.files().to_pylist()}
    assert dict(found["city=Rome"]["lower"]) == {"id": "0", "city": "Rome", "raw": "ff00"}
    assert dict(found["city=Rome"]["upper"]) == {"id": "99", "city": "Rome", "raw": "ff63"}
    assert dict(found["city=Oslo"]["upper"]) == {"id": "8", "city": "Oslo", "raw": "ff08"}


def test_partitions_are_those_that_hold_rows(lake: objcat.Lake) -> None:
    table = create(lake)
    assert table.inspect.partitions().num_rows == 0
    table.insert(rows(range(100), "Rome"))
    table.insert(rows(range(50), "Oslo"))
    table.upsert(rows(range(7), "Rome"))
    oslo, rome = table.inspect.partitions().to_pylist()
    assert (oslo["partition"], oslo["groups"], oslo["groups_unmerged"], oslo["base_rows"], oslo["log_rows"]) == ("city=Oslo", 2, 0, 50, 0)
    assert (rome["partition"], rome["groups"], rome["base_rows"], rome["log_rows"]) == ("city=Rome", 2, 100, 7)
    assert (oslo["slot"], rome["slot"]) == (2, 3)
    stats = table.inspect.stats()
    assert oslo["base_bytes"] + rome["base_bytes"] == stats.base_bytes
    assert rome["log_bytes"] == stats.log_bytes > 0 == oslo["log_bytes"]
    assert create_without_partitions(lake).inspect.partitions().to_pylist()[0]["partition"] == ""


def create_without_partitions(lake: objcat.Lake) -> objcat.Table:
    table = lake.create_table("u", SCHEMA, key=["id"])
    table.insert(rows(range(3), "Rome"))
    return table


def test_files_that_buckets_share_after_a_split_count_once(lake: objcat.Lake) -> None:
    table = create(lake, partition_by=(), index=objcat.BucketIndex(1))
    table.insert(rows(range(100), "Rome"))
    before = table.inspect.stats()
    table.maintenance.split_buckets(count=4)
    after = table.inspect.stats()
    assert (after.base_files, after.base_rows, after.bytes, after.groups) == (1, 100, before.bytes, 4)
    assert after.rows == 100
    assert table.inspect.files().num_rows == 1
    (partition,) = table.inspect.partitions().to_pylist()
    assert (partition["groups"], partition["groups_unmerged"], partition["base_rows"]) == (4, 4, 100)
    assert table.scan().explain().total.base_files == 1


def test_all_of_it_is_the_same_from_a_checkpoint(lake: objcat.Lake) -> None:
    table = create(lake)
    for number in range(70):
        table.upsert(rows(range(number, number + 3), "Rome" if number % 2 else "Oslo"))
        if number % 20 == 19:
            table.maintenance.compact()
    opened = lake.table("t")
    assert isinstance(opened._context.manifests, Manifests)
    assert opened.inspect.stats() == table.inspect.stats()
    for one in ("files", "partitions"):
        assert (
            getattr(opened.inspect, one)()
            .sort_by(getattr(opened.inspect, one)().column_names[0])
            .equals(getattr(table.inspect, one)().sort_by(getattr(table.inspect, one)().column_names[0]))
        )
    assert {file["path"] for file in table.inspect.files().to_pylist()} <= set(stored(table))


def test_metadata_is_read_without_data(lake: objcat.Lake) -> None:
    table = create(lake)
    table.insert(rows(range(100), "Rome"))
    before = table._context.fileio.metrics.snapshot()
    table.inspect.stats(), table.inspect.files(), table.inspect.partitions()
    assert (table._context.fileio.metrics.snapshot() - before).requests.get("get", 0) <= 3, "a look for a newer slot each"


# ---- history -----------------------------------------------------------------------------------------------------


def test_history_is_a_list_and_a_table(lake: objcat.Lake) -> None:
    table = create(lake)
    table.insert(rows(range(5), "Rome"), metadata={"source": "a"})
    table.upsert(rows(range(3), "Rome"))
    history = table.inspect.history()
    assert [entry.slot for entry in history] == [0, 1, 2]
    assert [entry.slot for entry in table.inspect.history(limit=2)] == [1, 2], "the newest ones"
    assert table.inspect.history(limit=0) == []
    assert [entry.slot for entry in history[1:]] == [1, 2]
    shown = history.to_arrow()
    assert shown.column("slot").to_pylist() == [0, 1, 2]
    assert shown.column("action").to_pylist() == [str(entry.action) for entry in history]
    assert shown.column("rows").to_pylist()[1:] == [5, 3]
    assert dict(shown.column("metadata")[1].as_py()) == {"source": "a"}
    assert [int(when.timestamp() * 1000) for when in shown.column("committed_at").to_pylist()] == [e.committed_at_ms for e in history]
    assert table.inspect.history(limit=1).to_arrow().num_rows == 1
    with pytest.raises(objcat.errors.InvalidInput, match="limit="):
        table.inspect.history(limit=-1)


def test_the_past_is_what_it_was(lake: objcat.Lake) -> None:
    table = create(lake)
    inspect, seen = table.inspect, {}
    for number in range(3):
        table.upsert(rows(range(number + 1), ("Rome", "Oslo", "Bari")[number]))
        seen[table.snapshot.slot] = (inspect.files(), inspect.partitions(), inspect.history().to_arrow(), inspect.snapshots())
    for slot, known in seen.items():
        history = inspect.history(as_of=slot)
        assert (inspect.files(as_of=slot), inspect.partitions(as_of=slot), history.to_arrow(), inspect.snapshots(as_of=slot)) == known
        assert [entry.slot for entry in inspect.history(as_of=slot, limit=1)] == [slot]
    assert inspect.files(as_of="2100-01-01") == inspect.files()
    with pytest.raises(objcat.errors.InvalidInput, match="has no slot 9"):
        inspect.history(as_of=9)
    table.maintenance.compact()
    table.maintenance.clean(keep_slots=1)
    for read in (inspect.files, inspect.partitions, inspect.history, inspect.snapshots):
        with pytest.raises(objcat.errors.SnapshotExpired):
            read(as_of=1)


# ---- properties --------------------------------------------------------------------------------------------------


def test_properties_persist_through_everything_that_changes_a_table(lake: objcat.Lake) -> None:
    table = create(lake, properties={"owner": "ana", "kept": "1"})
    table.set_properties({"owner": "bo"})
    slot = table.snapshot.slot
    table.insert(rows(range(20), "Rome"))
    table.upsert(rows(range(20), "Rome"))
    table.maintenance.compact()
    table.alter.add_column("extra", "bigint")
    table.maintenance.split_buckets(count=4, partition="city=Rome")
    table.alter.set_partitioning([])
    expected = {"owner": "bo", "kept": "1"}
    assert table.properties == lake.table("t").properties == expected
    lake.rename_table("t", "u")
    assert lake.table("u").properties == expected
    lake.drop_table("u")
    assert lake.undrop_table("u").properties == expected
    table = lake.table("u")
    table.set_properties({"owner": "eve"}, unset=["kept"])
    assert table.properties == {"owner": "eve"}
    table.restore(to=slot)
    assert table.properties == lake.table("u").properties == expected, "a restore brings the settings of its slot back"
