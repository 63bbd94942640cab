"""What SQL text may reach: rows of tables and values. Functions and forms by which an engine hands out more are refused, in each engine.

DuckDB is closed besides, see `objcat.common.duckdb_sandbox`. A session of Spark is its owner's, and can do what its owner lets it do;
so what is refused here is all that keeps a text from the files, the environment and the commands of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlglot import expressions as sql

CALLS = frozenset(
    (
        # Spark: methods of Java, and names that are made of text.
        *("reflect", "java_method", "try_reflect", "identifier"),
        # DuckDB: settings, variables, the log, and text that is run.
        *("current_setting", "getvariable", "getenv", "write_log", "query", "query_table", "json_execute_serialized_sql"),
    )
)
"""Functions that reach beyond the values that they are given."""
ROWS = frozenset(
    (
        *("range", "generate_series", "sequence", "unnest", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline"),
        *("inline_outer", "stack", "json_tuple", "json_each", "json_tree", "variant_explode", "variant_explode_outer"),
    )
)
"""Functions that may stand where a table stands: they make rows of values."""


def beyond_rows(tree: Any) -> str | None:
    """What in a tree reaches beyond rows and values, as a part of a sentence; None: nothing does."""
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
    """Whether a table of a query is said by a name, and not by a function."""
    return all(isinstance(part, sql.Identifier) for part in table.parts)


def _names(node: Any) -> Iterator[str]:
    """What a function is called, in small letters; nothing for what is no function."""
    while isinstance(node, sql.Dot):
        node = node.expression
    if isinstance(node, sql.Anonymous):
        yield node.name.lower()
    elif isinstance(node, sql.Func):
        yield from (name.lower() for name in type(node).sql_names())


def _shown(node: Any) -> str:
    text = str(node.sql("spark"))
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
