"""The history of a table: its commits as values and as an Arrow table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from objcat.metadata.files import BaseFile, LogObject, TableDelta, decode_delta
from objcat.timeline.entry import Entry

HISTORY = pa.schema(
    [
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("committed_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("rows", pa.int64()),
        pa.field("inserted", pa.int64()),
        pa.field("updated", pa.int64()),
        pa.field("deleted", pa.int64()),
        pa.field("files", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("txn", pa.string(), nullable=False),
        pa.field("writer", pa.string()),
        pa.field("attempts", pa.int64()),
        pa.field("metadata", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)
"""Schema of `CommitHistory.to_arrow`.

rows: written rows, existing keys included. inserted, updated, deleted: null if a write that reads nothing cannot know. files, bytes: of
data files that the commit added.
"""


class CommitHistory(list[Entry]):
    """Log entries of a table, oldest first."""

    def __init__(self, entries: list[Entry], table: str) -> None:
        super().__init__(entries)
        self._table = table

    def to_arrow(self) -> pa.Table:
        """The commits as an Arrow table, one row per commit.

        Returns:
            A table with the columns slot, committed_at, action, rows, inserted, updated, deleted, files, bytes, txn, writer, attempts,
                metadata.
        """
        facts = [commit_facts(entry, self._table) for entry in self]
        return pa.Table.from_pylist([{**one, "metadata": list(one["metadata"].items())} for one in facts], schema=HISTORY)


def commit_facts(entry: Entry, table: str) -> dict[str, Any]:
    """What one commit did to a table, by the columns of `HISTORY`.

    committed_at is in milliseconds since 1970 UTC, metadata a dict.
    """
    delta = decode_delta(entry.changes[table]) if table in entry.changes else TableDelta()
    files: list[BaseFile | LogObject] = [*delta.bases, *delta.logs]
    summary = entry.summary
    return {
        "slot": entry.slot,
        "committed_at": entry.committed_at_ms,
        "action": str(entry.action),
        "rows": sum(file.rows for file in files) if summary is None else summary.rows,
        "inserted": None if summary is None else summary.inserted,
        "updated": None if summary is None else summary.updated,
        "deleted": None if summary is None else summary.deleted,
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "txn": entry.txn,
        "writer": entry.writer,
        "attempts": None if summary is None else summary.attempts,
        "metadata": dict(entry.metadata),
    }
