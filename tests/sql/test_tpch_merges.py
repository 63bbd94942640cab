"""A script of merges, updates and deletes over TPC-H: the answers after it equal those of DuckDB, and those of Delta Lake, after the same
text."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import objcat
from benchmarks.install import environment_of, jars_of, worker_environment
from benchmarks.peers import SIDES
from devkit.paths import ROOT
from objcat.common.validation import TableType
from tests.sql import tpch

KINDS: tuple[TableType, ...] = ("merge_on_read", "copy_on_write")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tpch.generate(tmp_path_factory.mktemp("tpch"))


def answers(lake: objcat.Lake, files: Path, kind: TableType, spark: SparkSession | None = None) -> tpch.Answers:
    tpch.load(lake, files, kind)
    return tpch.run(lake, spark)


@pytest.mark.parametrize("kind", KINDS)
def test_merges_of_tpch_equal_those_of_duckdb(files: Path, tmp_path: Path, kind: TableType) -> None:
    assert answers(objcat.connect(tmp_path), files, kind) == tpch.expected(files)


@pytest.mark.tier("all")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_merges_of_tpch_by_spark_equal_those_of_duckdb(spark: SparkSession, files: Path, tmp_path: Path, kind: TableType) -> None:
    assert answers(objcat.connect(tmp_path), files, kind, spark) == tpch.expected(files)


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
def test_merges_of_tpch_equal_those_of_delta(files: Path, tmp_path: Path) -> None:
    by_delta = delta(files, tmp_path / "delta")
    assert by_delta == tpch.expected(files), "DuckDB stands in for Delta Lake where that is not run"
    for kind in KINDS:
        assert answers(objcat.connect(tmp_path / kind), files, kind) == by_delta


def delta(files: Path, directory: Path) -> tpch.Answers:
    """What Delta Lake answers on a Spark of its own, in the environment of the benchmarks."""
    directory.mkdir()
    peer = SIDES["delta"]
    python = environment_of(peer)
    environment = worker_environment(python) | {"PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", "tests.sql.tpch_delta", str(files), *map(str, jars_of(peer))]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: tpch.Answers = json.loads(done.stdout.splitlines()[-1])
    return found
