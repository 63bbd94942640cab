"""`DerivedQuery`: the query of a derived table, bound to its sources, with every name resolved. Begin with `resolve_query`.

Each mention of a table is a `QuerySource` of its own, so a table that is joined with itself has two. Nothing here reads a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import traverse_scope

from objcat.errors import InvalidSql
from objcat.predicate.dialect import spark_sql
from objcat.sql.pushdown import ALL, Need, needs_of
from objcat.sql.runner import SqlLake, bind
from objcat.sql.statements import parse_statement

if TYPE_CHECKING:
    from objcat.table.table import Table

VARIES: frozenset[str] = frozenset(
    (
        *("rand", "random", "randn", "uuid", "gen_random_uuid", "shuffle", "monotonically_increasing_id", "spark_partition_id", "nextval"),
        *(
            "now",
            "current_timestamp",
            "current_date",
            "current_time",
            "localtimestamp",
            "localtime",
            "current_user",
            "today",
            "get_current_time",
        ),
        *("current_catalog", "current_database", "current_schema", "session_user", "user", "version", "input_file_name"),
        *(
            "any_value",
            "first",
            "first_value",
            "last",
            "last_value",
            "arbitrary",
            "collect_list",
            "collect_set",
            "array_agg",
            "list",
            "mode",
        ),
        *(
            "row_number",
            "lag",
            "lead",
            "ntile",
            "nth_value",
            "string_agg",
            "listagg",
            "group_concat",
            "array_unique_agg",
            "approx_distinct",
            "approx_count_distinct",
            "approx_percentile",
        ),
        *("approx_quantile", "approx_top_k", "percentile_approx", "reservoir_quantile", "max_by", "min_by", "arg_max", "arg_min"),
    )
)
"""Functions whose value does not follow from the rows alone: it changes with time, chance or the order of rows."""
OVER_ORDER = frozenset(("first_value", "last_value", "row_number", "lag", "lead", "ntile", "nth_value"))
"""Of these, those that a window with an order makes definite."""


@dataclass(frozen=True, slots=True)
class QuerySource:
    """One mention of a table in a query.

    Args:
        place: The name of its rows in the text that runs.
        name: The name of the table in the lake.
        table: A handle on it.
        schema: Its columns as of the slot that the query was resolved at.
        need: The columns and the filter that the whole query needs of it.
    """

    place: str
    name: str
    table: Table
    schema: pa.Schema
    need: Need

    @property
    def columns(self) -> list[str]:
        """The columns that the query names, in table order; one of them where it names none."""
        if self.need.columns is None:
            return list(self.schema.names)
        return self.need.columns or [(self.table.key or self.schema.names)[0]]


@dataclass(frozen=True, slots=True)
class DerivedQuery:
    """A query that was resolved. tree: in which tables have the places of the sources. outputs: the names of its columns."""

    tree: sql.Query
    sources: tuple[QuerySource, ...]
    outputs: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables, each once."""
        return tuple(dict.fromkeys(source.name for source in self.sources))

    @property
    def text(self) -> str:
        """The query as it is stored: with the names of the tables, and with every column by name."""
        names = {source.place: source.name for source in self.sources}
        tree = self.tree.copy()
        for node in tree.find_all(sql.Table):
            if node.name in names:
                parts = ".".join(f"`{part}`" for part in names[node.name].split("."))
                node.replace(sql.to_table(parts, dialect="spark", alias=node.alias))
        return spark_sql(tree)


def resolve_query(text: str, lake: SqlLake, *, schemas: Mapping[str, pa.Schema] | None = None) -> DerivedQuery:
    """Parse a query and resolve its names.

    Args:
        text: a SELECT in Spark's dialect.
        lake: has the tables.
        schemas: by name of a table, its columns in place of the newest ones.

    Raises:
        InvalidSql: the text does not parse, names something unknown, or has no definite result.
        TableNotFound: there is no such table.
    """
    parsed = parse_statement(text.strip().rstrip(";"))
    if not isinstance(parsed, sql.Query):
        raise InvalidSql("A derived table is the result of a SELECT. Nothing was done. Give one.")
    _check_definite(parsed)
    tree, bound = bind(parsed, lake)
    _drop_order(tree)
    known = {}
    for one in bound:
        if one.as_of is not None:
            raise InvalidSql(
                f"VERSION AS OF and TIMESTAMP AS OF of {one.table.name!r} stand still, so there is nothing to refresh. Leave them out."
            )
        known[one.name] = (schemas or {}).get(one.table.name, one.table.schema)
    tree, outputs = _qualified(tree, known)
    needs = needs_of(tree, known)
    sources = tuple(QuerySource(one.name, one.table.name, one.table, known[one.name], needs.get(one.name, ALL)) for one in bound)
    if not sources:
        raise InvalidSql("The query names no table of the lake, so there is nothing to follow. Name one.")
    return DerivedQuery(tree, sources, tuple(outputs))


def _check_definite(tree: sql.Query) -> None:
    """Raises InvalidSql for a query whose result does not follow from the rows of its tables."""
    for node in tree.walk():
        if isinstance(node, (sql.Limit, sql.Offset, sql.Fetch, sql.TableSample)):
            raise InvalidSql(
                f"{_shown(node)} chooses rows by chance, so no refresh could give the same ones. Nothing was done. Leave it out."
            )
        if isinstance(node, sql.Into):
            raise InvalidSql("SELECT ... INTO is not supported. Nothing was done. Leave out INTO.")
        if isinstance(node, sql.Distinct) and node.args.get("on"):
            raise InvalidSql("DISTINCT ON chooses rows by chance. Nothing was done. Use an aggregate.")
        found = VARIES.intersection(_function_names(node))
        if found and not (found <= OVER_ORDER and _has_order(node)):
            raise InvalidSql(
                f"{_shown(node)} does not follow from the rows of the tables alone: it changes with time, chance or the order of rows. "
                "Nothing was done. Leave it out, or store its value in a table."
            )


def _function_names(node: sql.Expr) -> Iterable[str]:
    if isinstance(node, sql.Anonymous):
        return [node.name.lower()]
    if isinstance(node, sql.Func):
        return [name.lower() for name in type(node).sql_names()]
    if isinstance(node, sql.Column) and not node.args.get("table"):
        # Some of these are written without parentheses.
        return [node.name.lower()] if not node.this.args.get("quoted") and node.name.lower().startswith("current_") else []
    return []


def _has_order(node: sql.Expr) -> bool:
    window = node.find_ancestor(sql.Window)
    return window is not None and window.args.get("order") is not None


def _drop_order(tree: sql.Query) -> None:
    """A table has no order of rows."""
    if tree.args.get("order") is not None:
        tree.set("order", None)


def _qualified(tree: sql.Query, known: Mapping[str, pa.Schema]) -> tuple[sql.Query, list[str]]:
    """The query with every column named by its table, as the table spells it, and the names of its columns."""
    given = [one.alias_or_name for one in tree.selects if one.alias_or_name and not one.is_star]
    lower: dict[str, object] = {name: {column.lower(): "unknown" for column in schema.names} for name, schema in known.items()}
    try:
        found = qualify(tree.copy(), schema=lower, dialect="spark")
        scopes = traverse_scope(found)
    except SqlglotError as error:
        reason = str(error).splitlines()[0].split("\x1b")[0].strip()
        raise InvalidSql(f"The query cannot be resolved: {reason}. Nothing was done. Correct it.") from error
    for scope in scopes:
        spelled = {
            alias: {column.lower(): column for column in known[source.name].names}
            for alias, source in scope.sources.items()
            if isinstance(source, sql.Table) and source.name in known
        }
        for column in scope.columns:
            exact = spelled.get(column.table, {}).get(column.name.lower())
            if exact is not None:
                column.set("this", sql.to_identifier(exact, quoted=True))
    spellings = {name.lower(): name for name in given}
    outputs = [_output_name(one, spellings) for one in found.selects]
    if isinstance(found, sql.Select):
        for one, name in zip(found.selects, outputs, strict=True):
            if isinstance(one, sql.Alias):
                one.set("alias", sql.to_identifier(name, quoted=True))
    twice = next((name for place, name in enumerate(outputs) if name.lower() in {other.lower() for other in outputs[:place]}), None)
    if twice is not None:
        raise InvalidSql(f"The query has two columns {twice!r}. Nothing was done. Name them by AS.")
    unnamed = next((name for name in outputs if not name or name.startswith("_col_")), None)
    if unnamed is not None:
        raise InvalidSql("A column of the query has no name. Nothing was done. Name each expression by AS.")
    return found, outputs


def _output_name(one: sql.Expr, spellings: Mapping[str, str]) -> str:
    name = one.alias_or_name
    if name.lower() in spellings:
        return spellings[name.lower()]
    inner = one.this if isinstance(one, sql.Alias) else one
    return inner.name if isinstance(inner, sql.Column) and inner.name.lower() == name.lower() else name


def _shown(node: sql.Expr) -> str:
    text = node.sql("spark").strip()
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
