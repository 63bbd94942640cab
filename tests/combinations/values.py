"""Types of columns, values of them, most at the edges of what they hold, and how a batch gives and a read shows these."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa


def single(value: float) -> float:
    """As 32 bits hold it."""
    narrow: float = struct.unpack("f", struct.pack("f", value))[0]
    return narrow


_MOMENTS = [
    dt.datetime(1, 1, 1),
    dt.datetime(1500, 2, 28, 23, 59, 59, 999999),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1970, 1, 1),
    dt.datetime(2026, 11, 20, 9, 0, 0, 1),
    dt.datetime(2026, 11, 20, 10),
    dt.datetime(2027, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
]
_FLOATS = [0.0, -0.0, math.nan, 1.5, -1.5, math.inf, -math.inf, single(0.1)]
_TEXTS = ["", "a", "A", "ab", "abc", "ä", "a\u0308", "\U0001f600", "a/b", "%", "__HIVE_DEFAULT_PARTITION__", " a", "a ", "null", "o'b"]
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, -1, 0, 1, 7, 127],
    "smallint": [-32768, -1, 0, 1, 100, 32767],
    "int": [-(2**31), -101, -1, 0, 1, 99, 100, 2**31 - 1],
    "bigint": [-(2**63), -101, -1, 0, 1, 99, 100, 2**53 + 1, 2**63 - 1],
    "float": [*_FLOATS, single(3e38)],
    "double": [*_FLOATS, 0.1, 1e308, 5e-324],
    "decimal(5,2)": [Decimal(text) for text in ("-999.99", "0.00", "-0.01", "999.99", "1.10", "7.00")],
    "decimal(18,3)": [Decimal(text) for text in ("-999999999999999.999", "0.000", "0.001", "7.000", "123456789012345.678")],
    "decimal(38,10)": [Decimal(f"{digits}E-10") for digits in ("-" + "9" * 38, "0", "1", "70000000000", "1234567890" * 3 + "12345671")],
    "string": [*_TEXTS, "x" * 70 + "1", "x" * 70 + "2", "\uffff", "\U00010000"],
    "binary": [b"", b"\x00", b"\x00\x00", b"\xff", b"a", b"a" * 70, b"a" * 71, b"\xff" * 70],
    "date": [moment.date() for moment in _MOMENTS],
    "timestamp": [moment.replace(tzinfo=dt.UTC) for moment in _MOMENTS],
    "timestamp_ntz": _MOMENTS,
}
PLAIN = list(VALUES)
WHOLE = ["tinyint", "smallint", "int", "bigint"]
FLOATING = ["float", "double"]
TIMES = ["date", "timestamp", "timestamp_ntz"]
_ARROW = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@dataclass(frozen=True)
class Column:
    """Of a table, or a field in one. uid: stays, whatever its name, place and type become."""

    uid: int
    name: str
    type: Type
    nullable: bool = True

    @property
    def is_plain(self) -> bool:
        return isinstance(self.type, str)


@dataclass(frozen=True)
class Struct:
    fields: tuple[Column, ...]


@dataclass(frozen=True)
class Listing:
    """element: a column of that name."""

    element: Column


@dataclass(frozen=True)
class Mapped:
    """Of text to values. value: a column of that name."""

    value: Column


Type: TypeAlias = str | Struct | Listing | Mapped
Values: TypeAlias = dict[int, Any]
"""Of a row or a struct: by the uid of its columns, so that they mean the same under every schema."""


def precision_of(decimal: str) -> tuple[int, int]:
    precision, scale = decimal.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def arrow_type(kind: Type) -> pa.DataType:
    match kind:
        case Struct(fields):
            return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in fields])
        case Listing(element):
            return pa.list_(pa.field("element", arrow_type(element.type)))
        case Mapped(value):
            return pa.map_(pa.string(), pa.field("value", arrow_type(value.type)))
        case _:
            return pa.decimal128(*precision_of(kind)) if kind.startswith("decimal") else _ARROW[kind]


def arrow_schema(columns: Sequence[Column], *, nullable: bool = False) -> pa.Schema:
    """nullable: whether all are, as a batch may say."""
    return pa.schema([pa.field(column.name, arrow_type(column.type), nullable=nullable or column.nullable) for column in columns])


def values_of(kind: str) -> list[Any]:
    if kind in VALUES:
        return VALUES[kind]
    precision, scale = precision_of(kind)
    return [Decimal(f"{digits}E-{scale}") for digits in ("0", "7" + "0" * scale, "9" * precision, "-" + "9" * precision)]


def draw(rng: random.Random, kind: Type, *, null: float = 0.15) -> Any:
    """null: how probable that is."""
    if rng.random() < null:
        return None
    match kind:
        case Struct(fields):
            return {field.uid: draw(rng, field.type, null=0.25) for field in fields}
        case Listing(element):
            return [draw(rng, element.type) for _ in range(rng.randrange(3))]
        case Mapped(value):
            return [(key, draw(rng, value.type)) for key in rng.sample(["", "k", "ä"], rng.randrange(3))]
        case _:
            return rng.choice(values_of(kind))


def given(value: Any, kind: Type) -> Any:
    """As a batch has a value under this type: columns that it did not know are null in it."""
    if value is None:
        return None
    match kind:
        case Struct(fields):
            return {field.name: given(value.get(field.uid), field.type) for field in fields}
        case Listing(element):
            return [given(item, element.type) for item in value]
        case Mapped(inner):
            return [(key, given(item, inner.type)) for key, item in value]
        case _:
            return value


def row_of(values: Values, columns: Sequence[Column]) -> dict[str, Any]:
    return {column.name: given(values.get(column.uid), column.type) for column in columns}


def batch_of(rows: Sequence[Values], columns: Sequence[Column]) -> pa.Table:
    return pa.Table.from_pylist([row_of(row, columns) for row in rows], arrow_schema(columns, nullable=True))


def comparable(value: Any) -> Any:
    """What equals that of another value only when both are the same to the bit of their zero, and NaN equals NaN."""
    match value:
        case dict():
            return tuple((name, comparable(item)) for name, item in value.items())
        case list() | tuple():
            return tuple(map(comparable, value))
        case float():
            return "NaN" if math.isnan(value) else "-0.0" if value == 0 and math.copysign(1, value) < 0 else value
        case _:
            return value


def shown(row: Mapping[str, Any], columns: Sequence[Column]) -> Any:
    """The columns of a row that a read gave, or `row_of` did."""
    return tuple(comparable(row[column.name]) for column in columns)


def as_key(value: Any) -> Any:
    """As it is kept in a key: one zero."""
    return value + 0.0 if isinstance(value, float) else value


def in_order(value: Any) -> Any:
    """What compares as values do in a table: text by its bytes."""
    return value.encode() if isinstance(value, str) else value


def wider(kind: Type) -> list[str]:
    """What a type may become."""
    if not isinstance(kind, str):
        return []
    if kind in WHOLE:
        some = [] if kind == "bigint" else ["double", "decimal(12,2)", "decimal(10,0)"]
        return [*WHOLE[WHOLE.index(kind) + 1 :], *some, "decimal(22,2)", "decimal(38,10)"]
    if kind == "float":
        return ["double"]
    if not kind.startswith("decimal"):
        return []
    precision, scale = precision_of(kind)
    return [f"decimal({more},{scale})" for more in sorted({precision + 1, 18, 19, 38}) if precision < more <= 38]


def accepts(new: Type, old: Type) -> bool | None:
    """Whether a batch of the old type is taken where the new one is. None: that is up to its values, or to what a name means by now."""
    match old, new:
        case Struct(then), Struct(now):
            named = {field.name: field for field in now}
            if any(field.name not in named for field in then):
                return False
            pairs = [(named[field.name], field) for field in then]
        case Listing(then), Listing(now):
            pairs = [(now, then)]
        case Mapped(then), Mapped(now):
            pairs = [(now, then)]
        case _:
            return True if old == new or (isinstance(new, str) and _widens(old, new)) else None
    if any(now.uid != then.uid for now, then in pairs):
        return None
    found = {accepts(now.type, then.type) for now, then in pairs}
    return None if None in found else False not in found


def _widens(old: Type, new: str) -> bool:
    return new in wider(old) or any(_widens(some, new) for some in wider(old))
