"""Iceberg's schemas and partition specs as objcat has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from objcat.errors import InvalidSchema
from objcat.metadata.column_defaults import decode_default, encode_default, with_default
from objcat.metadata.partitioning import HOUR_US, TIMES
from objcat.metadata.schema import Column, ColumnType, ListType, MapType, StructType, TableSchema

_PLAIN: Mapping[str, str] = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
}


def schema_of(schema: Any) -> TableSchema:
    """The schema of an Iceberg table, with its field ids. Raises InvalidSchema for a type that objcat lacks."""
    columns = tuple(_with_write_default(_column(field, field.name), field) for field in schema.fields)
    return TableSchema(columns=columns, last_id=max(1, int(schema.highest_field_id)))


def _column(field: Any, path: str) -> Column:
    kind = _type(field.field_type, path)
    return Column(id=field.field_id, name=field.name, physical=field.name, type=kind, nullable=not field.required)


def _with_write_default(column: Column, field: Any) -> Column:
    """A column with what later writes store that leave it out. Its value in the files that lack it is a part of how they are named."""
    if field.write_default is None or not isinstance(column.type, str):
        return column
    return with_default(column, _default(field.write_default, column), path=column.name, initial=False)


def _default(value: Any, column: Column) -> pa.Scalar:
    """A default of a field, which pyiceberg gives as a value or as its JSON. Raises InvalidSchema for another."""
    try:
        return decode_default(value, column.type)
    except ValueError:
        return decode_default(encode_default(value, column.type, path=column.name), column.type)


def _type(kind: Any, path: str) -> ColumnType:
    if kind.is_struct:
        return StructType(fields=tuple(_column(field, f"{path}.{field.name}") for field in kind.fields))
    name = type(kind).__name__
    if name == "ListType":
        element = _type(kind.element_type, f"{path}.element")
        return ListType(element=_inner(kind.element_id, "element", element, nullable=not kind.element_required))
    if name == "MapType":
        key, value = _type(kind.key_type, f"{path}.key"), _type(kind.value_type, f"{path}.value")
        return MapType(
            key=_inner(kind.key_id, "key", key, nullable=False),
            value=_inner(kind.value_id, "value", value, nullable=not kind.value_required),
        )
    if name == "DecimalType":
        return f"decimal({kind.precision},{kind.scale})"
    if name == "FixedType":
        return "binary"
    said = str(kind)
    if said not in _PLAIN:
        raise InvalidSchema(
            f"The column {path!r} has the Iceberg type {said}, which objcat lacks. Nothing was adopted. Drop the column in the foreign "
            "table, or copy the rows with another type of it."
        )
    return _PLAIN[said]


def _inner(field_id: int, name: str, kind: ColumnType, *, nullable: bool) -> Column:
    return Column(id=field_id, name=name, physical=name, type=kind, nullable=nullable)


def defaults_of(schema: Any, own: TableSchema) -> dict[int, pa.Scalar]:
    """By column id, the value of rows that are older than the column. Raises InvalidSchema for a field of a struct that has one."""
    for field_id in schema.field_ids:
        field = schema.find_field(field_id)
        if field.initial_default is not None and all(field_id != column.id for column in own.columns):
            raise InvalidSchema(
                f"The field {schema.find_column_name(field_id)!r} has an initial default, which objcat applies to columns only. Nothing "
                "was adopted. Rewrite the data files of the table in its own engine, and remove the default."
            )
    columns = {column.id: column for column in own.columns}
    found = {field.field_id: field.initial_default for field in schema.fields if field.initial_default is not None}
    return {field_id: _default(value, columns[field_id]) for field_id, value in found.items()}


@dataclass(frozen=True, slots=True)
class SharedField:
    """A partition field that all live files have.

    Args:
        source: id of its column.
        transform: Iceberg's text for it.
        asked: as `Lake.create_table` takes it.
        unit: from a value of Iceberg to a value of the column in that partition.
    """

    source: int
    transform: str
    asked: str
    unit: Callable[[Any], Any]


def shared_fields(specs: Sequence[Any], schema: TableSchema) -> tuple[list[SharedField], list[str]]:
    """The partition fields that all specs of live files have and objcat has too, and the texts of the others of the first spec."""
    found: list[SharedField] = []
    left_out = []
    known = {column.id: column for column in schema.columns}
    for field in specs[0].fields:
        transform = str(field.transform)
        everywhere = all(
            any((other.source_id, str(other.transform)) == (field.source_id, transform) for other in spec.fields) for spec in specs
        )
        column = known.get(field.source_id)
        one = None if column is None or not everywhere else _shared(column, transform)
        # A second field of one column would need a value that is in the partitions of both.
        if one is None or any(other.source == one.source for other in found):
            left_out.append(f"{field.name}: {transform}")
        else:
            found.append(one)
    return found, left_out


def _shared(column: Column, transform: str) -> SharedField | None:
    kind = str(column.type)
    if not isinstance(column.type, str):
        return None
    if transform == "identity":
        return SharedField(column.id, transform, f"identity({_quoted(column.name)})", _same)
    if transform.startswith("truncate["):
        width = transform[len("truncate[") : -1]
        fits = kind in ("int", "bigint", "string")
        return SharedField(column.id, transform, f"truncate({_quoted(column.name)}, {width})", _same) if fits else None
    if transform in ("year", "month", "day") and kind in ("date", *TIMES):
        return SharedField(column.id, transform, f"{transform}({_quoted(column.name)})", _calendar(transform, kind))
    if transform == "hour" and kind in TIMES:
        return SharedField(column.id, transform, f"hour({_quoted(column.name)})", lambda hours: hours * HOUR_US)
    return None


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _same(value: Any) -> Any:
    return value


def _calendar(transform: str, kind: str) -> Callable[[int], int]:
    unit = {"year": "Y", "month": "M", "day": "D"}[transform]
    target = "D" if kind == "date" else "us"

    def first(units: int) -> int:
        return int(np.datetime64(units, unit).astype(f"datetime64[{target}]").astype(np.int64))  # type: ignore[call-overload]

    return first
