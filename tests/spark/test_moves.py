"""Frames whose rows go from one partition to another, where a key is unique in the whole table: Spark finds where keys are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import objcat
from objcat.errors import NullKey

pytestmark = pytest.mark.usefixtures("by_jobs")

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("a.b", pa.string()), pa.field("v", pa.float64()), pa.field("o", pa.int32())])
FRAME = "id long, `a.b` string, v double, o int"


@pytest.fixture(params=["merge_on_read", "copy_on_write"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> objcat.Table:
    return objcat.connect(str(tmp_path)).create_table(
        "t",
        SCHEMA,
        key=["id"],
        ordering="o",
        partition_by=["a.b"],
        table_type=request.param,
        index=objcat.SimpleIndex(),
        properties={"target_file_bytes": "4096"},
    )


def rows(spark: SparkSession, table: objcat.Table) -> dict[int, tuple[str, float]]:
    local = table.scan().to_arrow().to_pylist()
    found = {row["id"]: (row["a.b"], row["v"]) for row in local}
    assert len(found) == len(local), "a key is there twice"
    through_spark = [row.asDict() for row in table.scan().to_spark(spark).collect()]
    assert sorted((row["id"], row["a.b"], row["v"]) for row in through_spark) == sorted((key, *held) for key, held in found.items())
    return found


def test_rows_move_unless_they_come_late(spark: SparkSession, table: objcat.Table) -> None:
    table.insert([{"id": key, "a.b": "xy"[key % 2], "v": 0.0, "o": key % 3} for key in range(300)])
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()
    # Each key comes twice, in two partitions: of these the later one counts, where it is not late.
    some = spark.range(200, 400).select("id", F.lit("q").alias("a.b"), F.lit(-1.0).alias("v"), F.lit(1).alias("o"))
    twice = some.union(some.withColumn("a.b", F.lit("z")).withColumn("v", F.rand())).repartition(3, "id")
    result = table.upsert(twice.coalesce(1))
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept
    assert result.rows == 200
    found = rows(spark, table)
    late = {key for key in range(200, 300) if key % 3 == 2}
    assert set(found) == set(range(400))
    assert all(found[key] == ("xy"[key % 2], 0.0) for key in {*range(200), *late})
    assert all(found[key][0] in ("q", "z") for key in range(200, 400) if key not in late)
    if table.spec.rewrites:
        assert (result.inserted, result.updated, result.deleted) == (100, 100 - len(late), 0)


def test_a_delete_needs_no_partition(spark: SparkSession, table: objcat.Table) -> None:
    table.insert([{"id": key, "a.b": "xyz"[key % 3], "v": 0.0, "o": 1} for key in range(30)])
    table.delete(spark.createDataFrame([(key,) for key in range(28)], "id long"))
    assert set(rows(spark, table)) == {28, 29}
    table.upsert(spark.createDataFrame([(1, "q", 1.0, 0), (28, "q", 1.0, 2)], FRAME))
    assert rows(spark, table) == {1: ("q", 1.0), 28: ("q", 1.0), 29: ("z", 0.0)}


@pytest.mark.parametrize("table", ["merge_on_read"], indirect=True)
def test_a_row_that_cannot_be_measured_is_refused(spark: SparkSession, table: objcat.Table) -> None:
    table.insert([{"id": 1, "a.b": "x", "v": 0.0, "o": 1}])
    with pytest.raises(NullKey, match="ordering column 'o' is null"):
        table.upsert(spark.createDataFrame([(1, "y", 1.0, 5), (1, "z", 1.0, None)], FRAME))
    with pytest.raises(NullKey, match="'id' is null"):
        table.upsert(spark.createDataFrame([(None, "y", 1.0, 5)], FRAME))
    assert rows(spark, table) == {1: ("x", 0.0)}


def test_keys_move_into_partitions_that_a_frame_replaces(spark: SparkSession, table: objcat.Table) -> None:
    table.insert([{"id": key, "a.b": "xyz"[key % 3], "v": 0.0, "o": 3} for key in range(30)])
    frame = spark.createDataFrame([(0, "y", 1.0, 4), (1, "y", 1.0, 1), (2, "y", 1.0, 1), (40, "y", 1.0, 1)], FRAME)
    table.insert_overwrite(frame.repartition(2))
    # Of those that stay elsewhere, 0 is newer now, and 2 is not.
    expected = {key: ("xyz"[key % 3], 0.0) for key in range(30) if key % 3 != 1} | dict.fromkeys((0, 1, 40), ("y", 1.0))
    assert rows(spark, table) == expected
    table.insert_overwrite(spark.createDataFrame([(50, "x", 2.0, 1)], FRAME), where="`a.b` in ('x', 'z')")
    assert rows(spark, table) == {0: ("y", 1.0), 1: ("y", 1.0), 40: ("y", 1.0), 50: ("x", 2.0)}


def test_several_ordering_columns_decide_which_rows_move(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("a.b", pa.string()), ("v", pa.float64()), ("o", pa.int32()), ("p", pa.float64())])
    table = objcat.connect(tmp_path).create_table(
        "t", schema, key=["id"], ordering=["o", "p"], partition_by=["a.b"], index=objcat.SimpleIndex()
    )
    frame = f"{FRAME}, p double"
    table.insert([{"id": key, "a.b": "x", "v": 0.0, "o": 5, "p": 5.0} for key in range(6)])
    moved = [(0, "y", 1.0, 5, 4.0), (1, "y", 1.0, 5, 5.0), (2, "y", 1.0, 5, 6.0), (3, "y", 1.0, 4, 9.0), (4, "y", 1.0, 6, 0.0)]
    table.upsert(spark.createDataFrame([*moved, (4, "z", 2.0, 6, -0.0), (4, "q", 3.0, 6, -1.0), (9, "y", 1.0, 0, 0.0)], frame))
    expected = {0: ("x", 0.0), 1: ("y", 1.0), 2: ("y", 1.0), 3: ("x", 0.0), 4: ("z", 2.0), 5: ("x", 0.0), 9: ("y", 1.0)}
    assert rows(spark, table) == expected
    with pytest.raises(NullKey, match="ordering column 'p' is NaN"):
        table.upsert(spark.createDataFrame([(1, "y", 1.0, 7, 0.0), (1, "z", 1.0, 6, float("nan"))], frame))
    with pytest.raises(NullKey, match="ordering column 'p' is null"):
        table.upsert(spark.createDataFrame([(1, "y", 1.0, 7, 0.0), (1, "z", 1.0, 6, None)], frame))
    table.delete(spark.createDataFrame([(5, 5, 4.0), (1, 5, 5.5), (2, 9, 0.0)], "id long, o int, p double"))
    table.upsert(spark.createDataFrame([(1, "z", 9.0, 5, 5.25), (2, "z", 9.0, 9, 0.0)], frame))
    assert rows(spark, table) == {key: held for key, held in (expected | {2: ("z", 9.0)}).items() if key != 1}
