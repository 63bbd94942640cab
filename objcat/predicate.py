"""Filters as SQL text: parsed once by sqlglot (Spark's dialect), checked against the table, and turned into Arrow or Spark expressions.

Three-valued as SQL is: a comparison with null is null, and a row is kept only where the whole is true.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError

from fileio.config import nearest
from objcat.arguments import is_unicode, shown
from objcat.chains import gathered
from objcat.errors import InvalidPredicate
from objcat.table import Condition, Junction, Pruning
from objcat.table.schema import TableSchema, arrow_type

_COMPARISONS: Mapping[type[sql.Expression], Callable[[Any, Any], pc.Expression]] = {
    sql.EQ: lambda a, b: a == b,
    sql.NEQ: lambda a, b: a != b,
    sql.LT: lambda a, b: a < b,
    sql.LTE: lambda a, b: a <= b,
    sql.GT: lambda a, b: a > b,
    sql.GTE: lambda a, b: a >= b,
}

_OPPOSITES: Mapping[type[sql.Expression], type[sql.Expression]] = {
    sql.EQ: sql.NEQ,
    sql.NEQ: sql.EQ,
    sql.LT: sql.GTE,
    sql.LTE: sql.GT,
    sql.GT: sql.LTE,
    sql.GTE: sql.LT,
}

_MOMENTS = (sql.Cast, sql.TsOrDsToDate, sql.TsOrDsToTimestamp)
"""What says a date or a time by its type."""

MEMBERS_MAX = 64
"""Values of an IN that are compared with bounds one by one."""

PIECE_TERMS_MAX = 64
"""Comparisons with bounds that Arrow computes as one expression: what it takes grows with the square of their number."""

SPARK_DIGITS_MAX = 38
"""Of a decimal in Spark."""

KEPT_MAX = 16
"""Filters that are kept as they were parsed and translated: a scan asks for them several times."""

_MIRRORED: Mapping[type[sql.Expression], type[sql.Expression]] = {
    sql.EQ: sql.EQ,
    sql.NEQ: sql.NEQ,
    sql.LT: sql.GT,
    sql.LTE: sql.GTE,
    sql.GT: sql.LT,
    sql.GTE: sql.LTE,
}


@dataclass(frozen=True, slots=True)
class Predicate:
    """A checked filter. text: as given. columns: the logical names it reads. Picklable."""

    text: str
    columns: tuple[str, ...]
    schema: TableSchema

    def to_arrow(self) -> pc.Expression:
        """Over a table with the logical column names."""
        return _arrow_of(self)

    def to_pruning(self, *, only: Collection[str] | None = None) -> Pruning:
        """Over the bounds of files: true where a row may pass. only: columns whose bounds count; of others nothing is known."""
        return _pruning_of(self, None if only is None else frozenset(only))

    def to_failing(self) -> Pruning:
        """Over the bounds of files: true where a row may not pass."""
        with _bounded(self.text):
            fails = _Bounds(self).possible(_parsed(self.text)).false
        # What is false is known of values; of a null, also one that is written out, the whole may be null, and does not pass either.
        nulls = [_or_true(pc.field(f"nulls_{column_id}") > 0) for column_id in self.ids()]
        if any(not isinstance(null.parent, sql.Is) for null in _parsed(self.text).find_all(sql.Null)):
            nulls.append(pc.scalar(True))
        return Pruning(Junction((fails, *nulls), every=False), self.ids())

    def fixed(self) -> dict[str, list[Any]]:
        """The columns that a row must have one of a few values in to pass, by `=` or IN, with the values in the type of the column."""
        found: dict[str, list[Any]] = {}
        with _bounded(self.text):
            translator = _Translator(self)
            for term in _terms(_parsed(self.text)):
                match term:
                    case sql.EQ() if isinstance(term.this, sql.Column) and not isinstance(term.expression, sql.Column):
                        column, literals = term.this, [term.expression]
                    case sql.EQ() if isinstance(term.expression, sql.Column) and not isinstance(term.this, sql.Column):
                        column, literals = term.expression, [term.this]
                    case sql.In() if isinstance(term.this, sql.Column):
                        column, literals = term.this, list(term.expressions)
                    case _:
                        continue
                found.setdefault(_name(self.text, column, self.schema), translator.equal(literals, column))
        return found

    def ids(self, only: Collection[str] | None = None) -> tuple[int, ...]:
        """Of the columns that it reads, or of some of them."""
        return tuple(self.schema.column(name).id for name in self.columns if only is None or name in only)

    def to_spark_sql(self) -> str:
        """As Spark SQL text: every column quoted, every time with type and zone, so that no setting of the session changes its meaning."""
        with _bounded(self.text):
            tree = _parse(self.text)
            translator = _Translator(self)
            translator.say_types(tree)
            tree = translator.keep_nan_apart(tree)
            for column in tree.find_all(sql.Column):
                column.set("this", sql.to_identifier(_name(self.text, column, self.schema), quoted=True))
            return str(tree.sql(dialect="spark"))


def parse_predicate(text: str, schema: TableSchema) -> Predicate:
    """A predicate from the text of a WHERE clause, e.g. `fare > 10 and city in ('Rome', 'Oslo')`.

    Known: columns, literals, comparisons, AND, OR, NOT, IN, BETWEEN, IS [NOT] NULL, DATE and TIMESTAMP literals, parentheses.
    Raises InvalidPredicate that names what does not parse, or the nearest column.
    """
    _check_text(text)
    with _bounded(text):
        tree = _parsed(text)
    names = dict.fromkeys(_name(text, column, schema) for column in tree.find_all(sql.Column))
    predicate = Predicate(text, tuple(names), schema)
    try:
        schema.to_arrow().empty_table().filter(predicate.to_arrow())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidPredicate(f"the filter {shown(text)} compares what cannot be compared ({reason}): cast one of them") from error
    return predicate


def _check_text(text: Any) -> None:
    if not isinstance(text, str):
        raise InvalidPredicate(f"the filter is {shown(text)}, which is not text: write it as after WHERE in SQL")
    if not is_unicode(text):
        raise InvalidPredicate(f"the filter {shown(text)} is not valid Unicode: mend that text")


@contextlib.contextmanager
def _bounded(text: str) -> Iterator[None]:
    """Raises InvalidPredicate for a filter that is nested deeper than Python's stack: chains of AND and of OR may be long."""
    try:
        yield
    except RecursionError:
        raise InvalidPredicate(
            f"the filter {shown(text)} is nested too deeply: write it with fewer parentheses, `x in (...)` for many values of a column"
        ) from None


def _parse(text: str) -> Any:
    try:
        return sqlglot.parse_one(text, dialect="spark", into=sql.Condition)
    except SqlglotError as error:
        at = next((found["col"] for found in getattr(error, "errors", ()) if found.get("col")), None)
        place = "" if at is None else f" (at character {at})"
        raise InvalidPredicate(f"the filter {shown(text)} does not parse{place}: write it as after WHERE in SQL") from error


@functools.lru_cache(maxsize=KEPT_MAX)
def _parsed(text: str) -> Any:
    """With long chains gathered. Nobody may change it."""
    return gathered(_parse(text))


@functools.lru_cache(maxsize=KEPT_MAX)
def _arrow_of(predicate: Predicate) -> pc.Expression:
    with _bounded(predicate.text):
        return _Translator(predicate).boolean(_parsed(predicate.text))


@functools.lru_cache(maxsize=KEPT_MAX)
def _pruning_of(predicate: Predicate, only: frozenset[str] | None) -> Pruning:
    with _bounded(predicate.text):
        may = _Bounds(predicate, only).possible(_parsed(predicate.text)).true
    return Pruning(may, predicate.ids(only))


def _name(text: str, column: sql.Column, schema: TableSchema) -> str:
    if column.table:
        raise InvalidPredicate(
            f"the filter {shown(text)} names {column.sql()!r}: write a column's name without its table, and one that holds a dot in "
            "backticks; fields of a struct cannot be filtered by in text, but in an Arrow expression, as pc.field('place', 'lat')"
        )
    if column.name in schema.names:
        return column.name
    same = [name for name in schema.names if name.lower() == column.name.lower()]
    if len(same) == 1 and not column.this.quoted:
        return same[0]
    hint = "write IS NULL or IS NOT NULL" if column.name == "None" else nearest(column.name, schema.names)
    raise InvalidPredicate(f"the filter {shown(text)} names {column.name!r}, which is not a column: {hint}")


class _Translator:
    """field: what stands for a column, by its name."""

    def __init__(self, predicate: Predicate, field: Callable[[str], pc.Expression] = pc.field) -> None:
        self._text = predicate.text
        self._schema = predicate.schema
        self._field = field

    def boolean(self, node: Any) -> pc.Expression:
        match node:
            case sql.Paren():
                return self.boolean(node.this)
            case sql.And():
                return _balanced(operator.and_, [self.boolean(term) for term in node.flatten(unnest=False)])
            case sql.Or():
                return _balanced(operator.or_, [self.boolean(term) for term in node.flatten(unnest=False)])
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
            case sql.Column() if pa.types.is_boolean(self._type(node)):
                return self._column(node)
            case _ if type(node) in _COMPARISONS:
                return self.compare(type(node), node.this, node.expression)
        raise self._unknown(node)

    def say_types(self, tree: Any) -> None:
        """Say literals so that Spark takes them as they are meant here: text beside a column of dates or times in that type; 1e18, to Spark
        a floating number, beside a column of exact ones by its digits; a number beyond all integers as `_beyond_integers` says."""
        for node in list(tree.find_all(*_COMPARISONS, sql.Between, sql.In)):
            match node:
                case sql.Between():
                    pairs = [(node.this, node.args["low"]), (node.this, node.args["high"])]
                case sql.In():
                    pairs = [(node.this, value) for value in node.expressions]
                case _:
                    pairs = [(node.this, node.expression), (node.expression, node.this)]
            for column, literal in pairs:
                if not isinstance(column, sql.Column) or isinstance(literal, sql.Column):
                    continue
                if pa.types.is_integer(self._type(column)) and (beyond := _beyond_integers(self._python(literal))) is not None:
                    literal.replace(beyond)
                elif _is_exact(self._type(column)):
                    _say_digits(literal)
                else:
                    self._say_type(literal, self._literal(literal, beside=column))

    def keep_nan_apart(self, tree: Any) -> Any:
        """Say of every comparison of a floating column what NaN means in it: equal to nothing, neither less nor greater, as in Arrow.

        Spark takes NaN for equal to itself and greater than all, and Parquet's bounds leave it out: its answer would depend on which
        row groups it skips.
        """

        kinds = (*_COMPARISONS, sql.Between, sql.In)

        def spelled_out(node: Any) -> Any:
            operands = [child for child in node.iter_expressions() if isinstance(child, sql.Column)]
            floating = [child for child in operands if pa.types.is_floating(self._type(child))]
            for column in floating:
                is_nan = sql.IsNan(this=column.copy())
                apart = sql.Not(this=is_nan)
                node = sql.Or(this=node, expression=is_nan) if _is_unequal(node) else sql.And(this=node, expression=apart)
            return sql.Paren(this=node) if floating else node

        # None of them stands within another one.
        for node in list(tree.find_all(*kinds)):
            apart = spelled_out(node.copy())
            tree = apart if node is tree else tree
            node.replace(apart)
        return tree

    def _say_type(self, node: Any, value: pa.Scalar) -> None:
        if not value.is_valid or not (pa.types.is_timestamp(value.type) or pa.types.is_date(value.type)):
            return
        name = "DATE" if pa.types.is_date(value.type) else "TIMESTAMP_NTZ" if value.type.tz is None else "TIMESTAMP_LTZ"
        text = sql.Literal.string(value.as_py().isoformat())
        node.replace(sql.Cast(this=text, to=sql.DataType.build(name, dialect="spark")))

    def compare(self, kind: type[sql.Expression], left: sql.Expression, right: sql.Expression) -> pc.Expression:
        """A comparison of two columns or literals."""
        if isinstance(right, sql.Column) and not isinstance(left, sql.Column):
            kind, left, right = _MIRRORED[kind], right, left
        if isinstance(left, sql.Column) and isinstance(right, sql.Column):
            self._check_alike(left, right)
        if isinstance(left, sql.Column) and not isinstance(right, sql.Column) and _is_exact(self._type(left)):
            value = self._python(right)
            if isinstance(value, (int, decimal.Decimal)) and not isinstance(value, bool):
                return self._compare_exactly(kind, self._column(left), decimal.Decimal(value), self._type(left))
        return _COMPARISONS[kind](self._value(left, beside=right), self._value(right, beside=left))

    def _check_alike(self, left: sql.Column, right: sql.Column) -> None:
        mine, theirs = self._type(left), self._type(right)
        if mine != theirs:
            raise InvalidPredicate(
                f"the filter {shown(self._text)} compares {left.sql()} of type {mine} with {right.sql()} of type {theirs}, "
                "which cannot be compared in a scan: compare columns of one type, and filter the rest afterwards"
            )

    def _compare_exactly(
        self, kind: type[sql.Expression], column: pc.Expression, value: decimal.Decimal, data_type: pa.DataType
    ) -> pc.Expression:
        """A column of integers or decimals with any number, also one that its type cannot hold, without rounding either."""
        floor = _floor(value, data_type)
        if not isinstance(floor, pa.Scalar):
            below = floor == "above"  # every value of the column is below the number
            true = kind is sql.NEQ or (kind is not sql.EQ and (kind in (sql.LT, sql.LTE)) == below)
            return pc.if_else(column.is_null(), pc.scalar(pa.scalar(None, pa.bool_())), true)
        if floor.as_py() == value:
            return _COMPARISONS[kind](column, pc.scalar(floor))
        if kind in (sql.EQ, sql.NEQ):
            return pc.if_else(column.is_null(), pc.scalar(pa.scalar(None, pa.bool_())), kind is sql.NEQ)
        return column > pc.scalar(floor) if kind in (sql.GT, sql.GTE) else column <= pc.scalar(floor)

    def _in(self, node: sql.In) -> pc.Expression:
        if not node.expressions:
            raise self._unknown(node)
        column = self._column(node.this)
        data_type = self._type(node.this)
        members = pa.array(self.members(node), type=pa.float64() if pa.types.is_floating(data_type) else data_type)
        # A lookup tells 0.0 from -0.0, which are equal; their sums with 0.0 are not told apart.
        found = (column.cast(members.type) + 0.0).isin(pc.add(members, 0.0)) if pa.types.is_floating(data_type) else column.isin(members)
        unknown = pc.scalar(pa.scalar(None, pa.bool_()))
        if any(isinstance(_unwrapped(value), sql.Null) for value in node.expressions):
            return pc.if_else(found, True, unknown)
        return pc.if_else(column.is_null(), unknown, found)

    def members(self, node: sql.In) -> list[Any]:
        """The values that an IN lists, in the type of its column."""
        return self.equal(node.expressions, node.this)

    def equal(self, literals: Sequence[sql.Expression], column: sql.Expression) -> list[Any]:
        """What a column may hold that equals one of some literals; nothing equals null."""
        values = [value for value in literals if not isinstance(_unwrapped(value), sql.Null)]
        return [member for value in values for member in self._members(value, beside=column)]

    def _members(self, node: sql.Expression, *, beside: sql.Expression) -> list[Any]:
        """What a column may hold that equals a literal: nothing where its type does not hold that number."""
        value, data_type = self._python(node), self._type(beside)
        if not _is_exact(data_type) or isinstance(value, (bool, str)):
            return [self._literal(node, beside=beside).as_py()]
        floor = _floor(decimal.Decimal(value), data_type)
        return [floor.as_py()] if isinstance(floor, pa.Scalar) and floor.as_py() == value else []

    def _value(self, node: sql.Expression, *, beside: sql.Expression) -> pc.Expression:
        if isinstance(node, sql.Paren):
            return self._value(node.this, beside=beside)
        if isinstance(node, sql.Column):
            return self._column(node)
        return pc.scalar(self._literal(node, beside=beside))

    def _column(self, node: sql.Expression) -> pc.Expression:
        if not isinstance(node, sql.Column):
            raise self._unknown(node)
        return self._field(_name(self._text, node, self._schema))

    def _type(self, node: sql.Expression) -> pa.DataType:
        if not isinstance(node, sql.Column):
            raise self._unknown(node)
        return arrow_type(self._schema.column(_name(self._text, node, self._schema)).type)

    def _literal(self, node: sql.Expression, *, beside: sql.Expression) -> pa.Scalar:
        """A literal in the type of the column beside it."""
        value = self._python(node)
        wanted = self._type(beside) if isinstance(beside, sql.Column) else None
        if wanted is None or value is None:
            return pa.scalar(value, wanted)
        try:
            if isinstance(value, bool) != pa.types.is_boolean(wanted):
                raise ValueError("a truth value is compared with something else")
            said = _unwrapped(node)
            is_moment = pa.types.is_timestamp(wanted) or pa.types.is_date(wanted)
            if not isinstance(value, str) if is_moment else isinstance(said, _MOMENTS):
                raise ValueError("a date or a time is compared with something else")
            if isinstance(said, sql.TsOrDsToDate) or (isinstance(said, sql.Cast) and said.to.is_type("date")):
                # Text with a time of day is a date to some, and no date to others.
                dt.date.fromisoformat(value)
            if is_moment:
                return _moment(value, wanted)
            if isinstance(value, (int, decimal.Decimal)) and pa.types.is_floating(wanted):
                # As in SQL: a 32-bit 0.1 is not the 64-bit one.
                return pa.scalar(float(value), pa.float64())
            return pa.scalar(value, wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError) as error:
            raise InvalidPredicate(
                f"the filter {shown(self._text)} compares {beside.sql()} of type {wanted} with {node.sql()}: cast one of them"
            ) from error

    def _python(self, node: sql.Expression) -> Any:
        match node:
            case sql.Paren():
                return self._python(node.this)
            case sql.Null():
                return None
            case sql.Boolean():
                return bool(node.this)
            case sql.Neg() if isinstance(_unwrapped(node.this), (sql.Neg, sql.Literal)):
                value = self._python(node.this)
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

    def _unknown(self, node: sql.Expression) -> InvalidPredicate:
        is_python = isinstance(node, (sql.BitwiseAnd, sql.BitwiseOr, sql.BitwiseNot))
        hint = ", of SQL and not & | ~ of Python, and" if is_python else ", and"
        return InvalidPredicate(
            f"the filter {shown(self._text)} holds {shown(node.sql())}, which a scan cannot push down: use comparisons of columns with "
            f"literals, AND, OR, NOT, IN, BETWEEN and IS NULL{hint} filter the rest afterwards"
        )


class _Bounds:
    """What a filter may be for the rows of a file, of which only bounds are known: may it be true of some row, may it be false of some?

    Both are kept, so that NOT only swaps them. What is not known may be either; NULL is neither.
    """

    def __init__(self, predicate: Predicate, only: Collection[str] | None = None) -> None:
        self._only = only
        self._ids = {column.name: column.id for column in predicate.schema.columns}
        self._schema = predicate.schema
        self._text = predicate.text
        self._lower = _Translator(predicate, lambda name: pc.field(f"lower_{self._ids[name]}"))
        self._upper = _Translator(predicate, lambda name: pc.field(f"upper_{self._ids[name]}"))

    def possible(self, node: Any) -> _Possible:
        """What a filter, or a part of one, may be."""
        node = _unwrapped(node)
        match node:
            case sql.Not():
                inner = self.possible(node.this)
                return _Possible(inner.false, inner.true, inner.terms)
            case sql.And() | sql.Or():
                return _both(type(node), [self.possible(term) for term in node.flatten(unnest=False)])
            case sql.Boolean():
                return _Possible(pc.scalar(bool(node.this)), pc.scalar(not node.this))
            case _ if self._only is not None and not all(self._name(column) in self._only for column in node.find_all(sql.Column)):
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
            case _ if type(node) in _COMPARISONS:
                return self._compared(type(node), node.this, node.expression)
        return _either()

    def _compared(self, kind: type[sql.Expression], left: Any, right: Any) -> _Possible:
        left, right = _unwrapped(left), _unwrapped(right)
        if isinstance(right, sql.Column):
            kind, left, right = _MIRRORED[kind], right, left
        if not isinstance(left, sql.Column) or isinstance(right, sql.Column):
            return _either()
        some = ~self._is_all_null(left)
        true = self._may_hold(kind, left, right) & some
        if pa.types.is_floating(arrow_type(self._schema.column(self._name(left)).type)):
            # NaN, which bounds leave out, is unequal to everything, and no comparison but that is true of it.
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
        """Whether a value, or of very many the range that they span, meets the bounds; and whether a row may have none of them."""
        members = [value for value in self._lower.members(node) if value is not None]
        if not members:
            return _Possible(pc.scalar(False), pc.scalar(True))
        name = self._name(node.this)
        data_type = arrow_type(self._schema.column(name).type)
        floating = pa.types.is_floating(data_type)
        wide = pa.float64() if floating else data_type
        ranges = [(min(members), max(members))] if len(members) > MEMBERS_MAX else [(value, value) for value in members]
        lower, upper = pc.field(f"lower_{self._ids[name]}"), pc.field(f"upper_{self._ids[name]}")
        found = pc.scalar(False)
        for low, high in ranges:
            found |= _or_true(lower <= pc.scalar(pa.scalar(high, wide))) & _or_true(upper >= pc.scalar(pa.scalar(low, wide)))
        some = ~self._is_all_null(node.this)
        # NaN, which bounds leave out, is none of them.
        missed = pc.scalar(True) if floating else _or_true(~((lower == upper) & lower.isin(pa.array(members, wide))))
        return _Possible(found & some, missed & some, len(ranges))

    def _is_all_null(self, column: sql.Column) -> pc.Expression:
        return pc.coalesce(self._nulls(column) == pc.field("rows"), pc.scalar(False))

    def _nulls(self, column: sql.Column) -> pc.Expression:
        return pc.field(f"nulls_{self._ids[self._name(column)]}")

    def _name(self, column: sql.Column) -> str:
        return _name(self._text, column, self._schema)


def _terms(node: Any) -> Iterator[Any]:
    """What all must be true for the whole to be."""
    node = _unwrapped(node)
    if isinstance(node, sql.And):
        for term in node.flatten(unnest=False):
            yield from _terms(term)
    else:
        yield node


def _unwrapped(node: Any) -> Any:
    """Without parentheses around it."""
    while isinstance(node, sql.Paren):
        node = node.this
    return node


@dataclass(frozen=True, slots=True)
class _Possible:
    """What a part of a filter may be: conditions that are never null. terms: how many comparisons they are made of, about."""

    true: Condition
    false: Condition
    terms: int = 1


@functools.cache
def _either() -> _Possible:
    """What nothing is known of. Made when it is first needed: Arrow loads pandas for it, which few who import objcat use."""
    return _Possible(pc.scalar(True), pc.scalar(True))


def _both(kind: type[sql.Expression], parts: Sequence[_Possible]) -> _Possible:
    """An AND or an OR. One with many terms is computed in pieces, see `PIECE_TERMS_MAX`."""
    pieces: list[list[_Possible]] = []
    held = 0
    for part in sorted(parts, key=lambda part: part.terms > PIECE_TERMS_MAX):
        held += part.terms
        if not pieces or held > PIECE_TERMS_MAX:
            pieces.append([])
            held = part.terms
        pieces[-1].append(part)

    def joined(of: Callable[[_Possible], Condition], *, every: bool) -> Condition:
        join = operator.and_ if every else operator.or_
        wholes: list[Condition] = []
        for piece in pieces:
            conditions = [of(part) for part in piece]
            wholes.append(conditions[0] if len(conditions) == 1 else _balanced(join, conditions))
        return wholes[0] if len(wholes) == 1 else Junction(tuple(wholes), every=every)

    every = kind is sql.And
    terms = sum(part.terms for part in parts)
    return _Possible(joined(lambda part: part.true, every=every), joined(lambda part: part.false, every=not every), terms)


def _balanced(join: Callable[[pc.Expression, pc.Expression], pc.Expression], terms: Sequence[pc.Expression]) -> pc.Expression:
    """The terms joined pairwise: Arrow descends into an expression by recursion, and a long chain would end the process."""
    while len(terms) > 1:
        pairs = [join(left, right) for left, right in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[len(pairs) * 2 :]]
    return terms[0]


def _or_true(expression: pc.Expression) -> pc.Expression:
    """What is not known may be."""
    return pc.coalesce(expression, pc.scalar(True))


def has_exponent(node: Any) -> bool:
    """Whether it is a number such as 1e18: exact to us, and floating to Spark and DuckDB."""
    return isinstance(node, sql.Literal) and not node.is_string and "e" in node.name.lower()


def _say_digits(literal: Any) -> None:
    for number in filter(has_exponent, list(literal.find_all(sql.Literal))):
        value = decimal.Decimal(number.name)
        digits = format(value, "f") if abs(value.adjusted()) < SPARK_DIGITS_MAX else ""
        if 0 < len(digits.replace(".", "")) <= SPARK_DIGITS_MAX:
            number.set("this", digits)


def _beyond_integers(value: Any) -> sql.Cast | None:
    """What compares with every integer as a number does that is above or below all of them; None for any other value.

    Spark answers `x < 18446744073709551616` with true for a null too, where it sees the number for what it is.
    """
    if isinstance(value, (bool, str)) or value is None or -(2**63) <= value <= 2**63 - 1:
        return None
    end = 10**19 if value > 0 else -(10**19)
    return sql.Cast(this=sql.Literal.string(str(end)), to=sql.DataType.build("DECIMAL(20, 0)", dialect="spark"))


def _is_unequal(node: Any) -> bool:
    """Whether a comparison, or the one that an OR has been added to, is `<>`."""
    return isinstance(node, sql.NEQ) or (isinstance(node, sql.Or) and _is_unequal(node.this))


def _moment(text: str, wanted: pa.DataType) -> pa.Scalar:
    """A date or time from ISO text; without a zone it is UTC where the column has one."""
    if pa.types.is_date(wanted):
        return pa.scalar(dt.date.fromisoformat(text), wanted)
    when = dt.datetime.fromisoformat(text)
    if wanted.tz is not None and when.tzinfo is None:
        when = when.replace(tzinfo=dt.UTC)
    if wanted.tz is None and when.tzinfo is not None:
        raise ValueError("the column has no time zone")
    return pa.scalar(when, wanted)


def _is_exact(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_decimal(data_type))


def _floor(value: decimal.Decimal, data_type: pa.DataType) -> pa.Scalar | Literal["above", "below"]:
    """The greatest value of a type of integers or decimals that is not above a number; or where the number lies, seen from the type."""
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
