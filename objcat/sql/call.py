"""CALL: the services of a table, and those of a lake, by the names and the arguments that they have in Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError

from fileio.config import nearest
from objcat.errors import InvalidSql
from objcat.sql.context import Context
from objcat.sql.names import literal
from objcat.sql.tell import as_row

OF_TABLES = ("compact", "clean", "savepoint", "release", "restore", "split_buckets", "set_partitioning", "resolve", "rollback_dead")
OF_LAKES = ("drop_table", "undrop_table", "purge_table", "rename_table", "create_namespace", "drop_namespace")


def call(context: Context, text: str) -> Any:
    """CALL name(table => 'shop.orders', argument => value, ...), or the arguments in order. Raises InvalidSql that names what is there."""
    name, given, named = _parsed(text)
    if name in OF_TABLES:
        table = named.pop("table", None) if "table" in named else (given.pop(0) if given else None)
        if not isinstance(table, str):
            raise InvalidSql(f"CALL {name} wants to know of which table: write {name}(table => 'namespace.name', ...)")
        work = getattr(context.lake.table(table), name)
    elif name in OF_LAKES:
        work = getattr(context.lake, name)
    else:
        raise InvalidSql(f"there is no service {name!r}: {nearest(name, [*OF_TABLES, *OF_LAKES])}")
    result = work(**_bound(name, work, given, named))
    if isinstance(result, list):
        rows = [as_row(item) for item in result]
        return context.runner.told(pa.concat_tables(rows, promote_options="default") if rows else as_row(None))
    return context.runner.told(as_row(result if hasattr(result, "__dataclass_fields__") or hasattr(result, "__struct_fields__") else None))


def _parsed(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    try:
        tree = sqlglot.parse_one(text, dialect="spark")
    except SqlglotError as error:
        raise InvalidSql(f"CALL {text} does not parse: write CALL name(argument => value, ...)") from error
    if isinstance(tree, sql.Dot):
        # As other catalogs have it: CALL system.compact(...).
        tree = tree.expression
    if not isinstance(tree, sql.Anonymous):
        raise InvalidSql(f"CALL {text} names no service: {', '.join([*OF_TABLES, *OF_LAKES])} are there")
    given = [literal(item) for item in tree.expressions if not isinstance(item, sql.Kwarg)]
    named = {item.this.name.lower(): literal(item.expression) for item in tree.expressions if isinstance(item, sql.Kwarg)}
    return tree.name.lower(), given, named


def _bound(name: str, work: Callable[..., Any], given: list[Any], named: dict[str, Any]) -> dict[str, Any]:
    known = list(inspect.signature(work).parameters)
    if len(given) > len(known):
        raise InvalidSql(f"CALL {name} takes {len(known)} arguments, not {len(given)}: {', '.join(known)}")
    arguments = dict(zip(known, given, strict=False))
    for argument, value in named.items():
        if argument not in known:
            raise InvalidSql(f"CALL {name} has no argument {argument!r}: {nearest(argument, known)}")
        if argument in arguments:
            raise InvalidSql(f"CALL {name} is given {argument!r} twice: give it once")
        arguments[argument] = value
    return arguments
