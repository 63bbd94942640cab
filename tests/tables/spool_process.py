"""Runs a block with many rows: `python -m tests.tables.spool_process URL HOW MEMORY_BYTES ROWS`.

HOW: "stream" (one upsert of a generator), "calls" (many upserts), "partial" (an upsert_partial of a generator), or "die" (it waits to be
killed before the block ends).
Prints by how many bytes the peak of the resident memory grew while the block was open and committed.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import objcat
from fileio.env import SystemEnv

STEP = 50_000
TEXT_BYTES = 112
ROW_BYTES = TEXT_BYTES + 16 + 4
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("v", pa.int64())])


def batches(count: int) -> Iterator[pa.RecordBatch]:
    for begin in range(0, count, STEP):
        keys = pa.array(np.arange(begin, min(count, begin + STEP)))
        text = pc.utf8_lpad(keys.cast(pa.string()), TEXT_BYTES, "x")
        yield pa.record_batch([keys, text, keys], schema=SCHEMA)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    url, how, memory, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    lake = objcat.connect(url, env=SystemEnv(memory_bytes=memory))
    settings: dict[str, Any] = {
        "key": ["id"],
        "index": objcat.BucketIndex(4),
        "shared_log": "shop",
        "properties": {"target_log_bytes": str(8 * 1024**2)},
    }
    for name in ("small", "large"):
        lake.create_table(name, SCHEMA, **settings)
    with lake.transaction() as tx:
        tx["small"].upsert(batches(1000))
        tx["large"].truncate()
        tx["large"].upsert(batches(1000))
    before = peak()
    with lake.transaction() as tx:
        tx["small"].upsert(batches(1000))
        if how == "calls":
            for batch in batches(count):
                tx["large"].upsert(batch)
        elif how == "partial":
            tx["large"].upsert_partial(batch.select(["id", "text"]) for batch in batches(count))
        else:
            tx["large"].upsert(batches(count))
        if how == "die":
            print("spooled", flush=True)
            time.sleep(600)
    print(peak() - before, flush=True)


if __name__ == "__main__":
    main()
