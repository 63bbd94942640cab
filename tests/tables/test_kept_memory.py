"""What a handle that writes keeps does not follow the number of its commits."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pyarrow as pa

import objcat
from tests.effort import effort

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
KEPT_BYTES_MAX = 2_000
"""A commit. Of objects of Python: an entry that is kept whole, with what it was decoded to, is several times as much."""


def test_a_writer_keeps_next_to_nothing_of_each_commit(tmp_path: Path) -> None:
    table = objcat.connect(str(tmp_path)).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    commits = effort(120, with_all=2_000)

    def commit(slots: int) -> int:
        """Write so often, compacting now and then. Returns the bytes that are held afterwards."""
        for number in range(slots):
            table.upsert([{"id": number % 7, "value": "x"}])
            if number % 50 == 49:
                table.maintenance.compact()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        # Caches have their sizes, and a checkpoint was published, after the first of these.
        begun = commit(commits)
        kept = (commit(2 * commits) - begun) / (2 * commits)
    finally:
        tracemalloc.stop()
    assert kept < KEPT_BYTES_MAX, f"{kept:.0f} bytes of each commit are kept"
