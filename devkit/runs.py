"""Runs of pytest, each in a process, some at a time, and the sum of their results."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from devkit import toolchain
from devkit.paths import ROOT, cache_dir

OUTCOME_VARIABLE = "OBJCAT_TEST_OUTCOME"
"""A file into which a run of pytest writes what came of it; `tests/conftest.py` does that."""
SUM_VARIABLE = "OBJCAT_TEST_SUM"
"""A file that adds up several commands: the last line of each is the sum of all so far."""
SHARED_VARIABLE = "OBJCAT_TEST_SHARED"
"""Set where a second run of pytest has the other core."""
NO_TESTS_COLLECTED = 5
SLOWEST = 10
LONG_S = 10
_INTERRUPTED = 2


@dataclass(frozen=True, slots=True)
class Run:
    """One process of pytest. `title`: printed before its output. `about_s`: its expected duration. `environment`: additional variables."""

    title: str
    arguments: Sequence[str]
    about_s: float = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a test took with its fixtures. `tier`: the first one that runs it. `reason`: why it may take long."""

    tier: str
    seconds: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run. `counts`: of tests by pytest's word for their end. `times`: by the id of the test."""

    status: int
    counts: Counter[str]
    times: Mapping[str, Timing]


def run_here(run: Run) -> Outcome:
    """Run one process that prints to the terminal."""
    return _run(run, None)


def run_all(runs: Sequence[Run], at_once: int = 2) -> list[Outcome]:
    """Run all, some at a time, in this order. The output of each is printed when it ends."""
    waiting = deque(enumerate(runs, 1))
    outcomes: dict[int, Outcome] = {}
    printing = threading.Lock()

    def work_off() -> None:
        while True:
            try:
                number, run = waiting.popleft()
            except IndexError:
                return
            print(f"-- {number} of {len(runs)} begins: {run.title}, about {run.about_s:.0f} s", flush=True)
            with tempfile.TemporaryFile("w+") as output:
                began_s = time.monotonic()
                outcomes[number] = _run(run, output)
                if outcomes[number].status == _INTERRUPTED or outcomes[number].status < 0:
                    waiting.clear()
                output.seek(0)
                with printing:
                    print(f"\n== {number} of {len(runs)}: {run.title}, {time.monotonic() - began_s:.0f} s", flush=True)
                    shutil.copyfileobj(output, sys.stdout)
                    sys.stdout.flush()

    # A request to terminate is passed on.
    signal.signal(signal.SIGTERM, _end_children)
    with ThreadPoolExecutor(at_once) as sides:
        _wait([sides.submit(work_off) for _ in range(at_once)], waiting)
    return [outcomes[number] for number in sorted(outcomes)]


def status_of(outcomes: Sequence[Outcome]) -> int:
    """The exit status of all runs: the first failure, if any."""
    failed = [outcome.status for outcome in outcomes if outcome.status not in (0, NO_TESTS_COLLECTED)]
    if failed:
        return failed[0] if failed[0] > 0 else 128 - failed[0]
    return NO_TESTS_COLLECTED if all(outcome.status == NO_TESTS_COLLECTED for outcome in outcomes) else 0


def print_sum(outcomes: Sequence[Outcome], seconds: float) -> None:
    """Print the slowest tests, the long ones without a reason, and last the sum in the words of pytest's own summary."""
    slowest = sorted((pair for outcome in outcomes for pair in outcome.times.items()), key=lambda pair: -pair[1].seconds)
    print(f"\nslowest {min(SLOWEST, len(slowest))} tests")
    for name, timing in slowest[:SLOWEST]:
        print(f"  {timing.seconds:6.1f} s  {name}")
    long = [pair for pair in slowest if pair[1].tier == "default" and pair[1].seconds > LONG_S and not pair[1].reason]
    if long:
        # Not a failure: a test that asserts how long something takes fails on a busy machine.
        print(f"of the default tier, over {LONG_S} s here and without a `reason` marker: a reason, a quicker test or a later tier is due")
        for name, timing in long:
            print(f"  {timing.seconds:6.1f} s  {name}")
    counts = sum((outcome.counts for outcome in outcomes), Counter[str]())
    if place := os.environ.get(SUM_VARIABLE):
        counts, seconds = _added(Path(place), counts, seconds)
    print(f"\n{summary_line(counts, seconds)}", flush=True)


def summary_line(counts: Mapping[str, int], seconds: float) -> str:
    """The sum of several runs in the words of pytest's own last line."""
    plural = {"error": "errors", "warnings": "warnings"}
    order = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error")
    parts = [f"{counts[word]} {plural.get(word, word) if counts[word] != 1 else word.rstrip('s')}" for word in order if counts.get(word)]
    return f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s ".center(80, "=")


def _added(place: Path, counts: Counter[str], seconds: float) -> tuple[Counter[str], float]:
    """Add these counts to those in the file. Returns the sum."""
    text = place.read_text() if place.exists() else ""
    if text:
        before = json.loads(text)
        counts, seconds = counts + Counter(before["counts"]), seconds + before["seconds"]
    place.write_text(json.dumps({"counts": counts, "seconds": seconds}))
    return counts, seconds


_children: set[subprocess.Popen[bytes]] = set()


def _run(run: Run, output: IO[str] | None) -> Outcome:
    with ExitStack() as stack:
        outcome = stack.enter_context(tempfile.NamedTemporaryFile("r"))
        command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
        command += ["-o", f"cache_dir={cache_dir() / 'pytest'}", *run.arguments]
        environment = {**toolchain.run_environment(), **run.environment, OUTCOME_VARIABLE: outcome.name}
        environment |= {toolchain.INSTALL_VARIABLE: "never"} | ({SHARED_VARIABLE: "1"} if output else {})
        status = _wait_for(command, environment, output)
        told = json.loads(outcome.read() or "{}")
    times = {name: Timing(**time) for name, time in told.get("times", {}).items()}
    return Outcome(status, Counter(told.get("counts", {})), times)


def _wait_for(command: Sequence[str], environment: Mapping[str, str], output: IO[str] | None) -> int:
    """Run a process to its end. Ctrl-C reaches pytest itself."""
    error = None if output is None else subprocess.STDOUT
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=error) as child:
        _children.add(child)
        try:
            while True:
                try:
                    return child.wait()
                except KeyboardInterrupt:
                    continue
        finally:
            _children.discard(child)


def _wait(sides: Sequence[Future[None]], waiting: deque[tuple[int, Run]]) -> None:
    """Wait for both sides. After Ctrl-C no new run begins."""
    while True:
        try:
            wait(sides)
            break
        except KeyboardInterrupt:
            waiting.clear()
    for side in sides:
        side.result()


def _end_children(*_: object) -> None:
    for child in list(_children):
        child.terminate()
