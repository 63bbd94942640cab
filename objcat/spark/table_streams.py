"""Streams that `writeStream.toTable` writes to a table of a catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from fileio.options import nearest
from objcat.common.validation import one_of
from objcat.errors import InvalidInput
from objcat.spark.stream_sink import foreach_batch

OPTIONS = ("app_id", "delete_when", "operation", "resumed_after", "schema_mode")
"""Of the writer, as `format("objcat")` has them."""
_OF_ROWS = ("upsert", "insert", "delete")
"""What `operation` may say: the output mode says whether all rows are replaced."""
_OF_SPARK = ("checkpointlocation", "path", "queryname")


def write_batch(table: Any, rows: DataFrame, asked: Mapping[str, Any]) -> None:
    """Write a batch of a stream, as one commit, exactly once.

    Args:
        table: a handle.
        rows: of the batch.
        asked: its number `batch`, the id of the `query`, the `mode` and the `options` of the write.

    Raises:
        InvalidInput: an option is unknown, or does not go with the output mode.
        ObjcatError: the errors of `foreach_batch`.
    """
    options = {name.lower(): value for name, value in asked["options"].items()}
    unknown = next((name for name in options if name not in (*OPTIONS, *_OF_SPARK)), None)
    if unknown is not None:
        raise InvalidInput(f"A stream into a table has no option {unknown!r}: {nearest(unknown, OPTIONS)}. Nothing was written.")
    # Spark calls it so in the output mode "complete".
    replaces = asked["mode"] == "overwrite"
    if replaces and not {"operation", "delete_when"}.isdisjoint(options):
        raise InvalidInput(
            'The output mode "complete" replaces all rows, so it takes neither operation nor delete_when. Nothing was written. Leave them '
            "out."
        )
    operation: Any = one_of(options.get("operation", "upsert" if table.key else "insert"), _OF_ROWS, what="operation")
    resumed = options.get("resumed_after")
    if resumed is not None and not resumed.isdecimal():
        raise InvalidInput(f"The option resumed_after is {resumed!r}. Nothing was written. Give the slot of the RESTORE.")
    write = foreach_batch(
        table,
        # The checkpoint is what makes a stream the same one after a restart, and has the id of the query.
        app_id=options.get("app_id") or options.get("checkpointlocation", "").rstrip("/") or f"query {asked['query']}",
        operation="overwrite" if replaces else operation,
        delete_when=options.get("delete_when"),
        schema_mode=options.get("schema_mode"),
        resumed_after=None if resumed is None else int(resumed),
    )
    write(rows, int(asked["batch"]))
