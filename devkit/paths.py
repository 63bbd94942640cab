"""Where things are: the tree, the lock files, the cache outside the tree. Standard library only, for `devkit.bootstrap`."""

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
    """The directory for everything that is downloaded or built: `$OBJCAT_CACHE`, else `objcat` in the user's cache directory."""
    if chosen := os.environ.get("OBJCAT_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "objcat"


@contextlib.contextmanager
def file_lock(path: Path, waiting_for: str) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created when missing); says what it waits for. The kernel drops the lock when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"dev: {waiting_for}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
