"""Compaction of a record index: log objects, one for each commit that added keys, are merged into its base files."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from objcat.metadata.key_index_table import BUCKET_FIELD, PARTITION_FIELD
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot
from objcat.timeline.entry import BUCKETS_MAX, FileGroupId

LOG_SHARE = 8
"""An index is rewritten when its log rows times this are as many as its base rows. So a row is rewritten about as often as the index
grows."""
LOG_OBJECTS_MAX = 32
"""Or when a newly opened writer would read so many log objects."""
ROWS_PER_OBJECT = 512 * 1024
"""A large index waits for more log objects: one for so many of its rows. So each commit that adds to it causes about that many rows to be
rewritten."""
LOG_OBJECTS_OF_LARGE_MAX = 256
"""But never more than this."""


def index_due(snapshot: Snapshot, manifests: Manifests, *, whole: bool = False, crowded: bool = False) -> tuple[FileGroupId, ...]:
    """The file groups of a table's index that a compaction takes along; none where there is no index, or little to merge.

    Args:
        whole: take all that have anything to merge.
        crowded: take them only where there are too many log objects.
    """
    if snapshot.index is None:
        return ()
    groups = snapshot.index.file_groups(manifests)
    bases = sum(group.base.rows for group in groups if group.base is not None)
    logs = sum(part.rows for group in groups for part in group.logs)
    objects = {part.object.path for group in groups for part in group.logs}
    is_crowded = len(objects) >= max(LOG_OBJECTS_MAX, min(LOG_OBJECTS_OF_LARGE_MAX, bases // ROWS_PER_OBJECT))
    has_grown = logs * LOG_SHARE >= bases and not crowded
    if not logs or not (whole or is_crowded or has_grown):
        return ()
    return tuple(group.group_id for group in groups if group.logs)


def of_live_groups(rows: pa.Table, live: Collection[FileGroupId]) -> pa.Table:
    """The rows of an index that point to live file groups. The others belong to groups that were removed whole."""
    partitions = rows.column(PARTITION_FIELD).combine_chunks().dictionary_encode()
    code = {text: number for number, text in enumerate(partitions.dictionary.to_pylist())}
    there = [code[group_id.partition] * BUCKETS_MAX + group_id.bucket for group_id in live if group_id.partition in code]
    buckets = np.asarray(rows.column(BUCKET_FIELD).to_numpy()).astype(np.int64)
    return rows.filter(pa.array(np.isin(np.asarray(partitions.indices).astype(np.int64) * BUCKETS_MAX + buckets, there)))
