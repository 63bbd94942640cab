"""The floor of loads without Spark: DuckDB writes a plain Parquet file sorted by bucket and key, the order of objcat's files."""

from __future__ import annotations

from typing import Any

from benchmarks.peers import duckdb_parquet
from benchmarks.peers.base import BenchTable
from benchmarks.works import BUCKETS, NotAvailable


class DuckdbBucketsSide(duckdb_parquet.DuckdbSide):
    """DuckDB on a plain Parquet file, for loads."""

    layout = "one file, sorted by bucket and key"

    def upsert(self, table: BenchTable, batch: Any) -> None:
        """As `Side.upsert`."""
        raise NotAvailable(f"it is the floor of loads: {table.name} takes no {type(batch).__name__}")

    def order_of(self, table: BenchTable) -> list[str]:
        """By bucket, and then by key. The hash is DuckDB's own: it spreads the keys as well."""
        if not table.layout.keyed:
            return []
        return [f"hash({', '.join(table.layout.bucket_columns)}) % {BUCKETS}", *table.layout.key]


Side = DuckdbBucketsSide
