"""Bounds hold the values of a file, in Iceberg's own encoding, and are exact where they can be. pyiceberg decodes them."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from objcat.datafile.statistics import bounds_of
from objcat.metadata.schema import FIELD_ID_KEY
from objcat.mirror.iceberg.bounds import encode_value, metrics_of
from objcat.mirror.model import MirroredFile
from tests.effort import effort

DAY = dt.date(1970, 1, 1)
TIME = dt.datetime(1970, 1, 1)
KINDS: dict[str, tuple[pa.DataType, PrimitiveType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), BooleanType(), st.booleans()),
    "tinyint": (pa.int8(), IntegerType(), st.integers(-(2**7), 2**7 - 1)),
    "int": (pa.int32(), IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), LongType(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), FloatType(), st.floats(width=32)),
    "double": (pa.float64(), DoubleType(), st.floats()),
    "date": (pa.date32(), DateType(), st.dates().map(lambda day: (day - DAY).days)),
    "timestamp": (pa.timestamp("us"), TimestampType(), st.integers(-(2**62), 2**62)),
    "timestamptz": (pa.timestamp("us", tz="UTC"), TimestamptzType(), st.integers(-(2**62), 2**62)),
    "string": (pa.string(), StringType(), st.text(max_size=90)),
    "binary": (pa.binary(), BinaryType(), st.binary(max_size=90)),
    "decimal(9, 2)": (
        pa.decimal128(9, 2),
        DecimalType(9, 2),
        st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: decimal.Decimal(n).scaleb(-2)),
    ),
    "decimal(38, 0)": (pa.decimal128(38, 0), DecimalType(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(decimal.Decimal)),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=effort(15, with_all=500))
def test_bounds_and_counts_of_a_file(kind: str, data: st.DataObject):
    arrow, iceberg, values = KINDS[kind]
    column = data.draw(st.lists(st.none() | values, max_size=8))
    schema = pa.schema([pa.field("c", arrow, metadata={FIELD_ID_KEY: b"7"})])
    out = io.BytesIO()
    pq.write_table(pa.table([pa.array(column, arrow)], schema=schema), out)
    bounds = bounds_of(pq.ParquetFile(out).metadata, schema)
    file = MirroredFile(path="p", bytes=1, rows=len(column), bounds=bounds, masked=np.zeros(0, np.int64))
    found = metrics_of(file, {7: kind if kind != "tinyint" else "int"})
    some = [value for value in column if value is not None]
    assert pairs(found["value_counts"]) == {7: len(column)} and pairs(found["null_value_counts"]) == {7: len(column) - len(some)}
    lower, upper = pairs(found["lower_bounds"]), pairs(found["upper_bounds"])
    numbers: list[Any] = [value for value in some if not (isinstance(value, float) and math.isnan(value))]
    if not numbers:
        assert lower == upper == {}
        return
    low, high = min(numbers), max(numbers)
    if kind in ("float", "double"):
        assert upper == {}  # A NaN would be above it.
        assert lower == {} if math.isinf(low) else decoded(iceberg, lower[7]) == low
    elif kind in ("string", "binary"):
        compared = [value.encode() if kind == "string" else value for value in (low, high)]
        assert lower[7] <= compared[0] and (not upper or compared[1] <= upper[7])
        assert len(compared[0]) > 64 or lower[7] == compared[0]
        assert len(compared[1]) > 64 or upper[7] == compared[1]
    else:
        assert decoded(iceberg, lower[7]) == low and decoded(iceberg, upper[7]) == high
        assert lower[7] == to_bytes(iceberg, low) and upper[7] == to_bytes(iceberg, high)


def decoded(kind: PrimitiveType, data: bytes) -> Any:
    return from_bytes(kind, data)


def pairs(found: list[dict[str, Any]] | None) -> dict[int, Any]:
    return {one["key"]: one["value"] for one in found or ()}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("1.5", "int"),
        (2**31, "int"),
        (2**63, "long"),
        (True, "int"),
        (1, "boolean"),
        (3, "string"),
        (3, "decimal(9, 2)"),
        ("1.234", "decimal(9, 2)"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_no_bound(value: Any, kind: str):
    assert encode_value(value, kind, upper=False) is None and encode_value(value, kind, upper=True) is None


@pytest.mark.parametrize(
    ("text", "data"), [("-1.28", b"\x80"), ("-1.29", b"\xff\x7f"), ("1.27", b"\x7f"), ("1.28", b"\0\x80"), ("0.00", b"\0")]
)
def test_decimals_take_as_few_bytes_as_iceberg_wants(text: str, data: bytes):
    assert encode_value(text, "decimal(9, 2)", upper=False) == data == to_bytes(DecimalType(9, 2), decimal.Decimal(text))


def test_an_old_bound_is_said_in_the_wider_type():
    assert encode_value(5, "long", upper=True) == (5).to_bytes(8, "little")
    assert decoded(DoubleType(), encode_value(0.1, "double", upper=False) or b"") == 0.1
    assert encode_value(0.1, "float", upper=False) is None  # The nearest float is above it.


def test_counts_of_nulls_that_are_not_exact_are_left_out():
    file = MirroredFile(path="p", bytes=1, rows=3, bounds={1: (1, 2, 0), 2: (1, 2, 2)}, masked=np.zeros(0, np.int64), nulls_at_most=True)
    found = metrics_of(file, {1: "long", 2: "long"})
    assert pairs(found["null_value_counts"]) == {1: 0} and pairs(found["value_counts"]) == {1: 3, 2: 3}


def test_bounds_of_columns_that_the_schema_lacks_are_left_out():
    file = MirroredFile(path="p", bytes=1, rows=3, bounds={1: (1, 2, 0), 9: ("a", "b", 1)}, masked=np.zeros(0, np.int64))
    assert pairs(metrics_of(file, {1: "long"})["value_counts"]) == {1: 3}
