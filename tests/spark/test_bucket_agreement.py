"""Our hash of a key against Spark's own, bit for bit, over many rows of every key type: a million with `--all`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from objcat.datafile.bucket_hash import bucket_of, spark_hash
from tests.effort import effort

ROWS = effort(100_000, with_all=1_000_000)
SEED = 20_130_101
NULL_SHARE = 0.03
BUCKET_COUNTS = (1, 2, 7, 64, 1_000, 2**31 - 1)

Column: TypeAlias = "pa.Array[Any]"
Generator = np.random.Generator


def column_of(random: Generator, kind: pa.DataType, slots: npt.NDArray[Any], edges: npt.NDArray[Any]) -> Column:
    """The `edges`, then the rest of `slots`, as bits of `kind`, with nulls strewn over them."""
    slots[: len(edges)] = edges
    valid = random.random(len(slots)) >= NULL_SHARE
    valid[: len(edges)] = True
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, len(slots), [bitmap, pa.py_buffer(slots.tobytes())])


def arrow(values: npt.NDArray[Any]) -> Any:
    return pa.array(values)


def random_bits(random: Generator, item: str, rows: int) -> npt.NDArray[Any]:
    """Numbers of every magnitude: half of them any bits, half of them shifted towards zero."""
    item_type = np.dtype(item)
    bits = np.frombuffer(random.bytes(rows * item_type.itemsize), item_type).copy()
    bits[::2] >>= random.integers(0, item_type.itemsize * 8, len(bits[::2])).astype(item_type)
    return bits


def integers(kind: pa.DataType, item: str) -> Callable[[Generator], Column]:
    def make(random: Generator) -> Column:
        info = np.iinfo(item)
        edges = [info.min, info.max, 0, 1, info.max // 2, info.max // 2 + 1, *([-1, info.min + 1] if info.min else [])]
        return column_of(random, kind, random_bits(random, item, ROWS), np.array(edges, item))

    return make


def floats(kind: pa.DataType, item: str, bits_item: str) -> Callable[[Generator], Column]:
    def make(random: Generator) -> Column:
        info = np.finfo(item)
        numbers = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, info.max, info.min, info.tiny, -info.tiny], item).view(bits_item)
        # Other NaNs: quiet and signalling ones, of both signs, with payloads.
        infinity = np.array(np.inf, item).view(bits_item)
        payloads = np.array([1, 2, 12_345, 1 << (info.nmant - 1), (1 << info.nmant) - 1], bits_item) | infinity
        sign = np.array(-0.0, item).view(bits_item)
        return column_of(random, kind, random_bits(random, bits_item, ROWS), np.concatenate([numbers, payloads, payloads | sign]))

    return make


def booleans(random: Generator) -> Column:
    return pa.array(random.random(ROWS) < 0.5, mask=random.random(ROWS) < NULL_SHARE)


def decimals(precision: int, scale: int, rows: int = ROWS) -> Callable[[Generator], Column]:
    def make(random: Generator) -> Column:
        limit = 10**precision - 1
        steps = [1 << (8 * count - 1) for count in range(1, 17)]
        wanted = {0, 1, limit, *(step + near for step in steps for near in (-1, 0, 1))}
        signed = sorted(number for magnitude in wanted if magnitude <= limit for number in (magnitude, -magnitude))
        edges = np.frombuffer(b"".join(number.to_bytes(16, "little", signed=True) for number in signed), "<u8").reshape(-1, 2)
        # Magnitudes of 0 to so many bits that every one of them is within the precision.
        bits = random.integers(0, limit.bit_length(), rows).astype(np.uint64)
        one, word = np.uint64(1), np.uint64(64)
        halves = np.frombuffer(random.bytes(16 * rows), "<u8").reshape(-1, 2).copy()
        halves[:, 0] &= np.where(bits >= word, ~np.uint64(0), (one << np.minimum(bits, word - one)) - one)
        halves[:, 1] &= np.where(bits > word, (one << (np.maximum(bits, word) - word)) - one, np.uint64(0))
        negative = random.random(rows) < 0.5
        halves[negative] = ~halves[negative]
        halves[negative, 0] += one
        halves[negative, 1] += halves[negative, 0] == 0
        return column_of(random, pa.decimal128(precision, scale), halves, edges)

    return make


def timestamps(unit: Any, zone: str | None) -> Callable[[Generator], Column]:
    """Instants from before the year 1 on, as whole units of `unit`; in microseconds any of 64 bits."""

    def make(random: Generator) -> Column:
        per_unit = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1}[unit]
        numbers = random_bits(random, "<i8", ROWS)
        numbers = numbers // 1000 * 1000 if unit == "ns" else numbers // per_unit
        top = (2**63 - 1) // per_unit
        edges = [0, -1000, 1000, -86_400_000, 2**40 * 1000] if unit == "ns" else [0, -1, 1, top, -top, -62_135_596_800_000_000 // per_unit]
        numbers[numbers < -top] = 0
        return column_of(random, pa.timestamp(unit, zone), np.where(numbers == -(2**63) // 1000 * 1000, 0, numbers), np.array(edges, "<i8"))

    return make


def strings(random: Generator) -> Column:
    """Of 0 to 40 characters of one to four bytes, with zero bytes among them."""
    alphabet = pa.array([chr(code) for code in (*range(128), 0xE9, 0xDF, 0x3B1, 0x7FF, 0x800, 0x65E5, 0x672C, 0xFFFD, 0x1F600, 0x10FFFF)])
    lengths = random.integers(0, 41, ROWS)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    characters = alphabet.take(arrow(random.integers(0, len(alphabet), offsets[-1])))
    lists: Any = pa.ListArray.from_arrays(arrow(offsets), characters, mask=arrow(random.random(ROWS) < NULL_SHARE))
    return cast("Column", pc.binary_join(lists, ""))


def binaries(random: Generator) -> Column:
    """Any bytes, 0 to 40 of them; every 16th value has zero bytes only."""
    lengths = random.integers(0, 41, ROWS)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = np.frombuffer(random.bytes(int(offsets[-1])), np.uint8).copy()
    data[np.repeat(np.arange(ROWS) % 16 == 0, lengths)] = 0
    bitmap = pa.py_buffer(np.packbits(random.random(ROWS) >= NULL_SHARE, bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.binary(), ROWS, [bitmap, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())])


def fixed_binaries(width: int) -> Callable[[Generator], Column]:
    def make(random: Generator) -> Column:
        slots = np.frombuffer(random.bytes(width * ROWS), np.uint8).reshape(ROWS, width).copy()
        return column_of(random, pa.binary(width), slots, np.repeat(np.array([[0], [127], [128], [255]], np.uint8), width, axis=1))

    return make


def converted(make: Callable[[Generator], Column], kind: pa.DataType) -> Callable[[Generator], Column]:
    return lambda random: make(random).cast(kind)


def dictionary(make: Callable[[Generator], Column]) -> Callable[[Generator], Column]:
    """A dictionary of 50,000 of the values, each used about twenty times."""

    def encode(random: Generator) -> Column:
        values = make(random).slice(0, 50_000)
        return pa.DictionaryArray.from_arrays(arrow(random.integers(0, len(values), ROWS).astype(np.int32)), values)

    return encode


KEY_TYPES: dict[str, Callable[[Generator], Column]] = {
    "bool": booleans,
    **{
        f"int{bits}": integers(kind, f"<i{bits // 8}")
        for bits, kind in ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64()))
    },
    **{
        f"uint{bits}": integers(kind, f"<u{bits // 8}")
        for bits, kind in ((8, pa.uint8()), (16, pa.uint16()), (32, pa.uint32()), (64, pa.uint64()))
    },
    "float32": floats(pa.float32(), "<f4", "<u4"),
    "float64": floats(pa.float64(), "<f8", "<u8"),
    **{f"decimal({precision},{scale})": decimals(precision, scale) for precision, scale in ((9, 2), (18, 18), (19, 0), (38, 10))},
    "date32": integers(pa.date32(), "<i4"),
    "timestamp[us]": timestamps("us", None),
    "timestamp[us, UTC]": timestamps("us", "UTC"),
    "timestamp[us, America/New_York]": timestamps("us", "America/New_York"),
    "timestamp[s]": timestamps("s", None),
    "timestamp[ms, +05:30]": timestamps("ms", "+05:30"),
    "timestamp[ns]": timestamps("ns", None),
    "timestamp[ns, Asia/Kathmandu]": timestamps("ns", "Asia/Kathmandu"),
    "string": strings,
    "large_string": converted(strings, pa.large_string()),
    "string_view": converted(strings, pa.string_view()),
    "binary": binaries,
    "large_binary": converted(binaries, pa.large_binary()),
    "binary_view": converted(binaries, pa.binary_view()),
    "fixed_size_binary(16)": fixed_binaries(16),
    "fixed_size_binary(7)": fixed_binaries(7),
    "dictionary of string": dictionary(strings),
    "dictionary of decimal(38,10)": dictionary(decimals(38, 10)),
    "dictionary of timestamp[ms]": dictionary(timestamps("ms", None)),
}
COMPOSITES = [
    ("int32", "string"),
    ("string", "int64"),
    ("decimal(38,10)", "bool"),
    ("binary", "float64"),
    ("timestamp[us, UTC]", "dictionary of string", "date32"),
    ("uint64", "decimal(9,2)", "int8"),
    ("float32", "fixed_size_binary(7)", "large_string"),
]


def plain(column: Column) -> Column:
    """What a Parquet file that Spark reads can hold: no dictionary, no view, timestamps in microseconds."""
    kind: Any = column.type
    if isinstance(column, pa.DictionaryArray):
        return plain(column.dictionary.take(column.indices))
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())
    return column


def assert_agreement(spark: SparkSession, path: Path, keys: list[list[Column]]) -> None:
    """Each of `keys` (the columns of one key) has the hash and the buckets that Spark computes from a Parquet file of its values."""
    table: dict[str, Any] = {}
    mismatches = []
    for number, columns in enumerate(keys):
        names = [f"k{number}_{position}" for position in range(len(columns))]
        table.update(zip(names, (plain(column) for column in columns), strict=True))
        table[f"h{number}"] = pa.array(spark_hash(columns))
        mismatches.append(f"NOT (hash({', '.join(names)}) <=> h{number})")
        for count in BUCKET_COUNTS:
            table[f"b{number}_{count}"] = pa.array(bucket_of(columns, count))
            mismatches.append(f"NOT (pmod(hash({', '.join(names)}), {count}) <=> b{number}_{count})")
    pq.write_table(pa.table(table), path, use_dictionary=False, compression="none")
    frame = spark.read.parquet(str(path))
    rows, *counts = frame.selectExpr("count(*)", *(f"count_if({mismatch})" for mismatch in mismatches)).collect()[0]
    assert rows == len(keys[0][0])
    assert {mismatch: count for mismatch, count in zip(mismatches, counts, strict=True) if count} == {}, f"seed {SEED}"


@pytest.mark.parametrize("name", KEY_TYPES)
def test_many_values_have_sparks_hash_and_buckets(spark: SparkSession, tmp_path: Path, name: str) -> None:
    column = KEY_TYPES[name](np.random.default_rng(SEED))
    assert len(column) == ROWS
    assert_agreement(spark, tmp_path / "keys.parquet", [[column]])


def test_decimals_of_every_precision(spark: SparkSession, tmp_path: Path) -> None:
    random = np.random.default_rng(SEED)
    columns = [decimals(precision, precision // 3, rows=ROWS // 38)(random) for precision in range(1, 39)]
    assert_agreement(spark, tmp_path / "keys.parquet", [[column] for column in columns])


@pytest.mark.parametrize("names", COMPOSITES, ids=" + ".join)
def test_keys_of_several_columns_with_nulls(spark: SparkSession, tmp_path: Path, names: tuple[str, ...]) -> None:
    random = np.random.default_rng(SEED)
    columns = [KEY_TYPES[name](random).slice(0, ROWS // 4) for name in names]
    # The edges come first: turn the columns against one another, so that edges and nulls of one meet all of the others.
    turned = [column.take(arrow(random.permutation(len(column)))) for column in columns]
    assert any(column.null_count for column in turned)
    assert_agreement(spark, tmp_path / "keys.parquet", [turned])


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_the_session_time_zone_does_not_matter(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    random = np.random.default_rng(SEED)
    keys = [[KEY_TYPES[name](random)] for name in ("timestamp[us, UTC]", "timestamp[us]", "date32")]
    assert_agreement(session, tmp_path / "keys.parquet", keys)
