"""Batches of a stream into any table, each exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pyspark.sql import DataFrame

from objcat.common.validation import OperationName, SchemaModeName, one_of, text
from objcat.errors import InvalidInput
from objcat.spark.frames import kept_unless_it_fails, persist_unshared, unpersist_quietly
from objcat.spark.jobs import described
from objcat.tasks.model import Operation
from objcat.timeline.log_state import AppVersion

QUERY = "spark.query"
"""In the metadata of a commit: of which streaming query it is a batch."""
_QUERY_KEY = "sql.streaming.queryId"


class StreamTarget(Protocol):
    """What a stream writes to: a handle of a table."""

    @property
    def name(self) -> str:
        """In its lake."""

    @property
    def inspect(self) -> Any:
        """See `Table.inspect`."""

    @property
    def upsert(self) -> Callable[..., Any]:
        """See `Table.upsert`."""

    @property
    def insert(self) -> Callable[..., Any]:
        """See `Table.insert`."""

    @property
    def delete(self) -> Callable[..., Any]:
        """See `Table.delete`."""


def foreach_batch(
    table: StreamTarget,
    *,
    app_id: str,
    operation: OperationName = "upsert",
    delete_when: str | None = None,
    schema_mode: SchemaModeName | None = None,
    resumed_after: int | None = None,
) -> Callable[[DataFrame, int], None]:
    """What `DataStreamWriter.foreachBatch` takes: writes each batch of a stream to the table as one commit, exactly once.

    Takes tables of every kind, copy-on-write too. app_id: the name by which the table knows the stream; one for each query, for good.
    operation: "upsert", "insert" or "delete". delete_when, schema_mode: as of `Table.upsert`. resumed_after: as of `AppVersion`. A batch
    without rows commits nothing. The function keeps the batch in Spark's storage while it writes, and needs a session of this process:
    Spark Connect runs it elsewhere, where no handle is. Raises InvalidInput; the function what the write raises, and InvalidInput when the
    table has such a batch from another query of that name.
    """
    text(app_id, what="app_id")
    chosen = one_of(operation, Operation, what="operation")
    if delete_when is not None and chosen != Operation.UPSERT:
        raise InvalidInput(f"delete_when goes with upserts, not with operation={chosen!r}: leave one of them out")

    def write(frame: DataFrame, batch_id: int) -> None:
        app = AppVersion(app=app_id, version=batch_id, resumed_after=resumed_after)
        with described(frame.sparkSession, f"objcat: look at a batch for {table.name}"):
            query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_KEY)
            kept = persist_unshared(frame)
            with kept_unless_it_fails(kept):
                is_empty = kept.isEmpty()
        metadata = {} if query is None else {QUERY: query}
        try:
            if is_empty:
                return
            if chosen == Operation.UPSERT:
                done = table.upsert(kept, app=app, metadata=metadata, schema_mode=schema_mode, delete_when=delete_when)
            elif chosen == Operation.INSERT:
                done = table.insert(kept, app=app, metadata=metadata, schema_mode=schema_mode)
            else:
                done = table.delete(kept, app=app, metadata=metadata)
        finally:
            unpersist_quietly(kept)
        if done.already_applied:
            check_query(table, done.slot, app, query)

    return write


def check_query(table: StreamTarget, slot: int, app: AppVersion, query: str | None) -> None:
    """See that the commit which has brought a version was made by the query that brings it again.

    A query with a new checkpoint numbers its batches from 0 again: under the name of an older one they would be taken for batches that
    the table has, and be lost. Raises InvalidInput.
    """
    earlier = table.inspect.commit_metadata(slot).get(QUERY)
    if query is not None and earlier is not None and earlier != query:
        raise InvalidInput(
            f"the table {table.name!r} has batch {app.version} of {app.app!r} from another streaming query, with another checkpoint: give "
            "this query an app_id of its own; nothing was written"
        )
