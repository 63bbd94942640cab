"""Ordering values as SQL of Spark: the value by which rows are compared, and which log rows are sure to win over base rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

from objcat.metadata.ordering import OrderingBounds
from objcat.metadata.schema import Column, decimal_digits
from objcat.spark.native.relation import internal

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - without a zone, as the column


def order_of(columns: Sequence[Column]) -> str:
    """SQL for the one value by which the rows of a key are compared. Null for a barrier."""
    names = [internal(column) for column in columns]
    if len(names) == 1:
        return names[0]
    there = " AND ".join(f"{name} IS NOT NULL" for name in names)
    fields = ", ".join(f"'o{number}', {name}" for number, name in enumerate(names))
    return f"CASE WHEN {there} THEN named_struct({fields}) END"


def sure_to_win(columns: Sequence[Column], limit: OrderingBounds | None) -> str | None:
    """SQL that is true for rows whose ordering values are not below a limit, or null in one column, and else false. None without a limit.

    limit: its greatest values are those of base files.
    """
    if limit is None or limit.greatest is None:
        return None
    sure = "true" if limit.is_whole else "false"
    for column, value in reversed([*zip(columns, limit.greatest, strict=False)]):
        compared = _compared(column, value)
        if compared is None:
            return None
        mine, theirs = compared
        if sure in ("true", "false"):
            sure = f"{mine} {'>=' if sure == 'true' else '>'} {theirs}"
        else:
            sure = f"({mine} > {theirs} OR {mine} = {theirs} AND ({sure}))"
    return " OR ".join([*(f"{internal(column)} IS NULL" for column in columns), f"({sure})"])


def _compared(column: Column, value: Any) -> tuple[str, str] | None:
    """SQL for a column and a value of its bounds, which no setting of the session changes. None where Spark has no such value."""
    name = internal(column)
    digits = decimal_digits(column.type)
    if digits is not None:
        number = Decimal(value).scaleb(-digits[1], Context(prec=digits[0] + 1))
        return name, f"CAST('{number:f}' AS {column.type})"
    match column.type:
        case "string":
            return name, f"CAST(X'{value.hex()}' AS STRING)"
        case "date":
            return f"unix_date({name})", str(value)
        case "timestamp":
            return f"unix_micros({name})", f"{value}L"
        case "timestamp_ntz":
            try:
                moment = _EPOCH + dt.timedelta(microseconds=value)
            except OverflowError:
                return None
            return name, f"TIMESTAMP_NTZ '{moment.isoformat(sep=' ', timespec='microseconds')}'"
    return f"CAST({name} AS BIGINT)", f"{value}L"
