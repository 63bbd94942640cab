"""Values of a table as JSON, in the one form that the vectors and the tables of `spec/` use."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "-0.0": -0.0}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def to_json(value: Any) -> Any:
    """A value as JSON. What JSON has no form for is text: decimals, dates, times, bytes (hexadecimal), NaN, infinities and -0.0.

    A map is a list of pairs.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return _float(value)
        case bytes():
            return value.hex()
        case Decimal():
            return f"{value:f}"
        case dt.datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case dt.date():
            return value.isoformat()
        case dict():
            return {name: to_json(item) for name, item in value.items()}
        case tuple() | list():
            return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _float(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return "-0.0" if value == 0 and math.copysign(1, value) < 0 else value


def from_json(value: Any, kind: str) -> Any:
    """The value that `to_json` wrote of a column of a plain type. kind: as in a table's schema. Dates and times are numbers."""
    if value is None:
        return None
    if kind in ("float", "double"):
        number = _SPECIAL[value] if isinstance(value, str) else float(value)
        return number if kind == "double" else struct.unpack("<f", struct.pack("<f", number))[0]
    if kind == "binary":
        return bytes.fromhex(value)
    if kind.startswith("decimal"):
        return Decimal(value)
    if kind == "date":
        return (dt.date.fromisoformat(value) - EPOCH.date()).days
    if kind in ("timestamp", "timestamp_ntz"):
        return (dt.datetime.fromisoformat(value.removesuffix("Z")).replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)
    return value


def zoneless(*parts: int) -> dt.datetime:
    """A value of the type `timestamp_ntz`: year, month, day and so on, without a zone."""
    return dt.datetime(*parts, tzinfo=dt.UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]


def rows_json(rows: list[dict[str, Any]]) -> list[Any]:
    """Rows as JSON, in the order of their text, as they have none of their own."""
    return sorted(map(to_json, rows), key=lambda row: json.dumps(row, ensure_ascii=False))


def arrow_of(value: Any, data_type: pa.DataType) -> pa.Array[Any]:
    """One value as a column."""
    return pa.array([value], data_type)


def dumped(content: Any) -> str:
    """A JSON document with one item of each list on a line, for people and for differences."""
    if not isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    parts = []
    for name, item in content.items():
        if isinstance(item, list):
            lines = ",\n".join(f"  {json.dumps(one, ensure_ascii=False)}" for one in item)
            parts.append(f" {json.dumps(name)}: [\n{lines}\n ]" if item else f" {json.dumps(name)}: []")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(item, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
