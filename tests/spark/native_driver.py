"""A Spark application of its own: `python -m tests.spark.native_driver SCENARIO ARGUMENTS`, arguments as JSON. Prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import objcat
import objcat.spark
from objcat.spark.versions import to_arrow

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string()), pa.field("fare", pa.float64())])
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def batch(ids: range, fare: float) -> pa.Table:
    return pa.table({"id": list(ids), "city": [f"c{i % 3}" for i in ids], "fare": [fare] * len(ids)}, schema=SCHEMA)


def filled(url: str, options: dict[str, str]) -> objcat.Table:
    """A table with base files, log rows, and some of them merged."""
    table = objcat.connect(url, options).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    table.insert(batch(range(200), 1.0))
    table.upsert(batch(range(150, 250), 2.0))
    table.maintenance.compact(file_groups=sorted(table.refresh().live_group_ids(table._context.manifests))[:2])
    table.upsert(batch(range(5), 3.0))
    table.delete(batch(range(190, 195), 0.0).select(["id"]))
    return table


def compared(table: objcat.Table, spark: SparkSession) -> dict[str, Any]:
    """Whether both engines read the same, and how many rows."""
    found = {}
    scans: dict[str, dict[str, Any]] = {"all": {}, "some": {"where": "city = 'c1' and fare > 1", "columns": ["fare", "id"]}}
    for name, scan in scans.items():
        local = table.scan(**scan).to_arrow()
        through = to_arrow(table.scan(**scan).to_spark(spark))
        same = sorted(map(repr, local.to_pylist())) == sorted(map(repr, through.to_pylist()))
        found[name] = {"same": same, "rows": local.num_rows}
    return found


def connector(*, url: str, options: dict[str, str], ivy: str) -> dict[str, Any]:
    """Reads through the connector of a store, as `configure` sets it up."""
    builder = SparkSession.builder.master("local[2]").config("spark.jars.ivy", ivy)
    for name, value in QUIET.items():
        builder = builder.config(name, value)
    spark = objcat.spark.configure(builder, url, options).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    table = filled(f"{url}/lake with space", options)
    plan = str(table.scan().to_spark(spark)._jdf.queryExecution().executedPlan().toString())
    return {**compared(table, spark), "native": "FileScan parquet" in plan and "MapInArrow" not in plan}


def connect(*, url: str) -> dict[str, Any]:
    """Reads and writes through a Spark Connect server, which this starts."""
    builder = SparkSession.builder.remote("local[2]")
    for name, value in QUIET.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    table = filled(url, {})
    table.upsert(spark.range(300, 310).selectExpr("id", "'far' city", "4.0D fare"))
    found = {**compared(table, spark), "module": type(spark).__module__}
    found["far"] = table.scan(where="city = 'far'").to_spark(spark).count()
    spark.stop()
    return found


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {"connector": connector, "connect": connect}

if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    print(json.dumps(SCENARIOS[sys.argv[1]](**json.loads(sys.argv[2]))))
