"""What is said of all keys of a batch at once, in parts as Spark's tasks say it: no key may be outside of it."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objcat.metadata.schema import schema_from_arrow
from objcat.metadata.table_spec import SimpleIndex, TableSpec, make_spec
from objcat.tasks.key_lookup import RANGES_MAX, BatchKeys, KeySpan

PARTS = st.lists(st.lists(st.integers(-(10**6), 10**6), max_size=60), min_size=1, max_size=5)
TYPES: dict[pa.DataType, Callable[[int], Any]] = {
    pa.int64(): lambda number: number * 7**13,
    pa.int16(): lambda number: number % 1000,
    pa.string(): str,
    pa.date32(): lambda number: dt.date(1970, 1, 1) + dt.timedelta(days=number // 10),
    pa.timestamp("us", "UTC"): lambda number: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=number),
    pa.decimal128(20, 3): lambda number: decimal.Decimal(number) / 8,
}


def spec_of(data_type: pa.DataType) -> TableSpec:
    schema = schema_from_arrow(pa.schema([pa.field("k", data_type, nullable=False), pa.field("p", pa.string())]))
    return make_spec(
        "t",
        schema,
        key=["k"],
        ordering=None,
        index=SimpleIndex(),
        table_type="merge_on_read",
        properties={},
        partition_by=["p"],
        key_scope="partition",
    )


@pytest.mark.parametrize("data_type", TYPES, ids=str)
@given(parts=PARTS)
@settings(max_examples=30, deadline=None)
def test_every_key_is_within_what_is_said_of_all(data_type: pa.DataType, parts: list[list[int]]) -> None:
    spec, value = spec_of(data_type), TYPES[data_type]
    keys = []
    for part in parts:
        rows = pa.table({"k": pa.array(map(value, part), data_type), "p": ["xy"[number % 2] for number in part]})
        keys.append(BatchKeys.of(spec, iter([rows.cast(pa.schema([pa.field("k", data_type), pa.field("p", pa.string())]))]), frozenset()))
    span = KeySpan.of_all([own.span(spec) for own in keys])
    assert span.rows == sum(map(len, parts)) and (span.pruning is None) == (not span.rows)
    for own in keys:
        assert span.holds(own, spec)
    for firsts, lasts in span.ranges.values():
        ends = [value for pair in zip(firsts.to_pylist(), lasts.to_pylist(), strict=True) for value in pair]
        assert ends == sorted(ends) and len(set(firsts.to_pylist())) == len(firsts) <= RANGES_MAX


def test_keys_far_apart_are_told_apart_and_others_are_not_held() -> None:
    spec = spec_of(pa.int64())

    def keys(*numbers: int) -> BatchKeys:
        rows = pa.table({"k": pa.array(numbers, pa.int64()), "p": pa.array(["x"] * len(numbers), pa.string())})
        return BatchKeys.of(spec, iter([rows]), frozenset())

    span = KeySpan.of_all([keys(*range(0, 100, 2)).span(spec), keys(10**6, 10**6 + 5).span(spec), keys().span(spec)])
    assert span.holds(keys(0, 98, 10**6), spec)
    assert not span.holds(keys(500), spec) and not span.holds(keys(10**6 + 6), spec)
