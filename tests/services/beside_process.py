"""One process of `test_beside`: a writer that goes on whatever services do, or a service that comes again until a file says stop."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import objcat
from objcat.errors import CommitConflict, SnapshotExpired


def write(table: objcat.Table, job: dict[str, Any]) -> None:
    """Prints every commit. The keys are the writer's own: so the last value of each is known, whatever others write."""
    chance = random.Random(job["seed"])
    for turn in range(job["turns"]):
        keys = chance.sample(range(job["number"], job["number"] + 10 * job["keys"], 10), 5)
        done = table.upsert([{"id": key, "v": turn} for key in keys])
        print(json.dumps({"slot": done.slot, "attempts": done.attempts, "rows": dict.fromkeys(keys, turn)}), flush=True)


def append(table: objcat.Table, job: dict[str, Any]) -> None:
    """Writes to a table without a key: rows of one partition, and now and then a small file group in another one, for services to join.

    Prints every commit; of the other partitions without how often it was tried: whoever adds to a group that ends meanwhile tries again.
    """
    for turn in range(job["turns"]):
        first = 10 * (job["turns"] * job["number"] + turn)
        rows = [{"id": first + i, "v": turn, "part": "now"} for i in range(5)]
        done = table.insert(rows)
        print(json.dumps({"slot": done.slot, "attempts": done.attempts, "rows": {row["id"]: row["v"] for row in rows}}), flush=True)
        if turn % 2:
            apart = [{"id": first + 5 + i, "v": turn, "part": f"former {turn // 2 % 2}"} for i in range(5)]
            slot = table.bulk_insert(apart).slot
            print(json.dumps({"slot": slot, "rows": {row["id"]: row["v"] for row in apart}}), flush=True)


def serve(table: objcat.Table, job: dict[str, Any]) -> None:
    saved: list[int] = []

    def save() -> None:
        done = table.maintenance.savepoint()
        if done is not None:
            saved.append(done.saved)
        if len(saved) > 3:
            table.maintenance.release_savepoint(slot=saved.pop(0))

    services: dict[str, Callable[[], object]] = {
        "compact": table.maintenance.compact,
        "newest": lambda: table.maintenance.compact(strategy=objcat.CompactionStrategy(io_bytes_max=1)),
        "plan": table.maintenance.schedule_compaction,
        "execute": table.maintenance.execute_scheduled,
        "clean": lambda: table.maintenance.clean(keep_slots=10),
        "save": save,
        "cluster": lambda: table.maintenance.cluster(where="part != 'now'"),
        "maintain": lambda: table.maintenance.run(io_bytes_max=10**7),
    }
    stop = Path(job["stop"])
    print(json.dumps({"serves": job["services"]}), flush=True)
    while not stop.exists():
        for name in job["services"]:
            try:
                services[name]()
            except (CommitConflict, SnapshotExpired) as error:
                # Services yield, to writers and to one another.
                print(json.dumps({"yielded": name, "why": str(error)}), flush=True)


def main() -> None:
    job = json.loads(sys.argv[1])
    table = objcat.connect(job["url"]).table("t")
    {"write": write, "append": append, "serve": serve}[job["does"]](table, job)


if __name__ == "__main__":
    main()
