"""Translates a filter's tree to an Arrow expression, with literals in the types of the columns that they meet.

Logic is three-valued as in SQL: a comparison with null is null, and a row passes only if the whole filter is true.
"""

from __future__ import annotations

import datetime as dt
import decimal
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import expressions as sql

from fileio.options import nearest
from objcat.common.validation import nearest_name, shown
from objcat.errors import InvalidPredicate
from objcat.metadata.schema import TableSchema, arrow_type

COMPARISONS: Mapping[type[sql.Expression], Callable[[Any, Any], pc.Expression]] = {
    sql.EQ: lambda a, b: a == b,
    sql.NEQ: lambda a, b: a != b,
    sql.LT: lambda a, b: a < b,
    sql.LTE: lambda a, b: a <= b,
    sql.GT: lambda a, b: a > b,
    sql.GTE: lambda a, b: a >= b,
}

MIRRORED: Mapping[type[sql.Expression], type[sql.Expression]] = {
    sql.EQ: sql.EQ,
    sql.NEQ: sql.NEQ,
    sql.LT: sql.GT,
    sql.LTE: sql.GTE,
    sql.GT: sql.LT,
    sql.GTE: sql.LTE,
}

_MOMENTS = (sql.Cast, sql.TsOrDsToDate, sql.TsOrDsToTimestamp)
"""Functions that make a date or time of a literal."""


class BeyondScans(InvalidPredicate):
    """A filter contains something that a scan cannot evaluate: a function, LIKE, an operator."""


class Translator:
    """Translates the parts of one filter to Arrow. Raises InvalidPredicate for what a scan cannot do.

    text: the filter, for errors. field: the expression for a column (by its name) or a struct field (by its path of names).
    """

    def __init__(self, text: str, schema: TableSchema, field: Callable[..., pc.Expression] = pc.field) -> None:
        self._text = text
        self._schema = schema
        self._field = field

    def boolean(self, node: Any) -> pc.Expression:
        """A condition."""
        match node:
            case sql.Paren():
                return self.boolean(node.this)
            case sql.And():
                return balanced(operator.and_, [self.boolean(term) for term in node.flatten(unnest=False)])
            case sql.Or():
                return balanced(operator.or_, [self.boolean(term) for term in node.flatten(unnest=False)])
            case sql.Not():
                return ~self.boolean(node.this)
            case sql.Between():
                return self.compare(sql.GTE, node.this, node.args["low"]) & self.compare(sql.LTE, node.this, node.args["high"])
            case sql.In():
                return self._in(node)
            case sql.Is() if isinstance(node.expression, sql.Null):
                return self._column(node.this).is_null()
            case sql.Boolean():
                return pc.scalar(bool(node.this))
            case sql.Column() if pa.types.is_boolean(self.type_of(node)):
                return self._column(node)
            case _ if type(node) in COMPARISONS:
                return self.compare(type(node), node.this, node.expression)
        raise self._unknown(node)

    def compare(self, kind: type[sql.Expression], left: sql.Expression, right: sql.Expression) -> pc.Expression:
        """A comparison of two columns or literals."""
        if isinstance(right, sql.Column) and not isinstance(left, sql.Column):
            kind, left, right = MIRRORED[kind], right, left
        if isinstance(left, sql.Column) and isinstance(right, sql.Column):
            self._check_alike(left, right)
        if isinstance(left, sql.Column) and not isinstance(right, sql.Column) and is_exact(self.type_of(left)):
            value = self.python(right)
            if isinstance(value, (int, decimal.Decimal)) and not isinstance(value, bool):
                return self._compare_exactly(kind, self._column(left), decimal.Decimal(value), self.type_of(left))
        return COMPARISONS[kind](self._value(left, beside=right), self._value(right, beside=left))

    def _check_alike(self, left: sql.Column, right: sql.Column) -> None:
        mine, theirs = self.type_of(left), self.type_of(right)
        if mine != theirs:
            raise InvalidPredicate(
                f"The filter {shown(self._text)} compares {left.sql('spark')} of type {mine} with {right.sql('spark')} of type "
                f"{theirs}, which cannot be compared in a scan. Compare columns of one type, and filter the rest afterwards."
            )

    def _compare_exactly(
        self, kind: type[sql.Expression], column: pc.Expression, value: decimal.Decimal, data_type: pa.DataType
    ) -> pc.Expression:
        """Compare an integer or decimal column with any number, also one outside its type. Neither is rounded."""
        floor = floor_of(value, data_type)
        if not isinstance(floor, pa.Scalar):
            below = floor == "above"  # every value of the column is below the number
            true = kind is sql.NEQ or (kind is not sql.EQ and (kind in (sql.LT, sql.LTE)) == below)
            return pc.if_else(column.is_null(), pc.scalar(pa.scalar(None, pa.bool_())), true)
        if floor.as_py() == value:
            return COMPARISONS[kind](column, pc.scalar(floor))
        if kind in (sql.EQ, sql.NEQ):
            return pc.if_else(column.is_null(), pc.scalar(pa.scalar(None, pa.bool_())), kind is sql.NEQ)
        return column > pc.scalar(floor) if kind in (sql.GT, sql.GTE) else column <= pc.scalar(floor)

    def _in(self, node: sql.In) -> pc.Expression:
        if not node.expressions:
            raise self._unknown(node)
        column = self._column(node.this)
        data_type = self.type_of(node.this)
        members = pa.array(self.members(node), type=pa.float64() if pa.types.is_floating(data_type) else data_type)
        # A lookup distinguishes 0.0 from -0.0, which are equal. Adding 0.0 makes them the same.
        found = (column.cast(members.type) + 0.0).isin(pc.add(members, 0.0)) if pa.types.is_floating(data_type) else column.isin(members)
        unknown = pc.scalar(pa.scalar(None, pa.bool_()))
        if any(isinstance(unwrapped(value), sql.Null) for value in node.expressions):
            return pc.if_else(found, True, unknown)
        return pc.if_else(column.is_null(), unknown, found)

    def members(self, node: sql.In) -> list[Any]:
        """The values of an IN list, in the type of its column."""
        return self.equal(node.expressions, node.this)

    def equal(self, literals: Sequence[sql.Expression], column: sql.Expression) -> list[Any]:
        """The values a column may hold that equal one of some literals. Nothing equals null."""
        values = [value for value in literals if not isinstance(unwrapped(value), sql.Null)]
        return [member for value in values for member in self._members(value, beside=column)]

    def _members(self, node: sql.Expression, *, beside: sql.Expression) -> list[Any]:
        """The values a column may hold that equal a literal. None if its type cannot hold that number."""
        value, data_type = self.python(node), self.type_of(beside)
        if not is_exact(data_type) or isinstance(value, (bool, str)):
            return [self.literal(node, beside=beside).as_py()]
        floor = floor_of(decimal.Decimal(value), data_type)
        return [floor.as_py()] if isinstance(floor, pa.Scalar) and floor.as_py() == value else []

    def _value(self, node: sql.Expression, *, beside: sql.Expression) -> pc.Expression:
        if isinstance(node, sql.Paren):
            return self._value(node.this, beside=beside)
        if isinstance(node, sql.Column):
            return self._column(node)
        return pc.scalar(self.literal(node, beside=beside))

    def _column(self, node: sql.Expression) -> pc.Expression:
        if not isinstance(node, sql.Column):
            raise self._unknown(node)
        return self._field(*self.path_of(node))

    def path_of(self, node: sql.Column) -> tuple[str, ...]:
        """The table's name of a column, and the struct fields from it to the meant one."""
        return column_path(self._text, node, self._schema)

    def type_of(self, node: sql.Expression) -> pa.DataType:
        """The type of a column or struct field."""
        if not isinstance(node, sql.Column):
            raise self._unknown(node)
        name, *fields = self.path_of(node)
        found = arrow_type(self._schema.column(name).type)
        for field in fields:
            found = found.field(field).type
        return found

    def literal(self, node: sql.Expression, *, beside: sql.Expression) -> pa.Scalar:
        """A literal in the type of the column that it meets."""
        value = self.python(node)
        wanted = self.type_of(beside) if isinstance(beside, sql.Column) else None
        if wanted is None or value is None:
            return pa.scalar(value, wanted)
        try:
            if isinstance(value, bool) != pa.types.is_boolean(wanted):
                raise ValueError("a truth value is compared with something else")
            said = unwrapped(node)
            is_moment = pa.types.is_timestamp(wanted) or pa.types.is_date(wanted)
            if not isinstance(value, str) if is_moment else isinstance(said, _MOMENTS):
                raise ValueError("a date or a time is compared with something else")
            if isinstance(said, sql.TsOrDsToDate) or (isinstance(said, sql.Cast) and said.to.is_type("date")):
                # Engines differ on whether text with a time of day is a date.
                dt.date.fromisoformat(value)
            if is_moment:
                return _moment(value, wanted)
            if isinstance(value, (int, decimal.Decimal)) and pa.types.is_floating(wanted):
                # As in SQL, a 32-bit 0.1 does not equal the 64-bit one.
                return pa.scalar(float(value), pa.float64())
            return pa.scalar(value, wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError) as error:
            raise InvalidPredicate(
                f"The filter {shown(self._text)} compares {beside.sql('spark')} of type {wanted} with {node.sql('spark')}. Cast one of "
                "them."
            ) from error

    def python(self, node: sql.Expression) -> Any:
        """A literal as a Python value, without a type yet."""
        match node:
            case sql.Paren():
                return self.python(node.this)
            case sql.Null():
                return None
            case sql.Boolean():
                return bool(node.this)
            case sql.Neg() if isinstance(unwrapped(node.this), (sql.Neg, sql.Literal)):
                value = self.python(node.this)
                if isinstance(value, decimal.Decimal):
                    # A minus would round to the digits of Python's context.
                    return value.copy_negate()
                if not isinstance(value, str):
                    return -value
            case sql.Literal():
                if node.is_string:
                    return node.this
                return int(node.this) if node.this.isdigit() else decimal.Decimal(node.this)
            case sql.Cast() if node.this.is_string and node.to.is_type(*sql.DataType.TEMPORAL_TYPES):
                return node.this.this
            case sql.TsOrDsToDate() | sql.TsOrDsToTimestamp() if node.this.is_string and not node.args.get("format"):
                return node.this.this
        raise self._unknown(node)

    def _unknown(self, node: sql.Expression) -> BeyondScans:
        is_python = isinstance(node, (sql.BitwiseAnd, sql.BitwiseOr, sql.BitwiseNot))
        hint = ", of SQL and not & | ~ of Python." if is_python else "."
        return BeyondScans(
            f"The filter {shown(self._text)} holds {shown(node.sql('spark'))}, which a scan cannot push down. Use comparisons of "
            f"columns with literals, AND, OR, NOT, IN, BETWEEN and IS NULL{hint} Filter the rest afterwards."
        )


def column_path(text: str, column: sql.Column, schema: TableSchema) -> tuple[str, ...]:
    """The table's name of a column in a filter, and the struct fields after it.

    Raises InvalidPredicate with the nearest name.
    """
    first, *inner = column.parts
    name = _same(first, schema.names)
    if name is None and inner:
        raise InvalidPredicate(
            f"The filter {shown(text)} names {column.sql('spark')!r}, and {first.name!r} is not a column "
            f"({nearest(first.name, schema.names)}). Write a column's name without its table, and one that holds a dot in backticks."
        )
    if name is None:
        hint = f": {nearest_name(column.name, schema.names)}"
        if column.name == "None":
            hint = ". Write IS NULL or IS NOT NULL."
        elif not hint.endswith("?"):
            hint += f". Text stands in single quotes, '{column.name}'."
        raise InvalidPredicate(f"The filter {shown(text)} names {column.name!r}, which is not a column{hint}")
    if not inner:
        return (name,)
    path, found = [name], arrow_type(schema.column(name).type)
    for part in inner:
        fields = [field.name for field in found] if pa.types.is_struct(found) else []
        name = _same(part, fields)
        if name is None:
            hint = nearest(part.name, fields) if fields else f"{'.'.join(path)!r} is of type {found}, and only structs have fields"
            raise InvalidPredicate(f"The filter {shown(text)} names {column.sql('spark')!r}, which is not there: {hint}")
        path.append(name)
        found = found.field(name).type
    return tuple(path)


def _same(said: sql.Expr, names: Sequence[str]) -> str | None:
    """The one of some names that is meant. Case matters if names differ only in case, or in quotes."""
    if said.name in names:
        return str(said.name)
    same = [name for name in names if name.lower() == said.name.lower()]
    return same[0] if len(same) == 1 and not said.args.get("quoted") else None


def unwrapped(node: Any) -> Any:
    """The node inside parentheses."""
    while isinstance(node, sql.Paren):
        node = node.this
    return node


def terms_of(node: Any) -> list[Any]:
    """The terms of an AND."""
    node = unwrapped(node)
    if not isinstance(node, sql.And):
        return [node]
    return [term for part in node.flatten(unnest=False) for term in terms_of(part)]


def with_moments(condition: sql.Expr, schema: pa.Schema, moment: Callable[[sql.Expr], dt.datetime | None]) -> sql.Expr:
    """A condition in which times get a zone, if they are compared with a column or struct field that has one.

    moment: the meaning of a literal, or None to leave it as it is.
    """
    for column in [column for column in condition.find_all(sql.Column) if _has_zone(column, schema)]:
        beside: sql.Expr | None = column.parent
        while isinstance(beside, sql.Paren):
            beside = beside.parent
        for literal in [] if not isinstance(beside, _COMPARISONS) else [unwrapped(one) for one in beside.iter_expressions()]:
            found = moment(literal) if _text_of_time(literal) is not None else None
            if found is not None:
                literal.replace(sql.Literal.string(found.isoformat()))
    return condition


def _has_zone(column: sql.Column, schema: pa.Schema) -> bool:
    found: Any = pa.struct(schema)
    for part in column.parts:
        same = [field for field in found if field.name.lower() == part.name.lower()] if pa.types.is_struct(found) else []
        if not same:
            return False
        found = same[0].type
    return pa.types.is_timestamp(found) and found.tz is not None


def utc_moment(said: sql.Expr) -> dt.datetime | None:
    """The meaning of a time literal in a filter: without a zone it is UTC. None if it is no ISO text."""
    try:
        when = dt.datetime.fromisoformat(_text_of_time(said) or "")
    except ValueError:
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)


def _text_of_time(said: sql.Expr) -> str | None:
    """The ISO text of a literal, with or without a type before it."""
    bare = said.this if isinstance(said, (sql.Cast, sql.TsOrDsToDate, sql.TsOrDsToTimestamp)) else said
    return str(bare.this) if isinstance(bare, sql.Literal) and bare.is_string else None


_COMPARISONS = (sql.EQ, sql.NEQ, sql.NullSafeEQ, sql.LT, sql.LTE, sql.GT, sql.GTE, sql.Between, sql.In)


def balanced(join: Callable[[pc.Expression, pc.Expression], pc.Expression], terms: Sequence[pc.Expression]) -> pc.Expression:
    """Join the terms pairwise. Arrow descends into an expression by recursion, and a long chain would crash the process."""
    while len(terms) > 1:
        pairs = [join(left, right) for left, right in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[len(pairs) * 2 :]]
    return terms[0]


def has_exponent(node: Any) -> bool:
    """Whether it is a number such as 1e18: exact here, floating in Spark and DuckDB."""
    return isinstance(node, sql.Literal) and not node.is_string and "e" in node.name.lower()


def _moment(text: str, wanted: pa.DataType) -> pa.Scalar:
    """A date or time from ISO text. Without a zone it is UTC if the column has one."""
    if pa.types.is_date(wanted):
        return pa.scalar(dt.date.fromisoformat(text), wanted)
    when = dt.datetime.fromisoformat(text)
    if wanted.tz is not None and when.tzinfo is None:
        when = when.replace(tzinfo=dt.UTC)
    if wanted.tz is None and when.tzinfo is not None:
        raise ValueError("the column has no time zone")
    return pa.scalar(when, wanted)


def is_exact(data_type: pa.DataType) -> bool:
    """Whether numbers of the type are never rounded."""
    return bool(pa.types.is_integer(data_type) or pa.types.is_decimal(data_type))


def floor_of(value: decimal.Decimal, data_type: pa.DataType) -> pa.Scalar | Literal["above", "below"]:
    """The greatest value of an integer or decimal type that is not above a number.

    If there is none within the type, on which side of the type the number lies.
    """
    scale, limit = 0, 2 ** (data_type.bit_width - 1) - 1
    if pa.types.is_decimal(data_type):
        scale, limit = data_type.scale, 10**data_type.precision - 1
    if value.adjusted() > 60:
        return "above" if value > 0 else "below"
    context = decimal.Context(prec=200)
    units = int(value.scaleb(scale, context).to_integral_value(decimal.ROUND_FLOOR, context))
    if units > limit:
        return "above"
    if units < (-limit if pa.types.is_decimal(data_type) else -limit - 1):
        return "below"
    return pa.scalar(decimal.Decimal(units).scaleb(-scale, context) if scale else units, data_type)
