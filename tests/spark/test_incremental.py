"""Reads that follow what changed, on Spark: the rows that the local engine reads."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import objcat
from objcat.common.validation import TableType
from tests.spark.plans import files_read, text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("place", pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))])),
    ]
)


def batch(step: int, *keys: int) -> pa.Table:
    rows = [
        {"id": key, "name": None if key % 3 == 0 else f"{step}·{key}", "at": step * 10**6, "place": {"x": float(step), "tags": ["a", None]}}
        for key in keys
    ]
    return pa.Table.from_pylist([{**row, "at": None} for row in rows], SCHEMA).set_column(
        2, SCHEMA.field("at"), pa.array([row["at"] for row in rows], pa.int64()).cast(SCHEMA.field("at").type)
    )


def collected(frame: DataFrame, schema: pa.Schema) -> list[str]:
    table = frame.toArrow()
    assert table.schema.names == schema.names
    return shown(table)


def shown(table: pa.Table) -> list[str]:
    return sorted(str(sorted(row.items(), key=str)) for row in table.to_pylist())


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_spark_reads_what_the_local_engine_reads(spark: SparkSession, tmp_path: Path, kind: TableType) -> None:
    chance = random.Random(3)
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(3))
    for step in range(8):
        table.upsert(batch(step, *chance.sample(range(30), 8)))
        if step == 4:
            table.maintenance.compact()
            table.delete([{"id": key} for key in range(5)])
    feeds: list[Any] = [
        table.incremental(since=5),
        table.incremental(since=2, until=6, columns=["_commit_slot", "id", "_commit_time"], where="id > 4"),
        table.changes(since=3),
        table.changes(since=-1, net=True, columns=["id", "place"]),
    ]
    for feed in feeds:
        expected = feed.to_arrow()
        assert expected.num_rows
        assert collected(feed.to_spark(spark), feed.schema) == shown(expected)
    nothing = table.changes(since=table.snapshot.slot).to_spark(spark)
    assert nothing.count() == 0
    assert nothing.columns[:3] == ["_change_type", "_commit_slot", "_commit_time"]
    counts = table.changes(since=3).to_spark(spark).groupBy("_change_type").count().collect()
    assert {row["_change_type"] for row in counts} == {"insert", "update_before", "update_after", "delete"}


def test_base_files_alone_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.insert(batch(0, *range(10)))
    table.upsert(batch(1, 3, 11))
    scan = table.scan(mode="read_optimized", columns=["id", "name"])
    frame = scan.to_spark(spark)
    assert shown(frame.toArrow()) == shown(scan.to_arrow())
    assert frame.count() == 10
    table.maintenance.compact()
    assert table.scan(mode="read_optimized").to_spark(spark).count() == 11


def put(table: objcat.Table, step: int, *keys: int) -> None:
    table.upsert([{"id": key, "o": step, "v": step * 100 + key} for key in keys])


ORDERED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("o", pa.int64()), ("v", pa.int64())])


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("ordering", [None, "o"])
def test_an_incremental_read_is_one_plan_of_spark_over_the_files_of_its_range(
    spark: SparkSession, tmp_path: Path, kind: TableType, ordering: str | None
) -> None:
    table = objcat.connect(tmp_path).create_table("t", ORDERED, key=["id"], table_type=kind, ordering=ordering, index=objcat.BucketIndex(4))
    table.insert([{"id": key, "o": 5, "v": key} for key in range(200)])
    put(table, 6, *range(20))
    since = table.refresh().slot
    put(table, 7, 3, 300)
    put(table, 1, 4)
    for where in (None, "v > 5 and id < 250"):
        feed = table.incremental(since=since, where=where, columns=["id", "v"])
        frame = feed.to_spark(spark)
        assert "MapInArrow" not in text_of(frame) and "Python" not in text_of(frame)
        expected = [(3, 703), (300, 1000)] if ordering else [(3, 703), (4, 104), (300, 1000)]
        assert sorted(tuple(row) for row in frame.collect()) == [row for row in expected if where is None or row[0] < 250]


@contextmanager
def fixed_plans(spark: SparkSession) -> Iterator[None]:
    """So that scans of a plan can be found after it has run."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        yield
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "true")


def test_files_of_before_the_range_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", ORDERED, key=["id"], index=objcat.BucketIndex(4))
    table.insert([{"id": key, "o": 5, "v": key} for key in range(200)])
    put(table, 6, *range(100))
    since = table.refresh().slot
    assert table.incremental(since=since).to_spark(spark).count() == 0
    put(table, 7, *range(0, 200, 3))
    former = list(tmp_path.glob("tables/*/data/**/*.parquet"))
    put(table, 8, 1)
    since_newest = table.refresh().slot - 1
    with fixed_plans(spark):
        assert files_read(table.incremental(since=since_newest).to_spark(spark)) == 1
    for place in former:
        place.unlink()
    found = table.incremental(since=since_newest, columns=["v", "_commit_slot"]).to_spark(spark)
    assert [tuple(row) for row in found.collect()] == [(801, since_newest + 1)]


def test_an_incremental_read_over_rewrites_and_splits(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    for ordering in (None, "o"):
        table = lake.create_table(f"t{ordering}", ORDERED, key=["id"], ordering=ordering, index=objcat.BucketIndex(2))
        table.insert([{"id": key, "o": 5, "v": key} for key in range(50)])
        put(table, 6, *range(10))
        put(table, 7, 8, 9, 60)
        table.delete([{"id": 9, "o": 8}] if ordering else [{"id": 9}])
        table.maintenance.compact()
        put(table, 6, 9, 11)
        table.maintenance.split_buckets()
        put(table, 9, 12, 61)
        table.maintenance.compact(file_groups=sorted(table.refresh().live_group_ids(table._context.manifests))[:2])
        put(table, 9, 13, 60)
        for since in range(-1, table.refresh().slot):
            feed = table.incremental(since=since, columns=["id", "v", "_commit_slot", "_commit_time"])
            frame = feed.to_spark(spark)
            assert "MapInArrow" not in text_of(frame)
            assert shown(frame.toArrow().cast(feed.schema)) == shown(feed.to_arrow()), since


def test_many_commits_of_a_table_without_a_key(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = objcat.connect(tmp_path).create_table("t", ORDERED, key=None)
    for step in range(6):
        table.insert([{"id": step, "o": None, "v": 1}] * 2)
    table.maintenance.compact()
    feed = table.incremental(since=2, columns=["id"])
    expected = sorted([2, 2, 3, 3, 4, 4, 5, 5])
    assert sorted(row["id"] for row in feed.to_spark(spark).collect()) == expected
    monkeypatch.setattr("objcat.spark.native.changes.LISTED_MAX", 2)
    assert sorted(row["id"] for row in feed.to_spark(spark).collect()) == expected
    expression = table.incremental(since=2, columns=["id"], where=pc.field("id") > 3).to_spark(spark)
    assert "MapInArrow" in text_of(expression)
    assert sorted(row["id"] for row in expression.collect()) == [4, 4, 5, 5]


@pytest.mark.parametrize("ordering", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()], ids=str)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_late_rows_count_for_nothing_on_spark_either(spark: SparkSession, tmp_path: Path, ordering: pa.DataType, zone: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("o", ordering, nullable=False)])
    table = objcat.connect(tmp_path).create_table(
        "t", schema, key=["id"], ordering="o", allowed_lateness="2 days", index=objcat.BucketIndex(2)
    )
    now = dt.datetime.now(dt.UTC).replace(tzinfo=dt.UTC if ordering == pa.timestamp("us", tz="UTC") else None)

    def rows(*ages: tuple[int, float]) -> pa.Table:
        moments = [now - dt.timedelta(days=days) for _, days in ages]
        orders = [moment.date() for moment in moments] if ordering == pa.date32() else moments
        return pa.table({"id": pa.array([key for key, _ in ages]), "o": pa.array(orders, ordering)})

    table.insert(rows((1, 50), (2, 50), (5, 50)))
    table.upsert(rows((1, 3.5), (2, 0.5), (3, 4), (4, 0.1)))
    table.delete(rows((5, 3.5), (4, 0.1)))
    table.delete([{"id": 2}])
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for _ in range(2):
            assert sorted(row["id"] for row in table.scan().to_spark(spark).collect()) == [1, 5]
            assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [1, 5]
            table.maintenance.compact()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
