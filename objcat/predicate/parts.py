"""`known_part`: what a filter says of some columns alone."""

from __future__ import annotations

import functools
from collections.abc import Collection

from sqlglot import expressions as sql

from objcat.errors import InvalidPredicate, InvalidSql
from objcat.metadata.column_parts import FieldPath
from objcat.predicate.arrow import column_path, terms_of
from objcat.predicate.arrow_expression import ArrowFilter
from objcat.predicate.dialect import spark_sql
from objcat.predicate.parse import KEPT_MAX, Predicate, parse_predicate, parsed


def known_part(where: Predicate | ArrowFilter, paths: Collection[FieldPath]) -> Predicate | ArrowFilter | None:
    """A filter over some columns and fields that every row passes which passes `where`: its terms over these alone. None without one.

    paths: of logical names. What is inside of one need not be named.
    """
    if {(name,) for name in where.columns} <= set(paths):
        return where
    if isinstance(where, ArrowFilter):
        return None if where.implied is None else known_part(where.implied, paths)
    return _part(where, frozenset(paths))


@functools.lru_cache(maxsize=KEPT_MAX)
def _part(where: Predicate, known: frozenset[FieldPath]) -> Predicate | None:
    kept = []
    for term in terms_of(parsed(where.text)):
        paths = {column_path(where.text, column, where.schema) for column in term.find_all(sql.Column)}
        if paths and all(any(path[:depth] in known for depth in range(1, len(path) + 1)) for path in paths):
            kept.append(f"({spark_sql(term)}\n)")
    if not kept:
        return None
    try:
        return parse_predicate(" AND ".join(kept), where.schema)
    except (InvalidPredicate, InvalidSql):
        return None
