"""The context in which a statement runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from sqlglot import expressions as sql

from objcat.sql.runner import Runner, SqlLake, bind
from objcat.write.transaction import CommitResult

R = TypeVar("R")

COUNTS = pa.schema([(name, pa.int64()) for name in ("slot", "rows", "inserted", "updated", "deleted")])
"""The one row that a writing statement returns: the commit's slot (null when there was nothing to do), and rows (null when unknown)."""


@dataclass(frozen=True, slots=True)
class Context:
    """A lake, and the engine in which its statement runs. `counts`: whether the user sees how many rows were inserted and updated."""

    lake: SqlLake
    runner: Runner
    counts: bool = True

    def query(self, tree: sql.Query) -> Any:
        """The rows of a query, for the runner's `batch` or `fitted`."""
        return self.runner.rows(*bind(tree, self.lake))

    def write(self, work: Callable[[Any], R], rows: Any) -> R:
        """Run `work` with the rows of a query. Raises what either of them raises."""
        try:
            return work(rows)
        except Exception as error:
            cause = self.runner.cause(error)
            if cause is error:
                raise
            raise cause from error

    def committed(self, result: CommitResult | None) -> Any:
        """The result of a statement that wrote rows."""
        if result is None:
            counts = {name: None if name == "slot" else 0 for name in COUNTS.names}
        else:
            counts = {name: getattr(result, name) for name in COUNTS.names}
        return self.runner.told(pa.Table.from_pylist([counts], schema=COUNTS))

    def done(self) -> Any:
        """The result of a statement that returns nothing: no row."""
        return self.runner.told(pa.table({"done": pa.array([], pa.string())}))
