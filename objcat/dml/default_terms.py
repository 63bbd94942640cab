"""Stored values as terms of a query: defaults of columns, for rows that a merge inserts without them, and the watermark."""

from __future__ import annotations

from typing import Any

from sqlglot import expressions as sql

from objcat.metadata.column_defaults import is_said
from objcat.metadata.schema import Column, ColumnType, DefaultValue


def default_term(column: Column) -> Any:
    """What a write stores that leaves the column out, as a tree for DuckDB and Spark. None where that is null."""
    return value_term(column.write_default, column.type) if is_said(column.write_default) else None


def value_term(value: DefaultValue, column_type: ColumnType) -> Any:
    """A value, as a default is stored, as a tree for DuckDB and Spark."""
    if isinstance(value, bool):
        return sql.Boolean(this=value)
    text = sql.Literal.string(str(value))
    match column_type:
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
