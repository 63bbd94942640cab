"""Batches of Spark in a table whose deletes were forgotten: what is below the watermark is left out, wherever the rows are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.common.validation import TableType
from objcat.metadata.table_spec import Index
from objcat.spark import frames

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), pa.field("at", pa.int64(), nullable=False)])
INDEXES: list[Index] = [objcat.BucketIndex(2), objcat.RecordIndex(2)]


@pytest.fixture(params=[True, False], ids=["on executors", "in this process"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the rows of a frame are written."""
    if request.param:
        monkeypatch.setattr(frames, "ROWS_MAX", 0)


def frame(spark: SparkSession, ids: Sequence[int], *, at: int, city: str = "x") -> DataFrame:
    return spark.createDataFrame([(one, city, at) for one in ids], "id long, city string, at long").repartition(2)


def read(table: objcat.Table) -> dict[int, tuple[str, int]]:
    return {row["id"]: (row["city"], row["at"]) for row in table.scan().to_arrow().to_pylist()}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("index", INDEXES, ids=lambda index: type(index).__name__)
def test_a_late_batch_of_spark_counts_for_nothing(spark: SparkSession, tmp_path: Path, kind: TableType, index: Index) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", SCHEMA, key=["id"], ordering="at", table_type=kind, index=index)
    table.upsert(frame(spark, range(12), at=10))
    table.delete(frame(spark, range(4), at=20).select("id", "at"))
    table.maintenance.forget_deletes(below=25)
    table.maintenance.compact(spark=spark)
    expected: dict[int, Any] = dict.fromkeys(range(4, 12), ("x", 10))
    assert read(table) == expected

    before = table.refresh().slot
    late = table.upsert(frame(spark, [0, 1, 5, 30], at=24, city="late"), app=objcat.AppVersion(app="feed", version=1))
    assert (late.slot, late.rows, late.files) == (before + 1, 0, 0), "it is a commit without files, so a stream goes on"
    assert table.upsert(frame(spark, [0], at=24), app=objcat.AppVersion(app="feed", version=1)).already_applied
    mixed = frame(spark, [1, 2, 31], at=24, city="late").union(frame(spark, [3, 6, 32], at=25, city="new"))
    assert table.upsert(mixed).rows == 3
    expected |= dict.fromkeys([3, 6, 32], ("new", 25))
    assert read(table) == expected
    table.delete(frame(spark, [7, 32], at=24).select("id", "at"))
    assert read(table) == expected, "a late delete counts for nothing either"
    table.delete(frame(spark, [7], at=0).select("id"))
    del expected[7]
    assert read(table) == expected, "a delete without a value counts"
    table.insert(frame(spark, [40], at=24).union(frame(spark, [41], at=26)))
    expected[41] = ("x", 26)
    assert read(table) == expected

    lake.sql("UPDATE t SET city = 'set' WHERE id = 8", spark)
    lake.sql("DELETE FROM t WHERE id = 9", spark)
    frame(spark, [10, 50], at=24, city="merged").union(frame(spark, [51], at=25, city="merged")).createOrReplaceTempView("coming")
    table.merge(spark.table("coming")).when_matched_update({"city": "source.city"}).when_not_matched_insert().execute()
    del expected[9]
    expected |= {8: ("set", 10), 10: ("merged", 10), 51: ("merged", 25)}
    assert read(table) == expected, "rows computed from those of the table are not measured, and a merge inserts nothing that is late"
    assert {row["id"] for row in table.scan().to_spark(spark).toArrow().to_pylist()} == set(expected)
    table.insert_overwrite(frame(spark, [1, 2], at=3))
    assert read(table) == dict.fromkeys([1, 2], ("x", 3)), "what replaces everything may be old"
