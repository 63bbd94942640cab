"""What every figure depends on, beside the settings of its suite."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from devkit.paths import ROOT


def machine(command: str, *, began: tuple[dt.datetime, float]) -> dict[str, Any]:
    """command: that was run. began: of `now`, before anything was measured."""
    started, load = began
    return {
        "command": command,
        "tree": _tree(),
        "began": started.isoformat(timespec="seconds"),
        "took, s": round((dt.datetime.now(dt.UTC) - started).total_seconds()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": f"{os.cpu_count()} cores, {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "processor": _processor(),
        "load at the beginning": round(load, 1),
        "load at the end": round(os.getloadavg()[0], 1),
    }


def now() -> tuple[dt.datetime, float]:
    """The time, and the load of the last minute."""
    return dt.datetime.now(dt.UTC), os.getloadavg()[0]


def _tree() -> str:
    """The commit; what was changed and not committed is said, since nobody can check it out."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not a clone"
    return f"{commit}{', with changes' if changed else ''}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
