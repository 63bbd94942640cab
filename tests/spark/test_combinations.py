"""Tables of every kind and all operations in any order, beside dicts: Spark does some of the writes, services and reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.combinations.with_spark import SeveralOrderingsOnSpark, run_with
from tests.effort import few, seeds

SEEDS = range(40)
BY_DEFAULT = 2


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [*few(SEEDS, BY_DEFAULT), *seeds(0, with_all=10)])
def test_both_engines_are_what_the_dicts_say(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    run_with(spark, tmp_path, seed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [*few(SEEDS, 1), *seeds(0, with_all=10)])
def test_both_engines_with_several_ordering_columns(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    run_with(spark, tmp_path, seed, SeveralOrderingsOnSpark)
