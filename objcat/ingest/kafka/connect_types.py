"""Types of Kafka Connect and of Debezium, as JSON schemas and Avro schemas name them.

A schema of Connect is a plain type (`int64`) and may have a name that says what it means (`io.debezium.time.MicroTimestamp`). Debezium
documents its names at https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from objcat.ingest.kafka.values import (
    BOOLEAN,
    BYTES,
    DATE_TEXT,
    DAYS,
    INSTANT_TEXT,
    JSON_TEXT,
    LOCAL_TEXT,
    TEXT,
    Meaning,
    ValueField,
    ValueType,
    any_decimal_type,
    bits_type,
    clock_type,
    decimal_type,
    float_type,
    integer_type,
    list_type,
    map_type,
    struct_type,
    time_type,
)

DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
BITS = "io.debezium.data.Bits"
DEPTH_MAX = 32
"""Deeper schemas are refused."""

_PLAIN: Mapping[str, ValueType] = {
    "boolean": BOOLEAN,
    "int8": integer_type(8),
    "int16": integer_type(16),
    "int32": integer_type(32),
    "int64": integer_type(64),
    "float": float_type(32),
    "float32": float_type(32),
    "double": float_type(64),
    "float64": float_type(64),
    "string": TEXT,
    "bytes": BYTES,
}
_NAMED: Mapping[str, ValueType] = {
    "org.apache.kafka.connect.data.Date": DAYS,
    "org.apache.kafka.connect.data.Time": clock_type("ms"),
    # Debezium uses it for times without a zone; where Connect has an instant, Avro says so.
    "org.apache.kafka.connect.data.Timestamp": time_type("ms", has_zone=False),
    "io.debezium.time.Date": DAYS,
    "io.debezium.time.Time": clock_type("ms"),
    "io.debezium.time.MicroTime": clock_type("us"),
    "io.debezium.time.NanoTime": clock_type("ns"),
    "io.debezium.time.Timestamp": time_type("ms", has_zone=False),
    "io.debezium.time.MicroTimestamp": time_type("us", has_zone=False),
    "io.debezium.time.NanoTimestamp": time_type("ns", has_zone=False),
    "io.debezium.time.ZonedTimestamp": INSTANT_TEXT,
    "io.debezium.time.IsoDate": DATE_TEXT,
    "io.debezium.time.IsoTimestamp": LOCAL_TEXT,
}
"""What a name means. Names that are not here, such as `io.debezium.data.Json` and `Enum`, have the meaning of their plain type."""


class SchemaUnfit(ValueError):
    """A schema of a message cannot be that of a table."""


def type_of_connect(schema: Mapping[str, Any], *, numeric_scale: int | None, depth: int = 0) -> ValueType:
    """The type of a schema as Connect's JSON converter writes it.

    Args:
        schema: with `type`, and perhaps `name`, `parameters`, `fields`, `items`, `keys` and `values`.
        numeric_scale: of decimals whose values have a scale each; None: they are text.
        depth: of the schemas around it.

    Raises:
        SchemaUnfit: it has no type that is known, or is nested too deeply.
    """
    if depth > DEPTH_MAX:
        raise SchemaUnfit("a schema is nested too deeply, or contains itself")
    kind, name = str(schema.get("type")), schema.get("name") or ""
    named = named_type(name, schema.get("parameters") or {}, numeric_scale=numeric_scale)
    if named is not None:
        return named

    def inner(found: Any) -> ValueType:
        if not isinstance(found, Mapping):
            raise SchemaUnfit(f"the schema of {kind!r} has no schema of what is in it")
        return type_of_connect(found, numeric_scale=numeric_scale, depth=depth + 1)

    nested: Mapping[Any, Callable[[], ValueType]] = {
        "array": lambda: list_type(inner(schema.get("items"))),
        "map": lambda: map_type(inner(schema.get("keys")), inner(schema.get("values"))),
        "struct": lambda: struct_type(fields_of_connect(schema, numeric_scale=numeric_scale, depth=depth + 1)),
    }
    if kind in nested:
        return nested[kind]()
    if kind not in _PLAIN:
        raise SchemaUnfit(f"the type {kind!r} of a schema is not known")
    return _PLAIN[kind]


def fields_of_connect(schema: Mapping[str, Any], *, numeric_scale: int | None, depth: int = 0) -> list[ValueField]:
    """The fields of a struct. Raises SchemaUnfit."""
    made = []
    for field in schema.get("fields") or ():
        name = field.get("field")
        if not isinstance(name, str) or not name:
            raise SchemaUnfit("a field of a schema has no name")
        value_type = type_of_connect(field, numeric_scale=numeric_scale, depth=depth)
        made.append(ValueField(name=name, type=value_type, nullable=bool(field.get("optional")), default=field.get("default")))
    return made


def named_type(name: str, parameters: Mapping[str, Any], *, numeric_scale: int | None) -> ValueType | None:
    """The type of a name of Connect or Debezium; None for one that adds nothing to its plain type."""
    if name == DECIMAL:
        precision = parameters.get("connect.decimal.precision")
        return decimal_type(Meaning.DECIMAL_BYTES, None if precision is None else int(precision), int(parameters.get("scale", 0)))
    if name == VARIABLE_DECIMAL:
        return any_decimal_type(numeric_scale)
    if name == BITS:
        return bits_type(int(parameters.get("length", 0)))
    return _NAMED.get(name)


# ---- Avro


class AvroTypes:
    """Types of one Avro schema, with the records that it names.

    Args:
        numeric_scale: as for `type_of_connect`.
    """

    def __init__(self, *, numeric_scale: int | None) -> None:
        self._numeric_scale = numeric_scale
        self._named: dict[str, Any] = {}

    def learn(self, schema: Any, namespace: str = "") -> None:
        """Know the named types of a schema, wherever they are in it."""
        if isinstance(schema, list):
            for branch in schema:
                self.learn(branch, namespace)
        elif isinstance(schema, Mapping):
            kind = schema.get("type")
            if kind in ("record", "error", "enum", "fixed"):
                full = _full_name(schema["name"], schema.get("namespace", namespace))
                self._named[full] = schema
                namespace = full.rpartition(".")[0]
                for field in schema.get("fields", ()):
                    self.learn(field["type"], namespace)
            elif isinstance(kind, (Mapping, list)):
                self.learn(kind, namespace)
            self.learn(schema.get("items"), namespace)
            self.learn(schema.get("values"), namespace)

    def fields(self, schema: Any) -> list[ValueField]:
        """The fields of a record. Raises SchemaUnfit for another schema."""
        record, namespace = self.resolve(schema, "")
        if not isinstance(record, Mapping) or record.get("type") != "record":
            raise SchemaUnfit("a schema is not that of a record")
        return self._fields(record, namespace, 0)

    def type_of(self, schema: Any) -> ValueType:
        """The type of a schema that need not be a record. Raises SchemaUnfit."""
        return self._type(schema, "", 0)

    def resolve(self, schema: Any, namespace: str) -> tuple[Any, str]:
        """A schema without the null of its union, and without a name in the place of a record; with its namespace."""
        if isinstance(schema, list):
            branches = [branch for branch in schema if branch != "null"]
            return self.resolve(branches[0], namespace) if len(branches) == 1 else (schema, namespace)
        if isinstance(schema, str):
            full = _full_name(schema, namespace)
            found = self._named.get(full, self._named.get(schema))
            return (found, full.rpartition(".")[0]) if found is not None else ({"type": schema}, namespace)
        if isinstance(schema, Mapping) and isinstance(schema.get("type"), (Mapping, list)):
            return self.resolve(schema["type"], namespace)
        if isinstance(schema, Mapping) and schema.get("type") in ("record", "error"):
            return schema, _full_name(schema["name"], schema.get("namespace", namespace)).rpartition(".")[0]
        return schema, namespace

    def _fields(self, record: Mapping[str, Any], namespace: str, depth: int) -> list[ValueField]:
        made = []
        for field in record.get("fields", ()):
            schema = field["type"]
            is_nullable = schema == "null" or (isinstance(schema, list) and "null" in schema)
            resolved, _ = self.resolve(schema, namespace)
            default = field.get("default")
            if isinstance(resolved, Mapping) and default is None:
                # Connect's default of a field that may be null: Avro's own has to be of the first branch.
                default = resolved.get("connect.default")
            if isinstance(default, str) and isinstance(resolved, Mapping) and resolved.get("type") in ("bytes", "fixed"):
                default = default.encode("latin-1")
            made.append(ValueField(name=field["name"], type=self._type(schema, namespace, depth), nullable=is_nullable, default=default))
        return made

    def _type(self, schema: Any, namespace: str, depth: int) -> ValueType:
        if depth > DEPTH_MAX:
            raise SchemaUnfit("a schema is nested too deeply, or contains itself")
        found, namespace = self.resolve(schema, namespace)
        if isinstance(found, list):
            # A union of several types is text of JSON, since a column has one type.
            return JSON_TEXT
        name = found.get("connect.name") or ""
        logical = _logical_type(found)
        named = named_type(name, _avro_parameters(found), numeric_scale=self._numeric_scale)
        if named is not None and (logical is None or name == DECIMAL or name.startswith("io.debezium.")):
            return named
        if logical is not None:
            return logical
        kind = found.get("connect.type") or found["type"]
        nested: Mapping[Any, Callable[[], ValueType]] = {
            "array": lambda: self._array(found, namespace, depth),
            "map": lambda: map_type(TEXT, self._type(found["values"], namespace, depth + 1)),
            "record": lambda: struct_type(self._fields(found, namespace, depth + 1)),
        }
        if kind in nested:
            return nested[kind]()
        if kind not in _AVRO:
            raise SchemaUnfit(f"the type {kind!r} of an Avro schema is not known")
        return _AVRO[kind]

    def _array(self, found: Mapping[str, Any], namespace: str, depth: int) -> ValueType:
        items, inner = self.resolve(found["items"], namespace)
        if isinstance(items, Mapping) and items.get("name") == "MapEntry" and items.get("namespace") == "io.confluent.connect.avro":
            # A map of Connect whose keys are not text.
            fields = {field.name: field.type for field in self._fields(items, inner, depth + 1)}
            return list_type(struct_type([ValueField(name=name, type=kind) for name, kind in fields.items()]))
        return list_type(self._type(found["items"], namespace, depth + 1))


_AVRO: Mapping[str, ValueType] = {
    **_PLAIN,
    "int": integer_type(32),
    "long": integer_type(64),
    "enum": TEXT,
    "fixed": BYTES,
    "null": TEXT,
}
_LOGICAL: Mapping[str, ValueType] = {
    "date": DAYS,
    "time-millis": clock_type("ms"),
    "time-micros": clock_type("us"),
    "timestamp-millis": time_type("ms", has_zone=True),
    "timestamp-micros": time_type("us", has_zone=True),
    "timestamp-nanos": time_type("ns", has_zone=True),
    "local-timestamp-millis": time_type("ms", has_zone=False),
    "local-timestamp-micros": time_type("us", has_zone=False),
    "local-timestamp-nanos": time_type("ns", has_zone=False),
    "uuid": ValueType(meaning=Meaning.UUID, arrow=TEXT.arrow),
}


def _logical_type(schema: Mapping[str, Any]) -> ValueType | None:
    name = schema.get("logicalType")
    if name == "decimal":
        return decimal_type(Meaning.DECIMAL_BYTES, int(schema["precision"]), int(schema.get("scale", 0)))
    return _LOGICAL.get(name) if isinstance(name, str) else None


def _avro_parameters(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = dict(schema.get("connect.parameters") or {})
    if schema.get("logicalType") == "decimal":
        parameters |= {"scale": schema.get("scale", 0), "connect.decimal.precision": schema.get("precision")}
    return parameters


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
