"""Hudi on Spark: a bucket index, the metadata table, no compaction inside of writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.spark import SparkSide, asked, filtered
from benchmarks.works import BUCKETS, CODEC, Query


class HudiSide(SparkSide):
    def session_settings(self) -> Mapping[str, str]:
        return {
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        }

    def about(self) -> dict[str, str]:
        return {"layout": f"bucket index, {BUCKETS} buckets, sorted by key", "codec": CODEC}

    def create(self, table: BenchTable) -> Path:
        """The first write makes the table."""
        layout = table.layout
        place = self.directory / table.name
        table.state["path"] = str(place)
        table.state["options"] = {
            "hoodie.table.name": table.name,
            "hoodie.datasource.write.table.type": layout.kind.upper(),
            "hoodie.datasource.write.recordkey.field": ",".join(layout.key),
            "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
            "hoodie.datasource.write.partitionpath.field": "",
            "hoodie.index.type": "BUCKET",
            "hoodie.bucket.index.num.buckets": str(BUCKETS),
            "hoodie.bucket.index.hash.field": ",".join(layout.bucket_columns),
            "hoodie.metadata.enable": "true",
            "hoodie.parquet.compression.codec": CODEC,
            "hoodie.compact.inline": "false",
            "hoodie.datasource.compaction.async.enable": "false",
            "hoodie.upsert.shuffle.parallelism": str(BUCKETS),
            "hoodie.bulkinsert.shuffle.parallelism": str(BUCKETS),
        }
        if layout.ordering:
            table.state["options"] |= {
                "hoodie.write.record.merge.mode": "EVENT_TIME_ORDERING",
                "hoodie.datasource.write.precombine.field": layout.ordering,
            }
        else:
            table.state["options"] |= {"hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING"}
        return place

    def load(self, table: BenchTable, path: Path) -> None:
        self._write(table, self.read(path), "bulk_insert")

    def upsert(self, table: BenchTable, batch: Any) -> None:
        self._write(table, batch, "upsert")

    def compact(self, table: BenchTable) -> None:
        # By itself it waits for five commits.
        options = "hoodie.compact.inline.max.delta.commits=1"
        call = f"call run_compaction(op => 'scheduleandexecute', path => '{table.state['path']}', options => '{options}')"
        if not self.spark.sql(call).collect():
            raise RuntimeError("run_compaction found nothing to compact")

    def frame(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        reader = self.spark.read.format("hudi").option("hoodie.metadata.enable", "true")
        return filtered(reader.load(table.state["path"]), where, columns)

    def last_commit(self, table: BenchTable, query: Query) -> Rows:
        names = [path.name for path in Path(table.state["path"], ".hoodie", "timeline").iterdir()]
        completed = sorted(name.split(".")[0].split("_") for name in names if "_" in name and name.endswith(("commit", "deltacommit")))
        reader = self.spark.read.format("hudi").option("hoodie.datasource.query.type", "incremental")
        # Of instants that completed after the last but one.
        since = sorted(completion for _requested, completion in completed)[-2]
        frame = reader.option("hoodie.datasource.read.begin.instanttime", since).load(table.state["path"])
        return asked(frame, query)

    def _write(self, table: BenchTable, frame: DataFrame, operation: str) -> None:
        writer = frame.write.format("hudi").options(**table.state["options"]).option("hoodie.datasource.write.operation", operation)
        writer.mode("append").save(table.state["path"])


Side = HudiSide
