"""Logs one warning when the buckets of a table are much too large or too small. Sizes come from metadata."""

from __future__ import annotations

import logging
from collections.abc import Collection

from objcat.metadata.files import FileGroup
from objcat.metadata.table_spec import TableSpec
from objcat.write.file_sizing import size_of

logger = logging.getLogger("objcat")

BUCKET_BYTES_MAX = 3 * 1000**3
"""One task merges a bucket. A larger bucket takes long, and much memory."""
BUCKETS_MANY = 1000
BUCKET_BYTES_SMALL = 1024**2
"""If `BUCKETS_MANY` buckets hold less than this on average, opening them costs more than reading them."""


class BucketSizeWarning:
    """Warns once about buckets that are too large or too small. Thread-safe.

    where: the table, as the message names it.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._warned = False

    def look(self, groups: Collection[FileGroup], spec: TableSpec) -> None:
        """Check the file groups that a write has read anyway."""
        if self._warned or not spec.has_key or spec.is_located or not groups:
            return
        sizes = {group.group_id: size_of(group) for group in groups}
        largest = max(sizes, key=lambda group_id: sizes[group_id])
        mean = sum(sizes.values()) / len(sizes)
        if sizes[largest] > BUCKET_BYTES_MAX:
            self._warned = True
            logger.warning(
                "%s: %s holds %.1f GB, and buckets work best below 1 GB. Call table.maintenance.split_buckets(partition=%r), and "
                "compact the table.",
                self._where,
                largest,
                sizes[largest] / 1000**3,
                largest.partition,
            )
        elif len(sizes) >= BUCKETS_MANY and mean < BUCKET_BYTES_SMALL:
            self._warned = True
            logger.warning(
                "%s: its %d buckets hold %.0f kB on average, so opening them costs more than reading them. Create such tables with "
                "fewer buckets, index=objcat.BucketIndex.for_size(...), or with coarser partitions.",
                self._where,
                len(sizes),
                mean / 1000,
            )
