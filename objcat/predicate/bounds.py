"""Decides from column bounds whether a file may hold matching rows, so that other files stay unread."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import expressions as sql

from objcat.metadata.column_parts import FieldPath, field_at
from objcat.metadata.manifest import Condition, ConditionGroup
from objcat.metadata.schema import TableSchema
from objcat.predicate.arrow import COMPARISONS, MIRRORED, Translator, balanced, unwrapped

_OPPOSITES: Mapping[type[sql.Expression], type[sql.Expression]] = {
    sql.EQ: sql.NEQ,
    sql.NEQ: sql.EQ,
    sql.LT: sql.GTE,
    sql.LTE: sql.GT,
    sql.GT: sql.LTE,
    sql.GTE: sql.LT,
}

MEMBERS_MAX = 64
"""Values of an IN list that are compared with bounds one by one."""

PIECE_TERMS_MAX = 64
"""Comparisons with bounds in one Arrow expression. Its cost grows with the square of their number."""


class Bounds:
    """What a filter may be for the rows of a file with known bounds: possibly true, possibly false.

    Both are tracked, so that NOT only swaps them. An unknown part may be either. NULL is neither.

    text: the filter, for errors. only: see `Predicate.to_pruning`.
    """

    def __init__(self, text: str, schema: TableSchema, only: Collection[str] | None = None) -> None:
        self._only = only
        self._schema = schema
        self._lower = Translator(text, schema, lambda *path: pc.field(f"lower_{self._id(path)}"))
        self._upper = Translator(text, schema, lambda *path: pc.field(f"upper_{self._id(path)}"))

    def possible(self, node: Any) -> _Possible:
        """What a filter, or a part of one, may be."""
        node = unwrapped(node)
        match node:
            case sql.Not():
                inner = self.possible(node.this)
                return _Possible(inner.false, inner.true, inner.terms)
            case sql.And() | sql.Or():
                return _both(type(node), [self.possible(term) for term in node.flatten(unnest=False)])
            case sql.Boolean():
                return _Possible(pc.scalar(bool(node.this)), pc.scalar(not node.this))
            case _ if not all(map(self._has_bounds, node.find_all(sql.Column))):
                return _either()
            case sql.Between():
                ends = [self._compared(kind, node.this, node.args[end]) for kind, end in ((sql.GTE, "low"), (sql.LTE, "high"))]
                return _both(sql.And, ends)
            case sql.Is() if isinstance(node.this, sql.Column) and isinstance(node.expression, sql.Null):
                nulls = self._nulls(node.this)
                return _Possible(_or_true(nulls > 0), ~self._is_all_null(node.this))
            case sql.In() if isinstance(node.this, sql.Column):
                return self._in(node)
            case sql.Column():
                some = ~self._is_all_null(node)
                return _Possible(_or_true(self._upper.boolean(node)) & some, _or_true(~self._lower.boolean(node)) & some)
            case _ if type(node) in COMPARISONS:
                return self._compared(type(node), node.this, node.expression)
        return _either()

    def failing(self, node: Any) -> Condition:
        """Whether some row may fail the whole filter: it is false or null."""
        # "False" covers values only. With a null, in a row or a literal, the filter may be null, which fails too.
        columns = list(node.find_all(sql.Column))
        paths = dict.fromkeys(map(self._lower.path_of, columns))
        nulls = [_or_true(pc.field(f"nulls_{self._id(path)}") > 0) for path in paths]
        within = [column for column in columns if self._is_within(column)]
        if within or any(not isinstance(null.parent, sql.Is) for null in node.find_all(sql.Null)):
            nulls.append(pc.scalar(True))
        return ConditionGroup((self.possible(node).false, *nulls), every=False)

    def _compared(self, kind: type[sql.Expression], left: Any, right: Any) -> _Possible:
        left, right = unwrapped(left), unwrapped(right)
        if isinstance(right, sql.Column):
            kind, left, right = MIRRORED[kind], right, left
        if not isinstance(left, sql.Column) or isinstance(right, sql.Column):
            return _either()
        some = ~self._is_all_null(left)
        true = self._may_hold(kind, left, right) & some
        if pa.types.is_floating(self._lower.type_of(left)):
            # Bounds ignore NaN. It is unequal to everything, and no other comparison is true of it.
            return _Possible(some, self._may_hold(sql.EQ, left, right) & some) if kind is sql.NEQ else _Possible(true, some)
        return _Possible(true, self._may_hold(_OPPOSITES[kind], left, right) & some)

    def _may_hold(self, kind: type[sql.Expression], column: sql.Column, literal: Any) -> pc.Expression:
        """Whether a value between the bounds may compare so."""
        if kind in (sql.LT, sql.LTE):
            return _or_true(self._lower.compare(kind, column, literal))
        if kind in (sql.GT, sql.GTE):
            return _or_true(self._upper.compare(kind, column, literal))
        if kind is sql.EQ:
            return _or_true(self._lower.compare(sql.LTE, column, literal)) & _or_true(self._upper.compare(sql.GTE, column, literal))
        return _or_true(self._lower.compare(sql.NEQ, column, literal)) | _or_true(self._upper.compare(sql.NEQ, column, literal))

    def _in(self, node: sql.In) -> _Possible:
        """Whether a listed value may meet the bounds, and whether a row may have none of them.

        Very many values are replaced by their range.
        """
        members = [value for value in self._lower.members(node) if value is not None]
        if not members:
            return _Possible(pc.scalar(False), pc.scalar(True))
        path, data_type = self._lower.path_of(node.this), self._lower.type_of(node.this)
        floating = pa.types.is_floating(data_type)
        wide = pa.float64() if floating else data_type
        ranges = [(min(members), max(members))] if len(members) > MEMBERS_MAX else [(value, value) for value in members]
        lower, upper = pc.field(f"lower_{self._id(path)}"), pc.field(f"upper_{self._id(path)}")
        found = pc.scalar(False)
        for low, high in ranges:
            found |= _or_true(lower <= pc.scalar(pa.scalar(high, wide))) & _or_true(upper >= pc.scalar(pa.scalar(low, wide)))
        some = ~self._is_all_null(node.this)
        # Bounds ignore NaN, and it is none of the values.
        missed = pc.scalar(True) if floating else _or_true(~((lower == upper) & lower.isin(pa.array(members, wide))))
        return _Possible(found & some, missed & some, len(ranges))

    def _is_all_null(self, column: sql.Column) -> pc.Expression:
        return pc.coalesce(self._nulls(column) == pc.field("rows"), pc.scalar(False))

    def _nulls(self, column: sql.Column) -> pc.Expression:
        return pc.field(f"nulls_{self._id(self._lower.path_of(column))}")

    def _id(self, path: FieldPath) -> int:
        return field_at(self._schema, path).id

    def _has_bounds(self, column: sql.Column) -> bool:
        """Whether its bounds count."""
        name, *inner = self._lower.path_of(column)
        if inner and pa.types.is_nested(self._lower.type_of(column)):
            return False
        return self._only is None or name in self._only

    def _is_within(self, column: sql.Column) -> bool:
        """Whether it is a struct field, which seldom has bounds."""
        return len(self._lower.path_of(column)) > 1


@dataclass(frozen=True, slots=True)
class _Possible:
    """What a part of a filter may be: conditions that are never null. terms: their number of comparisons, about."""

    true: Condition
    false: Condition
    terms: int = 1


@functools.cache
def _either() -> _Possible:
    """An unknown part. Created on first use, because Arrow loads pandas for it, which most imports of objcat do not need."""
    return _Possible(pc.scalar(True), pc.scalar(True))


def _both(kind: type[sql.Expression], parts: Sequence[_Possible]) -> _Possible:
    """An AND or an OR. With many terms it is computed in pieces, see `PIECE_TERMS_MAX`."""
    pieces: list[list[_Possible]] = []
    held = 0
    for part in sorted(parts, key=lambda part: part.terms > PIECE_TERMS_MAX):
        held += part.terms
        if not pieces or held > PIECE_TERMS_MAX:
            pieces.append([])
            held = part.terms
        pieces[-1].append(part)

    def joined(of: Callable[[_Possible], Condition], *, every: bool) -> Condition:
        """The joined parts."""
        join = operator.and_ if every else operator.or_
        wholes: list[Condition] = []
        for piece in pieces:
            conditions = [of(part) for part in piece]
            wholes.append(conditions[0] if len(conditions) == 1 else balanced(join, conditions))
        return wholes[0] if len(wholes) == 1 else ConditionGroup(tuple(wholes), every=every)

    every = kind is sql.And
    terms = sum(part.terms for part in parts)
    return _Possible(joined(lambda part: part.true, every=every), joined(lambda part: part.false, every=not every), terms)


def _or_true(expression: pc.Expression) -> pc.Expression:
    """The expression, or true where it is unknown."""
    return pc.coalesce(expression, pc.scalar(True))
