"""A driver of its own: `python -m tests.spark.killed_refresh DIRECTORY PLAN`. Refreshes derived tables on Spark.

PLAN is JSON: `kill`, the table whose refresh does not end; `point` and `request`, see `killed_driver.die_at`. What was acknowledged is in
`journal`, with the slots that it shows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import objcat
from objcat.spark import frames
from tests.spark.killed_driver import die_at
from tests.spark.native_driver import QUIET

QUERIES = {
    "wide": ("SELECT t.id, t.fare, d.name FROM trips t LEFT JOIN drivers d ON t.driver = d.id", "id"),
    "sums": ("SELECT driver, count(*) AS n, sum(fare) AS fares, count(fare) AS m FROM trips GROUP BY driver", "driver"),
}


def main(directory: str, plan: str) -> None:
    told = json.loads(plan)
    builder = SparkSession.builder.master("local[2]").appName("killed")
    for name, value in {**QUIET, "spark.sql.warehouse.dir": f"{directory}/warehouse"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    frames.ROWS_MAX = 0  # Small frames go through jobs too.
    lake = objcat.connect(f"{directory}/lake")
    for name in [told["kill"]] if told["kill"] else QUERIES:
        if told["kill"]:
            die_at(told["point"], told.get("request"))
        done = lake.refresh_derived(name, spark=spark)
        with Path(directory, "journal").open("a") as journal:
            journal.write(json.dumps([name, done.sources]) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
