"""What the sides without Spark share: batches and tables as Arrow, queries over them by DuckDB."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers.base import BenchTable, Rows, Settings, Side
from benchmarks.works import CHANGE_TYPE, Query, Statement, digest_query


class LocalSide(Side):
    """A side without Spark."""

    directory: Path

    def start(self, settings: Settings) -> dict[str, str]:
        """As `Side.start`."""
        self.settings, self.directory = settings, settings.directory
        pa.set_cpu_count(settings.cores)
        return {"pyarrow": pa.__version__, **self.about()}

    @abstractmethod
    def about(self) -> dict[str, str]:
        """Versions and settings of this side."""

    @abstractmethod
    def rows(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> Any:
        """The table's newest rows, or those of a version, as an Arrow table or reader, as its users read them."""

    def read(self, path: Path) -> pa.Table:
        """As `Side.read`."""
        return pq.read_table(path)

    def query(self, table: BenchTable, query: Query, *, as_of: Any = None) -> Rows:
        """As `Side.query`."""
        return asked(self.rows(table, where=query.where, columns=query.columns, as_of=as_of), query)

    def digest(self, table: BenchTable) -> Rows:
        """As `Side.digest`."""
        return asked(self.rows(table), digest_query(table.layout.source, "duckdb"))

    def statement(self, tables: Mapping[str, BenchTable], statement: Statement) -> tuple[Rows, int]:
        """Answered by DuckDB, which has no Exchanges."""
        with duckdb.connect() as duck:
            duck.execute("set threads = 2")
            for source, table in tables.items():
                duck.register(source, self.rows(table, columns=statement.columns[source]))
            return list(duck.execute(statement.sql.format(**{source: source for source in tables})).fetchall()), 0

    def stop(self) -> None:
        """As `Side.stop`."""


def reader_of(path: Path) -> pa.RecordBatchReader:
    """The rows of a file as a stream, so that a load of any size could be done in bounded memory."""
    file = pq.ParquetFile(path)
    return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(batch_size=64 * 1024))


def asked(rows: Any, query: Query) -> Rows:
    if not query.aggregates:
        table = rows if isinstance(rows, pa.Table) else pa.table(rows.read_all())
        return [tuple(row.values()) for row in table.select(list(query.columns)).to_pylist()]
    with duckdb.connect() as duck:
        duck.execute("set threads = 2")
        duck.register("side", rows)
        return list(duck.execute(f"select {', '.join(query.aggregates)} from side").fetchall())


def asked_by_type(changed: Any, query: Query, types: Mapping[str, str]) -> Rows:
    """The aggregates over changes, for each type. types: the side's own word for each of ours, in the column `_change_type`."""
    word = " ".join(f"when '{own}' then '{ours}'" for own, ours in types.items())
    with duckdb.connect() as duck:
        duck.execute("set threads = 2")
        duck.register("side", changed)
        what = f"case {CHANGE_TYPE} {word} end, {', '.join(query.aggregates)}"
        return list(duck.execute(f"select {what} from side group by {CHANGE_TYPE}").fetchall())
