"""What users hold of a read: a scan, pinned to one snapshot, and the forms in which its rows come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from fileio.store import FileIO
from objcat.errors import CorruptTable
from objcat.local import LocalEngine
from objcat.read import ScanPlan
from objcat.tasks import scan_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Scan:
    """A planned scan, pinned to one snapshot. check: raises SnapshotExpired when the log says that the snapshot was cleaned."""

    def __init__(self, fileio: FileIO, plan: ScanPlan, *, check: Callable[[], None] = lambda: None) -> None:
        self._fileio = fileio
        self._check = check
        self.plan = plan

    @property
    def schema(self) -> pa.Schema:
        return scan_schema(self.plan.snapshot.spec, self.plan.columns)

    def to_arrow(self) -> pa.Table:
        """All rows, in this process. Raises SnapshotExpired when the snapshot was cleaned since it was planned."""
        groups = [*self.plan.plain, *self.plan.merged]
        tasks = self.plan.tasks(groups, count_max=self._fileio.env.parallelism)
        try:
            tables = list(LocalEngine(self._fileio).scan(tasks))
        except CorruptTable:
            self._check()
            raise
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """A lazy Spark DataFrame: native Parquet scans where the cluster reads the scheme, Arrow through `fileio` elsewhere."""
        from objcat.spark.read import scan_dataframe

        return scan_dataframe(spark, self._fileio.describe(), self.plan)
