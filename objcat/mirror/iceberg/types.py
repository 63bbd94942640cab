"""Iceberg's schema of a table: types, changes of types, identifier fields and the name mapping."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from objcat.datafile.hidden_columns import HIDDEN_IDS
from objcat.metadata.column_defaults import is_said
from objcat.metadata.schema import Column, ColumnType, ListType, MapType, StructType, decimal_digits
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.type_widening import child_fields
from objcat.mirror.model import MirrorHeld

Record: TypeAlias = dict[str, Any]
"""A JSON object or an Avro record of Iceberg's metadata."""

_PRIMITIVES: Mapping[str, str] = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
DEFAULTS_SINCE = 3
"""The format version that has defaults of columns."""
_DECIMAL = re.compile(r"^decimal\((\d+), ?(\d+)\)$")


def primitive_of(column_type: str) -> str:
    """Iceberg's name of a primitive type."""
    digits = decimal_digits(column_type)
    return _PRIMITIVES[column_type] if digits is None else f"decimal({digits[0]}, {digits[1]})"


def scale_of(primitive: str) -> int | None:
    """The scale of a decimal type of Iceberg. None for any other."""
    found = _DECIMAL.match(primitive)
    return None if found is None else int(found[2])


def schema_of(spec: TableSpec, previous: Record | None, *, slot: int, name: str) -> Record:
    """The schema of a table, without its `schema-id`.

    A column keeps its widest type, and allows nulls if it ever did, as older files stay.

    Args:
        spec: The settings of the table at the slot.
        previous: The schema of the mirror before. None: the mirror begins.
        slot: For errors.
        name: Of the table, for errors.

    Raises:
        MirrorHeld: A column has a type that Iceberg does not allow after the previous one.
    """
    builder = _Builder({} if previous is None else _fields_of(previous), slot, name)
    fields = [builder.field(column, column.name) for column in spec.table_schema.columns]
    found: Record = {"type": "struct", "fields": fields}
    by_id = {field["id"]: field for field in fields}
    keys = [by_id[column_id] for column_id in spec.key]
    if keys and all(key["required"] and key["type"] not in ("float", "double") for key in keys):
        found["identifier-field-ids"] = [key["id"] for key in keys]
    return found


def with_defaults(schema: Record, spec: TableSpec) -> Record:
    """A schema with the defaults of columns, which format version 3 has: for rows of files that lack the column, and for writes."""
    columns = {column.id: column for column in spec.table_schema.columns if column.has_default}
    fields = []
    for field in schema["fields"]:
        column = columns.get(field["id"])
        said = {} if column is None else {"initial-default": column.initial_default, "write-default": column.write_default}
        fields.append({**field, **{name: value for name, value in said.items() if is_said(value)}})
    return {**schema, "fields": fields}


def differing(schema: Record, earlier: Record) -> frozenset[int]:
    """Ids of columns and nested fields that files of an earlier schema may have in a type that Iceberg does not read as this one."""
    before, now = _fields_of(earlier), _fields_of(schema)
    pairs = {column_id: (before[column_id]["type"], now[column_id]["type"]) for column_id in before.keys() & now.keys()}
    return frozenset(
        column_id
        for column_id, (old, new) in pairs.items()
        if isinstance(old, str) and isinstance(new, str) and old != new and not is_promotion(old, new)
    )


def widened(schema: Record) -> dict[int, str]:
    """The types of columns and nested fields, by id, that may have been integers before: Iceberg reads no file with integers so."""
    kinds = {column_id: field["type"] for column_id, field in _fields_of(schema).items()}
    return {
        column_id: kind for column_id, kind in kinds.items() if isinstance(kind, str) and (kind == "double" or scale_of(kind) is not None)
    }


def primitives_of(schema: Record) -> dict[int, str]:
    """The types of the columns of a schema that are not nested, by id."""
    return {field["id"]: field["type"] for field in schema["fields"] if isinstance(field["type"], str)}


def names_of(spec: TableSpec, previous: str | None) -> str:
    """The name mapping: the names in files of every column that ever was, and of the hidden ones. As JSON.

    Readers need it for files without field ids.

    Args:
        spec: The settings of the table now.
        previous: The mapping of the mirror before.
    """
    known = [] if previous is None else json.loads(previous)
    hidden = [{"field-id": column_id, "names": [name]} for name, column_id in HIDDEN_IDS.items()]
    return json.dumps(_united(known, [*map(_mapped, spec.table_schema.columns), *hidden]), separators=(",", ":"))


def _mapped(column: Column) -> Record:
    children = child_fields(column)
    found: Record = {"field-id": column.id, "names": [column.physical]}
    return {**found, "fields": [_mapped(child) for child in children]} if children else found


def _united(known: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    found: dict[int, Record] = {field["field-id"]: field for field in known}
    for field in new:
        old = found.get(field["field-id"])
        fields = _united(old.get("fields", ()) if old else (), field.get("fields", ()))
        found[field["field-id"]] = {**field, "fields": fields} if fields else field
    return sorted(found.values(), key=lambda field: int(field["field-id"]))


class _Builder:
    """Fields of a schema, from columns and from what the mirror had under the same ids."""

    def __init__(self, before: Mapping[int, Record], slot: int, name: str) -> None:
        self._before = before
        self._slot = slot
        self._name = name

    def field(self, column: Column, path: str) -> Record:
        return {"id": column.id, "name": column.name, "required": self._required(column), "type": self._type(column, path)}

    def _required(self, column: Column) -> bool:
        before = self._before.get(column.id)
        return not column.nullable and (before is None or bool(before["required"]))

    def _type(self, column: Column, path: str) -> Any:
        kind: ColumnType = column.type
        match kind:
            case StructType(fields):
                return {"type": "struct", "fields": [self.field(child, f"{path}.{child.name}") for child in fields]}
            case ListType(element):
                inside = self.field(element, f"{path}.element")
                return {"type": "list", "element-id": element.id, "element-required": inside["required"], "element": inside["type"]}
            case MapType(key, value):
                keys, values = self.field(key, f"{path}.key"), self.field(value, f"{path}.value")
                ids = {"key-id": key.id, "value-id": value.id, "value-required": values["required"]}
                return {"type": "map", "key": keys["type"], "value": values["type"], **ids}
        before = self._before.get(column.id)
        new = primitive_of(kind)
        return new if before is None else self._joined(path, before["type"], new)

    def _joined(self, path: str, old: str, new: str) -> str:
        """The type that holds the values of both."""
        if old == new or is_promotion(new, old):
            return old
        if is_promotion(old, new):
            return new
        if old not in ("int", "long"):
            # Only a RESTORE takes a type back, and then all live files are as old as it.
            return new
        raise MirrorHeld(
            f"The column {path!r} of table {self._name!r} changes from {old} to {new} at slot {self._slot}. Iceberg reads no old file so. "
            "The Iceberg mirror keeps the slot before it. The table is not affected. Rewrite all files with the old type by "
            "table.maintenance.cluster([...]), with a column that is not the key, then let the mirror begin again."
        )


def is_promotion(old: str, new: str) -> bool:
    """Whether Iceberg reads files with the old type as the new one."""
    if (old, new) in (("int", "long"), ("float", "double")):
        return True
    before, after = _DECIMAL.match(old), _DECIMAL.match(new)
    return before is not None and after is not None and before[2] == after[2] and int(after[1]) > int(before[1])


def _fields_of(schema: Record) -> dict[int, Record]:
    """Every field of a schema by id, nested ones too, as `{"required", "type"}`."""
    found: dict[int, Record] = {}

    def visit(column_id: int, required: bool, kind: Any) -> None:
        found[column_id] = {"required": required, "type": kind}
        if isinstance(kind, str):
            return
        if kind["type"] == "struct":
            for field in kind["fields"]:
                visit(field["id"], field["required"], field["type"])
        elif kind["type"] == "list":
            visit(kind["element-id"], kind["element-required"], kind["element"])
        else:
            visit(kind["key-id"], True, kind["key"])
            visit(kind["value-id"], kind["value-required"], kind["value"])

    for field in schema["fields"]:
        visit(field["id"], field["required"], field["type"])
    return found
