"""The floor: Spark's own Parquet tables, bucketed and sorted. They have no update and no other order."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from benchmarks.peers.base import BenchTable
from benchmarks.peers.spark import SparkSide, filtered
from benchmarks.works import BUCKETS, NotAvailable


class PlainSide(SparkSide):
    """Spark's own Parquet tables."""

    def create(self, table: BenchTable) -> str:
        """As `Side.create`."""
        table.state["generation"] = 0
        return str(self.directory / table.name)

    def load(self, table: BenchTable, path: Path) -> None:
        """As `Side.load`."""
        self._write(table, self.read(path))

    def upsert(self, table: BenchTable, batch: Any) -> None:
        """As `Side.upsert`."""
        ordering, key = table.layout.ordering, list(table.layout.key)
        both = self.frame(table).withColumn("_new", F.lit(0)).unionByName(batch.withColumn("_new", F.lit(1)))
        order = ([F.col(ordering).desc()] if ordering else []) + [F.col("_new").desc()]
        ranked = both.withColumn("_rank", F.row_number().over(Window.partitionBy(*key).orderBy(*order)))
        self._write_anew(table, ranked.where("_rank = 1").drop("_rank", "_new"))

    def append(self, table: BenchTable, batch: Any) -> None:
        """As `Side.append`."""
        if table.layout.keyed:
            raise NotAvailable("an append would leave two files in a bucket")
        batch.write.mode("append").saveAsTable(f"{table.name}_{table.state['generation']}")

    def cluster(self, table: BenchTable, by: Sequence[str], *, zorder: bool) -> None:
        """As `Side.cluster`."""
        if table.layout.keyed or zorder:
            raise NotAvailable("plain files are sorted by columns, and lie by bucket where there is a key")
        self._write_anew(table, self.frame(table).repartitionByRange(BUCKETS, *by).sortWithinPartitions(*by))

    def frame(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> DataFrame:
        """The newest rows, or those of a version, as a DataFrame."""
        if as_of is not None:
            raise NotAvailable("plain files have no versions")
        return filtered(self.spark.table(f"{table.name}_{table.state['generation']}"), where, columns)

    def version(self, table: BenchTable) -> int:
        """As `Side.version`."""
        return int(table.state["generation"])

    def _write_anew(self, table: BenchTable, frame: DataFrame) -> None:
        before = table.state["generation"]
        self._write(table, frame)
        self.spark.sql(f"drop table {table.name}_{before}")
        shutil.rmtree(self.directory / table.name / str(before))

    def _write(self, table: BenchTable, frame: DataFrame) -> None:
        """With a key, `repartition` by the hash that `bucketBy` uses: one file for each bucket. Without one, the rows as they come."""
        number = table.state["generation"] + 1
        by = list(table.layout.bucket_columns)
        writer = (
            frame.repartition(BUCKETS, *by).write.bucketBy(BUCKETS, *by).sortBy(*table.layout.key) if table.layout.keyed else frame.write
        )
        writer.option("path", str(self.directory / table.name / str(number))).saveAsTable(f"{table.name}_{number}")
        table.state["generation"] = number


Side = PlainSide
