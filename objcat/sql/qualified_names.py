"""Which parts of a statement are done. One that is parsed and then left out would change other rows than the statement says."""

from __future__ import annotations

from typing import Any

from sqlglot import expressions as sql

from objcat.errors import InvalidSql

TARGET = "this db catalog alias"
"""Of a table that is written to."""


def check_parts(node: sql.Expr, done: str, form: str) -> None:
    """Refuse a node of a statement that has a part which nobody looks at. done: the other ones, as the parser calls them. form: how the
    statement is written. Raises InvalidSql."""
    for name, value in node.args.items():
        if value and name not in done.split():
            raise InvalidSql(f"{_said(name, value)} is not there in this statement, and nothing was done: write {form}")


def _said(name: str, value: Any) -> str:
    first = value[0] if isinstance(value, list) else value
    word = name.strip("_").replace("_", " ")
    return f"{first.sql('spark').strip()!r} ({word})" if isinstance(first, sql.Expr) else repr(word)
