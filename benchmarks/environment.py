"""What every figure depends on, next to the settings of its suite."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.paths import ROOT


@dataclass(frozen=True, slots=True)
class Began:
    """The state before the first measurement. `load`: of the last minute. `tree`: the commit that ran."""

    at: dt.datetime
    load: float
    tree: str


def now() -> Began:
    """The current state."""
    return Began(dt.datetime.now(dt.UTC), os.getloadavg()[0], _tree())


def machine(command: str, *, began: Began) -> dict[str, Any]:
    """The machine. `command`: the command that ran."""
    return {
        "command": command,
        "tree": began.tree,
        "began": began.at.isoformat(timespec="seconds"),
        "took, s": round((dt.datetime.now(dt.UTC) - began.at).total_seconds()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": f"{os.cpu_count()} cores, {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "processor": _processor(),
        "load at the beginning": round(began.load, 1),
        "load at the end": round(os.getloadavg()[0], 1),
    }


def _tree() -> str:
    """The commit, with a note of uncommitted changes, which nobody can check out. Results do not count: runs write them."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "not a clone"
    return f"{commit}{', with changes' if changed else ''}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
