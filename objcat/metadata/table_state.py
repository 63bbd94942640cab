"""`TableState`: manifests of a checkpoint, and the changes of the entries since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from objcat.metadata.manifest import ShardRef
from objcat.metadata.manifest_rows import ManifestChange
from objcat.metadata.table_spec import TableSpec
from objcat.timeline.entry import FileGroupId


@dataclass(frozen=True, slots=True)
class TableState:
    """One table as of one slot. It is small, however many files the table has.

    Args:
        bucket_counts: Current bucket counts of partitions that were split.
        manifest: The shards of its checkpoint.
        overlay: What entries since that checkpoint changed, by the file group id that they used.
        index: The record index of the table, if it has one.
        erasures: Erasures whose partitions were already gone from the log when the table was replayed from its creation.
    """

    spec: TableSpec
    bucket_counts: Mapping[str, int] = field(default_factory=dict)
    manifest: tuple[ShardRef, ...] = ()
    overlay: Mapping[FileGroupId, ManifestChange] = field(default_factory=dict)
    index: TableState | None = None
    erasures: frozenset[str] = frozenset()

    def bucket_count(self, partition: str) -> int:
        """How many buckets a partition has now."""
        return self.bucket_counts.get(partition, self.spec.index.count)


Tables: TypeAlias = Mapping[str, TableState]
"""The tables of one log, by id."""
