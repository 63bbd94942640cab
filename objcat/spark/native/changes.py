"""Change feeds on Spark: an incremental read is one native plan where the session can read the store. Otherwise workers run the tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from fileio.store import StoreDescription
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.planning.changes import ChangesPlan
from objcat.planning.event_time import LogOrder
from objcat.planning.incremental import HIDDEN, IncrementalPlan
from objcat.predicate.parse import Predicate
from objcat.spark.native.column_names import quoted
from objcat.spark.native.relation import NativeRoot, fills_absent, native_root
from objcat.spark.native.scan import native_part
from objcat.spark.native.snapshot import native_rows
from objcat.spark.versions import from_arrow
from objcat.spark.worker_task import check_workers, opened, spark_task
from objcat.tasks.changes import ChangeTask, IncrementTask, bytes_of, read_changed

TASKS_MAX = 4096
PART_BYTES = 64 * 1024**2
"""Arrow bytes that one task of Spark reads, about. To start one takes as long as to read a tenth of that."""
SHIPPED_BYTES_MAX = 1024**2
"""Bytes of all tasks that every worker gets. More of them are shuffled, each to the worker that runs it."""
LISTED_MAX = 1024
"""Transactions that a filter lists, by which Parquet statistics then skip row groups."""


def feed_dataframe(
    spark: SparkSession,
    store: StoreDescription,
    plan: IncrementalPlan | ChangesPlan,
    *,
    verify: Callable[[IncrementalPlan], LogOrder],
) -> DataFrame:
    """The rows of a feed, lazily, in no order.

    A filter that is an Arrow expression is applied in Python workers, and changes are found there. An incremental read is native where the
    session can read the store. `verify`: checks the files that Spark reads itself, and says what is known of the order of their rows.
    Raises MissingOnWorkers where Python workers give the rows, and cannot.
    """
    schema = from_arrow_schema(pa.schema([field.remove_metadata() for field in plan.schema]), prefer_timestamp_ntz=True)
    if isinstance(plan, IncrementalPlan) and plan.groups and (plan.where is None or isinstance(plan.where, Predicate)):
        root = native_root(spark, store)
        if root is not None and native_part(plan.scan())[1] is None and fills_absent(plan.scan().columns_read):
            return _native(spark, root, plan, verify(plan))
    tasks: list[IncrementTask] | list[ChangeTask] = plan.tasks(count_max=TASKS_MAX)
    if not tasks:
        return spark.createDataFrame([], schema)
    check_workers(spark)
    parts = [pickle.dumps(part) for part in dealt(tasks)]
    if sum(map(len, parts)) <= SHIPPED_BYTES_MAX:
        numbers = spark.range(0, len(parts), 1, len(parts))
        return numbers.mapInArrow(spark_task(read_numbered, store, parts), schema)
    numbered = spark.createDataFrame(list(enumerate(parts)), "number int, tasks binary")
    return numbered.repartition(min(len(parts), TASKS_MAX), "number").mapInArrow(spark_task(read_shuffled, store), schema)


def dealt(tasks: Sequence[IncrementTask] | Sequence[ChangeTask]) -> list[list[IncrementTask] | list[ChangeTask]]:
    """Adjacent tasks that one task of Spark runs: of small ones as many as read `PART_BYTES`."""
    parts: list[Any] = []
    room = 0
    for task in tasks:
        size = bytes_of(task) if isinstance(task, ChangeTask) else PART_BYTES
        if size > room:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(task)
        room -= size
    return parts


def _native(spark: SparkSession, root: NativeRoot, plan: IncrementalPlan, order: LogOrder) -> DataFrame:
    """The merged rows of the groups that a transaction of the range wrote."""
    chosen = [quoted(name) for name in plan.columns]
    filters = [plan.where.to_spark_sql()] if isinstance(plan.where, Predicate) else []
    txns = plan.commits.column(TXN_COLUMN).to_pylist()
    is_listed = len(txns) <= LISTED_MAX
    if is_listed:
        listed = ", ".join(f"'{txn}'" for txn in txns)
        filters.append(f"{TXN_COLUMN} IN ({listed or 'NULL'})")
    if is_listed and not any(name in HIDDEN for name in plan.columns):
        return native_rows(spark, root, plan.scan(), plan.bounds(), order=order, then=[*filters, chosen])
    rows = native_rows(spark, root, plan.scan(), plan.bounds(), order=order, then=filters)
    return rows.join(F.broadcast(from_arrow(spark, plan.commits)), TXN_COLUMN).select(chosen)


def read_numbered(store: StoreDescription, parts: Sequence[bytes], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On a worker: the rows of pickled tasks. batches: which of the parts."""
    yield from _rows_of(store, (parts[number] for batch in batches for number in batch.column("id").to_pylist()))


def read_shuffled(store: StoreDescription, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On a worker: the rows of pickled tasks. batches: the tasks."""
    yield from _rows_of(store, (part for batch in batches for part in batch.column("tasks").to_pylist()))


def _rows_of(store: StoreDescription, parts: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    with opened(store) as fileio:
        for part in parts:
            for task in pickle.loads(part):  # noqa: S301 - our own driver wrote it
                for rows in read_changed(fileio, task):
                    yield from rows.to_batches()
