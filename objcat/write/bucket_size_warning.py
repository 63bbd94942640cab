"""What a user is told, once, when the buckets of a table have another size than they should: nothing is measured for it."""

from __future__ import annotations

import logging
from collections.abc import Collection

from objcat.metadata.files import FileGroup
from objcat.metadata.table_spec import TableSpec
from objcat.write.file_sizing import size_of

logger = logging.getLogger("objcat")

BUCKET_BYTES_MAX = 3 * 1000**3
"""A bucket is merged by one task: beyond this that takes long, and much memory."""
BUCKETS_MANY = 1000
BUCKET_BYTES_SMALL = 1024**2
"""So many buckets that hold less than this on average cost more to open than to read."""


class BucketSizeWarning:
    """Warns of buckets that are too large or too small, once. where: the table, for the sentence. Safe for many threads."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._said = False

    def look(self, groups: Collection[FileGroup], spec: TableSpec) -> None:
        """Judge the file groups that a write has found anyway."""
        if self._said or spec.is_keyless or spec.is_located or not groups:
            return
        sizes = {group.group_id: size_of(group) for group in groups}
        largest = max(sizes, key=lambda group_id: sizes[group_id])
        mean = sum(sizes.values()) / len(sizes)
        if sizes[largest] > BUCKET_BYTES_MAX:
            self._said = True
            logger.warning(
                "%s: %s holds %.1f GB, and buckets are best below 1 GB: give its partition more, with "
                "table.maintenance.split_buckets(partition=%r), and compact the table",
                self._where,
                largest,
                sizes[largest] / 1000**3,
                largest.partition,
            )
        elif len(sizes) >= BUCKETS_MANY and mean < BUCKET_BYTES_SMALL:
            self._said = True
            logger.warning(
                "%s: its %d buckets hold %.0f kB on average, so that opening them costs more than reading them: give a table like it "
                "fewer, index=objcat.BucketIndex.for_size(...), or partition it by less",
                self._where,
                len(sizes),
                mean / 1000,
            )
