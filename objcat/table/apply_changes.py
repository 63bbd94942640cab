"""`apply_changes`: a table follows another one, whose changes become a batch that counts once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from objcat.common.validation import instance, text
from objcat.errors import InvalidInput
from objcat.metadata.table_spec import TABLE_SCOPE, TableSpec
from objcat.planning.changes import ChangesPlan
from objcat.table.change_feed import ChangeFeed
from objcat.table.context import TableContext
from objcat.table.write_batch import write_batch
from objcat.tasks.change_columns import CHANGE_FIELDS, COMMIT_SLOT
from objcat.tasks.model import Operation
from objcat.timeline.log_state import AppVersion
from objcat.write.transaction import CommitResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "objcat_change"
"""Column of the batch with the kind of a change."""
DELETES = f"{KIND} = 'delete'"
_CHANGE_TYPE = "_change_type"


def apply_changes(
    context: TableContext, source: ChangeFeed, *, app_id: str, metadata: Mapping[str, str] | None, spark: SparkSession | None
) -> CommitResult | None:
    """See `Table.apply_changes`."""
    context.refresh()
    known = context.view.log.marks(context.id).apps.get(text(app_id, what="app_id"))
    check_follows(source, None if known is None else known.version, app_id=app_id)
    app = version_of(source, app_id=app_id, rewound_at=None if known is None else known.rewound_at)
    batch = batch_of(source, context.spec, spark, table=context.name)
    return None if batch is None else write_batch(context, batch, Operation.UPSERT, metadata, app, delete_when=DELETES)


def check_follows(feed: ChangeFeed, reached: int | None, *, app_id: str) -> None:
    """Refuse a feed that leaves out changes. `reached`: the last slot whose changes the table has; None for none. Raises InvalidInput."""
    instance(feed, ChangeFeed, what="source", such_as="what source.changes(...) returns")
    if _CHANGE_TYPE not in feed.schema.names:
        raise InvalidInput("apply_changes() got a feed without deletes. Nothing was written. Pass what source.changes(...) returns.")
    if reached is not None and feed.since > reached:
        raise InvalidInput(
            f"The changes begin after slot {feed.since}, but {app_id!r} has applied those up to slot {reached} only, so some "
            f"would be left out. Nothing was written. Read source.changes(since={reached}, net=True)."
        )


def version_of(feed: ChangeFeed, *, app_id: str, rewound_at: int | None) -> AppVersion:
    """The application version of a feed's commit. `rewound_at`: the slot of the RESTORE that it goes on from.

    Net changes depend on the version where they begin. All changes in order give the right result whatever part of them was applied before.
    """
    since = feed.since if getattr(feed.plan, "net", False) else None
    return AppVersion(app=app_id, version=feed.until, resumed_after=rewound_at, since=since)


def batch_of(feed: ChangeFeed, spec: TableSpec, spark: SparkSession | None, *, table: str) -> Any | None:
    """The changes as rows and deletes, with the table's columns; None when there are none.

    `table`: its name in messages. Raises InvalidInput; on Spark SparkJobFailed, SparkJobLost and MissingOnWorkers.
    """
    names = _common_names(feed, spec, table=table)
    if spark is None:
        rows = feed.to_arrow()
        rows = rows.filter(pc.not_equal(rows.column(_CHANGE_TYPE), "update_before"))
        # A source key may be one row of its partition, so one commit may delete it in one and insert it in another. Here it may be one row.
        rows = rows.sort_by([(COMMIT_SLOT, "ascending"), (_CHANGE_TYPE, "ascending")]).select([*names, _CHANGE_TYPE])
        return rows.rename_columns([*names, KIND]) if rows.num_rows else None
    if not getattr(feed.plan, "net", False):
        raise InvalidInput(
            "Spark reads changes in no order, so each key needs one change. Nothing was written. Read source.changes(..., net=True)."
        )
    from objcat.spark.jobs import described
    from objcat.spark.native.column_names import quoted

    with described(spark, f"objcat: look at the changes for {table}"):
        frame = feed.to_spark(spark).where(f"{_CHANGE_TYPE} <> 'update_before'")
        if not _is_once_a_key(feed.plan, spec):
            frame = frame.orderBy(COMMIT_SLOT, _CHANGE_TYPE)
        frame = frame.select(*(quoted(name) for name in names), _CHANGE_TYPE).withColumnRenamed(_CHANGE_TYPE, KIND)
        return None if frame.isEmpty() else frame


def _common_names(feed: ChangeFeed, spec: TableSpec, *, table: str) -> list[str]:
    """The columns of a feed that the table has.

    Raises InvalidInput where one may have been renamed on one side only, because its values would become null.
    """
    hidden = {field.name for field in CHANGE_FIELDS}
    theirs, mine = [name for name in feed.schema.names if name not in hidden], spec.table_schema.names
    unknown, missing = [name for name in theirs if name not in mine], [name for name in mine if name not in theirs]
    if unknown and missing:
        raise InvalidInput(
            f"The changes have columns that the table {table!r} lacks, {', '.join(map(repr, unknown))}, and lack columns of "
            f"it, {', '.join(map(repr, missing))}. Nothing was written. If one was renamed, rename it in the table too. "
            "Otherwise name the columns to take by source.changes(..., columns=[...]); the others become null in the changed "
            "rows."
        )
    return [name for name in theirs if name in mine]


def _is_once_a_key(plan: Any, spec: TableSpec) -> bool:
    """Whether net changes name no key of the table twice, so that their order does not matter.

    They name their own key twice where it is one row of its partition, or moved to a partition of another partition spec. They name the
    table's key twice where that has fewer columns.
    """
    assert isinstance(plan, ChangesPlan), "only changes are followed"
    theirs = plan.spec
    names = [{column.name for column in one.key_columns} for one in (theirs, spec)]
    return theirs.key_scope == TABLE_SCOPE and not plan.is_mixed and names[0] <= names[1]
