"""Which columns a query needs of each table, and which of its conditions a scan may apply.

A scan that leaves out rows early must never change the answer. So a condition is pushed down only where its WHERE would drop the same rows,
on a table that no outer join can fill with nulls, and over columns that are not floating point (engines differ in NaN).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from objcat.errors import InvalidPredicate, InvalidSql
from objcat.metadata.schema import schema_from_arrow
from objcat.predicate.arrow import has_exponent
from objcat.predicate.dialect import spark_sql
from objcat.predicate.parse import parse_predicate


@dataclass(frozen=True, slots=True)
class Need:
    """Columns (None: all, in order) and the filter as SQL text that a query needs of a table."""

    columns: list[str] | None
    where: str | None


ALL = Need(None, None)


def needs_of(query: sql.Query, schemas: Mapping[str, pa.Schema]) -> dict[str, Need]:
    """The needs of a query, by the names that tables have in it; each is named once there."""
    known: dict[str, object] = {name: {column.lower(): "unknown" for column in schema.names} for name, schema in schemas.items()}
    try:
        qualified = qualify(query.copy(), schema=known, dialect="spark", validate_qualify_columns=False, quote_identifiers=False)
        scopes = traverse_scope(qualified)
    except SqlglotError:
        # DuckDB reports better what is wrong. If it finds nothing wrong, it gets every column.
        return dict.fromkeys(schemas, ALL)
    needs = dict.fromkeys(schemas, ALL)
    for scope in scopes:
        for alias, source in scope.sources.items():
            if isinstance(source, sql.Table) and source.name in schemas:
                needs[source.name] = _need(scope, alias, source, schemas[source.name])
    return needs


def _need(scope: Scope, alias: str, source: sql.Table, schema: pa.Schema) -> Need:
    spelled = {name.lower(): name for name in schema.names}
    names = {column.name for column in scope.columns if column.table == alias}
    if any(isinstance(column.this, sql.Star) or not column.table for column in scope.columns) or not names <= set(spelled):
        return ALL
    if any(projected.is_star for projected in getattr(scope.expression, "selects", ())):
        return ALL
    columns = [name for name in schema.names if name.lower() in names]
    terms = [_text(term, alias, spelled, schema) for term in _conditions(scope, alias, source)]
    kept = [term for term in terms if term is not None]
    return Need(columns, " AND ".join(f"({term})" for term in kept) or None)


def _conditions(scope: Scope, alias: str, source: sql.Table) -> list[sql.Expr]:
    """The conditions that WHERE applies to every row of one table."""
    select = scope.expression
    where = select.args.get("where") if isinstance(select, sql.Select) else None
    if where is None or source.args.get("sample") or source.find_ancestor(sql.TableSample):
        return []
    joins = select.args.get("joins") or []
    if any(join.side in ("RIGHT", "FULL") for join in joins):
        return []
    own = [join for join in joins if join.alias_or_name == alias]
    if any(join.side or join.kind not in ("", "INNER", "CROSS") or join.method for join in own):
        return []
    condition = where.this
    return list(condition.flatten()) if isinstance(condition, sql.And) else [condition]


def _text(term: sql.Expr, alias: str, spelled: Mapping[str, str], schema: pa.Schema) -> str | None:
    """A condition as a scan filter; None when it cannot be one."""
    if term.find(sql.Query) or any(has_exponent(number) for number in term.find_all(sql.Literal)):
        return None
    term = term.copy()
    columns: list[sql.Column] = list(term.find_all(sql.Column))
    for column in columns:
        name = spelled.get(column.name)
        if column.table != alias or isinstance(column.parent, sql.Dot) or name is None or pa.types.is_floating(schema.field(name).type):
            return None
        column.replace(sql.column(sql.to_identifier(name, quoted=True)))
    try:
        text = spark_sql(term)
        parse_predicate(text, schema_from_arrow(schema))
    except (InvalidPredicate, InvalidSql):
        return None
    return text
