"""Replaces ranges of two tables, each in one transaction, beside others: `python -m tests.tables.block_process JOB`.

JOB: JSON with `url`, `options`, `writer`, `seed`, `blocks` and `keys`. Prints the slot of each block.
"""

from __future__ import annotations

import json
import random
import sys

import objcat

NAMES = ("left", "right")


def main() -> None:
    job = json.loads(sys.argv[1])
    draw = random.Random(job["seed"])
    lake = objcat.connect(job["url"], job["options"])
    keys = job["keys"]
    for number in range(job["blocks"]):
        low = draw.randrange(keys)
        high = draw.randrange(low, keys)
        whole = draw.random() < 0.2
        stamp = f"{job['writer']}-{number}"
        rows = [{"id": key, "value": stamp, "note": None} for key in (range(keys) if whole else range(low, high + 1))]
        with lake.transaction() as tx:
            for name in NAMES:
                if whole:
                    tx[name].truncate()
                    tx[name].upsert(rows)
                else:
                    tx[name].replace_range(rows, where=f"id BETWEEN {low} AND {high}")
                tx[name].upsert_partial([{"id": low, "note": stamp}])
        assert tx.result is not None
        print(tx.result.slot, tx.result.attempts, flush=True)


if __name__ == "__main__":
    main()
