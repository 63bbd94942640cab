"""`write_batch`: one batch of rows into one table, as one commit."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from fileio.errors import FileIOError
from objcat.common.memory_errors import after_commit
from objcat.common.validation import (
    SchemaModeName,
    text_mapping,
)
from objcat.errors import CommitConflict, ObjcatError
from objcat.table.batch_input import prepare_batch, session_of
from objcat.table.context import TableContext
from objcat.tasks.model import Operation, WriteLayout
from objcat.timeline.log_state import AppVersion
from objcat.write.transaction import CommitResult, WriteOperation

logger = logging.getLogger("objcat")


def write_batch(
    context: TableContext,
    data: Any,
    operation: Operation,
    metadata: Mapping[str, str] | None = None,
    app: AppVersion | None = None,
    schema_mode: SchemaModeName | None = None,
    *,
    delete_when: str | None = None,
    layout: WriteLayout | None = None,
) -> CommitResult:
    """Write one batch to a table, as one commit, and update the handle to it. Raises as `Table.upsert`."""
    told = text_mapping({} if metadata is None else metadata, what="metadata")
    change = prepare_batch(
        context.fileio, data, context.spec, operation, schema_mode, delete_when, table=context.name, newest=lambda: context.refresh().spec
    )
    # Blind writes need no refresh: the put of the slot shows whether the view is the newest. Other writes begin from the newest view.
    # Rows without a key are appended as blindly as an upsert.
    places = operation is Operation.INSERT and context.spec.has_key
    if places or context.spec.rewrites or context.spec.is_located or app is not None:
        context.refresh()
    write: WriteOperation[Any] = WriteOperation(
        timeline=context.timeline,
        table=context.id,
        manifests=context.manifests,
        committer=context.committer,
        engine=change.engine,
        data=change.data,
        operation=operation,
        schema_mode=change.schema_mode,
        delete_when=change.delete_when,
        layout=layout,
        metadata=told,
        app=app,
        advice=context.advice,
    )
    began = context.view.slot
    try:
        # A write that meets a deleted checkpoint has not asked for a slot, and has removed its files.
        result, followed = context.retry_on_new_checkpoint(lambda: write.run(context.view))
    except CommitConflict:
        # The next try begins from the winning commit, and finds out if the table was dropped.
        with contextlib.suppress(FileIOError):
            context.refresh()
        raise
    with after_commit(result.slot):
        try:
            context.latest.advance(followed)
        except (ObjcatError, FileIOError) as error:
            # The write is durable in any case. The handle is behind, as if another process had written.
            logger.warning("%r did not replay its own commit at slot %d, which is durable: %s", context, result.slot, error)
        context.timeline.after_commit(context.view, context.latest.adopt_checkpoint)
        if not result.already_applied:
            context.after_write(result, since_slot=began, spark=session_of(change.data))
    return result
