"""Reads on Spark: plain file groups as native Parquet scans, groups with log rows merged by the task functions, one DataFrame of both."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from fileio.registry import StoreDescription
from objcat.read import ScanPlan
from objcat.spark.names import quoted
from objcat.table import FileGroup
from objcat.tasks import ScanTask, scan_groups, scan_schema

TASK_ROWS_MAX = 64 * 1024
_CONNECTORS = {"s3": "s3a", "gs": "gs"}
_AZURE = re.compile(r"^az://([^/]+)(.*)$")

_NATIVE_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
}
"""Settings of a session that would lose rows or shift dates before 1582 are overruled for each relation."""
_PATTERN = re.compile(r"[\[\]{}*?\\]")


def scan_dataframe(spark: SparkSession, store: StoreDescription, plan: ScanPlan) -> DataFrame:
    """The rows of a planned scan, lazily. Native where the session can read the store itself."""
    root = native_root(spark, store)
    native = plan.plain if root is not None else ()
    through_arrow = plan.merged if root is not None else (*plan.plain, *plan.merged)
    parts = []
    if native and root is not None:
        parts.append(_native(spark, root, plan, native))
    if through_arrow:
        parts.append(_merged(spark, store, plan, through_arrow))
    if not parts:
        return spark.createDataFrame([], _spark_schema(plan))
    return reduce(DataFrame.unionByName, parts)


def native_root(spark: SparkSession, store: StoreDescription) -> str | None:
    """The store's URL as this session's Hadoop knows it; None when it cannot read the scheme (or there is no JVM handle: Spark Connect).

    A scheme counts as readable when its connector is on the class path; that it is also configured is the session's business.
    """
    if not hasattr(spark, "_jvm"):
        return None
    scheme, _, rest = store.url.partition(":")
    if scheme == "file":
        return store.url
    if scheme in _CONNECTORS:
        root = f"{_CONNECTORS[scheme]}:{rest}"
    elif scheme == "az" and store.options.get("account") and not store.options.get("endpoint"):
        root = _AZURE.sub(rf"abfss://\1@{store.options['account']}.dfs.core.windows.net\2", store.url)
    else:
        return None
    try:
        jvm = spark._jvm
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(root.partition(":")[0], spark._jsc.hadoopConfiguration())  # type: ignore[union-attr]
    except Exception:  # noqa: BLE001 - Py4J raises one class for every Java error, a missing connector among them
        return None
    return root


def _native(spark: SparkSession, root: str, plan: ScanPlan, groups: Sequence[FileGroup]) -> DataFrame:
    """Base files as Spark reads them: by physical names, which never change, with a projection to the logical ones.

    Hadoop takes paths as they are, while ours are percent-encoded; Spark takes them for patterns, unless it is told otherwise.
    """
    schema = plan.snapshot.spec.table_schema
    physical = from_arrow_schema(_plain(schema.to_arrow_physical()), prefer_timestamp_ntz=True)
    folder = _PATTERN.sub(r"\\\g<0>", unquote(root).rstrip("/"))
    paths = [f"{folder}/{group.base.path}" for group in groups if group.base is not None]
    rows = spark.read.schema(physical).options(**_NATIVE_OPTIONS).parquet(*paths)
    rows = rows.select([F.col(quoted(column.physical)).alias(column.name) for column in schema.columns])
    if plan.where is not None:
        rows = rows.where(plan.where.to_spark_sql())
    return rows.select([quoted(name) for name in plan.columns])


def _merged(spark: SparkSession, store: StoreDescription, plan: ScanPlan, groups: Sequence[FileGroup]) -> DataFrame:
    tasks = plan.tasks(groups, count_max=max(1, min(len(groups), TASK_ROWS_MAX)))
    numbered = spark.createDataFrame([(number, pickle.dumps(task)) for number, task in enumerate(tasks)], "number int, task binary")
    return numbered.repartition(len(tasks), "number").mapInArrow(_reader(store), _spark_schema(plan))


def _reader(store: StoreDescription) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with store.open() as fileio:
            for batch in batches:
                for pickled in batch.column("task").to_pylist():
                    task: ScanTask = pickle.loads(pickled)  # noqa: S301 - our own driver wrote it
                    for rows in scan_groups(fileio, task):
                        yield from rows.to_batches()

    return run


def _spark_schema(plan: ScanPlan) -> StructType:
    return from_arrow_schema(_plain(scan_schema(plan.snapshot.spec, plan.columns)), prefer_timestamp_ntz=True)


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type, field.nullable) for field in schema])
