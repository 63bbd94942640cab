"""The page of `./dev bench growth`: plots on two logarithmic axes, the figures, and how fast each operation grows, with the reason."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.day_bench import OTHERS

WORDS: Mapping[str, str] = {
    "commit": "commit: upsert of ten rows",
    "open": "open",
    "create": "create a table",
    "plan": "plan one partition",
    "plan_by_bounds": "plan all partitions by bounds",
    "lookup": "point lookup",
    "checkpoint": "checkpoint",
    "clean": "clean",
    "maintain": "maintain",
}
PANELS: Mapping[str, str] = {"seconds": "simulated seconds", "requests": "requests", "cpu_s": "CPU seconds"}
MEASURES: Mapping[str, str] = {"requests": "requests", "seconds": "simulated time", "bytes": "bytes", "cpu_s": "CPU"}
GROWS_ABOVE = 0.15
"""A slope of log over log above this, over the last two powers of ten, is no logarithm: that of a logarithm is 0.1 from 10,000 on."""
LEAST: Mapping[str, float] = {"requests": 8, "seconds": 0.1, "bytes": 30_000, "cpu_s": 0.1}
"""What is smaller than this at the largest size is not said to grow: a request more or less, or noise."""
_ONE_MANIFEST = "a manifest has about 16,000 files and is read whole; from there on a plan of one partition reads as many as before"
_DIGESTS = "the root of a checkpoint has the newest outcomes of transactions, and a digest for each 1,024 of the older ones"
_ALL_MANIFESTS = "the bounds of every file are looked at, so every manifest is read, one for about 16,000 files, many at once"
REASONS: Mapping[tuple[str, str], str] = {
    ("files", "plan"): _ONE_MANIFEST,
    ("files", "lookup"): _ONE_MANIFEST,
    ("files", "plan_by_bounds"): _ALL_MANIFESTS,
    ("files", "open"): "the root of a checkpoint names every manifest, one for about 16,000 files",
    ("files", "checkpoint"): "the root of a checkpoint names every manifest, one for about 16,000 files",
    ("files", "clean"): "it reads the manifests of the files that it expires, as a plan does",
    ("files", "maintain"): "it asks of every file group whether something is due, so every manifest is read",
    ("partitions", "plan"): _ONE_MANIFEST,
    ("partitions", "lookup"): _ONE_MANIFEST,
    ("partitions", "plan_by_bounds"): _ALL_MANIFESTS,
    ("partitions", "checkpoint"): "the manifest of a changed file is written again, and has about 16,000 files",
    ("partitions", "clean"): "it reads the manifests of the files that it expires, as a plan does",
    ("partitions", "maintain"): "it asks of every file group whether something is due, so every manifest is read",
    ("commits", "open"): _DIGESTS,
    ("commits", "clean"): _DIGESTS,
    ("commits", "maintain"): _DIGESTS,
    ("commits", "checkpoint"): "this one merges eight segments of outcomes of transactions, as one in 64 checkpoints does",
    ("tables", "open"): "the names of a lake are one object, about 200 bytes for each table, which is read whole and once by a process",
}
AXES: Mapping[str, str] = {
    "files": (
        "Each partition has 1,000 files, so the number of partitions grows too. The run was ended at the clean of 10,000,000, whose "
        "preparation plans all files eight times."
    ),
    "commits": "16 files; each commit replaces one. Clean, archiving and the expiry of checkpoints run every 256 slots.",
    "partitions": "Each partition has one file.",
    "tables": "A lake with so many names, and the same small table each time, which is found by its name.",
}
HEAD = """\
# Growth

This page shows what operations cost beside more and more files, commits, partitions and tables.
`./dev bench growth` made it; [performance](../../docs/performance.md) has the summary.

The code is real, and the store is simulated.
It is in memory, and charges each request 20 ms and the time of its bytes at 100 MB/s.
Requests that a process would send at once are charged once, with at most 32 under way.
Simulated seconds are those until the call returns, without CPU; requests include what goes on in the background.
Data files are not there, except those of one file group; entries, manifests and checkpoints are written by the code that tables use.
CPU seconds are of one call on a slow, busy machine, so only their growth means something.
Memory is the most that the process held beyond what it held before, less what it could take of memory that it had freed: a lower bound.
pyiceberg runs on the same store with a catalog in memory, whose requests are not counted; it appends where objcat upserts.
deltalake is not here: its store is inside of its library, and takes no clock.

A checkpoint ends with a hint, which waits until a second after the one before.
To create a table takes 20 round trips in sequence, the check of the store among them.
A log is archived as it grows, a tombstone for each commit; the first round of a log of 10,000 commits that never was wrote 9,057 of them.
"""
DAY = """\
Nine of ten commits go to tables of the writer alone, the others to ten tables that all write to.
Every 20 minutes all writers are ready at once, for one of these ten.
The store answers in 20 ms, more or less, and refuses what exceeds published limits with 503.
These are 3,500 writes and 5,500 reads a second, as S3 has them for a prefix; here one prefix holds all tables.
Google's limit of one write a second to an object holds too, and Azure's of 20,000 requests a second.
Commits, checkpoints and hints are real; the bytes of data files are not, and compaction is not part of it."""
PRICES = """\
Prices are list prices of S3 Standard in us-east-1: $0.005 for 1,000 PUT or LIST, $0.0004 for 1,000 GET.
They and the limits come from pages about the stores, read in 2026, and not from the vendors' own.
Files of 128 MB go up in 16 parts, and cost every side the same.
The requests of the others are the least that their formats ask for, without a conflict; they were not measured here:
"""


def value(result: Mapping[str, Any], measure: str) -> float:
    """A figure of one result."""
    if measure == "requests":
        return float(sum(result["requests"].values()))
    return float(result["bytes_read"] + result["bytes_written"] if measure == "bytes" else result[measure])


def lines_of(results: Sequence[Mapping[str, Any]], measure: str) -> dict[str, list[tuple[float, float]]]:
    """The points of each operation, by its name."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        lines.setdefault(name_of(result), []).append((result["size"], value(result, measure)))
    return lines


def name_of(result: Mapping[str, Any]) -> str:
    """The operation in words, with the side unless that is objcat."""
    words = WORDS[result["operation"]]
    if result["side"] == "objcat":
        return words
    return f"{result['side']}, {'append of one file' if result['operation'] == 'commit' else words}"


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of log cost over log size, by least squares over the last two powers of ten. None with fewer than two points."""
    last = max((size for size, _ in points), default=0)
    logs = [(math.log(size), math.log(cost)) for size, cost in points if cost > 0 and size * 100 >= last]
    if len(logs) < 2:
        return None
    mean_x, mean_y = (sum(point[axis] for point in logs) / len(logs) for axis in (0, 1))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def grows(points: Sequence[tuple[float, float]], measure: str) -> bool:
    """Whether a cost grows faster than the logarithm of the size, and is large enough to say so."""
    slope = exponent(points)
    return slope is not None and slope > GROWS_ABOVE and max(points)[1] >= LEAST[measure]


def write(page: Path, figures: Mapping[str, Mapping[str, Any]], day: Mapping[str, Any] | None = None) -> None:
    """Write the page, and a plot for each axis next to it. day: figures of `./dev bench day`."""
    parts = [HEAD]
    for axis, measured in figures.items():
        plot = page.with_name(f"{page.stem}-{axis}.svg")
        panels = {title: lines_of(measured["results"], measure) for measure, title in PANELS.items()}
        plot.write_text(plots.growth(panels, axis))
        parts.append("\n".join(_axis(axis, measured, plot.name)))
    if day is not None:
        parts.append("\n".join(_day(day)))
    page.write_text("\n".join(parts))


def _axis(axis: str, measured: Mapping[str, Any], plot: str) -> Iterator[str]:
    results = measured["results"]
    last = max(result["size"] for result in results)
    yield f"## {axis.capitalize()}\n\n{AXES[axis]}\nThe largest size that was reached is {last:,}.\n\n![Growth beside {axis}]({plot})\n"
    yield f"At the largest size, {last:,} {axis} where nothing else is said:\n"
    yield "| operation | requests | round trips in sequence | read, written | simulated | CPU | memory |\n|---|---|---|---|---|---|---|"
    for name, result in {name_of(result): result for result in results}.items():
        at = "" if result["size"] == last else f", at {result['size']:,}"
        asked = ", ".join(f"{number:,} {kind}" for kind, number in sorted(result["requests"].items())) or "none"
        moved = f"{result['bytes_read'] / 1000:,.0f} kB, {result['bytes_written'] / 1000:,.0f} kB"
        spent = f"{result['seconds']:.2f} s | {result['cpu_s']:.3f} s | {result['peak_bytes'] / 2**20:,.0f} MiB"
        yield f"| {name}{at} | {asked} | {result['trips']} | {moved} | {spent} |"
    yield "\nExponents, which are slopes of log cost over log size over the last two powers of ten:\n"
    yield f"| operation | {' | '.join(MEASURES.values())} | faster than the logarithm |\n|---|{'---|' * len(MEASURES)}---|"
    for name, result in {name_of(result): result for result in results}.items():
        slopes, growing = [], []
        for measure, words in MEASURES.items():
            points = lines_of(results, measure)[name]
            slope = exponent(points)
            slopes.append("" if slope is None else f"{slope:.2f}".replace("-0.00", "0.00"))
            growing += [words] if grows(points, measure) else []
        reason = REASONS.get((axis, result["operation"]), "not explained") if result["side"] == "objcat" else ""
        yield f"| {name} | {' | '.join(slopes)} | {', '.join(growing)}{': ' if growing and reason else ''}{reason if growing else ''} |"
    told = measured["environment"]
    yield f"\n`{told['command']}`, tree {told['tree']}, {told['began']}, {told['machine']}.\n"


def _day(figures: Mapping[str, Any]) -> Iterator[str]:
    result, told = figures["result"], figures["environment"]
    shape = result["shape"]
    refused = ", ".join(f"{number:,} by {limit.replace('_', ' ')}" for limit, number in result["refused"].items()) or "none"
    yield f"## A day\n\n{shape['writers']} writers write 10 TB a day to {shape['tables']:,} tables in files of 128 MB, each a commit."
    yield DAY
    yield f"Of the day {shape['hours']:g} hours were simulated, at its full rate; requests and prices are scaled to 24.\n"
    yield "| what | measured |\n|---|---|"
    yield f"| commits that were acknowledged | {result['commits']:,} |"
    yield f"| of them not in the log of their table, at their slot | {result['lost']:,} |"
    yield f"| entries that no writer was told of | {result['strange']:,} |"
    yield f"| writes with an unknown outcome; writes that gave up | {result['unknown']:,}; {result['gave_up']:,} |"
    spent = " s, ".join(f"{result[f'commit_s_{which}']:.2f}" for which in ("median", "p99", "max"))
    yield f"| commit after its file is there: median, 99th percentile, longest | {spent} s |"
    yield f"| write with its file: median, longest | {result['write_s_median']:.1f} s, {result['write_s_max']:.1f} s |"
    yield f"| slots lost to other writers | {result['slots_lost']:,} |"
    yield f"| requests answered with 503 | {refused} |"
    kinds = ("PUT", "GET", "HEAD", "LIST", "DELETE")
    yield f"\nRequests of a day, in thousands, without those for data files:\n\n| side | {' | '.join(kinds)} | price |"
    yield f"|---|{'---|' * len(kinds)}---|"
    for side, bill in figures["bills"].items():
        counts = " | ".join(f"{bill.get(kind, 0) / 1000:,.0f}" if bill.get(kind) else "" for kind in kinds)
        yield f"| {side} | {counts} | ${bill['dollars']:,.2f} |"
    yield f"\n{PRICES}"
    for side, (_, how) in OTHERS.items():
        yield f"- {side}: an append {how}."
    yield f"\n`{told['command']}`, tree {told['tree']}, {told['began']}, {told['machine']}, {result['cpu_s']:.0f} s of CPU.\n"
