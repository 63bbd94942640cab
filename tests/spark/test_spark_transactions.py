"""Transactions whose batches are written by Spark, by this process, or by both."""

# ruff: noqa: PT012  (a transaction is a block, and fails where it ends)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch

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


def test_a_delete_without_a_value_beside_a_write_of_that_row_is_found_in_files_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("o", SCHEMA, key=["id"], ordering="at", index=objcat.BucketIndex(2))
    with pytest.raises(InvalidBatch, match=r"\(id=2\)"), lake.transaction() as tx:
        tx["o"].upsert(frame(spark, (1, "a", 1), (2, "a", 1)))
        tx["o"].delete(frame(spark, (2, "", 1)).select("id"))
    assert rows_of(table) == {}
