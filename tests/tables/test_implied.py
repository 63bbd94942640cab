"""What an Arrow expression implies: every row that passes the expression passes what is implied, and the common ones imply something."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import operator
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objcat.metadata.schema import schema_from_arrow
from objcat.predicate.implied import MEMBERS_MAX, implied_by, names_in, tree_of

SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("f", pa.float32()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("a `b", pa.bool_()),
        ("d", pa.decimal128(6, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("day", pa.date32()),
        ("p", pa.struct([("q", pa.int64())])),
    ]
)
TABLE = schema_from_arrow(SCHEMA)
D = decimal.Decimal
VALUES: dict[str, list[Any]] = {
    "i": [None, -(2**31), -1, 0, 1, 7, 2**31 - 1],
    "f": [None, -1.5, -0.0, 0.0, 0.1, 7.0, math.nan, math.inf],
    "x": [None, -1.5, -0.0, 0.0, 0.1, 1e300, math.nan, -math.inf],
    "s": [None, "", "a", "it's", "back\\slash", "`", "é\n--", "%_"],
    "a `b": [None, True, False],
    "d": [None, D("-1.50"), D("0.00"), D("7.00"), D("9999.99")],
    "t": [None, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
    "n": [None, dt.datetime(1, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 1)],
    "day": [None, dt.date(1, 1, 1), dt.date(2026, 1, 1)],
}
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def literals(name: str) -> st.SearchStrategy[pa.Scalar]:
    return st.sampled_from([pa.scalar(value, SCHEMA.field(name).type) for value in VALUES[name]])


@st.composite
def leaves(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from(list(VALUES)))
    column = pc.field(name)
    kind = draw(st.sampled_from(["compare", "mirrored", "in", "sql in", "null", "valid", "strange", "bool"]))
    if kind == "compare":
        return draw(st.sampled_from(COMPARISONS))(column, draw(literals(name)))
    if kind == "mirrored":
        return draw(st.sampled_from(COMPARISONS))(pc.scalar(draw(literals(name))), column)
    if kind in ("in", "sql in"):
        members = pa.array([value.as_py() for value in draw(st.lists(literals(name), max_size=3))], SCHEMA.field(name).type)
        found = column.isin(members)
        return found if kind == "in" else pc.if_else(column.is_valid(), found, pa.scalar(None, pa.bool_()))
    if kind == "null":
        return column.is_null(nan_is_null=draw(st.booleans()))
    if kind == "valid":
        return column.is_valid()
    if kind == "strange":
        return pc.equal(pc.binary_length(pc.field("s")), draw(st.integers(0, 3)))
    return pc.field("a `b")


expressions = st.recursive(
    leaves(),
    lambda inner: (
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1])
        | st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1])
        | inner.map(operator.invert)
    ),
    max_leaves=6,
)
rows = st.lists(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()}), min_size=1, max_size=12)


@settings(max_examples=150)
@given(expression=expressions, rows=rows, floating=st.booleans())
def test_whoever_passes_the_expression_passes_what_is_implied(
    expression: pc.Expression, rows: list[dict[str, Any]], floating: bool
) -> None:
    found = implied_by(expression, TABLE, floating=floating)
    if found is None:
        return
    numbered = pa.Table.from_pylist([{**row, "p": None} for row in rows], schema=SCHEMA).append_column("row", pa.array(range(len(rows))))
    passing = set(numbered.filter(expression)["row"].to_pylist())
    assert passing <= set(numbered.filter(found.to_arrow())["row"].to_pylist()), found.text
    assert floating or not {"f", "x"} & {name for name in found.columns if f"`{name}` IS NULL" not in found.text}


@pytest.mark.parametrize(
    ("expression", "implied"),
    [
        (pc.field("i") > 5, "`i` > 5"),
        (pc.scalar(-5) > pc.field("i"), "`i` < -5"),
        ((pc.field("i") == 1) & (pc.utf8_lower(pc.field("s")) == "x"), "`i` = 1"),
        ((pc.field("i") == 1) | (pc.utf8_lower(pc.field("s")) == "x"), None),
        (pc.field("s") == "it's", "`s` = 'it\\'s'"),
        (~pc.field("a `b"), "NOT (`a ``b`)"),
        (pc.field("t") < dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "`t` < '2026-01-01T00:00:00+00:00'"),
        (pc.field("d") >= D("1.5"), "`d` >= 1.5"),
        (pc.field("x") < 0.1, "`x` < 0.10000000000000001"),
        (pc.field("x") == pc.scalar(math.nan), None),
        (pc.field("i") == 1.5, None),
        (pc.field("p", "q") == 1, None),
        (pc.field("i").isin([]), None),
        (pc.field("i") + 1 == 2, None),
    ],
    ids=lambda value: " ".join(str(value).split()),
)
def test_what_is_implied(expression: pc.Expression, implied: str | None) -> None:
    found = implied_by(expression, TABLE)
    assert (None if found is None else found.text) == implied


def test_trees_name_their_columns() -> None:
    tree = tree_of((pc.field("p", "q") == 1) & pc.field("weird name ") & (pc.utf8_lower(pc.field("s")) == pc.field("s")))
    assert tree is not None and set(names_in(tree)) == {"p", "weird name ", "s"}
    assert tree_of(pc.field(0) == 1) is None


def test_large_expressions_imply_nothing_or_the_same() -> None:
    many = pc.field("i").isin(list(range(MEMBERS_MAX)))
    found = implied_by(many, TABLE)
    assert found is not None and found.text.count(",") == MEMBERS_MAX - 1
    assert implied_by(pc.field("i").isin(list(range(MEMBERS_MAX + 1))), TABLE) is None
    chain = reduce(operator.or_, [pc.field("i") == n for n in range(300)])
    long = implied_by(chain, TABLE)
    assert long is None or long.to_arrow() is not None
