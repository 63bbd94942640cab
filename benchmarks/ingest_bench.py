"""`./dev bench ingest`: how fast a database comes into a lake, and how late its changes are there. On local storage.

Lag, snapshot, stream and memory are parts that `--only` names. Databases are real servers on loopback. A part that fails says why, the
others go on, and the command ends with 1.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import environment
from benchmarks.ingest_lag import LagFailed, measure_lag, verdict
from benchmarks.ingest_peers import NOT_MEASURED, PEERS
from benchmarks.ingest_sources import SOURCES
from benchmarks.ingest_works import (
    GROWTH_MAX,
    LakeDiffers,
    is_bounded,
    measure_memory,
    measure_snapshots,
    measure_streams,
)
from benchmarks.measured import RunFailed
from devkit.install import InstallError
from devkit.servers import ServerError

PARTS = ("lag", "snapshot", "stream", "memory")
LAG_ROWS, SNAPSHOT_ROWS, STREAM_CHANGES = 1_000_000, 5_000_000, 500_000
FAILURES = (LagFailed, LakeDiffers, RunFailed, ServerError, InstallError, OSError)
Figures = dict[str, dict[str, float]]
Say = Callable[[str], None]


def _lag(place: Path, chosen: argparse.Namespace, say: Say) -> Figures:
    figures = measure_lag(
        place, changes_a_second=chosen.rate, seconds=chosen.seconds, rows=chosen.rows or LAG_ROWS, say=say
    )  # fmt: skip
    return {"mariadb": figures}


def _snapshot(place: Path, chosen: argparse.Namespace, say: Say) -> Figures:
    return measure_snapshots(place, chosen.sources, rows=chosen.rows or SNAPSHOT_ROWS, rounds=chosen.rounds, say=say)


def _stream(place: Path, chosen: argparse.Namespace, say: Say) -> Figures:
    changes = chosen.rows or STREAM_CHANGES
    found = measure_streams(place, chosen.sources, changes=changes, rounds=chosen.rounds, say=say)
    for title, measured in (PEERS[name] for name in chosen.peers if name in PEERS):
        try:
            found[title] = measured(place, changes=changes, rounds=chosen.rounds, say=say)
        except FAILURES as error:
            say(f"stream, {title}: no figures. {type(error).__name__}: {error}")
    for name, why in NOT_MEASURED.items():
        say(f"stream, {name}: not measured. {why}.")
    return found


def _memory(place: Path, chosen: argparse.Namespace, say: Say) -> Figures:
    return measure_memory(place, chosen.sources, rows=chosen.rows or SNAPSHOT_ROWS, say=say)


_MEASURES: Mapping[str, Callable[[Path, argparse.Namespace, Say], Figures]] = {
    "lag": _lag,
    "snapshot": _snapshot,
    "stream": _stream,
    "memory": _memory,
}


def verdicts(part: str, figures: Figures) -> list[str]:
    """What a part must show, and whether it did."""
    if part == "lag":
        return [f"lag: median below 1 s and 99 % below 3 s: {verdict(figures['mariadb'])}"]
    if part == "memory":
        said = {kind: "met" if is_bounded(one) else "not met" for kind, one in figures.items()}
        return [f"memory, {kind}: the peak is at most {GROWTH_MAX}x of that with half the rows: {met}" for kind, met in said.items()]
    return []


def main(arguments: list[str]) -> int:
    """Run the suite. Returns 1 when a part failed or misses its goal."""
    parser = argparse.ArgumentParser(prog="./dev bench ingest", description="How fast databases come into a lake, and how late.")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part, or these")
    parser.add_argument("--sources", choices=tuple(SOURCES), nargs="+", default=list(SOURCES), help="databases; lag is of MariaDB alone")
    parser.add_argument("--rows", type=int, help="of the snapshot and of the transaction (5,000,000), of the lag's table, or changes")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the lag is measured")
    parser.add_argument("--rate", type=float, default=2000.0, help="changes a second, for the lag")
    parser.add_argument("--rounds", type=int, default=3, help="of snapshots and streams; medians are shown")
    parser.add_argument("--peers", choices=(*PEERS, "none"), nargs="+", default=list(PEERS), help="other tools that take the same changes")
    parser.add_argument("--json", metavar="FILE", help="write the figures and the environment to this file")
    chosen = parser.parse_args(arguments)
    console, began = Console(), environment.now()

    def say(text: str) -> None:
        console.print(f"[dim]{text}")

    results: dict[str, Figures] = {}
    failed: dict[str, str] = {}
    said: list[str] = []
    for part in chosen.only or PARTS:
        with tempfile.TemporaryDirectory(prefix="objcat-bench-", ignore_cleanup_errors=True) as directory:
            try:
                results[part] = _MEASURES[part](Path(directory), chosen, say)
            except FAILURES as error:
                failed[part] = f"{type(error).__name__}: {error}"
                console.print(f"{part} has no figures. {failed[part]}", markup=False, style="red")
            finally:
                if part in results:
                    _show(console, part, results[part])
                    said += verdicts(part, results[part])
                if chosen.json:
                    # After each part, so that a run which is ended leaves what it has measured.
                    told = {"results": results, "verdicts": said, "failed": failed, "not measured": dict(NOT_MEASURED)}
                    where = environment.machine(" ".join(["./dev bench ingest", *arguments]), began=began)
                    Path(chosen.json).write_text(json.dumps({"environment": where, "settings": vars(chosen), **told}, indent=1) + "\n")
    for line in said:
        console.print(line)
    return int(bool(failed) or any(line.endswith("not met") for line in said))


def _show(console: Console, part: str, figures: Figures) -> None:
    table = Table("figure", *figures, title=part, title_justify="left")
    for name in dict.fromkeys(name for one in figures.values() for name in one):
        table.add_row(name, *(_said(name, one[name]) if name in one else "" for one in figures.values()))
    console.print(table)


def _said(name: str, value: float) -> str:
    if "bytes" in name and "ratio" not in name:
        return f"{value / 1e6:,.0f} MB"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
