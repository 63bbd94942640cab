"""A Spark application of its own: `python -m tests.spark.native_driver SCENARIO ARGUMENTS`, arguments as JSON. Prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import objcat
import objcat.spark
from objcat.spark.versions import VERSION, to_arrow

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


STATEMENTS = (
    """CREATE TABLE lake.a.t (id BIGINT, city STRING, fare DOUBLE) PARTITIONED BY (city)
       TBLPROPERTIES ('key' = 'id, city', 'index' = 'bucket(2)')""",
    "INSERT INTO lake.a.t VALUES (1, 'Rome', 1.0), (2, 'Oslo', 2.0), (3, 'Rome', 3.0), (4, 'Bari', 4.0)",
    "UPDATE lake.a.t SET fare = fare + 10 WHERE id = 1",
    "DELETE FROM lake.a.t WHERE id = 4",
    """MERGE INTO lake.a.t t USING (SELECT 2L AS id, 'Oslo' AS city, 7.0D AS fare UNION ALL SELECT 5L, 'Oslo', 5.0D) s
       ON t.id = s.id AND t.city = s.city WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *""",
    "INSERT OVERWRITE lake.a.t PARTITION (city = 'Rome') SELECT id, fare * 2 FROM lake.a.t WHERE city = 'Rome'",
    "ALTER TABLE lake.a.t ADD COLUMNS (note STRING)",
    "CREATE TABLE lake.a.u AS SELECT id, city FROM lake.a.t",
    "CREATE OR REPLACE TABLE lake.a.u AS SELECT id, city FROM lake.a.t WHERE id > 1",
    "TRUNCATE TABLE lake.a.u",
    "ALTER TABLE lake.a.u RENAME TO v",
    *(["CALL lake.compact(table => 'a.t')"] if VERSION >= (4, 0) else []),
)


def statements(spark: SparkSession, url: str, options: Mapping[str, str]) -> dict[str, Any]:
    """What a lake holds after a statement of each kind, by `configure` of a session."""
    objcat.spark.configure(spark, url, options)
    for text in STATEMENTS:
        spark.sql(text).collect()
    spark.createDataFrame([(6, "Oslo", 6.0, None)], "id long, city string, fare double, note string").writeTo("lake.a.t").append()
    with tempfile.TemporaryDirectory() as folder:
        spark.createDataFrame([(7, "Oslo", 7.5, "streamed")], "id long, city string, fare double, note string").write.json(f"{folder}/in")
        stream = spark.readStream.schema("id long, city string, fare double, note string").json(f"{folder}/in").writeStream
        stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).toTable("lake.a.t").awaitTermination()

    def rows(text: str) -> list[Any]:
        return [list(row) for row in spark.sql(text).collect()]

    return {
        "rows": rows("SELECT * FROM lake.a.t ORDER BY id"),
        "past": rows("SELECT count(*) FROM lake.a.t VERSION AS OF 1")[0][0],
        "files": rows("SELECT DISTINCT kind FROM lake.a.t.files VERSION AS OF 1"),
        "shown": rows("SHOW TABLES IN lake.a"),
    }


HELD = {
    "rows": [
        [1, "Rome", 22.0, None],
        [2, "Oslo", 7.0, None],
        [3, "Rome", 6.0, None],
        [5, "Oslo", 5.0, None],
        [6, "Oslo", 6.0, None],
        [7, "Oslo", 7.5, "streamed"],
    ],
    "past": 4,
    "files": [["base"]],
    "shown": [["a", "t", False], ["a", "v", False]],
}
"""What it is."""


def connector(*, url: str, options: dict[str, str], ivy: str) -> dict[str, Any]:
    """Reads through the connector of a store, as `configure` sets it up."""
    builder = SparkSession.builder.master("local[2]").config("spark.jars.ivy", ivy)
    for name, value in QUIET.items():
        builder = builder.config(name, value)
    spark = objcat.spark.configure(builder, url, options).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    table = filled(f"{url}/lake with space", options)
    plan = str(table.scan().to_spark(spark)._jdf.queryExecution().executedPlan().toString())
    held = statements(spark, f"{url}/lake of statements", options)
    return {**compared(table, spark), "native": "FileScan parquet" in plan and "MapInArrow" not in plan, "statements": held}


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
