"""objcat on Spark, through its public names only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.objcat_table import ABOUT, ObjcatTables, bulk_load
from benchmarks.peers.spark import SparkSide, asked, asked_by_type
from benchmarks.works import CHANGE_TYPES, Query


class ObjcatSparkSide(ObjcatTables, SparkSide):
    """objcat on Spark."""

    def about(self) -> dict[str, str]:
        """Versions and settings of this side."""
        return ABOUT

    def load(self, table: BenchTable, path: Path) -> str:
        """As `Side.load`."""
        return bulk_load(table, self.read(path))

    def frame(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> DataFrame:
        """The newest rows, or those of a version, as a DataFrame."""
        frame: DataFrame = self.opened(table).scan(where=where, columns=columns, as_of=as_of).to_spark(self.spark)
        return frame

    def incremental(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """As `Side.incremental`."""
        return asked(table.state["table"].incremental(since=since, columns=query.columns).to_spark(self.spark), query)

    def changes(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """As `Side.changes`."""
        own: Mapping[str, str] = {name: name for name in CHANGE_TYPES}
        return asked_by_type(table.state["table"].changes(since=since, columns=query.columns).to_spark(self.spark), query, own)


Side = ObjcatSparkSide
