"""`QuerySession`: what a refresh computes in. Its results stay in it. `LocalQuerySession` is DuckDB in this process.

Its text means the same in DuckDB and Spark: names in double quotes, and no function but those that both have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from sqlglot import expressions as sql

from objcat.common.duckdb_sandbox import connect_duckdb
from objcat.engine.local import LocalEngine, to_arrow_batch
from objcat.engine.spooled_batch import SPOOL_SHARE, RowSpool
from objcat.predicate.duckdb import duckdb_text, strict_casts
from objcat.sql.duckdb_runner import StreamedScan, run_in_duckdb
from objcat.table.scan import Scan
from objcat.table.table import Table

R = TypeVar("R")

NEEDED_BY = "Derived tables need"
_SHAPE = "_objcat_shape"


class QuerySession(Protocol):
    """Runs queries. Each method raises InvalidSql for one that is refused, and what a scan inside it raised.

    Rows of many are of the kind that the session holds: an Arrow table or a frame of Spark.
    """

    @property
    def exact(self) -> str:
        """The type of sums of whole numbers."""

    @property
    def lookup_max(self) -> int:
        """The most values by which rows are looked up. With more, all rows are read."""

    def text(self, tree: sql.Expr) -> str:
        """The text that runs."""

    def make(self, name: str, text: str) -> None:
        """Give the rows of a query a name, in place of what had it."""

    def add(self, name: str, text: str) -> None:
        """Add the rows of a query to those of a name."""

    def rows(self, text: str) -> pa.Table:
        """The rows of a query that gives few."""

    def held(self, text: str, schema: pa.Schema) -> Any:
        """The rows of a query, for `register`. schema: theirs."""

    def is_empty(self, rows: Any) -> bool:
        """Whether held rows are none."""

    def values(self, text: str) -> pa.ChunkedArray | None:
        """The first column of a query; None where it has more than `lookup_max` rows."""

    def types(self, text: str) -> list[str]:
        """The types of the columns of a query, in capital letters."""

    def kinds(self, schema: pa.Schema) -> list[str]:
        """The types of columns, as a CAST names them."""

    def register(self, name: str, rows: Any) -> None:
        """Let queries read held rows or a scan under a name, in place of what had it."""

    def batch(self, name: str, table: Table) -> tuple[Any, Any]:
        """The engine that writes the rows of a name to a table, and these rows."""

    def close(self) -> None:
        """End it."""


class LocalQuerySession:
    """One DuckDB connection. Results are on disk where they do not fit into memory."""

    exact = "HUGEINT"
    lookup_max = 50_000

    def __init__(self) -> None:
        self._connection = connect_duckdb(needed_by=NEEDED_BY)
        self._errors: list[BaseException] = []

    def text(self, tree: sql.Expr) -> str:
        """See `QuerySession.text`."""
        return duckdb_text(strict_casts(tree), identify=True)

    def make(self, name: str, text: str) -> None:
        """See `QuerySession.make`."""
        self._tried(lambda: self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {text}"))

    def add(self, name: str, text: str) -> None:
        """See `QuerySession.add`."""
        self._tried(lambda: self._connection.execute(f"INSERT INTO {name} {text}"))

    def rows(self, text: str) -> pa.Table:
        """See `QuerySession.rows`."""
        return self._tried(lambda: self._connection.sql(text).to_arrow_table())

    def held(self, text: str, schema: pa.Schema) -> pa.Table:
        """See `QuerySession.held`."""
        return self.rows(text).cast(schema)

    def is_empty(self, rows: pa.Table) -> bool:
        """See `QuerySession.is_empty`."""
        return not rows.num_rows

    def values(self, text: str) -> pa.ChunkedArray | None:
        """See `QuerySession.values`."""
        found = self.rows(f"SELECT * FROM ({text}) LIMIT {self.lookup_max + 1}")
        return None if found.num_rows > self.lookup_max else found.column(0)

    def types(self, text: str) -> list[str]:
        """See `QuerySession.types`."""
        return [str(kind) for kind in self._tried(lambda: self._connection.sql(text).types)]

    def kinds(self, schema: pa.Schema) -> list[str]:
        """See `QuerySession.kinds`."""
        self.register(_SHAPE, schema.empty_table())
        return self.types(f"SELECT * FROM {_SHAPE}")

    def register(self, name: str, rows: pa.Table | Scan) -> None:
        """See `QuerySession.register`."""
        self._connection.register(name, rows if isinstance(rows, pa.Table) else StreamedScan(rows, self._errors))

    def batch(self, name: str, table: Table) -> tuple[Any, Any]:
        """See `QuerySession.batch`."""
        fileio = table._context.fileio
        spool = RowSpool(bytes_max=fileio.env.memory_bytes // SPOOL_SHARE)
        stream = self._tried(lambda: self._connection.sql(f"SELECT * FROM {name}").to_arrow_reader())
        return LocalEngine(fileio), to_arrow_batch(stream, table.spec.table_schema, spool)

    def close(self) -> None:
        """See `QuerySession.close`."""
        self._connection.close()

    def _tried(self, work: Callable[[], R]) -> R:
        """See `run_in_duckdb`."""
        return run_in_duckdb(work, self._errors, what="the query of the derived table", then="Nothing was written. Correct the query.")
