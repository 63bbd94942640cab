"""Values of files as columns: casts that find the rows which do not fit, text of CSV and JSON, and nested values of JSON and Avro."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID  # noqa: TID251 - the type of a value, no id is made

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from objcat.errors import InvalidSchema
from objcat.metadata.schema import Ids, all_nullable, arrow_type, type_from_arrow
from objcat.sourcefiles.file_batch import BrokenFile

Cast = Callable[[pa.Array], pa.Array]
"""From an array to one of another type. It raises one of `MISFITS` when a value does not fit."""
UNFIT = (ValueError, TypeError, KeyError, OverflowError, ArithmeticError, pa.ArrowException)
"""What a decoder raises for a value that does not fit."""
MISFITS = (*UNFIT, AttributeError, RecursionError)
"""What a cast raises for a value that does not fit: also for a list where an object is due, and for one that is too deep to be read."""
UTC = "UTC"
_JSON = msgspec.json.Encoder(decimal_format="number")


def canonical(field: pa.Field) -> pa.DataType | None:
    """The type that a column of a file has in the lake; None for a column that has only nulls and no type.

    Types without an equal become the nearest one that loses nothing: uint64 a decimal, times of day text, durations whole numbers.

    Raises:
        BrokenFile: there is none.
    """
    data_type = field.type
    if pa.types.is_null(data_type):
        return None
    if pa.types.is_uint64(data_type):
        return pa.decimal128(20, 0)
    if pa.types.is_time(data_type):
        return pa.string()
    if pa.types.is_duration(data_type):
        return pa.int64()
    try:
        return all_nullable(field.with_type(arrow_type(type_from_arrow(data_type, Ids(), path=field.name)))).type
    except InvalidSchema as error:
        raise BrokenFile(f"{error}") from error


def cast_rows(array: pa.Array, cast: Cast, data_type: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Cast an array. Values that do not fit are null, with the reason by their place: halves that fail are divided further."""
    try:
        return cast(array), {}
    except MISFITS as error:
        if len(array) == 1:
            return pa.nulls(1, data_type), {0: " ".join(str(error).split())[:300]}
    middle = len(array) // 2
    left, bad = cast_rows(array.slice(0, middle), cast, data_type)
    right, more = cast_rows(array.slice(middle), cast, data_type)
    return pa.concat_arrays([left, right]), bad | {middle + place: why for place, why in more.items()}


def arrow_cast(data_type: pa.DataType) -> Cast:
    """The cast between two Arrow types. Only digits of times below the microsecond are lost."""
    options = pc.CastOptions(target_type=data_type, allow_time_truncate=True)

    def cast(array: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        return array if array.type == data_type else pc.cast(array, options=options)

    return cast


def text_cast(data_type: pa.DataType) -> Cast:
    """The cast from text: ISO dates and times, `true` and `false`, base64 for binary. A time without a zone is one of UTC."""
    if pa.types.is_string(data_type):
        return lambda array: array
    if pa.types.is_binary(data_type):
        return lambda array: pa.array([None if value is None else base64.b64decode(value, validate=True) for value in array.to_pylist()])
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return _zoned
    if pa.types.is_nested(data_type):
        return lambda array: pa.array(
            [None if value is None else plain_value(msgspec.json.decode(value), data_type) for value in array.to_pylist()], data_type
        )
    options = pc.CastOptions(target_type=data_type)
    return lambda array: pc.cast(pc.utf8_trim_whitespace(array), options=options)


def _zoned(array: pa.Array) -> pa.Array:
    array = pc.utf8_trim_whitespace(array)
    try:
        return array.cast(pa.timestamp("us", tz=UTC))
    except pa.ArrowInvalid:
        return pc.assume_timezone(array.cast(pa.timestamp("us")), UTC)


def json_column(values: Sequence[Any], data_type: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Values of one column of JSON lines. Numbers come as text, so that no digit is lost; see `text_of`."""
    if not pa.types.is_nested(data_type):
        try:
            return cast_rows(pa.array([text_of(value) for value in values], pa.string()), text_cast(data_type), data_type)
        except UnicodeEncodeError:
            pass
    return python_column(values, data_type)


def python_column(values: Sequence[Any], data_type: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Python values as a column."""
    made, bad = [], dict[int, str]()
    for place, value in enumerate(values):
        try:
            one = plain_value(value, data_type)
            pa.scalar(one, data_type)
        except MISFITS as error:
            one, bad[place] = None, " ".join(str(error).split())[:300] or type(error).__name__
        made.append(one)
    return pa.array(made, data_type), bad


def text_of(value: Any) -> str | None:
    """A value of JSON as the text that `text_cast` reads, or one of Avro."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, Decimal, UUID)):
        return str(value)
    return _JSON.encode(value).decode()


def plain_value(value: Any, data_type: pa.DataType) -> Any:
    """A nested value of JSON or Avro as Arrow takes it. Raises ValueError, TypeError."""
    if value is None:
        return None
    if pa.types.is_struct(data_type):
        return {field.name: plain_value(value.get(field.name), field.type) for field in data_type}
    if pa.types.is_map(data_type):
        pairs: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else value
        return [(plain_value(key, data_type.key_type), plain_value(item, data_type.item_type)) for key, item in pairs]
    if pa.types.is_list(data_type):
        if isinstance(value, (str, bytes, Mapping)):
            raise TypeError(f"{type(value).__name__} is no list")
        return [plain_value(item, data_type.value_type) for item in value]
    return _plain_scalar(value, data_type)


def _plain_scalar(value: Any, data_type: pa.DataType) -> Any:
    if pa.types.is_string(data_type):
        return text_of(value)
    if pa.types.is_boolean(data_type) or isinstance(value, bool):
        if not (pa.types.is_boolean(data_type) and isinstance(value, bool)):
            raise TypeError(f"{value!r} is no {data_type}")
        return value
    if pa.types.is_decimal(data_type):
        return Decimal(value) if isinstance(value, (str, int)) else value
    if pa.types.is_floating(data_type):
        return float(value)
    if pa.types.is_timestamp(data_type) and isinstance(value, str):
        found = dt.datetime.fromisoformat(value)
        if data_type.tz is not None:
            return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found
        return found
    if pa.types.is_date(data_type) and isinstance(value, str):
        return dt.date.fromisoformat(value)
    if pa.types.is_binary(data_type) and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    return value
