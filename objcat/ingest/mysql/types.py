"""Types of MariaDB and MySQL as types of the lake, and decoders of their values.

A value comes as the binlog has it, as a query gives it, and as the JSON value of a key. A decoder takes all three, and makes one of them.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

from objcat.ingest.model import SourceColumn

DIGITS_MAX = 38
UNSIGNED_BIGINT_DIGITS = 20
INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 32, "int": 32, "bigint": 64}
"""Bits of the signed type of the lake."""
_NEXT_WIDER = {8: 16, 16: 32, 32: 64}
TEXTS = {"char", "varchar", "text", "enum", "set"}
BYTES = {"binary", "varbinary", "blob", "geometry"}
_GEOMETRIES = {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection"}
_NAMES = {
    "integer": "int", "tinytext": "text", "mediumtext": "text", "longtext": "text", "tinyblob": "blob", "mediumblob": "blob",
    "longblob": "blob", "numeric": "decimal", "geomcollection": "geometry", "nchar": "char", "nvarchar": "varchar",
}  # fmt: skip
_BYTE_WIDTHS = {"uuid": 16, "inet6": 16, "inet4": 4}
_VALUE = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlType:
    """A type as the catalog and the binlog both have it.

    Args:
        name: such as `int`, `varchar`; names that mean the same are one.
        unsigned: of integers.
        precision, scale: of decimals.
        length: bytes of `binary`, bits of `bit`, bytes of texts; 0 for others.
        fraction: digits of seconds.
        values: of `enum` and `set`, in order.
        charset: of texts, as SQL names it; empty where that is not known.
        collation: of texts.
    """

    name: str
    unsigned: bool = False
    precision: int = 0
    scale: int = 0
    length: int = 0
    fraction: int = 0
    values: tuple[str, ...] = ()
    charset: str = ""
    collation: str = ""

    @property
    def arrow(self) -> pa.DataType:
        """The type of the lake."""
        if self.name in INTEGERS:
            return self._integer()
        if self.name == "decimal":
            return pa.decimal128(self.precision, self.scale) if self.precision <= DIGITS_MAX else pa.string()
        if self.name == "bit":
            return pa.bool_() if self.length == 1 else pa.binary()
        if self.name in BYTES:
            return pa.binary()
        return _PLAIN.get(self.name, pa.string())

    def _integer(self) -> pa.DataType:
        bits = INTEGERS[self.name]
        if not self.unsigned:
            return _SIGNED[bits]
        if self.name == "mediumint":
            return pa.int32()
        return _SIGNED[_NEXT_WIDER[bits]] if bits in _NEXT_WIDER else pa.decimal128(UNSIGNED_BIGINT_DIGITS, 0)

    def column(self, name: str, *, nullable: bool) -> SourceColumn:
        """A column of a source with this type."""
        return SourceColumn(name=name, type=self.arrow, nullable=nullable, decode=self._decoder())

    def key_value(self, value: Any) -> Any:
        """A value of a key column as JSON: a number, or text. Equal when the values are."""
        if value is None or isinstance(value, (int, float)):
            return value
        if self.name == "bit":
            return _bits(value)
        if isinstance(value, bytes):
            return self._padded(value).hex() if self.name in BYTES else _text(self, value)
        return _text(self, value)

    def _padded(self, value: bytes) -> bytes:
        return value.ljust(self.length, b"\0") if self.name == "binary" else value

    def _decoder(self) -> Any:
        if self.name in INTEGERS and not pa.types.is_decimal(self.arrow):
            return decode_numbers
        if self.name in ("float", "double", "year"):
            return decode_numbers
        if self.name in ("decimal", *INTEGERS):
            return decode_decimals if pa.types.is_decimal(self.arrow) else partial(decode_texts, kind=self)
        if self.name == "bit":
            return decode_flags if self.length == 1 else partial(decode_bits, length=self.length)
        if self.name == "date":
            return decode_dates
        if self.name in ("datetime", "timestamp"):
            return partial(decode_times, is_instant=self.name == "timestamp")
        if self.name in BYTES:
            return partial(decode_bytes, length=self.length if self.name == "binary" else 0)
        return partial(decode_texts, kind=self)


_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_PLAIN: Mapping[str, pa.DataType] = {
    "float": pa.float32(),
    "double": pa.float64(),
    "year": pa.int16(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def type_of_catalog(row: Mapping[str, Any]) -> MysqlType:
    """The type of a column of `information_schema.columns`. The names of the row are those of its columns, in lower case."""
    name = _name(row["data_type"])
    text = row["column_type"]
    length = 0
    if name == "bit":
        length = int(row["numeric_precision"])
    elif name in TEXTS | BYTES:
        length = int(row["character_octet_length"] or 0)
    return MysqlType(
        name=name,
        unsigned=name in INTEGERS and "unsigned" in text,
        precision=int(row["numeric_precision"] or 0) if name == "decimal" else 0,
        scale=int(row["numeric_scale"] or 0) if name == "decimal" else 0,
        length=length,
        fraction=int(row["datetime_precision"] or 0),
        values=tuple(one.replace("''", "'") for one in _VALUE.findall(text)) if name in ("enum", "set") else (),
        charset=row["character_set_name"] or "",
        collation=row["collation_name"] or "",
    )


def _name(name: str) -> str:
    name = name.lower()
    return "geometry" if name in _GEOMETRIES else _NAMES.get(name, name)


def type_of_binlog(column: Any, types: Any, known: MysqlType | None) -> MysqlType:
    """The type of a column of a table map.

    Args:
        column: of mysql-replication.
        types: its `FIELD_TYPE`.
        known: what the catalog says of a column of that name: it tells types that the binlog does not tell apart.
    """
    code = column.type
    if code in (types.STRING, types.VAR_STRING, types.VARCHAR, types.BLOB):
        return _type_of_string(column, types, known)
    if code == types.NEWDECIMAL:
        return MysqlType(name="decimal", precision=column.precision, scale=column.decimals)
    if code == types.BIT:
        return MysqlType(name="bit", length=column.bits)
    if code in (types.ENUM, types.SET):
        # An enumeration begins with the value that stands for what did not fit.
        values = (column.enum_values or ["", ""])[1:] if code == types.ENUM else (column.set_values or [])
        return MysqlType(name="enum" if code == types.ENUM else "set", values=tuple(values))
    name, is_integer = _codes(types)[code]
    return MysqlType(name=name, unsigned=is_integer and bool(column.unsigned), fraction=getattr(column, "fsp", 0))


def _type_of_string(column: Any, types: Any, known: MysqlType | None) -> MysqlType:
    is_bytes = column.character_set_name == "binary"
    length = getattr(column, "max_length", 0)
    if column.type == types.BLOB:
        return MysqlType(name="blob" if is_bytes else "text")
    if column.type == types.STRING and is_bytes:
        if known is not None and _BYTE_WIDTHS.get(known.name) == length:
            return known
        return MysqlType(name="binary", length=length)
    if column.type == types.STRING:
        return MysqlType(name="char", length=length)
    return MysqlType(name="varbinary" if is_bytes else "varchar", length=length)


def _codes(types: Any) -> Mapping[int, tuple[str, bool]]:
    return {
        types.TINY: ("tinyint", True),
        types.SHORT: ("smallint", True),
        types.INT24: ("mediumint", True),
        types.LONG: ("int", True),
        types.LONGLONG: ("bigint", True),
        types.FLOAT: ("float", False),
        types.DOUBLE: ("double", False),
        types.YEAR: ("year", False),
        types.DATE: ("date", False),
        types.NEWDATE: ("date", False),
        types.DATETIME: ("datetime", False),
        types.DATETIME2: ("datetime", False),
        types.TIMESTAMP: ("timestamp", False),
        types.TIMESTAMP2: ("timestamp", False),
        types.TIME: ("time", False),
        types.TIME2: ("time", False),
        types.JSON: ("json", False),
        types.GEOMETRY: ("geometry", False),
    }


def keeps_values(before: MysqlType, after: MysqlType) -> bool:
    """Whether a change of a column's type leaves every value of the lake as it is, or widens it."""
    if before.name in INTEGERS and after.name in INTEGERS:
        return _holds(before, after)
    if before.name == after.name == "decimal":
        return bool(before.arrow == after.arrow)
    if before.name in ("char", "varchar", "text") and after.name in ("varchar", "text"):
        # Spaces at the end of a `char` are not sent, so it stays; and a text without a length is the longest.
        return not after.length or (bool(before.length) and before.length <= after.length)
    if before.name == after.name and before.name in ("enum", "set"):
        return after.values[: len(before.values)] == before.values
    if before.name in ("varbinary", "blob") and after.name in ("varbinary", "blob"):
        return not after.length or (bool(before.length) and before.length <= after.length)
    plain = {"charset": "", "collation": ""}
    return _without(before, plain) == _without(after, plain)


def _holds(before: MysqlType, after: MysqlType) -> bool:
    wide = INTEGERS[after.name] >= INTEGERS[before.name]
    if before.unsigned == after.unsigned:
        return wide and not (before.name == "int" and after.name == "mediumint")
    return False


def _without(kind: MysqlType, fields: Mapping[str, str]) -> tuple[Any, ...]:
    return tuple(getattr(kind, name) for name in MysqlType.__slots__ if name not in fields)


# ---- decoders


def decode_numbers(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Numbers, as they are."""
    return pa.array(values, data_type)


def decode_decimals(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Decimals, and integers that only a decimal holds."""
    return pa.array([None if value is None else Decimal(value) for value in values], data_type)


def decode_flags(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """One bit."""
    return pa.array([None if value is None else _bits(value) != "0" for value in values], data_type)


def decode_bits(values: Sequence[Any], data_type: pa.DataType, *, length: int) -> pa.Array:
    """Bits as bytes, the greatest first."""
    width = (length + 7) // 8
    return pa.array([None if value is None else int(_bits(value), 2).to_bytes(width, "big") for value in values], data_type)


def decode_dates(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Dates. Zero dates, which a date of the lake cannot be, become null."""
    return pa.array([dt.date.fromisoformat(value) if _is_real(value) else _unless_text(value) for value in values], data_type)


def decode_times(values: Sequence[Any], data_type: pa.DataType, *, is_instant: bool) -> pa.Array:
    """Dates with times, in UTC where the type has a zone. Zero dates become null."""
    made = [dt.datetime.fromisoformat(value) if _is_real(value) else _unless_text(value) for value in values]
    if is_instant:
        # The binlog has the zero of a timestamp as the beginning of 1970, which no other timestamp is.
        made = [None if value is None or value == _EPOCH else value.replace(tzinfo=dt.UTC) for value in made]
    return pa.array(made, data_type)


def decode_bytes(values: Sequence[Any], data_type: pa.DataType, *, length: int) -> pa.Array:
    """Bytes. The binlog leaves zeros out at the end of those with a fixed length."""
    made = [bytes.fromhex(value) if isinstance(value, str) else value for value in values]
    return pa.array([None if value is None else value.ljust(length, b"\0") for value in made] if length else made, data_type)


def decode_texts(values: Sequence[Any], data_type: pa.DataType, *, kind: MysqlType) -> pa.Array:
    """Everything else, as text."""
    if kind.name in ("char", "varchar", "text", "enum"):
        return pa.array(values, data_type)
    if kind.name == "set":
        # The binlog reader gives no value for the empty set, as for null; the source tells them apart.
        return pa.array([None if value is None else _text(kind, value) for value in values], data_type)
    return pa.array([None if value is None else _text(kind, value) for value in values], data_type)


_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a value without a zone


def _is_real(value: Any) -> bool:
    """Whether a value is text of a date that exists. Queries give other dates as text too."""
    return isinstance(value, str) and "-00" not in value[4:10] and not value.startswith("0000")


def _unless_text(value: Any) -> Any:
    return None if isinstance(value, str) else value


def _bits(value: Any) -> str:
    """Bits as text: of the binlog, and of a query."""
    return f"{int.from_bytes(value, 'big'):b}" if isinstance(value, bytes) else (value.lstrip("0") or "0")


def _text(kind: MysqlType, value: Any) -> str:
    """The one text of a value."""
    if isinstance(value, dt.timedelta):
        return _duration(value, kind.fraction)
    if kind.name == "json":
        return json.dumps(_plain(json.loads(value) if isinstance(value, str) else value), ensure_ascii=False)
    if isinstance(value, (set, frozenset)):
        return ",".join(one for one in kind.values if one in value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if kind.name == "uuid":
        digits = value.ljust(16, b"\0").hex() if isinstance(value, bytes) else value.replace("-", "").lower()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    if kind.name in ("inet4", "inet6"):
        return _address(kind.name, value)
    if isinstance(value, bytes):
        return value.decode()
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else str(value)


def _address(name: str, value: bytes | str) -> str:
    kind: Any = ipaddress.IPv6Address if name == "inet6" else ipaddress.IPv4Address
    return str(kind(value.ljust(_BYTE_WIDTHS[name], b"\0") if isinstance(value, bytes) else value))


def _duration(value: dt.timedelta, digits: int) -> str:
    microseconds = abs(value) // dt.timedelta(microseconds=1)
    seconds, fraction = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if digits:
        text += f".{fraction:06d}"[: digits + 1]
    return f"-{text}" if value < dt.timedelta(0) else text


def _plain(value: Any) -> Any:
    """JSON as the binlog reader gives it, with text for its bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {_plain(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return float(value) if isinstance(value, Decimal) else value
