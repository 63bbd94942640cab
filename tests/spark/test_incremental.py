"""Reads that follow what changed, on Spark: the rows that the local engine reads."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import objcat

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
def test_spark_reads_what_the_local_engine_reads(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    chance = random.Random(3)
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], kind=kind, index=objcat.Bucket(3))
    for step in range(8):
        table.upsert(batch(step, *chance.sample(range(30), 8)))
        if step == 4:
            table.compact()
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
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.Bucket(2))
    table.insert(batch(0, *range(10)))
    table.upsert(batch(1, 3, 11))
    scan = table.scan(mode="read_optimised", columns=["id", "name"])
    frame = scan.to_spark(spark)
    assert shown(frame.toArrow()) == shown(scan.to_arrow())
    assert frame.count() == 10
    table.compact()
    assert table.scan(mode="read_optimised").to_spark(spark).count() == 11


@pytest.mark.parametrize("ordering", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()], ids=str)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_late_rows_count_for_nothing_on_spark_either(spark: SparkSession, tmp_path: Path, ordering: pa.DataType, zone: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("o", ordering, nullable=False)])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id"], ordering="o", lateness="2 days", index=objcat.Bucket(2))
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
            table.compact()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
