"""A process with a Spark of its own reads topics, as often as it is asked: `python -m ... JAR...`.

Each line that it gets is an order in JSON, and its answer is a line in JSON. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

import objcat
from objcat.ingest.config import read_config
from objcat.ingest.spark_topics import ingest_topics


def answer(spark: SparkSession, order: dict[str, Any]) -> dict[str, Any]:
    """What an order comes to: what was read, or the error."""
    os.environ.update(order["environment"])
    try:
        found = ingest_topics(
            read_config(order["config"]),
            objcat.connect(order["lake"]),
            spark,
            messages_max=order["messages_max"],
            kafka_options=order["options"],
        )
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return {"error": f"{type(error).__name__}: {error}"}
    return {"slot": found.slot, "commits": found.commits, "messages": found.messages, "dead": found.dead}


def main(*jars: str) -> None:
    """Answer orders."""
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(jars)).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.session.timeZone", "Asia/Tokyo")
    builder = builder.config("spark.driver.memory", "1g").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.driver.extraJavaOptions", "-Duser.timezone=America/Lima -XX:+UseSerialGC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(spark, json.loads(line))) + "\n")
        sys.stdout.flush()
    spark.stop()


main(*sys.argv[1:])
