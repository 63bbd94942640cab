"""Bounds and counts of a data file, as Iceberg's manifests hold them.

They cover all rows of the file, masked ones too, so they are never too narrow. Values are encoded as Iceberg's specification says
(appendix D, single-value serialization).
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Mapping
from typing import TypeAlias

from objcat.metadata.files import Bound
from objcat.mirror.iceberg.types import Record, scale_of
from objcat.mirror.model import MirroredFile

Value: TypeAlias = bool | int | float | str | None

_LAYOUTS = {"int": "<i", "date": "<i", "long": "<q", "timestamp": "<q", "timestamptz": "<q"}


def metrics_of(file: MirroredFile, types: Mapping[int, str]) -> Record:
    """The counts and bounds of a data file. types: of the columns that are not nested, by id."""
    known: dict[int, Bound] = {column_id: bound for column_id, bound in sorted(file.bounds.items()) if column_id in types}
    return {
        "value_counts": _pairs(dict.fromkeys(known, file.rows)),
        "null_value_counts": _pairs(
            {column_id: nulls for column_id, (_, _, nulls) in known.items() if not nulls or not file.nulls_at_most}
        ),
        "lower_bounds": _pairs({column_id: encode_value(low, types[column_id], upper=False) for column_id, (low, _, _) in known.items()}),
        "upper_bounds": _pairs({column_id: encode_value(high, types[column_id], upper=True) for column_id, (_, high, _) in known.items()}),
    }


def _pairs(values: Mapping[int, int | bytes | None]) -> list[Record] | None:
    return [{"key": key, "value": value} for key, value in values.items() if value is not None] or None


def encode_value(value: Value, primitive: str, *, upper: bool) -> bytes | None:
    """A bound as bytes. None if it is not known, or cannot be said for certain in this type."""
    if value is None:
        return None
    if primitive == "boolean":
        return bytes([value]) if isinstance(value, bool) else None
    if primitive in ("float", "double"):
        return _encode_float(value, primitive, upper=upper)
    if isinstance(value, str):
        return _encode_text(value, primitive)
    layout = _LAYOUTS.get(primitive)
    if layout is None or type(value) is not int:
        return None
    bits = 8 * struct.calcsize(layout) - 1
    return struct.pack(layout, value) if -(1 << bits) <= value < 1 << bits else None


def _encode_float(value: Value, primitive: str, *, upper: bool) -> bytes | None:
    """A lower bound. A file may hold NaN, which engines count as the greatest value, so there are no upper bounds."""
    if upper or isinstance(value, str | bool) or value is None:
        return None
    if primitive == "double":
        return struct.pack("<d", value) if float(value) == value else None
    try:
        found = struct.pack("<f", value)
    except OverflowError:
        return None
    return found if struct.unpack("<f", found)[0] <= value else None


def _encode_text(value: str, primitive: str) -> bytes | None:
    if primitive == "string":
        return value.encode()
    if primitive == "binary":
        return bytes.fromhex(value)
    scale = scale_of(primitive)
    if scale is None:
        return None
    scaled = decimal.Decimal(value).scaleb(scale, decimal.Context(prec=80))
    if scaled != scaled.to_integral_value():
        return None
    unscaled = int(scaled)
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)
