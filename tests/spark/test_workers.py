"""Workers that run another Python than the driver's: what users are told, in one sentence."""

from __future__ import annotations

import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
from objcat.errors import MissingOnWorkers
from objcat.spark import worker_task

ADVICE = f"Have workers run the driver's Python, {sys.executable}, by PYSPARK_PYTHON in the environment before the session starts"
WORKS: dict[str, Callable[[objcat.Table, SparkSession], Any]] = {
    "upsert": lambda table, spark: table.upsert(spark.range(5).toDF("id")),
    "compact": lambda table, spark: table.maintenance.compact(spark=spark),
    "changes": lambda table, spark: table.changes(since=-1).to_spark(spark),
    "scan through Arrow": lambda table, spark: table.scan(where=pa.compute.field("id") > 0).to_spark(spark),
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver's Python without its libraries: what `python3` is where a virtual environment was not activated."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, symlinks=True, with_pip=False)
    return place / "bin" / "python"


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    made = objcat.create_table_at(tmp_path / "table", pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"])
    made.upsert([{"id": 1}])
    return made


@pytest.fixture
def runs(spark: SparkSession) -> Iterator[Callable[[object], None]]:
    """Has workers of the session run another command."""
    before = spark.sparkContext.pythonExec

    def run(command: object) -> None:
        spark.sparkContext.pythonExec = str(command)

    yield run
    spark.sparkContext.pythonExec = before


@pytest.mark.parametrize("work", WORKS)
def test_a_python_without_our_libraries_is_one_sentence(
    spark: SparkSession, table: objcat.Table, bare: Path, runs: Callable[[object], None], work: str
) -> None:
    runs(bare)
    slot = table.refresh().slot
    with pytest.raises(MissingOnWorkers) as raised:
        WORKS[work](table, spark)
    said = str(raised.value)
    assert "it has no pyarrow" in said and ADVICE in said
    assert "\n" not in said
    assert table.refresh().slot == slot


def test_a_python_that_is_not_there_is_one_sentence(spark: SparkSession, table: objcat.Table, runs: Callable[[object], None]) -> None:
    runs("/no/such/python")
    with pytest.raises(MissingOnWorkers, match="the command /no/such/python cannot be run there") as raised:
        WORKS["upsert"](table, spark)
    assert ADVICE in str(raised.value)


def test_another_version_of_python_is_one_sentence() -> None:
    # What PySpark says; a machine need not have a second Python.
    said = "Python in worker has different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions."
    error = f"PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] {said}"
    assert worker_task.other_python(error) == "it is Python 3.12, and the driver's is 3.11"


def test_workers_are_asked_once_for_a_session(
    spark: SparkSession, table: objcat.Table, tmp_path: Path, runs: Callable[[object], None]
) -> None:
    """By a job, before the first frame that Python workers give; none where they run the driver's Python."""
    context = spark.sparkContext
    groups = iter(("asked-0", "asked-1", "asked-2"))

    def jobs() -> int:
        # A group of its own, since Spark forgets the oldest jobs of a long session.
        group = next(groups)
        context.setJobGroup(group, "asks its workers")
        try:
            assert table.changes(since=-1).to_spark(spark).columns
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None clears it
        # What Spark knows of its jobs is written by a queue, beside them.
        context._jsc.sc().listenerBus().waitUntilEmpty()
        return len(context.statusTracker().getJobIdsForGroup(group))

    assert jobs() == 0
    script = tmp_path / "worker"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    runs(script)
    assert jobs() == 1
    assert jobs() == 0
