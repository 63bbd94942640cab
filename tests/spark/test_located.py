"""Upserts of frames where the index is no hash: Spark joins their keys with those of the table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import objcat
from objcat.errors import NullKey

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("a.b", pa.string()), pa.field("v", pa.float64())])


@pytest.fixture(params=["merge_on_read", "copy_on_write"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> objcat.Table:
    return objcat.connect(str(tmp_path)).create_table(
        "t",
        SCHEMA,
        key=["id", "a.b"],
        partition_by=["a.b"],
        kind=request.param,
        index=objcat.Simple(),
        properties={"target_file_bytes": "4096"},
    )


def test_a_frame_that_differs_each_time_is_computed_once(spark: SparkSession, table: objcat.Table) -> None:
    table.insert([{"id": key, "a.b": part, "v": -1.0} for key in range(300) for part in "xy"])
    assert len(table.refresh().file_groups(table.manifests)) > 2
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()
    some = spark.range(400).select(
        (F.rand() * 600).cast("long").alias("id"), F.when(F.rand() < 0.5, "x").otherwise("z").alias("a.b"), F.rand().alias("v")
    )
    table.upsert(some)
    rows = table.scan().to_arrow().to_pylist()
    assert len({(row["id"], row["a.b"]) for row in rows}) == len(rows)
    assert sum(row["v"] == -1.0 and row["a.b"] == "y" for row in rows) == 300
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept
    found = table.scan().to_spark(spark)
    assert found.count() == len(rows) and found.select("id", "`a.b`").distinct().count() == len(rows)


def test_a_row_without_a_key_is_refused_in_one_sentence(spark: SparkSession, table: objcat.Table) -> None:
    table.insert([{"id": 1, "a.b": "x", "v": 0.0}])
    with pytest.raises(NullKey, match="'id' is null"):
        table.upsert(spark.createDataFrame([(None, "x", 1.0)], "id long, `a.b` string, v double"))
    table.delete(spark.createDataFrame([(1, "x"), (2, "x")], "id long, `a.b` string"))
    assert table.scan().count() == 0


def test_files_that_cannot_hold_a_key_are_not_read(spark: SparkSession, table: objcat.Table) -> None:
    table.set_properties({"target_file_bytes": "1024"})
    for first in (0, 1000, 2000):
        table.insert([{"id": first + key, "a.b": part, "v": 0.0} for key in range(100) for part in "xy"])
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()
    hidden: dict[str, bytes] = {}
    for group in table.refresh().file_groups(table.manifests):
        assert group.base is not None
        data = table.fileio.read(group.base.path)
        row = pq.read_table(pa.BufferReader(data)).slice(0, 1).to_pylist()[0]
        if not (1000 <= row["id"] < 2000 and row["a.b"] == "x"):
            hidden[group.base.path] = data
    assert len(hidden) >= 5
    table.fileio.delete(hidden)
    table.upsert(spark.range(1010, 1090).selectExpr("id", "'x' as `a.b`", "1.0d as v"))
    with pytest.raises(PySparkException, match="is missing in"):
        table.upsert(spark.createDataFrame([(1010, "x", 2.0), (2010, "x", 2.0)], "id long, `a.b` string, v double"))
    for path, data in hidden.items():
        table.fileio.put(path, data)
    rows = table.scan().to_arrow().to_pylist()
    assert len(rows) == 600 and {row["id"] for row in rows if row["v"] == 1.0 and row["a.b"] == "x"} == set(range(1010, 1090))
    assert sum(row["v"] for row in rows) == 80
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept
