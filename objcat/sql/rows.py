"""INSERT, DELETE: what changes rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlglot import expressions as sql

from objcat.errors import InvalidSql
from objcat.handle import Table
from objcat.sql.context import Context
from objcat.sql.names import table_name


def insert(context: Context, tree: sql.Insert) -> Any:
    """INSERT INTO table [(columns)] VALUES or SELECT: columns by position, or by name with BY NAME. Keys are declared new."""
    target = tree.this
    table = context.lake.table(table_name(target))
    listed = [column.name for column in target.expressions] if isinstance(target, sql.Schema) else None
    rows = incoming(context, table, tree.expression, listed, by_name=bool(tree.args.get("by_name")))
    return context.committed(context.write(table.insert, rows))


def incoming(context: Context, table: Table, query: sql.Expr, listed: list[str] | None, *, by_name: bool) -> Any:
    """The rows of a query under the names and in the types of a table's columns. listed: which, in order; all when None."""
    if isinstance(query, sql.Values):
        query = sql.select("*").from_(sql.alias_(query, "given", table=True))
    if not isinstance(query, sql.Query):
        raise InvalidSql("INSERT wants VALUES (...) or SELECT ...")
    rows = context.query(query)
    given = context.runner.names(rows)
    names = listed or (given if by_name else table.schema.names)
    for name in names:
        if name not in table.schema.names:
            raise InvalidSql(f"the table {table.name!r} has no column {name!r}: it has {', '.join(table.schema.names)}")
    if len(given) != len(names):
        raise InvalidSql(
            f"the query gives {len(given)} columns, and {len(names)} are wanted ({', '.join(names)}): list those that you give, "
            f"INSERT INTO {table.name} (a, b) ..."
        )
    return context.runner.fitted(rows, pa.schema([table.schema.field(name) for name in names]))


def delete(context: Context, tree: sql.Delete) -> Any:
    """DELETE FROM table [WHERE filter]."""
    table = context.lake.table(table_name(tree.this))
    where = tree.args.get("where")
    text = "true" if where is None else _unqualified(where.this, tree.this).sql(dialect="spark")
    return context.committed(table.delete(text, spark=context.runner.spark))


def _unqualified(condition: sql.Expr, target: sql.Expr) -> sql.Expr:
    """A condition over one table, without that table's name before the columns. Raises InvalidSql for a query in it."""
    if condition.find(sql.Query):
        raise InvalidSql("a filter with a query in it is not there: MERGE INTO ... USING (SELECT ...) does what it is for")
    condition = condition.copy()
    names = {target.alias_or_name}
    for column in condition.find_all(sql.Column):
        if column.table in names:
            column.set("table", None)
            column.set("db", None)
    return condition
