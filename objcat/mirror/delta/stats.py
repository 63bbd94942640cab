"""The statistics of a file as Delta says them: how many rows, and bounds that exclude no row.

A bound in doubt is left out. Readers only skip files by bounds, so a missing one costs time and a wrong one costs rows:

- Times are cut to milliseconds: a lower bound down, an upper bound up.
- Floats have none: NaN is in no bound of objcat, but many readers take it for the greatest number.
- A decimal has one only if 15 digits hold it, since some readers read it as a double.
- Text that may have been cut has none, and neither have bytes and booleans.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from objcat.metadata.files import Bound
from objcat.metadata.schema import Column, decimal_digits

TEXT_BYTES_MAX = 60
"""UTF-8 bytes of a text bound. A longer one may have been cut when the file was written."""
DIGITS_MAX = 15
"""Digits of a number that a double holds exactly."""
_DAYS = (dt.date(1, 1, 1) - dt.date(1970, 1, 1)).days, (dt.date(9999, 12, 31) - dt.date(1970, 1, 1)).days
_MS = _DAYS[0] * 86_400_000, (_DAYS[1] + 1) * 86_400_000 - 1
_INTEGERS = ("tinyint", "smallint", "int", "bigint")


def stats_of(rows: int, bounds: Mapping[int, Bound], columns: Mapping[int, Column], *, nulls_at_most: bool = False) -> str:
    """The statistics of a file as JSON text.

    Args:
        rows: All its rows, masked ones too.
        bounds: By column id.
        columns: By id, under the names of statistics.
        nulls_at_most: Only a count of 0 nulls is exact.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column_id, (lower, upper, missing) in bounds.items():
        column = columns.get(column_id)
        if column is None or not isinstance(column.type, str) or missing < 0 or (missing > rows and not nulls_at_most):
            continue
        if not (missing and nulls_at_most):
            nulls[column.name] = missing
        low, high = _value(lower, column.type, upper=False), _value(upper, column.type, upper=True)
        if low is not None:
            least[column.name] = low
        if high is not None:
            greatest[column.name] = high
    said = {"numRecords": rows, "minValues": least, "maxValues": greatest, "nullCount": nulls, "tightBounds": False}
    return msgspec.json.encode(said).decode()


def rows_of_stats(stats: str | None) -> int | None:
    """The number of rows that statistics say. None if they do not."""
    try:
        found = msgspec.json.decode(stats or "{}")["numRecords"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _value(bound: bool | float | str | None, column_type: str, *, upper: bool) -> int | str | msgspec.Raw | None:
    """A bound as Delta says it. None if it cannot be said so that no row is excluded."""
    if bound is None or isinstance(bound, bool):
        return None
    if decimal_digits(column_type) is not None:
        return _decimal(bound)
    if column_type == "string":
        return bound if isinstance(bound, str) and len(bound.encode()) <= TEXT_BYTES_MAX else None
    if not isinstance(bound, int):
        return None
    if column_type in _INTEGERS:
        return bound
    if column_type == "date":
        return (dt.date(1970, 1, 1) + dt.timedelta(days=bound)).isoformat() if _DAYS[0] <= bound <= _DAYS[1] else None
    if column_type in ("timestamp", "timestamp_ntz"):
        return _time(bound, upper=upper, zone="Z" if column_type == "timestamp" else "")
    return None


def _decimal(bound: float | str) -> msgspec.Raw | None:
    """The digits of a number, without an exponent, which some readers do not take."""
    if isinstance(bound, float):
        return None
    text = format(Decimal(bound), "f")
    return msgspec.Raw(text.encode()) if sum(map(str.isdigit, text)) <= DIGITS_MAX else None


def _time(micros: int, *, upper: bool, zone: str) -> str | None:
    ms = -(-micros // 1000) if upper else micros // 1000
    if not _MS[0] <= ms <= _MS[1]:
        return None
    time = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)
    return time.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
