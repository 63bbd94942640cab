"""Memory of Spark applications that work on a large table: a driver with its JVM and Python, and the Python workers of its tasks."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORES = 2
CORE_BYTES_MAX = 1024**3
SCALE = "10"


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
def test_no_work_through_spark_on_a_table_of_any_size_takes_more_than_one_gib_for_each_core(tmp_path: Path) -> None:
    """Of all processes together: the JVM's heap is less than the half of it."""
    program = Path(sysconfig.get_path("scripts"), "tpchgen-cli")
    command = [str(program), "parquet", "-s", SCALE, "--tables=lineitem", f"--output-dir={tmp_path}"]
    subprocess.run(command, check=True, capture_output=True)
    lake, source = tmp_path / "lake", tmp_path / "lineitem.parquet"
    peaks = []
    for work in ["load", "scan", "upsert", "scan", "compact", "scan"]:
        arguments = [str(lake), str(source), "l_orderkey,l_linenumber", work]
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.memory_process", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        peaks.append((work, json.loads(done.stdout.splitlines()[-1])))
    assert max(peak["tree"] for _, peak in peaks) < CORES * CORE_BYTES_MAX, peaks
