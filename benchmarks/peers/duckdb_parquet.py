"""The floor without Spark: DuckDB on a plain Parquet file, sorted by the key. It has no update. It
rewrites every row, and that is not measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.peers import base
from benchmarks.peers.base import BenchTable, Rows, Settings
from benchmarks.works import CODEC, CODEC_LEVEL, NotAvailable, Query, Statement, digest_query


class DuckdbSide(base.Side):
    """DuckDB on a plain Parquet file."""

    layout = "one file, sorted by key"

    def start(self, settings: Settings) -> dict[str, str]:
        """As `Side.start`."""
        self.settings = settings
        self._duck = duckdb.connect()
        self._duck.execute(f"set threads = {settings.cores}; set TimeZone = 'UTC'")
        return {"duckdb": duckdb.__version__, "layout": self.layout, "codec": CODEC}

    def create(self, table: BenchTable) -> str:
        """As `Side.create`."""
        place = self.settings.directory / table.name
        place.mkdir()
        table.state["generation"] = 0
        return str(place)

    def read(self, path: Path) -> Path:
        """As `Side.read`."""
        return path

    def load(self, table: BenchTable, path: Path) -> None:
        """As `Side.load`."""
        self._write(table, f"select * from '{path}'")

    def upsert(self, table: BenchTable, batch: Any) -> None:
        """As `Side.upsert`."""
        key, ordering = ", ".join(table.layout.key), table.layout.ordering
        both = f"select *, 0 as _new from {self._file(table)} union all by name select *, 1 as _new from '{batch}'"
        rank = f"{ordering} desc, _new desc" if ordering else "_new desc"
        newest = f"select * from ({both}) qualify row_number() over (partition by {key} order by {rank}) = 1"
        self._write(table, f"select * exclude (_new) from ({newest})")

    def version(self, table: BenchTable) -> int:
        """As `Side.version`."""
        return int(table.state["generation"])

    def query(self, table: BenchTable, query: Query, *, as_of: Any = None) -> Rows:
        """As `Side.query`."""
        if as_of is not None:
            raise NotAvailable("plain files have no versions")
        what, where = ", ".join(query.aggregates or query.columns), f" where {query.where}" if query.where else ""
        return list(self._duck.execute(f"select {what} from {self._file(table)}{where}").fetchall())

    def digest(self, table: BenchTable) -> Rows:
        """As `Side.digest`."""
        return self.query(table, digest_query(table.layout.source, "duckdb"))

    def statement(self, tables: Mapping[str, BenchTable], statement: Statement) -> tuple[Rows, int]:
        """As `Side.statement`."""
        sql = statement.sql.format(**{source: self._file(table) for source, table in tables.items()})
        return list(self._duck.execute(sql).fetchall()), 0

    def stop(self) -> None:
        """As `Side.stop`."""
        self._duck.close()

    def order_of(self, table: BenchTable) -> list[str]:
        """What the rows of a file are sorted by, in SQL."""
        return list(table.layout.key) if table.layout.keyed else []

    def _file(self, table: BenchTable) -> str:
        return f"'{self.settings.directory / table.name / str(table.state['generation'])}.parquet'"

    def _write(self, table: BenchTable, select: str) -> None:
        by = self.order_of(table)
        order = f" order by {', '.join(by)}" if by else ""
        before = Path(self._file(table).strip("'"))
        after = before.with_name(f"{table.state['generation'] + 1}.parquet")
        how = f"(format parquet, compression {CODEC}, compression_level {CODEC_LEVEL})"
        self._duck.execute(f"copy ({select}{order}) to '{after}' {how}")
        table.state["generation"] += 1
        before.unlink(missing_ok=True)


Side = DuckdbSide
