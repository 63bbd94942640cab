"""Rewrites long chains of comparisons in generated filters as IN and NOT IN.

`x = 1 or x = 2 or ...` becomes IN, `x <> 1 and x <> 2 and ...` becomes NOT IN. The meaning in three-valued logic is the same, and one
lookup replaces a comparison per value.
"""

from __future__ import annotations

import functools
from typing import Any

from sqlglot import expressions as sql

from objcat.predicate.arrow import unwrapped

TERMS_MIN = 16
"""The smallest number of comparisons of one column that are worth a lookup."""


def gathered(tree: Any) -> Any:
    """The same filter with such chains as IN and NOT IN. Changes the tree in place."""
    for chain in list(tree.find_all(sql.And, sql.Or)):
        if type(chain.parent) is type(chain):
            # A part of a longer chain.
            continue
        shorter = _shorter(chain)
        if shorter is None:
            continue
        if chain is tree:
            tree = shorter
        else:
            chain.replace(shorter)
    return tree


def _shorter(chain: Any) -> Any | None:
    """The chain with joined comparisons. None if there are none."""
    kind = sql.EQ if isinstance(chain, sql.Or) else sql.NEQ
    values: dict[tuple[str, bool], list[Any]] = {}
    rest: list[Any] = []
    columns: dict[tuple[str, bool], list[Any]] = {}
    for term in chain.flatten(unnest=False):
        found = _compared(term, kind)
        if found is None:
            rest.append(term)
            continue
        column, literal = found
        # A quoted name may mean another column.
        name = (column.sql(), bool(column.this.args.get("quoted")))
        columns.setdefault(name, []).append((column, term))
        values.setdefault(name, []).append(literal)
    gathers = False
    for name, listed in values.items():
        if len(listed) < TERMS_MIN:
            rest.extend(term for _, term in columns[name])
            continue
        gathers = True
        member = sql.In(this=columns[name][0][0], expressions=listed)
        rest.append(member if kind is sql.EQ else sql.Not(this=member))
    if not gathers:
        return None
    return functools.reduce(lambda left, right: type(chain)(this=left, expression=right), rest)


def _compared(term: Any, kind: type[sql.Expression]) -> tuple[Any, Any] | None:
    """The column and the literal of a comparison of that kind, else None."""
    term = unwrapped(term)
    if type(term) is not kind:
        return None
    sides = (term.this, term.expression)
    columns = [side for side in sides if isinstance(side, sql.Column)]
    others = [side for side in sides if not isinstance(side, sql.Column) and side.find(sql.Column) is None]
    return (columns[0], others[0]) if len(columns) == len(others) == 1 else None
