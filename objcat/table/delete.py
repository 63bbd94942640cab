"""`delete`: rows of a batch of keys, or rows that a filter finds in this process or on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from objcat.common.validation import session, text_mapping
from objcat.dml import delete as deletes
from objcat.dml.computed_write import WriteTarget
from objcat.errors import InvalidInput
from objcat.planning.scan import ScanPlan
from objcat.predicate.arrow import BeyondScans
from objcat.table.batch_input import prepare_batch
from objcat.table.context import TableContext
from objcat.table.merge import delete_computed
from objcat.table.scan import Scan
from objcat.table.write_batch import write_batch
from objcat.tasks.model import Operation, WriteResult, WriteTask
from objcat.tasks.regroup_rows import DeleteTask, rewrite_without
from objcat.timeline.log_state import AppVersion
from objcat.write.index_lookup import LookupContext, write_with_index_lookup
from objcat.write.service_commit import ServiceCommit
from objcat.write.transaction import CommitResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delete(
    context: TableContext, keys: Any, *, metadata: Mapping[str, str] | None, app: AppVersion | None, spark: SparkSession | None
) -> CommitResult | None:
    """See `Table.delete`."""
    if not isinstance(keys, (str, pc.Expression)):
        return write_batch(context, keys, Operation.DELETE, metadata, app)
    if app is not None:
        raise InvalidInput("delete() with a filter takes no app=, because what it deletes depends on when it runs. Leave out app=.")
    return delete_where(context, keys, metadata=metadata, spark=spark)


def delete_where(
    table: WriteTarget, where: str | pc.Expression, *, metadata: Mapping[str, str] | None, spark: SparkSession | None
) -> CommitResult | None:
    """Delete the rows that a filter finds; as an update that computes it, where a scan cannot apply it."""
    try:
        return delete_scanned(table, where, metadata=metadata, spark=spark)
    except BeyondScans:
        # The plan raises it: nothing was written.
        return delete_computed(table, where, metadata=metadata, spark=spark)


def delete_scanned(
    table: WriteTarget,
    where: str | pc.Expression,
    *,
    metadata: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    outright: bool = False,
) -> CommitResult | None:
    """Like `Table.delete`, for filters that a scan can apply. `outright`: see `objcat.dml.delete.delete_where`. Raises BeyondScans."""
    told = text_mapping({} if metadata is None else metadata, what="metadata")
    engine = KeyDeleter(table, spark)

    def write() -> ServiceCommit[Any] | None:
        return deletes.delete_where(table.timeline, table.id, where, engine=engine, metadata=told, outright=outright)

    return table.committed(write, spark=spark)


class KeyDeleter:
    """Finds rows and deletes them, in this process or on Spark."""

    def __init__(self, table: WriteTarget, spark: SparkSession | None) -> None:
        self._table = table
        self._spark = None if spark is None else session(spark)

    def keys(self, plan: ScanPlan) -> Any | None:
        found = Scan(self._table.fileio, plan, self._table.manifests)
        if self._spark is None:
            rows = found.to_arrow()
            return rows if rows.num_rows else None
        from objcat.spark.delete_where import rows_to_delete

        return rows_to_delete(self._spark, found.to_spark, table=self._table.name)

    def write(self, data: Any, task: WriteTask) -> WriteResult:
        change = prepare_batch(self._table.fileio, data, task.spec, task.operation, table=self._table.name)
        return change.engine.write(change.data, task)

    def rewrite(self, task: DeleteTask) -> WriteResult:
        if self._spark is None:
            return rewrite_without(self._table.fileio, task)
        from objcat.spark.delete_where import rewrite_on_spark

        return rewrite_on_spark(self._spark, self._table.fileio.describe(), task, table=self._table.name)

    def write_located(self, place: LookupContext, data: Any, task: WriteTask) -> WriteResult:
        change = prepare_batch(self._table.fileio, data, task.spec, task.operation, table=self._table.name)
        return write_with_index_lookup(place, change.engine, change.data, task)
