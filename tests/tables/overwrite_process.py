"""The busy process of `test_overwrite_processes`: upserts rows of one partition without rest, until a line on its input ends it.

It prints each acknowledged commit as a line of JSON.
"""

from __future__ import annotations

import json
import select
import sys

import objcat


def main() -> None:
    job = json.loads(sys.argv[1])
    table = objcat.connect(job["url"], job["options"]).table("t")
    number = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        key = job["first"] + number
        slot = table.upsert([{"id": key, "city": job["city"], "v": number}]).slot
        print(json.dumps({"slot": slot, "id": key, "v": number}), flush=True)
        number += 1


if __name__ == "__main__":
    main()
