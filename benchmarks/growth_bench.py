"""`./dev bench growth`: what operations cost as a table or a lake grows, in requests, round trips, bytes, simulated time, CPU and memory.

The code is real, the store is `SimulatedBackend`, and the tables are those of `growth_states`. Each operation runs in a process that is
forked for it, so all find the same state and none pays for another. `growth_page` makes the page.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import objcat
from benchmarks import environment, growth_page
from benchmarks.growth_iceberg import OPERATIONS as ICEBERG_OPERATIONS
from benchmarks.growth_iceberg import STATES, IcebergOperations
from benchmarks.growth_states import AXES, LOOKUP, TABLE, rows
from benchmarks.measured import peak_bytes
from benchmarks.mirror_tables import name_of
from benchmarks.simulated_store import Charges, SimulatedBackend
from objcat.lake.lake import Lake
from objcat.metadata.table_state import Tables
from objcat.predicate.parse import parse_predicate
from objcat.timeline.checkpoint import SPACING_SLOTS
from objcat.timeline.log_view import LogView

SIZES: Mapping[str, Sequence[int]] = {
    "files": (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    "commits": (100, 1_000, 10_000, 100_000, 1_000_000),
    "partitions": (1, 10, 100, 1_000, 10_000, 100_000),
    "tables": (1, 10, 100, 1_000, 10_000),
}
MOST = 100_000
"""The largest size unless the command names another."""
PEERS_MOST = {"files": 100_000, "commits": 100, "partitions": 10_000}
"""How far a peer goes in about a minute of CPU."""
LOG_ROWS_COMMITS = 16
"""Commits of log rows that a round of maintenance finds."""
COMPACTIONS = 4
"""Commits of base files that a clean finds, with as many of log rows."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operation took.

    Args:
        requests: By kind, those in the background included.
        trips: Round trips in sequence until the call returned.
        seconds: Simulated, until the call returned; without CPU.
        cpu_s: CPU seconds of the process.
        peak_bytes: The most memory beyond what the process held before.
    """

    side: str
    axis: str
    size: int
    operation: str
    requests: Mapping[str, int]
    trips: int
    bytes_read: int
    bytes_written: int
    seconds: float
    cpu_s: float
    peak_bytes: int


class Operations:
    """The operations on one table. Each prepares what it needs at no charge, and returns the call that is measured."""

    def __init__(self, state: SimulatedBackend) -> None:
        self._state = state

    def table(self) -> objcat.Table:
        """A handle of another process."""
        return objcat.table_at(self._state.opened())

    def commit(self) -> Callable[[], object]:
        """An upsert of ten rows, by a process that has written before."""
        table = self.table()
        table.upsert(rows(0, 10, add=1))
        changed = rows(10, 10, add=2)
        return lambda: table.upsert(changed)

    def open(self) -> Callable[[], object]:
        """Open the table, in a new process."""
        fileio = self._state.opened()
        return lambda: objcat.table_at(fileio)

    def plan(self) -> Callable[[], object]:
        """Plan a scan of one partition, on a handle that was just opened."""
        table = self.table()
        return lambda: table.snapshot.file_groups(table._context.manifests, partitions=[name_of(0)])

    def plan_by_bounds(self) -> Callable[[], object]:
        """Plan a scan of all partitions by the bounds of a column, on a handle that was just opened."""
        table = self.table()
        where = parse_predicate("id = 42", table.spec.table_schema).to_pruning()
        return lambda: table.snapshot.file_groups(table._context.manifests, where=where)

    def lookup(self) -> Callable[[], object]:
        """Read one row by its key, on a handle that was just opened."""
        table = self.table()
        return lambda: _one_row(table)

    def checkpoint(self) -> Callable[[], object]:
        """Publish the next checkpoint, after a small upsert in each slot since the last."""
        table = self.table()
        context = table._context
        table.upsert(rows(0, 10))
        while table.refresh().slot % SPACING_SLOTS:
            table.upsert(rows(0, 10))
        return lambda: _newer(context.timeline.publish(context.view), context.view.checkpoint)

    def clean(self) -> Callable[[], object]:
        """Expire all slots but the newest, after four upserts with a compaction each; a clean has been before."""
        table = self.table()
        for turn in range(2):
            for number in range(COMPACTIONS):
                table.upsert(rows(0, 10, add=number))
                table.maintenance.compact()
            if turn == 0:
                table.maintenance.clean(keep_slots=1)
        table = self.table()
        return lambda: _some_files(table.maintenance.clean(keep_slots=1).files)

    def maintain(self) -> Callable[[], object]:
        """A round of maintenance after 16 upserts: a compaction of one file group, and whatever is due."""
        table = self.table()
        for number in range(LOG_ROWS_COMMITS):
            table.upsert(rows(0, 10, add=number))
        table = self.table()
        return lambda: _without_failure(table.maintenance.run(verify_bytes_max=0))


class LakeOperations(Operations):
    """Operations on a table by its name in a lake."""

    def table(self) -> objcat.Table:
        """A handle of another process, found by its name."""
        return Lake(self._state.opened()).table(TABLE)

    def open(self) -> Callable[[], object]:
        """Connect, find the table by its name and open it."""
        fileio = self._state.opened()
        return lambda: Lake(fileio).table(TABLE)

    def create(self) -> Callable[[], object]:
        """Create another table, in a process that has opened one."""
        lake = Lake(self._state.opened())
        schema = lake.table(TABLE).schema
        return lambda: lake.create_table("another", schema, key=["place", "id", "day"])


OPERATIONS = ("commit", "open", "plan", "plan_by_bounds", "lookup", "checkpoint", "clean", "maintain")
LAKE_OPERATIONS = ("open", "create", "commit", "plan", "lookup")


def _newer(view: LogView[Tables], before: int) -> None:
    if view.checkpoint <= before:
        raise AssertionError(f"No checkpoint was published above slot {before}.")


def _one_row(table: objcat.Table) -> None:
    found = table.scan(where=LOOKUP).to_arrow().num_rows
    if found != 1:
        raise AssertionError(f"The lookup found {found} rows instead of one.")


def _some_files(files: int) -> None:
    if not files:
        raise AssertionError("The clean found no files to delete.")


def _without_failure(report: Any) -> None:
    if report.left or not report.did:
        raise AssertionError(f"The round of maintenance did not do its work: {report}")


@dataclass(frozen=True, slots=True)
class Side:
    """What makes a state, and what is measured on it."""

    name: str
    make: Callable[[int], SimulatedBackend]
    operations: Callable[[Any], object]
    names: Sequence[str]


def sides_of(axis: str) -> list[Side]:
    """Who is measured on an axis."""
    own = (LakeOperations, LAKE_OPERATIONS) if axis == "tables" else (Operations, OPERATIONS)
    peer = [Side("pyiceberg", STATES[axis], IcebergOperations, ICEBERG_OPERATIONS)] if axis in STATES else []
    return [Side("objcat", AXES[axis], *own), *peer]


def cost(side: Side, state: SimulatedBackend, axis: str, size: int, operation: str) -> Cost:
    """What an operation takes in this process, which has changed the state afterwards."""
    call = getattr(side.operations(state), operation)()
    state.clock.rest()
    gc.collect()
    charges = state.charges = Charges()
    before, began_s, began_cpu_s = _resident_bytes(), state.clock.monotonic_s(), time.process_time()
    call()
    cpu_s, ended_s = time.process_time() - began_cpu_s, state.clock.monotonic_s()
    peak = max(0, peak_bytes() - before)
    state.charges = None
    read, written = charges.bytes_read, charges.bytes_written
    trips, seconds = charges.in_sequence(ended_s), ended_s - began_s
    return Cost(side.name, axis, size, operation, charges.kinds, trips, read, written, seconds, cpu_s, peak)


def _resident_bytes() -> int:
    """The memory of this process, after what is free is returned, and from now on the peak."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def apart(side: Side, state: SimulatedBackend, axis: str, size: int, operation: str) -> Cost:
    """What an operation takes in a process that is forked for it. Raises RuntimeError when it failed there."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                json.dump(asdict(cost(side, state, axis, size, operation)), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"{operation} beside {size:,} {axis} failed with status {status}.")
    return Cost(**json.loads(said))


def measure(side: Side, axis: str, size: int, say: Callable[[str], None]) -> list[Cost]:
    """All operations of a side beside so many files, commits, partitions or tables."""
    began_s = time.process_time()
    state = side.make(size)
    say(f"{side.name}, {size:,} {axis}: made in {time.process_time() - began_s:.0f} s of CPU")
    gc.collect()
    gc.freeze()
    costs = []
    for operation in side.names:
        costs.append(apart(side, state, axis, size, operation))
        say(f"{costs[-1]}")
    gc.unfreeze()
    return costs


def warm_up() -> None:
    """Run every operation once on little, so that no process that counts imports anything."""
    for axis in ("partitions", "tables"):
        for side in sides_of(axis):
            for operation in side.names:
                cost(side, side.make(2), axis, 2, operation)


def main(arguments: Sequence[str]) -> int:
    """Measure, and write the figures and the page."""
    parser = argparse.ArgumentParser(prog="./dev bench growth", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=list(AXES), choices=list(AXES), metavar="AXIS", help=", ".join(AXES))
    parser.add_argument("--most", type=int, default=MOST, metavar="N", help="the largest size on each axis")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures; those of other axes in it stay")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page of the figures in --json, with its plots next to it")
    parser.add_argument("--day", type=Path, metavar="FILE", help="figures of ./dev bench day for the page")
    given = parser.parse_args(arguments)
    command, began = shlex.join(["./dev", "bench", "growth", *_told(arguments)]), environment.now()

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    known: dict[str, Any] = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    if given.only:
        warm_up()
    for axis in given.only:
        costs: list[Cost] = []
        turns = ((size, side) for size in SIZES[axis] for side in sides_of(axis))
        for size, side in turns:
            if size > (given.most if side.name == "objcat" else min(given.most, PEERS_MOST[axis])):
                continue
            costs += measure(side, axis, size, say)
            told = environment.machine(command, began=began)
            known[axis] = {"environment": told, "results": [asdict(one) for one in costs]}
            if given.json:
                given.json.write_text(json.dumps(known, indent=1) + "\n")
    if given.page:
        growth_page.write(given.page, known, json.loads(given.day.read_text()) if given.day else None)
    return 0


def _told(arguments: Sequence[str]) -> list[str]:
    """The arguments without places on this machine."""
    told = list(arguments)
    for option in ("--json", "--page", "--day"):
        if option in told:
            at = told.index(option)
            told[at + 1] = Path(told[at + 1]).name
    return told
