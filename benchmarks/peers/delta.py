"""Delta Lake on Spark: deletion vectors for merge-on-read, none for copy-on-write. No buckets: files of sorted key ranges instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.configuration import DELTA_SESSION, delta_table
from benchmarks.peers.spark import SparkSide, asked, asked_by_type, bulk_order, delete_from, filtered, merge_into, properties_text
from benchmarks.works import CHANGE_TYPE, CODEC, Query

_CHANGE_TYPES = {"insert": "insert", "update_preimage": "update_before", "update_postimage": "update_after", "delete": "delete"}
_NEW_STATE = f"{CHANGE_TYPE} in ('insert', 'update_postimage')"


class DeltaSide(SparkSide):
    """Delta Lake on Spark."""

    def session_settings(self) -> Mapping[str, str]:
        """The settings of its Spark session."""
        return DELTA_SESSION

    def about(self) -> dict[str, str]:
        """Versions and settings of this side."""
        return {"layout": "no buckets: as many files, each of a range of the key and sorted by it", "codec": CODEC}

    def create(self, table: BenchTable) -> str:
        """As `Side.create`."""
        layout = table.layout
        columns = ", ".join(f"{name} {kind}" for name, kind in layout.columns.items())
        table.state["path"] = place = f"{self.settings.root('s3a')}/{table.name}"
        self.spark.sql(f"create table delta.`{place}` ({columns}) using delta tblproperties ({properties_text(delta_table(layout))})")
        return place

    def load(self, table: BenchTable, path: Path) -> None:
        """As `Side.load`."""
        rows = self.read(path)
        ordered = bulk_order(rows, table) if table.layout.keyed else rows
        ordered.write.format("delta").mode("append").save(table.state["path"])

    def upsert(self, table: BenchTable, batch: Any) -> None:
        """As `Side.upsert`."""
        merge_into(self, table, batch, _name(table))

    def append(self, table: BenchTable, batch: Any) -> None:
        """As `Side.append`."""
        batch.write.format("delta").mode("append").save(table.state["path"])

    def delete(self, table: BenchTable, batch: Any) -> None:
        """As `Side.delete`."""
        delete_from(self, table, batch, _name(table))

    def compact(self, table: BenchTable) -> None:
        """As `Side.compact`."""
        self.spark.sql(f"reorg table {_name(table)} apply (purge)").collect()

    def cluster(self, table: BenchTable, by: Sequence[str], *, zorder: bool) -> None:  # noqa: ARG002 - of one column it is a sort
        """As `Side.cluster`."""
        self.spark.sql(f"optimize {_name(table)} zorder by ({', '.join(by)})").collect()

    def clean(self, table: BenchTable) -> None:
        """As `Side.clean`."""
        self.spark.sql(f"vacuum {_name(table)} retain 0 hours").collect()

    def version(self, table: BenchTable) -> int:
        """As `Side.version`."""
        return int(self.spark.sql(f"describe history {_name(table)} limit 1").collect()[0]["version"])

    def frame(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> DataFrame:
        """The newest rows, or those of a version, as a DataFrame."""
        reader = self.spark.read.format("delta")
        if as_of is not None:
            reader = reader.option("versionAsOf", as_of)
        return filtered(reader.load(table.state["path"]), where, columns)

    def incremental(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """The newest of the changes of each key, where more than one commit may have changed it."""
        rows = self._changes(table, since).where(_NEW_STATE)
        if self.version(table) > since + 1:
            newest = Window.partitionBy(*table.layout.key).orderBy(F.col("_commit_version").desc())
            rows = rows.withColumn("_rank", F.row_number().over(newest)).where("_rank = 1")
        return asked(rows, query)

    def changes(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """As `Side.changes`."""
        return asked_by_type(self._changes(table, since), query, _CHANGE_TYPES)

    def reopen(self, table: BenchTable) -> None:  # noqa: ARG002 - the cache is of the whole process
        """As `Side.reopen`."""
        java: Any = self.spark._jvm
        java.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def _changes(self, table: BenchTable, since: int) -> DataFrame:
        reader = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", since + 1)
        return reader.load(table.state["path"])


def _name(table: BenchTable) -> str:
    return f"delta.`{table.state['path']}`"


Side = DeltaSide
