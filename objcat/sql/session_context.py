"""The context of a statement that Spark has resolved: one table is written to, and queries are those of the session."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

from sqlglot import expressions as sql

from objcat.predicate.dialect import spark_sql, without_variables
from objcat.sql.context import Context
from objcat.sql.runner import Runner
from objcat.write.transaction import CommitResult

_WITH = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*with\b", re.IGNORECASE | re.DOTALL)


class SessionRunner(Runner, Protocol):
    """A runner that knows the tables of a session."""

    def session_rows(self, text: str) -> Any:
        """The rows of a query over the tables and views of the session. Raises InvalidSql."""


class SessionContext(Context):
    """A context in which every name of a table to write to is one table, and a query may read whatever the session can read."""

    _rows_of: Callable[[str], Any]
    _with: str
    _rows: Any

    def __init__(self, table: Any, runner: SessionRunner, before: str, rows: Any = None) -> None:
        """`before`: the text before the statement, of which WITH counts. `rows`: of its only query; None: its text says them."""
        super().__init__(_OneTable(table), runner, counts=False)  # type: ignore[arg-type]
        # The class above is frozen.
        object.__setattr__(self, "_rows_of", runner.session_rows)
        object.__setattr__(self, "_with", f"{before} " if _WITH.match(before) else "")
        object.__setattr__(self, "_rows", rows)

    def query(self, tree: sql.Query) -> Any:
        """The rows of a query, from the session."""
        return self._rows if self._rows is not None else self._rows_of(self._with + spark_sql(without_variables(tree)))

    def committed(self, result: CommitResult | None) -> Any:
        """Spark returns no row for these statements."""
        return result


class _OneTable:
    """The part of a lake that these statements need."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def table(self, _name: str) -> Any:
        """The table that the statement writes to."""
        return self._table
