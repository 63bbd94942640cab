"""Iceberg on Spark: a Hadoop catalog, format 3 (deletion vectors), tables partitioned into buckets of the key and sorted by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.spark import SparkSide, asked, filtered
from benchmarks.works import BUCKETS, CODEC, CODEC_LEVEL, Query


class IcebergSide(SparkSide):
    def session_settings(self) -> Mapping[str, str]:
        return {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.bench": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.bench.type": "hadoop",
            "spark.sql.catalog.bench.warehouse": str(self.directory / "iceberg"),
            # A join of two tables with the same buckets without a shuffle of either.
            "spark.sql.sources.v2.bucketing.enabled": "true",
            "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
            "spark.sql.iceberg.planning.preserve-data-grouping": "true",
            "spark.sql.requireAllClusterKeysForCoPartition": "false",
        }

    def about(self) -> dict[str, str]:
        return {"layout": f"format 3, bucket({BUCKETS}), locally ordered by key", "codec": CODEC}

    def create(self, table: BenchTable) -> Path:
        layout = table.layout
        # A changelog is refused for tables with deletion vectors.
        mode = "copy-on-write" if layout.changes else layout.kind.replace("_", "-")
        columns = ", ".join(f"{name} {kind}" for name, kind in layout.columns.items())
        properties = {
            "format-version": "3",
            **{f"write.{operation}.mode": mode for operation in ("merge", "update", "delete")},
            "write.parquet.compression-codec": CODEC,
            "write.parquet.compression-level": str(CODEC_LEVEL),
        }
        texts = ", ".join(f"'{name}'='{value}'" for name, value in properties.items())
        (by,) = layout.bucket_columns[:1]
        self.spark.sql(
            f"create table {_name(table)} ({columns}) using iceberg partitioned by (bucket({BUCKETS}, {by})) tblproperties ({texts})"
        )
        self.spark.sql(f"alter table {_name(table)} write distributed by partition locally ordered by {', '.join(layout.key)}")
        return self.directory / "iceberg" / "db" / table.name

    def load(self, table: BenchTable, path: Path) -> None:
        self.read(path).writeTo(_name(table)).append()

    def upsert(self, table: BenchTable, batch: Any) -> None:
        merge_into(self, table, batch, _name(table))

    def compact(self, table: BenchTable) -> None:
        options = "map('delete-file-threshold', '1', 'min-input-files', '2')"
        call = f"call bench.system.rewrite_data_files(table => 'db.{table.name}', options => {options})"
        if not self.spark.sql(call).collect()[0]["rewritten_data_files_count"]:
            raise RuntimeError("rewrite_data_files rewrote nothing")

    def frame(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        return filtered(self.spark.table(_name(table)), where, columns)

    def last_commit(self, table: BenchTable, query: Query) -> Rows:
        """A changelog of the last snapshot. Its view is made anew for every read."""
        snapshots = self.spark.sql(f"select snapshot_id from {_name(table)}.snapshots order by committed_at desc limit 2").collect()
        options = f"map('start-snapshot-id', '{snapshots[1][0]}', 'end-snapshot-id', '{snapshots[0][0]}')"
        key = ", ".join(f"'{name}'" for name in table.layout.key)
        call = f"call bench.system.create_changelog_view(table => 'db.{table.name}', changelog_view => 'changed', options => {options}, "
        self.spark.sql(f"{call} identifier_columns => array({key}))")
        return asked(self.spark.table("changed").where("_change_type in ('INSERT', 'UPDATE_AFTER')"), query)

    def drop(self, table: BenchTable) -> None:
        self.spark.sql(f"drop table {_name(table)}")
        super().drop(table)


def merge_into(side: SparkSide, table: BenchTable, batch: DataFrame, target: str) -> None:
    """`MERGE INTO` by key, in the order of the layout. Delta takes the same statement."""
    batch.createOrReplaceTempView("batch")
    on = " and ".join(f"t.{name} = s.{name}" for name in table.layout.key)
    newer = f" and s.{table.layout.ordering} >= t.{table.layout.ordering}" if table.layout.ordering else ""
    actions = f"when matched{newer} then update set * when not matched then insert *"
    side.spark.sql(f"merge into {target} t using batch s on {on} {actions}").collect()


def _name(table: BenchTable) -> str:
    return f"bench.db.{table.name}"


Side = IcebergSide
