"""CALL: the services of a table, and those of a lake, by the names and the arguments that they have in Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError

from fileio.config import nearest
from objcat.errors import InvalidSql
from objcat.predicate.dialect import SparkText
from objcat.services import CompactionStrategy
from objcat.sql.context import Context
from objcat.sql.names import literal
from objcat.sql.tell import as_row

OF_TABLES = (
    *("compact", "schedule_compaction", "scheduled_compactions", "execute_scheduled", "cluster", "split_buckets", "set_partitioning"),
    *("clean", "savepoint", "release", "restore", "erase", "plan_erasure", "maintain", "archive", "collect_checkpoints"),
    *("resolve", "rollback_dead"),
)
OF_LAKES = ("maintain", "drop_table", "undrop_table", "purge_table", "rename_table", "create_namespace", "drop_namespace")
"""`maintain` is both: without a table it is the lake's."""


def call(context: Context, text: str) -> Any:
    """CALL name(table => 'shop.orders', argument => value, ...), or the arguments in order. Raises InvalidSql that names what is there."""
    name, given, named = _parsed(text)
    if name in OF_TABLES and (given or "table" in named or name not in OF_LAKES):
        table = named.pop("table", None) if "table" in named else (given.pop(0) if given else None)
        if not isinstance(table, str):
            raise InvalidSql(f"CALL {name} wants to know of which table: write {name}(table => 'namespace.name', ...)")
        work = getattr(context.lake.table(table), name)
    elif name in OF_LAKES:
        work = getattr(context.lake, name)
    else:
        raise InvalidSql(f"there is no service {name!r}: {nearest(name, [*OF_TABLES, *OF_LAKES])}")
    arguments = _bound(name, work, given, named)
    if "spark" in inspect.signature(work).parameters:
        arguments["spark"] = context.runner.spark
    result = work(**arguments)
    if isinstance(result, list):
        rows = [as_row(item) for item in result]
        return context.runner.told(pa.concat_tables(rows, promote_options="default") if rows else as_row(None))
    return context.runner.told(as_row(result if hasattr(result, "__dataclass_fields__") or hasattr(result, "__struct_fields__") else None))


def _parsed(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    try:
        tree = sqlglot.parse_one(text, dialect=SparkText)
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
    """The arguments of a service. What a strategy says are arguments by themselves; homes have no text,
    and the session is that of the statement."""
    taken = inspect.signature(work).parameters
    known = [argument for argument in taken if argument not in ("homes", "strategy", "spark")]
    chooses = [field.name for field in fields(CompactionStrategy)] if "strategy" in taken else []
    known += chooses
    if len(given) > len(known):
        raise InvalidSql(f"CALL {name} takes {len(known)} arguments, not {len(given)}: {', '.join(known)}")
    arguments = dict(zip(known, given, strict=False))
    for argument, value in named.items():
        if argument not in known:
            raise InvalidSql(f"CALL {name} has no argument {argument!r}: {nearest(argument, known)}")
        if argument in arguments:
            raise InvalidSql(f"CALL {name} is given {argument!r} twice: give it once")
        arguments[argument] = value
    strategy = {argument: arguments.pop(argument) for argument in chooses if argument in arguments}
    return {**arguments, "strategy": CompactionStrategy(**strategy)} if strategy else arguments
