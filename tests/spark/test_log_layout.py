"""How log rows of a frame are dealt to objects: as they come where they are few, by bucket where they are many."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.metadata.files import decode_delta
from objcat.spark import routing

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.int64())])
TASKS, BUCKETS, ROWS = 12, 8, 2400


def frame(spark: SparkSession) -> DataFrame:
    """Many tasks, each of which has rows of every bucket; of every key two, of which the later has a greater value."""
    return spark.range(0, ROWS, 1, TASKS).selectExpr(f"id % {ROWS // 2} id", "id value")


def table_of(place: Path, name: str = "t") -> objcat.Table:
    return objcat.connect(place).create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(BUCKETS))


def layout(table: objcat.Table) -> tuple[int, int]:
    """Log objects of the newest commit, and runs of rows of one bucket in them."""
    logs = decode_delta(table.inspect.history()[-1].changes[table.id]).logs
    return len(logs), sum(len(log.slices) for log in logs)


def values(table: objcat.Table) -> dict[int, int]:
    return {row["id"]: row["value"] for row in table.scan().to_arrow().to_pylist()}


EXPECTED = {key: key + ROWS // 2 for key in range(ROWS // 2)}


def test_a_small_batch_is_written_as_it_comes(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.upsert(frame(spark))
    assert layout(table) == (TASKS, TASKS * BUCKETS)
    assert values(table) == EXPECTED


def test_a_big_batch_brings_the_rows_of_a_bucket_together(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "SHUFFLED_BYTES_MIN", 1000)
    table = table_of(tmp_path)
    table.upsert(frame(spark))
    objects, runs = layout(table)
    assert runs < BUCKETS + objects <= 2 * BUCKETS
    assert values(table) == EXPECTED
    table.delete(frame(spark).select("id").where("id < 100"))
    objects, runs = layout(table)
    assert runs < BUCKETS + objects <= 2 * BUCKETS
    assert values(table) == {key: value for key, value in EXPECTED.items() if key >= 100}


def test_rows_of_one_key_keep_their_order_also_where_a_task_writes_several_objects(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "SHUFFLED_BYTES_MIN", 1000)
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        table = table_of(tmp_path)
        table.upsert(frame(spark))
        objects, runs = layout(table)
        assert objects > 1
        assert runs == BUCKETS
        assert values(table) == EXPECTED
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        spark.conf.set("spark.sql.adaptive.enabled", "true")


def test_what_spark_expects_decides(spark: SparkSession, tmp_path: Path) -> None:
    spec = table_of(tmp_path).spec
    worth = routing.is_worth_a_shuffle
    small, big = spark.range(10**6), spark.range(10**9)
    assert not worth(small, spec)
    assert worth(big, spec)
    # Of a join Spark expects the product, and of an RDD anything.
    assert not worth(small.crossJoin(small.toDF("other")), spec)
    assert not worth(spark.createDataFrame([(1, 2)], "id long, value long"), spec)
    assert worth(spark.createDataFrame(spark.sparkContext.parallelize([(1, 2)] * 8, 8), "id long, value long"), spec)
    one = objcat.connect(tmp_path).create_table("one", SCHEMA, key=["id"], index=objcat.BucketIndex(1)).spec
    assert not worth(big, one)
