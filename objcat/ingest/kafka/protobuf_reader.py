"""Messages of Protocol Buffers: `ProtobufMessage` reads those of one type, `ProtobufReader` those of a file with descriptors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fileio.errors import InvalidConfig
from fileio.optional import library
from objcat.ingest.kafka.connect_types import SchemaUnfit
from objcat.ingest.kafka.message import Unreadable
from objcat.ingest.kafka.readers import DECLARED, EXTRA, NEEDED_BY, unframed
from objcat.ingest.kafka.values import (
    BOOLEAN,
    BYTES,
    JSON_TEXT,
    TEXT,
    Meaning,
    ValueField,
    ValueType,
    decimal_type,
    float_type,
    integer_type,
    list_type,
    map_type,
    struct_type,
    time_type,
)

_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_WRAPPERS = {
    f"google.protobuf.{name}"
    for name in (
        "DoubleValue", "FloatValue", "Int64Value", "UInt64Value", "Int32Value", "UInt32Value", "BoolValue", "StringValue", "BytesValue",
    )
}  # fmt: skip
_JSON = {f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue", "FieldMask")}
UINT64_DIGITS = 20
PLACES_MAX = 100
"""Messages are not nested more deeply."""

_Convert = Callable[[Any], Any]


class ProtobufMessage:
    """Reads messages of one type as Python values.

    Nested messages are structs, repeated fields lists, maps maps, and enums the text of their names. A field of a `oneof`, or one that is
    `optional`, is null when it is not set; the others have the default of Protocol Buffers then.

    Args:
        descriptor: of the type, in a pool.

    Attributes:
        name: the full name of the type.
        type: the struct that its messages are.

    Raises:
        SchemaUnfit: the type contains itself.
        MissingDependency: protobuf is not installed.
    """

    def __init__(self, descriptor: Any) -> None:
        self.name: str = descriptor.full_name
        self._errors = protobuf_module("message")
        self._json_format = protobuf_module("json_format")
        self._class = protobuf_module("message_factory").GetMessageClass(descriptor)
        self.type, self._convert = self._message(descriptor, ())

    def read(self, raw: bytes) -> Any:
        """The values of a message by field. Raises Unreadable."""
        try:
            return self._convert(self._class.FromString(raw))
        except self._errors.DecodeError as error:
            raise Unreadable(f"it is no {self.name}: {error}") from None

    def _message(self, descriptor: Any, around: tuple[str, ...]) -> tuple[ValueType, _Convert]:
        name = descriptor.full_name
        if name == _TIMESTAMP:
            return time_type("us", has_zone=True), lambda value: value.seconds * 1_000_000 + value.nanos // 1_000
        if name == _DURATION:
            return integer_type(64), lambda value: value.seconds * 1_000_000 + int(value.nanos / 1_000)
        if name in _WRAPPERS:
            kind, convert = self._scalar(descriptor.fields_by_name["value"])
            return kind, lambda value: convert(value.value)
        if name in _JSON:
            to_dict = self._json_format.MessageToDict
            return JSON_TEXT, lambda value: to_dict(value, preserving_proto_field_name=True)
        if name in around:
            raise SchemaUnfit(f"{name} contains itself, by {' and '.join(around)}")
        fields, converts = [], {}
        for field in descriptor.fields:
            kind, converts[field.name] = self._field(field, (*around, name))
            fields.append(ValueField(name=field.name, type=kind))
        return struct_type(fields), partial(_convert_message, fields=tuple(converts.items()))

    def _field(self, field: Any, around: tuple[str, ...]) -> tuple[ValueType, _Convert]:
        """The type of a field, and from a message to its value."""
        name = field.name
        is_message = field.message_type is not None
        if is_message and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            keys, to_key = self._single(entry["key"], around)
            items, to_item = self._single(entry["value"], around)
            return map_type(keys, items), lambda found: {to_key(key): to_item(item) for key, item in getattr(found, name).items()}
        kind, convert = self._single(field, around)
        if _is_repeated(field):
            return list_type(kind), lambda found: [convert(item) for item in getattr(found, name)]
        if field.has_presence:
            return kind, lambda found: convert(getattr(found, name)) if found.HasField(name) else None
        return kind, lambda found: convert(getattr(found, name))

    def _single(self, field: Any, around: tuple[str, ...]) -> tuple[ValueType, _Convert]:
        return self._message(field.message_type, around) if field.message_type is not None else self._scalar(field)

    def _scalar(self, field: Any) -> tuple[ValueType, _Convert]:
        if field.enum_type is not None:
            names = {value.number: value.name for value in field.enum_type.values}
            # A number that the descriptors do not have is kept as its digits.
            return TEXT, lambda value: names.get(value, str(value))
        kinds: Mapping[int, ValueType] = {
            field.CPPTYPE_BOOL: BOOLEAN,
            field.CPPTYPE_DOUBLE: float_type(64),
            field.CPPTYPE_FLOAT: float_type(32),
            field.CPPTYPE_INT32: integer_type(32),
            field.CPPTYPE_INT64: integer_type(64),
            field.CPPTYPE_UINT32: integer_type(64),
            field.CPPTYPE_UINT64: decimal_type(Meaning.DECIMAL, UINT64_DIGITS, 0),
            field.CPPTYPE_STRING: BYTES if field.type == field.TYPE_BYTES else TEXT,
        }
        return kinds[field.cpp_type], _same


class ProtobufReader:
    """Reads messages of one type, whose descriptors are in a file.

    Args:
        descriptor: a file with a set of descriptors, which has all that it imports.
        message: the full name of the message.
        is_framed: whether the number of a schema in a registry, and the place of the message in it, come before each value.

    Raises:
        InvalidConfig: the file cannot be read, has no such message, or the message contains itself.
        MissingDependency: protobuf is not installed.
    """

    def __init__(self, descriptor: str, message: str, *, is_framed: bool) -> None:
        self._is_framed = is_framed
        pool = protobuf_module("descriptor_pool").DescriptorPool()
        try:
            found = protobuf_module("descriptor_pb2").FileDescriptorSet.FromString(Path(descriptor).read_bytes())
            for file in found.file:
                pool.Add(file)
            known = pool.FindMessageTypeByName(message)
        except (OSError, protobuf_module("message").DecodeError, TypeError, KeyError) as error:
            raise InvalidConfig(
                f"The descriptors {descriptor} have no message {message!r}, or cannot be read: {error}. Write them by protoc "
                "--descriptor_set_out=FILE --include_imports, and give the full name of the message."
            ) from None
        try:
            self._message = ProtobufMessage(known)
        except SchemaUnfit as error:
            raise InvalidConfig(f"The message {message!r} of {descriptor} cannot be a table: {error}.") from None

    def read(self, raw: bytes) -> tuple[Hashable, Any]:
        """See `ValueReader`."""
        return DECLARED, self._message.read(split_places(unframed(raw)[1])[1] if self._is_framed else raw)

    def fields(self, identity: Hashable, part: str | None = None) -> list[ValueField]:  # noqa: ARG002 - the Protocol has it
        """See `ValueReader`. All values have one schema."""
        return list(self._message.type.fields)

    def scalar(self, identity: Hashable) -> ValueType | None:  # noqa: ARG002 - the Protocol has it
        """See `ValueReader`. A message is a struct."""
        return self._message.type


def protobuf_module(name: str) -> Any:
    """A module of `google.protobuf`. Raises MissingDependency."""
    return library(f"google.protobuf.{name}", needed_by=NEEDED_BY, extra=EXTRA)


def split_places(raw: bytes) -> tuple[tuple[int, ...], bytes]:
    """The place of a message in its schema, and its bytes. Raises Unreadable.

    The place is a count and so many numbers, as variable-length integers: of a message of the file, and then of those nested in it. A
    count of zero is the first message.
    """
    count, at = _zigzag(raw, 0)
    if not 0 <= count <= PLACES_MAX:
        raise Unreadable(f"the place of its message has {count} parts")
    places = []
    for _ in range(count):
        place, at = _zigzag(raw, at)
        places.append(place)
    return tuple(places) or (0,), raw[at:]


def _same(value: Any) -> Any:
    return value


def _convert_message(message: Any, *, fields: tuple[tuple[str, _Convert], ...]) -> dict[str, Any]:
    return {name: convert(message) for name, convert in fields}


def _is_repeated(field: Any) -> bool:
    # Releases of protobuf have one or the other.
    found = getattr(field, "is_repeated", None)
    return bool(found) if found is not None else bool(field.label == field.LABEL_REPEATED)


def _zigzag(raw: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= len(raw) or shift > 63:
            raise Unreadable("it ends within the place of its message")
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
