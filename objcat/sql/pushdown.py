"""Which columns a query needs of each table, and which of its conditions a scan may apply.

A scan that leaves out rows early must never change the answer. So a condition is pushed down only where its WHERE would drop the same rows,
on a table that no outer join can fill with nulls, and over columns that are not floating point (engines differ in NaN).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from objcat.errors import InvalidPredicate, InvalidSql
from objcat.metadata.column_parts import path_text
from objcat.metadata.schema import TableSchema, schema_from_arrow
from objcat.predicate.arrow import has_exponent
from objcat.predicate.dialect import spark_sql
from objcat.predicate.parse import parse_predicate


@dataclass(frozen=True, slots=True)
class Need:
    """Columns and fields of structs (None: all columns, in order) and the filter as SQL text that a query needs of a table.

    columns: as `Table.scan` takes them.
    """

    columns: list[str] | None
    where: str | None


ALL = Need(None, None)
PATH_MAX = 4
"""Names of a path in a filter, which reads as a column, its table, and what that is in."""


def needs_of(query: sql.Query, schemas: Mapping[str, pa.Schema], *, by_field: Collection[str] = ()) -> dict[str, Need]:
    """The needs of a query, by the names that tables have in it; each is named once there.

    by_field: tables of which fields of structs are read alone.
    """
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
                needs[source.name] = _need(scope, alias, source, schemas[source.name], by_field=source.name in by_field)
    return needs


def _need(scope: Scope, alias: str, source: sql.Table, schema: pa.Schema, *, by_field: bool) -> Need:
    spelled = {name.lower(): name for name in schema.names}
    names = {column.name for column in scope.columns if column.table == alias}
    if any(isinstance(column.this, sql.Star) or not column.table for column in scope.columns) or not names <= set(spelled):
        return ALL
    if any(projected.is_star for projected in getattr(scope.expression, "selects", ())):
        return ALL
    columns = [name for name in schema.names if name.lower() in names]
    if by_field:
        columns = _fields([column for column in scope.columns if column.table == alias], columns, schema)
    terms = []
    if conditions := _conditions(scope, alias, source):
        table_schema = schema_from_arrow(schema)
        terms = [_text(term, alias, spelled, schema, table_schema) for term in conditions]
    kept = [term for term in terms if term is not None]
    return Need(columns, " AND ".join(f"({term})" for term in kept) or None)


def _fields(mentions: Sequence[sql.Column], columns: Sequence[str], schema: pa.Schema) -> list[str]:
    """Columns, with the fields alone of those structs that are mentioned by fields alone."""
    paths: dict[str, set[tuple[str, ...]]] = {}
    for column in mentions:
        name = next(name for name in columns if name.lower() == column.name.lower())
        paths.setdefault(name, set()).add(_path(column, pa.field(name, schema.field(name).type))[0])
    found = []
    for name in columns:
        own = paths[name]
        outer = {path for path in own if not any(path[:depth] in own for depth in range(1, len(path)))}
        found += [path_text(path) if len(path) > 1 else name for path in sorted(outer)]
    return found


def _path(column: sql.Column, field: pa.Field) -> tuple[tuple[str, ...], sql.Expr, pa.DataType]:
    """The names of a column and of the struct fields that a query takes from it, the expression that takes the last one, and its type."""
    path, data_type = [field.name], field.type
    taken: sql.Expr = column
    while isinstance(taken.parent, sql.Dot) and taken.parent.this is taken and pa.types.is_struct(data_type):
        asked = taken.parent.expression
        same = [one for one in data_type if isinstance(asked, sql.Identifier) and one.name.lower() == asked.name.lower()]
        if len(same) != 1:
            break
        path.append(same[0].name)
        taken, data_type = taken.parent, same[0].type
    return tuple(path), taken, data_type


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


def _text(term: sql.Expr, alias: str, spelled: Mapping[str, str], schema: pa.Schema, table_schema: TableSchema) -> str | None:
    """A condition as a scan filter; None when it cannot be one. table_schema: the same as `schema`."""
    if term.find(sql.Query) or any(has_exponent(number) for number in term.find_all(sql.Literal)):
        return None
    term = term.copy()
    columns: list[sql.Column] = list(term.find_all(sql.Column))
    for column in columns:
        name = spelled.get(column.name)
        if column.table != alias or name is None:
            return None
        path, taken, data_type = _path(column, schema.field(name))
        if isinstance(taken.parent, sql.Dot) or pa.types.is_floating(data_type) or len(path) > PATH_MAX:
            return None
        made = sql.column(*(sql.to_identifier(step, quoted=True) for step in reversed(path)))
        if taken is term:
            term = made
        else:
            taken.replace(made)
    try:
        text = spark_sql(term)
        parse_predicate(text, table_schema)
    except (InvalidPredicate, InvalidSql):
        return None
    return text
