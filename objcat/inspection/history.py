"""The history of a table: its commits as values and as an Arrow table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from objcat.metadata.files import BaseFile, LogObject, TableDelta, decode_delta
from objcat.metadata.shared_commits import commits_of
from objcat.timeline.entry import Entry
from objcat.timeline.log_state import TableLogState

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

SNAPSHOTS = pa.schema(
    [
        pa.field("committed_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("parent", pa.int64()),
        pa.field("action", pa.string(), nullable=False),
        pa.field("summary", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)
"""Schema of `snapshots_of`.

parent: the slot of the table's commit before it, null for the first. summary: what the commit added, by the keys of Iceberg
(`added-data-files`, `added-files-size`, `added-records`), `inserted`, `updated` and `deleted` rows where they are known, and what its
writer said.
"""


class CommitHistory(list[Entry]):
    """Log entries of a table, oldest first."""

    def __init__(self, entries: list[Entry], table: str) -> None:
        super().__init__(entries)
        self._table = table

    def to_arrow(self) -> pa.Table:
        """The commits as an Arrow table, one row per commit. Commits that share a slot have a row each.

        Returns:
            A table with the columns slot, committed_at, action, rows, inserted, updated, deleted, files, bytes, txn, writer, attempts,
                metadata.
        """
        facts = [commit_facts(commit, self._table) for entry in self for commit in commits_of(entry)]
        return pa.Table.from_pylist([{**one, "metadata": list(one["metadata"].items())} for one in facts], schema=HISTORY)


def snapshots_of(commits: CommitHistory, marks: TableLogState) -> pa.Table:
    """The commits whose slots can be read, with the schema `SNAPSHOTS`. `commits`: all that the log has. `marks`: of the table, newer."""
    rows = []
    for place, entry in enumerate(commits):
        one = _slot_facts(entry, commits._table)
        if not marks.is_readable(one["slot"]):
            continue
        counts = {"added-data-files": one["files"], "added-files-size": one["bytes"], "added-records": one["rows"]}
        counts |= {name: one[name] for name in ("inserted", "updated", "deleted") if one[name] is not None}
        told = {**dict(one["metadata"]), **{name: str(count) for name, count in counts.items()}}
        parent = commits[place - 1].slot if place else None
        rows.append({name: one[name] for name in ("committed_at", "slot", "action")} | {"parent": parent, "summary": list(told.items())})
    return pa.Table.from_pylist(rows, schema=SNAPSHOTS)


def _slot_facts(entry: Entry, table: str) -> dict[str, Any]:
    """`commit_facts` of a slot: what its commits did together."""
    first, *others = [commit_facts(commit, table) for commit in commits_of(entry)]
    for one in others:
        for name in ("rows", "inserted", "updated", "deleted", "files", "bytes"):
            known = first[name] is not None and one[name] is not None
            first[name] = first[name] + one[name] if known else None
    return first


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
