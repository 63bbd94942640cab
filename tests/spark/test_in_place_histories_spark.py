"""Random histories of sources, read by Spark after every step, by `spark.sql` through a catalog and by frames of scans."""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import objcat
import objcat.spark
from objcat.errors import SourceFileChanged
from tests.effort import few
from tests.tables.in_place import Row, in_order, of_lake
from tests.tables.in_place_world import STEPS, World


class SparkWorld(World):
    """A history whose table Spark reads."""

    def __init__(self, drawn: random.Random, folder: Path, kind: str, spark: SparkSession) -> None:
        store, lake = of_lake(str(folder))
        self.spark = spark
        self.views = objcat.spark.views(spark, lake, catalog=f"c{secrets.token_hex(4)}")
        super().__init__(drawn, store, lake, kind, "t")
        # A folder without a file would not be there, and that is an error of its own. No source has this one.
        store.put(f"{self.folder}/_keep", b"")

    def read(self, **asked: Any) -> list[Row]:
        where, columns = asked.get("where"), asked.get("columns")
        try:
            if self.drawn.random() < 0.25:
                frame = self.table.scan(**asked).to_spark(self.spark)
            else:
                text = f"SELECT {', '.join(columns) if columns else '*'} FROM {self.views.catalog}.t"
                frame = self.spark.sql(text if where is None else f"{text} WHERE {where}")
            return in_order(row.asDict() for row in frame.collect())
        except PySparkException as error:
            if "SourceFileChanged" not in str(error):
                raise
            raise SourceFileChanged(str(error)) from error


@pytest.mark.parametrize("kind", few(["json", "parquet", "csv", "text", "orc", "avro"], 0, integration=2))
def test_spark_answers_as_the_model(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    world = SparkWorld(random.Random(f"spark {kind}"), tmp_path, kind, spark)
    for _ in range(STEPS):
        world.step()
    world.views.close()
