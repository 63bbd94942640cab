"""Processes that commit to one table in simulated time: rows of `./dev bench commit`.

Two cores cannot run many writers at once. Here the code of objcat is real and the store is far away, but nothing takes time except its
requests. The peer is the same code without `group_commit`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

import objcat
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from tests.timeline.simulated import FarBackend, Overlapped

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])
COMMITS = 40
"""Of each writer."""


@dataclass(frozen=True, slots=True)
class SimulatedResult:
    """One run.

    Args:
        together: Whether the table has `group_commit`.
        requests: For each commit, checkpoints and deletes included.
        slots: Of the log, for each commit.
        cpu_ms: Of this machine, for each commit.
        wrong: What failed. Then figures mean nothing.
    """

    writers: int
    latency_ms: float
    together: bool
    commits: int
    commits_per_s: float
    p50_ms: float
    p99_ms: float
    requests: float
    slots: float
    cpu_ms: float
    wrong: tuple[str, ...] = ()


def run_simulated(*, writers: int, latency_ms: float, together: bool, each: int = COMMITS, seed: int = 1) -> SimulatedResult:
    """Let writers of different processes upsert rows of their own, all as fast as they can."""
    simulation = Overlapped(seed)
    backend = FarBackend(simulation)
    here = objcat.Lake(FileIO(backend, env=FakeEnv(seed, now_ms=simulation.now_ms() - 1000)))
    properties = {"group_commit": "on" if together else "off"}
    table = here.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(16), properties=properties)
    seconds: list[float] = []
    told: dict[str, int] = {}

    def writer(number: int) -> Callable[[], None]:
        own = objcat.Lake(FileIO(backend, env=simulation.process())).table("t")

        def write() -> None:
            for count in range(each):
                began_s = simulation.monotonic_s()
                done = own.upsert([{"id": number * each + count, "value": count}])
                seconds.append(simulation.monotonic_s() - began_s)
                told[done.txn] = done.slot

        return write

    tasks = [writer(number) for number in range(writers)]
    backend.latency_s = latency_ms / 1000
    cpu_s = time.process_time()
    simulation.run(tasks)
    cpu_s, backend.latency_s = time.process_time() - cpu_s, 0.0
    commits = writers * each
    table.refresh()
    history = table.inspect.history()[1:]
    wrong = []
    if told != {txn: entry.slot for entry in history for txn in entry.txns}:
        wrong.append("the log has other commits than were acknowledged")
    if sorted(table.scan(columns=["id"]).to_arrow().column("id").to_pylist()) != list(range(commits)):
        wrong.append("rows are lost or doubled")
    return SimulatedResult(
        writers,
        latency_ms,
        together,
        commits,
        commits / simulation.monotonic_s(),
        1000 * statistics.median(seconds),
        1000 * statistics.quantiles(seconds, n=100, method="inclusive")[-1],
        backend.counts["requests"] / commits,
        len(history) / commits,
        1000 * cpu_s / commits,
        tuple(wrong),
    )


def cells_of_simulated(one: SimulatedResult) -> list[str]:
    """A row of the table of simulated runs."""
    if one.wrong:
        return [str(one.writers), f"{one.latency_ms:.0f} ms", "on" if one.together else "off", *one.wrong]
    figures = (
        f"{one.commits_per_s:.1f}",
        f"{one.p50_ms:.0f}",
        f"{one.p99_ms:.0f}",
        f"{one.requests:.1f}",
        f"{one.slots:.2f}",
        f"{one.cpu_ms:.1f}",
    )
    return [str(one.writers), f"{one.latency_ms:.0f} ms", "on" if one.together else "off", *figures]
