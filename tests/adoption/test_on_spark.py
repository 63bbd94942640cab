"""Adopted tables on Spark: reads of adopted files and of others in one plan, writes, increments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

import objcat
from tests.adoption.foreign import plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(ids: range) -> pa.Table:
    return pa.table({"id": list(ids), "city": [None if n % 4 == 0 else f"Zürich {n % 3}" for n in ids], "fare": [n / 2 for n in ids]})


def test_spark_reads_and_writes_an_adopted_table(spark: SparkSession, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "old", rows(range(20)), partition_by=["city"])
    lake = objcat.connect(tmp_path)
    slot = lake.adopt_delta("old", "t", key=["id"]).slot
    table = lake.table("t")
    assert plain(table.scan().to_spark(spark).toArrow()) == plain(rows(range(20)))
    assert table.scan(where="city = 'Zürich 1'").to_spark(spark).count() == table.scan(where="city = 'Zürich 1'").count() > 0
    table.upsert(spark.createDataFrame(rows(range(15, 30))))
    table.upsert(spark.createDataFrame(rows(range(100, 140)).set_column(1, "city", pa.array(["Rome"] * 40))))
    now = [*plain(rows(range(30))), *plain(rows(range(100, 140)).set_column(1, "city", pa.array(["Rome"] * 40)))]
    assert plain(table.scan().to_spark(spark).toArrow()) == now
    assert plain(table.scan(as_of=slot).to_spark(spark).toArrow()) == plain(rows(range(20)))
    assert table.incremental(since=slot).to_spark(spark).count() == 55
    table.maintenance.compact()
    assert plain(table.scan().to_spark(spark).toArrow()) == now
    assert lake.sql("SELECT count(*) AS n FROM t WHERE city = 'Rome'", spark).toArrow().column("n").to_pylist() == [40]
    read = spark.read.format("objcat").load(f"{tmp_path}/t")
    assert read.count() == len(now)
