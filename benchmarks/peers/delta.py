"""Delta Lake on Spark: deletion vectors for merge-on-read, none for copy-on-write. No buckets: files of sorted key ranges instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.iceberg import merge_into
from benchmarks.peers.spark import SparkSide, asked, bulk_order, filtered
from benchmarks.works import CODEC, Query


class DeltaSide(SparkSide):
    def session_settings(self) -> Mapping[str, str]:
        return {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }

    def about(self) -> dict[str, str]:
        return {"layout": "no buckets: as many files, each of a range of the key and sorted by it", "codec": CODEC}

    def create(self, table: BenchTable) -> Path:
        layout = table.layout
        columns = ", ".join(f"{name} {kind}" for name, kind in layout.columns.items())
        vectors = str(layout.kind == "merge_on_read").lower()
        properties = f"'delta.enableDeletionVectors'='{vectors}', 'delta.enableChangeDataFeed'='{str(layout.changes).lower()}'"
        place = self.directory / table.name
        self.spark.sql(f"create table delta.`{place}` ({columns}) using delta tblproperties ({properties})")
        table.state["path"] = str(place)
        return place

    def load(self, table: BenchTable, path: Path) -> None:
        bulk_order(self.read(path), table).write.format("delta").mode("append").save(table.state["path"])

    def upsert(self, table: BenchTable, batch: Any) -> None:
        merge_into(self, table, batch, f"delta.`{table.state['path']}`")

    def compact(self, table: BenchTable) -> None:
        self.spark.sql(f"reorg table delta.`{table.state['path']}` apply (purge)").collect()

    def frame(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        return filtered(self.spark.read.format("delta").load(table.state["path"]), where, columns)

    def last_commit(self, table: BenchTable, query: Query) -> Rows:
        path = table.state["path"]
        newest = self.spark.sql(f"describe history delta.`{path}` limit 1").collect()[0]["version"]
        reader = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", newest)
        return asked(reader.load(path).where("_change_type in ('insert', 'update_postimage')"), query)


Side = DeltaSide
