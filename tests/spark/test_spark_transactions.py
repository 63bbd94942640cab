"""Transactions whose batches are written by Spark, by this process, or by both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidInput

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string()), ("at", pa.int64())])


def frame(spark: SparkSession, *rows: tuple[int, str, int]) -> Any:
    return spark.createDataFrame(list(rows), "id long, value string, at long")


def rows_of(table: objcat.Table) -> dict[int, str]:
    return {row["id"]: row["value"] for row in table.scan().to_arrow().to_pylist()}


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_batches_of_both_engines_keep_their_order_in_one_slot(spark: SparkSession, tmp_path: Path, kind: TableType) -> None:
    lake = objcat.connect(tmp_path)
    a, b = (
        lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(2), shared_log="d", table_type=kind) for name in ("a", "b")
    )
    with lake.transaction() as tx:
        tx["a"].insert(frame(spark, (1, "spark", 1), (2, "spark", 1), (3, "spark", 1)))
        tx["a"].upsert([{"id": 2, "value": "local", "at": 1}])
        tx["a"].delete(frame(spark, (3, "", 1)))
        tx["b"].upsert([{"id": 1, "value": "local", "at": 1}])
        tx["b"].upsert(frame(spark, (1, "spark", 1)))
    assert (rows_of(a), rows_of(b)) == ({1: "spark", 2: "local"}, {1: "spark"})
    assert [entry.slot for entry in a.inspect.history()] == [0, 2]
    assert "spark" in a.inspect.history()[-1].writer
    assert "local" in a.inspect.history()[-1].writer


@pytest.mark.parametrize("first", ["delete", "write"])
def test_deletes_without_a_value_and_writes_of_that_row_keep_their_order(spark: SparkSession, tmp_path: Path, first: str) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("o", SCHEMA, key=["id"], ordering="at", index=objcat.BucketIndex(2))
    table.upsert([{"id": 2, "value": "old", "at": 9}])
    with lake.transaction() as tx:
        if first == "write":
            tx["o"].upsert(frame(spark, (1, "a", 1), (2, "a", 1)))
        tx["o"].delete(frame(spark, (2, "", 1)).select("id"))
        if first == "delete":
            tx["o"].upsert(frame(spark, (1, "a", 1), (2, "a", 1)))
    expected = {1: "a", 2: "a"} if first == "delete" else {1: "a"}
    assert rows_of(table) == expected
    assert {row["id"]: row["value"] for row in table.scan().to_spark(spark).collect()} == expected


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("ordering", [None, "at"])
def test_spark_writes_and_reads_blocks(spark: SparkSession, tmp_path: Path, kind: TableType, ordering: str | None) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("o", SCHEMA, key=["id"], ordering=ordering, index=objcat.BucketIndex(2), table_type=kind)
    table.upsert([{"id": number, "value": "old", "at": 9} for number in range(10)])
    with lake.transaction() as tx:
        tx["o"].upsert(frame(spark, (20, "new", 1)))
        tx["o"].replace_range(frame(spark, (2, "new", 1), (4, "new", 1)), where="id BETWEEN 2 AND 5")
        tx["o"].delete_where("id IN (7, 20)")
        tx["o"].upsert_partial([{"id": 2, "value": "mine", "at": 2}])
    expected = dict.fromkeys((0, 1, 6, 8, 9), "old") | {2: "mine", 4: "new"}
    assert rows_of(table) == expected
    assert {row["id"]: row["value"] for row in table.scan().to_spark(spark).collect()} == expected
    with pytest.raises(InvalidBatch, match="not in the range"), lake.transaction() as tx:
        tx["o"].replace_range(frame(spark, (2, "new", 1), (6, "new", 1)), where="id BETWEEN 2 AND 5")
    with pytest.raises(InvalidInput, match="takes rows of this process"), lake.transaction() as tx:
        tx["o"].upsert_partial(frame(spark, (2, "new", 1)))
    with lake.transaction() as tx:
        tx["o"].truncate()
        tx["o"].insert(frame(spark, (1, "new", 1)))
    assert {row["id"]: row["value"] for row in table.scan().to_spark(spark).collect()} == rows_of(table) == {1: "new"}
