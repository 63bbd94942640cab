"""How long a change of MariaDB takes until a reader of the lake sees it, at a steady rate, beside a compactor and a reader.

Six processes work at once: MariaDB, its writers, `objcat ingest run`, `objcat maintain --watch`, one that scans, and one that looks at the
log. Of each transaction the writers say when they sent it. The lag of a change lasts from there until the last process has seen the slot
that has it, so the time of the transaction itself is part of it, and so is half a pause between two looks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ingest_load import ACCOUNTS, BALANCE, make_tables
from benchmarks.ingest_sources import MariaBench, lake_digest, tree_cpu_s
from benchmarks.measured import measure
from devkit.paths import ROOT

SOURCE = "lag"
MAINTAIN_EVERY_S = 5
SETTLE_S = 5.0
"""The load runs so long before anything counts, and the last slots get so long in the end."""
CAUGHT_UP_S_MAX = 120.0
RATE_SHARE_MIN = 0.98
"""A run with a smaller part of the asked rate has no verdict: the machine did not write that fast."""
MEDIAN_S_MAX, P99_S_MAX = 1.0, 3.0
PROFILES = """
[profile.database]
properties = { compact_after_commits = "16", compact_plan_only = "true" }
"""
"""The writer only plans compactions, as docs/how-to/ingest.md recommends where another process compacts."""


class LagFailed(Exception):
    """A process failed, or the lake differs from the source. Then there are no figures."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction. number: of its global transaction id. probe: the id of its row, 0 for none."""

    number: int
    sent_s: float
    acknowledged_s: float
    changes: int
    probe: int


def measure_lag(place: Path, *, changes_a_second: float, seconds: float, rows: int, say: Callable[[str], None]) -> dict[str, float]:
    """Run it. Returns the figures, in seconds where nothing else is said.

    Raises:
        LagFailed: see there.
        RunFailed: the snapshot failed.
    """
    with MariaBench() as source:
        say(f"lag: making {rows:,} orders")
        source.fill(rows)
        make_tables(source._connection)
        config = source.configure(place, SOURCE, profiles=PROFILES)
        say("lag: reading them into the lake")
        measure("objcat.cli", ["ingest", "once", str(config)], environment=source.environment)
        measure("objcat.cli", ["maintain", str(place / "lake")])
        with _running(place, config, source, changes_a_second, seconds, rows) as processes:
            _wait_for(processes, seconds + 2 * SETTLE_S, say)
            _catch_up(place, source)
            cpu = {name: tree_cpu_s(process.pid) for name, process in processes.items()} | {"server": source.cpu_s()}
        say("lag: comparing both sides")
        _compare(place, source)
        took_s = seconds + 2 * SETTLE_S
        figures = _figures(place, begin_s=SETTLE_S, seconds=seconds, asked=changes_a_second)
        return figures | {f"CPU of {name}, of a core": spent / took_s for name, spent in cpu.items() if name != "load"}


def verdict(figures: Mapping[str, float]) -> str:
    """Whether the goal is met, in words."""
    if figures["changes a second"] < RATE_SHARE_MIN * figures["changes a second, asked"]:
        return "undecided: the writers did not reach the rate"
    met = figures["lag, median"] < MEDIAN_S_MAX and figures["lag, 99 %"] < P99_S_MAX
    return "met" if met else "not met"


@contextmanager
def _running(
    place: Path, config: Path, source: MariaBench, changes_a_second: float, seconds: float, rows: int
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """All processes but the server. They are ended with the block."""
    lake = str(place / "lake")
    total_s = seconds + 2 * SETTLE_S
    commands = {
        "ingest": ["objcat.cli", "ingest", "run", str(config), "--json"],
        "maintain": ["objcat.cli", "maintain", lake, "--watch", "--every", str(MAINTAIN_EVERY_S)],
        "slots": ["benchmarks.ingest_watch", "slots", lake, SOURCE, str(place / "slots")],
        "scans": ["benchmarks.ingest_watch", "scans", lake, SOURCE, str(place / "scans")],
        "load": ["benchmarks.ingest_load", str(source._server.port), str(changes_a_second), str(total_s), str(rows), str(place / "sent")],
    }
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            with (place / f"{name}.log").open("wb") as log:
                processes[name] = subprocess.Popen(
                    [sys.executable, "-m", *command],
                    env={**os.environ, "PYTHONPATH": str(ROOT), **source.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        yield processes
        for name in ("ingest", "slots", "scans"):
            _check_alive(place, name, processes[name])
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        for process in processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(processes: Mapping[str, subprocess.Popen[bytes]], seconds: float, say: Callable[[str], None]) -> None:
    """Wait until the load has ended."""
    began_s = told_s = time.monotonic()
    while processes["load"].poll() is None:
        time.sleep(0.5)
        now_s = time.monotonic()
        for name, process in processes.items():
            if name != "load" and process.poll() is not None:
                raise LagFailed(f"{name} ended with status {process.returncode} while the load ran.")
        if now_s - told_s >= 30:
            told_s = now_s
            say(f"lag: {now_s - began_s:,.0f} of {seconds:,.0f} s")
        if now_s - began_s > seconds + CAUGHT_UP_S_MAX:
            raise LagFailed(f"The load did not end within {CAUGHT_UP_S_MAX:.0f} s after it was due.")
    if processes["load"].returncode:
        raise LagFailed(f"The load ended with status {processes['load'].returncode}.")


def _catch_up(place: Path, source: MariaBench) -> None:
    """Wait until the newest transaction of the source has been seen."""
    newest = int(str(source.run("select @@global.gtid_binlog_pos")[0][0]).rpartition("-")[2])
    deadline_s = time.monotonic() + CAUGHT_UP_S_MAX
    while not any(event["number"] >= newest for event in _lines(place / "slots")[-3:]):
        if time.monotonic() > deadline_s:
            raise LagFailed(f"The ingest did not reach transaction {newest} within {CAUGHT_UP_S_MAX:.0f} s after the end of the load.")
        time.sleep(0.5)


def _check_alive(place: Path, name: str, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        said = (place / f"{name}.log").read_text(errors="replace")[-800:]
        raise LagFailed(f"{name} ended with status {process.returncode}: {said}")


def _compare(place: Path, source: MariaBench) -> None:
    there, here = source.digest(), lake_digest(place / "lake")
    if there != here:
        raise LagFailed(f"The source has {there}, and the lake {here}.")
    scans = _lines(place / "scans")
    wrong = [scan for scan in scans if (scan["accounts"], scan["sum"]) != (ACCOUNTS, ACCOUNTS * BALANCE)]
    if wrong or not scans:
        raise LagFailed(f"{len(wrong)} of {len(scans)} scans found another sum than {ACCOUNTS * BALANCE:,}: {wrong[:1]}")


def _figures(place: Path, *, begin_s: float, seconds: float, asked: float) -> dict[str, float]:
    """The figures of the part between the beginning and the end of the load."""
    sent = sorted((Sent(*line) for line in _lines(place / "sent")), key=lambda one: one.number)
    from_s = min(one.sent_s for one in sent) + begin_s
    counted = [one for one in sent if from_s <= one.sent_s < from_s + seconds]
    slots = _lines(place / "slots")
    lags, committed, probes = lags_of(counted, slots)
    scans = _lines(place / "scans")
    times = [event["seen_s"] for event in slots if from_s <= event["seen_s"] < from_s + seconds]
    changes = sum(one.changes for one in counted)
    return {
        "changes a second, asked": asked,
        "changes a second": changes / seconds,
        "transactions a second": len(counted) / seconds,
        "lag, median": percentile(lags, 50),
        "lag, 99 %": percentile(lags, 99),
        "lag, greatest": max(lag for lag, _ in lags),
        "until the slot's commit time, median": percentile(committed, 50),
        "until the slot's commit time, 99 %": percentile(committed, 99),
        "until a row is read back, median": percentile(probes, 50),
        "until a row is read back, 99 %": percentile(probes, 99),
        "rows that were read back": len(probes),
        "transaction at the source, median": percentile([(one.acknowledged_s - one.sent_s, one.changes) for one in counted], 50),
        "commits a second": len(times) / seconds,
        "scans": len(scans),
        "scan, median": percentile([(scan["seconds"], 1) for scan in scans], 50),
    }


Weighted = list[tuple[float, int]]
"""Seconds, and of how many changes."""


def lags_of(sent: Sequence[Sent], slots: Sequence[Mapping[str, Any]]) -> tuple[Weighted, Weighted, Weighted]:
    """Of transactions in the order of their numbers: until their slot was seen, until it says that it was committed, and, of probes, until
    their row was read. Raises LagFailed when a transaction was never seen."""
    seen: Weighted = []
    committed: Weighted = []
    read_s = {probe: event["read_s"] for event in slots for probe in event["probes"]}
    coming = iter(slots)
    event = next(coming, None)
    for one in sent:
        while event is not None and event["number"] < one.number:
            event = next(coming, None)
        if event is None:
            raise LagFailed(f"Transaction {one.number} of the source was never seen in the lake.")
        seen.append((event["seen_s"] - one.sent_s, one.changes))
        committed.append((event["committed_s"] - one.sent_s, one.changes))
    missing = [one.probe for one in sent if one.probe and one.probe not in read_s]
    if missing:
        raise LagFailed(f"{len(missing)} probes were never read in the lake, the first one is {missing[0]}.")
    return seen, committed, [(read_s[one.probe] - one.sent_s, 1) for one in sent if one.probe]


def percentile(values: Weighted, per_cent: float) -> float:
    """The least value that so many per cent of the weight do not exceed."""
    ordered = sorted(values)
    rest = sum(weight for _, weight in ordered) * per_cent / 100
    for value, weight in ordered:
        rest -= weight
        if rest <= 0:
            return value
    raise LagFailed("There is nothing to take a percentile of.")


def _lines(path: Path) -> list[Any]:
    text = path.read_text() if path.exists() else ""
    # The last line may be half written.
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
