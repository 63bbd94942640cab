"""A frame whose rows a function of a module makes from batches of another one, on the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from objcat.spark.worker_task import spark_task


def mapped_frame(
    frame: DataFrame, function: Callable[..., Iterator[pa.RecordBatch]], args: tuple[Any, ...], schema: pa.Schema
) -> DataFrame:
    """Rows that `function(*args, batches)` makes on workers.

    Args:
        frame: what the batches are of.
        function: of a module, see `spark_task`.
        args: its first arguments. They are pickled.
        schema: of the batches that it returns.
    """
    return frame.mapInArrow(spark_task(function, *args), from_arrow_schema(schema, prefer_timestamp_ntz=True))
