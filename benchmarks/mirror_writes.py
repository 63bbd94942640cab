"""What mirrors add to the commits of the process that follows them: the wall time of the commit itself, and CPU in the background."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from benchmarks.data import Data
from benchmarks.works import BUCKETS
from objcat.metadata.properties import MIRRORS

SIDES: Mapping[str, Mapping[str, str]] = {"off": {}, "Iceberg": {MIRRORS: "iceberg"}, "Delta": {MIRRORS: "delta"}}
IN_A_ROW = 5


def orders_table(lake: objcat.Lake, name: str, data: Data, properties: Mapping[str, str]) -> objcat.Table:
    """TPC-H's orders, as the other suites have it: 16 buckets, merge-on-read."""
    rows = pq.read_table(data.source("orders"))
    fields = [field.with_nullable(field.name != "o_orderkey") for field in rows.schema]
    table = lake.create_table(name, pa.schema(fields), key=["o_orderkey"], index=objcat.BucketIndex(BUCKETS), properties=dict(properties))
    table.insert(rows.cast(pa.schema(fields)))
    table.maintenance.mirror()
    return table


def measure_commits(place: Path, data: Data, rounds: int, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Upserts of 1 % of orders, of tables with and without mirrors, in turns.

    Returns, by side, seconds of the commit, seconds until its mirror is there, CPU of the process for both, seconds of each of five
    commits in a row, and ratios to the side without mirrors: medians over the pairs of a round.
    """
    lake = objcat.connect(place)
    say("making the tables of orders")
    tables = {name: orders_table(lake, f"db.orders_{name.lower()}", data, properties) for name, properties in SIDES.items()}
    batch = pq.read_table(data.batch("orders", "one"))
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    for turn in range(rounds + 1):
        names = list(SIDES)[:: 1 if turn % 2 else -1]
        for name in names:
            sample = _one(tables[name], batch, has_mirror=bool(SIDES[name]))
            sample["seconds of one in a row"], sample["CPU seconds of one in a row"] = _row(tables[name], batch, bool(SIDES[name]))
            if turn:
                taken[name].append(sample)
        if turn % 4 == 3:
            for table in tables.values():
                table.maintenance.compact()
                _settle(table)
        say(f"round {turn} of {rounds}")
    found: dict[str, dict[str, float]] = {}
    for name, samples in taken.items():
        found[name] = {figure: statistics.median([sample[figure] for sample in samples]) for figure in samples[0]}
        if name != "off":
            pairs = list(zip(samples, taken["off"], strict=True))
            for figure in samples[0]:
                ratios = [mine[figure] / other[figure] for mine, other in pairs if other[figure]]
                if ratios:
                    found[name] |= {
                        f"ratio of {figure}": statistics.median(ratios),
                        f"least ratio of {figure}": min(ratios),
                        f"greatest ratio of {figure}": max(ratios),
                    }
    return found


def _one(table: objcat.Table, batch: pa.Table, *, has_mirror: bool) -> dict[str, float]:
    """One commit with nothing under way, then its mirror."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    table.upsert(batch)
    commit_s = time.perf_counter() - began_s
    if has_mirror:
        _settle(table)
    return {
        "commit seconds": commit_s,
        "seconds until mirrored": time.perf_counter() - began_s,
        "CPU seconds": time.process_time() - began_cpu_s,
    }


def _row(table: objcat.Table, batch: pa.Table, has_mirror: bool) -> tuple[float, float]:
    """Commits one after the other, while earlier ones are mirrored. Returns seconds and CPU seconds of each."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(IN_A_ROW):
        table.upsert(batch)
    seconds = (time.perf_counter() - began_s) / IN_A_ROW
    if has_mirror:
        _settle(table)
    return seconds, (time.process_time() - began_cpu_s) / IN_A_ROW


def _settle(table: objcat.Table) -> None:
    """Wait for the mirrors."""
    for report in table.maintenance.mirror():
        if report.lag or report.held:
            raise AssertionError(f"The mirror did not follow: {report}")
