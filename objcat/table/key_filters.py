"""Keys by value: as the text of a filter, and as a set that rows are looked up in."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import expressions as sql

from objcat.errors import InvalidInput
from objcat.metadata.schema import Column
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.dialect import spark_sql


def keys_text(spec: TableSpec, keys: pa.Table) -> str:
    """SQL text that is true for the rows with these keys. `keys`: see `objcat.datafile.batch_checks.key_values`. Raises InvalidInput."""
    columns = spec.key_columns
    if len(columns) == 1:
        listed = ", ".join(_literal(value) for value in keys.column(0).to_pylist())
        return f"{_quoted(columns[0])} IN ({listed})"
    rows = zip(*(keys.column(column.physical).to_pylist() for column in columns), strict=True)
    alike = (" AND ".join(f"{_quoted(column)} = {_literal(value)}" for column, value in zip(columns, row, strict=True)) for row in rows)
    return " OR ".join(f"({one})" for one in alike)


def _quoted(column: Column) -> str:
    return sql.to_identifier(column.name, quoted=True).sql(dialect="spark")


def _literal(value: Any) -> str:
    """A key value as a filter writes it. Raises InvalidInput."""
    match value:
        case dt.datetime():
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP_LTZ"
            return f"CAST('{value.isoformat()}' AS {kind})"
        case dt.date():
            return f"CAST('{value.isoformat()}' AS DATE)"
        case float() if not math.isfinite(value):
            # No comparison finds NaN: a filter would find no row, and the certificate would say so.
            raise InvalidInput(
                f"The key {value} cannot be written in a filter. Nothing was erased. Erase by a filter instead: `id <> id` is true for NaN."
            )
        case decimal.Decimal():
            # sqlglot would round a negative one to the digits of Python's context.
            return format(value, "f")
        case bool() | int() | float() | str():
            return spark_sql(sql.convert(value))
    said = f"A key of type {type(value).__name__} cannot be written in a filter"
    raise InvalidInput(f"{said}. Nothing was erased. Erase by a filter on another column.")


class Keyed:
    """Keys that rows are looked up in. `keys`: key columns by their physical names."""

    def __init__(self, keys: pa.Table) -> None:
        self._columns = keys.column_names
        self._sets = [pc.unique(keys.column(name)) for name in self._columns]
        self._rows = set(zip(*(keys.column(name).to_pylist() for name in self._columns), strict=True)) if len(self._columns) > 1 else None

    def mask(self, rows: pa.Table) -> pa.Array:
        """For each row, whether its key is one of them. `rows`: with the key columns, in the types of the keys."""
        mask = np.ones(rows.num_rows, np.bool_)
        for name, known in zip(self._columns, self._sets, strict=True):
            mask &= np.asarray(pc.is_in(rows.column(name), value_set=known).to_numpy(zero_copy_only=False), np.bool_)
        if self._rows is not None and mask.any():
            chosen = np.flatnonzero(mask)
            some = rows.select(self._columns).take(pa.array(chosen))
            held = zip(*(some.column(name).to_pylist() for name in self._columns), strict=True)
            # NaN equals itself in a set of values, but not in a set of tuples. Such a row counts as one of them.
            mask[chosen] = [key in self._rows or any(part != part for part in key) for key in held]  # noqa: PLR0124
        return pa.array(mask)
