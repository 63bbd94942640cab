"""An ingest of topics is killed again and again while transactions come and are given up; afterwards every record has one row."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from devkit.paths import ROOT
from tests.ingest import topic_load
from tests.ingest.killing import KilledRun, kill_once, run_to_the_end
from tests.ingest.topic_shop import TopicShop

SOURCE = """
format = "json"
[[source.topic]]
topics = '.*\\.events'
key_format = "none"
columns = {n = "int64", by = "int64", is_given_up = "bool", text = "string"}
[[source.topic]]
topics = ".*"
columns = {id = "int64", n = "int64", by = "int64", is_given_up = "bool", balance = "int64"}
"""
ROUTES = """
[[route]]
tables = "{prefix}\\\\.events"
to = "shop.events"

[[route]]
tables = "{prefix}\\\\.(.*)"
to = "shop.\\\\1"
key = ["id"]
"""


def killed_topics(shop: TopicShop, folder: Path, seed: int, *, kills: int, bug: str | None = None, pause_s: float = 0.03) -> KilledRun:
    """Kill an ingest of topics so many times, then compare and delete the topics.

    Args:
        shop: without topics.
        folder: for the files of the load.
        seed: of the load and of the moments of the kills.
        kills: how many.
        bug: a planted one, see `tests/ingest/planted_topics.py`.
        pause_s: between two transactions of each of the three writers.
    """
    drawn = random.Random(seed)
    found = KilledRun()
    stop = folder / "stop"
    try:
        for name, partitions in topic_load.PARTITIONS.items():
            shop.make(name, partitions=partitions)
        shop.configure(source=SOURCE, routes=ROUTES, run="idle_commit_s = 1")
        command = [sys.executable, "-m", topic_load.__name__, shop.source_url, str(seed), str(stop), str(pause_s)]
        writers = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        before = -1
        try:
            for _ in range(kills):
                before = kill_once(shop, found, drawn, before, bug, streams=True)
        finally:
            stop.touch()
            said, _ = writers.communicate(timeout=60)
        found.transactions = int(said)
        run_to_the_end(shop, found, bug)
        compare_topics(shop, found)
    finally:
        shop.close()
    return found


def compare_topics(shop: TopicShop, found: KilledRun) -> None:
    """Compare the last value of every key, and every record of the topic whose table has a row for each."""
    for name in ("accounts", "wallets"):
        differences = shop.differences(name)
        found.problems += differences[:5]
        if len(differences) > 5:
            found.problems.append(f"and {len(differences) - 5} more of {name}")
        rows = shop.rows(name)
        found.rows += len(rows)
        found.problems += [f"{name} has {row}, which was given up" for row in rows if row["is_given_up"]][:5]
    there = Counter(
        (row["by"], row["n"], row["text"]) for row in (json.loads(message.value() or b"") for message in shop.messages("events"))
    )
    here = Counter((row["by"], row["n"], row["text"]) for row in shop.rows("events"))
    found.rows += here.total()
    found.problems += [
        f"events {one}: {count} times in the topic, {here[one]} in the lake" for one, count in there.items() if here[one] != count
    ][:5]
    found.problems += [f"events {one}: only in the lake" for one in here if one not in there][:5]
    if dead := shop.dead():
        found.problems.append(f"{len(dead)} dead letters, such as {dead[0]}")
