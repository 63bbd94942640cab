"""What mirrors add to the commits of the process that follows them: until the commit is acknowledged, and in the background.

A pair is two tables of the same rows, one with mirrors and one without, each of which takes the same upsert. Nothing of objcat is under way
when a sample begins. There is a pair without mirrors on both sides as well: its ratio shows what the machine makes of nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from benchmarks.data import Data
from benchmarks.paired import compared, in_turns
from benchmarks.works import BUCKETS
from objcat.metadata.properties import AUTO_CLEAN, MIRRORS

PAIRS: Mapping[str, Mapping[str, str]] = {"control": {}, "Iceberg": {MIRRORS: "iceberg"}, "Delta": {MIRRORS: "delta"}}
"""By name: the properties of one side. The other side has none."""
PAIRS_OF_ROUND = 20
ROWS_OF_ROUND = 2
"""How often a round measures commits that follow each other."""
IN_A_ROW = 5
GOAL = 1.05
"""Of a commit with mirrors by one without, until it is acknowledged."""
OFF, ON = "without", "with mirrors"


def orders_table(lake: objcat.Lake, name: str, data: Data, properties: Mapping[str, str]) -> objcat.Table:
    """TPC-H's orders, as the other suites have it: 16 buckets, merge-on-read."""
    rows = pq.read_table(data.source("orders"))
    fields = [field.with_nullable(field.name != "o_orderkey") for field in rows.schema]
    table = lake.create_table(name, pa.schema(fields), key=["o_orderkey"], index=objcat.BucketIndex(BUCKETS), properties=dict(properties))
    table.insert(rows.cast(pa.schema(fields)))
    table.maintenance.mirror()
    return table


def measure_commits(place: Path, data: Data, rounds: int, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Upserts of 1 % of orders, with and without mirrors, in pairs. The tables are compacted after each round.

    Returns, by pair, medians of both sides and ratios with their intervals: of seconds, CPU of the thread that commits and CPU of the
    process until the commit is acknowledged, of seconds and CPU until its mirror is there, and of commits in a row.
    """
    lake = objcat.connect(place)
    say("making the tables of orders")
    tables = {name: _pair(lake, name, data, properties) for name, properties in PAIRS.items()}
    batch = pq.read_table(data.batch("orders", "one"))
    taken: dict[str, list[dict[str, Mapping[str, float]]]] = {name: [] for name in PAIRS}
    rows: dict[str, list[dict[str, Mapping[str, float]]]] = {name: [] for name in PAIRS}
    for turn in range((rounds + 1) * PAIRS_OF_ROUND):
        for name, pair in tables.items():
            sample = in_turns({side: partial(_one, table, batch) for side, table in pair.items()}, turn)
            if turn >= PAIRS_OF_ROUND:
                taken[name].append(sample)
        if turn % PAIRS_OF_ROUND == PAIRS_OF_ROUND - 1:
            for name, pair in tables.items():
                for number in range(ROWS_OF_ROUND):
                    rows[name].append(in_turns({side: partial(_row, table, batch) for side, table in pair.items()}, number))
                for table in pair.values():
                    table.maintenance.compact()
                    _settle(table)
            say(f"round {turn // PAIRS_OF_ROUND} of {rounds}")
    return {name: {**compared(taken[name], ON, OFF), **compared(rows[name][ROWS_OF_ROUND:], ON, OFF)} for name in PAIRS}


def verdict(found: Mapping[str, float], figure: str) -> str:
    """Whether a ratio meets the goal, in words."""
    low, high = found[f"ratio of {figure}, low"], found[f"ratio of {figure}, high"]
    return "met" if high <= GOAL else "not met" if low > GOAL else "undecided"


def _pair(lake: objcat.Lake, name: str, data: Data, properties: Mapping[str, str]) -> dict[str, objcat.Table]:
    """The two sides. Nothing but their mirrors works in the background."""
    both = {OFF: {}, ON: properties}
    return {
        side: orders_table(lake, f"db.{name}_{number}".lower(), data, {AUTO_CLEAN: "false", **own})
        for number, (side, own) in enumerate(both.items())
    }


def _one(table: objcat.Table, batch: pa.Table) -> dict[str, float]:
    """One commit, with nothing under way before it, and then its mirror."""
    began_s, began_cpu_s, began_thread_s = time.perf_counter(), time.process_time(), time.thread_time()
    table.upsert(batch)
    thread_s, cpu_s, seconds = time.thread_time() - began_thread_s, time.process_time() - began_cpu_s, time.perf_counter() - began_s
    _settle(table)
    return {
        "seconds until acknowledged": seconds,
        "CPU of the thread until acknowledged": thread_s,
        "CPU of the process until acknowledged": cpu_s,
        "seconds until mirrored": time.perf_counter() - began_s,
        "CPU of the process until mirrored": time.process_time() - began_cpu_s,
    }


def _row(table: objcat.Table, batch: pa.Table) -> dict[str, float]:
    """Commits one after the other, while earlier ones are mirrored."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(IN_A_ROW):
        table.upsert(batch)
    seconds = (time.perf_counter() - began_s) / IN_A_ROW
    _settle(table)
    return {
        "seconds of each in a row": seconds,
        "CPU of the process of each in a row": (time.process_time() - began_cpu_s) / IN_A_ROW,
    }


def _settle(table: objcat.Table) -> None:
    """Wait for the mirrors."""
    for report in table.maintenance.mirror():
        if report.lag or report.held:
            raise AssertionError(f"The mirror did not follow: {report}")
