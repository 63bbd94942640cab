"""`SparkQuerySession`: what a refresh of a derived table computes in, on executors. As `objcat.derived.session.QuerySession`."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import expressions as sql

from objcat.errors import InvalidInput, InvalidSql, SparkJobFailed
from objcat.predicate.dialect import spark_sql
from objcat.spark.engine import SparkEngine
from objcat.spark.frames import persist_unshared, unpersist_quietly
from objcat.spark.jobs import described
from objcat.spark.native.relation import spark_schema
from objcat.spark.versions import to_arrow

R = TypeVar("R")

LOOKUP_MAX = 2_000
"""The most values that a filter of a scan lists."""
SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variable.substitute": "false",
}
"""With these, text means what it means in DuckDB, whatever the session of the user has."""
_OF_VALUES = re.compile(
    r"\[(?:ARITHMETIC_OVERFLOW|BINARY_ARITHMETIC_OVERFLOW|CAST_INVALID_INPUT|CAST_OVERFLOW|DIVIDE_BY_ZERO|NUMERIC_VALUE_OUT_OF_RANGE|"
    r"SCALAR_SUBQUERY_TOO_MANY_ROWS)[\].][^\n]*?(?=\. |\.?$)",
    re.MULTILINE,
)
"""What Spark says of a row for which an expression has no value."""


def run_with_own_settings(work: Callable[[], R]) -> R:
    """Run `work` in a thread in which each session has its own settings.

    While Spark analyses a statement such as CALL, all sessions have those of the statement in its thread. That thread is never the main
    one, which Ctrl-C interrupts.
    """
    if threading.current_thread() is threading.main_thread():
        return work()
    done: list[R] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            failures.append(error)

    thread = InheritableThread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return done[0]


class ReadsInSpark(Protocol):
    """A scan, or a feed of changes."""

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Its rows as a lazy frame."""


class SparkQuerySession:
    """A session of its own in the application of the user's. What it makes, Spark caches until `close`."""

    exact = "DECIMAL(38, 0)"
    lookup_max = LOOKUP_MAX

    def __init__(self, spark: SparkSession, table: str) -> None:
        """table: its name in the descriptions of jobs. Raises InvalidInput for a session of Spark Connect."""
        if not hasattr(spark, "_jvm"):
            raise InvalidInput(
                "This session is of Spark Connect, which has no second session with settings of its own. Nothing was done. Leave out "
                "spark=, and this process computes the derived table; or use a classic session."
            )
        self._what = f"objcat: refresh {table}"
        made: Any = spark
        # A clone has the settings of the session, also those that were set while it runs.
        self._spark: SparkSession = self._tried_in(spark, lambda: type(spark)(made._sc, made._jsparkSession.cloneSession()))
        for name, value in SETTINGS.items():
            self._spark.conf.set(name, value)
        self._named: dict[str, DataFrame] = {}
        self._cached: list[DataFrame] = []

    def text(self, tree: sql.Expr) -> str:
        """See `QuerySession.text`."""
        return spark_sql(tree)

    def make(self, name: str, text: str) -> None:
        """See `QuerySession.make`."""
        self._name(name, self._cache(text))

    def add(self, name: str, text: str) -> None:
        """See `QuerySession.add`."""
        self._name(name, self._named[name].unionAll(self._cache(text)))

    def rows(self, text: str) -> pa.Table:
        """See `QuerySession.rows`."""
        return self._tried(lambda: to_arrow(self._spark.sql(text)))

    def held(self, text: str, schema: pa.Schema) -> DataFrame:  # noqa: ARG002 - a frame has the types of its query
        """See `QuerySession.held`."""
        return self._cache(text)

    def is_empty(self, rows: DataFrame) -> bool:
        """See `QuerySession.is_empty`."""
        return self._tried(rows.isEmpty)

    def values(self, text: str) -> pa.ChunkedArray | None:
        """See `QuerySession.values`."""
        found = self.rows(f"SELECT * FROM ({text}) LIMIT {LOOKUP_MAX + 1}")  # noqa: S608 - the text comes from trees
        return None if found.num_rows > LOOKUP_MAX else found.column(0)

    def types(self, text: str) -> list[str]:
        """See `QuerySession.types`."""
        return [field.dataType.simpleString().upper() for field in self._tried(lambda: self._spark.sql(text).schema)]

    def kinds(self, schema: pa.Schema) -> list[str]:
        """See `QuerySession.kinds`."""
        return [field.dataType.simpleString() for field in spark_schema(schema)]

    def register(self, name: str, rows: DataFrame | ReadsInSpark) -> None:
        """See `QuerySession.register`."""
        self._name(name, rows if isinstance(rows, DataFrame) else self._tried(lambda: rows.to_spark(self._spark)))

    def batch(self, name: str, table: Any) -> tuple[SparkEngine, DataFrame]:
        """See `QuerySession.batch`."""
        return SparkEngine(table._context.fileio.describe(), table=table.name), self._named[name]

    def close(self) -> None:
        """See `QuerySession.close`."""
        for frame in self._cached:
            unpersist_quietly(frame)
        for name in self._named:
            with suppress(Exception):
                self._spark.catalog.dropTempView(name)

    def _name(self, name: str, frame: DataFrame) -> None:
        self._tried(lambda: frame.createOrReplaceTempView(name))
        self._named[name] = frame

    def _cache(self, text: str) -> DataFrame:
        frame = self._tried(lambda: persist_unshared(self._spark.sql(text)))
        self._cached.append(frame)
        return frame

    def _tried(self, work: Callable[[], R]) -> R:
        return self._tried_in(self._spark, work)

    def _tried_in(self, spark: SparkSession, work: Callable[[], R]) -> R:
        """What `work` returns. Raises InvalidSql for a query or a value that Spark refuses, and errors of jobs as `described`."""
        try:
            with described(spark, self._what):
                try:
                    return work()
                except (AnalysisException, ParseException) as error:
                    raise _refused(str(error).strip().split(";")[0].splitlines()[0]) from error
        except SparkJobFailed as error:
            found = _OF_VALUES.search(str(error.__cause__))
            if found is None:
                raise
            raise _refused(found.group()) from error


def _refused(reason: str) -> InvalidSql:
    return InvalidSql(f"Spark refused the query of the derived table: {reason}. Nothing was written. Correct the query.")
