"""A real cluster: one standalone master and two worker processes, with speculation, adaptive plans and executors killed in mid-write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit import toolchain
from devkit.paths import ROOT
from devkit.spark_cluster import SparkCluster

DRIVER_S_MAX, SERVE_S_MAX = 400, 900


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def run_driver(scenario: str, cluster: SparkCluster, directory: Path, *, seconds_max: float = DRIVER_S_MAX) -> dict[str, Any]:
    environment = os.environ | {"JAVA_HOME": str(toolchain.java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.cluster.driver", scenario, cluster.url, str(directory)]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=seconds_max, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(DRIVER_S_MAX)
def test_nothing_is_lost_or_doubled_when_executors_die_and_attempts_run_twice(cluster: SparkCluster, tmp_path: Path) -> None:
    found = run_driver("survive", cluster, tmp_path)
    assert len(found) == 6
    for name, did in found.items():
        assert did["attempts"] >= 2, f"{name}: the straggler ran once, so nothing was tried"
        assert did["right"], name
        assert did["rows"] == (2000 if "delete" in name else 4000), name
        # What attempts have left that do not count is gone.
        assert did["findings"] == [], name


@pytest.mark.tier("all")
@pytest.mark.timeout(SERVE_S_MAX)
def test_writes_that_read_services_and_moves_when_executors_die(cluster: SparkCluster, tmp_path: Path) -> None:
    found = run_driver("serve", cluster, tmp_path, seconds_max=SERVE_S_MAX)
    assert len(found) == 12
    for name, did in found.items():
        assert did["attempts"] >= 2, f"{name}: no executor died, so nothing was tried"
        assert did["right"], name
        assert did["findings"] == [], name


@pytest.mark.timeout(DRIVER_S_MAX)
def test_a_worker_without_objcat_is_one_clear_sentence(cluster: SparkCluster, tmp_path: Path) -> None:
    said = run_driver("bare", cluster, tmp_path)
    assert said["kind"] == "MissingOnWorkers"
    assert said["text"].startswith("objcat is missing on the Spark worker ") and "\n" not in said["text"]
    assert said["slot_after"] == said["slot"] and not said["files"]


@pytest.mark.timeout(DRIVER_S_MAX)
def test_a_driver_whose_jvm_dies_says_what_became_of_its_write(cluster: SparkCluster, tmp_path: Path) -> None:
    found = run_driver("gone", cluster, tmp_path)
    assert found["_run"].startswith("Spark did not finish a job (objcat: upsert t): its session was stopped")
    assert found["_run slot"] == 0
    assert (found["try_commit"], found["try_commit slot"]) == (4000, 1)


@pytest.mark.timeout(DRIVER_S_MAX)
def test_a_session_that_is_stopped_under_a_write_or_before_it_is_one_sentence(cluster: SparkCluster, tmp_path: Path) -> None:
    found = run_driver("stopped", cluster, tmp_path)
    assert found.pop("same") and found.pop("findings") == []
    lost = "SparkJobLost: Spark did not finish a job (objcat: "
    given = "InvalidInput: spark is a stopped session. Nothing was done. Give one that runs, SparkSession.builder.getOrCreate()."
    for name, said in found.items():
        if name in ("delete", "update", "compact", "maintain", "scan"):
            assert said == given, name
        else:
            assert said.startswith(lost), name
            assert "): its session was stopped, or its JVM has ended. Nothing of it is visible." in said and "\n" not in said, name
    assert len(found) == 11
