"""Snapshot, stream and one large transaction: what `objcat ingest once` takes for them, beside the floor."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import objcat
from benchmarks.ingest_sources import SOURCES, BenchSource, lake_digest
from benchmarks.measured import Took, measure
from benchmarks.paired import compared, in_turns

INGEST, FLOOR = "objcat ingest", "floor"
STREAM_ROWS = 100_000
"""Rows of the table whose changes are followed."""
GROWTH_MAX = 1.25
"""Of the peak memory with a transaction by that with one of half the rows: then it does not grow with the transaction."""


class LakeDiffers(Exception):
    """The lake does not have the rows of the source. Then there are no figures."""


def measure_snapshots(place: Path, kinds: list[str], *, rows: int, rounds: int, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """First snapshots of tables of orders, by kind of source: medians of both sides and their ratios."""
    found = {}
    for kind in kinds:
        with SOURCES[kind]() as source:
            say(f"snapshot, {kind}: making {rows:,} orders")
            source.fill(rows)
            expected = source.digest()
            pairs = []
            for turn in range(rounds):
                sides: dict[str, Callable[[], Mapping[str, float]]] = {
                    INGEST: partial(_snapshot, place / f"{kind}-{turn}", source, expected),
                    FLOOR: partial(_floor, place / f"{kind}-{turn}.parquet", source),
                }
                pairs.append(in_turns(sides, turn))
                took = pairs[-1][INGEST]
                say(f"snapshot, {kind}: round {turn + 1} of {rounds}, {took['rows a second']:,.0f} rows a second")
            found[kind] = {"rows": float(rows), **compared(pairs, INGEST, FLOOR)}
    return found


def _snapshot(folder: Path, source: BenchSource, expected: tuple[int, ...]) -> Mapping[str, float]:
    config = source.configure(folder, "snapshot")
    server_s = source.cpu_s()
    took = _once(config, source)
    figures = _per_second(took, source.rows, source.cpu_s() - server_s)
    _check(folder, expected)
    source.forget("snapshot")
    shutil.rmtree(folder)
    return figures


def _floor(target: Path, source: BenchSource) -> Mapping[str, float]:
    server_s = source.cpu_s()
    took = measure("benchmarks.ingest_floor", [source.kind, source.url, str(target)])
    if int(took.output) != source.rows:
        raise LakeDiffers(f"The floor read {took.output.strip()} rows, and the table has {source.rows}.")
    target.unlink()
    return _per_second(took, source.rows, source.cpu_s() - server_s)


def measure_streams(place: Path, kinds: list[str], *, changes: int, rounds: int, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """A backlog of changes that is taken in one run, by kind of source. CPU seconds of a run without changes are shown and subtracted."""
    found = {}
    for kind in kinds:
        with SOURCES[kind]() as source:
            source.fill(STREAM_ROWS)
            folder = place / f"stream-{kind}"
            config = source.configure(folder, "stream")
            _once(config, source)
            samples = []
            for turn in range(rounds):
                idle = _once(config, source)
                say(f"stream, {kind}: making {changes:,} changes")
                source.change(changes)
                server_s = source.cpu_s()
                took = _once(config, source)
                server_s = source.cpu_s() - server_s
                _check(folder, source.digest())
                samples.append(stream_sample(took, idle, changes, server_s))
                say(f"stream, {kind}: round {turn + 1} of {rounds}, {samples[-1]['changes for each CPU second']:,.0f} for each CPU second")
            found[kind] = {"changes": float(changes), **{name: statistics.median(one[name] for one in samples) for name in samples[0]}}
            source.forget("stream")
            shutil.rmtree(folder)
    return found


def stream_sample(took: Took, idle: Took, changes: int, server_s: float) -> dict[str, float]:
    """The figures of a run with changes. idle: one without, which is subtracted from the rates."""
    cpu_s = max(took.cpu_s - idle.cpu_s, 1e-9)
    return {
        "changes for each CPU second": changes / cpu_s,
        "changes a second": changes / max(took.seconds - idle.seconds, 1e-9),
        "CPU seconds": took.cpu_s,
        "CPU seconds without changes": idle.cpu_s,
        "CPU seconds of the server": server_s,
        "peak bytes": float(took.peak_bytes),
    }


def measure_memory(place: Path, kinds: list[str], *, rows: int, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """One transaction that changes every row of a table, by kind of source: peak memory, beside that of one with half the rows."""
    found = {}
    for kind in kinds:
        peaks: dict[int, float] = {}
        for size in (max(1, rows // 2), rows):
            with SOURCES[kind]() as source:
                say(f"memory, {kind}: making {size:,} orders")
                source.fill(size)
                folder = place / f"memory-{kind}"
                config = source.configure(folder, "memory")
                snapshot = _once(config, source)
                before = objcat.connect(str(folder / "lake")).table("shop.orders").refresh().slot
                say(f"memory, {kind}: changing {size:,} orders in one transaction")
                source.change_all()
                took = _once(config, source)
                _check(folder, source.digest())
                commits = _commits_with_rows(folder, before)
                if commits != 1:
                    raise LakeDiffers(f"One transaction of the source has become {commits} commits of the lake.")
                peaks[size] = float(took.peak_bytes)
                say(f"memory, {kind}: {size:,} rows, peak {took.peak_bytes / 1e6:,.0f} MB, {took.cpu_s:,.1f} CPU seconds, 1 commit")
                found[kind] = {
                    "rows": float(size),
                    "commits": float(commits),
                    "peak bytes": float(took.peak_bytes),
                    "peak bytes of its snapshot": float(snapshot.peak_bytes),
                    "CPU seconds": took.cpu_s,
                    "seconds": took.seconds,
                }
                shutil.rmtree(folder)
        small, large = peaks.values() if len(peaks) == 2 else (peaks[rows], peaks[rows])
        found[kind] |= {"peak bytes with half the rows": small, "growth of the peak": large / small}
    return found


def is_bounded(figures: Mapping[str, float]) -> bool:
    """Whether the peak of `measure_memory` does not grow with the transaction."""
    return figures["growth of the peak"] <= GROWTH_MAX


def _commits_with_rows(folder: Path, before: int) -> int:
    """How many slots after one changed rows of the table."""
    commits = objcat.connect(str(folder / "lake")).table("shop.orders").inspect.history().to_arrow().to_pylist()
    return sum(1 for one in commits if one["slot"] > before and one["rows"] and "source" in dict(one["metadata"]))


def _once(config: Path, source: BenchSource) -> Took:
    return measure("objcat.cli", ["ingest", "once", str(config), "--json"], environment=source.environment)


def _check(folder: Path, expected: tuple[int, ...]) -> None:
    here = lake_digest(folder / "lake")
    if here != expected:
        raise LakeDiffers(f"The source has {expected}, and the lake {here}.")


def _per_second(took: Took, rows: int, server_s: float) -> dict[str, float]:
    return {
        "rows a second": rows / took.seconds,
        "rows for each CPU second": rows / took.cpu_s,
        "CPU seconds": took.cpu_s,
        "CPU seconds of the server": server_s,
        "peak bytes": float(took.peak_bytes),
    }
