"""One writing process of `test_processes`: upserts and deletes overlapping keys, and prints every acknowledged commit as a line of JSON."""

from __future__ import annotations

import json
import random
import sys

import objcat


def main() -> None:
    job = json.loads(sys.argv[1])
    chance = random.Random(job["seed"])
    table = objcat.connect(job["url"], job["options"]).table(job["table"])
    for number in range(job["commits"]):
        keys = chance.sample(range(job["keys"]), 20)
        if number % 5 == 4:
            result = table.delete([{"id": key} for key in keys[:5]])
            written: dict[int, str | None] = dict.fromkeys(keys[:5])
        else:
            value = f"writer {job['writer']} commit {number}"
            write = table.insert if number % 3 == 2 else table.upsert
            result = write([{"id": key, "value": value} for key in keys])
            written = dict.fromkeys(keys, value)
        print(json.dumps({"slot": result.slot, "txn": result.txn, "written": written}), flush=True)


if __name__ == "__main__":
    main()
