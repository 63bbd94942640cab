"""`ValueType`: what a value of a message means, its Arrow type, and how many values become an array at once.

JSON, Avro and Protobuf have the same meanings in different forms: bytes as base64 or as they are, days as a number or a date. A decoder
takes all of them, and the JSON value of a key too. So a meaning is decoded alike, whatever form it has.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from objcat.ingest.model import SourceColumn

DIGITS_MAX = 38
INSTANT = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
"""The microseconds between which a time is one of a calendar that all engines have."""
_ENDLESS_MICROS = 9_000_000_000_000_000_000
"""PostgreSQL's infinite times come as numbers beyond this, in any unit."""
_ENDLESS_TEXTS = ("infinity", "-infinity")
_ENDLESS_DAYS = (2**31 - 1, -(2**31))
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_DAYS_MIN, _DAYS_MAX = dt.date.min.toordinal() - _EPOCH_DAY, dt.date.max.toordinal() - _EPOCH_DAY
_KEY_DECIMAL = "="
"""Before a decimal that is a key: no base64 begins so."""

Decode: TypeAlias = Callable[[Sequence[Any]], pa.Array]


class Meaning(enum.StrEnum):
    """What a value means. Where a unit is named, the value is a number of it."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    TEXT = "text"
    UUID = "uuid"
    BYTES = "bytes"
    BITS = "bits"
    DECIMAL = "decimal"
    DECIMAL_BYTES = "decimal_bytes"
    DECIMAL_ANY = "decimal_any"
    DAYS = "days"
    DATE_TEXT = "date_text"
    CLOCK = "clock"
    TIME = "time"
    TIME_TEXT = "time_text"
    JSON = "json"
    LIST = "list"
    MAP = "map"
    STRUCT = "struct"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """What a value means.

    Args:
        meaning: of the value.
        arrow: its type in the lake.
        unit: s, ms, us or ns, of times and clocks.
        scale: of decimals.
        length: of bits.
        fields: of structs.
        items: of lists, and of the values of maps.
        keys: of maps.
    """

    meaning: Meaning
    arrow: pa.DataType
    unit: str = "us"
    scale: int = 0
    length: int = 0
    fields: tuple[ValueField, ...] = ()
    items: ValueType | None = None
    keys: ValueType | None = None

    def decode(self, values: Sequence[Any]) -> pa.Array:
        """Raw values as an array. Raises ValueError, TypeError or an error of Arrow for one that does not fit."""
        made: pa.Array = _DECODERS[self.meaning](values, self)
        return made

    def key_value(self, value: Any) -> Any:
        """A raw value of a key column as a JSON value that `decode` takes: equal when the values are."""
        if value is None:
            return None
        if self.meaning in _DECIMALS:
            return f"{_KEY_DECIMAL}{_canonical(_DECIMALS[self.meaning](value, self.scale))}"
        if self.meaning in _TIMES:
            moment = self.decode([value])[0].as_py()
            return moment if moment is None or isinstance(moment, str) else moment.isoformat()
        if self.meaning is Meaning.INTEGER and isinstance(value, str):
            return int(value)  # A key that is text.
        if isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return float(value) if isinstance(value, Decimal) else str(value)

    def column(self, name: str, *, nullable: bool) -> SourceColumn:
        """A column of a source with this meaning."""
        return SourceColumn(name=name, type=self.arrow, nullable=nullable, decode=partial(decode_values, value_type=self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueField:
    """A field of a struct. nullable: whether it may be null. default: the raw value of older rows, None: there is none."""

    name: str
    type: ValueType
    nullable: bool = True
    default: Any = None


def decode_values(values: Sequence[Any], _type: pa.DataType, *, value_type: ValueType) -> pa.Array:
    """The decoder of a column, see `SourceColumn`."""
    return value_type.decode(values)


# ---- types by their name


def integer_type(bits: int) -> ValueType:
    """A signed integer of 8, 16, 32 or 64 bits."""
    return ValueType(meaning=Meaning.INTEGER, arrow={8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits])


def float_type(bits: int) -> ValueType:
    """A floating point number of 32 or 64 bits."""
    return ValueType(meaning=Meaning.FLOAT, arrow=pa.float32() if bits == 32 else pa.float64())


BOOLEAN = ValueType(meaning=Meaning.BOOLEAN, arrow=pa.bool_())
TEXT = ValueType(meaning=Meaning.TEXT, arrow=pa.string())
BYTES = ValueType(meaning=Meaning.BYTES, arrow=pa.binary())
JSON_TEXT = ValueType(meaning=Meaning.JSON, arrow=pa.string())
DAYS = ValueType(meaning=Meaning.DAYS, arrow=pa.date32())
DATE_TEXT = ValueType(meaning=Meaning.DATE_TEXT, arrow=pa.date32())
INSTANT_TEXT = ValueType(meaning=Meaning.TIME_TEXT, arrow=INSTANT)
LOCAL_TEXT = ValueType(meaning=Meaning.TIME_TEXT, arrow=LOCAL)


def time_type(unit: str, *, has_zone: bool) -> ValueType:
    """A number of units since 1970. has_zone: whether it is an instant; otherwise it is a date and time of a calendar."""
    return ValueType(meaning=Meaning.TIME, arrow=INSTANT if has_zone else LOCAL, unit=unit)


def clock_type(unit: str) -> ValueType:
    """A number of units since midnight, which becomes text."""
    return ValueType(meaning=Meaning.CLOCK, arrow=pa.string(), unit=unit)


def decimal_type(meaning: Meaning, precision: int | None, scale: int) -> ValueType:
    """A decimal. Without a precision it has 38 digits. What no decimal of the lake holds becomes text."""
    digits = DIGITS_MAX if precision is None else precision
    arrow = pa.decimal128(digits, scale) if 0 < digits <= DIGITS_MAX and 0 <= scale <= digits else pa.string()
    return ValueType(meaning=meaning, arrow=arrow, scale=scale)


def any_decimal_type(numeric_scale: int | None) -> ValueType:
    """A decimal whose values have a scale each: text, or a decimal of 38 digits of which so many are behind the point."""
    arrow = pa.string() if numeric_scale is None else pa.decimal128(DIGITS_MAX, numeric_scale)
    return ValueType(meaning=Meaning.DECIMAL_ANY, arrow=arrow)


def bits_type(length: int) -> ValueType:
    """Bits that come as bytes, the least first, and become bytes, the greatest first."""
    return ValueType(meaning=Meaning.BITS, arrow=pa.binary(), length=length)


def list_type(items: ValueType) -> ValueType:
    """A list."""
    return ValueType(meaning=Meaning.LIST, arrow=pa.list_(items.arrow), items=items)


def map_type(keys: ValueType, items: ValueType) -> ValueType:
    """A map. Its values may be null."""
    return ValueType(meaning=Meaning.MAP, arrow=pa.map_(keys.arrow, items.arrow), keys=keys, items=items)


def struct_type(fields: Sequence[ValueField]) -> ValueType:
    """A struct. One without fields is text of JSON, since files cannot hold it."""
    if not fields:
        return JSON_TEXT
    arrow = pa.struct([pa.field(field.name, field.type.arrow) for field in fields])
    return ValueType(meaning=Meaning.STRUCT, arrow=arrow, fields=tuple(fields))


# ---- decoders


def _decode_booleans(values: Sequence[Any], _kind: ValueType) -> pa.Array:
    return pa.array(values, pa.bool_())


def _decode_integers(values: Sequence[Any], kind: ValueType) -> pa.Array:
    return pa.array(values, kind.arrow)


def _decode_floats(values: Sequence[Any], kind: ValueType) -> pa.Array:
    return pa.array([None if value is None else float(value) for value in values], kind.arrow)


def _decode_texts(values: Sequence[Any], _kind: ValueType) -> pa.Array:
    return pa.array(values, pa.string())


def _decode_uuids(values: Sequence[Any], _kind: ValueType) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _decode_bytes(values: Sequence[Any], _kind: ValueType) -> pa.Array:
    return pa.array([_bytes(value) for value in values], pa.binary())


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError) as error:
        raise ValueError("bytes are not in base64") from error


def _decode_bits(values: Sequence[Any], kind: ValueType) -> pa.Array:
    made = []
    for value in values:
        raw = _bytes(value)
        width = (kind.length + 7) // 8
        made.append(None if raw is None else int.from_bytes(raw, "little").to_bytes(width or len(raw), "big"))
    return pa.array(made, pa.binary())


def _decode_decimals(values: Sequence[Any], kind: ValueType) -> pa.Array:
    return _decimals([None if value is None else _plain_decimal(value, 0) for value in values], kind)


def _plain_decimal(value: Any, _scale: int) -> Decimal:
    if isinstance(value, bool):
        raise TypeError("a decimal is a boolean")
    if isinstance(value, str):
        value = value.removeprefix(_KEY_DECIMAL)
    made = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not made.is_finite():
        raise ValueError("a decimal is not finite")
    return made


def _decode_decimal_bytes(values: Sequence[Any], kind: ValueType) -> pa.Array:
    return _decimals([None if value is None else _unscaled(value, kind.scale) for value in values], kind)


def _unscaled(value: Any, scale: int) -> Decimal:
    """Connect's decimal: an integer in two's complement, the greatest byte first."""
    if isinstance(value, Decimal):
        return value
    if isinstance(value, (int, float)):
        return _plain_decimal(value, 0)
    if isinstance(value, str) and value.startswith(_KEY_DECIMAL):
        return Decimal(value[1:])
    raw = _bytes(value)
    assert raw is not None
    # The constructor is exact. Arithmetic would round to the digits of its context.
    return Decimal(f"{int.from_bytes(raw, 'big', signed=True)}E{-scale}")


def _decode_any_decimals(values: Sequence[Any], kind: ValueType) -> pa.Array:
    return _decimals([None if value is None else _any_decimal(value, 0) for value in values], kind)


def _any_decimal(value: Any, _scale: int) -> Decimal:
    if isinstance(value, Mapping):
        return _unscaled(value["value"], int(value["scale"]))
    return _plain_decimal(value, 0)


def _canonical(value: Decimal) -> str:
    """A decimal as text, without zeros at the end of its fraction. `normalize` would round to the digits of its context."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _decimals(values: Sequence[Decimal | None], kind: ValueType) -> pa.Array:
    if pa.types.is_string(kind.arrow):
        return pa.array([None if value is None else f"{value:f}" for value in values], pa.string())
    return pa.array(values, kind.arrow)


def _decode_days(values: Sequence[Any], _kind: ValueType) -> pa.Array:
    return pa.array([_days(value) for value in values], pa.int32()).cast(pa.date32())


def _days(value: Any) -> int | None:
    if isinstance(value, str):
        value = dt.date.fromisoformat(value)
    if isinstance(value, dt.date):
        return value.toordinal() - _EPOCH_DAY
    if value is None or value in _ENDLESS_DAYS:
        return None
    if not _DAYS_MIN <= value <= _DAYS_MAX:
        raise ValueError(f"the day {value} since 1970 is outside of the years 1 to 9999")
    return int(value)


def _decode_date_texts(values: Sequence[Any], _kind: ValueType) -> pa.Array:
    return pa.array([None if value in _ENDLESS_TEXTS else _date(value) for value in values], pa.date32())


def _date(value: Any) -> dt.date | None:
    if value is None:
        return None
    # Debezium's date as ISO text may end in a zone.
    return dt.date.fromisoformat(value.removesuffix("Z"))


def _decode_clocks(values: Sequence[Any], kind: ValueType) -> pa.Array:
    return pa.array([None if value is None else _clock(value, kind.unit) for value in values], pa.string())


def _clock(value: Any, unit: str) -> str:
    """A time of day as PostgreSQL writes it: a fraction has no zeros at its end."""
    if isinstance(value, str):
        return value
    if isinstance(value, dt.time):
        nanos = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000_000 + value.microsecond * 1_000
    else:
        nanos = int(value) * (1 if unit == "ns" else _MICROS[unit] * 1_000)
    sign, nanos = ("-" if nanos < 0 else ""), abs(nanos)
    seconds, fraction = divmod(nanos, 1_000_000_000)
    text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:09d}".rstrip("0") if fraction else text


def _decode_times(values: Sequence[Any], kind: ValueType) -> pa.Array:
    unit = kind.unit
    micros = pa.array([value if value is None else _micros(value, unit) for value in values], pa.int64())
    return micros.cast(kind.arrow)


def _micros(value: Any, unit: str) -> int | None:
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    if isinstance(value, dt.datetime):
        since = value.replace(tzinfo=None) - value.utcoffset() if value.utcoffset() else value.replace(tzinfo=None)  # type: ignore[operator]
        return (since - _EPOCH) // dt.timedelta(microseconds=1)
    if abs(value) >= _ENDLESS_MICROS:
        return None
    # A lake has microseconds: what is finer is cut off, towards the past.
    made = value // 1_000 if unit == "ns" else value * _MICROS[unit]
    if not _YEAR_1 <= made < _YEAR_10000:
        raise ValueError(f"the time {value} {unit} since 1970 is outside of the years 1 to 9999")
    return int(made)


def _decode_time_texts(values: Sequence[Any], kind: ValueType) -> pa.Array:
    try:
        texts = pa.array(values, pa.string())
        return pc.cast(pc.if_else(pc.is_in(texts, pa.array(_ENDLESS_TEXTS)), None, texts), kind.arrow)
    except pa.ArrowException:
        # Arrow reads fewer forms than Python, such as nine digits of a fraction.
        micros = [None if value is None or value in _ENDLESS_TEXTS else _micros_of_text(value, kind.arrow) for value in values]
        return pa.array(micros, pa.int64()).cast(kind.arrow)


def _micros_of_text(value: str, arrow: pa.DataType) -> int:
    moment = dt.datetime.fromisoformat(value)
    if arrow == INSTANT and moment.utcoffset() is None:
        raise ValueError(f"the time {value!r} has no zone")
    made = _micros(moment if arrow == INSTANT else moment.replace(tzinfo=None), "us")
    assert made is not None
    return made


def _decode_json(values: Sequence[Any], _kind: ValueType) -> pa.Array:
    return pa.array([None if value is None else _json(value) for value in values], pa.string())


def _json(value: Any) -> str:
    return _ENCODER.encode(value).decode()


def _decode_lists(values: Sequence[Any], kind: ValueType) -> pa.Array:
    assert kind.items is not None
    for value in values:
        if value is not None and not isinstance(value, list):
            raise TypeError("a list is not one")
    flat = [item for value in values if value is not None for item in value]
    return pa.ListArray.from_arrays(_offsets(values), kind.items.decode(flat), mask=_nulls(values)).cast(kind.arrow)


def _decode_maps(values: Sequence[Any], kind: ValueType) -> pa.Array:
    assert kind.items is not None and kind.keys is not None
    # A map whose keys are not text is a list of pairs in JSON.
    pairs = [None if value is None else list(value.items()) if isinstance(value, Mapping) else value for value in values]
    flat = [pair for value in pairs if value is not None for pair in value]
    keys, items = kind.keys.decode([pair[0] for pair in flat]), kind.items.decode([pair[1] for pair in flat])
    made = pa.MapArray.from_arrays(_offsets(pairs), keys, items, mask=_nulls(pairs))
    return made.cast(kind.arrow)


def _decode_structs(values: Sequence[Any], kind: ValueType) -> pa.Array:
    for value in values:
        if value is not None and not isinstance(value, Mapping):
            raise TypeError("a struct is not one")
    arrays = [field.type.decode([None if value is None else value.get(field.name) for value in values]) for field in kind.fields]
    return pa.StructArray.from_arrays(arrays, fields=list(kind.arrow), mask=_nulls(values))


def _offsets(values: Sequence[Any]) -> pa.Array:
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value or ()))
    return pa.array(offsets, pa.int32())


def _nulls(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a value without a zone
_ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=str)

_DECODERS: Mapping[Meaning, Callable[[Sequence[Any], ValueType], pa.Array]] = {
    Meaning.BOOLEAN: _decode_booleans,
    Meaning.INTEGER: _decode_integers,
    Meaning.FLOAT: _decode_floats,
    Meaning.TEXT: _decode_texts,
    Meaning.UUID: _decode_uuids,
    Meaning.BYTES: _decode_bytes,
    Meaning.BITS: _decode_bits,
    Meaning.DECIMAL: _decode_decimals,
    Meaning.DECIMAL_BYTES: _decode_decimal_bytes,
    Meaning.DECIMAL_ANY: _decode_any_decimals,
    Meaning.DAYS: _decode_days,
    Meaning.DATE_TEXT: _decode_date_texts,
    Meaning.CLOCK: _decode_clocks,
    Meaning.TIME: _decode_times,
    Meaning.TIME_TEXT: _decode_time_texts,
    Meaning.JSON: _decode_json,
    Meaning.LIST: _decode_lists,
    Meaning.MAP: _decode_maps,
    Meaning.STRUCT: _decode_structs,
}
_DECIMALS: Mapping[Meaning, Callable[[Any, int], Decimal]] = {
    Meaning.DECIMAL: _plain_decimal,
    Meaning.DECIMAL_BYTES: _unscaled,
    Meaning.DECIMAL_ANY: _any_decimal,
}
_TIMES = {Meaning.DAYS, Meaning.DATE_TEXT, Meaning.CLOCK, Meaning.TIME, Meaning.TIME_TEXT}
