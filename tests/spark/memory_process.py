"""Works on a table of TPC-H through Spark, each an application of its own: `python -m tests.spark.memory_process URL FILE KEY WORK`.

FILE: Parquet, as tpchgen-cli writes it. KEY: columns, with commas between them. Prints the peaks of resident memory in bytes, as JSON:
`jvm`, `workers` (all of them together), `tree` (everything, the driver's Python too).
"""

from __future__ import annotations

import json
import sys
import threading

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

import objcat
from tests.spark.native_driver import QUIET

BUCKETS = 16
EVERY = 100
SAMPLE_EVERY_S = 0.05
HEAP = "768m"


class Peaks(threading.Thread):
    """The highest resident sizes of this process's children while it runs; memory that processes share counts for each."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self.highest = {"jvm": 0, "workers": 0, "tree": 0}

    def run(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(SAMPLE_EVERY_S):
            sizes = {"jvm": 0, "workers": 0, "tree": me.memory_info().rss}
            for child in me.children(recursive=True):
                try:
                    name, size = child.name(), child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
                sizes["jvm" if name == "java" else "workers"] += size
                sizes["tree"] += size
            self.highest = {what: max(size, self.highest[what]) for what, size in sizes.items()}

    def end(self) -> dict[str, int]:
        self._ended.set()
        self.join()
        return self.highest


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**QUIET, "spark.driver.memory": HEAP}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def some(rows: DataFrame, key: str) -> DataFrame:
    """Of every hundredth key."""
    return rows.where(col(key) % EVERY == lit(0))


def main() -> None:
    url, path, key, work = sys.argv[1:]
    names = key.split(",")
    lake = objcat.connect(url)
    peaks = Peaks()
    peaks.start()
    spark = session()
    rows = spark.read.parquet(path)
    match work:
        case "load":
            lake.create_table("t", rows.schema, key=names, index=objcat.BucketIndex(BUCKETS, columns=(names[0],))).bulk_insert(rows)
        case "upsert":
            lake.table("t").upsert(some(rows, names[0]))
        case "scan":
            found = lake.table("t").scan().to_spark(spark)
            assert found.count() == rows.count()
            found.write.format("noop").mode("overwrite").save()
        case "compact":
            assert lake.table("t").maintenance.compact(spark=spark) is not None
    print(json.dumps(peaks.end()))
    spark.stop()


if __name__ == "__main__":
    main()
