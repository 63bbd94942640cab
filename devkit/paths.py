"""Paths: the tree, the lock files, and the cache outside of the tree. Uses the standard library only, for `devkit.bootstrap`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
LOCK = REQUIREMENTS / "dev.lock"


def cache_dir() -> Path:
    """The directory of all downloads and builds: `$OBJCAT_CACHE`, or `objcat` in the user's cache directory."""
    if chosen := os.environ.get("OBJCAT_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "objcat"


@contextlib.contextmanager
def file_lock(path: Path, waiting_for: str) -> Iterator[None]:
    """Hold an exclusive lock on `path`, which is created if missing. Prints what it waits for. A dying process releases it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"dev: Waiting: {waiting_for}.", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
