"""The script of `tests.sql.tpch_script` on Delta Lake: `python -m tests.sql.tpch_delta DIRECTORY JAR...`, in that peer's environment.

DIRECTORY holds orders.parquet and lineitem.parquet; tables go below the working directory. Prints the answers to the queries as JSON, as
its last line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.sql.tpch_script import KEYS, QUERIES, STATEMENTS, plain


def main(directory: str, *jars: str) -> None:
    settings = {
        "spark.master": "local[2]",
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(Path.cwd() / "warehouse"),
    }
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for name in KEYS:
        spark.sql(f"CREATE TABLE {name} USING delta AS SELECT * FROM parquet.`{directory}/{name}.parquet`")
    for statement in STATEMENTS:
        spark.sql(statement).collect()
    print(json.dumps([plain(spark.sql(query).collect()) for query in QUERIES]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
