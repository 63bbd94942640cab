"""`./dev bench mirrors`: what the mirrors of a table cost as Iceberg and as Delta, and how fast others read them. On local storage.

Slots, commits, scans by DuckDB and scans by Spark are parts that `--only` names.

Of tables of very many files only 16 file groups are real; entries name the others, as in `metadata_bench`. All that is measured of a mirror
is real. Each format of each size runs in a process of its own, on a copy of the table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import environment
from benchmarks.data import make_data
from benchmarks.metadata_bench import _apart
from benchmarks.mirror_scans import measure_scans
from benchmarks.mirror_spark import measure_spark_scans
from benchmarks.mirror_tables import BUCKETS_MAX, FORMATS, ROWS, begin, follow, make_mirrored
from benchmarks.mirror_writes import GOAL, measure_commits, verdict

PARTS = ("slots", "commits", "scans", "spark")
Figures = dict[str, dict[str, float]]


def measure_slots(place: Path, sizes: list[int], *, ids: int, rounds: int, say: Callable[[str], None]) -> dict[str, Figures]:
    """What slots of mirrors cost, by number of files and format, then by kind of slot. ids: rows of each real file group."""
    found = {}
    for files in sizes:
        made = place / f"files-{files}"
        say(f"making a table of {files:,} files")
        make_mirrored(str(made), files=files, ids=ids, say=say)
        for form in FORMATS:
            copied = place / f"files-{files}-copy"
            shutil.copytree(made, copied)
            say(f"{files:,} files, {form}")
            figures: Figures = {"begin": _apart(begin, str(copied), form)}
            figures |= _apart(follow, str(copied), min(files, BUCKETS_MAX), ids, rounds)
            found[f"{files:,} files, {form}"] = figures
            shutil.rmtree(copied)
        shutil.rmtree(made)
    return found


def _show(console: Console, title: str, figures: Figures) -> None:
    table = Table("what", "measured", title=title, title_justify="left")
    for what, of_what in figures.items():
        table.add_row(what, ", ".join(_said(name, value) for name, value in of_what.items()))
    console.print(table)


def _show_pairs(console: Console, title: str, figures: Figures) -> None:
    """Figures of `benchmarks.paired`: a line for each figure, with the median ratio and its interval."""
    table = Table("what", "figure", "one side, the other", "ratio", "between", title=title, title_justify="left")
    for what, of_what in figures.items():
        ratios = [
            name.removeprefix("ratio of ") for name in of_what if name.startswith("ratio of ") and not name.endswith((", low", ", high"))
        ]
        for figure in ratios:
            sides = ", ".join(
                f"{value:.3g}" for name, value in of_what.items() if name.endswith(f" {figure}") and not name.startswith("ratio")
            )
            low, median, high = (of_what[f"ratio of {figure}{end}"] for end in (", low", "", ", high"))
            table.add_row(what, figure, sides, f"{median:.3f}", f"{low:.3f} and {high:.3f}")
        if not ratios:
            table.add_row(what, ", ".join(f"{name} {value:,.0f}" for name, value in of_what.items()), "", "", "")
    console.print(table)


def _said(name: str, value: float) -> str:
    if name.startswith("request "):
        return f"{value:g} {name.removeprefix('request ')}"
    if "bytes" in name:
        return f"{name} {value / 1024:,.0f} KiB"
    return f"{name} {value:.3g}"


def main(arguments: list[str]) -> int:
    """Run the suite. Returns 0."""
    parser = argparse.ArgumentParser(prog="./dev bench mirrors", description="What mirrors cost, and how fast they are read.")
    parser.add_argument("--files", type=int, nargs="+", default=[100, 10_000, 1_000_000], help="sizes of the tables of many files")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind of slot and scan, and 20 pairs of commits; medians are shown")
    parser.add_argument("--scale", type=float, default=1.0, help="of TPC-H, for commits and scans")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part, or these")
    parser.add_argument("--json", metavar="FILE", help="write the figures and the environment to this file")
    chosen = parser.parse_args(arguments)
    console, parts, began = Console(), chosen.only or PARTS, environment.now()

    def say(text: str) -> None:
        console.print(f"[dim]{text}")

    results: dict[str, Mapping[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="objcat-bench-") as directory:
        if "slots" in parts:
            results["slots"] = measure_slots(Path(directory), chosen.files, ids=ROWS, rounds=chosen.rounds, say=say)
            for title, figures in results["slots"].items():
                _show(console, title, figures)
        if "commits" in parts:
            commits = measure_commits(Path(directory, "commits"), make_data(chosen.scale, say), chosen.rounds, say)
            results["commits"] = commits
            _show_pairs(console, "upserts of 1 % of orders, with mirrors and without", commits)
            for name, found in commits.items():
                for figure in ("seconds until acknowledged", "CPU of the process until acknowledged"):
                    console.print(f"{name}, {figure}: at most {GOAL}x is {verdict(found, figure)}")
        if "scans" in parts:
            scans = measure_scans(Path(directory, "scans"), make_data(chosen.scale, say), chosen.rounds, say)
            results["scans"] = scans
            _show(console, "scans by DuckDB", scans)
        if "spark" in parts:
            spark = measure_spark_scans(Path(directory, "spark"), make_data(chosen.scale, say), chosen.rounds, say)
            results["spark"] = spark
            _show_pairs(console, "scans by Spark and Iceberg, of the mirror and of Iceberg's own table", spark)
    if chosen.json:
        command = " ".join(["./dev bench mirrors", *arguments])
        told = {"environment": environment.machine(command, began=began), "settings": vars(chosen), "results": results}
        Path(chosen.json).write_text(json.dumps(told, indent=1) + "\n")
    return 0
