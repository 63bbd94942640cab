"""Filters that are drawn: as SQL, as an expression of Arrow's, and what they mean in three-valued logic."""

from __future__ import annotations

import datetime as dt
import math
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.combinations.values import Column, Values, arrow_type, in_order, values_of

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Filter:
    """sql, expression: None where it cannot be said so. passes: True, False, or None for what is unknown. names: of its columns."""

    sql: str | None
    expression: pc.Expression | None
    passes: Callable[[Values], bool | None]
    names: frozenset[str]

    def __call__(self, values: Values) -> bool:
        return self.passes(values) is True

    def __str__(self) -> str:
        return self.sql or str(self.expression)


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def literal(value: Any) -> str | None:
    """As SQL; None for what has no literal there."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{Decimal(value):f}" if math.isfinite(value) and (value == 0 or abs(value) > 1e-300) else None
        case Decimal():
            return f"{value:f}"
        case int():
            return str(value)
        case str():
            return "'{}'".format(value.replace("\\", "\\\\").replace("'", "\\'"))
        case dt.datetime():
            return f"'{value.replace(tzinfo=None).isoformat()}'"
        case dt.date():
            return f"'{value.isoformat()}'"
        case _:
            return None


def compare(sign: str, left: Any, right: Any) -> bool | None:
    return None if left is None or right is None else bool(OPERATORS[sign](in_order(left), in_order(right)))


def draw_filter(rng: random.Random, columns: Sequence[Column], rows: Sequence[Values], *, depth: int = 0) -> Filter:
    """rows: their values make most of what columns are compared with."""
    if depth > 2 or rng.random() < 0.55:
        return _drawn_atom(rng, columns, rows)
    kind = rng.choice(["and", "and", "or", "not"])
    one = draw_filter(rng, columns, rows, depth=depth + 1)
    if kind == "not":
        sql = None if one.sql is None else f"not ({one.sql})"
        return Filter(sql, None if one.expression is None else ~one.expression, lambda row: _not(one.passes(row)), one.names)
    other = draw_filter(rng, columns, rows, depth=depth + 1)
    sql = None if one.sql is None or other.sql is None else f"({one.sql}) {kind} ({other.sql})"
    if kind == "and":
        expression = _joined(operator.and_, one.expression, other.expression)
        return Filter(sql, expression, lambda row: _and(one.passes(row), other.passes(row)), one.names | other.names)
    expression = _joined(operator.or_, one.expression, other.expression)
    return Filter(sql, expression, lambda row: _not(_and(_not(one.passes(row)), _not(other.passes(row)))), one.names | other.names)


def _joined(join: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    return None if one is None or other is None else join(one, other)


def _not(fact: bool | None) -> bool | None:
    return None if fact is None else not fact


def _and(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _drawn_atom(rng: random.Random, columns: Sequence[Column], rows: Sequence[Values]) -> Filter:
    column = rng.choice([column for column in columns if column.is_plain])
    uid, name, field = column.uid, quoted(column.name), pc.field(column.name)
    there = [row[uid] for row in rows if row.get(uid) is not None] or values_of(str(column.type))
    kinds = ["compare", "compare", "compare", "in", "between", "null", "not null", *(["itself"] if column.type == "boolean" else [])]
    kind = rng.choice(kinds)

    def value() -> Any:
        return _nudged(rng, rng.choice(there if rng.random() < 0.8 else values_of(str(column.type))), str(column.type))

    def made(sql: str | None, expression: pc.Expression | None, passes: Callable[[Any], bool | None]) -> Filter:
        return Filter(sql, expression, lambda row: passes(row.get(uid)), frozenset({column.name}))

    match kind:
        case "null":
            return made(f"{name} is null", field.is_null(), lambda found: found is None)
        case "not null":
            return made(f"{name} is not null", field.is_valid(), lambda found: found is not None)
        case "itself":
            return made(name, field, lambda found: found)
        case "compare":
            sign, bound = rng.choice(list(OPERATORS)), value()
            text, scalar = literal(bound), _scalar(bound, column)
            sql = None if text is None else f"{name} {sign} {text}"
            expression = None if scalar is None else OPERATORS[sign](field, scalar)
            return made(sql, expression, lambda found: compare(sign, found, bound))
        case "in":
            some = [value() for _ in range(rng.randint(1, 3))]
            texts = [literal(one) for one in some]
            sql = None if None in texts else f"{name} in ({', '.join(map(str, texts))})"
            return made(sql, None, lambda found: None if found is None else any(compare("=", found, one) for one in some))
        case _:
            low, high = value(), value()
            texts, scalars = [literal(low), literal(high)], [_scalar(low, column), _scalar(high, column)]
            sql = None if None in texts else f"{name} between {texts[0]} and {texts[1]}"
            expression = None if scalars[0] is None or scalars[1] is None else (field >= scalars[0]) & (field <= scalars[1])
            return made(sql, expression, lambda found: _and(compare(">=", found, low), compare("<=", found, high)))


def _scalar(value: Any, column: Column) -> pa.Scalar | None:
    """None for a value next to one of the type that it does not hold."""
    try:
        return pa.scalar(value, arrow_type(column.type))
    except (pa.ArrowInvalid, OverflowError):
        return None


def _nudged(rng: random.Random, value: Any, kind: str) -> Any:
    """Mostly itself, else a value beside it."""
    if rng.random() < 0.6:
        return value
    step = rng.choice([-1, 1])
    try:
        match value:
            case bool():
                return not value
            case int():
                return value + step
            case Decimal():
                # A digit more at times. Arithmetic would round what has more than 28.
                text, more = f"{value:f}", rng.choice(["", "", "0"])
                return Decimal(f"{int(text.replace('.', '') + more) + step}E-{len(text.partition('.')[2] + more)}")
            case float():
                return math.nextafter(value, step * math.inf) if kind == "double" else value
            case str():
                return value + rng.choice(["", "!", "\U0010ffff"]) if step > 0 else value[:-1]
            case dt.datetime():
                return value + dt.timedelta(microseconds=step)
            case dt.date():
                return value + dt.timedelta(days=step)
    except OverflowError:
        return value
    return value


def for_duckdb(sql: str) -> str:
    changes = [("`", '"'), ("\\'", "''"), ("\\\\", "\\")]
    return reduce(lambda text, change: text.replace(*change), changes, sql)
