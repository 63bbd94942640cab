"""Table schemas: columns with ids and physical names that never change, and the types that every engine of ours reads alike.

A type is written as Spark and Hive do (`bigint`, `decimal(10,2)`, `struct<...>` as JSON), with an id for every nested field, so that
nested renames can come without rewriting files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec
import pyarrow as pa

from objcat.errors import InvalidSchema

HIDDEN_PREFIX = "_objcat_"
FIELD_ID_KEY = b"PARQUET:field_id"


class StructType(msgspec.Struct, frozen=True, tag="struct"):
    fields: tuple[Column, ...]


class ListType(msgspec.Struct, frozen=True, tag="list"):
    element: Column


class MapType(msgspec.Struct, frozen=True, tag="map"):
    key: Column
    value: Column


ColumnType: TypeAlias = str | StructType | ListType | MapType


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column, or one field inside a nested one.

    id: unique in the table for ever. name: what users say. physical: what files say, fixed when the column is added. type: a primitive's
    name or a nested type. nullable: whether nulls are allowed.
    """

    id: int
    name: str
    physical: str
    type: ColumnType
    nullable: bool = True


class TableSchema(msgspec.Struct, frozen=True, kw_only=True):
    """Columns in their order. last_id: the highest id ever given."""

    columns: tuple[Column, ...]
    last_id: int

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def column(self, name: str) -> Column:
        """The column of that name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def by_id(self, column_id: int) -> Column:
        """The column of that id. Raises KeyError."""
        for column in self.columns:
            if column.id == column_id:
                return column
        raise KeyError(column_id)

    def to_arrow(self) -> pa.Schema:
        """As a user sees it: logical names, canonical types."""
        return pa.schema([_field(column, physical=False) for column in self.columns])

    def to_arrow_physical(self, *, nullable: bool = False) -> pa.Schema:
        """As files hold it: physical names, field ids. nullable: allow nulls everywhere at the top (rows of a delete carry only their
        key)."""
        fields = [_field(column, physical=True) for column in self.columns]
        return pa.schema([field.with_nullable(True) for field in fields] if nullable else fields)


# ---- Arrow -> table ----------------------------------------------------------------------------------------------

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"^decimal\((\d+),(\d+)\)$")

_RULES: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "tinyint"),
    (lambda t: pa.types.is_int16(t) or pa.types.is_uint8(t), "smallint"),
    (lambda t: pa.types.is_int32(t) or pa.types.is_uint16(t), "int"),
    (lambda t: pa.types.is_int64(t) or pa.types.is_uint32(t), "bigint"),
    (lambda t: pa.types.is_float16(t) or pa.types.is_float32(t), "float"),
    (pa.types.is_float64, "double"),
    (lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t), "string"),
    (
        lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t) or pa.types.is_binary_view(t),
        "binary",
    ),
    (lambda t: pa.types.is_date32(t) or pa.types.is_date64(t), "date"),
    (lambda t: pa.types.is_timestamp(t) and t.tz is not None, "timestamp"),
    (lambda t: pa.types.is_timestamp(t) and t.tz is None, "timestamp_ntz"),
    (pa.types.is_null, "string"),
]


def schema_from_arrow(schema: pa.Schema) -> TableSchema:
    """A table schema from an Arrow one; ids are given in order, depth first.

    Types narrow to those that Spark, Parquet and Arrow share: views, large and dictionary types lose their encoding, unsigned integers
    widen, timestamps are microseconds. Raises InvalidSchema for a type with no such equal, for empty or repeated names, and for names
    beginning with `_objcat_`.
    """
    if len(schema) == 0:
        raise InvalidSchema("a table needs at least one column: give a schema with the key columns in it")
    ids = _Ids()
    columns = tuple(_column(field, ids, path=field.name) for field in schema)
    check_names([column.name for column in columns], where="the schema")
    return TableSchema(columns=columns, last_id=ids.last)


def check_names(names: list[str], *, where: str) -> None:
    """Raises InvalidSchema when a name is empty, hidden, or equal to another but for case (Spark would not tell them apart)."""
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise InvalidSchema(f"{where} has a column without a name: name every column")
        if name.lower().startswith(HIDDEN_PREFIX):
            raise InvalidSchema(f"{where} has the column {name!r}, but names beginning with {HIDDEN_PREFIX!r} are reserved: rename it")
        if name.lower() in seen:
            first = seen[name.lower()]
            raise InvalidSchema(f"{where} has both {first!r} and {name!r}, but names must differ in more than case: rename one")
        seen[name.lower()] = name


class _Ids:
    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


def _column(field: pa.Field, ids: _Ids, *, path: str) -> Column:
    own = ids.next()
    return Column(id=own, name=field.name, physical=field.name, type=_type(field.type, ids, path=path), nullable=field.nullable)


def _type(data_type: pa.DataType, ids: _Ids, *, path: str) -> ColumnType:
    if pa.types.is_dictionary(data_type):
        return _type(data_type.value_type, ids, path=path)
    if pa.types.is_decimal(data_type) and data_type.precision <= 38 and 0 <= data_type.scale <= data_type.precision:
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_struct(data_type):
        if data_type.num_fields == 0:
            raise InvalidSchema(
                f"the column {path!r} is a struct without fields, which Parquet cannot hold: give it a field or leave it out"
            )
        fields = tuple(_column(f, ids, path=f"{path}.{f.name}") for f in data_type)
        check_names([f.name for f in fields], where=f"the column {path!r}")
        return StructType(fields=fields)
    if pa.types.is_map(data_type):
        key = _column(data_type.key_field.with_name("key"), ids, path=f"{path}.key")
        return MapType(key=key, value=_column(data_type.item_field.with_name("value"), ids, path=f"{path}.value"))
    if _is_list(data_type):
        return ListType(element=_column(data_type.value_field.with_name("element"), ids, path=f"{path}.element"))
    for matches, name in _RULES:
        if matches(data_type):
            return name
    raise InvalidSchema(
        f"the column {path!r} has the type {data_type}, which Spark cannot hold: "
        "cast it (uint64 to decimal(20,0), time and duration to bigint)"
    )


def _is_list(data_type: pa.DataType) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view, pa.types.is_large_list_view)
    return any(kind(data_type) for kind in kinds)


# ---- table -> Arrow ----------------------------------------------------------------------------------------------


def arrow_type(column_type: ColumnType, *, physical: bool = False) -> pa.DataType:
    """The canonical Arrow type. physical: nested fields under their physical names and with their ids."""
    match column_type:
        case StructType(fields):
            return pa.struct([_field(f, physical=physical) for f in fields])
        case ListType(element):
            return pa.list_(_field(element, physical=physical))
        case MapType(key, value):
            return pa.map_(_field(key, physical=physical), _field(value, physical=physical))
    decimal = _DECIMAL.match(column_type)
    if decimal:
        return pa.decimal128(int(decimal.group(1)), int(decimal.group(2)))
    try:
        return _PRIMITIVES[column_type]
    except KeyError:
        raise InvalidSchema(f"the column type {column_type!r} is not known to this objcat: upgrade objcat to read this table") from None


def _field(column: Column, *, physical: bool) -> pa.Field:
    data_type = arrow_type(column.type, physical=physical)
    if not physical:
        return pa.field(column.name, data_type, column.nullable)
    return pa.field(column.physical, data_type, column.nullable, metadata={FIELD_ID_KEY: str(column.id).encode()})


def walk(columns: tuple[Column, ...]) -> Iterator[Column]:
    """Every column and nested field, depth first."""
    for column in columns:
        yield column
        match column.type:
            case StructType(fields):
                yield from walk(fields)
            case ListType(element):
                yield from walk((element,))
            case MapType(key, value):
                yield from walk((key, value))
