"""What a statement is done with."""

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
"""What a statement that writes rows tells, one row: the commit's slot (null: nothing was to do), and rows; null where nobody knows."""


@dataclass(frozen=True, slots=True)
class Context:
    """A lake, and the engine in which its statement runs."""

    lake: SqlLake
    runner: Runner

    def query(self, tree: sql.Query) -> Any:
        """The rows of a query, for the runner's `batch` or `fitted`."""
        return self.runner.rows(*bind(tree, self.lake))

    def write(self, work: Callable[[Any], R], rows: Any) -> R:
        """Do `work` with the rows of a query. Raises what either of them does."""
        try:
            return work(rows)
        except Exception as error:
            cause = self.runner.cause(error)
            if cause is error:
                raise
            raise cause from error

    def committed(self, result: CommitResult | None) -> Any:
        """What a statement tells that wrote rows."""
        if result is None:
            counts = {name: None if name == "slot" else 0 for name in COUNTS.names}
        else:
            counts = {name: getattr(result, name) for name in COUNTS.names}
        return self.runner.told(pa.Table.from_pylist([counts], schema=COUNTS))

    def done(self) -> Any:
        """What a statement tells that has nothing to tell: no row."""
        return self.runner.told(pa.table({"done": pa.array([], pa.string())}))
