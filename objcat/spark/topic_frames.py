"""Frames of an ingest that reads topics of Kafka: messages by Spark's own source, rows of changes by their keys, and rows by their groups.

What the rows mean, the functions that make them know; here are their jobs. Each frame is computed once and cached until it is released.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from fileio.errors import MissingDependency
from objcat.spark.frames import persist_unshared, unpersist_quietly
from objcat.spark.jobs import described
from objcat.spark.mapped_frame import mapped_frame
from objcat.spark.versions import SCALA

OffsetRange: TypeAlias = tuple[int, int]
"""The first offset, and the one after the last."""
TASK_ROWS = 20_000
"""Changes that a task combines, where there are enough tasks for all cores."""
PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}"


def message_frame(
    spark: SparkSession, brokers: str, ranges: Mapping[tuple[str, int], OffsetRange], options: Mapping[str, str]
) -> DataFrame:
    """The messages of some partitions between two offsets, without those of aborted transactions.

    Args:
        spark: the session.
        brokers: hosts and ports.
        ranges: by topic and partition.
        options: of the Java client, such as `security.protocol`.

    Raises:
        MissingDependency: the session has no source for Kafka.
    """
    assigned: dict[str, list[int]] = {}
    bounds: tuple[dict[str, dict[str, int]], ...] = ({}, {})
    for (topic, partition), offsets in sorted(ranges.items()):
        assigned.setdefault(topic, []).append(partition)
        for bound, offset in zip(bounds, offsets, strict=True):
            bound.setdefault(topic, {})[str(partition)] = offset
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", brokers).option("assign", json.dumps(assigned))
    reader = reader.option("startingOffsets", json.dumps(bounds[0])).option("endingOffsets", json.dumps(bounds[1]))
    reader = reader.option("includeHeaders", "true").option("failOnDataLoss", "true")
    # A partition is one task: its messages stay in order.
    reader = reader.option("kafka.isolation.level", "read_committed")
    for name, value in options.items():
        reader = reader.option(f"kafka.{name}", value)
    try:
        found = reader.load()
    except AnalysisException as error:
        if "kafka" not in str(error):
            raise
        raise MissingDependency(
            "This Spark has no source for Kafka. Nothing was done. Start the session with the connector of its version, such as "
            f"spark.jars.packages={PACKAGE}:{spark.version}, or an older one of its major version where that is not published."
        ) from error
    millis = F.unix_millis("timestamp")
    at_ms = F.when((F.col("timestampType") >= 0) & (millis >= 0), millis).alias("at_ms")
    return found.select("topic", "partition", "offset", "key", "value", at_ms, "headers")


class CachedRows:
    """Rows that a function of a module made of a frame, cached. Actions raise as `described` says.

    Args:
        frame: what the function gets.
        function, args, schema: see `mapped_frame`.
        what: of its jobs, for people.
    """

    def __init__(
        self, frame: DataFrame, function: Callable[..., Iterator[pa.RecordBatch]], args: tuple[Any, ...], schema: pa.Schema, *, what: str
    ) -> None:
        self._what = what
        self._spark = frame.sparkSession
        self.rows = persist_unshared(mapped_frame(frame, function, args, schema))

    def grouped(self, keys: Sequence[str], **aggregates: str) -> list[Row]:
        """Aggregates by some columns. `aggregates`: expressions of SQL by their names. Computes the frame."""
        made = [F.expr(text).alias(name) for name, text in aggregates.items()]
        with described(self._spark, self._what):
            return self.rows.groupBy(*keys).agg(*made).collect()

    def few(self, where: str, *columns: str) -> list[Row]:
        """Rows of which there are few."""
        with described(self._spark, self._what):
            return self.rows.where(where).select(*columns).collect()

    def each(self, where: str, column: str) -> Iterator[Any]:
        """Values of a column, one partition of the frame after the other: the driver never has all of them."""
        with described(self._spark, self._what):
            for row in self.rows.where(where).select(column).toLocalIterator():
                yield row[0]

    def by_key(self, where: str, *, count: int) -> DataFrame:
        """Rows of changes, those of a key in one partition one after the other, in their order. `count`: how many there are."""
        tasks = max(1, min(_cores(self._spark) * 2, -(-count // TASK_ROWS)))
        order = ("key", "at_ms", "partition", "offset", "part")
        return self.rows.where(where).repartition(tasks, "key").sortWithinPartitions(*order)

    def in_place(self, where: str) -> DataFrame:
        """Rows of changes where they are, in the order of each partition of their topic."""
        return self.rows.where(where)

    def chosen(self, where: str, columns: Mapping[str, str]) -> DataFrame:
        """Some rows, and of these some columns under other names."""
        return self.rows.where(where).select(*(F.col(column).alias(name) for name, column in columns.items()))

    def release(self) -> None:
        """Let Spark forget the rows."""
        unpersist_quietly(self.rows)


def _cores(spark: SparkSession) -> int:
    """How many tasks run at once. Spark Connect does not say."""
    return int(spark.sparkContext.defaultParallelism) if hasattr(spark, "_jvm") else 8
