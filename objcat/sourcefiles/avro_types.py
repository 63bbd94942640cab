"""Schemas of Avro files as Arrow ones, after the specification of Avro 1.12."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from objcat.sourcefiles.file_batch import BrokenFile

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "null": pa.null(),
}
_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
"""Logical types that a reader gives as values of their own. Others are what they annotate."""


def avro_schema(schema: Any) -> pa.Schema:
    """The columns of a file whose records have this schema.

    Args:
        schema: as JSON, parsed.

    Raises:
        BrokenFile: it is no record, or a field has a type that no column can have.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise BrokenFile("its values are no records")
    named: dict[str, Any] = {}
    return pa.schema([pa.field(field["name"], _type(field["type"], named, (schema["name"],))) for field in _fields(schema, named)])


def _fields(schema: Mapping[str, Any], named: dict[str, Any]) -> list[Mapping[str, Any]]:
    named[schema["name"]] = schema
    fields: list[Mapping[str, Any]] = schema["fields"]
    return fields


def _type(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> pa.DataType:
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise BrokenFile(f"a field of {within[-1]} is a union of {len(others)} types, and a column has one")
        return _type(others[0], named, within)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in within:
            raise BrokenFile(f"the record {schema} contains itself")
        if schema not in named:
            raise BrokenFile(f"the type {schema!r} is not known")
        return _type(named[schema], named, within)
    return _annotated(schema, named, within)


def _annotated(schema: Mapping[str, Any], named: dict[str, Any], within: tuple[str, ...]) -> pa.DataType:
    kind, logical = schema["type"], str(schema.get("logicalType"))
    if logical == "decimal":
        if schema["precision"] > 38:
            raise BrokenFile(f"a decimal of {within[-1]} has {schema['precision']} digits, and a column has at most 38")
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    match kind:
        case "record":
            fields = _fields(schema, named)
            return pa.struct([pa.field(field["name"], _type(field["type"], named, (*within, schema["name"]))) for field in fields])
        case "array":
            return pa.list_(pa.field("element", _type(schema["items"], named, within)))
        case "map":
            return pa.map_(pa.string(), _type(schema["values"], named, within))
        case "enum" | "fixed":
            named[schema["name"]] = schema
            return pa.string() if kind == "enum" else pa.binary()
        case _:
            return _type(kind, named, within)
