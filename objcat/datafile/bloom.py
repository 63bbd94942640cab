"""Parquet bloom filters of key columns: reads them, and tests whether a file may hold some keys.

pyarrow writes these filters and does not read them. A filter is split into blocks of 256 bits, with xxHash64 of the plain encoding of a
value. Source: the Parquet format's BloomFilter.md, and the specification of xxHash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

FALSE_POSITIVES = 0.01
"""The largest share of absent keys that a filter may report as present."""

Hashes = npt.NDArray[np.uint64]
Filter = npt.NDArray[np.uint32]
"""Blocks of eight words."""

_Bytes = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]  # all bytes, and the start and length of each value
_WORDS = 8
_INTEGER_DIGITS_MAX, _LONG_DIGITS_MAX = 9, 18
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31],
    np.uint32,
)
_ONE, _SHIFT = np.uint32(1), np.uint32(27)
# The rest of a header after its size: split block, xxHash, uncompressed. Parquet defines no other kind.
_KIND = b"\x1c\x1c\x00\x00" * 3 + b"\x00"


def has_filter(data_type: pa.DataType) -> bool:
    """Whether columns of a type have filters. Not floats, since equal floats may differ in bits, nor booleans, which have two values."""
    whole = pt.is_integer(data_type) or pt.is_date32(data_type) or pt.is_timestamp(data_type)
    return bool(whole or pt.is_string(data_type) or pt.is_binary(data_type) or pt.is_decimal128(data_type))


def physical_type(data_type: pa.DataType) -> str:
    """The Parquet physical type of a column whose type `has_filter`. Small decimals are integers."""
    if pt.is_string(data_type) or pt.is_binary(data_type):
        return "BYTE_ARRAY"
    if pt.is_decimal128(data_type) and data_type.precision > _LONG_DIGITS_MAX:
        return "FIXED_LEN_BYTE_ARRAY"
    if pt.is_decimal128(data_type):
        return "INT32" if data_type.precision <= _INTEGER_DIGITS_MAX else "INT64"
    return "INT64" if data_type.bit_width == 64 else "INT32"


def options_of(columns: Sequence[str], rows: int) -> dict[str, dict[str, float]]:
    """Options of pyarrow's writer. columns: that get filters. rows: of a row group, about."""
    return {name: {"ndv": max(1, rows), "fpp": FALSE_POSITIVES} for name in columns}


def parse_filter(data: bytes) -> Filter | None:
    """A filter from the bytes of a file. None for an unknown kind. Raises ValueError if it is cut short."""
    size, at = _varint(data)
    if at is None or data[at : at + len(_KIND)] != _KIND:
        return None
    begin = at + len(_KIND)
    if size % (4 * _WORDS) or not size or len(data) < begin + size:
        raise ValueError(f"a bloom filter of {size} bytes has only {len(data) - begin}")
    return np.frombuffer(data, "<u4", size // 4, begin).reshape(-1, _WORDS)


def _varint(data: bytes) -> tuple[int, int | None]:
    """The value of the first field of a header, and its end. None without such a field."""
    if data[:1] != b"\x15":
        return 0, None
    value = 0
    for position, byte in enumerate(data[1:6]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value >> 1, position + 2
    return 0, None


def may_hold(blocks: Filter, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """For each hash, whether the filter may contain a value with it."""
    high = hashes >> np.uint64(32)
    block = ((high * np.uint64(len(blocks))) >> np.uint64(32)).astype(np.int64)
    low = hashes.astype(np.uint32)
    found = np.ones(len(hashes), np.bool_)
    for word in range(_WORDS):
        bit = _ONE << ((low * _SALT[word]) >> _SHIFT)
        found &= (blocks[block, word] & bit) != 0
    return found


def value_hashes(values: pa.ChunkedArray) -> Hashes:
    """xxHash64 of each value in Parquet's encoding. values: without nulls, of a type that `has_filter`."""
    chunks = [_hashed(chunk) for chunk in values.chunks if len(chunk)]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.uint64)


def _hashed(chunk: pa.Array) -> Hashes:
    data, starts, lengths = _plain(chunk)
    hashes = np.empty(len(chunk), np.uint64)
    # A word may begin at any byte, and no read may pass the end.
    padded = np.concatenate((data, np.zeros(8, np.uint8)))
    words: Hashes = np.ndarray(len(data) + 1, np.uint64, padded, strides=(1,))
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length)
        hashes[chosen] = _xxhash(words, starts[chosen].copy(), length)
    return hashes


def _plain(chunk: pa.Array) -> _Bytes:
    """The bytes of each value in Parquet's plain encoding, without the length of texts."""
    kind = chunk.type
    if pt.is_string(kind) or pt.is_binary(kind):
        large = chunk.cast(pa.large_binary())
        _, offsets, data = large.buffers()
        ends = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
        return np.frombuffer(data or b"", np.uint8), ends[:-1].astype(np.int64), np.diff(ends)
    wide = physical_type(kind) == "INT64"
    if pt.is_decimal128(kind):
        halves = np.frombuffer(chunk.buffers()[1], np.int64)[2 * chunk.offset : 2 * (chunk.offset + len(chunk))].reshape(-1, 2)
        if kind.precision > _LONG_DIGITS_MAX:
            width = _decimal_bytes(kind.precision)
            data = halves[:, ::-1].astype(">i8").view(np.uint8).reshape(-1)
            return data, np.arange(16 - width, 16 * len(chunk), 16), np.full(len(chunk), width, np.int64)
        numbers = halves[:, 0].astype("<i8" if wide else "<i4")
    else:
        numbers = np.asarray(chunk.cast(pa.int64() if wide else pa.int32())).astype("<i8" if wide else "<i4")
    width = numbers.itemsize
    return numbers.view(np.uint8), np.arange(0, width * len(chunk), width), np.full(len(chunk), width, np.int64)


def _decimal_bytes(precision: int) -> int:
    """Bytes of a signed integer with so many digits."""
    return int(10**precision - 1).bit_length() // 8 + 1


_P1, _P2, _P3, _P4, _P5 = map(
    np.uint64, (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)


def _xxhash(words: Hashes, at: npt.NDArray[np.int64], length: int) -> Hashes:
    """xxHash64 with seed 0 of values of one length. words: one beginning at each byte. at: start of each value; consumed."""
    left = length
    if length >= 32:
        with np.errstate(over="ignore"):
            seeds = (_P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1)
        lanes: list[Hashes] = [np.full(len(at), seed, np.uint64) for seed in seeds]
        while left >= 32:
            for number in range(4):
                lanes[number] = _turned(lanes[number] + words[at] * _P2, 31) * _P1
                at += 8
            left -= 32
        hashes = np.zeros(len(at), np.uint64)
        for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
            hashes = hashes + _turned(lane, bits)
        for lane in lanes:
            hashes = (hashes ^ (_turned(lane * _P2, 31) * _P1)) * _P1 + _P4
    else:
        hashes = np.full(len(at), _P5)
    hashes = hashes + np.uint64(length)
    while left >= 8:
        hashes = _turned(hashes ^ (_turned(words[at] * _P2, 31) * _P1), 27) * _P1 + _P4
        at += 8
        left -= 8
    if left >= 4:
        hashes = _turned(hashes ^ ((words[at] & np.uint64(0xFFFFFFFF)) * _P1), 23) * _P2 + _P3
        at += 4
        left -= 4
    for _ in range(left):
        hashes = _turned(hashes ^ ((words[at] & np.uint64(0xFF)) * _P5), 11) * _P1
        at += 1
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    result: Hashes = hashes ^ (hashes >> np.uint64(32))
    return result


def _turned(values: Hashes, bits: int) -> Hashes:
    result: Hashes = (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
    return result


def ranges_of(footer: pq.FileMetaData, columns: Mapping[str, str]) -> list[list[tuple[int, int]]] | None:
    """For every row group, offset and length of each column's filter. None if one is missing, or the column has another type.

    columns: with their `physical_type`. Needs pyarrow 25 or later.
    """
    found: list[list[tuple[int, int]]] = []
    number = {footer.schema.column(at).path: at for at in range(footer.num_columns)}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        chunks = [group.column(number[name]) for name in columns]
        if any(chunk.physical_type != kind for chunk, kind in zip(chunks, columns.values(), strict=True)):
            return None
        ranges = [(getattr(chunk, "bloom_filter_offset", None), getattr(chunk, "bloom_filter_length", None)) for chunk in chunks]
        known = [(offset, length) for offset, length in ranges if offset is not None and length is not None]
        if len(known) < len(columns):
            return None
        found.append(known)
    return found
