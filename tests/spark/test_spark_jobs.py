"""What Spark shows of the jobs that writes begin."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import objcat
from tests.spark.test_spark_breaking import fail

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.int64())])


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("id", "id value")


def descriptions(spark: SparkSession) -> list[str]:
    """Of the stages that Spark remembers, the newest first."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    gateway: Any = spark.sparkContext._gateway
    quantiles = gateway.new_array(gateway.jvm.double, 0)
    stages: Any = spark.sparkContext._jsc.sc().statusStore().stageList(None, False, False, quantiles, None)
    found = [stages.apply(number).description() for number in range(stages.size())]
    return [one.get() for one in found if one.isDefined()]


@pytest.fixture
def keyed(tmp_path: Path) -> objcat.Table:
    return objcat.connect(tmp_path).create_table("shop.orders", SCHEMA, key=["id"], index=objcat.Bucket(2))


def test_a_write_says_what_it_is_and_the_description_of_before_is_back(spark: SparkSession, keyed: objcat.Table, tmp_path: Path) -> None:
    context = spark.sparkContext
    context.setJobGroup("mine", "my own work")
    try:
        keyed.insert(rows(spark, 10))
        keyed.upsert(rows(spark, 5))
        assert keyed.delete("value < 3", spark=spark)
        told = descriptions(spark)
        for expected in ("insert", "upsert", "find rows to delete in", "delete"):
            assert f"objcat: {expected} shop.orders" in told
        keyless = objcat.connect(tmp_path).create_table("shop.visits", SCHEMA, key=None)
        keyless.insert([{"id": 1, "value": 1}, {"id": 2, "value": 2}])
        assert keyless.delete("id = 1", spark=spark)
        assert "objcat: delete shop.visits" in descriptions(spark)
        with objcat.connect(tmp_path).transaction() as transaction:
            transaction["shop.orders"].delete(rows(spark, 1))
        assert context.getLocalProperty("spark.job.description") == "my own work"
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def test_a_write_that_fails_leaves_no_description_behind(spark: SparkSession, keyed: objcat.Table) -> None:
    frame = rows(spark, 5)
    with pytest.raises(PySparkException, match="told to fail"):
        keyed.upsert(frame.mapInArrow(fail, frame.schema))
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


def test_each_thread_has_its_own_description(spark: SparkSession, keyed: objcat.Table) -> None:
    context = spark.sparkContext
    seen: list[str | None] = []

    def other() -> None:
        context.setJobDescription("the other thread")
        keyed.upsert(rows(spark, 3))
        seen.append(context.getLocalProperty("spark.job.description"))

    thread = threading.Thread(target=other)
    thread.start()
    keyed.upsert(rows(spark, 4))
    thread.join()
    assert seen == ["the other thread"]
    assert context.getLocalProperty("spark.job.description") is None
