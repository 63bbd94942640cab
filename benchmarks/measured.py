"""Runs a module in a process of its own, and says what it took: seconds, CPU seconds, and the most memory that it held at once.

`measure` starts `python -m benchmarks.measured FILE MODULE ARGUMENTS...`, which runs the module as `python -m` would.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit.paths import ROOT


class RunFailed(Exception):
    """The module failed. The message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Took:
    """What a run took.

    Args:
        seconds: from its first line to its last.
        cpu_s: of the process with all its threads and children, the start of Python included.
        peak_bytes: the most resident memory of the process, without children.
        output: what it wrote.
    """

    seconds: float
    cpu_s: float
    peak_bytes: int
    output: str


def measure(module: str, arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, python: Path | None = None) -> Took:
    """Run a module.

    Args:
        module: its name.
        arguments: its command line.
        environment: variables next to those of this process.
        python: of another environment.

    Raises:
        RunFailed: it ended with another status than 0.
    """
    with tempfile.TemporaryDirectory(prefix="objcat-bench-") as directory:
        told = Path(directory, "took")
        command = [str(python or sys.executable), "-m", "benchmarks.measured", str(told), module, *arguments]
        given = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode or not told.exists():
            said = (done.stdout[-500:] + done.stderr[-2500:]).strip()
            raise RunFailed(f"{module} {' '.join(arguments)} ended with status {done.returncode}: {said}")
        return Took(**json.loads(told.read_text()), output=done.stdout)


def peak_bytes() -> int:
    """The most resident memory that this process has held at once."""
    # What `getrusage` says may be that of the parent, which a new process begins with.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Run the module of the command line."""
    target, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    began_s, status = time.perf_counter(), 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    seconds = time.perf_counter() - began_s
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(one.ru_utime + one.ru_stime for one in spent)
    Path(target).write_text(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "peak_bytes": peak_bytes()}))
    sys.exit(status)


if __name__ == "__main__":
    main()
