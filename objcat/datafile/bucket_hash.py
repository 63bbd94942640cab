"""The bucket of a key: Spark's `pmod(hash(c1, c2, ...), n)`, bit for bit, over Arrow columns.

    ValueError
    ├── InvalidKeyType      a column type that cannot be part of a key. The message lists valid ones.
    └── InvalidKeyValue     a timestamp that Spark's microseconds cannot hold.

`hash` is Murmur3_x86_32 with seed 42. The hash of one column is the seed of the next, and a null leaves it unchanged (Spark:
`org.apache.spark.sql.catalyst.expressions.Murmur3Hash`). It depends on the type and the value: an int32 1 and an int64 1 differ.

    bool, int8, int16, int32, date32, uint8, uint16     as a 32-bit integer
    int64, uint32, timestamp (as microseconds)          as a 64-bit integer
    float32, float64                                    by their bits, after -0.0 became 0.0 and every NaN the canonical one
    decimal of precision <= 18                          the unscaled value as a 64-bit integer
    decimal of precision <= 38, uint64                  the shortest big-endian two's complement bytes of the unscaled value
    string, binary (large, view, fixed size)            their bytes

Unsigned integers are hashed as Spark reads them from Parquet: short, int, bigint and decimal(20, 0). Time zones do not matter, since Spark
hashes microseconds. A dictionary is hashed like its values, a string under the collation UTF8_BINARY.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

_VALID_TYPES = (
    "bool, int8 to int64, uint8 to uint64, float32, float64, decimal (precision <= 38, 0 <= scale <= precision), date32, timestamp, "
    "string, binary (also large, view and fixed size), and dictionaries of these"
)
_BYTES_TYPES = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
_VALID_TESTS = (pt.is_boolean, pt.is_integer, pt.is_float32, pt.is_float64, pt.is_date32, pt.is_timestamp, pt.is_fixed_size_binary)
_SEED = 42
_WORD_BYTES = 4
_BUCKET_COUNT_MAX = 2**31 - 1
_DECIMAL_LONG_PRECISION_MAX = 18
_DECIMAL_PRECISION_MAX = 38
# Rows per block, so that the working arrays of a step stay in the processor's cache.
_BLOCK_ROWS = 32_768
# Costs in nanoseconds. NumPy hashes one word of all rows at a time, the C library all words of one row.
_STEP_NS, _STEP_WORD_NS, _CALL_NS, _CALL_WORD_NS = 12_000, 5.0, 300, 1.2
# Factors of the avalanche, and their inverses.
_AVALANCHE = (0x85EBCA6B, 0xC2B2AE35)
_AVALANCHE_UNDONE = tuple(np.uint32(pow(factor, -1, 2**32)) for factor in _AVALANCHE)

_Words = npt.NDArray[np.uint32]
_Longs = npt.NDArray[np.int64]
_ByteRanges = tuple[npt.NDArray[np.uint8], _Longs, _Longs]  # all bytes, and the start and length of each row


class InvalidKeyType(ValueError):
    """A column of this type cannot be (part of) a key."""


class InvalidKeyValue(ValueError):
    """A key holds a timestamp that has no exact counterpart in Spark's 64-bit microseconds."""


def bucket_of(columns: Sequence[pa.Array[Any] | pa.ChunkedArray[Any]], bucket_count: int) -> npt.NDArray[np.int32]:
    """The bucket of each row's key, 0 to `bucket_count` - 1: Spark's `pmod(hash(*columns), bucket_count)`. Pure and thread-safe.

    Args:
        columns: the key columns in key order, of equal length. Their chunks may differ.
        bucket_count: 1 to 2**31 - 1.

    Raises:
        ValueError: another bucket count, and what `spark_hash` raises.
    """
    if not 1 <= bucket_count <= _BUCKET_COUNT_MAX:
        raise ValueError(f"bucket_count is {bucket_count}. Give a number from 1 to {_BUCKET_COUNT_MAX}.")
    return np.mod(spark_hash(columns), np.int32(bucket_count))


def spark_hash(columns: Sequence[pa.Array[Any] | pa.ChunkedArray[Any]]) -> npt.NDArray[np.int32]:
    """Spark's `hash(*columns)` of each row, as the module describes it. Pure and thread-safe.

    Time depends only on rows and bytes. Nulls are skipped, as in Spark: whether a key may be null is the caller's rule.

    Args:
        columns: at least one column, all of equal length. Their chunks may differ.

    Raises:
        InvalidKeyType: for a type that cannot be part of a key.
        InvalidKeyValue: for a timestamp that microseconds cannot hold.
        ValueError: without columns, or with different lengths.
    """
    if not columns:
        raise ValueError("A key has at least one column, and there is none. Pass the key columns in key order.")
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise ValueError(f"The key columns have different lengths, {lengths}. Pass columns of one table.")
    for position, column in enumerate(columns):
        check_key_type(column.type, name=f"number {position + 1}")
    hashes = np.full(lengths[0], _SEED, np.uint32)
    for column in columns:
        start = 0
        for block in _blocks(column):
            _hash_block(block, hashes[start : start + len(block)])
            start += len(block)
    return hashes.view(np.int32)


def key_digests(columns: Sequence[pa.Array[Any] | pa.ChunkedArray[Any]]) -> npt.NDArray[np.uint64]:
    """64 bits per row that identify its key in conflict checks.

    The high half is `hash(*columns)`, the low half `hash(0, *columns)` with a 32-bit 0. Little endian in memory. columns, errors and
    threads:
    see `spark_hash`.
    """
    zeros = pa.array(np.zeros(len(columns[0]) if columns else 0, np.int32))
    high, low = spark_hash(columns).view(np.uint32), spark_hash([zeros, *columns]).view(np.uint32)
    return ((high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)).astype("<u8")


def check_key_type(data_type: pa.DataType, *, name: str) -> None:
    """Check that a column `name` of this type can be part of a key. Raises InvalidKeyType."""
    value_type = data_type.value_type if pt.is_dictionary(data_type) else data_type
    if pt.is_decimal(value_type):
        valid = value_type.precision <= _DECIMAL_PRECISION_MAX and 0 <= value_type.scale <= value_type.precision
    else:
        valid = value_type in _BYTES_TYPES or any(test(value_type) for test in _VALID_TESTS)
    if not valid:
        raise InvalidKeyType(f"Key column {name} has type {data_type}, which cannot be a key. Cast it to one of: {_VALID_TYPES}.")


def _blocks(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> Iterator[pa.Array[Any]]:
    """The column in order, in plain non-empty arrays of at most `_BLOCK_ROWS` rows."""
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        values, rows = (_large(chunk.dictionary), chunk.indices) if isinstance(chunk, pa.DictionaryArray) else (None, chunk)
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = rows.slice(start, _BLOCK_ROWS)
            yield _plain(block if values is None else values.take(block))


def _large(values: pa.Array[Any]) -> pa.Array[Any]:
    """Bytes with 64-bit offsets, which repeated dictionary values cannot overflow. Other values as they are."""
    return values.cast(pa.large_binary()) if values.type in _BYTES_TYPES else values


def _plain(block: pa.Array[Any]) -> pa.Array[Any]:
    """The same values as int32, int64, float32, float64, decimal128, fixed-size or large binary, as Spark hashes them."""
    kind = block.type
    if pt.is_timestamp(kind):
        try:
            return block.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        except pa.ArrowInvalid as error:
            problem = f"a key of type {kind} holds a value that Spark's 64-bit microseconds do not hold exactly"
            raise InvalidKeyValue(f"{problem}. Round the column to timestamp('us') first ({error}).") from error
    if pt.is_uint64(kind):
        return block.cast(pa.decimal128(20, 0))
    if pt.is_decimal(kind):
        return block if pt.is_decimal128(kind) else block.cast(pa.decimal128(kind.precision, kind.scale))
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_date32(kind):
        return block.cast(pa.int64() if pt.is_int64(kind) or pt.is_uint32(kind) else pa.int32())
    return _large(block)


def _hash_block(block: pa.Array[Any], hashes: _Words) -> None:
    """Hash the values of a plain array into `hashes`, in place. A null leaves its hash unchanged."""
    if not block.null_count:
        _hash_slots(block, hashes)
        return
    hashed = hashes.copy()
    _hash_slots(block, hashed)
    np.copyto(hashes, hashed, where=block.is_valid().to_numpy(zero_copy_only=False))


def _hash_slots(block: pa.Array[Any], hashes: _Words) -> None:
    """Hash the content of each slot, null or not. The result of a null is not used."""
    kind = block.type
    if pt.is_decimal(kind):
        halves = _slots(block, np.dtype(np.int64), per_row=2)
        if kind.precision <= _DECIMAL_LONG_PRECISION_MAX:
            _hash_numbers(halves[0::2].copy(), hashes)
        else:
            _hash_bytes(_shortest_big_endian(halves[0::2], halves[1::2]), hashes)
    elif pt.is_fixed_size_binary(kind) or pt.is_large_binary(kind):
        _hash_bytes(_byte_ranges(block), hashes)
    else:
        values = _slots(block, np.dtype(kind.to_pandas_dtype()))
        if pt.is_floating(kind):
            values = values.copy()
            values[values == 0] = 0  # also -0.0
            values[np.isnan(values)] = np.nan
        _hash_numbers(values, hashes)


def _slots(block: pa.Array[Any], item: np.dtype[Any], *, per_row: int = 1) -> npt.NDArray[Any]:
    """The values of a fixed-width array without a copy, `per_row` items per row. A null slot has any content."""
    first = block.offset * per_row
    return _view(block.buffers()[1], item)[first : first + len(block) * per_row]


def _view(buffer: pa.Buffer | None, item: np.dtype[Any]) -> npt.NDArray[Any]:
    """All of a buffer. Arrow may omit an empty one, and a buffer may end within an item."""
    # NumPy would copy a `memoryview` of Arrow, which has signed bytes.
    data = np.frombuffer(buffer or b"", np.uint8)
    return data[: len(data) // item.itemsize * item.itemsize].view(item)


def _shortest_big_endian(low: _Longs, high: _Longs) -> _ByteRanges:
    """128-bit integers as the bytes of Java's `BigInteger.toByteArray`."""
    rows = len(low)
    data = np.stack([high, low], axis=1).astype(">i8").view(np.uint8).reshape(-1)
    sign = high >> 63
    magnitude_low, magnitude_high = (low ^ sign).view(np.uint64), (high ^ sign).view(np.uint64)
    lengths = np.ones(rows, np.int64)
    for bit in range(7, 64, 8):
        # One more byte is needed if the highest bit would be read as a sign.
        lengths += (magnitude_high > 0) | (magnitude_low >= np.uint64(1 << bit))
        lengths += magnitude_high >= np.uint64(1 << bit)
    return data, np.arange(16, 16 * rows + 16, 16) - lengths, lengths


def _byte_ranges(block: pa.Array[Any]) -> _ByteRanges:
    """The bytes of a fixed-size or large binary array."""
    buffers = block.buffers()
    if pt.is_fixed_size_binary(block.type):
        offsets = np.arange(block.offset, block.offset + len(block) + 1, dtype=np.int64) * block.type.byte_width
    else:
        offsets = _view(buffers[1], np.dtype(np.int64))[block.offset : block.offset + len(block) + 1]
    # A null may cover bytes, even many.
    lengths = np.diff(offsets) * block.is_valid().to_numpy(zero_copy_only=False)
    return _view(buffers[-1], np.dtype(np.uint8)), offsets[:-1], lengths


def _hash_numbers(values: npt.NDArray[Any], hashes: _Words) -> None:
    """Spark's `hashInt` for values of 4 bytes and `hashLong` for those of 8: the low word first."""
    words = values.view(np.uint32).reshape(len(values), -1)
    for position in range(words.shape[1]):
        _mix(hashes, words[:, position].copy())
    _finish(hashes, np.uint32(values.itemsize))


def _hash_bytes(ranges: _ByteRanges, hashes: _Words) -> None:
    """Spark's `hashUnsafeBytes`: whole little-endian words, then each remaining byte, sign-extended to a word."""
    data, starts, lengths = ranges
    longest, shortest = int(lengths.max()), int(lengths.min())
    order = None
    if longest == shortest:
        cursors, hashed = starts.copy(), hashes
    else:
        # From long to short, so that the rows with a word left come first. NumPy sorts 16-bit numbers by radix, which is faster.
        order = np.argsort(lengths.astype(np.uint16 if longest < 2**16 else np.int64), kind="stable")[::-1]
        cursors, lengths, hashed = starts[order], lengths[order], hashes[order]
    if longest >= _WORD_BYTES:
        # For every word position, the number of rows that have it.
        active_counts = len(lengths) - np.searchsorted(lengths[::-1], np.arange(_WORD_BYTES, longest + 1, _WORD_BYTES))
        steps = _steps_in_numpy(active_counts)
        # A word may start at any byte, so the stride is one.
        words = np.ndarray(len(data) - 3, "<u4", data, strides=(1,))
        for active in active_counts[:steps].tolist():
            _mix(hashed[:active], words[cursors[:active]])
            cursors[:active] += _WORD_BYTES
        if steps < len(active_counts):
            left = slice(0, int(active_counts[steps]))
            sizes = (lengths[left] & ~3) - steps * _WORD_BYTES
            hashed[left] = _hash_words(data, cursors[left], sizes, hashed[left])
            cursors[left] += sizes
    signed = data.view(np.int8)
    for position in range(3):
        rows = np.flatnonzero((lengths & 3) > position)
        if rows.size:
            part = hashed[rows]
            _mix(part, signed[cursors[rows] + position].astype(np.int32).view(np.uint32))
            hashed[rows] = part
    _finish(hashed, lengths.astype(np.uint32))
    if order is not None:
        hashes[order] = hashed


def _steps_in_numpy(active_counts: _Longs) -> int:
    """How many words to hash with NumPy for all rows before the C library takes the longer rows: the fastest split."""
    steps = len(active_counts)
    if _STEP_NS * steps + _STEP_WORD_NS * active_counts.sum() <= _CALL_NS * active_counts[-1]:
        return steps
    numpy_ns = np.concatenate([[0.0], np.cumsum(_STEP_NS + _STEP_WORD_NS * active_counts)])
    words_left = np.concatenate([np.cumsum(active_counts[::-1])[::-1], [0]])
    calls = np.concatenate([active_counts, [0]])
    return int(np.argmin(numpy_ns + _CALL_NS * calls + _CALL_WORD_NS * words_left))


def _hash_words(data: npt.NDArray[np.uint8], starts: _Longs, sizes: _Longs, hashes: _Words) -> _Words:
    """The hashes of rows after their whole words. starts, sizes: of these words, in bytes.

    The library finishes a hash like the textbook, which equals Spark's way up to the bytes that make no word. The final avalanche is a
    permutation, so it is undone here and the hash continues.
    """
    view = data.data
    rows = zip(starts.tolist(), sizes.tolist(), hashes.tolist(), strict=True)
    hashed = np.array([mmh3.mmh3_32_uintdigest(view[start : start + size], seed) for start, size, seed in rows], np.uint32)
    first, second = _AVALANCHE_UNDONE
    hashed ^= hashed >> 16
    hashed *= second
    hashed ^= (hashed >> 13) ^ (hashed >> 26)
    hashed *= first
    hashed ^= hashed >> 16
    return hashed ^ sizes.astype(np.uint32)


def _mix(hashes: _Words, words: _Words) -> None:
    """One round of Murmur3, in place; consumes `words`."""
    words *= np.uint32(0xCC9E2D51)
    carried = words >> 17
    words <<= 15
    words |= carried
    words *= np.uint32(0x1B873593)
    hashes ^= words
    np.right_shift(hashes, 19, out=carried)
    hashes <<= 13
    hashes |= carried
    hashes *= 5
    hashes += np.uint32(0xE6546B64)


def _finish(hashes: _Words, lengths_bytes: _Words | np.uint32) -> None:
    """The final avalanche of Murmur3, in place."""
    hashes ^= lengths_bytes
    hashes ^= hashes >> 16
    hashes *= np.uint32(_AVALANCHE[0])
    hashes ^= hashes >> 13
    hashes *= np.uint32(_AVALANCHE[1])
    hashes ^= hashes >> 16
