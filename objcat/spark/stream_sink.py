"""Writes the batches of a stream into any table, each exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, get_args

from pyspark.sql import DataFrame

from objcat.common.validation import OperationName, SchemaModeName, one_of, text
from objcat.errors import InvalidInput
from objcat.spark.frames import kept_unless_it_fails, persist_unshared, unpersist_quietly
from objcat.spark.jobs import described
from objcat.timeline.log_state import AppVersion

QUERY = "spark.query"
"""Key of a commit's metadata: the streaming query of the batch."""
_QUERY_KEY = "sql.streaming.queryId"


class StreamTarget(Protocol):
    """What a stream writes to: a table handle."""

    @property
    def name(self) -> str:
        """The table's name in its lake."""

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

    @property
    def overwrite(self) -> Callable[..., Any]:
        """See `Table.overwrite`."""

    def app_version(self, app: str, /) -> int | None:
        """See `Table.app_version`."""


def foreach_batch(
    table: StreamTarget,
    *,
    app_id: str,
    operation: OperationName = "upsert",
    delete_when: str | None = None,
    schema_mode: SchemaModeName | None = None,
    resumed_after: int | None = None,
) -> Callable[[DataFrame, int], None]:
    """A function for `DataStreamWriter.foreachBatch` that writes each batch of a stream as one commit, exactly once.

    It works for every table type, copy-on-write too. A batch without rows commits nothing, but an overwrite empties the table. The function
    caches the batch in Spark while it writes, and needs a session of this process: Spark Connect runs it on the server, where there is no
    handle.

    Args:
        table: the handle to write through.
        app_id: the name by which the table knows the stream. Use one for each query, and never change it.
        operation: "upsert", "insert" or "delete"; "overwrite" replaces all rows by each batch, as the output mode "complete" gives them.
        delete_when: see `Table.upsert`; only with "upsert".
        schema_mode: see `Table.upsert`.
        resumed_after: see `AppVersion`.

    Returns:
        A function of a batch frame and a batch id. It raises what the write raises, and InvalidInput when the table has such a batch from
        another query of that name.

    Raises:
        InvalidInput: an argument is wrong.
    """
    text(app_id, what="app_id")
    chosen = one_of(operation, get_args(OperationName), what="operation")
    if delete_when is not None and chosen != "upsert":
        raise InvalidInput(f"delete_when is for upserts, not for operation={chosen!r}. Leave one of them out.")

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
                if chosen == "overwrite" and not _is_applied(table, app):
                    table.delete("true", metadata=metadata, spark=frame.sparkSession)
                return
            if chosen == "upsert":
                done = table.upsert(kept, app=app, metadata=metadata, schema_mode=schema_mode, delete_when=delete_when)
            elif chosen == "insert":
                done = table.insert(kept, app=app, metadata=metadata, schema_mode=schema_mode)
            elif chosen == "overwrite":
                done = table.overwrite(kept, app=app, metadata=metadata, schema_mode=schema_mode)
            else:
                done = table.delete(kept, app=app, metadata=metadata)
        finally:
            unpersist_quietly(kept)
        if done.already_applied:
            check_query(table, done.slot, app, query)

    return write


def _is_applied(table: StreamTarget, app: AppVersion) -> bool:
    reached = table.app_version(app.app)
    return reached is not None and reached >= app.version


def check_query(table: StreamTarget, slot: int, app: AppVersion, query: str | None) -> None:
    """Check that the commit of a version came from the query that sends it again. Raises InvalidInput.

    A query with a new checkpoint numbers its batches from 0. Under the name of an older query they would be taken for batches that the
    table has, and be lost.
    """
    earlier = table.inspect.commit_metadata(slot).get(QUERY)
    if query is not None and earlier is not None and earlier != query:
        raise InvalidInput(
            f"The table {table.name!r} has batch {app.version} of {app.app!r} from another streaming query, with another "
            "checkpoint. Nothing was written. Give this query an app_id of its own."
        )
