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
from benchmarks.peers.configuration import s3a, spark_session
from benchmarks.works import BUCKETS, CHANGE_TYPE, Query, Statement, digest_query

_INITIAL = re.compile(r"(?m)^\+- == Initial Plan ==$")
"""The plan of the whole statement begins so before it ran; a part of it with a plan of its own has this line further in."""
_EXCHANGE = re.compile(r"(?m)^[\s:+\-]*(?:\*\(\d+\) )?Exchange ")


class SparkSide(Side):
    """A session of `local[cores]` with the same settings everywhere, and those of the side."""

    spark: SparkSession
    directory: Path

    def start(self, settings: Settings) -> dict[str, str]:
        """As `Side.start`."""
        self.settings, self.directory = settings, settings.directory
        common = dict(spark_session(settings.directory, cores=settings.cores, memory=settings.memory))
        if store := settings.store:
            common |= s3a(endpoint=store.endpoint, region=store.region, access_key=store.access_key, secret_key=store.secret_key)
        if settings.jars:
            common["spark.jars"] = ",".join(settings.jars)
        builder: Any = SparkSession.builder
        for name, value in (common | dict(self.session_settings())).items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        java: Any = self.spark._jvm
        return {"pyspark": pyspark.__version__, "java": java.System.getProperty("java.version"), **self.about()}

    def session_settings(self) -> Mapping[str, str]:
        """The settings of its Spark session."""
        return {}

    def about(self) -> dict[str, str]:
        """Versions and the settings of the side that matter."""
        return {}

    @abstractmethod
    def frame(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> DataFrame:
        """The table's newest rows, or those of a version, as its users read them."""

    def read(self, path: Path) -> DataFrame:
        """As `Side.read`."""
        return self.spark.read.parquet(str(path))

    def query(self, table: BenchTable, query: Query, *, as_of: Any = None) -> Rows:
        """As `Side.query`."""
        frame = self.frame(table, where=query.where, columns=query.columns, as_of=as_of)
        return _rows(frame.agg(*map(F.expr, query.aggregates)) if query.aggregates else frame)

    def digest(self, table: BenchTable) -> Rows:
        """As `Side.digest`."""
        return digest(self.frame(table), table.layout.source)

    def statement(self, tables: Mapping[str, BenchTable], statement: Statement) -> tuple[Rows, int]:
        """As `Side.statement`."""
        self.spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        try:
            for source, table in tables.items():
                self.frame(table, columns=statement.columns[source]).createOrReplaceTempView(source)
            answer = self.spark.sql(statement.sql.format(**{source: source for source in tables}))
            rows = _rows(answer)
            return rows, exchanges(answer)
        finally:
            self.spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")

    def plan(self, table: BenchTable, query: Query) -> int:
        """How many tasks: to know that, Spark has every file of the plan."""
        execution: Any = self.frame(table, where=query.where, columns=query.columns)._jdf.queryExecution()
        return int(execution.toRdd().getNumPartitions())

    def stop(self) -> None:
        """As `Side.stop`."""
        self.spark.stop()


def bulk_order(frame: DataFrame, table: BenchTable) -> DataFrame:
    """For sides without buckets: as many files as the others have buckets, each sorted by key, of ranges that do not overlap."""
    key = list(table.layout.key)
    return frame.repartitionByRange(BUCKETS, *key).sortWithinPartitions(*key)


def merge_into(side: SparkSide, table: BenchTable, batch: DataFrame, target: str) -> None:
    """`MERGE INTO` by key, in the order of the layout, as Iceberg and Delta take it."""
    newer = f" and s.{table.layout.ordering} >= t.{table.layout.ordering}" if table.layout.ordering else ""
    _merge(side, table, batch, target, f"when matched{newer} then update set * when not matched then insert *")


def delete_from(side: SparkSide, table: BenchTable, batch: DataFrame, target: str) -> None:
    """As `merge_into`; the rows of these keys go."""
    _merge(side, table, batch, target, "when matched then delete")


def _merge(side: SparkSide, table: BenchTable, batch: DataFrame, target: str, actions: str) -> None:
    batch.createOrReplaceTempView("batch")
    on = " and ".join(f"t.{name} = s.{name}" for name in table.layout.key)
    side.spark.sql(f"merge into {target} t using batch s on {on} {actions}").collect()


def properties_text(properties: Mapping[str, str]) -> str:
    """As `TBLPROPERTIES` takes them."""
    return ", ".join(f"'{name}'='{value}'" for name, value in properties.items())


def digest(frame: DataFrame, source: str) -> Rows:
    return asked(frame, digest_query(source, "spark"))


def asked(frame: DataFrame, query: Query) -> Rows:
    """The aggregates of a query over a frame."""
    return _rows(frame.select(*query.columns).agg(*map(F.expr, query.aggregates)))


def asked_by_type(frame: DataFrame, query: Query, types: Mapping[str, str]) -> Rows:
    """The aggregates over changes, for each type. types: the side's own word for each of ours, in the column `_change_type`."""
    word = F.create_map(*[F.lit(text) for pair in types.items() for text in pair])
    named = frame.select(*query.columns, word[F.col(CHANGE_TYPE)].alias(CHANGE_TYPE))
    return _rows(named.groupBy(CHANGE_TYPE).agg(*map(F.expr, query.aggregates)))


def filtered(frame: DataFrame, where: str | None, columns: Sequence[str] | None) -> DataFrame:
    chosen = frame.where(where) if where else frame
    return chosen.select(*columns) if columns else chosen


def exchanges(frame: DataFrame) -> int:
    """Shuffles in the plan that ran; broadcasts are none."""
    execution: Any = frame._jdf.queryExecution()
    plan = _INITIAL.split(str(execution.executedPlan().toString()))[0]
    return len(_EXCHANGE.findall(plan))


def _rows(frame: DataFrame) -> Rows:
    return [tuple(row) for row in frame.collect()]
