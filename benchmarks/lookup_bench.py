"""`./dev bench lookup`: a process that begins, opens a table on a distant bucket and reads one row by its key.

Each side's table is made on an S3 server: rows, a hundred upserts of ten rows, and a compaction where the library has one. Then new
processes look a row up through a proxy that delays each request, and notes when each began and ended. So the requests that came one after
the other are counted: round trips. Ten upserts with rows everywhere follow, and the same lookups. The sides take turns.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import environment
from benchmarks.install import PeerUnavailable, environment_of, worker_environment
from benchmarks.lookup_side import KEY, LOOKUP_SIDES
from benchmarks.peers import SIDES
from benchmarks.slow_proxy import SlowProxy, round_trips
from devkit.handle import ServerHandle
from devkit.paths import ROOT
from devkit.servers import ServerName, Servers

SERVER: ServerName = "versitygw"
WORK_S_MAX = 1200
GOALS: Mapping[str, tuple[int, int | None, float | None]] = {
    "after 100 commits": (5, 14, 0.2),
    "after ten upserts with logs": (6, None, None),
}
"""By work of objcat: the most round trips, requests and seconds."""


class WrongRow(Exception):
    """A side failed, or found another row. The message says which."""


@dataclass(slots=True)
class Lookups:
    """The lookups of a side at one state of its table. One element for each process.

    Args:
        again: Seconds of a second lookup by the same handle.
    """

    side: str
    work: str
    round_trips: list[int] = field(default_factory=list)
    requests: list[Mapping[str, int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Requests of the process with the fewest; others may have retried something."""
        return min(sum(one.values()) for one in self.requests)

    @property
    def trips(self) -> int:
        """Round trips of the process with the fewest: threads of a busy machine may begin late."""
        return min(self.round_trips)


class _Running:
    """A side with its bucket and its proxy."""

    def __init__(self, name: str, bucket: ServerHandle, place: Path, *, latency_ms: float) -> None:
        self.name = name
        self._bucket = bucket
        self._python = environment_of(SIDES[name])
        self._place = place / name
        self._place.mkdir()
        self.proxy = SlowProxy(bucket.endpoint, latency_ms=latency_ms)

    def run(self, work: str, count: int = 0, *, far: bool = False) -> str:
        """What a new process prints. far: through the proxy. Raises WrongRow."""
        names = {name: self._bucket.options[name] for name in ("region", "access_key", "secret_key")}
        endpoint = self.proxy.url if far else self._bucket.endpoint
        store = {"endpoint": endpoint, "bucket": self._bucket.url.removeprefix("s3://"), "directory": str(self._place), **names}
        command = [str(self._python), "-m", "benchmarks.lookup_side", self.name, work, json.dumps(store), str(count)]
        variables = worker_environment(self._python) | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=self._place, timeout=WORK_S_MAX, check=False)
        if done.returncode:
            raise WrongRow(f"{self.name} failed at {work}: {done.stderr[-800:]}")
        return done.stdout

    def look_up(self, into: Lookups, value: int) -> None:
        """One lookup by a new process. Raises WrongRow."""
        self.proxy.take_exchanges()
        told: Mapping[str, Any] = json.loads(self.run("lookup", far=True).splitlines()[-1])
        exchanges = self.proxy.take_exchanges()
        ((row),) = told["row"]
        if (row["id"], row["v"]) != (KEY, value):
            raise WrongRow(f"{self.name} found {row}, and not the row {KEY} with {value}")
        first = [one for one in exchanges if one.began_s < told["ended_s"]]
        into.round_trips.append(round_trips(first))
        into.requests.append({kind: sum(one.method == kind for one in first) for kind in sorted({one.method for one in first})})
        into.seconds.append(told["seconds"])
        into.again.append(told["again"])


def measure(names: Sequence[str], place: Path, *, commits: int, upserts: int, runs: int, latency_ms: float, say: Any) -> list[Lookups]:
    """The lookups of these sides. Raises PeerUnavailable, WrongRow and ServerError."""
    found: list[Lookups] = []
    with Servers() as servers:
        sides = [_Running(name, servers.start(SERVER).fresh_bucket(), place, latency_ms=latency_ms) for name in names]
        try:
            for side in sides:
                say(f"{side.name}: {commits} commits")
                side.run("make", commits)
            # The key that is looked up is among the last rows of no upsert but the second, whose value stays.
            values = {"after 100 commits": 0, "after ten upserts with logs": 1_001 if upserts > 1 else 0}
            for work, value in values.items():
                if work == "after ten upserts with logs":
                    for side in sides:
                        side.run("more", upserts)
                mine = {side.name: Lookups(side.name, work) for side in sides}
                for number in range(runs):
                    shift = number % len(sides)
                    for side in sides[shift:] + sides[:shift]:
                        say(f"{side.name}: lookup {number + 1} {work}")
                        side.look_up(mine[side.name], value)
                found += mine.values()
        finally:
            for side in sides:
                side.proxy.close()
    return found


def met(lookups: Lookups) -> bool:
    """Whether objcat reached its goals. True for others."""
    if lookups.side != "objcat-local":
        return True
    trips, count, seconds = GOALS[lookups.work]
    is_quick = seconds is None or statistics.median(lookups.seconds) <= seconds
    return lookups.trips <= trips and (count is None or lookups.count <= count) and is_quick


def main(arguments: list[str]) -> int:
    """Run the suite. Returns 0 when every side found the right row, else 1. Missed goals are shown only."""
    parser = argparse.ArgumentParser(prog="bench lookup", description="A new process that reads one row from a distant bucket.")
    parser.add_argument("--commits", type=int, default=100, help="upserts of ten rows before the first lookups")
    parser.add_argument("--upserts", type=int, default=10, help="upserts with rows everywhere before the second ones")
    parser.add_argument("--runs", type=int, default=7, help="processes of each side and state; medians are shown")
    parser.add_argument("--latency", type=float, default=20, help="milliseconds of each request")
    parser.add_argument("--sides", default=",".join(LOOKUP_SIDES))
    parser.add_argument("--json", metavar="FILE", help="write every sample and the environment to this file")
    chosen = parser.parse_args(arguments)
    console = Console()
    began = environment.now()
    with tempfile.TemporaryDirectory(prefix="objcat-lookup-") as directory:
        try:
            found = measure(
                chosen.sides.split(","),
                Path(directory),
                commits=chosen.commits,
                upserts=chosen.upserts,
                runs=chosen.runs,
                latency_ms=chosen.latency,
                say=lambda text: console.print(f"[dim]{text}"),
            )
        except (PeerUnavailable, WrongRow, subprocess.TimeoutExpired) as error:
            console.print(f"[bold red]WRONG: {error}")
            return 1
    table = Table("work", "side", "round trips", "requests", "seconds", "again", "goal")
    for one in found:
        goal = "" if one.side != "objcat-local" else "met" if met(one) else "[red]missed"
        sent = ", ".join(f"{count} {kind}" for kind, count in min(one.requests, key=lambda sent: sum(sent.values())).items())
        seconds, again = (f"{statistics.median(some):.3f}" for some in (one.seconds, one.again))
        table.add_row(one.work, one.side, str(one.trips), sent, seconds, again, goal)
    console.print(table)
    if chosen.json:
        told = environment.machine(f"./dev bench lookup {shlex.join(arguments)}".rstrip(), began=began)
        kept = {"environment": told, "settings": vars(chosen), "results": [asdict(one) for one in found]}
        Path(chosen.json).write_text(json.dumps(kept, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
