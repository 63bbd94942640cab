"""A process with a Spark of its own, and the driver of PostgreSQL, reads a table: `python -m ... CONFIG LAKE TABLE JAR`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import objcat
from objcat.ingest.config import read_config
from objcat.ingest.postgres import exported_snapshot
from objcat.ingest.spark_bootstrap import bootstrap_table


def main(config: str, lake: str, table: str, jar: str) -> None:
    """Read it, in parts of one page."""
    exported_snapshot.PAGES_MIN = 1
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jar).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.session.timeZone", "Asia/Tokyo")
    spark = builder.config("spark.driver.extraJavaOptions", "-Duser.timezone=America/Lima").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        found = bootstrap_table(read_config(config), objcat.connect(lake), spark, table, parts_max=7)
        print(f"slot {found.slot}, {found.rows} rows in {found.parts} parts")
    finally:
        spark.stop()


main(*sys.argv[1:])
