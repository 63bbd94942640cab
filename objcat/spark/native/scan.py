"""Scans on Spark: native where the session can read the store, Arrow through `fileio` elsewhere.

Begin with `scan_dataframe`, which `Scan.to_spark` and Spark SQL call. A native plan is made of relations (`relation.py`), which
`snapshot.py` chooses for a snapshot and `merge.py` merges; `query.py` passes it to the JVM in one call.
The rows are exactly those of `Scan.to_arrow`, under any session settings.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fileio.store import StoreDescription
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.metadata.schema import Column, StructType
from objcat.planning.event_time import LogOrder
from objcat.planning.scan import COMMIT_COLUMNS, ScanPlan
from objcat.predicate.parse import Predicate
from objcat.spark.native.adopted import is_native, native_layouts
from objcat.spark.native.column_names import quoted
from objcat.spark.native.narrowing import MarkedScan, NarrowPlan, mark
from objcat.spark.native.precomputed import with_precomputed
from objcat.spark.native.relation import fills_absent, native_root, spark_schema
from objcat.spark.native.snapshot import native_rows
from objcat.spark.versions import from_arrow
from objcat.spark.worker_task import check_workers, opened, spark_task
from objcat.tasks.model import ScanTask
from objcat.tasks.scan import scan_groups, scan_schema
from objcat.tasks.scan_parts import cast_to

TASKS_MAX = 64 * 1024


def scan_dataframe(
    spark: SparkSession,
    store: StoreDescription,
    plan: ScanPlan,
    *,
    bounds: Callable[[], pa.Table],
    commits: Callable[[], pa.Table],
    verify: Callable[[ScanPlan], LogOrder],
    narrow: NarrowPlan,
) -> DataFrame:
    """The rows of a planned scan, lazily. Raises MissingOnWorkers where Python workers give them, and cannot.

    A filter that is an Arrow expression is applied in Python workers. Adopted files of rare layouts are read there, and columns that
    Spark's reader gives otherwise where files lack them. All else is native where the session can read the store.

    Args:
        bounds: gives the known bounds of file columns (`Snapshot.bounds`), by which Spark skips files.
        commits: gives the commit times of rows (`objcat.planning.commits.commits_table`).
        verify: checks the files of a plan that Spark reads itself, and says what is known of the order of its log rows.
        narrow: plans again, for what a query needs of files in place.
    """
    root = native_root(spark, store)
    chosen = [_cut(plan, name) for name in plan.columns]
    with_commits = any(name in COMMIT_COLUMNS for name in plan.columns)
    can_filter = plan.where is None or isinstance(plan.where, Predicate)
    if root is not None and can_filter and fills_absent(plan.columns_read):
        plan = with_precomputed(plan)
        native, others = native_part(plan)
        if others is not None:
            rest = _by_workers(spark, store, others, commits, verify, narrow)
            if native is None:
                return rest
            return scan_dataframe(spark, store, native, bounds=bounds, commits=commits, verify=verify, narrow=narrow).union(rest)
        filters = [plan.where.to_spark_sql()] if isinstance(plan.where, Predicate) else []
        rows = native_rows(spark, root, plan, bounds(), order=verify(plan), then=filters if with_commits else [*filters, chosen])
        return _with_commits(rows, commits()).selectExpr(*chosen) if with_commits else rows
    return _by_workers(spark, store, plan, commits, verify, narrow)


def _cut(plan: ScanPlan, name: str) -> str:
    """A column of a plan as Spark SQL, with its own fields only."""
    part = next((part for part in plan.parts if part.name == name), None)
    if part is None:
        return quoted(name)
    return f"{_fields(part, quoted(name), plan.snapshot.spec.table_schema.column(name))} AS {quoted(name)}"


def _fields(part: Column, said: str, whole: Column) -> str:
    if part == whole:
        return said
    assert isinstance(part.type, StructType) and isinstance(whole.type, StructType), "only structs have parts"
    known = {field.id: field for field in whole.type.fields}
    fields = [(quoted(one.name), _fields(one, f"{said}.{quoted(one.name)}", known[one.id])) for one in part.type.fields]
    return f"CASE WHEN {said} IS NOT NULL THEN struct({', '.join(f'{found} AS {name}' for name, found in fields)}) END"


def native_part(plan: ScanPlan) -> tuple[ScanPlan | None, ScanPlan | None]:
    """A plan, parted into the file groups that Spark reads itself and those that Python workers read. None: there are none."""
    layouts = native_layouts(plan.groups)
    if all(is_native(group, layouts) for group in plan.groups):
        return plan, None
    parts = []
    for wanted in (True, False):
        plain, merged = (tuple(group for group in groups if is_native(group, layouts) is wanted) for groups in (plan.plain, plan.merged))
        parts.append(replace(plan, plain=plain, merged=merged) if plain or merged else None)
    return parts[0], parts[1]


def _by_workers(
    spark: SparkSession,
    store: StoreDescription,
    plan: ScanPlan,
    commits: Callable[[], pa.Table],
    verify: Callable[[ScanPlan], LogOrder],
    narrow: NarrowPlan,
) -> DataFrame:
    with_commits = any(name in COMMIT_COLUMNS for name in plan.columns)
    name = "task"
    if plan.snapshot.spec.is_in_place and not with_commits and not plan.parts and hasattr(spark, "_jvm"):
        name = mark(MarkedScan(plan, narrow, lambda found: _narrowed(spark, store, found, verify)))
    rows = _through_arrow(spark, store, plan, name=name)
    return (_with_commits(rows, commits()) if with_commits else rows).select([quoted(name) for name in plan.columns])


def _narrowed(spark: SparkSession, store: StoreDescription, plan: ScanPlan, verify: Callable[[ScanPlan], LogOrder]) -> DataFrame:
    """The rows of a plan for what a query needs of files in place: Spark reads precomputed columns where they are enough."""
    root = native_root(spark, store)
    known = plan if root is None or not fills_absent(plan.columns_read) else with_precomputed(plan)
    native, others = native_part(known)
    if root is None or native is None:
        return _through_arrow(spark, store, plan, by_whole=True)
    filters = [plan.where.to_spark_sql()] if isinstance(plan.where, Predicate) else []
    chosen = [quoted(name) for name in plan.columns]
    rows = native_rows(spark, root, native, None, order=verify(native), then=[*filters, chosen])
    return rows if others is None else rows.union(_through_arrow(spark, store, others, by_whole=True).select(chosen))


def _with_commits(rows: DataFrame, commits: pa.Table) -> DataFrame:
    return rows.join(F.broadcast(from_arrow(rows.sparkSession, commits)), TXN_COLUMN, "left")


def _through_arrow(
    spark: SparkSession, store: StoreDescription, plan: ScanPlan, *, name: str = "task", by_whole: bool = False
) -> DataFrame:
    """The rows of a plan from Python workers.

    Args:
        name: of the column with the tasks.
        by_whole: columns with some of their fields have the others too, with nulls.
    """
    groups = plan.groups
    columns = scan_schema(plan.snapshot.spec, plan.task(()).columns, () if by_whole else plan.parts)
    tasks = plan.tasks(groups, count_max=max(1, min(len(groups), TASKS_MAX)))
    if not tasks:
        return spark.createDataFrame([], spark_schema(columns))
    check_workers(spark)
    numbered = spark.createDataFrame([(number, pickle.dumps(task)) for number, task in enumerate(tasks)], f"number int, {name} binary")
    read = spark_task(_read_by_whole if by_whole else _read, store)
    return numbered.repartition(len(tasks), "number").mapInArrow(read, spark_schema(columns))


def _read(store: StoreDescription, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _, rows in _tables(store, batches):
        yield from rows.to_batches()


def _read_by_whole(store: StoreDescription, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for task, rows in _tables(store, batches):
        yield from cast_to(rows, scan_schema(task.spec, task.columns), task.parts).to_batches()


def _tables(store: StoreDescription, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[ScanTask, pa.Table]]:
    with opened(store) as fileio:
        for batch in batches:
            for pickled in batch.column(1).to_pylist():
                task: ScanTask = pickle.loads(pickled)  # noqa: S301 - our own driver wrote it
                for rows in scan_groups(fileio, task):
                    yield task, rows
