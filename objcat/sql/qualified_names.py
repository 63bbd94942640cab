"""Checks that every part of a statement is handled. A part that is parsed and then ignored would change other rows than the statement
says."""

from __future__ import annotations

from typing import Any

from sqlglot import expressions as sql

from objcat.errors import InvalidSql

TARGET = "this db catalog alias"
"""Parts of a table that is written to."""


def check_parts(node: sql.Expr, done: str, form: str) -> None:
    """Refuse a node of a statement that has a part which no code handles. Raises InvalidSql.

    Args:
        node: of the parsed statement.
        done: the parts that are handled, as the parser names them.
        form: how the statement is written.
    """
    for name, value in node.args.items():
        if value and name not in done.split():
            raise InvalidSql(f"{_said(name, value)} is not supported in this statement. Nothing was done. Write {form}.")


def _said(name: str, value: Any) -> str:
    first = value[0] if isinstance(value, list) else value
    word = name.strip("_").replace("_", " ")
    return f"{first.sql('spark').strip()!r} ({word})" if isinstance(first, sql.Expr) else repr(word)
