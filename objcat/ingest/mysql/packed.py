"""Rows of the binlog that are read by columns: `BinlogRow`, and the schema that knows where its values are.

Source: MySQL's documentation of the binlog, "Rows_event" and "Field metadata", and `sql/log_event.cc` of MariaDB. The types here are those
whose values all have one meaning; a table with any other is read row by row, by mysql-replication.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from objcat.ingest.model import KeyValues, SourceTable
from objcat.ingest.packed_row import READ_BYTES_MAX, PackedRow, Places, joined_rows, sliced

ZERO_DATE = "0000-00-00"
"""Stands for dates that do not exist, of which the binlog reader gives no value."""
DIGITS_OF_GROUP = 9
DIGITS_MAX = 18
"""A decimal with more digits does not fit into a number of 64 bits."""
_BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_CHARSETS = {"utf8", "utf8mb3", "utf8mb4", "ascii"}
_DAY_US, _SECOND_US = 86_400_000_000, 1_000_000
_YEARS_MAX = 9999
PLANS_MAX = 10_000
"""So many of the ways in which rows of a table have nulls are kept: a table with many columns may have millions of them."""

Bits = npt.NDArray[np.bool_]
Read = Callable[[npt.NDArray[np.uint8], Places], tuple[npt.NDArray[Any], "Bits | None"]]


class WireKind(enum.Enum):
    """How the values of a column are written."""

    INTEGER = enum.auto()
    FLOAT = enum.auto()
    BYTES = enum.auto()
    TEXT = enum.auto()
    DECIMAL = enum.auto()
    DATE = enum.auto()
    DATETIME = enum.auto()
    TIMESTAMP = enum.auto()


@dataclass(frozen=True, slots=True)
class WireColumn:
    """A column as the binlog has it.

    Args:
        kind: see there.
        size: bytes of a value; of bytes and text, those of its length, which comes first.
        unsigned: of integers.
        whole: digits before the point.
        fraction: digits behind it, or those of seconds.
    """

    kind: WireKind
    size: int
    unsigned: bool = False
    whole: int = 0
    fraction: int = 0

    @property
    def is_sized(self) -> bool:
        """Whether each value says how long it is."""
        return self.kind in (WireKind.BYTES, WireKind.TEXT)


@dataclass(frozen=True, slots=True)
class _RowPlan:
    """Where values are in rows with the same nulls. steps: bytes that are skipped, and then a length of so many bytes with what it counts.
    tail: bytes that follow. keys: of each key column, its steps, its tail and its column; None for a null."""

    steps: tuple[tuple[int, int], ...]
    tail: int
    keys: tuple[tuple[tuple[tuple[int, int], ...], int, WireColumn] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogSchema(SourceTable):
    """A table whose rows are packed. wires: of its columns, in order."""

    wires: tuple[WireColumn, ...]
    _plans: dict[bytes, _RowPlan] = field(default_factory=dict, compare=False, repr=False)

    @property
    def bitmap_bytes(self) -> int:
        """Of the bits that say which values are null."""
        return (len(self.wires) + 7) // 8

    def take(self, data: bytes, at: int) -> tuple[KeyValues, int]:
        """The key of a row that begins at a place, and where the row ends.

        Raises IndexError when it goes beyond the data.
        """
        nulls = data[at : at + self.bitmap_bytes]
        try:
            plan = self._plans[nulls]
        except KeyError:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            plan = self._plans[nulls] = self._planned(nulls)
        at += self.bitmap_bytes
        end = _skipped(data, at, plan.steps) + plan.tail
        key = [None if one is None else _key_value(data, _skipped(data, at, one[0]) + one[1], one[2]) for one in plan.keys]
        return tuple(key), end

    def _planned(self, nulls: bytes) -> _RowPlan:
        places = {column.name: place for place, column in enumerate(self.columns)}
        wanted = [places[name] for name in self.key]
        steps: list[tuple[int, int]] = []
        skip = 0
        found: dict[int, tuple[tuple[tuple[int, int], ...], int, WireColumn]] = {}
        for place, wire in enumerate(self.wires):
            if nulls[place // 8] >> place % 8 & 1:
                continue
            if place in wanted:
                found[place] = (tuple(steps), skip, wire)
            if wire.is_sized:
                steps.append((skip, wire.size))
                skip = 0
            else:
                skip += wire.size
        return _RowPlan(tuple(steps), skip, tuple(found.get(place) for place in wanted))


def _skipped(data: bytes, at: int, steps: tuple[tuple[int, int], ...]) -> int:
    for skip, size in steps:
        at += skip
        if size == 1:
            at += 1 + data[at]
        else:
            at += size + int.from_bytes(data[at : at + size], "little")
    return at


def _key_value(data: bytes, at: int, wire: WireColumn) -> int | str:
    if wire.kind is WireKind.INTEGER:
        return int.from_bytes(data[at : at + wire.size], "little", signed=not wire.unsigned)
    begin = at + wire.size
    return data[begin : begin + int.from_bytes(data[at:begin], "little")].decode()


class BinlogRow(PackedRow, gc=False, eq=False):
    """A row of which every value was sent: a bit for each null, and the values that are none."""

    def _read(self) -> dict[str, Any]:
        assert isinstance(self.table, BinlogSchema)
        columns = self.read_columns(self.table, [self])
        return {name: values[0].as_py() if isinstance(values, pa.Array) else values[0] for name, values in columns.items()}

    @classmethod
    def read_columns(cls, table: SourceTable, rows: Sequence[Self]) -> Mapping[str, Any]:
        """See `PackedRow`. The columns have the types of the lake."""
        assert isinstance(table, BinlogSchema)
        if len(rows) > 1 and sum(len(row.data) for row in rows) > READ_BYTES_MAX:
            halves = [cls.read_columns(table, part) for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :])]
            return {name: _joined(halves[0][name], halves[1][name]) for name in halves[0]}
        data, begins, ends = joined_rows(rows)
        buffer = np.frombuffer(data, np.uint8)
        at = begins + table.bitmap_bytes
        made = {}
        for place, (column, wire) in enumerate(zip(table.columns, table.wires, strict=True)):
            is_null = (buffer[begins + place // 8] >> np.uint8(place % 8) & 1).astype(np.bool_)
            if wire.is_sized:
                sizes = np.where(is_null, 0, _little(buffer, at, wire.size).astype(np.int64))
                begin = np.where(is_null, at, at + wire.size)
                at = begin + sizes
                _check(at <= ends, table)
                made[column.name] = sliced(data, begin, at, is_null).cast(column.type)
                continue
            made[column.name] = _fixed(buffer, at, wire, is_null, column.type)
            at = np.where(is_null, at, at + wire.size)
            _check(at <= ends, table)
        _check(at == ends, table)
        return made


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, pa.Array) and isinstance(second, pa.Array):
        return pa.concat_arrays([first, second])
    return [value for part in (first, second) for value in (part.to_pylist() if isinstance(part, pa.Array) else part)]


def _check(is_right: Bits, table: SourceTable) -> None:
    if not is_right.all():
        raise ValueError(f"A row of {table.name} does not end where its bytes do.")


# ---- values of one size


def _fixed(buffer: npt.NDArray[np.uint8], at: Places, wire: WireColumn, is_null: Bits, data_type: pa.DataType) -> Any:
    # A null has no bytes. What is read in its place is any other value, and masked.
    at = np.where(is_null, np.minimum(at, len(buffer) - wire.size), at)
    match wire.kind:
        case WireKind.INTEGER:
            return _integers(buffer, at, wire, is_null, data_type)
        case WireKind.FLOAT:
            values = _bytes(buffer, at, wire.size).view("<f4" if wire.size == 4 else "<f8").reshape(-1)
            return pa.array(values, data_type, mask=is_null)
        case WireKind.DECIMAL:
            return _decimals(_scaled(buffer, at, wire), is_null, data_type)
        case WireKind.DATE:
            return _dates(_little(buffer, at, 3).astype(np.int64), is_null)
        case WireKind.DATETIME:
            return _instants(*_datetimes(buffer, at, wire), is_null, data_type)
        case WireKind.TIMESTAMP:
            micros = _big(buffer, at, 4) * _SECOND_US + _fraction(buffer, at + 4, wire)
            # The zero of a timestamp is the beginning of 1970, which no other timestamp is.
            return _instants(micros, micros != 0, is_null, data_type)
        case _:
            raise AssertionError(wire.kind)


def _integers(buffer: npt.NDArray[np.uint8], at: Places, wire: WireColumn, is_null: Bits, data_type: pa.DataType) -> pa.Array:
    values = _little(buffer, at, wire.size)
    if pa.types.is_decimal(data_type):
        return _decimals(values.view(np.int64), is_null, data_type, high=np.zeros(len(at), np.int64))
    signed = values.astype(np.int64)
    if not wire.unsigned and wire.size < 8:
        bits = 8 * wire.size
        signed = np.where(signed >= 1 << bits - 1, signed - (1 << bits), signed)
    return pa.array(signed, pa.int64(), mask=is_null).cast(data_type)


def _scaled(buffer: npt.NDArray[np.uint8], at: Places, wire: WireColumn) -> npt.NDArray[np.int64]:
    """Decimals as whole numbers of their last digit: groups of nine digits, the greatest first, with the sign in the first bit."""
    rows = _bytes(buffer, at, wire.size).copy()
    is_negative = rows[:, 0] & 0x80 == 0
    rows[:, 0] ^= 0x80
    rows[is_negative] ^= 0xFF
    value = np.zeros(len(at), np.int64)
    place = 0
    for digits in _groups(wire.whole, wire.fraction):
        size = _BYTES_OF_DIGITS[digits]
        part = np.zeros(len(at), np.int64)
        for byte in range(size):
            part = part << 8 | rows[:, place + byte]
        value = value * 10**digits + part
        place += size
    return np.where(is_negative, -value, value)


def _groups(whole: int, fraction: int) -> list[int]:
    """Digits of the groups of a decimal. The first group and the last one may have fewer than nine."""
    first, last = whole % DIGITS_OF_GROUP, fraction % DIGITS_OF_GROUP
    groups = [first, *[DIGITS_OF_GROUP] * (whole // DIGITS_OF_GROUP), *[DIGITS_OF_GROUP] * (fraction // DIGITS_OF_GROUP), last]
    return [digits for digits in groups if digits]


def _decimals(
    values: npt.NDArray[np.int64], is_null: Bits, data_type: pa.DataType, *, high: npt.NDArray[np.int64] | None = None
) -> pa.Array:
    words = np.empty((len(values), 2), np.int64)
    words[:, 0], words[:, 1] = values, values >> 63 if high is None else high
    return pa.Array.from_buffers(data_type, len(values), [_validity(is_null), pa.py_buffer(words.tobytes())])


def _dates(packed: npt.NDArray[np.int64], is_null: Bits) -> Any:
    year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
    days, is_real = _days(year, month, day)
    made = pa.Array.from_buffers(pa.date32(), len(packed), [_validity(is_null | ~is_real), pa.py_buffer(days.astype(np.int32).tobytes())])
    is_zero = (year == 0) | (month == 0) | (day == 0)
    others = {
        int(place): f"{year[place]:04d}-{month[place]:02d}-{day[place]:02d}" for place in np.flatnonzero(~is_real & ~is_null & ~is_zero)
    }
    return _with_unreal(made, ~is_real & ~is_null, others)


def _with_unreal(made: pa.Array, is_unreal: Bits, others: Mapping[int, str]) -> Any:
    """An array; or a list with text for values that no type of the lake holds, so that the decoder counts or refuses them."""
    if not is_unreal.any():
        return made
    values = made.to_pylist()
    for place in np.flatnonzero(is_unreal):
        values[place] = others.get(int(place), ZERO_DATE)
    return values


def _datetimes(buffer: npt.NDArray[np.uint8], at: Places, wire: WireColumn) -> tuple[npt.NDArray[np.int64], Bits]:
    """Microseconds since 1970, and which of them are real: sign, 17 bits of year * 13 + month, then day, hour, minute, second."""
    packed = _big(buffer, at, 5) & (1 << 39) - 1
    months = packed >> 22
    days, is_real = _days(months // 13, months % 13, packed >> 17 & 31)
    hour, minute, second = packed >> 12 & 31, packed >> 6 & 63, packed & 63
    is_real &= (hour < 24) & (minute < 60) & (second < 60)
    return days * _DAY_US + (hour * 3600 + minute * 60 + second) * _SECOND_US + _fraction(buffer, at + 5, wire), is_real


def _instants(micros: npt.NDArray[np.int64], is_real: Bits, is_null: Bits, data_type: pa.DataType) -> Any:
    buffers = [_validity(is_null | ~is_real), pa.py_buffer(micros.astype(np.int64).tobytes())]
    return _with_unreal(pa.Array.from_buffers(data_type, len(micros), buffers), ~is_real & ~is_null, {})


def _fraction(buffer: npt.NDArray[np.uint8], at: Places, wire: WireColumn) -> npt.NDArray[np.int64]:
    """Microseconds: two digits in each byte."""
    size = (wire.fraction + 1) // 2
    return _big(buffer, at, size) * 10 ** (6 - 2 * size) if size else np.zeros(len(at), np.int64)


def _days(year: npt.NDArray[np.int64], month: npt.NDArray[np.int64], day: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Bits]:
    """Days since 1970 in the Gregorian calendar, and which of them exist."""
    is_real = (year >= 1) & (year <= _YEARS_MAX) & (month >= 1) & (month <= 12) & (day >= 1)
    safe_year, safe_month = np.where(is_real, year, 1970), np.where(is_real, month, 1)
    months = (safe_year - 1970) * 12 + safe_month - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    following = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    is_real &= day <= following - first
    return first + np.where(is_real, day, 1) - 1, is_real


def _bytes(buffer: npt.NDArray[np.uint8], at: Places, size: int) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = buffer[at[:, None] + np.arange(size)]
    return found


def _little(buffer: npt.NDArray[np.uint8], at: Places, size: int) -> npt.NDArray[np.uint64]:
    value = np.zeros(len(at), np.uint64)
    for byte in range(size):
        value |= buffer[at + byte].astype(np.uint64) << np.uint64(8 * byte)
    return value


def _big(buffer: npt.NDArray[np.uint8], at: Places, size: int) -> npt.NDArray[np.int64]:
    value = np.zeros(len(at), np.int64)
    for byte in range(size):
        value = value << 8 | buffer[at + byte]
    return value


def _validity(is_null: Bits) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(~is_null, bitorder="little").tobytes()) if is_null.any() else None


# ---- which columns


def wire_of(column: Any, types: Any) -> WireColumn | None:
    """How the values of a column of a table map are written; None for what is read row by row.

    Args:
        column: of mysql-replication.
        types: its `FIELD_TYPE`.
    """
    code = column.type
    integers = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}
    if code in integers:
        return WireColumn(WireKind.INTEGER, integers[code], unsigned=bool(column.unsigned))
    if code == types.DATE:
        return WireColumn(WireKind.DATE, 3)
    if code in (types.FLOAT, types.DOUBLE):
        return WireColumn(WireKind.FLOAT, 4 if code == types.FLOAT else 8)
    if code == types.NEWDECIMAL and column.precision <= DIGITS_MAX:
        whole, fraction = column.precision - column.decimals, column.decimals
        size = sum(_BYTES_OF_DIGITS[digits] for digits in _groups(whole, fraction))
        return WireColumn(WireKind.DECIMAL, size, whole=whole, fraction=fraction)
    if code == types.DATETIME2:
        return WireColumn(WireKind.DATETIME, 5 + (column.fsp + 1) // 2, fraction=column.fsp)
    if code == types.TIMESTAMP2:
        return WireColumn(WireKind.TIMESTAMP, 4 + (column.fsp + 1) // 2, fraction=column.fsp)
    if code in (types.VARCHAR, types.VAR_STRING, types.STRING, types.BLOB):
        return _wire_of_string(column, types)
    return None


def _wire_of_string(column: Any, types: Any) -> WireColumn | None:
    if column.type == types.STRING and column.character_set_name == "binary":
        return None  # Zeros at its end are left out.
    kind = WireKind.BYTES if column.character_set_name == "binary" else WireKind.TEXT
    if kind is WireKind.TEXT and column.character_set_name not in _CHARSETS:
        return None
    size = column.length_size if column.type == types.BLOB else 2 if column.max_length > 255 else 1
    return WireColumn(kind, size)


def packs_key(wire: WireColumn) -> bool:
    """Whether a column may be in the key of a packed row."""
    return wire.kind in (WireKind.INTEGER, WireKind.TEXT)
