"""Memory does not grow with the size of a file group: peaks of processes that work on one of some 650 MB of Arrow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tables.memory_process import ARROW_BYTES

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 400 * 1024**2


def work(folder: Path, name: str) -> int:
    """By how many bytes the peak of a process grew while it did that."""
    command = [sys.executable, "-m", "tests.tables.memory_process", str(folder), name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_reading_rewriting_and_compacting_a_large_file_group_take_little_memory(kind: str, tmp_path: Path) -> None:
    work(tmp_path, f"make {kind}")
    assert work(tmp_path, "scan") < LIMIT_BYTES
    held = work(tmp_path, "hold")
    assert held > ARROW_BYTES > LIMIT_BYTES, "whatever holds the group is seen to"
    works = ["upsert", "scan", "count"] + (["compact", "scan"] if kind == "merge_on_read" else [])
    peaks = {(number, name): work(tmp_path, name) for number, name in enumerate(works)}
    assert max(peaks.values()) < LIMIT_BYTES, {name: f"{peak / 1024**2:.0f} MiB" for (_, name), peak in peaks.items()}
