"""`./dev bench metadata`: what planning, committing and opening cost on tables with very many files or commits, on local storage.

No data file is written: entries name files that are not there, with the sizes and bounds that real ones have. All else is real: entries
are committed, and checkpoints published, by the code that tables use. Only the log of 100,000 commits is laid down as plain files, entry by
entry in their own format, since committing each would measure the disk. What is measured runs in a process of its own that has done
nothing else but import.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from fileio.env import SystemEnv
from fileio.registry import open_store
from fileio.store import FileIO
from objcat.lake.standalone import create_table_at, table_at
from objcat.metadata.files import BaseFile, Bound, LogObject, LogRows, TableDelta, encode_delta
from objcat.metadata.replay import TablesReducer
from objcat.metadata.table_spec import BucketIndex
from objcat.metadata.table_state import Tables
from objcat.predicate.parse import parse_predicate
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.checkpoint import SPACING_SLOTS, TAIL_SLOTS_MAX
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, encode_entry, log_key, new_txn
from objcat.timeline.log_view import LogView, Timeline

R = TypeVar("R")

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("city", pa.string()), ("fare", pa.float64())])
ROWS = 50_000
FILES_PER_COMMIT = 10_000
TOUCHED = 100
GOAL_PLAN_GETS, GOAL_PLAN_S = 8, 0.5
GOAL_COMMIT_BYTES = 1 << 20
GOAL_OPEN_REQUESTS, GOAL_OPEN_S = 40, 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report. `figures`: the measured values, in the unit of their names."""

    what: str
    figures: Mapping[str, float]
    goal: str
    met: bool


# ---- making tables -----------------------------------------------------------------------------------------------


class Hasty(SystemEnv):
    """An Env that never waits: hints are written at most once per second, which is not measured here."""

    def sleep(self, seconds: float) -> None:
        """Returns at once."""


class Maker:
    """A table that grows by entries that name files that do not exist."""

    def __init__(self, place: str | FileIO, *, seed: int = 1) -> None:
        self.fileio = place if isinstance(place, FileIO) else open_store(place, env=Hasty())
        self.timeline: Timeline[Tables] = Timeline(self.fileio, TablesReducer())
        self.view: LogView[Tables] = self.timeline.open()
        ((self.table, state),) = self.view.state.items()
        self.count = state.spec.index.count
        self._committer = Committer(self.fileio)
        self._random = random.Random(seed)

    def commit(self, bases: Sequence[FileGroupId], logs: Sequence[FileGroupId], *, as_of: int | None = None) -> None:
        """One commit of base files, or of log rows, for these file groups."""
        txn = new_txn(self.fileio.env)
        skew_ms = self._committer.announce_if_slow(
            txn, Action.COMPACTION if as_of is not None else Action.DELTA_COMMIT, self.view.log, engine="bench"
        )
        delta = TableDelta(bases=tuple(self._base(txn, group_id) for group_id in bases), logs=self._logs(txn, logs), as_of=as_of)
        footprint = Footprint(creates=tuple(bases), appends=tuple(logs)) if as_of is None else Footprint(replaces=tuple(bases))
        candidate = CommitAttempt(
            txn=txn,
            action=Action.COMPACTION if as_of is not None else Action.DELTA_COMMIT,
            base=self.view.log,
            changes={self.table: encode_delta(delta)},
            footprint={self.table: footprint},
        )
        committed = self._committer.commit(candidate, skew_ms=skew_ms())
        self._committer.delete_intent(txn).result()
        self.view = self.timeline.advance(self.view, [*committed.read, committed.entry])

    def publish(self) -> None:
        """Put the next entry into its slot."""
        self.view = self.timeline.publish(self.view)

    def _base(self, txn: str, group_id: FileGroupId) -> BaseFile:
        file_id, attempt = self._random.randbytes(8).hex(), self._random.randbytes(8).hex()
        path = f"data/{txn}/{group_id.bucket:08d}-{file_id}-{attempt}_{group_id.bucket:05d}.parquet"
        size = self._random.randrange(1 << 20, 1 << 26)
        return BaseFile(path=path, bytes=size, rows=ROWS, group_id=group_id, bounds=self._bounds(group_id, rows=ROWS))

    def _logs(self, txn: str, group_ids: Sequence[FileGroupId]) -> tuple[LogObject, ...]:
        if not group_ids:
            return ()
        parts = tuple(LogRows(group_id, 10 * i, 10 * i + 10) for i, group_id in enumerate(group_ids))
        path = f"data/{txn}/local-0-{self._random.randbytes(8).hex()}.log.parquet"
        bounds = self._bounds(group_ids[0], rows=10 * len(group_ids))
        return (LogObject(path=path, bytes=1 << 16, rows=10 * len(group_ids), row_group_rows=16_384, slices=parts, bounds=bounds),)

    def _bounds(self, group_id: FileGroupId, *, rows: int) -> dict[int, Bound]:
        """As they come out: keys over the whole range, times of the partition's day, and some of the rest. rows: of the file."""
        day = int(group_id.partition[-4:] or 0) * 86_400_000_000
        low, high = self._random.randrange(10**6), self._random.randrange(10**11, 10**12)
        return {
            1: (low, high, 0),
            2: (day + self._random.randrange(10**9), day + 86_400_000_000 - self._random.randrange(1, 10**9), 0),
            3: ("Aachen", "Zürich", self._random.randrange(min(100, rows + 1))),
            4: (2.5, round(self._random.random() * 500, 2), 0),
        }


def name_of(partition: int) -> str:
    """The name of a data file."""
    return f"day={partition:04d}"


def make_large(url: str, *, files: int, partitions: int, say: Callable[[str], None]) -> None:
    """Many files, as commits that load some partitions each, and a checkpoint whenever one is due."""
    create_table_at(url, SCHEMA, key=["id"], index=BucketIndex(files // partitions))._context.fileio.close()
    maker = Maker(url)
    per_commit = max(1, FILES_PER_COMMIT // maker.count)
    for number, first in enumerate(range(0, partitions, per_commit)):
        chosen = range(first, min(partitions, first + per_commit))
        maker.commit([FileGroupId(name_of(p), bucket, maker.count) for p in chosen for bucket in range(maker.count)], [])
        maker.publish()
        if number % 25 == 24:
            say(f"{(chosen[-1] + 1) * maker.count:,} files")
    while maker.view.slot % SPACING_SLOTS:
        maker.commit([], [FileGroupId(name_of(0), 0, maker.count)])
    maker.publish()
    maker.fileio.close()


def make_long(url: str, root: Path, *, commits: int, say: Callable[[str], None]) -> None:
    """Many commits: upserts of every bucket, and a compaction from time to time. The last checkpoint is as far behind as possible."""
    create_table_at(url, SCHEMA, key=["id"], index=BucketIndex(16))._context.fileio.close()
    maker = Maker(url)
    group_ids = [FileGroupId("", bucket, 16) for bucket in range(16)]
    env, last = maker.fileio.env, commits - 1
    published_to = -(-(last - TAIL_SLOTS_MAX + 1) // SPACING_SLOTS) * SPACING_SLOTS
    for slot in range(1, commits):
        txn = new_txn(env)
        compacts = slot % 200 == 0
        delta = TableDelta(
            bases=tuple(maker._base(txn, group_id) for group_id in group_ids) if compacts else (),
            logs=() if compacts else maker._logs(txn, group_ids[:4]),
            as_of=slot - 1 if compacts else None,
        )
        action = Action.COMPACTION if compacts else Action.DELTA_COMMIT
        footprint = Footprint(replaces=tuple(group_ids)) if compacts else Footprint(appends=tuple(group_ids[:4]))
        entry = Entry(
            format=1,
            slot=slot,
            action=action,
            txn=txn,
            base=slot - 1,
            committed_at_ms=maker.view.log.committed_at_ms + 1000,
            changes={maker.table: encode_delta(delta)},
            footprint={maker.table: footprint},
        )
        (root / log_key(slot)).write_bytes(encode_entry(entry))
        maker.view = maker.timeline.advance(maker.view, [entry])
        if slot == published_to or (slot % 1024 == 0 and slot < published_to):
            maker.publish()
        if slot % 25_000 == 0:
            say(f"{slot:,} commits")
    maker.fileio.close()


# ---- measurements -----------------------------------------------------------------------------------------------


def _imported() -> None:
    """Arrow imports pandas, if installed, when it first makes an array. Like other imports, this is not measured."""
    pa.array([0])


def plan_cold(url: str, partition: str) -> dict[str, float]:
    """Open the table by its URL and plan a scan of one partition."""
    _imported()
    began_s = time.perf_counter()
    table = table_at(url)
    opened_s = time.perf_counter()
    groups = table.snapshot.file_groups(table._context.manifests, partitions=[partition])
    ended_s = time.perf_counter()
    requests = table._context.fileio.metrics.snapshot().requests
    again_s = time.perf_counter()
    table.snapshot.file_groups(table._context.manifests, partitions=[partition])
    warm_s = time.perf_counter() - again_s
    return {
        "files": len(groups),
        "gets": requests.get("get", 0),
        "other requests": sum(requests.values()) - requests.get("get", 0),
        "bytes read": table._context.fileio.metrics.snapshot().bytes_read,
        "open s": opened_s - began_s,
        "plan s": ended_s - opened_s,
        "seconds": ended_s - began_s,
        "warm plan s": warm_s,
    }


def plan_filtered(url: str, where: str) -> dict[str, float]:
    """Plan a scan of the whole table by the bounds of its files."""
    _imported()
    table = table_at(url)
    pruning = parse_predicate(where, table.spec.table_schema).to_pruning()
    began_s = time.perf_counter()
    groups = table.snapshot.file_groups(table._context.manifests, where=pruning)
    cold_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    table.snapshot.file_groups(table._context.manifests, where=pruning)
    warm_s = time.perf_counter() - began_s
    gets = table._context.fileio.metrics.snapshot().requests.get("get", 0)
    return {
        "files": len(groups),
        "gets": gets,
        "bytes read": table._context.fileio.metrics.snapshot().bytes_read,
        "seconds": cold_s,
        "warm s": warm_s,
    }


def open_cold(url: str, *, hint: bool) -> dict[str, float]:
    """Open a table, with or without its hint."""
    if not hint:
        store = open_store(url)
        store.delete(["head.json"])
        store.close()
    _imported()
    began_s = time.perf_counter()
    table = table_at(url)
    seconds = time.perf_counter() - began_s
    return {"slot": table.snapshot.slot, "requests": sum(table._context.fileio.metrics.snapshot().requests.values()), "seconds": seconds}


def commits_warm(url: str, *, commits: int, partitions: int) -> dict[str, float]:
    """Commits to a table with many files. Each rewrites 100 of them, at random, with the checkpoints that come due."""
    _imported()
    maker = Maker(url, seed=2)
    entry_bytes, checkpoint_bytes, checkpoint_s, commit_s = [], [0], [0.0], []
    for _ in range(commits):
        group_ids = {
            FileGroupId(name_of(maker._random.randrange(partitions)), maker._random.randrange(maker.count), maker.count)
            for _ in range(TOUCHED)
        }
        before, began_s = maker.fileio.metrics.snapshot(), time.perf_counter()
        maker.commit(sorted(group_ids), [], as_of=maker.view.slot)
        commit_s.append(time.perf_counter() - began_s)
        middle, began_s = maker.fileio.metrics.snapshot(), time.perf_counter()
        entry_bytes.append((middle - before).bytes_written)
        if maker.view.slot - maker.view.checkpoint >= TAIL_SLOTS_MAX:
            maker.publish()
            checkpoint_bytes.append((maker.fileio.metrics.snapshot() - middle).bytes_written)
            checkpoint_s.append(time.perf_counter() - began_s)
    return {
        "bytes a commit": (sum(entry_bytes) + sum(checkpoint_bytes)) / commits,
        "of them entry": statistics.mean(entry_bytes),
        "of them checkpoint": sum(checkpoint_bytes) / commits,
        "checkpoints": len(checkpoint_bytes) - 1,
        "largest checkpoint bytes": max(checkpoint_bytes),
        "longest checkpoint s": max(checkpoint_s),
        "commit s": statistics.median(commit_s),
    }


def _apart(function: Callable[..., R], *args: Any, **more: Any) -> R:
    """The result of a function in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args, more)


# ---- the command -------------------------------------------------------------------------------------------------


def _measure_large(url: str, chosen: argparse.Namespace, say: Callable[[str], None]) -> list[Result]:
    say(f"making a table of {chosen.files:,} files in {chosen.partitions:,} partitions")
    make_large(url, files=chosen.files, partitions=chosen.partitions, say=say)
    middle = name_of(chosen.partitions // 2)
    goal = f"<= {GOAL_PLAN_GETS} GETs, <= {GOAL_PLAN_S} s"

    def plan(what: str) -> Result:
        runs = [_apart(plan_cold, url, middle) for _ in range(chosen.runs)]
        best = sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]
        met = all(run["gets"] <= GOAL_PLAN_GETS for run in runs) and best["seconds"] <= GOAL_PLAN_S
        return Result(what, best, goal, met and best["files"] == chosen.files // chosen.partitions)

    results = [plan("open by URL and plan one partition")]
    day = chosen.partitions // 2 * 86_400
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(day + 43_200))
    results.append(Result("plan by bounds, all partitions", _apart(plan_filtered, url, f"at = '{moment}'"), "", met=True))
    say(f"{chosen.commits} commits that write {TOUCHED} files each")
    figures = _apart(commits_warm, url, commits=chosen.commits, partitions=chosen.partitions)
    goal_bytes = f"<= {GOAL_COMMIT_BYTES >> 20} MiB a commit"
    results.append(Result(f"a commit that writes {TOUCHED} files", figures, goal_bytes, figures["bytes a commit"] <= GOAL_COMMIT_BYTES))
    results.append(plan("open and plan again after these"))
    return results


def _measure_long(url: str, root: Path, chosen: argparse.Namespace, say: Callable[[str], None]) -> list[Result]:
    say(f"making a table of {chosen.log:,} commits")
    make_long(url, root, commits=chosen.log, say=say)
    goal = f"<= {GOAL_OPEN_REQUESTS} requests, <= {GOAL_OPEN_S:.0f} s"
    results = []
    for hint, what in ((True, f"open a table of {chosen.log:,} commits"), (False, "the same without the hint")):
        figures = _apart(open_cold, url, hint=hint)
        met = figures["requests"] <= GOAL_OPEN_REQUESTS and figures["seconds"] <= GOAL_OPEN_S and figures["slot"] == chosen.log - 1
        results.append(Result(what, figures, goal if hint else "", met or not hint))
    return results


def _say_figure(name: str, value: float) -> str:
    if "bytes" in name or name.startswith("of them"):
        return f"{name}: {value / 1024:,.0f} KiB"
    return f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value:.3f}"


def _verdict(result: Result) -> str:
    if not result.goal:
        return ""
    return "met" if result.met else "[red]missed"


def main(arguments: list[str]) -> int:
    """Run the suite. Returns 0 when every goal is met, else 1."""
    parser = argparse.ArgumentParser(prog="bench metadata", description="Tables of very many files and commits, on local storage.")
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--commits", type=int, default=320, help="warm commits to the large table")
    parser.add_argument("--log", type=int, default=100_000, help="commits of the long table")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes of each plan; the median is shown")
    parser.add_argument("--only", choices=["large", "long", "all"], default="all")
    parser.add_argument("--json", metavar="FILE", help="write the figures and the environment to this file")
    chosen = parser.parse_args(arguments)
    console = Console()

    def say(text: str) -> None:
        console.print(f"[dim]{text}")

    results: list[Result] = []
    with tempfile.TemporaryDirectory() as directory:
        if chosen.only in ("all", "large"):
            results += _measure_large(str(Path(directory, "large")), chosen, say)
        if chosen.only in ("all", "long"):
            results += _measure_long(str(Path(directory, "long")), Path(directory, "long"), chosen, say)
    table = Table("what", "measured", "goal", "")
    for r in results:
        table.add_row(
            r.what,
            "\n".join(_say_figure(*figure) for figure in r.figures.items()),
            r.goal,
            _verdict(r),
        )
    console.print(table)
    if chosen.json:
        environment = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count(), "load": os.getloadavg()}
        with open(chosen.json, "w") as file:
            json.dump({"environment": environment, "settings": vars(chosen), "results": [asdict(r) for r in results]}, file, indent=1)
    return 0 if all(r.met for r in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
