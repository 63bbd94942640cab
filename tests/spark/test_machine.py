"""All operations in any order beside a dict, by the Spark engine; each read is done by both engines, which agree."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from pyspark.sql import SparkSession

import objcat
from objcat.metadata.table_spec import Index
from tests.tables.machine import BUCKETS, LOCATED, TableMachine

STEPS = 6
EXAMPLES = 3


def machine(spark: SparkSession, chosen: tuple[Index, ...] = BUCKETS, *, moves: bool = False) -> type[TableMachine]:
    class SparkMachine(TableMachine):
        indexes = chosen
        moving = moves

        def __init__(self) -> None:
            super().__init__()
            self.spark = spark
            self.place = tempfile.mkdtemp()
            self.lake = objcat.connect(self.place)

        def batch(self, rows: list[dict[str, Any]], schema: pa.Schema) -> Any:
            return spark.createDataFrame(pa.Table.from_pylist(rows, schema))

        def rows(self, read: Any) -> list[dict[str, Any]]:
            local = read.to_arrow()
            through_spark = read.to_spark(spark).toArrow().select(local.column_names).cast(local.schema)
            found: list[dict[str, Any]] = through_spark.to_pylist()
            assert sorted(map(repr, found)) == sorted(map(repr, local.to_pylist()))
            return found

        def teardown(self) -> None:
            shutil.rmtree(self.place)

    return SparkMachine


@pytest.mark.timeout(600)
def test_both_engines_agree_with_a_dict(spark: SparkSession) -> None:
    run_state_machine_as_test(
        machine(spark), settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, derandomize=True)
    )


@pytest.mark.usefixtures("by_jobs")
@pytest.mark.timeout(600)
def test_both_engines_agree_with_a_dict_where_keys_are_located(spark: SparkSession) -> None:
    run_state_machine_as_test(
        machine(spark, LOCATED), settings=settings(max_examples=2, stateful_step_count=STEPS, deadline=None, derandomize=True)
    )


@pytest.mark.usefixtures("by_jobs")
@pytest.mark.timeout(600)
def test_both_engines_agree_with_a_dict_where_keys_move(spark: SparkSession) -> None:
    run_state_machine_as_test(
        machine(spark, LOCATED, moves=True), settings=settings(max_examples=1, stateful_step_count=STEPS, deadline=None, derandomize=True)
    )


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("indexes", "moves"), [(BUCKETS, False), (LOCATED, False), (LOCATED, True)], ids=["buckets", "located", "moving"])
def test_both_engines_agree_with_a_dict_for_long(spark: SparkSession, indexes: tuple[Index, ...], *, moves: bool) -> None:
    run_state_machine_as_test(
        machine(spark, indexes, moves=moves), settings=settings(max_examples=60, stateful_step_count=15, deadline=None)
    )
