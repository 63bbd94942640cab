"""Memory grows neither with the size of a file group nor with that of a table: peaks of processes that work on one of some 650 MB of Arrow,
and on TPC-H."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.tables.memory_process import ARROW_BYTES

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 400 * 1024**2
CORES = 2
CORE_BYTES_MAX = 1024**3
SCALE = "10"
KEYS = {"orders": "o_orderkey", "lineitem": "l_orderkey,l_linenumber"}


def work(folder: Path, name: str) -> int:
    """By how many bytes the peak of a process grew while it did that."""
    return run("tests.tables.memory_process", str(folder), name)


def run(module: str, *arguments: str) -> int:
    """The number that a process prints."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.tier("all")
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


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", KEYS)
def test_no_work_on_a_table_of_any_size_takes_more_than_one_gib_for_each_core(name: str, tmp_path: Path) -> None:
    program = Path(sysconfig.get_path("scripts"), "tpchgen-cli")
    command = [str(program), "parquet", "-s", SCALE, f"--tables={name}", f"--output-dir={tmp_path}"]
    subprocess.run(command, check=True, capture_output=True)
    source, lake = tmp_path / f"{name}.parquet", tmp_path / "lake"
    works = ["load", "scan", "upsert", "scan", "compact", "scan"]
    peaks = [(one, run("tests.tables.tpch_process", str(lake), str(source), KEYS[name], one)) for one in works]
    assert max(peak for _, peak in peaks) < CORES * CORE_BYTES_MAX, [f"{one}: {peak / 1024**2:,.0f} MiB" for one, peak in peaks]
