"""The state of a table as of one slot: the manifests of a checkpoint, and what entries changed since."""

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
    """One table as of one slot; small, however many files it has.

    bucket_counts: of partitions that were split, as they are now. manifest: the shards of the checkpoint that it stands on. overlay: what
    entries since that checkpoint changed, by the file group that they addressed. index: the record index of the table, where it has one.
    erasures: those whose partitions the log did not mention any more when the table was folded from its creation on.
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
