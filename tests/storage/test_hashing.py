"""Hashing keys: values that Spark computed, a slow reference over everything Arrow can do to a column, and what is refused."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from decimal import Decimal
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objcat.datafile.bucket_hash import InvalidKeyType, InvalidKeyValue, bucket_of, check_key_type, spark_hash

NAN, INF = math.nan, math.inf

# What `SELECT hash(column)` answers on Spark 4.1.0 and on 4.3.0, from a Parquet file with the column.
GOLDEN: list[tuple[pa.DataType, list[Any], list[int]]] = [
    (pa.bool_(), [True, False, None], [-559580957, 933211791, 42]),
    (pa.int8(), [0, 1, -1, -128, 127], [933211791, -559580957, -1604776387, 1110053733, 1135925485]),
    (pa.int16(), [0, 1, -1, -32768, 32767], [933211791, -559580957, -1604776387, -1871935946, 1249274084]),
    (pa.int32(), [0, 1, -1, -2147483648, 2147483647], [933211791, -559580957, -1604776387, 723455942, 133916647]),
    (pa.int64(), [0, 1, -1, -9223372036854775808, 9223372036854775807], [-1670924195, -1712319331, -939490007, -853646085, -1604625029]),
    (pa.uint8(), [0, 1, 255], [933211791, -559580957, -673326395]),
    (pa.uint16(), [0, 1, 65535], [933211791, -559580957, -1629199920]),
    (pa.uint32(), [0, 1, 4294967295], [-1670924195, -1712319331, -1758433029]),
    (pa.uint64(), [0, 1, 128, 9223372036854775808, 18446744073709551615], [-783713497, -386724586, -544401882, 1479175736, -853727376]),
    (pa.float32(), [0.0, -0.0, 1.5, -1.5, NAN, INF], [933211791, 933211791, -221251528, 1765572753, -349261430, 2026854605]),
    (pa.float64(), [0.0, -0.0, 1.5, -1.5, NAN, -INF], [-1670924195, -1670924195, 1290763749, 2099784398, -1281358385, 461104036]),
    (
        pa.decimal128(9, 2),
        [Decimal("0.00"), Decimal("1.00"), Decimal("-1.00"), Decimal("9999999.99")],
        [-1670924195, 1114849490, 904948192, -193774131],
    ),
    (
        pa.decimal128(18, 0),
        [Decimal(0), Decimal(1), Decimal(-1), Decimal(999999999999999999), Decimal(-999999999999999999)],
        [-1670924195, -1712319331, -939490007, -1795328666, 1962370902],
    ),
    (
        pa.decimal128(19, 0),
        [
            Decimal(0),
            Decimal(1),
            Decimal(-1),
            Decimal(127),
            Decimal(128),
            Decimal(-128),
            Decimal(-129),
            Decimal(9999999999999999999),
        ],
        [-783713497, -386724586, 1398487324, 1185089389, -544401882, 775851899, -771458971, 584036537],
    ),
    (
        pa.decimal128(38, 10),
        [
            Decimal("0E-10"),
            Decimal("1.0000000000"),
            Decimal("-1.0000000000"),
            Decimal("9999999999999999999999999999.9999999999"),
            Decimal("-9999999999999999999999999999.9999999999"),
        ],
        [-783713497, -913492360, 1628110857, -817514053, 1400911110],
    ),
    (pa.date32(), [0, 19000, -1, -719162, 2932896], [933211791, -779492372, -1604776387, -1147107224, 1135886659]),
    (pa.timestamp("us"), [0, 1, -1, 1357020000000000, -62135596800000000], [-1670924195, -1712319331, -939490007, -1406295773, 269467232]),
    (
        pa.timestamp("us", "America/New_York"),
        [0, 1, -1, 1357020000000000, -62135596800000000],
        [-1670924195, -1712319331, -939490007, -1406295773, 269467232],
    ),
    (
        pa.string(),
        ["", "a", "ab", "abc", "abcd", "abcde", "naïve", "日本語", "😀\x00z", None],
        [142593372, 1485273170, -97053317, 1322437556, -396302900, 814637928, -950767612, -1143049834, 1942676430, 42],
    ),
    (
        pa.binary(),
        [b"", b"\x00", b"\x80", b"\xff\xfe\xfd", b"\x00\x00\x00\x00\xff", bytes(range(40))],
        [142593372, -783713497, 775851899, -1550104651, 723935196, 1925904033],
    ),
    (pa.binary(3), [b"\x00\x00\x00", b"abc", b"\xff\x80\x7f"], [-1349617345, 1322437556, -555039606]),
]

MASK = 0xFFFFFFFF


def rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & MASK


def mix(state: int, word: int) -> int:
    word = rotate(word * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    return (rotate(state ^ word, 13) * 5 + 0xE6546B64) & MASK


def finish(state: int, length_bytes: int) -> int:
    state ^= length_bytes
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK
    return state ^ state >> 16


def hash_bytes(data: bytes, seed: int) -> int:
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        seed = mix(seed, word)
    for (byte,) in struct.iter_unpack("b", data[whole:]):
        seed = mix(seed, byte & MASK)
    return finish(seed, len(data))


def hash_value(kind: pa.DataType, value: Any, seed: int) -> int:
    """One value, as Spark's source describes it; dates and timestamps are given as integers."""
    if value is None:
        return seed
    if pa.types.is_string(kind):
        return hash_bytes(value.encode(), seed)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return hash_bytes(value, seed)
    if pa.types.is_floating(kind):
        value = NAN if math.isnan(value) else 0.0 if value == 0 else value
        return hash_bytes(struct.pack("<f" if pa.types.is_float32(kind) else "<d", value), seed)
    if isinstance(value, Decimal):
        sign, digits, _ = value.as_tuple()
        value = (-1 if sign else 1) * int("".join(map(str, digits)))
    if pa.types.is_uint64(kind) or (pa.types.is_decimal(kind) and kind.precision > 18):
        length = next(n for n in range(1, 17) if -(1 << 8 * n - 1) <= value < 1 << 8 * n - 1)
        return hash_bytes(value.to_bytes(length, "big", signed=True), seed)
    is_long = any(test(kind) for test in (pa.types.is_decimal, pa.types.is_int64, pa.types.is_uint32, pa.types.is_timestamp))
    return hash_bytes(struct.pack("<q" if is_long else "<i", int(value)), seed)


def reference(kinds: Sequence[pa.DataType], rows: Sequence[Sequence[Any]]) -> list[int]:
    hashes = []
    for row in rows:
        seed = 42
        for kind, value in zip(kinds, row, strict=True):
            seed = hash_value(kind, value, seed)
        hashes.append(seed - (1 << 32) if seed >> 31 else seed)
    return hashes


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.sampled_from([low, high, 0, 1])


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    edges = [edge for n in range(1, 17) for edge in (1 << 8 * n - 1, (1 << 8 * n - 1) - 1, -(1 << 8 * n - 1), -(1 << 8 * n - 1) - 1)]
    unscaled = st.integers(-limit, limit) | st.sampled_from([limit, -limit, 0, -1, *(edge for edge in edges if abs(edge) <= limit)])
    return unscaled.map(lambda number: Decimal((int(number < 0), tuple(int(digit) for digit in str(abs(number))), -scale)))


# The types that a column can have in the reference, and their values.
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    *((kind, integers(bits)) for kind, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64))),
    *((kind, integers(bits, signed=False)) for kind, bits in ((pa.uint8(), 8), (pa.uint16(), 16), (pa.uint32(), 32), (pa.uint64(), 64))),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    *((pa.decimal128(precision, scale), decimals(precision, scale)) for precision, scale in ((1, 0), (9, 9), (18, 2), (19, 0), (38, 10))),
    (pa.date32(), integers(32)),
    (pa.timestamp("us"), integers(64)),
    (pa.timestamp("us", "Asia/Kathmandu"), integers(64)),
    (pa.string(), st.text(max_size=40)),
    (pa.binary(), st.binary(max_size=40)),
    (pa.binary(7), st.binary(min_size=7, max_size=7)),
]


def array(kind: pa.DataType, values: Sequence[Any]) -> pa.Array[Any]:
    """An array whose null slots hold rubbish, as Arrow allows them to."""
    rubbish = next((value for value in values if value is not None), None)
    full = pa.array([rubbish if value is None else value for value in values], kind)
    nulls = np.array([value is None for value in values], np.bool_)
    if rubbish is None or not nulls.any():
        return full
    bitmap = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, len(values), [bitmap, *full.buffers()[1:]])


def chunked(chunks: list[Any], kind: Any) -> pa.ChunkedArray[Any]:
    return pa.chunked_array(chunks, kind)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[pa.DataType], list[tuple[Any, ...]], list[pa.Array[Any] | pa.ChunkedArray[Any]]]:
    """Key columns of one to three types: as types, as rows, and as Arrow may hold them: sliced, chunked, dictionary-encoded."""
    chosen = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*(st.none() | values for _, values in chosen)), max_size=12))
    columns: list[pa.Array[Any] | pa.ChunkedArray[Any]] = []
    for position, (kind, _) in enumerate(chosen):
        values = [row[position] for row in rows]
        before, after = draw(st.integers(0, 9)), draw(st.integers(0, 2))
        padding = values[:1] or [None]
        whole = array(kind, padding * before + values + padding * after)
        column = (whole.dictionary_encode() if draw(st.booleans()) else whole).slice(before, len(values))
        if draw(st.booleans()):
            cut = draw(st.integers(0, len(values)))
            columns.append(chunked([column.slice(0, cut), column.slice(cut), column.slice(0, 0)], column.type))
        else:
            columns.append(column)
    return [kind for kind, _ in chosen], rows, columns


def plain(column: pa.Array[Any]) -> list[Any]:
    """Values as the reference wants them."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_pylist()
    return column.cast(pa.int32()).to_pylist() if pa.types.is_date32(column.type) else column.to_pylist()


@pytest.mark.parametrize(("kind", "values", "expected"), GOLDEN, ids=[str(kind) for kind, _, _ in GOLDEN])
def test_values_that_spark_computed(kind: pa.DataType, values: list[Any], expected: list[int]) -> None:
    column = pa.array(values, kind)
    assert spark_hash([column]).tolist() == expected
    assert bucket_of([column], 7).tolist() == [number % 7 for number in expected]
    assert reference([kind], [[value] for value in plain(column)]) == expected


@pytest.mark.parametrize(("kind", "values", "expected"), GOLDEN, ids=[str(kind) for kind, _, _ in GOLDEN])
def test_slices_chunks_and_dictionaries_of_every_type(kind: pa.DataType, values: list[Any], expected: list[int]) -> None:
    whole = pa.array(values, kind)
    for column in (whole, whole.dictionary_encode()):
        for start in range(len(values)):
            assert spark_hash([column.slice(start)]).tolist() == expected[start:]
            assert spark_hash([column.slice(start, 1)]).tolist() == expected[start : start + 1]
            chunks = [column.slice(start), column.slice(0, 0), column.slice(0, start)]
            assert spark_hash([chunked(chunks, column.type)]).tolist() == expected[start:] + expected[:start]


@given(tables())
def test_any_columns_hash_as_the_reference_does(
    table: tuple[list[pa.DataType], list[tuple[Any, ...]], list[pa.Array[Any] | pa.ChunkedArray[Any]]],
) -> None:
    kinds, rows, columns = table
    hashes = spark_hash(columns)
    assert hashes.dtype == np.int32
    assert hashes.tolist() == reference(kinds, rows)
    for count in (1, 3, 64, 2**31 - 1):
        buckets = bucket_of(columns, count)
        assert buckets.dtype == np.int32
        assert buckets.tolist() == [number % count for number in hashes.tolist()]


TEXTS = ["", "a", "na\u00efve and longer than the twelve bytes of a view", None, "x" * 41]
SECONDS = [0, 1, -1, None, -62_135_596_800]


@pytest.mark.parametrize("form", [pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_strings_hash_alike_in_all_their_forms(form: pa.DataType) -> None:
    expected = spark_hash([pa.array(TEXTS)])
    values = [text.encode() if text is not None and "binary" in str(form) else text for text in TEXTS]
    column = pa.array(values, form)
    assert spark_hash([column]).tolist() == expected.tolist()
    assert spark_hash([column.slice(1, 3)]).tolist() == expected[1:4].tolist()
    dictionary = pa.DictionaryArray.from_arrays(pa.array([4, 2, None, 3, 0], pa.int8()), column)
    assert spark_hash([dictionary]).tolist() == [expected[4], expected[2], 42, 42, expected[0]]


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6)])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York", "+05:30"])
def test_timestamps_hash_as_microseconds_in_every_unit_and_zone(unit: Any, per_second: int, zone: str | None) -> None:
    expected = spark_hash([pa.array([None if second is None else second * 10**6 for second in SECONDS], pa.int64())])
    column = pa.array([None if second is None else second * per_second for second in SECONDS], pa.timestamp(unit, zone))
    assert spark_hash([column]).tolist() == expected.tolist()


def test_nanoseconds_hash_as_microseconds_when_they_are_whole() -> None:
    slots = pa.array([1_000, 1_001, -2_000], pa.timestamp("ns")).buffers()[1]
    column = pa.Array.from_buffers(pa.timestamp("ns"), 3, [pa.py_buffer(bytes([0b101])), slots])
    assert column.null_count == 1
    assert spark_hash([column]).tolist() == spark_hash([pa.array([1, None, -2], pa.int64())]).tolist()


@pytest.mark.parametrize(
    "form", [pa.decimal32(9, 3), pa.decimal64(9, 3), pa.decimal64(18, 3), pa.decimal256(9, 3), pa.decimal128(18, 3)], ids=str
)
def test_decimals_hash_alike_in_every_width(form: pa.DataType) -> None:
    values = [Decimal("0.000"), Decimal("-1.000"), None, Decimal("999999.999")]
    assert spark_hash([pa.array(values, form)]).tolist() == spark_hash([pa.array(values, pa.decimal128(9, 3))]).tolist()


def test_wide_decimals_hash_alike_in_128_and_256_bits() -> None:
    values = [Decimal(0), Decimal(-(10**38) + 1), None, Decimal(10**38 - 1)]
    assert spark_hash([pa.array(values, pa.decimal256(38, 0))]).tolist() == spark_hash([pa.array(values, pa.decimal128(38, 0))]).tolist()


@pytest.mark.parametrize(("integer", "kind", "quiet"), [(np.uint32, np.float32, 0x7FC00000), (np.uint64, np.float64, 0x7FF8 << 48)])
def test_every_nan_hashes_as_the_canonical_one(integer: Any, kind: Any, quiet: int) -> None:
    sign, signalling = 1 << np.dtype(kind).itemsize * 8 - 1, 1 << (20 if kind is np.float32 else 50)
    exponent = quiet & ~(1 << (22 if kind is np.float32 else 51))
    values = np.array([quiet, quiet | sign, quiet | 1, exponent | signalling, exponent | signalling | sign], integer).view(kind)
    assert np.isnan(values).all()
    column: Any = pa.array(values)
    canonical: Any = pa.array([NAN], column.type)
    assert set(spark_hash([column]).tolist()) == set(spark_hash([canonical]).tolist())


def test_rows_beyond_one_block_and_one_chunk() -> None:
    numbers = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 100_003)
    texts = pa.array([str(number)[: number % 21] for number in numbers.tolist()])
    columns: list[Any] = [chunked([pa.array(numbers[:40_000]), pa.array(numbers[40_000:])], pa.int64()), texts.dictionary_encode()]
    expected = reference([pa.int64(), pa.string()], list(zip(numbers.tolist(), texts.to_pylist(), strict=True)))
    assert spark_hash(columns).tolist() == expected


def test_one_long_string_among_short_ones() -> None:
    texts = ["short", "long" * 20_000 + "est", None, ""]
    assert spark_hash([pa.array(texts)]).tolist() == reference([pa.string()], [[text] for text in texts])


def test_texts_of_every_length_beside_one_another() -> None:
    """Both ways to hash, and rows that change from the one to the other in the middle."""
    random = np.random.default_rng(11)
    for rows, longest in ((1, 70), (3, 9), (40, 300), (400, 40), (3_000, 12), (2_000, 2_000)):
        values: list[bytes | None] = [random.bytes(int(size)) for size in random.integers(0, longest + 1, rows)]
        values += [None, b"", random.bytes(longest * 20 + rows % 4)]
        keys = [pa.array(range(len(values)), pa.int64()), pa.array(values, pa.binary())]
        expected = reference([pa.int64(), pa.binary()], list(enumerate(values)))
        assert spark_hash(keys).tolist() == expected, (rows, longest)
        assert spark_hash([column.slice(1) for column in keys]).tolist() == expected[1:]


@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_done_for_a_long_text_does_not_grow_with_it(rows: int) -> None:
    """Counted in functions that are called: one for each word of a text would be minutes for some megabytes."""

    def calls(length: int) -> int:
        column, count = pa.array(["x" * length] * rows), 0

        def called(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(called)
        try:
            spark_hash([column])
        finally:
            sys.setprofile(None)
        return count

    assert calls(400_001) <= calls(401) + 10


@pytest.mark.parametrize("column", [pa.array([], kind) for kind, _ in KINDS] + [chunked([], pa.string())], ids=lambda c: str(c.type))
def test_no_rows(column: pa.Array[Any]) -> None:
    assert spark_hash([column]).tolist() == []
    assert bucket_of([column], 4).dtype == np.int32


def test_only_nulls_leave_the_seed() -> None:
    for kind, _ in KINDS:
        assert spark_hash([pa.nulls(3, kind)]).tolist() == [42, 42, 42]


REFUSED: list[Any] = [
    pa.list_(pa.int32()),
    pa.struct([("a", pa.int32())]),
    pa.map_(pa.string(), pa.int32()),
    pa.null(),
    pa.float16(),
    pa.date64(),
    pa.time64("us"),
    pa.duration("s"),
    pa.month_day_nano_interval(),
    pa.decimal256(39, 0),
    pa.decimal128(10, -2),
    pa.decimal128(3, 5),
    pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([[1]])).type,
    pa.run_end_encoded(pa.int32(), pa.int32()),
    pa.uuid(),
]


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_other_types_are_refused_with_those_that_are_valid(kind: pa.DataType) -> None:
    with pytest.raises(
        InvalidKeyType,
        match=r"Key column 'k' has type .*, which cannot be a key\. Cast it to one of: bool, int8 to int64, .*date32, timestamp",
    ):
        check_key_type(kind, name="'k'")
    with pytest.raises(InvalidKeyType, match="Key column number 2 has type"):
        spark_hash([pa.array([], pa.int32()), chunked([], kind)])


@pytest.mark.parametrize(("unit", "value"), [("ns", 1_001), ("ns", -1), ("s", 2**62), ("ms", -(2**62))])
def test_timestamps_that_microseconds_cannot_hold_are_refused(unit: Any, value: int) -> None:
    with pytest.raises(InvalidKeyValue, match=r"timestamp\[.*Round the column"):
        bucket_of([pa.array([0, None, value], pa.timestamp(unit))], 4)


def test_what_is_no_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        spark_hash([])
    with pytest.raises(ValueError, match=r"different lengths, \[1, 2\]"):
        spark_hash([pa.array([1]), pa.array([1, 2])])
    for count in (0, -1, 2**31):
        with pytest.raises(ValueError, match=f"bucket_count is {count}. Give a number from 1"):
            bucket_of([pa.array([1])], count)
