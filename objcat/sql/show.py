"""SHOW and DESCRIBE."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlglot import expressions as sql

from objcat.errors import InvalidSql
from objcat.metadata.column_defaults import has_defaults, shown_default
from objcat.metadata.schema import type_text
from objcat.sql.context import Context
from objcat.sql.names import table_name

SHOWS = "Use SHOW TABLES [IN namespace], SHOW NAMESPACES, SHOW PARTITIONS table, SHOW TBLPROPERTIES table or SHOW COLUMNS IN table."


def describe(context: Context, tree: sql.Describe) -> Any:
    """DESCRIBE [TABLE] name, DESCRIBE HISTORY name."""
    table = context.lake.table(table_name(tree.this))
    if (tree.args.get("style") or "").upper() == "HISTORY":
        return context.runner.told(table.inspect.history().to_arrow())
    return context.runner.told(_columns(table))


def _columns(table: Any) -> pa.Table:
    spec = table.spec
    key = {column.name for column in spec.key_columns}
    rows = [
        {"column": column.name, "type": type_text(column.type), "nullable": column.nullable, "key": column.name in key}
        | {"default": shown_default(column.write_default) or None, "default_of_older_rows": shown_default(column.initial_default) or None}
        for column in spec.table_schema.columns
    ]
    fields = [("column", pa.string()), ("type", pa.string()), ("nullable", pa.bool_()), ("key", pa.bool_())]
    if has_defaults(spec.table_schema):
        fields += [("default", pa.string()), ("default_of_older_rows", pa.string())]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def show(context: Context, text: str) -> Any:
    """SHOW in one of the forms of `SHOWS`."""
    words = text.split()
    kind = words[0].upper() if words else ""
    rest = [word for word in words[1:] if word.upper() not in ("IN", "FROM")]
    name = rest[0].replace("`", "").strip("'") if rest else None
    if len(rest) > 1:
        raise InvalidSql(f"SHOW does not know {rest[1]!r}. {SHOWS}")
    lake = context.lake
    if kind == "TABLES":
        return context.runner.told(pa.table({"table": pa.array(lake.tables(name), pa.string())}))
    if kind in ("NAMESPACES", "SCHEMAS", "DATABASES"):
        return context.runner.told(pa.table({"namespace": pa.array(lake.namespaces.list(name), pa.string())}))
    if name is not None:
        if kind == "PARTITIONS":
            return context.runner.told(lake.table(name).inspect.partitions())
        if kind == "COLUMNS":
            return context.runner.told(_columns(lake.table(name)))
        if kind == "TBLPROPERTIES":
            return context.runner.told(as_rows(lake.table(name).properties))
    raise InvalidSql(f"SHOW {' '.join(words)} is not supported. {SHOWS}")


def as_rows(result: Any) -> pa.Table:
    """The result of a service as a table: a row for each of its results, nested values as JSON; no row when there is nothing."""
    match result:
        case pa.Table():
            # PySpark takes rows whose first chunk is empty for none.
            return result.combine_chunks()
        case dict():
            return pa.table({"property": pa.array(list(result), pa.string()), "value": pa.array(list(result.values()), pa.string())})
        case list():
            rows = [_as_row(item) for item in result]
            return pa.concat_tables(rows, promote_options="default") if rows else _nothing()
        case bool() | int() | str():
            return pa.table({"result": [result]})
        case _ if hasattr(result, "__dataclass_fields__") or hasattr(result, "__struct_fields__"):
            return _as_row(result)
        case _:
            return _nothing()


def _nothing() -> pa.Table:
    return pa.table({"done": pa.array([], pa.string())})


def _as_row(result: Any) -> pa.Table:
    facts = {name: getattr(result, name) for name in _fields(result)}
    return pa.Table.from_pylist([{name: _plain(value) for name, value in facts.items()}])


def _fields(result: Any) -> Sequence[str]:
    for names in ("__dataclass_fields__", "__struct_fields__"):
        if hasattr(result, names):
            return list(getattr(result, names))
    return ["result"]


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else json.dumps(value, default=_inner)


def _inner(value: Any) -> Any:
    names = _fields(value)
    return str(value) if names == ["result"] else {name: getattr(value, name) for name in names}
