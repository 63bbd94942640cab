"""How Spark cuts rows into Arrow batches for the workers that write them: by their number.

Before each row Spark asks how large the batch is, and sums all columns for it, which takes a quarter of the time of a bulk load. Where no
row is wide, a limit of rows keeps batches as small.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    NullType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from objcat.spark.jobs import local_properties
from objcat.spark.native.column_names import quoted
from objcat.spark.routing import bytes_of_sources, has_python

BATCH_ROWS, ROW_BYTES_MAX = 2048, 32 * 1024
"""Together the 64 MiB that Spark lets a batch grow to."""
_BYTES_MIN = 16 * 1024**2
"""Bytes of the sources from which on asking takes longer than looking at a plan."""
_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    # The largest value of the setting; with it Spark does not ask.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
_TEXTS = (StringType, BinaryType)
_FIXED = (BooleanType, DateType, DayTimeIntervalType, NullType, NumericType, TimestampNTZType, TimestampType, YearMonthIntervalType)
_WIDE = "objcat: a row is too wide for batches of so many rows"

_tables_of_wide_rows: set[str] = set()
"""Tables for which this process need not try again."""

T = TypeVar("T")


def in_batches_of_rows(data: DataFrame, table: str, job: Callable[[DataFrame], T]) -> T:
    """Run a job whose Python workers read a frame in batches limited by rows; again with a limit of bytes where a row is too wide.

    A row is too wide above `ROW_BYTES_MAX`. Batches are limited by bytes from the start where row widths are not known (nested columns),
    where the session has its own settings for it, where the plan has other Python functions, whose batches would change too, and where
    there are few rows.

    `table`: the name under which wide rows are remembered.
    """
    spark = data.sparkSession
    if table in _tables_of_wide_rows or not all(isinstance(field.dataType, (*_TEXTS, *_FIXED)) for field in data.schema):
        return job(data)
    if not hasattr(spark, "_jvm") or not _is_worth_it(data) or _is_set(spark):
        return job(data)
    try:
        with local_properties(spark, _SETTINGS):
            return job(_narrow(data))
    except PySparkException as error:
        if _WIDE not in str(error):
            raise
    _tables_of_wide_rows.add(table)
    return job(data)


def _narrow(data: DataFrame) -> DataFrame:
    """The frame, which ends its job at a wide row."""
    texts = [F.coalesce(F.octet_length(quoted(field.name)), F.lit(0)) for field in data.schema if isinstance(field.dataType, _TEXTS)]
    if not texts:
        return data
    return data.where(F.when(reduce(add, texts) <= ROW_BYTES_MAX, F.lit(True)).otherwise(F.raise_error(F.lit(_WIDE))))


def _is_set(spark: SparkSession) -> bool:
    """Whether the session itself sets how batches are cut."""
    return any(spark.conf.get(name, None) is not None for name in _SETTINGS)


def _is_worth_it(data: DataFrame) -> bool:
    """Whether there may be many rows, and no foreign Python functions in the plan."""
    plan = data._jdf.queryExecution().analyzed()
    return bytes_of_sources(plan) >= _BYTES_MIN and not has_python(data, plan)
