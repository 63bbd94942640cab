"""Golden tables of format 1 through Spark: what it reads natively, and what it merges in Python."""

from __future__ import annotations

import json
import zipfile

import pytest
from pyspark.sql import SparkSession

import objcat
from tests.golden.content import rows_content
from tests.golden.make import ARCHIVE, EXPECTED

NULL_STRUCTS = "地名"
"""PySpark's `toArrow` does not take null structs with a field that may not be null."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> objcat.Lake:
    root = tmp_path_factory.mktemp("golden")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(root)
    return objcat.connect(root)


@pytest.mark.parametrize("name", ["city.trips", "city.Plätze", "shop.stock", "types.keys"])
def test_spark_reads_what_was_written(spark: SparkSession, lake: objcat.Lake, name: str) -> None:
    rows = lake.table(name).scan().to_spark(spark).drop(NULL_STRUCTS).toArrow()
    (*_, newest) = json.loads(EXPECTED.read_text())["content"]["tables"][name]["rows"].values()
    assert rows_content(rows) == [{column: value for column, value in row.items() if column != NULL_STRUCTS} for row in newest]
