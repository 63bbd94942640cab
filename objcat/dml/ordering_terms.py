"""Ordering values as terms of a query: whether rows are older than others, by one ordering column or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sqlglot import expressions as sql

Tree: TypeAlias = Any
"""A parsed expression. sqlglot has renamed its base class several times."""


def are_less(mine: Sequence[Tree], theirs: Sequence[Tree]) -> Tree:
    """Whether values are less than others, compared in order. Of several, none may be null, else the answer is not true."""
    pairs = [(sql.paren(one.copy()), other) for one, other in zip(mine, theirs, strict=True)]
    *before, (last, other_last) = pairs
    term: Tree = sql.LT(this=last, expression=other_last.copy())
    for one, other in reversed(before):
        less, same = (kind(this=one.copy(), expression=other.copy()) for kind in (sql.LT, sql.EQ))
        term = sql.or_(less, sql.and_(same, term))
    if not before:
        return term
    # A null behind a greater value is refused by the write, and not left out here.
    return sql.and_(term, *(sql.Not(this=sql.Is(this=one.copy(), expression=sql.null())) for one, _ in pairs))


def greatest(mine: Sequence[Tree], theirs: Sequence[Tree]) -> list[Tree]:
    """The greater ones of two lists of values, compared in order."""
    if len(mine) == 1:
        return [sql.Greatest(this=mine[0], expressions=[theirs[0]])]
    are_theirs = are_less(mine, theirs)
    return [sql.Case().when(are_theirs.copy(), their.copy()).else_(one.copy()) for one, their in zip(mine, theirs, strict=True)]
