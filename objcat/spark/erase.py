"""Deletes by a filter on Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from fileio.registry import StoreDescription
from objcat.spark.engine import run_tasks, told
from objcat.spark.jobs import described
from objcat.spark.ship import shipped
from objcat.tasks import EraseTask, WriteResult, rewrite_without

TASKS_MAX = 4096


def is_empty(found: DataFrame, *, table: str) -> bool:
    """Whether there are no rows to delete. table: as users call it."""
    with described(found.sparkSession, f"objcat: find rows to delete in {table}"):
        return found.isEmpty()


def rewrite_on_spark(spark: SparkSession, store: StoreDescription, task: EraseTask, *, table: str) -> WriteResult:
    """The task on workers, a file group or a few for each of theirs. table: as users call it. Raises as `rewrite_without`."""
    count = max(1, min(len(task.groups), TASKS_MAX))
    parts = [replace(task, groups=task.groups[number::count]) for number in range(count)]
    numbered = spark.createDataFrame([(number, pickle.dumps(part)) for number, part in enumerate(parts)], "number int, task binary")
    with described(spark, f"objcat: delete {table}"):
        return run_tasks(numbered.repartition(count, "number"), shipped(_rewrite, store))


def _rewrite(store: StoreDescription, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with store.open() as fileio:
        for batch in batches:
            for number, pickled in zip(batch.column("number").to_pylist(), batch.column("task").to_pylist(), strict=True):
                task: EraseTask = pickle.loads(pickled)  # noqa: S301 - our own driver wrote it
                yield told(number, partial(rewrite_without, fileio, task))
