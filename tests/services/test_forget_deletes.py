"""Deletes that can be forgotten: below a watermark nothing comes any more, so a compaction drops them, and late rows count for nothing."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.errors import InvalidInput, UnsupportedFormat
from objcat.metadata.table_spec import Index
from objcat.timeline import entry as entries

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), pa.field("at", pa.int64(), nullable=False)])
INDEXES: list[Index] = [objcat.BucketIndex(2), objcat.SimpleIndex(), objcat.BloomIndex(), objcat.RecordIndex(2), objcat.MemoryIndex()]
KINDS: list[TableType] = ["merge_on_read", "copy_on_write"]


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("forget")))


def create(lake: objcat.Lake, **options: Any) -> objcat.Table:
    return lake.create_table("t", SCHEMA, key=["id"], ordering="at", **{"index": objcat.BucketIndex(2), **options})


def rows(*ids: int, at: int, city: str = "x") -> list[dict[str, Any]]:
    return [{"id": one, "city": city, "at": at} for one in ids]


def read(table: objcat.Table) -> dict[int, tuple[str, int]]:
    return {row["id"]: (row["city"], row["at"]) for row in table.scan().to_arrow().to_pylist()}


def deletes_of(table: objcat.Table) -> int:
    """Log rows that the table still names."""
    table.refresh()
    return sum(part.end - part.start for group in table.snapshot.file_groups(table._context.manifests) for part in group.logs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", INDEXES, ids=lambda index: type(index).__name__)
def test_compaction_forgets_and_late_changes_count_for_nothing(lake: objcat.Lake, kind: TableType, index: Index) -> None:
    table = create(lake, table_type=kind, index=index)
    table.upsert(rows(*range(20), at=10))
    table.delete([{"id": n, "at": 20 + n} for n in range(10)])
    table.maintenance.compact()
    assert deletes_of(table) == 10
    slot = table.maintenance.forget_deletes(below=25)
    assert slot == table.refresh().slot
    assert table.maintenance.forget_deletes(below=24) == slot and table.refresh().slot == slot, "it is never lowered"
    table.maintenance.compact()
    assert deletes_of(table) == 5
    assert table.maintenance.compact() is None, "what it retained is above the watermark"
    table.upsert([*rows(0, 1, 30, at=24, city="late"), *rows(31, at=25)])
    table.upsert(rows(9, at=28, city="older than its delete"))
    expected = dict.fromkeys(range(10, 20), ("x", 10)) | {31: ("x", 25)}
    assert read(table) == expected
    table.delete([{"id": 12, "at": 3}])
    assert read(table) == expected, "a late delete counts for nothing either"
    before = table.refresh().slot
    result = table.upsert(rows(2, at=1), app=objcat.AppVersion(app="feed", version=1))
    assert (result.slot, result.rows) == (before + 1, 0), "a stream goes on over a batch of late rows"
    table.maintenance.forget_deletes(below=100)
    table.maintenance.compact()
    assert deletes_of(table) == 0
    assert read(table) == expected
    assert read(lake.table("t")) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_there_can_be_changed_whatever_their_values(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, table_type=kind)
    table.upsert(rows(1, 2, 3, 4, at=10))
    table.maintenance.forget_deletes(below=50)
    table.update({"city": "'new'"}, where="id = 1")
    table.delete("id = 2")
    table.delete([{"id": 3}])
    assert read(table) == {1: ("new", 10), 4: ("x", 10)}
    source = pa.table({"id": pa.array([4, 8, 9], pa.int64()), "city": ["m"] * 3, "at": pa.array([60, 40, 50], pa.int64())})
    table.merge(source).when_matched_update().when_not_matched_insert().execute()
    assert read(table) == {1: ("new", 10), 4: ("m", 60), 9: ("m", 50)}, "a merge inserts nothing that is late"
    table.upsert_partial([{"id": 1, "city": "part"}, {"id": 7, "city": "late", "at": 49}])
    assert read(table) == {1: ("part", 10), 4: ("m", 60), 9: ("m", 50)}
    table.insert(rows(20, at=49) + rows(21, at=51), on_existing="skip")
    assert set(read(table)) == {1, 4, 9, 21}
    table.maintenance.compact()
    assert set(read(table)) == {1, 4, 9, 21}
    table.insert_overwrite(rows(1, 2, at=3))
    assert read(table) == {1: ("x", 3), 2: ("x", 3)}, "what replaces everything may be old"


def test_blocks_of_transactions(lake: objcat.Lake) -> None:
    table = create(lake)
    table.upsert(rows(1, 2, 3, 4, at=10))
    table.maintenance.forget_deletes(below=50)
    with lake.transaction() as tx:
        tx["t"].delete_where("id = 1")
        tx["t"].upsert(rows(2, at=60) + rows(9, at=49))
        tx["t"].upsert(rows(8, at=1))
        tx["t"].replace_range(rows(4, 5, at=3, city="range"), where="id >= 4")
    assert read(table) == {2: ("x", 60), 3: ("x", 10), 4: ("range", 3), 5: ("range", 3)}
    with lake.transaction() as tx:
        tx["t"].truncate()
        tx["t"].upsert(rows(7, at=2))
    assert read(table) == {7: ("x", 2)}


def test_a_writer_that_planned_before_writes_again(lake: objcat.Lake) -> None:
    table = create(lake)
    table.upsert(rows(1, at=10))
    table.delete([{"id": 1, "at": 20}])
    stale = lake.table("t")
    stale.refresh()
    table.maintenance.forget_deletes(below=30)
    table.maintenance.compact()
    assert deletes_of(table) == 0
    stale.upsert(rows(1, 2, at=15))
    assert read(table) == {}
    entry = table._context.timeline.log.read_known(table.refresh().slot)
    assert not entry.footprint[table.id].appends


def test_a_restore_brings_back_deletes_and_watermark(lake: objcat.Lake) -> None:
    table = create(lake)
    table.upsert(rows(1, at=10))
    table.delete([{"id": 1, "at": 20}])
    before = table.refresh().slot
    table.maintenance.forget_deletes(below=30)
    table.maintenance.compact()
    table.restore(to=before)
    table.upsert([*rows(1, at=15), *rows(2, at=15)])
    assert read(table) == {2: ("x", 15)}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [1, 2, 3]),
        (pa.float64(), [0.5, 1.5, 2.5]),
        (pa.decimal128(10, 2), [Decimal("0.50"), Decimal("1.50"), Decimal("2.50")]),
        (pa.string(), ["a", "b", "c"]),
        (pa.date32(), [dt.date(2026, 1, day) for day in (1, 2, 3)]),
        (pa.timestamp("us", tz="UTC"), [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]),
        (pa.timestamp("us"), [dt.datetime(2026, 1, day) for day in (1, 2, 3)]),
    ],
    ids=str,
)
def test_every_type_of_ordering_column(lake: objcat.Lake, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", kind, nullable=False)])
    table = lake.create_table("t", schema, key=["id"], ordering="at", index=objcat.BucketIndex(1))
    low, middle, high = values
    table.upsert([{"id": 1, "at": low}, {"id": 2, "at": low}])
    table.delete([{"id": 1, "at": low}, {"id": 2, "at": high}])
    table.maintenance.forget_deletes(below=middle)
    table.maintenance.compact()
    assert deletes_of(table) == 1
    table.upsert([{"id": 1, "at": low}, {"id": 2, "at": middle}, {"id": 3, "at": middle}])
    assert {row["id"] for row in table.scan().to_arrow().to_pylist()} == {3}
    table.merge(pa.table({"id": pa.array([5, 6], pa.int64()), "at": pa.array([low, high], kind)})).when_not_matched_insert().execute()
    assert {row["id"] for row in table.scan().to_arrow().to_pylist()} == {3, 6}


def test_an_ordering_column_that_is_widened_keeps_the_watermark(lake: objcat.Lake) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.int32(), nullable=False)])
    table = lake.create_table("t", schema, key=["id"], ordering="at", index=objcat.BucketIndex(1))
    table.maintenance.forget_deletes(below=5)
    table.alter.widen_column("at", "decimal(12,0)")
    table.upsert([{"id": 1, "at": Decimal(4)}, {"id": 2, "at": Decimal(5)}])
    assert table.scan().to_arrow().column("id").to_pylist() == [2]
    table.maintenance.forget_deletes(below=Decimal(7))
    table.upsert([{"id": 3, "at": Decimal(6)}])
    assert table.scan().to_arrow().column("id").to_pylist() == [2]


def test_what_is_refused(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(lake)
    with pytest.raises(InvalidInput, match=r"below='x' is no value of the ordering column 'at'.*Nothing was changed"):
        table.maintenance.forget_deletes(below="x")
    with pytest.raises(InvalidInput, match=r"has no ordering column"):
        lake.create_table("plain", SCHEMA, key=["id"]).maintenance.forget_deletes(below=1)
    lake.sql("CALL forget_deletes(table => 't', below => 5)")
    assert table.refresh().spec.watermark.value == 5  # type: ignore[union-attr]
    monkeypatch.setattr(entries, "WRITER_FEATURES", frozenset())
    with pytest.raises(UnsupportedFormat, match=r"'watermark'"):
        lake.table("t").upsert(rows(1, at=9))


def test_a_table_that_moves_keeps_watermark_and_defaults(lake: objcat.Lake) -> None:
    table = create(lake)
    table.upsert(rows(1, 2, at=10))
    table.delete([{"id": 1, "at": 20}, {"id": 3, "at": 90}])
    table.alter.add_column("n", "int", default=5)
    table.maintenance.forget_deletes(below=50)
    lake.create_table("other", SCHEMA, key=["id"], shared_log="shop")
    moved = lake.move_to_shared_log("t", shared_log="shop")
    assert deletes_of(moved) == 1
    assert moved.maintenance.compact() is None
    moved.upsert(rows(1, at=49) + rows(3, at=80) + rows(4, at=50))
    assert {row["id"]: row["n"] for row in moved.scan().to_arrow().to_pylist()} == {2: 5, 4: 5}
    assert lake.table("t").refresh().log.writer_features.keys() >= {"watermark"}


def test_a_million_keys_that_came_and_went_leave_little(tmp_path: Path) -> None:
    """Every byte below the table is counted, also of the log, checkpoints and what cleaning leaves."""
    count, step = 1_000_000, 250_000
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], ordering="at", index=objcat.BucketIndex(4))
    for first in range(0, count, step):
        ids = pa.array(range(first, first + step), pa.int64())
        table.upsert(pa.table({"id": ids, "city": pa.repeat("x", step), "at": ids}))
        table.delete(pa.table({"id": ids, "at": pc.add(ids, 1)}))
    table.maintenance.compact()
    assert deletes_of(table) == count, "without the declaration they stay"
    table.maintenance.forget_deletes(below=count + 1)
    table.maintenance.compact()
    assert deletes_of(table) == 0 and table.scan().count() == 0
    table.maintenance.clean(keep_slots=1)
    files = [path for path in Path(table.url.removeprefix("file://")).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_000_000
    table.upsert(rows(3, at=4) + rows(5, at=count + 1))
    assert read(table) == {5: ("x", count + 1)}
