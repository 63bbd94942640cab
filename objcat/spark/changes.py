"""Feeds on Spark: workers run the tasks of a read that follows what changed."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from fileio.registry import StoreDescription
from objcat.read.changes import ChangesPlan
from objcat.read.incremental import IncrementalPlan
from objcat.spark.ship import shipped
from objcat.tasks.changes import ChangeTask, IncrementTask, read_changed

TASKS_MAX = 4096


def feed_dataframe(spark: SparkSession, store: StoreDescription, plan: IncrementalPlan | ChangesPlan) -> DataFrame:
    """The rows of a feed, lazily, in no order."""
    schema = from_arrow_schema(pa.schema([field.remove_metadata() for field in plan.schema]), prefer_timestamp_ntz=True)
    tasks: list[IncrementTask] | list[ChangeTask] = plan.tasks(count_max=TASKS_MAX)
    if not tasks:
        return spark.createDataFrame([], schema)
    numbered = spark.createDataFrame([(number, pickle.dumps(task)) for number, task in enumerate(tasks)], "number int, task binary")
    return numbered.repartition(min(len(tasks), TASKS_MAX), "number").mapInArrow(shipped(read_tasks, store), schema)


def read_tasks(store: StoreDescription, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On a worker: the rows of some pickled tasks."""
    with store.open() as fileio:
        for batch in batches:
            for pickled in batch.column("task").to_pylist():
                for rows in read_changed(fileio, pickle.loads(pickled)):  # noqa: S301 - our own driver wrote it
                    yield from rows.to_batches()
