"""Rows of files of other ages under the schema of today."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from objcat.datafile.casting import cast_rows, exactly, plain, relabelled

OLD = pa.struct([("a", pa.int32()), ("gone", pa.string())])
NEW = pa.struct([("new", pa.string()), ("a", pa.int64())])


def fit_one(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return cast_rows(pa.table({"v": values}), pa.schema([("v", wanted)])).column("v").combine_chunks()


@pytest.mark.parametrize(
    ("old", "new", "fit", "lost"),
    [
        (pa.float64(), pa.float32(), [0.5, float("nan"), float("inf"), None], [5e-324, 0.1, 1e300]),
        (pa.float64(), pa.decimal128(12, 1), [0.5, -3.0, None], [0.25, float("nan")]),
        (pa.decimal128(38, 1), pa.float64(), [Decimal("0.5"), None], [Decimal(2**60 + 1)]),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_narrower_type_takes_what_it_holds_and_rounds_nothing(
    old: pa.DataType, new: pa.DataType, fit: list[Any], lost: list[Any], chunked: bool
) -> None:
    def given(values: list[Any]) -> Any:
        return pa.chunked_array([values], old) if chunked else pa.array(values, old)

    taken = exactly(given(fit), new)
    assert taken.type == new and repr(taken.cast(old).to_pylist()) == repr(given(fit).to_pylist())
    for value in lost:
        with pytest.raises(pa.ArrowInvalid):
            exactly(given([fit[0], value]), new)


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        (pa.int8(), pa.int16(), [1, -128, None]),
        (pa.int32(), pa.int64(), [1, -(2**31), None]),
        (pa.int32(), pa.float64(), [1, -(2**31), None]),
        (pa.int64(), pa.decimal128(22, 2), [1, 2**63 - 1, None]),
        (pa.int8(), pa.decimal128(10, 0), [1, -128, None]),
        (pa.float32(), pa.float64(), [0.5, float("inf"), None]),
        (pa.decimal128(5, 2), pa.decimal128(38, 2), [Decimal("1.25"), Decimal("-999.99"), None]),
    ],
)
def test_a_narrower_type_becomes_the_wider_one(old: pa.DataType, new: pa.DataType, values: list[Any]) -> None:
    assert fit_one(pa.array(values, old), new).to_pylist() == values
    nested = fit_one(pa.array([[{"x": value}] for value in values], pa.list_(pa.struct([("x", old)]))), pa.list_(pa.struct([("x", new)])))
    assert nested.to_pylist() == [[{"x": value}] for value in values]


def test_what_a_file_lacks_is_null_and_what_it_has_too_much_is_left_out() -> None:
    rows = pa.table({"a": [1, 2], "gone": ["x", "y"]})
    wanted = pa.schema([("new", pa.struct([pa.field("must", pa.int32(), nullable=False)])), ("a", pa.int64())])
    assert cast_rows(rows, wanted).to_pylist() == [{"new": None, "a": 1}, {"new": None, "a": 2}]
    assert cast_rows(rows.select([]), wanted.remove(1)).num_rows == rows.select([]).num_rows


@pytest.mark.parametrize("start", [0, 1, 2])
def test_nested_columns_fit_by_the_names_of_their_fields_in_slices_too(start: int) -> None:
    one: list[Any] = [{"a": 1, "gone": "x"}, None, {"a": None, "gone": "y"}, {"a": 4, "gone": None}]
    fits: list[Any] = [{"new": None, "a": 1}, None, {"new": None, "a": None}, {"new": None, "a": 4}]
    assert fit_one(pa.array(one, OLD).slice(start), NEW).to_pylist() == fits[start:]
    lists, found = [one, None, [], one[:1]], [fits, None, [], fits[:1]]
    assert fit_one(pa.array(lists, pa.list_(OLD)).slice(start), pa.list_(NEW)).to_pylist() == found[start:]
    maps: list[Any] = [[("k", one[0]), ("l", None)], None, [], [("m", one[3])]]
    fitting: list[Any] = [[("k", fits[0]), ("l", None)], None, [], [("m", fits[3])]]
    assert fit_one(pa.array(maps, pa.map_(pa.string(), OLD)).slice(start), pa.map_(pa.string(), NEW)).to_pylist() == fitting[start:]


VIEWS = {
    pa.list_view: (pa.ListViewArray, pa.int32()),
    pa.large_list_view: (pa.LargeListViewArray, pa.int64()),
}


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_views_of_lists_become_lists_wherever_their_rows_lie(view: Any, start: int) -> None:
    made, numbers = VIEWS[view]
    inner = pa.array([1, 2, None, 4], pa.int32())
    values = made.from_arrays(pa.array([2, 0, 0, 1, 4], numbers), pa.array([2, 3, 0, 2, 0], numbers), inner).slice(start)
    assert fit_one(values, pa.list_(pa.int64())).to_pylist() == [[None, 4], [1, 2, None], [], [2, None], []][start:]
    rows: list[Any] = [[[1], None], None, [], [[2, None], []]]
    nested = pa.array(rows, view(view(pa.int8()))).slice(start)
    fitting = fit_one(nested, pa.list_(pa.list_(pa.int16())))
    fitting.validate(full=True)
    assert fitting.to_pylist() == rows[start:]


@pytest.mark.parametrize("form", [pa.Table, pa.RecordBatch], ids=lambda form: form.__name__)
def test_rows_are_plain_without_views_and_dictionaries_at_any_depth(form: Any) -> None:
    cities = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.uint32()), pa.array(["Rome", "Oslo"], pa.string_view()))
    nested = pa.array(
        [{"m": [("k", [b"x"])]}, None, {"m": None}], pa.struct([("m", pa.map_(pa.string_view(), pa.list_view(pa.binary_view())))])
    )
    rows = form.from_arrays([cities, nested, pa.array([1, 2, 3])], names=["city", "nested", "n"])
    found = plain(rows.slice(1))
    assert found.schema.types == [pa.string(), pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.binary())))]), pa.int64()]
    assert found.to_pylist() == rows.to_pylist()[1:]
    assert plain(found) is found


@pytest.mark.parametrize("start", [0, 1])
def test_names_of_nested_fields_change_without_a_copy(start: int) -> None:
    old = pa.struct(
        [("a", pa.int32()), ("l", pa.list_(pa.struct([("b", pa.string())]))), ("m", pa.map_(pa.string(), pa.struct([("c", pa.bool_())])))]
    )
    new = pa.struct(
        [("l", pa.int32()), ("a", pa.list_(pa.struct([("x", pa.string())]))), ("n", pa.map_(pa.string(), pa.struct([("y", pa.bool_())])))]
    )
    values = [None, {"a": 1, "l": [{"b": "z"}, None], "m": [("k", {"c": True})]}, {"a": None, "l": None, "m": None}]
    said = [None, {"l": 1, "a": [{"x": "z"}, None], "n": [("k", {"y": True})]}, {"l": None, "a": None, "n": None}]
    column = pa.chunked_array([pa.array(values, old).slice(start)])
    assert relabelled(column, new).to_pylist() == said[start:]
    assert relabelled(column, new).type == new
    assert relabelled(pa.chunked_array([], old), new).type == new
