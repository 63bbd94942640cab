"""Copies of whole lakes on disk."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_lake(source: str | Path, target: str | Path) -> None:
    """Copy a lake whose writers have ended, but for a hint that may still be on its way: its first name is gone when it has arrived."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("tmp"))
