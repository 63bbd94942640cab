"""The default of a column as a term of a query, for rows that a merge inserts without the column."""

from __future__ import annotations

from typing import Any

from sqlglot import expressions as sql

from objcat.metadata.column_defaults import is_said
from objcat.metadata.schema import Column


def default_term(column: Column) -> Any:
    """What a write stores that leaves the column out, as a tree for DuckDB and Spark. None where that is null."""
    value = column.write_default
    if not is_said(value):
        return None
    if isinstance(value, bool):
        return sql.Boolean(this=value)
    text = sql.Literal.string(str(value))
    match column.type:
        case "string":
            return text
        case "binary":
            return sql.Unhex(this=text)
        case "timestamp":
            kind = "TIMESTAMPTZ"
        case "timestamp_ntz":
            kind = "TIMESTAMPNTZ"
        case other:
            kind = str(other)
    return sql.Cast(this=text, to=sql.DataType.build(kind))
