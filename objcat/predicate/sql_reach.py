"""Refuses SQL that reaches beyond rows of tables and values: functions and forms that give access to more.

The rule is the same in each engine. DuckDB is closed in addition, see `objcat.common.duckdb_sandbox`. A Spark session belongs to its owner
and may do what the owner allows. So these checks alone separate a SQL text from the files, environment and commands of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlglot import expressions as sql

CALLS = frozenset(
    (
        # Spark: Java methods, and names made from text.
        *("reflect", "java_method", "try_reflect", "identifier"),
        # DuckDB: settings, variables, the log, and text that is executed.
        *("current_setting", "getvariable", "getenv", "write_log", "query", "query_table", "json_execute_serialized_sql"),
    )
)
"""Functions that reach beyond their arguments."""
ROWS = frozenset(
    (
        *("range", "generate_series", "sequence", "unnest", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline"),
        *("inline_outer", "stack", "json_tuple", "json_each", "json_tree", "variant_explode", "variant_explode_outer"),
    )
)
"""Functions that may take the place of a table. They make rows of values."""


def beyond_rows(tree: Any) -> str | None:
    """What in a tree reaches beyond rows and values, as a part of a sentence. None: nothing."""
    for node in tree.walk():
        match node:
            case sql.QueryTransform():
                return "TRANSFORM ... USING runs a command"
            case sql.Parameter() | sql.SessionParameter() | sql.Placeholder():
                return f"{_shown(node)} is a variable, and there are none"
            case sql.Table() if not has_name(node):
                source = node.this
            case sql.Lateral() if not isinstance(node.this, (sql.Query, sql.Unnest)):
                source = node.this
            case sql.Func():
                if CALLS.intersection(_names(node)):
                    return f"{_shown(node)} reaches beyond the rows"
                continue
            case _:
                continue
        if not ROWS.intersection(_names(source)):
            return (
                f"{_shown(source)} stands where a table stands, and is neither a table of the lake nor a function that makes rows of values"
            )
    return None


def has_name(table: sql.Table) -> bool:
    """Whether a table of a query is a name, and not a function."""
    return all(isinstance(part, sql.Identifier) for part in table.parts)


def _names(node: Any) -> Iterator[str]:
    """The names of a function, in lower case. Empty for anything else."""
    while isinstance(node, sql.Dot):
        node = node.expression
    if isinstance(node, sql.Anonymous):
        yield node.name.lower()
    elif isinstance(node, sql.Func):
        yield from (name.lower() for name in type(node).sql_names())


def _shown(node: Any) -> str:
    text = str(node.sql("spark"))
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
