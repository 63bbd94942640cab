"""Readers of keys and values: JSON, Avro and Protobuf as Python values, with the fields that their schema has.

A reader gives a value and an identity of its schema, which is cheap to compare: the fields are made once for each.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fileio.errors import InvalidConfig
from fileio.optional import library
from objcat.ingest.kafka.connect_types import AvroTypes, SchemaUnfit, fields_of_connect, type_of_connect
from objcat.ingest.kafka.message import Unreadable
from objcat.ingest.kafka.registry import RegistryClient
from objcat.ingest.kafka.values import ValueField, ValueType

NEEDED_BY = "An ingest from Kafka needs"
EXTRA = "ingest-kafka"
HEADER = struct.Struct(">bI")
"""The magic byte and the number of the schema before a value that a registry's serializer wrote."""
DECLARED = "declared"
"""The identity of a schema that the configuration has."""


class ValueReader(Protocol):
    """Reads keys or values of one form."""

    def read(self, raw: bytes) -> tuple[Hashable, Any]:
        """The identity of the schema, and the value. Raises Unreadable, SourceAway."""

    def fields(self, identity: Hashable, part: str | None = None) -> list[ValueField]:
        """The fields of a schema that was read; of the struct in its field `part`, where that is given. Raises SchemaUnfit."""

    def scalar(self, identity: Hashable) -> ValueType | None:
        """The type of a schema that is no struct; None where that is not known."""


class _Framed(msgspec.Struct):
    """JSON as Connect writes it. The schema is not parsed: it is the same for many messages."""

    schema: msgspec.Raw = msgspec.Raw(b"")
    payload: Any = msgspec.UNSET


class JsonReader:
    """JSON with a schema, as Connect's converter writes it, or without one.

    Args:
        declared: the fields of JSON without a schema; None: they are not declared.
        numeric_scale: of decimals with a scale each.
    """

    def __init__(self, declared: Sequence[ValueField] | None, *, numeric_scale: int | None) -> None:
        self._declared = declared
        self._numeric_scale = numeric_scale
        self._framed = msgspec.json.Decoder(_Framed, float_hook=Decimal)
        self._plain = msgspec.json.Decoder(float_hook=Decimal)

    def read(self, raw: bytes) -> tuple[Hashable, Any]:
        """See `ValueReader`."""
        try:
            framed = self._read_framed(raw)
            if framed is not None:
                return bytes(framed.schema), framed.payload
            return DECLARED, self._plain.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(f"it is not JSON: {error}") from None

    def _read_framed(self, raw: bytes) -> _Framed | None:
        try:
            framed = self._framed.decode(raw)
        except msgspec.ValidationError:
            return None  # JSON that is no object.
        schema = bytes(framed.schema)
        if framed.payload is msgspec.UNSET or (schema != b"null" and not schema.startswith(b"{")):
            return None
        return _Framed(msgspec.Raw(b""), framed.payload) if schema == b"null" else framed

    def fields(self, identity: Hashable, part: str | None = None) -> list[ValueField]:
        """See `ValueReader`."""
        if identity in (DECLARED, b""):
            if self._declared is None:
                raise SchemaUnfit(
                    "it has no schema, and the configuration has no columns for it: add [[source.topic]] with columns, or let the "
                    "converter write schemas (schemas.enable)"
                )
            return list(self._declared)
        schema = _connect_part(self._schema(identity), part)
        return fields_of_connect(schema, numeric_scale=self._numeric_scale)

    def scalar(self, identity: Hashable) -> ValueType | None:
        """See `ValueReader`."""
        return None if identity in (DECLARED, b"") else type_of_connect(self._schema(identity), numeric_scale=self._numeric_scale)

    def _schema(self, identity: Hashable) -> Any:
        assert isinstance(identity, bytes)
        return msgspec.json.decode(identity)


def _connect_part(schema: Any, part: str | None) -> Mapping[str, Any]:
    """The schema of a field of a struct, or the struct itself."""
    if not isinstance(schema, Mapping) or schema.get("type") != "struct":
        raise SchemaUnfit("its schema is not that of a struct")
    if part is None:
        return schema
    for field in schema.get("fields", ()):
        if field.get("field") == part and field.get("type") == "struct":
            found: Mapping[str, Any] = field
            return found
    raise SchemaUnfit(f"its schema has no struct {part!r}")


class AvroReader:
    """Avro whose schema is in a registry, or in a file.

    Args:
        registry: where schemas are; None: `schema_path` has the one of all values.
        schema_path: a file with a schema.
        numeric_scale: of decimals with a scale each.

    Raises:
        InvalidConfig: the file has no schema.
        MissingDependency: fastavro is not installed.
    """

    def __init__(self, registry: RegistryClient | None, schema_path: str | None, *, numeric_scale: int | None) -> None:
        self._avro: Any = library("fastavro", needed_by=NEEDED_BY, extra=EXTRA)
        self._registry = registry
        self._numeric_scale = numeric_scale
        self._parsed: dict[Hashable, Any] = {}
        self._schemas: dict[Hashable, list[Any]] = {}
        if schema_path is not None:
            self._know(DECLARED, [read_schema(schema_path)])

    def read(self, raw: bytes) -> tuple[Hashable, Any]:
        """See `ValueReader`."""
        identity: Hashable = DECLARED
        if DECLARED not in self._parsed:
            if self._registry is None:
                raise Unreadable("it is of Avro, and nothing has its schema: give key_schema, or another key_format, in [[source.topic]]")
            number, raw = unframed(raw)
            identity = number
            if number not in self._parsed:
                self._know(number, self._registry.schemas(number))
        stream = io.BytesIO(raw)
        try:
            value = self._avro.schemaless_reader(stream, self._parsed[identity], None)
        except (ValueError, TypeError, KeyError, EOFError, IndexError, OverflowError, RecursionError, UnicodeDecodeError) as error:
            raise Unreadable(f"it does not fit its Avro schema {identity}: {error!r}") from None
        if stream.tell() != len(raw):
            raise Unreadable(f"it has {len(raw) - stream.tell():,} bytes more than its Avro schema {identity} says")
        return identity, value

    def fields(self, identity: Hashable, part: str | None = None) -> list[ValueField]:
        """See `ValueReader`."""
        types, schema = self._types(identity)
        if part is None:
            return types.fields(schema)
        record, namespace = types.resolve(schema, "")
        for field in record.get("fields", ()) if isinstance(record, Mapping) else ():
            if field["name"] == part:
                inner, _ = types.resolve(field["type"], namespace)
                return types.fields(inner)
        raise SchemaUnfit(f"its schema has no record {part!r}")

    def scalar(self, identity: Hashable) -> ValueType | None:
        """See `ValueReader`."""
        types, schema = self._types(identity)
        return types.type_of(schema)

    def _types(self, identity: Hashable) -> tuple[AvroTypes, Any]:
        if identity not in self._schemas:
            raise SchemaUnfit("its schema is in its values alone")
        types = AvroTypes(numeric_scale=self._numeric_scale)
        for schema in self._schemas[identity]:
            types.learn(schema)
        return types, self._schemas[identity][-1]

    def _know(self, identity: Hashable, schemas: Sequence[Any]) -> None:
        """Know a schema, with those that it refers to before it."""
        named: dict[str, Any] = {}
        parsed: Any = None
        try:
            for schema in schemas:
                parsed = self._avro.parse_schema(schema, named_schemas=named)
        except (ValueError, TypeError, KeyError, AttributeError, self._avro.schema.SchemaParseException) as error:
            raise Unreadable(f"its schema {identity} is not one of Avro: {error}") from None
        self._schemas[identity] = list(schemas)
        self._parsed[identity] = parsed


def unframed(raw: bytes) -> tuple[int, bytes]:
    """The number of the schema, and what is after it. Raises Unreadable."""
    if len(raw) < HEADER.size:
        raise Unreadable(f"it has {len(raw)} bytes, and the number of its schema takes {HEADER.size}")
    magic, number = HEADER.unpack_from(raw)
    if magic != 0:
        raise Unreadable(f"it begins with the byte {magic}, not with that of a registry's serializer")
    return number, raw[HEADER.size :]


def read_schema(path: str) -> Any:
    """An Avro schema of a file. Raises InvalidConfig."""
    try:
        return msgspec.json.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidConfig(f"The Avro schema {path} cannot be read: {error}. Correct the path or the file.") from None


class TextReader:
    """Keys that are text."""

    def read(self, raw: bytes) -> tuple[Hashable, Any]:
        """See `ValueReader`."""
        try:
            return DECLARED, raw.decode()
        except UnicodeDecodeError:
            raise Unreadable("its key is not UTF-8") from None

    def fields(self, identity: Hashable, part: str | None = None) -> list[ValueField]:  # noqa: ARG002 - the Protocol has it
        """See `ValueReader`. Text has no fields."""
        raise SchemaUnfit("its key is text, which has no fields")

    def scalar(self, identity: Hashable) -> ValueType | None:  # noqa: ARG002 - the Protocol has it
        """See `ValueReader`. A text becomes whatever the column is."""
        return None
