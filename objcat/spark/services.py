"""Table services on Spark's workers, in jobs without rows: one partition for each task."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from fileio.store import FileIO, StoreDescription
from objcat.maintenance.workers import Advance
from objcat.spark.engine import run_tasks, task_result_row
from objcat.spark.jobs import described
from objcat.spark.worker_task import opened, spark_task, translate_spark_errors
from objcat.tasks.model import WriteResult

T = TypeVar("T")

UNKNOWN_AT_ONCE = 64
"""Parallel tasks to assume on Spark Connect, which does not say."""


class SparkWorkers:
    """The workers of a session, as `objcat.maintenance.workers.Workers`. Each opens the store. `table`: its name in job descriptions."""

    def __init__(self, spark: SparkSession, store: StoreDescription, *, table: str) -> None:
        """Raises SparkJobLost where the session's JVM has ended."""
        self._spark = spark
        self._store = store
        self._table = table
        with translate_spark_errors(spark, f"objcat: count the workers for {table}"):
            self.at_once = spark.sparkContext.defaultParallelism if hasattr(spark, "_jvm") else UNKNOWN_AT_ONCE

    def run(
        self,
        function: Callable[[FileIO, T, Advance], WriteResult],
        tasks: Sequence[T],
        *,
        service: str,
        groups: int,  # noqa: ARG002 - Spark shows how far its tasks are
    ) -> WriteResult:
        """See `Workers.run`. Raises SparkJobFailed, MissingOnWorkers, SparkJobLost."""
        # Pickled one by one: each worker opens only its own.
        pickled = [pickle.dumps(task) for task in tasks]
        with described(self._spark, f"objcat: {service} {self._table}"):
            # A range has the partitions that we ask for, with one number each, and needs no shuffle.
            numbers = self._spark.range(0, len(tasks), 1, len(tasks))
            return run_tasks(numbers, spark_task(_run, self._store, function, pickled))


def _run(
    store: StoreDescription,
    function: Callable[[FileIO, T, Advance], WriteResult],
    pickled: Sequence[bytes],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    with opened(store) as fileio:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            task: T = pickle.loads(pickled[number])  # noqa: S301 - our own driver wrote it
            yield task_result_row(number, lambda task=task: function(fileio, task, lambda _groups: None))  # type: ignore[misc]
