"""Iceberg on Spark: a Hadoop catalog, format 3 (deletion vectors), tables partitioned into buckets of the key and sorted by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.configuration import iceberg_session, iceberg_table
from benchmarks.peers.spark import SparkSide, asked, asked_by_type, delete_from, filtered, merge_into, properties_text
from benchmarks.works import BUCKETS, CHANGE_TYPE, CODEC, Query

_CHANGE_TYPES = {"INSERT": "insert", "UPDATE_BEFORE": "update_before", "UPDATE_AFTER": "update_after", "DELETE": "delete"}


class IcebergSide(SparkSide):
    """Iceberg on Spark."""

    def session_settings(self) -> Mapping[str, str]:
        """The settings of its Spark session."""
        return iceberg_session(self._warehouse())

    def about(self) -> dict[str, str]:
        """Versions and settings of this side."""
        return {"layout": f"format 3, bucket({BUCKETS}), locally ordered by key", "codec": CODEC}

    def create(self, table: BenchTable) -> str:
        """As `Side.create`."""
        layout = table.layout
        columns = ", ".join(f"{name} {kind}" for name, kind in layout.columns.items())
        (by,) = layout.bucket_columns[:1]
        partitioned = f"partitioned by (bucket({BUCKETS}, {by})) " if layout.keyed and layout.index == "bucket" else ""
        properties = properties_text(iceberg_table(layout))
        self.spark.sql(f"create table {_name(table)} ({columns}) using iceberg {partitioned}tblproperties ({properties})")
        if layout.keyed:
            self.spark.sql(f"alter table {_name(table)} write distributed by partition locally ordered by {', '.join(layout.key)}")
        return f"{self._warehouse()}/db/{table.name}"

    def load(self, table: BenchTable, path: Path) -> None:
        """As `Side.load`."""
        self.append(table, self.read(path))

    def upsert(self, table: BenchTable, batch: Any) -> None:
        """As `Side.upsert`."""
        merge_into(self, table, batch, _name(table))

    def append(self, table: BenchTable, batch: Any) -> None:
        """As `Side.append`."""
        batch.writeTo(_name(table)).append()

    def delete(self, table: BenchTable, batch: Any) -> None:
        """As `Side.delete`."""
        delete_from(self, table, batch, _name(table))

    def compact(self, table: BenchTable) -> None:
        """As `Side.compact`."""
        self._rewrite(table, "options => map('delete-file-threshold', '1', 'min-input-files', '2')")

    def cluster(self, table: BenchTable, by: Sequence[str], *, zorder: bool) -> None:
        """As `Side.cluster`."""
        order = f"zorder({', '.join(by)})" if zorder else ", ".join(by)
        self._rewrite(table, f"strategy => 'sort', sort_order => '{order}', options => map('rewrite-all', 'true')")

    def clean(self, table: BenchTable) -> None:
        """As `Side.clean`."""
        last = "older_than => current_timestamp(), retain_last => 1"
        self.spark.sql(f"call bench.system.expire_snapshots(table => 'db.{table.name}', {last})").collect()

    def version(self, table: BenchTable) -> int:
        """As `Side.version`."""
        return int(self.spark.sql(f"select snapshot_id from {_name(table)}.snapshots order by committed_at desc limit 1").collect()[0][0])

    def frame(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> DataFrame:
        """The newest rows, or those of a version, as a DataFrame."""
        reader = self.spark.read if as_of is None else self.spark.read.option("versionAsOf", as_of)
        return filtered(reader.table(_name(table)), where, columns)

    def incremental(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """The rows that its changelog says were inserted, as the new states of updates are; of several commits what is left over all."""
        later = f"select committed_at from {_name(table)}.snapshots where snapshot_id = {since}"
        commits = self.spark.sql(f"select 1 from {_name(table)}.snapshots where committed_at > ({later})").count()
        self._changelog(table, since, f"net_changes => {str(commits > 1).lower()}")
        return asked(self.spark.table("changed").where(f"{CHANGE_TYPE} = 'INSERT'"), query)

    def changes(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """As `Side.changes`."""
        key = ", ".join(f"'{name}'" for name in table.layout.key)
        self._changelog(table, since, f"identifier_columns => array({key})")
        return asked_by_type(self.spark.table("changed"), query, _CHANGE_TYPES)

    def reopen(self, table: BenchTable) -> None:
        """As `Side.reopen`."""
        self.spark.sql(f"refresh table {_name(table)}")

    def drop(self, table: BenchTable) -> None:
        """As `Side.drop`."""
        self.spark.sql(f"drop table {_name(table)}")
        super().drop(table)

    def _warehouse(self) -> str:
        return f"{self.settings.root('s3a')}/iceberg"

    def _rewrite(self, table: BenchTable, how: str) -> None:
        call = f"call bench.system.rewrite_data_files(table => 'db.{table.name}', {how})"
        if not self.spark.sql(call).collect()[0]["rewritten_data_files_count"]:
            raise RuntimeError("rewrite_data_files rewrote nothing")

    def _changelog(self, table: BenchTable, since: int, how: str) -> None:
        """A view, created again for every read."""
        options = f"map('start-snapshot-id', '{since}', 'end-snapshot-id', '{self.version(table)}')"
        call = f"table => 'db.{table.name}', changelog_view => 'changed', options => {options}, {how}"
        self.spark.sql(f"call bench.system.create_changelog_view({call})")


def _name(table: BenchTable) -> str:
    return f"bench.db.{table.name}"


Side = IcebergSide
