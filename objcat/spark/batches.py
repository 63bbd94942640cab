"""How Spark cuts rows into Arrow batches for the workers that write them: by their number.

Before each row Spark asks how large the batch has become, and adds all columns up for it, which is a quarter of the time of a bulk load.
Where no row is wide, a bound of rows keeps batches as small.
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
"""Of its sources, from which on the question takes longer than to look at a plan."""
_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    # The greatest that the setting may be, with which the question is not asked.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
_TEXTS = (StringType, BinaryType)
_FIXED = (BooleanType, DateType, DayTimeIntervalType, NullType, NumericType, TimestampNTZType, TimestampType, YearMonthIntervalType)
_WIDE = "objcat: a row is too wide for batches of so many rows"

_tables_of_wide_rows: set[str] = set()
"""For which this process need not try again."""

T = TypeVar("T")


def in_batches_of_rows(data: DataFrame, table: str, job: Callable[[DataFrame], T]) -> T:
    """What a job gives that has Python workers read a frame: in batches bounded by rows, and done again in batches bounded by bytes where a
    row has more than `ROW_BYTES_MAX`.

    Bounded by bytes from the start where that is not known before (nested columns), where the session has settings of its own for it, where
    other Python functions are in the plan, whose batches these would be too, and where rows are few. table: by which wide rows are
    remembered.
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
    """Whether the session says itself how batches are cut."""
    return any(spark.conf.get(name, None) is not None for name in _SETTINGS)


def _is_worth_it(data: DataFrame) -> bool:
    """Whether there may be many rows, and nobody else's Python functions among what makes them."""
    plan = data._jdf.queryExecution().analyzed()
    return bytes_of_sources(plan) >= _BYTES_MIN and not has_python(data, plan)
