"""Hudi on Spark: the index of the layout, the metadata table, no compaction inside of writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.configuration import HUDI_SESSION, hudi_table
from benchmarks.peers.spark import SparkSide, asked, asked_by_type, filtered
from benchmarks.works import BUCKETS, CHANGE_TYPE, CHANGE_TYPES, CODEC, NotAvailable, Query

_LOST_DECIMAL = '{"zero":'
"""What its change feed, as JSON, has of a decimal: nothing of the value."""
_IMAGES = {"before": {"u": "update_before", "d": "delete"}, "after": {"i": "insert", "u": "update_after"}}


class HudiSide(SparkSide):
    """Hudi on Spark."""

    def session_settings(self) -> Mapping[str, str]:
        """The settings of its Spark session."""
        return HUDI_SESSION

    def about(self) -> dict[str, str]:
        """Versions and settings of this side."""
        return {"layout": f"bucket index, {BUCKETS} buckets, sorted by key, where a work names no other index", "codec": CODEC}

    def create(self, table: BenchTable) -> str:
        """The first write makes the table."""
        if table.layout.index in ("simple", "memory"):
            raise NotAvailable(f"the index {table.layout.index} is not what its users are told to take")
        table.state["path"] = f"{self.settings.root('s3a')}/{table.name}"
        table.state["options"] = {"hoodie.table.name": table.name, **hudi_table(table.layout)}
        return str(table.state["path"])

    def load(self, table: BenchTable, path: Path) -> None:
        """As `Side.load`."""
        self._write(table, self.read(path), "bulk_insert")

    def upsert(self, table: BenchTable, batch: Any) -> None:
        """As `Side.upsert`."""
        self._write(table, batch, "upsert")

    def append(self, table: BenchTable, batch: Any) -> None:
        """As `Side.append`."""
        self._write(table, batch, "insert")

    def delete(self, table: BenchTable, batch: Any) -> None:
        """As `Side.delete`."""
        self._write(table, batch, "delete")

    def compact(self, table: BenchTable) -> None:
        # By itself it waits for five commits.
        """As `Side.compact`."""
        options = "hoodie.compact.inline.max.delta.commits=1"
        if not self._call("run_compaction", table, f"op => 'scheduleandexecute', options => '{options}'"):
            raise RuntimeError("run_compaction found nothing to compact")

    def cluster(self, table: BenchTable, by: Sequence[str], *, zorder: bool) -> None:
        """As `Side.cluster`."""
        if table.layout.keyed and table.layout.index == "bucket":
            raise NotAvailable("its clustering gives file groups names in which its bucket index finds no bucket: the next upsert fails")
        strategy = "zorder" if zorder else "linear"
        # By itself it takes files below 300 MB and waits for four commits.
        options = "hoodie.clustering.plan.strategy.small.file.limit=1073741824,hoodie.clustering.inline.max.commits=1"
        told = f"op => 'scheduleandexecute', order => '{','.join(by)}', order_strategy => '{strategy}', options => '{options}'"
        if not self._call("run_clustering", table, told):
            raise RuntimeError("run_clustering found nothing to cluster")

    def clean(self, table: BenchTable) -> None:
        # The procedure takes a table of the catalog.
        """As `Side.clean`."""
        self.spark.sql(f"create table if not exists {table.name} using hudi location '{table.state['path']}'")
        self.spark.sql(f"call run_clean(table => '{table.name}', clean_policy => 'KEEP_LATEST_FILE_VERSIONS', file_versions_retained => 1)")

    def version(self, table: BenchTable) -> list[str]:
        """The newest instant: when it was requested, and when it completed."""
        names = [path.name for path in Path(table.state["path"], ".hoodie", "timeline").iterdir()]
        completed = [name.split(".")[0].split("_") for name in names if "_" in name and name.endswith(("commit", "deltacommit"))]
        return max(completed, key=lambda times: times[1])

    def frame(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> DataFrame:
        """The newest rows, or those of a version, as a DataFrame."""
        reader = self.spark.read.format("hudi").option("hoodie.metadata.enable", "true")
        if as_of is not None:
            reader = reader.option("as.of.instant", as_of[0])
        return filtered(reader.load(table.state["path"]), where, columns)

    def incremental(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """Of instants that completed after it."""
        reader = self.spark.read.format("hudi").option("hoodie.datasource.query.type", "incremental")
        frame = reader.option("hoodie.datasource.read.begin.instanttime", since[1]).load(table.state["path"])
        return asked(frame, query)

    def changes(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """As `Side.changes`."""
        reader = self.spark.read.format("hudi").option("hoodie.datasource.query.type", "incremental")
        reader = reader.option("hoodie.datasource.query.incremental.format", "cdc")
        feed = reader.option("hoodie.datasource.read.begin.instanttime", since[1]).load(table.state["path"])
        if feed.where(F.coalesce("before", "after").contains(_LOST_DECIMAL)).limit(1).count():
            raise NotAvailable(f"its change feed has {_LOST_DECIMAL}...}} where a decimal should be")
        old, new = (_image(feed, image, kinds, table) for image, kinds in _IMAGES.items())
        return asked_by_type(old.unionByName(new), query, {name: name for name in CHANGE_TYPES})

    def reopen(self, table: BenchTable) -> None:
        """Nothing is kept between reads."""

    def _call(self, procedure: str, table: BenchTable, told: str) -> Rows:
        return [tuple(row) for row in self.spark.sql(f"call {procedure}(path => '{table.state['path']}', {told})").collect()]

    def _write(self, table: BenchTable, frame: DataFrame, operation: str) -> None:
        writer = frame.write.format("hudi").options(**table.state["options"]).option("hoodie.datasource.write.operation", operation)
        writer.mode("append").save(table.state["path"])


def _image(feed: DataFrame, image: str, kinds: Mapping[str, str], table: BenchTable) -> DataFrame:
    """The rows of a change feed as they were, or as they became. kinds: by operation, what the row is then."""
    columns = []
    for name, kind in table.layout.columns.items():
        text = F.get_json_object(image, f"$.{name}")
        value = F.date_from_unix_date(text.cast("int")) if kind == "date" else text.cast(kind)
        columns.append(value.alias(name))
    word = F.create_map(*[F.lit(text) for pair in kinds.items() for text in pair])
    return feed.where(F.col("op").isin(*kinds)).select(*columns, word[F.col("op")].alias(CHANGE_TYPE))


Side = HudiSide
