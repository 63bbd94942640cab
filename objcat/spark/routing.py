"""How Spark shuffles rows before they are written: JVM expressions that are equal in all rows of a file group.

They need not name the file group; the tasks do, in Arrow. Spark only has to collect the rows of a file group in one task. So any expression
is enough that separates file groups no more than needed, as long as no session setting (time zone, ANSI, the meaning of `timestamp`)
changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from objcat.metadata.partitioning import IDENTITY, TRUNCATE, PartitionField
from objcat.metadata.schema import Column as TableColumn
from objcat.metadata.table_spec import TableSpec
from objcat.spark.native.column_names import quoted
from objcat.spark.versions import try_cast
from objcat.tasks.shuffle_order import POSITION
from objcat.timeline.entry import FileGroupId

SHUFFLED_BYTES_MIN = 1024**3
"""Bytes of a batch from which on its log rows are shuffled: eight tasks that each read files."""
TASK_BYTES = 128 * 1024**2
"""Bytes of files that Spark gives a task to read."""
UNKNOWN_BYTES_MIN = 2**50
"""Spark assumes 2^63 bytes for a source it knows nothing of, or a part of that if not all columns are read."""

_HOUR_US, _DAY_US = 3_600_000_000, 86_400_000_000
_TYPES = {"timestamp": "timestamp_ltz"}
"""SQL names of types that no session reads differently."""


def group_columns(spec: TableSpec) -> list[Column]:
    """Expressions that are equal in all rows of a file group id: the bucket under the least count of any partition, and the partition
    columns.

    A row whose values do not cast goes anywhere; the tasks refuse it.
    """
    return [bucket_column(spec), *partition_columns(spec)]


def partition_columns(spec: TableSpec) -> list[Column]:
    """Expressions that are equal in all rows of a partition."""
    every = [{_identity(field) for field in earlier.fields} for earlier in spec.former]
    # A row may be in a partition of a previous partition spec, in which some fields of the current one differ.
    fields = [field for field in spec.partitioning.fields if all(_identity(field) in known for known in every)]
    return [_partition_column(field, spec.table_schema.by_id(field.column)) for field in fields]


def bucket_column(spec: TableSpec) -> Column:
    """The bucket of a row where no partition was split. A split divides buckets, and never moves rows between them."""
    return F.pmod(F.hash(*(_typed(column) for column in spec.bucket_columns)), F.lit(spec.index.count))


def by_group(data: DataFrame, spec: TableSpec, *, keeps_order: bool) -> DataFrame:
    """The rows with all those of a file group in one task. Spark chooses the number of tasks. `keeps_order`: with `POSITION`."""
    return (with_position(data) if keeps_order else data).repartition(*group_columns(spec))


def with_position(data: DataFrame) -> DataFrame:
    """The rows with `POSITION` as last column, because a shuffle does not retain their order."""
    return data.select("*", F.monotonically_increasing_id().alias(POSITION))


def by_bucket(data: DataFrame, spec: TableSpec) -> DataFrame:
    """The rows with those of a bucket together, in their order.

    Spark chooses the rows of a task, and divides a bucket that is too large among consecutive tasks.
    """
    names = [*(f"_objcat_file_group_{number}" for number in range(len(group_columns(spec)))), POSITION]
    marked = data.select("*", *group_columns(spec), F.monotonically_increasing_id()).toDF(*data.columns, *names)
    # Spark ignores the hint without adaptive execution.
    is_adaptive = data.sparkSession.conf.get("spark.sql.adaptive.enabled") == "true"
    together = marked.hint("rebalance", *names[:-1]) if is_adaptive else marked.repartition(*names[:-1])
    return together.sortWithinPartitions(*names).drop(*names)


def is_worth_a_shuffle(data: DataFrame, spec: TableSpec) -> bool:
    """Whether so many tasks would write log rows of a frame that the rows of a bucket should be collected first.

    Judged by Spark's estimate, which tends to be high: the bytes of the optimized plan, or of its sources if less (for a join the plan says
    their product). False without a JVM handle (Spark Connect), which has no estimate.
    """
    if not hasattr(data, "_jdf") or (spec.index.count == 1 and not spec.partition_columns):
        return False
    plan = data._jdf.queryExecution().optimizedPlan()
    return min(_expected_bytes(plan), bytes_of_sources(plan)) >= SHUFFLED_BYTES_MIN


def bytes_of_sources(plan: Any) -> int:
    """Bytes of the sources of a JVM plan, as far as Spark knows; tends to be high."""
    leaves = plan.collectLeaves()
    return sum(_bytes_of_source(leaves.apply(number)) for number in range(leaves.size()))


def is_of_files(data: DataFrame) -> bool:
    """Whether rows come from columnar files or Spark's cache, filtered and computed one by one in the JVM.

    Counting those is little next to writing them. False without a JVM handle (Spark Connect).
    """
    if not hasattr(data, "_jdf"):
        return False
    left = [data._jdf.queryExecution().withCachedData()]
    if has_python(data, left[0]):
        return False
    while left:
        plan = left.pop()
        name = plan.getClass().getSimpleName()
        if name == "LogicalRelation":
            source = plan.relation()
            if source.getClass().getSimpleName() != "HadoopFsRelation" or source.fileFormat().shortName() not in ("parquet", "orc"):
                return False
        elif name not in ("Project", "Filter", "InMemoryRelation", "Range", "SubqueryAlias", "Union", "View"):
            return False
        children = plan.children()
        left.extend(children.apply(number) for number in range(children.size()))
    return True


def has_python(data: DataFrame, plan: Any) -> bool:
    """Whether a JVM plan of a frame has Python functions, not counting what Spark has cached."""
    jvm: Any = data.sparkSession._jvm
    return bool(plan.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()))


def _expected_bytes(plan: Any) -> int:
    return int(plan.stats().sizeInBytes())


def _bytes_of_source(leaf: Any) -> int:
    """Nobody knows the size of an RDD; its partitions count like those of files."""
    if leaf.getClass().getSimpleName() == "ResolvedInlineTable":
        # VALUES with the time of the query, which Spark cannot estimate before it optimizes. A text has few rows.
        return 0
    size = _expected_bytes(leaf)
    if size < UNKNOWN_BYTES_MIN:
        return size
    is_rdd = leaf.getClass().getSimpleName() in ("LogicalRDD", "ExternalRDD")
    return TASK_BYTES * (int(leaf.rdd().getNumPartitions()) if is_rdd else 1)


def in_buckets_of(spec: TableSpec, group_ids: Collection[FileGroupId]) -> Column:
    """Whether a row may be in one of some file groups."""
    return bucket_column(spec).isin(sorted({group_id.bucket % spec.index.count for group_id in group_ids}))


def _identity(field: PartitionField) -> tuple[int, str, int]:
    return field.column, field.transform, field.width


def typed(values: Column, column: TableColumn) -> Column:
    """Values in the type of a table column, null where they do not cast."""
    return try_cast(values, _TYPES.get(str(column.type), str(column.type)))


def _typed(column: TableColumn) -> Column:
    return typed(F.col(quoted(column.name)), column)


def _partition_column(field: PartitionField, column: TableColumn) -> Column:
    value = _typed(column)
    if field.transform == IDENTITY:
        return value
    if field.transform == TRUNCATE:
        if column.type == "string":
            return F.substring(value, 1, min(field.width, 2**31 - 1))
        number = value.cast("bigint")
        # Null in the one partition that begins below the type's range.
        return F.try_subtract(number, F.pmod(number, F.lit(field.width)))
    if column.type == "timestamp":
        micros = F.unix_micros(value)
        if field.transform == "hour":
            return F.try_subtract(micros, F.pmod(micros, F.lit(_HOUR_US)))
        value = F.date_from_unix_date(
            F.call_function("div", F.try_subtract(micros, F.pmod(micros, F.lit(_DAY_US))), F.lit(_DAY_US)).cast("int")
        )
    elif field.transform == "hour":
        return F.concat_ws(" ", value.cast("date").cast("string"), F.hour(value).cast("string"))
    else:
        value = value.cast("date")
    return _OF_DATES[field.transform](value)


_OF_DATES: Mapping[str, Callable[[Column], Column]] = {
    "day": lambda date: date,
    "month": lambda date: F.year(date) * 12 + F.month(date),
    "year": F.year,
}
