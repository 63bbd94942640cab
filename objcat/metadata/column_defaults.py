"""Defaults of columns: the value of rows that are older than a column, and that of writes which leave it out.

A default is stored as JSON, as Iceberg's single-value serialization has it. `initial_default` is the value of every row in a file that
lacks the column. It never changes. `write_default` is what a writer stores for a batch without the column. It may be set and dropped.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from objcat.common.validation import shown
from objcat.errors import InvalidSchema
from objcat.metadata.schema import DEFAULT_KEY, Column, ColumnType, DefaultValue, TableSchema, arrow_type, type_text

FEATURE = {"column_defaults": "0.1.0"}
"""What a reader must understand of a table that has a default, with the first version of objcat that does."""
DEFAULT_BYTES_MAX = 16 * 1024
"""UTF-8 bytes of a text, or bytes, that may be a default. The log and each checkpoint hold it."""
BOUND_BYTES_MAX = 64
"""Bytes of a text, or bytes, that are a bound as they stand."""
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - times without a zone
_MICROSECOND = dt.timedelta(microseconds=1)


def has_defaults(schema: TableSchema) -> bool:
    """Whether a column has a default of either kind."""
    return any(column.has_default for column in schema.columns)


def features_of_schema(schema: TableSchema) -> dict[str, str]:
    """The features that a reader of a table with this schema needs."""
    return dict(FEATURE) if has_defaults(schema) else {}


def with_default(column: Column, value: Any, *, path: str, initial: bool) -> Column:
    """A column with a default for its writes, and with `initial` for its older rows too. Raises InvalidSchema if it cannot have the value.

    path: how the user calls it.
    """
    stored = encode_default(value, column.type, path=path)
    if initial:
        return msgspec.structs.replace(column, initial_default=stored, write_default=stored)
    return msgspec.structs.replace(column, write_default=stored)


def with_type(column: Column, new: ColumnType) -> Column:
    """A column in a wider type, with its defaults."""
    found = msgspec.structs.replace(column, type=new)
    if new == column.type or not column.has_default:
        return found
    wanted = arrow_type(new)
    changed = {
        name: encode_default(_cast(decode_default(value, column.type), wanted).as_py(), new, path=column.name)
        for name, value in (("initial_default", column.initial_default), ("write_default", column.write_default))
        if is_said(value)
    }
    return msgspec.structs.replace(found, **changed)


def _cast(value: pa.Scalar, wanted: pa.DataType) -> pa.Scalar:
    # Arrow casts no integer to a decimal of fewer digits than the integer type can have.
    if pa.types.is_decimal(wanted) and pa.types.is_integer(value.type):
        return pa.scalar(decimal.Decimal(value.as_py()), wanted)
    return value.cast(wanted)


def is_said(value: DefaultValue) -> bool:
    """Whether a stored default is there. A null is none."""
    return value is not None and value is not msgspec.UNSET


def initial_value(column: Column) -> pa.Scalar | None:
    """The value of rows that are older than a column, None for null."""
    return decode_default(column.initial_default, column.type) if is_said(column.initial_default) else None


def write_value(column: Column) -> pa.Scalar | None:
    """The value that a write stores in a column that its batch lacks, None for null."""
    return decode_default(column.write_default, column.type) if is_said(column.write_default) else None


def value_of_field(field: pa.Field) -> pa.Scalar | None:
    """The value of rows that are older than a column, from its Arrow field under its physical name. None for null."""
    stored = (field.metadata or {}).get(DEFAULT_KEY)
    return None if stored is None else _scalar(stored, field.type)


@functools.lru_cache(maxsize=1024)
def _scalar(stored: bytes, data_type: pa.DataType) -> pa.Scalar:
    return pa.scalar(_DECODERS[_kind(data_type)](msgspec.json.decode(stored)), data_type)


def decode_default(value: DefaultValue, column_type: ColumnType) -> pa.Scalar:
    """A stored default as a value of its column. Raises ValueError for one that its type does not have."""
    if not isinstance(column_type, str):
        raise ValueError(f"a {type_text(column_type)} has no default")
    data_type = arrow_type(column_type)
    kind = _kind(data_type)
    if not isinstance(value, _STORED[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise ValueError(f"{shown(value)} is no {column_type}")
    try:
        found = _scalar(msgspec.json.encode(value), data_type)
    except (ArithmeticError, TypeError, pa.ArrowException) as error:
        raise ValueError(f"{shown(value)} is no {column_type}") from error
    if kind == "floating" and not math.isfinite(found.as_py()):
        raise ValueError(f"{shown(value)} is no finite {column_type}")
    return found


def encode_default(value: Any, column_type: ColumnType, *, path: str) -> bool | int | float | str:
    """A user's value as a default is stored. Raises InvalidSchema if the type does not hold it exactly, or has no defaults.

    A number for a `float` is rounded to one.
    """
    if not isinstance(column_type, str):
        raise InvalidSchema(f"{path!r} is nested, and only plain columns have defaults. Leave the default out, or add plain columns.")
    given = value.as_py() if isinstance(value, pa.Scalar) else value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value
    data_type = arrow_type(column_type)
    try:
        stored = _ENCODERS[_kind(data_type)](given, data_type)
        decode_default(stored, column_type)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise InvalidSchema(
            f"The default of {path!r} is {shown(value)}, which is no value of {column_type} ({_HINTS[_kind(data_type)]}). Nothing was "
            "changed. Give a value of that type."
        ) from error
    return stored


def default_bounds(column: Column) -> tuple[bool | int | float | str | None, bool | int | float | str | None, int] | None:
    """The bounds of a column in a file that lacks it, as `objcat.metadata.files.Bound` says. None if they are not known.

    Deletes are null there, but no row is.
    """
    value = initial_value(column)
    if value is None:
        return None
    found: Any = value.as_py()
    if pa.types.is_date(value.type):
        found = value.cast(pa.int32()).as_py()
    elif pa.types.is_timestamp(value.type):
        found = value.cast(pa.int64()).as_py()
    elif isinstance(found, decimal.Decimal):
        found = str(found)
    elif isinstance(found, (str, bytes)):
        if len(found.encode() if isinstance(found, str) else found) > BOUND_BYTES_MAX:
            return None
        found = found if isinstance(found, str) else found.hex()
    return found, found, 0


def shown_default(value: DefaultValue) -> str:
    """A stored default for people, as JSON. Empty if there is none."""
    return msgspec.json.encode(value).decode() if is_said(value) else ""


# ---- one value ---------------------------------------------------------------------------------------------------


def _kind(data_type: pa.DataType) -> str:
    if pa.types.is_boolean(data_type):
        return "boolean"
    if pa.types.is_integer(data_type):
        return "integer"
    if pa.types.is_floating(data_type):
        return "floating"
    if pa.types.is_decimal(data_type):
        return "decimal"
    if pa.types.is_date(data_type):
        return "date"
    if pa.types.is_timestamp(data_type):
        return "timestamp" if data_type.tz is not None else "timestamp_ntz"
    return "binary" if pa.types.is_binary(data_type) else "string"


def _require(is_right: bool) -> None:
    if not is_right:
        raise ValueError("not a value of the type")


def _boolean(value: Any, _: pa.DataType) -> bool:
    _require(isinstance(value, bool))
    return bool(value)


def _integer(value: Any, _: pa.DataType) -> int:
    _require(isinstance(value, int) and not isinstance(value, bool))
    return int(value)


def _floating(value: Any, data_type: pa.DataType) -> float:
    _require(isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool))
    found = float(pa.scalar(float(value), data_type).as_py())
    _require(math.isfinite(found))
    return found


def _decimal(value: Any, data_type: pa.DataType) -> str:
    _require(isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool))
    exact = decimal.Decimal(repr(value)) if isinstance(value, float) else decimal.Decimal(value)
    _require(exact.is_finite())
    with decimal.localcontext(decimal.Context(prec=data_type.precision, traps=[decimal.Inexact, decimal.InvalidOperation])):
        return f"{exact.quantize(decimal.Decimal(1).scaleb(-data_type.scale)):f}"


def _string(value: Any, _: pa.DataType) -> str:
    _require(isinstance(value, str) and len(value.encode()) <= DEFAULT_BYTES_MAX)
    return str(value)


def _binary(value: Any, _: pa.DataType) -> str:
    _require(isinstance(value, (bytes, bytearray, memoryview)) and len(value) <= DEFAULT_BYTES_MAX)
    return bytes(value).hex()


def _date(value: Any, _: pa.DataType) -> str:
    _require(isinstance(value, dt.date) and not isinstance(value, dt.datetime))
    return str(value.isoformat())


def _timestamp(value: Any, _: pa.DataType) -> str:
    _require(isinstance(value, dt.datetime) and value.tzinfo is not None)
    return str(value.astimezone(dt.UTC).isoformat(timespec="microseconds"))


def _timestamp_ntz(value: Any, _: pa.DataType) -> str:
    _require(isinstance(value, dt.datetime) and value.tzinfo is None)
    return str(value.isoformat(timespec="microseconds"))


_ENCODERS: Mapping[str, Callable[[Any, pa.DataType], bool | int | float | str]] = {
    "boolean": _boolean,
    "integer": _integer,
    "floating": _floating,
    "decimal": _decimal,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}
_HINTS: Mapping[str, str] = {
    "boolean": "True or False",
    "integer": "a whole number within its range",
    "floating": "a finite number",
    "decimal": "a number with no more digits than the type has",
    "string": f"text of up to {DEFAULT_BYTES_MAX:,} bytes",
    "binary": f"up to {DEFAULT_BYTES_MAX:,} bytes",
    "date": "a datetime.date",
    "timestamp": "a datetime.datetime with a time zone",
    "timestamp_ntz": "a datetime.datetime without a time zone",
}


def _same(value: Any) -> Any:
    return value


def _date_of(value: str) -> dt.date:
    return dt.date.fromisoformat(value)


def _instant_of(value: str) -> int:
    found = dt.datetime.fromisoformat(value)
    _require(found.tzinfo is not None)
    return (found.astimezone(dt.UTC).replace(tzinfo=None) - _EPOCH) // _MICROSECOND


def _time_of(value: str) -> int:
    found = dt.datetime.fromisoformat(value)
    _require(found.tzinfo is None)
    return (found - _EPOCH) // _MICROSECOND


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "boolean": _same,
    "integer": _same,
    "floating": float,
    "decimal": decimal.Decimal,
    "string": _same,
    "binary": bytes.fromhex,
    "date": _date_of,
    "timestamp": _instant_of,
    "timestamp_ntz": _time_of,
}
_STORED: Mapping[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "floating": (int, float),
    "decimal": str,
    "string": str,
    "binary": str,
    "date": str,
    "timestamp": str,
    "timestamp_ntz": str,
}
