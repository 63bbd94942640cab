"""Types as a configuration declares them, for JSON that has no schema: `id = "int64"`, `price = "decimal(18,2)"`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from objcat.ingest.kafka.connect_types import DECIMAL, DEPTH_MAX, named_type
from objcat.ingest.kafka.values import (
    BOOLEAN,
    BYTES,
    DATE_TEXT,
    DAYS,
    DIGITS_MAX,
    INSTANT_TEXT,
    JSON_TEXT,
    LOCAL_TEXT,
    TEXT,
    Meaning,
    ValueField,
    ValueType,
    any_decimal_type,
    clock_type,
    decimal_type,
    float_type,
    integer_type,
    list_type,
    map_type,
    struct_type,
    time_type,
)

NAMES: Mapping[str, ValueType] = {
    "boolean": BOOLEAN,
    "bool": BOOLEAN,
    "int8": integer_type(8),
    "int16": integer_type(16),
    "int32": integer_type(32),
    "int64": integer_type(64),
    "float32": float_type(32),
    "float64": float_type(64),
    "string": TEXT,
    "bytes": BYTES,
    "json": JSON_TEXT,
    "date": DATE_TEXT,
    "date_days": DAYS,
    "time_ms": clock_type("ms"),
    "time_us": clock_type("us"),
    "timestamp": INSTANT_TEXT,
    "timestamp_s": time_type("s", has_zone=True),
    "timestamp_ms": time_type("ms", has_zone=True),
    "timestamp_us": time_type("us", has_zone=True),
    "timestamp_ns": time_type("ns", has_zone=True),
    "local_timestamp": LOCAL_TEXT,
    "local_timestamp_ms": time_type("ms", has_zone=False),
    "local_timestamp_us": time_type("us", has_zone=False),
}
"""The types without parts. The texts of `date` and `timestamp` are ISO 8601; the others are numbers since the beginning of 1970."""

_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*|\d+|[<>(),:])")


class TypeUnknown(ValueError):
    """A declared type is not known. Its text says what is wrong."""


def parse_fields(columns: Mapping[str, str], *, numeric_scale: int | None) -> list[ValueField]:
    """The fields of declared columns. Raises TypeUnknown, which names the column."""
    made = []
    for name, text in columns.items():
        try:
            made.append(ValueField(name=name, type=parse_type(text, numeric_scale=numeric_scale)))
        except TypeUnknown as error:
            raise TypeUnknown(f"the column {name!r} has {error}") from None
    return made


def parse_type(text: str, *, numeric_scale: int | None = None) -> ValueType:
    """A type from its text, such as `list<struct<id: int64, at: timestamp>>`. Raises TypeUnknown."""
    return _TypeParser(text, numeric_scale).parse()


class _TypeParser:
    def __init__(self, text: str, numeric_scale: int | None) -> None:
        self._text = text
        self._numeric_scale = numeric_scale
        self._tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._unknown()
            self._tokens.append(found[1])
            at = found.end()

    def parse(self) -> ValueType:
        made = self._type(0)
        if self._tokens:
            raise self._unknown()
        return made

    def _type(self, depth: int) -> ValueType:
        if depth > DEPTH_MAX:
            raise TypeUnknown("a type that is nested too deeply")
        name = self._take()
        if name == "list":
            self._take("<")
            items = self._type(depth + 1)
            self._take(">")
            return list_type(items)
        if name == "map":
            self._take("<")
            keys = self._type(depth + 1)
            self._take(",")
            items = self._type(depth + 1)
            self._take(">")
            return map_type(keys, items)
        if name == "struct":
            return self._struct(depth)
        if name in ("decimal", DECIMAL):
            return self._decimal(Meaning.DECIMAL if name == "decimal" else Meaning.DECIMAL_BYTES)
        if name == "numeric":
            return any_decimal_type(self._numeric_scale)
        named = named_type(name, {}, numeric_scale=self._numeric_scale)
        if named is None and name not in NAMES:
            raise self._unknown()
        return named or NAMES[name]

    def _struct(self, depth: int) -> ValueType:
        self._take("<")
        fields = []
        while True:
            name = self._take()
            self._take(":")
            fields.append(ValueField(name=name, type=self._type(depth + 1)))
            if self._take() == ">":
                return struct_type(fields)

    def _decimal(self, meaning: Meaning) -> ValueType:
        self._take("(")
        precision = self._number()
        self._take(",")
        scale = self._number()
        self._take(")")
        if not 1 <= precision <= DIGITS_MAX or scale > precision:
            raise self._unknown()
        return decimal_type(meaning, precision, scale)

    def _number(self) -> int:
        token = self._take()
        if not token.isdigit():
            raise self._unknown()
        return int(token)

    def _take(self, wanted: str | None = None) -> str:
        if not self._tokens or (wanted is not None and self._tokens[0] != wanted):
            raise self._unknown()
        return self._tokens.pop(0)

    def _unknown(self) -> TypeUnknown:
        return TypeUnknown(
            f"the type {self._text!r}, which is not known. Write one of {', '.join(sorted(NAMES))}, decimal(18,2), list<...>, "
            "map<string, ...>, struct<name: type, ...>, or a name of Debezium"
        )
