"""objcat on Spark, by the statements of `spark.sql`."""

from __future__ import annotations

from typing import Any

import objcat.spark
from benchmarks.peers.base import BenchTable, Settings
from benchmarks.peers.objcat_spark import ObjcatSparkSide
from benchmarks.peers.spark import delete_from, merge_into

_CATALOG = "bench"


class ObjcatSqlSide(ObjcatSparkSide):
    """What `ObjcatSparkSide` does by methods of a table, `MERGE INTO` and `writeTo` do here. It loads and reads in the same way."""

    def start(self, settings: Settings) -> dict[str, str]:
        """As `Side.start`."""
        about = super().start(settings)
        objcat.spark.views(self.spark, self._lake(), catalog=_CATALOG)
        return about

    def about(self) -> dict[str, str]:
        """Versions and settings of this side."""
        return {**super().about(), "writes": "MERGE INTO"}

    def upsert(self, table: BenchTable, batch: Any) -> None:
        """As `Side.upsert`."""
        merge_into(self, table, batch, _name(table))

    def append(self, table: BenchTable, batch: Any) -> None:
        """As `Side.append`."""
        batch.writeTo(_name(table)).append()

    def delete(self, table: BenchTable, batch: Any) -> None:
        """As `Side.delete`."""
        delete_from(self, table, batch, _name(table))


def _name(table: BenchTable) -> str:
    return f"{_CATALOG}.{table.name}"


Side = ObjcatSqlSide
