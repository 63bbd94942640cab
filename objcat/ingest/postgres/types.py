"""Types of PostgreSQL as types of the lake, and decoders of their text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from objcat.ingest.model import SourceColumn

DIGITS_MAX = 38
BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, FLOAT4, FLOAT8 = 16, 17, 20, 21, 23, 25, 26, 700, 701
VARCHAR, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = 1043, 1082, 1114, 1184, 1700, 2950
"""Type numbers of `pg_type` that are the same in every database."""

_ENDLESS = ("infinity", "-infinity")
_ARRAY_BOUNDS = re.compile(r"^(?:\[-?\d+:-?\d+\])+=")
_ARRAY_ITEM = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",{}]+)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PgType:
    """A row of `pg_type`.

    Args:
        base: the type of a domain, 0 for others.
        base_modifier: of the type of a domain.
        element: the type of the elements of an array, 0 for others.
    """

    base: int = 0
    base_modifier: int = -1
    element: int = 0


def column_of(
    name: str, type_oid: int, modifier: int, *, nullable: bool, known: Mapping[int, PgType], numeric_scale: int | None
) -> SourceColumn:
    """A column of a source.

    Args:
        name: of the column.
        type_oid, modifier: as catalog and stream have them.
        nullable: whether it may be null.
        known: domains and arrays of the database. What is not in it is text.
        numeric_scale: of numerics without a precision; None: they are text.
    """
    data_type, decode = _type_of(type_oid, modifier, known, numeric_scale)
    within = count_null_elements if pa.types.is_list(data_type) else None
    return SourceColumn(name=name, type=data_type, nullable=nullable, decode=decode, nulls_within=within)


def _type_of(type_oid: int, modifier: int, known: Mapping[int, PgType], numeric_scale: int | None) -> tuple[pa.DataType, Any]:
    if type_oid in _PLAIN:
        return _PLAIN[type_oid]
    if type_oid == NUMERIC:
        return _numeric(modifier, numeric_scale)
    found = known.get(type_oid, PgType())
    if found.base:
        return _type_of(found.base, found.base_modifier, known, numeric_scale)
    if found.element:
        element, decode = _type_of(found.element, modifier, known, numeric_scale)
        if not pa.types.is_list(element):
            return pa.list_(element), partial(decode_array, element=element, decode=decode)
    return pa.string(), decode_text


def _numeric(modifier: int, numeric_scale: int | None) -> tuple[pa.DataType, Any]:
    if modifier >= 4:
        precision = (modifier - 4) >> 16 & 0xFFFF
        # The scale has 11 bits and a sign.
        scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024
        if precision <= DIGITS_MAX and 0 <= scale <= precision:
            return pa.decimal128(precision, scale), decode_decimal
    elif numeric_scale is not None:
        return pa.decimal128(DIGITS_MAX, numeric_scale), decode_decimal
    return pa.string(), decode_text


def _texts(values: Sequence[Any] | pa.Array) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, pa.string())


def decode_text(values: Sequence[Any], _type: pa.DataType) -> pa.Array:
    """Text stays as it is."""
    return _texts(values)


def decode_cast(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Numbers whose text Arrow reads."""
    return pc.cast(_texts(values), data_type)


def decode_bool(values: Sequence[Any], _type: pa.DataType) -> pa.Array:
    """`t` and `f`."""
    texts = _texts(values)
    if pc.any(pc.invert(pc.is_in(texts, pa.array(["t", "f", None])))).as_py():
        raise ValueError("a boolean is neither t nor f")
    return pc.equal(texts, "t")


def decode_decimal(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Decimals. NaN, which a decimal of the lake cannot be, becomes null."""
    texts = _texts(values)
    nothing = pc.is_in(texts, pa.array(["NaN", "Infinity", "-Infinity"]))
    return pc.cast(pc.if_else(nothing, None, texts), data_type)


def decode_time(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Dates and timestamps. Infinity becomes null."""
    texts = _texts(values)
    return pc.cast(pc.if_else(pc.is_in(texts, pa.array(_ENDLESS)), None, texts), data_type)


def decode_bytes(values: Sequence[Any], _type: pa.DataType) -> pa.Array:
    r"""Bytes in hexadecimal digits after `\x`."""
    found = []
    for value in _texts(values).to_pylist():
        if value is not None and not value.startswith("\\x"):
            raise ValueError("bytes do not begin with \\x")
        found.append(None if value is None else bytes.fromhex(value[2:]))
    return pa.array(found, pa.binary())


def decode_array(values: Sequence[Any], data_type: pa.DataType, *, element: pa.DataType, decode: Any) -> pa.Array:
    """Arrays of one dimension as lists."""
    lists = [None if value is None else parse_array(value) for value in _texts(values).to_pylist()]
    flat = [item for one in lists if one is not None for item in one]
    offsets: list[int | None] = [0]
    end = 0
    for one in lists:
        end += len(one or ())
        offsets.append(end)
    items = decode(flat, element)
    made = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, mask=pa.array([one is None for one in lists]))
    return made.cast(data_type)


def count_null_elements(values: Sequence[Any]) -> int:
    """How many elements of arrays are NULL at the source."""
    return sum(item is None for value in values for item in parse_array(value))


def parse_array(text: str) -> list[str | None]:
    """The elements of an array in PostgreSQL's text. Raises ValueError for one of several dimensions."""
    text = _ARRAY_BOUNDS.sub("", text)
    if not text.startswith("{") or not text.endswith("}"):
        raise ValueError("an array is not in braces")
    inner = text[1:-1]
    found: list[str | None] = []
    at = 0
    while at < len(inner):
        item = _ARRAY_ITEM.match(inner, at)
        if item is None:
            raise ValueError("an array has several dimensions, and a list has one")
        if item[1] is not None:
            found.append(_ESCAPED.sub(r"\1", item[1]))
        else:
            found.append(None if item[2].upper() == "NULL" else _ESCAPED.sub(r"\1", item[2]))
        at = item.end()
        if at < len(inner):
            if inner[at] != ",":
                raise ValueError("an array has no comma between elements")
            at += 1
    return found


_PLAIN: Mapping[int, tuple[pa.DataType, Any]] = {
    BOOL: (pa.bool_(), decode_bool),
    BYTEA: (pa.binary(), decode_bytes),
    INT2: (pa.int16(), decode_cast),
    INT4: (pa.int32(), decode_cast),
    INT8: (pa.int64(), decode_cast),
    OID: (pa.int64(), decode_cast),
    FLOAT4: (pa.float32(), decode_cast),
    FLOAT8: (pa.float64(), decode_cast),
    DATE: (pa.date32(), decode_time),
    TIMESTAMP: (pa.timestamp("us"), decode_time),
    TIMESTAMPTZ: (pa.timestamp("us", tz="UTC"), decode_time),
}
