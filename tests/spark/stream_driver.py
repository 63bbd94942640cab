"""A streaming application of its own: `python -m tests.spark.stream_driver DIRECTORY`. Reads `in`, writes two tables, and ends with it."""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.spark import foreach_batch
from tests.spark.native_driver import QUIET


def main(directory: str) -> None:
    """One query by the format into a table without a key, where every row that comes twice is there twice; one by `foreach_batch`."""
    builder = SparkSession.builder.master("local[2]").appName("killed")
    for name, value in {**QUIET, "spark.sql.session.timeZone": "UTC", "spark.sql.warehouse.dir": f"{directory}/warehouse"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def source() -> DataFrame:
        return spark.readStream.schema("id long, batch long").option("maxFilesPerTrigger", "1").json(f"{directory}/in")

    table = objcat.connect(f"{directory}/lake").table("newest")
    writers = [
        source().writeStream.format("objcat").option("path", f"{directory}/lake/rows"),
        source().writeStream.foreachBatch(foreach_batch(table, app_id="newest")),
    ]
    queries = [
        writer.option("checkpointLocation", f"{directory}/checkpoint-{number}").trigger(availableNow=True).start()
        for number, writer in enumerate(writers)
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
