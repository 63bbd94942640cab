"""One writing process of `test_partitions`: upserts rows of one city, and prints the slot of every acknowledged commit."""

from __future__ import annotations

import json
import sys

import objcat


def main() -> None:
    job = json.loads(sys.argv[1])
    table = objcat.connect(job["url"]).table("t")
    for number in range(job["commits"]):
        rows = [{"id": key, "city": job["city"], "v": number} for key in range(number, number + 20)]
        result = table.upsert(rows)
        print(json.dumps({"slot": result.slot, "attempts": result.attempts}), flush=True)


if __name__ == "__main__":
    main()
