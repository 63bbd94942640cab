"""What the sides on Spark share: one session's settings, batches, queries, the join, the digest."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers.base import BenchTable, Rows, Settings, Side
from benchmarks.works import BUCKETS, CODEC, JOIN_AGGREGATES, JOIN_COLUMNS, JOIN_GROUP, Query, digest_query

_EXCHANGE = re.compile(r"(?m)^[\s:+\-]*(?:\*\(\d+\) )?Exchange ")


class SparkSide(Side):
    """A session of `local[cores]` with the same settings everywhere, and those of the side."""

    spark: SparkSession
    directory: Path

    def start(self, settings: Settings) -> dict[str, str]:
        self.directory = settings.directory
        common = {
            "spark.master": f"local[{settings.cores}]",
            "spark.app.name": "bench",
            "spark.driver.memory": settings.memory,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": str(BUCKETS),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.parquet.compression.codec": CODEC,
            "spark.sql.warehouse.dir": str(settings.directory / "warehouse"),
            "spark.local.dir": str(settings.directory / "spark"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={settings.directory}",
        }
        if settings.jars:
            common["spark.jars"] = ",".join(settings.jars)
        builder: Any = SparkSession.builder
        for name, value in (common | dict(self.session_settings())).items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        return {"pyspark": pyspark.__version__, **self.about()}

    def session_settings(self) -> Mapping[str, str]:
        return {}

    def about(self) -> dict[str, str]:
        """Versions and the settings of the side that matter."""
        return {}

    @abstractmethod
    def frame(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        """The table's newest rows, as its users read them."""

    def read(self, path: Path) -> DataFrame:
        return self.spark.read.parquet(str(path))

    def query(self, table: BenchTable, query: Query) -> Rows:
        frame = self.frame(table, where=query.where, columns=query.columns)
        return _rows(frame.agg(*map(F.expr, query.aggregates)) if query.aggregates else frame)

    def digest(self, table: BenchTable) -> Rows:
        return digest(self.frame(table), table.layout.source)

    def join(self, orders: BenchTable, lineitem: BenchTable) -> tuple[Rows, int]:
        self.spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        try:
            left = self.frame(orders, columns=JOIN_COLUMNS["orders"])
            right = self.frame(lineitem, columns=JOIN_COLUMNS["lineitem"])
            joined = left.join(right, left["o_orderkey"] == right["l_orderkey"])
            answer = joined.groupBy(JOIN_GROUP).agg(*map(F.expr, JOIN_AGGREGATES))
            rows = _rows(answer)
            return rows, exchanges(answer)
        finally:
            self.spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")

    def stop(self) -> None:
        self.spark.stop()


def bulk_order(frame: DataFrame, table: BenchTable) -> DataFrame:
    """For sides without buckets: as many files as the others have buckets, each sorted by key, of ranges that do not overlap."""
    key = list(table.layout.key)
    return frame.repartitionByRange(BUCKETS, *key).sortWithinPartitions(*key)


def digest(frame: DataFrame, source: str) -> Rows:
    return asked(frame, digest_query(source, "spark"))


def asked(frame: DataFrame, query: Query) -> Rows:
    """The aggregates of a query over a frame."""
    return _rows(frame.select(*query.columns).agg(*map(F.expr, query.aggregates)))


def filtered(frame: DataFrame, where: str | None, columns: Sequence[str] | None) -> DataFrame:
    chosen = frame.where(where) if where else frame
    return chosen.select(*columns) if columns else chosen


def exchanges(frame: DataFrame) -> int:
    """Shuffles in the plan that ran; broadcasts are none."""
    execution: Any = frame._jdf.queryExecution()
    plan = str(execution.executedPlan().toString()).split("== Initial Plan ==")[0]
    return len(_EXCHANGE.findall(plan))


def _rows(frame: DataFrame) -> Rows:
    return [tuple(row) for row in frame.collect()]
