"""Fitting a batch to a table keeps values or refuses."""

from __future__ import annotations

import math
from decimal import Decimal

import pyarrow as pa
import pytest

from objcat.datafile.batch_checks import conform, conform_delete
from objcat.errors import InvalidBatch
from objcat.metadata.schema import schema_from_arrow
from objcat.metadata.table_spec import BucketIndex, TableSpec, make_spec


def spec(**columns: pa.DataType) -> TableSpec:
    schema = schema_from_arrow(pa.schema([("id", pa.int64()), *columns.items()]))
    return make_spec("t", schema, key=["id"], ordering=None, index=BucketIndex(), table_type="merge_on_read", properties={})


@pytest.mark.parametrize("value", [1.5, float("nan"), float("inf"), None])
def test_a_double_that_a_float_holds_is_kept(value: float | None) -> None:
    batch = pa.table({"id": [1], "v": pa.array([value], pa.float64())})
    (kept,) = conform(batch, spec(v=pa.float32())).column("v").to_pylist()
    assert kept == value or (kept is not None and value is not None and math.isnan(kept) and math.isnan(value))


def test_a_double_that_would_be_rounded_is_refused() -> None:
    with pytest.raises(InvalidBatch, match="would be rounded"):
        conform(pa.table({"id": [1], "v": [0.1]}), spec(v=pa.float32()))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None], pa.large_string()),
        pa.array(["a", None], pa.string_view()),
        pa.array(["a", None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([1, None], pa.uint32()), pa.array(["b", "a"], pa.string_view())),
    ],
)
def test_every_encoding_of_text_fits(column: pa.Array) -> None:
    fitted = conform(pa.table({"id": [1, 2], "v": column}), spec(v=pa.string()))
    assert fitted.column("v").to_pylist() == ["a", None]


def test_whole_numbers_become_decimals_where_they_fit() -> None:
    table = spec(v=pa.decimal128(5, 2), w=pa.decimal128(38, 38))
    for given in (pa.int64(), pa.uint64(), pa.int8()):
        fitted = conform(pa.table({"id": [1, 2], "v": pa.array([99, None], given), "w": pa.array([0, 0], given)}), table)
        assert fitted.column("v").to_pylist() == [Decimal("99.00"), None]
    for column in ({"v": [1000]}, {"w": [1]}):
        with pytest.raises(InvalidBatch, match="does not fit in precision"):
            conform(pa.table({"id": [1], **column}), table)


@pytest.mark.parametrize(("given", "says"), [("citi", "did you mean 'city'\\?"), ("zzzz", "valid ones are city, id")])
def test_an_unknown_column_is_told_with_what_would_fit(given: str, says: str) -> None:
    with pytest.raises(
        InvalidBatch, match=rf"{given}', which the table does not have \({says}\)\. Nothing was written\. Rename or drop it\.$"
    ):
        conform(pa.table({"id": [1], given: ["Rome"]}), spec(city=pa.string()))


def test_a_null_struct_has_no_null_in_a_field_that_may_not_be_null() -> None:
    inner = pa.struct([pa.field("c", pa.int32(), nullable=False)])
    table = spec(s=pa.struct([pa.field("a", pa.string(), nullable=False), pa.field("b", inner, nullable=False)]))
    given = [pa.table({"id": [1, 2]}), pa.table({"id": [1, 2], "s": pa.nulls(2)})]
    for fitted in (*(conform(batch, table) for batch in given), conform_delete(given[0], table)):
        assert fitted.column("s").to_pylist() == [None, None]
        fields = fitted.column("s").chunk(0)
        assert fields.field("a").null_count == fields.field("b").field("c").null_count == 0


def test_a_missing_nullable_column_is_null_and_order_does_not_matter() -> None:
    fitted = conform(pa.table({"b": ["x"], "id": pa.array([1], pa.int8())}), spec(a=pa.int32(), b=pa.string()))
    assert fitted.to_pylist() == [{"id": 1, "a": None, "b": "x"}]


def test_minus_zero_and_nan_keys_become_one() -> None:
    schema = schema_from_arrow(pa.schema([("id", pa.float64())]))
    table = make_spec("t", schema, key=["id"], ordering=None, index=BucketIndex(), table_type="merge_on_read", properties={})
    fitted = conform(pa.table({"id": [-0.0, 0.0]}), table)
    assert [math.copysign(1, value) for value in fitted.column("id").to_pylist()] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.array([1]), pa.timestamp("us", tz="UTC")),
        (pa.array([1]), pa.date32()),
        (pa.array([1], pa.date32()), pa.timestamp("us", tz="UTC")),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("us", tz="UTC")),
        (pa.array([1], pa.timestamp("us", tz="UTC")), pa.timestamp("us")),
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array([1.0]), pa.decimal128(10, 2)),
        (pa.array([True]), pa.int32()),
        (pa.array([b"1"]), pa.string()),
    ],
)
def test_a_cast_that_is_a_guess_is_refused(given: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(InvalidBatch, match="Cast it yourself"):
        conform(pa.table({"id": [1], "v": given}), spec(v=wanted))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.array([1], pa.int8()), pa.int64()),
        (pa.array([1], pa.int64()), pa.int16()),
        (pa.array([1]), pa.float64()),
        (pa.array([1]), pa.decimal128(38, 2)),
        (pa.array([1.0, 2.0]).slice(1), pa.int64()),
        (pa.array([1], pa.timestamp("ms", tz="Europe/Rome")), pa.timestamp("us", tz="UTC")),
        (pa.array([None], pa.null()), pa.timestamp("us", tz="UTC")),
        (pa.array([1.5], pa.float32()), pa.float64()),
    ],
)
def test_a_cast_that_keeps_the_value_is_made(given: pa.Array, wanted: pa.DataType) -> None:
    fitted = conform(pa.table({"id": [1], "v": given}), spec(v=wanted))
    assert fitted.column("v").type == wanted


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidBatch, match="does not cast without loss"):
        conform(pa.table({"id": [1], "v": pa.array([70_000])}), spec(v=pa.int16()))


def test_fields_match_by_name_and_unknown_missing_or_null_ones_are_refused_where_they_may_not_be() -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False), ("y", pa.string())])
    wanted = spec(v=pa.list_(pa.struct([("s", inner)])))
    fits = pa.array(
        [[{"s": {"y": "a", "x": 1}}, None, {"s": None}], None, []],
        pa.list_(pa.struct([("s", pa.struct([("y", pa.string()), ("x", pa.int8())]))])),
    )
    fitted = conform(pa.table({"id": [1, 2, 3], "v": fits}), wanted)
    assert fitted.column("v").to_pylist() == [[{"s": {"x": 1, "y": "a"}}, None, {"s": None}], None, []]
    for given, says in (
        ([[{"s": {"x": 1, "z": 5}}]], "the field 'v.element.s.z', which the table does not"),
        ([[{"s": {"y": "a"}}]], "lacks the field 'v.element.s.x'"),
        ([[{"s": {"x": None, "y": "a"}}]], "The field 'v.element.s.x' holds a null"),
    ):
        with pytest.raises(InvalidBatch, match=says):
            conform(pa.table({"id": [1], "v": given}), wanted)
    batch = pa.table(
        {
            "id": [1],
            "v": pa.array(
                [[{"s": {"x": None, "y": "a"}}]], pa.list_(pa.struct([("s", pa.struct([("x", pa.int64()), ("y", pa.string())]))]))
            ),
        }
    )
    with pytest.raises(InvalidBatch, match="holds a null"):
        conform(batch, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.array([{"x": "1"}]), pa.struct([("x", pa.int64())])),
        (pa.array([["1"]]), pa.list_(pa.int64())),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.string())),
        (pa.array([1]), pa.list_(pa.int64())),
    ],
)
def test_a_guess_inside_a_nested_column_is_refused_too(given: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(InvalidBatch, match="Cast it yourself") as caught:
        conform(pa.table({"id": [1], "v": given}), spec(v=wanted))
    assert "StructType" not in str(caught.value)


def test_nested_integers_widen() -> None:
    batch = pa.table({"id": [1], "v": pa.array([[{"x": 1}]], pa.list_(pa.struct([("x", pa.int8())])))})
    assert conform(batch, spec(v=pa.list_(pa.struct([("x", pa.int64())])))).column("v").to_pylist() == [[{"x": 1}]]
