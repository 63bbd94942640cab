"""`./dev bench day`: writers of an internet company on a simulated store with published rate limits, in simulated time.

200 writers write 10 TB a day to 1,000 tables in files of 128 MB, each a commit: 78,125 of them. Nine of ten commits go to the tables of a
writer, the others to ten tables that all write to. Every 20 minutes all writers are ready at once, for one of these ten.

Commits are real: intent, look at the base, slot, replay, checkpoints and hints by the code that tables use. The bytes of data files are
not: their parts are requests of the same store, with the time that they take. After the run every log is read, and each commit that was
acknowledged must be there, once, at its slot.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import objcat
from benchmarks import environment
from benchmarks.growth_states import SCHEMA
from benchmarks.rated_store import DELETE, GET, HEAD, PUT, Limits, RatedBackend
from fileio.errors import FileIOError, Unavailable
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import CommitUnknown, ObjcatError
from objcat.metadata.files import LogObject, LogRows, TableDelta, encode_delta
from objcat.metadata.replay import TablesReducer
from objcat.metadata.table_state import Tables
from objcat.timeline.attempt import CommitAttempt, Committed
from objcat.timeline.commit import Committer
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import Action, FileGroupId, Footprint, Txn, new_txn
from objcat.timeline.log import Log
from objcat.timeline.log_view import LogView, Timeline
from tests.timeline.simulated import Simulation

WRITERS, TABLES, SHARED_TABLES = 200, 1_000, 10
DAY_BYTES, FILE_BYTES = 10 * 10**12, 128 * 10**6
SHARED_PART = 0.1
HERD_EVERY_S = 1_200.0
LATENCY_S, BYTES_PER_S = 0.02, 100e6
PART_BYTES, PARTS_AT_ONCE = 8 << 20, 4
BUCKETS = 16
COMMIT_GOAL_S = 10.0
PRICE_WRITES, PRICE_READS = 0.005 / 1000, 0.0004 / 1000
"""Dollars for a PUT, COPY, POST or LIST, and for a GET or HEAD: list prices of S3 Standard in us-east-1, as pages about it gave them in
2026. Those of Google's regional Standard class are the same for operations of class A and B. A DELETE is free."""

OTHERS: Mapping[str, tuple[Mapping[str, float], str]] = {
    "Iceberg": (
        {"PUT": 3, "GET": 2},
        "reads the metadata file and the manifest list, writes a manifest, a manifest list and a metadata file; the catalog is not counted",
    ),
    "Delta": (
        {"PUT": 1.2, "GET": 2.1, "LIST": 1},
        "lists the log, reads the checkpoint's name and the last commit, writes a commit, and every tenth time a checkpoint and its name",
    ),
}
"""Requests of an append beside its data file, by the least that the format asks for, without a conflict, and how they are counted."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is simulated."""

    writers: int = WRITERS
    tables: int = TABLES
    hours: float = 24.0
    seed: int = 1
    herd_every_s: float = HERD_EVERY_S
    limits: Limits = field(default_factory=Limits)

    @property
    def pause_s(self) -> float:
        """Between two commits of a writer, in the mean."""
        return self.writers * 86_400 * FILE_BYTES / DAY_BYTES


@dataclass(slots=True)
class Told:
    """What the writers were told, in the order of the answers."""

    commits: list[tuple[int, Txn, int]] = field(default_factory=list)
    unknown: int = 0
    gave_up: int = 0
    commit_s: list[float] = field(default_factory=list)
    write_s: list[float] = field(default_factory=list)
    slots_lost: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A run.

    Args:
        lost: Acknowledged commits that no log has at their slot.
        strange: Entries that no writer was told of, without those whose outcome is unknown.
        gave_up: Writes that ended with an error, certainly without effect.
        refused: Requests that were answered with 503, by limit.
        data_requests: Of `requests`, those for bytes of data files.
    """

    shape: Mapping[str, Any]
    commits: int
    lost: int
    strange: int
    unknown: int
    gave_up: int
    commit_s_median: float
    commit_s_p99: float
    commit_s_max: float
    write_s_median: float
    write_s_max: float
    slots_lost: int
    requests: Mapping[str, int]
    data_requests: Mapping[str, int]
    refused: Mapping[str, int]
    cpu_s: float


class _Table:
    """A writer's handle of a table."""

    def __init__(self, lake: FileIO, number: int) -> None:
        self.fileio = lake.child(prefix_of(number))
        self.timeline: Timeline[Tables] = Timeline(self.fileio, TablesReducer())
        self.view: LogView[Tables] = self.timeline.open()
        ((self.id, _),) = self.view.state.items()
        self.committer = Committer(self.fileio)

    def adopt(self, standing: LogView[Tables]) -> None:
        """Stand on a checkpoint that was published."""
        self.view = self.timeline.adopt_checkpoint(self.view, standing)


class Run:
    """One simulation. backend: another one, with a bug."""

    def __init__(self, shape: Shape, backend: Callable[[Simulation, Limits], RatedBackend] = RatedBackend) -> None:
        self.shape = shape
        self.simulation = Simulation(shape.seed)
        self.backend = backend(self.simulation, shape.limits)
        self.told = Told()
        self.data: Counter[str] = Counter()

    def run(self) -> Result:
        """Make the tables, let the writers write, and look at the logs."""
        began_s = time.process_time()
        here = FileIO(self.backend, env=FakeEnv(self.shape.seed, now_ms=self.simulation.now_ms() - 1))
        index = objcat.BucketIndex(BUCKETS)
        for number in range(self.shape.tables):
            objcat.create_table_at(here.child(prefix_of(number)), SCHEMA, key=["id"], index=index)
        self.backend.latency_s, self.backend.is_counting = LATENCY_S, True
        self.simulation.run([partial(self._write, number) for number in range(self.shape.writers)])
        self.backend.latency_s, self.backend.is_counting = 0.0, False
        lost, strange = self._examine(here)
        told = self.told
        return Result(
            {**asdict(self.shape), "pause_s": self.shape.pause_s},
            len(told.commits),
            lost,
            strange,
            told.unknown,
            told.gave_up,
            statistics.median(told.commit_s),
            statistics.quantiles(told.commit_s, n=100, method="inclusive")[-1],
            max(told.commit_s),
            statistics.median(told.write_s),
            max(told.write_s),
            told.slots_lost,
            dict(self.backend.requests),
            dict(self.data),
            dict(self.backend.refused),
            time.process_time() - began_s,
        )

    def _write(self, number: int) -> None:
        """One writer, until the time is over."""
        shape, clock = self.shape, self.simulation
        drawn = random.Random(shape.seed * 1_000_003 + number)
        # Threads of one process would take turns at a log, and the others would wait in real time.
        lake = FileIO(self.backend, env=clock.process())
        handles: dict[int, _Table] = {}
        shared = min(SHARED_TABLES, shape.tables)
        own = range(number, shape.tables, shape.writers) or [number % shape.tables]
        herd_s = shape.herd_every_s / 2
        while True:
            pause_s = drawn.expovariate(1 / shape.pause_s)
            if clock.monotonic_s() + pause_s >= herd_s:
                table, pause_s, herd_s = number % shared, max(0.0, herd_s - clock.monotonic_s()), herd_s + shape.herd_every_s
            else:
                table = drawn.randrange(shared) if drawn.random() < SHARED_PART else drawn.choice(own)
            if clock.monotonic_s() + pause_s > shape.hours * 3600:
                return
            clock.sleep(pause_s)
            try:
                if table not in handles:
                    handles[table] = _Table(lake, table)
                self._commit(handles[table], table, bucket=number % BUCKETS)
            except CommitUnknown:
                self.told.unknown += 1
            except (ObjcatError, FileIOError):
                self.told.gave_up += 1

    def _commit(self, table: _Table, number: int, *, bucket: int) -> None:
        clock = self.simulation
        txn, began_s = new_txn(clock), clock.monotonic_s()
        session = CommitSession(table.committer, txn)
        skew_ms = session.announce(Action.DELTA_COMMIT, table.view.log, engine="local")
        group_id = FileGroupId("", bucket, BUCKETS)
        with session:
            self._upload()
            uploaded_s = clock.monotonic_s()
            done = session.try_commit(_attempt(table, txn, group_id), skew_ms=skew_ms())
        if not isinstance(done, Committed):
            raise TypeError(f"Writes of log rows conflict with nothing, but {txn} did: {done}")
        self.told.commits.append((number, txn, done.entry.slot))
        self.told.commit_s.append(clock.monotonic_s() - uploaded_s)
        self.told.write_s.append(clock.monotonic_s() - began_s)
        self.told.slots_lost += done.slots_lost
        table.view = table.timeline.advance(table.view, [*done.read, done.entry])
        table.timeline.after_commit(table.view, table.adopt)

    def _upload(self) -> None:
        """A data file: the beginning of its upload, its parts, some at once, and its end."""
        parts = -(-FILE_BYTES // PART_BYTES)
        for number in [1, *([PARTS_AT_ONCE] * (parts // PARTS_AT_ONCE)), *([parts % PARTS_AT_ONCE] if parts % PARTS_AT_ONCE else []), 1]:
            pause_s = 0.05
            while True:
                self.data[PUT] += number
                try:
                    self.backend.admit(PUT, number=number)
                    break
                except Unavailable:
                    self.simulation.sleep(pause_s * self.simulation.random())
                    pause_s = min(5.0, 2 * pause_s)
            self.simulation.sleep(LATENCY_S + (number * PART_BYTES / BYTES_PER_S if number > 1 else 0))

    def _examine(self, here: FileIO) -> tuple[int, int]:
        """How many acknowledged commits are missing, and how many entries nobody was told of."""
        told = set(self.told.commits)
        found = {
            (number, entry.txn, entry.slot)
            for number in range(self.shape.tables)
            for entry in Log(here.child(prefix_of(number))).read_after(0)
        }
        lost = len(told - found) + len(self.told.commits) - len(told)
        return lost, max(0, len(found - told) - self.told.unknown)


def prefix_of(number: int) -> str:
    """Where a table is in the lake."""
    return f"tables/table_{number:04d}"


def _attempt(table: _Table, txn: Txn, group_id: FileGroupId) -> CommitAttempt:
    rows = FILE_BYTES // 100
    path = f"data/{txn}/local-0-{table.fileio.env.new_id()}.log.parquet"
    log = LogObject(path=path, bytes=FILE_BYTES, rows=rows, row_group_rows=16_384, slices=(LogRows(group_id, 0, rows),), bounds={})
    return CommitAttempt(
        txn=txn,
        action=Action.DELTA_COMMIT,
        base=table.view.log,
        changes={table.id: encode_delta(TableDelta(logs=(log,)))},
        footprint={table.id: Footprint(appends=(group_id,))},
    )


def price(requests: Mapping[str, float]) -> float:
    """Dollars by list prices."""
    prices = {GET: PRICE_READS, HEAD: PRICE_READS, DELETE: 0.0}
    return sum(number * prices.get(kind, PRICE_WRITES) for kind, number in requests.items())


def bills(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """By side, requests for metadata by kind and their dollars, of a day. What data files cost is the same for all and apart."""
    day = 24 / result["shape"]["hours"]
    commits = result["commits"] * day
    data = {kind: number * day for kind, number in result["data_requests"].items()}
    own = {kind: number * day - data.get(kind, 0) for kind, number in result["requests"].items()}
    sides = {"objcat": own, **{name: {kind: each * commits for kind, each in counts.items()} for name, (counts, _) in OTHERS.items()}}
    sides["data files, for each"] = data
    return {name: {**counts, "dollars": price(counts)} for name, counts in sides.items()}


def main(arguments: Sequence[str]) -> int:
    """Run and show. Returns 0 when nothing was lost and no commit took longer than the goal, else 1."""
    parser = argparse.ArgumentParser(prog="./dev bench day", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hours", type=float, default=24.0, help="of the day")
    parser.add_argument("--writers", type=int, default=WRITERS)
    parser.add_argument("--tables", type=int, default=TABLES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    given = parser.parse_args(arguments)
    told = [Path(one).name if before == "--json" else one for before, one in zip(["", *arguments], arguments, strict=False)]
    command, began = shlex.join(["./dev", "bench", "day", *told]), environment.now()
    shape = Shape(writers=given.writers, tables=given.tables, hours=given.hours, seed=given.seed)
    result = asdict(Run(shape).run())
    figures = {"environment": environment.machine(command, began=began), "result": result, "bills": bills(result)}
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if not result["lost"] and not result["strange"] and result["commit_s_max"] <= COMMIT_GOAL_S else 1
