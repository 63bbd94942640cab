"""Writes a filter as Spark SQL text with the same meaning under every session setting."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
from sqlglot import expressions as sql

from objcat.predicate.arrow import COMPARISONS, MIRRORED, Translator, floor_of, has_exponent, is_exact
from objcat.predicate.dialect import told_to_spark

SPARK_DIGITS_MAX = 38
"""Digits of a decimal in Spark."""


def spark_text(tree: Any, translator: Translator) -> str:
    """The Spark SQL text of a filter. No session setting changes its meaning.

    Every column is quoted, every time has its type and zone, and text is as in `told_to_spark`. tree: just parsed. It is changed.
    translator: of
    the filter.
    """
    tree = _keep_to_types(tree, translator)
    _say_types(tree, translator)
    tree = _keep_nan_apart(tree, translator)
    for column in tree.find_all(sql.Column):
        for part, name in zip(column.parts, translator.path_of(column), strict=True):
            part.replace(sql.to_identifier(name, quoted=True))
    return told_to_spark(tree)


def _keep_to_types(tree: Any, translator: Translator) -> Any:
    """Rewrite comparisons of exact columns with numbers that have no common type in Spark, as comparisons within the column's type.

    Spark would round such a number, or fail to read it.
    """

    def kept(node: Any) -> Any | None:
        """The rewritten comparison."""
        match node:
            case sql.Between():
                column, literals = node.this, [node.args["low"], node.args["high"]]
            case sql.In():
                column, literals = node.this, node.expressions
            case _:
                column, literals = node.this, [node.expression]
        kind: Any = type(node)
        if kind in COMPARISONS and isinstance(literals[0], sql.Column) and not isinstance(column, sql.Column):
            column, literals, kind = literals[0], [column], MIRRORED[kind]
        if not isinstance(column, sql.Column) or isinstance(literals[0], sql.Column) or not is_exact(translator.type_of(column)):
            return None
        data_type, values = translator.type_of(column), [translator.python(literal) for literal in literals]
        if not any(_is_apart(value, data_type) for value in values):
            return None
        if kind in COMPARISONS:
            return _within(kind, column, values[0], data_type)
        if kind is sql.Between:
            low, high = (_within(sign, column, value, data_type) for sign, value in zip((sql.GTE, sql.LTE), values, strict=True))
            low = low or sql.GTE(this=column.copy(), expression=literals[0].copy())
            high = high or sql.LTE(this=column.copy(), expression=literals[1].copy())
            return sql.Paren(this=sql.And(this=low, expression=high))
        equal = [_within(sql.EQ, column, value, data_type) for value in values]
        there = [literal.copy() if one is None else one.expression for literal, one in zip(literals, equal, strict=True) if _has_equal(one)]
        return sql.In(this=column.copy(), expressions=there) if there else _is_known(column, known=False)

    for node in list(tree.find_all(*COMPARISONS, sql.Between, sql.In)):
        within = kept(node)
        if within is not None:
            tree = within if node is tree else tree
            node.replace(within)
    return tree


def _is_apart(value: Any, data_type: pa.DataType) -> bool:
    """Whether no Spark decimal holds both a number, as it is written, and all values of an exact type."""
    if isinstance(value, (bool, str)) or value is None:
        return False
    if pa.types.is_integer(data_type) and not -(2**63) <= value <= 2**63 - 1:
        return False  # See `_beyond_integers`.
    precision, scale = (data_type.precision, data_type.scale) if pa.types.is_decimal(data_type) else (len(str(2**data_type.bit_width)), 0)
    _, digits, exponent = decimal.Decimal(value).as_tuple()
    assert isinstance(exponent, int), "SQL has no NaN"
    return max(precision - scale, len(digits) + exponent) + max(scale, -exponent) > SPARK_DIGITS_MAX


def _within(kind: Any, column: sql.Column, value: Any, data_type: pa.DataType) -> Any | None:
    """A comparison of an exact column with a number, as one with a value of its type. None if the value is not a number."""
    if isinstance(value, (bool, str)) or value is None:
        return None
    floor = floor_of(decimal.Decimal(value), data_type)
    if not isinstance(floor, pa.Scalar):
        is_less = kind in (sql.LT, sql.LTE)
        return _is_known(column, known=kind is sql.NEQ or (kind is not sql.EQ and is_less == (floor == "above")))
    nearest = decimal.Decimal(floor.as_py())
    if nearest != value and kind in (sql.EQ, sql.NEQ):
        return _is_known(column, known=kind is sql.NEQ)
    if nearest != value:
        kind = sql.GT if kind in (sql.GT, sql.GTE) else sql.LTE
    if pa.types.is_integer(data_type):
        return kind(this=column.copy(), expression=sql.convert(int(nearest)))
    own = sql.DataType.build(f"DECIMAL({data_type.precision}, {data_type.scale})", dialect="spark")
    return kind(this=column.copy(), expression=sql.Cast(this=sql.Literal.string(format(nearest, "f")), to=own))


def _is_known(column: sql.Column, *, known: bool) -> Any:
    """True for every value of a column, and unknown for null."""
    return (sql.EQ if known else sql.NEQ)(this=column.copy(), expression=column.copy())


def _has_equal(comparison: Any | None) -> bool:
    """Whether a column value may equal the number that `_within` replaced."""
    return not isinstance(comparison, sql.NEQ)


def _say_types(tree: Any, translator: Translator) -> None:
    """Write literals so that Spark reads them as they are meant here.

    Text next to a date or time column gets that type. 1e18, which Spark reads as floating, is written by its digits next to an exact
    column.
    A number beyond all integers is written as `_beyond_integers` says. Next to a floating column, a number with more digits than a Spark
    decimal is written as floating.
    """
    for node in list(tree.find_all(*COMPARISONS, sql.Between, sql.In)):
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
            if pa.types.is_integer(translator.type_of(column)) and (beyond := _beyond_integers(translator.python(literal))) is not None:
                literal.replace(beyond)
            elif is_exact(translator.type_of(column)):
                _say_digits(literal)
            elif pa.types.is_floating(translator.type_of(column)) and _is_long(translator.python(literal)):
                value = sql.Literal.string(repr(translator.literal(literal, beside=column).as_py()))
                literal.replace(sql.Cast(this=value, to=sql.DataType.build("DOUBLE", dialect="spark")))
            else:
                _say_type(literal, translator.literal(literal, beside=column))


def _keep_nan_apart(tree: Any, translator: Translator) -> Any:
    """Write for every comparison of a floating column what NaN means: equal to nothing, neither less nor greater, as in Arrow.

    Spark takes NaN as equal to itself and greater than all, and Parquet's bounds ignore it. So its answer would depend on the row groups
    that
    it skips.
    """
    kinds = (*COMPARISONS, sql.Between, sql.In)

    def spelled_out(node: Any) -> Any:
        """The comparison with its meaning for NaN."""
        operands = [child for child in node.iter_expressions() if isinstance(child, sql.Column)]
        floating = [child for child in operands if pa.types.is_floating(translator.type_of(child))]
        for column in floating:
            is_nan = sql.IsNan(this=column.copy())
            apart = sql.Not(this=is_nan)
            node = sql.Or(this=node, expression=is_nan) if _is_unequal(node) else sql.And(this=node, expression=apart)
        return sql.Paren(this=node) if floating else node

    # None of them is inside another one.
    for node in list(tree.find_all(*kinds)):
        apart = spelled_out(node.copy())
        tree = apart if node is tree else tree
        node.replace(apart)
    return tree


def _say_type(node: Any, value: pa.Scalar) -> None:
    if not value.is_valid or not (pa.types.is_timestamp(value.type) or pa.types.is_date(value.type)):
        return
    name = "DATE" if pa.types.is_date(value.type) else "TIMESTAMP_NTZ" if value.type.tz is None else "TIMESTAMP_LTZ"
    text = sql.Literal.string(value.as_py().isoformat())
    node.replace(sql.Cast(this=text, to=sql.DataType.build(name, dialect="spark")))


def _say_digits(literal: Any) -> None:
    for number in filter(has_exponent, list(literal.find_all(sql.Literal))):
        value = decimal.Decimal(number.name)
        digits = format(value, "f") if abs(value.adjusted()) < SPARK_DIGITS_MAX else ""
        if 0 < len(digits.replace(".", "")) <= SPARK_DIGITS_MAX:
            number.set("this", digits)


def _is_long(value: Any) -> bool:
    """Whether a number, as it is written, has more digits than a Spark decimal."""
    if isinstance(value, bool) or not isinstance(value, (int, decimal.Decimal)):
        return False
    _, digits, exponent = decimal.Decimal(value).as_tuple()
    return isinstance(exponent, int) and max(len(digits), len(digits) + exponent, -exponent) > SPARK_DIGITS_MAX


def _beyond_integers(value: Any) -> sql.Cast | None:
    """A value that compares with every integer as a number does that is above or below all of them. None for any other value.

    Spark answers `x < 18446744073709551616` with true even for a null, if it sees the number as it is.
    """
    if isinstance(value, (bool, str)) or value is None or -(2**63) <= value <= 2**63 - 1:
        return None
    end = 10**19 if value > 0 else -(10**19)
    return sql.Cast(this=sql.Literal.string(str(end)), to=sql.DataType.build("DECIMAL(20, 0)", dialect="spark"))


def _is_unequal(node: Any) -> bool:
    """Whether a comparison, or one that an OR was added to, is `<>`."""
    return isinstance(node, sql.NEQ) or (isinstance(node, sql.Or) and _is_unequal(node.this))
