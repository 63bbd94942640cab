"""Deletes by a filter, on Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from fileio.store import FileIO, StoreDescription
from objcat.maintenance.workers import Advance
from objcat.spark.jobs import described
from objcat.spark.services import SparkWorkers
from objcat.tasks.model import WriteResult
from objcat.tasks.regroup_rows import DeleteTask, rewrite_without

TASKS_MAX = 4096


def rows_to_delete(spark: SparkSession, found: Callable[[SparkSession], DataFrame], *, table: str) -> DataFrame | None:
    """The rows to delete; None when there are none. `table`: its name in messages. Raises SparkJobLost."""
    with described(spark, f"objcat: find rows to delete in {table}"):
        frame = found(spark)
        return None if frame.isEmpty() else frame


def rewrite_on_spark(spark: SparkSession, store: StoreDescription, task: DeleteTask, *, table: str) -> WriteResult:
    """Run the task on workers, a few file groups for each. `table`: its name in messages. Raises as `rewrite_without`."""
    count = max(1, min(len(task.groups), TASKS_MAX))
    parts = [replace(task, groups=task.groups[number::count]) for number in range(count)]
    return SparkWorkers(spark, store, table=table).run(_rewrite, parts, service="delete", groups=len(task.groups))


def _rewrite(fileio: FileIO, task: DeleteTask, _advance: Advance) -> WriteResult:
    return rewrite_without(fileio, task)
