"""Cutting sorted sources at common keys: every row comes once, and all rows of a key come in one cut."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objcat.datafile.merge import OP_COLUMN, merge, overlay
from objcat.datafile.streaming_merge import cut_sorted, sort_by_key
from objcat.errors import CorruptTable

NAN = float("nan")
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.sampled_from([NAN, -0.0, 0.0, 1.5, -1.5, float("inf"), float("-inf")]) | st.floats()),
    "string": (pa.string(), st.text(max_size=3) | st.text(alphabet="a\ud7ff\ue000\U0010ffff", max_size=3)),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "decimal": (pa.decimal128(5, 2), st.decimals(-999, 999, places=2)),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    "timestamp": (pa.timestamp("us", tz="UTC"), st.integers(-(2**63), 2**63 - 1)),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes()),
}


def column(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    if any(isinstance(value, int) for value in values) and pa.types.is_temporal(data_type):
        return pa.array(values, pa.int32() if pa.types.is_date(data_type) else pa.int64()).cast(data_type)
    return pa.array(values, data_type)


def raw(rows: pa.Table, name: str) -> list[Any]:
    """Values that Python holds and compares, with one NaN and one zero."""
    values = rows.column(name)
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())
    return ["NaN" if _is_nan(value) else value + 0.0 if isinstance(value, float) else value for value in values.to_pylist()]


def keys_of(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(raw(rows, "a"), raw(rows, "b"), strict=True))


@st.composite
def sources(draw: st.DrawFn) -> list[list[pa.Table]]:
    """Some sorted sources with each key once, in tables of any size, some of them empty."""
    first, second = draw(st.sampled_from(sorted(TYPES))), draw(st.sampled_from(sorted(TYPES)))
    (type_a, values_a), (type_b, values_b) = TYPES[first], TYPES[second]
    pool = draw(st.lists(st.tuples(values_a, values_b), min_size=1, max_size=12))
    found = []
    for number in range(draw(st.integers(0, 4))):
        chosen = draw(st.lists(st.sampled_from(pool), max_size=12))
        rows = pa.table({"a": column([a for a, _ in chosen], type_a), "b": column([b for _, b in chosen], type_b)})
        once = {key: place for place, key in enumerate(keys_of(rows))}
        rows = sort_by_key(rows.take(pa.array(sorted(once.values()), pa.int64())), key=["a", "b"])
        rows = rows.append_column("source", pa.array([number] * rows.num_rows, pa.int64()))
        cuts = sorted(draw(st.lists(st.integers(0, rows.num_rows), max_size=4)))
        found.append([rows.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, rows.num_rows], strict=True)])
    return found


@given(sources())
@settings(max_examples=300, deadline=None)
def test_every_row_comes_once_and_each_key_in_one_cut(given_sources: list[list[pa.Table]]) -> None:
    seen: Counter[Any] = Counter()
    done: set[Any] = set()
    for parts in cut_sorted(given_sources, key=["a", "b"]):
        assert len(parts) == len(given_sources)
        assert any(part is not None for part in parts), "a cut without rows"
        here = set()
        for number, part in enumerate(parts):
            if part is not None:
                assert part.num_rows
                assert set(part.column("source").to_pylist()) == {number}
                seen.update((number, key) for key in keys_of(part))
                here |= set(keys_of(part))
        assert not here & done, "a key in two cuts"
        done |= here
    assert seen == Counter((number, key) for number, tables in enumerate(given_sources) for table in tables for key in keys_of(table))


def test_no_more_than_one_table_of_a_source_is_taken_ahead() -> None:
    taken = []

    def source(name: str, step: int) -> Iterator[pa.Table]:
        for number in range(100):
            taken.append(name)
            yield pa.table({"k": pa.array(range(number * step, (number + 1) * step), pa.int64())})

    cuts = cut_sorted([source("small", 10), source("large", 100)], key=["k"])
    for _ in range(10):
        next(cuts)
    assert Counter(taken) == {"small": 10, "large": 1}


@pytest.mark.parametrize("ordering", [[], ["at"], ["at", "then"]])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_an_overlay_is_the_merge_of_both(ordering: list[str], data: st.DataObject) -> None:
    key_type, values = TYPES[data.draw(st.sampled_from(sorted(TYPES)))]
    pool = data.draw(st.lists(values, min_size=1, max_size=8))
    base_keys = [key for number, key in enumerate(pool) if not any(_same(key, other) for other in pool[:number])]
    on_top = data.draw(st.lists(st.tuples(st.sampled_from(pool), st.integers(0, 3), st.booleans(), st.booleans()), max_size=8))
    base = pa.table(
        {
            "k": column(base_keys, key_type),
            "at": pa.array([1] * len(base_keys), pa.int64()),
            "then": pa.array([1] * len(base_keys), pa.int64()),
            "v": pa.array(range(len(base_keys)), pa.int64()),
        }
    )
    logs = pa.table(
        {
            "k": column([key for key, *_ in on_top], key_type),
            "at": pa.array([None if delete and barrier else at // 2 for _, at, delete, barrier in on_top], pa.int64()),
            "then": pa.array([None if delete and barrier else at for _, at, delete, barrier in on_top], pa.int64()),
            "v": pa.array(range(100, 100 + len(on_top)), pa.int64()),
            OP_COLUMN: pa.array([int(delete) for _, _, delete, _ in on_top], pa.int8()),
        }
    )
    together = pa.concat_tables([base.append_column(OP_COLUMN, pa.array([0] * base.num_rows, pa.int8())), logs])
    expected = merge(together, key=["k"], ordering=ordering)
    found = pa.concat_tables(overlay(base, logs, key=["k"], ordering=ordering))
    assert sorted(found.column("v").to_pylist()) == sorted(expected.column("v").to_pylist())


def _same(one: Any, other: Any) -> bool:
    return one == other or (_is_nan(one) and _is_nan(other))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


@pytest.mark.parametrize("at", [0, 1])
def test_a_null_in_a_key_is_damage_and_is_named(at: int) -> None:
    whole = pa.table({"a": ["x", "y"], "b": [1, 2]})
    damaged = pa.table({"a": ["x", "z"], "b": pa.array([1, None], pa.int64())})
    sources = [[whole], [damaged]] if at else [[damaged], [whole]]
    with pytest.raises(CorruptTable, match="The key column 'b' has nulls"):
        list(cut_sorted(sources, key=["a", "b"]))
