"""Table schemas: columns with permanent ids and physical names, and types that all engines read alike.

A type is written as in Spark and Hive (`bigint`, `decimal(10,2)`, `struct<...>` as JSON). Every nested field has an id, so nested fields
are renamed, added and dropped without rewriting files, as columns are. `schema_evolution` defines the changes of a schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Annotated, TypeAlias

import msgspec
import pyarrow as pa

from objcat.common.validation import case_folded
from objcat.errors import InvalidSchema

HIDDEN_PREFIX = "_objcat_"
"""The prefix of columns that files have besides those of the table."""
HIDDEN_NAMES = frozenset({"_file", "_commit_slot", "_commit_time", "_change_type"})
"""Columns that reads add on request: see `Table.scan` and `Table.changes`."""
FIELD_ID_KEY = b"PARQUET:field_id"
DEFAULT_KEY = b"objcat.default"
"""Key of a column's default for older rows, as JSON, in the metadata of its Arrow field. No file has it."""
NESTING_MAX = 98
"""The deepest nesting in levels of Parquet: a struct is one, a list and a map are two. Arrow writes more, but cannot read them."""


class StructType(msgspec.Struct, frozen=True, tag="struct"):
    """A struct with named fields."""

    fields: tuple[Column, ...]


class ListType(msgspec.Struct, frozen=True, tag="list"):
    """A list of elements."""

    element: Column


class MapType(msgspec.Struct, frozen=True, tag="map"):
    """A map from keys to values."""

    key: Column
    value: Column


ColumnType: TypeAlias = str | StructType | ListType | MapType
"""A primitive's name, or a nested type."""
DefaultValue: TypeAlias = bool | int | float | str | msgspec.UnsetType | None
"""A default as it is stored, see `objcat.metadata.column_defaults`. Null and unset: there is none."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column, or one field inside a nested one.

    Args:
        id: Unique in the table for ever.
        name: What users call it.
        physical: Its name in files. It is fixed when the column is added, and never used again among its neighbours.
        type: A primitive's name or a nested type.
        nullable: Whether nulls are allowed.
        initial_default: The value of rows in files that lack the column. It never changes.
        write_default: What a write stores that leaves the column out.
    """

    id: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    name: str
    physical: str
    type: ColumnType
    nullable: bool = True
    initial_default: DefaultValue = msgspec.UNSET
    write_default: DefaultValue = msgspec.UNSET

    @property
    def has_default(self) -> bool:
        """Whether it has a default of either kind."""
        return not {self.initial_default, self.write_default} <= {None, msgspec.UNSET}


class TableSchema(msgspec.Struct, frozen=True, kw_only=True):
    """Columns in their order. last_id: the highest id ever assigned."""

    columns: tuple[Column, ...]
    last_id: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    def column(self, name: str) -> Column:
        """The column of a name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def by_id(self, column_id: int) -> Column:
        """The column of an id. Raises KeyError."""
        for column in self.columns:
            if column.id == column_id:
                return column
        raise KeyError(column_id)

    def to_arrow(self) -> pa.Schema:
        """The Arrow schema for users: logical names, canonical types."""
        return pa.schema([_field(column, physical=False) for column in self.columns])

    def to_arrow_physical(self, *, nullable: bool = False, only: Collection[str] | None = None) -> pa.Schema:
        """The Arrow schema of files, see `to_arrow_physical`. only: the columns of these physical names."""
        return to_arrow_physical([column for column in self.columns if only is None or column.physical in only], nullable=nullable)


def to_arrow_physical(columns: Iterable[Column], *, nullable: bool = False) -> pa.Schema:
    """Columns as files hold them: physical names, field ids.

    nullable: allow nulls in all top-level columns, since rows of a delete carry only their key.
    """
    fields = [_field(column, physical=True) for column in columns]
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
    """A table schema from an Arrow one. Ids are assigned in order, depth first.

    Types narrow to those that Spark, Parquet and Arrow share: views, large and dictionary types lose their encoding, unsigned integers
    widen, timestamps are microseconds. Raises InvalidSchema for a type without an equal, for empty or repeated names, and for names that
    begin with `_objcat_`.
    """
    if len(schema) == 0:
        raise InvalidSchema("A table needs at least one column. Give a schema with the key columns in it.")
    check_nesting(schema)
    found = columns_from_arrow(schema)
    check_names(found.names, where="the schema")
    return found


def columns_from_arrow(schema: pa.Schema) -> TableSchema:
    """As `schema_from_arrow`, for filters over a batch. Its columns may have reserved names such as `_change_type`."""
    ids = Ids()
    columns = tuple(column_from_arrow(field, ids, path=field.name) for field in schema)
    return TableSchema(columns=columns, last_id=ids.last)


def check_nesting(fields: Iterable[pa.Field]) -> None:
    """Check that no column is nested deeper than files can be read. Raises InvalidSchema."""
    for field in fields:
        inside: list[tuple[pa.DataType, int]] = [(field.type, 0)]
        while inside:
            data_type, depth = inside.pop()
            if not pa.types.is_nested(data_type):
                continue
            # The entries of a map are a struct inside it.
            depth += 2 if is_list(data_type) else 1
            if depth > NESTING_MAX:
                raise InvalidSchema(
                    f"The column {field.name!r} is nested deeper than Parquet files can be read ({NESTING_MAX} levels; a struct is one, a "
                    "list and a map are two). Make it flatter, or text."
                )
            inside += [(data_type.field(number).type, depth) for number in range(data_type.num_fields)]


def check_names(names: list[str], *, where: str, nested: bool = False, known: Iterable[str] = ()) -> None:
    """Check that no name is empty, reserved, or equal to another except for case or Unicode normalisation.

    Spark would confuse names that differ in case, and people those that differ in normalisation. Raises InvalidSchema.

    Args:
        nested: Whether these are fields of a struct, which may have the names of columns that reads add.
        known: Names of existing neighbours. They are not checked themselves: a table may be older than this rule.
    """
    seen = {case_folded(name): name for name in known}
    for name in names:
        if not name:
            raise InvalidSchema(f"{_capital(where)} has a column without a name. Name every column.")
        if name.lower().startswith(HIDDEN_PREFIX):
            raise InvalidSchema(
                f"{_capital(where)} has the column {name!r}, but names beginning with {HIDDEN_PREFIX!r} are reserved. Rename it."
            )
        if name.lower() in HIDDEN_NAMES and not nested:
            raise InvalidSchema(
                f"{_capital(where)} has the column {name!r}, but reads add a column of that name to every table. Rename it."
            )
        if case_folded(name) in seen:
            first = seen[case_folded(name)]
            raise InvalidSchema(f"{_capital(where)} has both {first!r} and {name!r}, but names must {DIFFER}. Rename one.")
        seen[case_folded(name)] = name


def _capital(where: str) -> str:
    return where[:1].upper() + where[1:]


DIFFER = "differ in more than case and Unicode normalisation"
"""What names of columns must do, for errors."""


class Ids:
    """Assigns ids to columns. last: the highest one so far."""

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def next(self) -> int:
        """The next id."""
        self.last += 1
        return self.last


def column_from_arrow(field: pa.Field, ids: Ids, *, path: str, joins: bool = False) -> Column:
    """A column from an Arrow field. Nested fields get ids after its own. Raises InvalidSchema.

    Args:
        path: How the user calls it.
        joins: Whether files of its table, or of the column around it, may be older than the column.
    """
    own = ids.next()
    numbered = joins or _NUMBERED.search(field.name) is not None or field.name == _ROW_INDEX
    return Column(
        id=own,
        name=field.name,
        physical=f"{field.name}_{own}" if numbered else field.name,
        type=type_from_arrow(field.type, ids, path=path),
        nullable=field.nullable,
    )


_NUMBERED = re.compile(r"_[0-9]+\Z")
"""A physical name with this ending ends in the id of its column. So no two columns ever share a physical name."""
_ROW_INDEX = "_tmp_metadata_row_index"
"""Spark's Parquet reader fills a column of this name with row numbers, whatever the file holds."""


def type_from_arrow(data_type: pa.DataType, ids: Ids, *, path: str) -> ColumnType:
    """The type for an Arrow type. Raises InvalidSchema if there is none."""
    if pa.types.is_dictionary(data_type):
        return type_from_arrow(data_type.value_type, ids, path=path)
    if pa.types.is_decimal(data_type) and data_type.precision <= 38 and 0 <= data_type.scale <= data_type.precision:
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_struct(data_type):
        if data_type.num_fields == 0:
            raise InvalidSchema(
                f"The column {path!r} is a struct without fields, which Parquet cannot hold. Give it a field, or leave it out."
            )
        fields = tuple(column_from_arrow(f, ids, path=f"{path}.{f.name}") for f in data_type)
        check_names([f.name for f in fields], where=f"the column {path!r}", nested=True)
        return StructType(fields=fields)
    if pa.types.is_map(data_type):
        key = column_from_arrow(data_type.key_field.with_name("key"), ids, path=f"{path}.key")
        return MapType(key=key, value=column_from_arrow(data_type.item_field.with_name("value"), ids, path=f"{path}.value"))
    if is_list(data_type):
        return ListType(element=column_from_arrow(data_type.value_field.with_name("element"), ids, path=f"{path}.element"))
    for matches, name in _RULES:
        if matches(data_type):
            return name
    raise InvalidSchema(
        f"The column {path!r} has the type {data_type}, which Spark cannot hold. "
        "Cast it (uint64 to decimal(20,0), time and duration to bigint)."
    )


def is_list(data_type: pa.DataType) -> bool:
    """Whether a type is a list, in any of Arrow's forms."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view, pa.types.is_large_list_view)
    return any(kind(data_type) for kind in kinds)


def nullable_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a table made from rows: these rows may hold no null, but later ones may."""
    return pa.schema([all_nullable(field) for field in schema])


def all_nullable(field: pa.Field) -> pa.Field:
    """The same field with nulls allowed in it and in all that it holds, except in keys of maps."""
    return field.with_type(_nullable_type(field.type)).with_nullable(True)


def _nullable_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(data_type):
        return pa.struct([all_nullable(field) for field in data_type])
    if pa.types.is_map(data_type):
        return pa.map_(data_type.key_field, all_nullable(data_type.item_field))
    if pa.types.is_nested(data_type) and hasattr(data_type, "value_field"):
        return pa.list_(all_nullable(data_type.value_field))
    return data_type


# ---- table -> Arrow ----------------------------------------------------------------------------------------------


def arrow_type(column_type: ColumnType, *, physical: bool = False) -> pa.DataType:
    """The canonical Arrow type. physical: nested fields have physical names and ids."""
    match column_type:
        case StructType(fields):
            return pa.struct([_field(f, physical=physical) for f in fields])
        case ListType(element):
            return pa.list_(_field(element, physical=physical))
        case MapType(key, value):
            return pa.map_(_field(key, physical=physical), _field(value, physical=physical))
    digits = decimal_digits(column_type)
    if digits is not None:
        return pa.decimal128(*digits)
    try:
        return _PRIMITIVES[column_type]
    except KeyError:
        raise InvalidSchema(f"This objcat does not know the column type {column_type!r}. Upgrade objcat to read this table.") from None


def decimal_digits(column_type: ColumnType) -> tuple[int, int] | None:
    """Precision and scale of a decimal type. None for any other."""
    found = _DECIMAL.match(column_type) if isinstance(column_type, str) else None
    return None if found is None else (int(found[1]), int(found[2]))


def type_text(column_type: ColumnType) -> str:
    """A type in words that users know."""
    return column_type if isinstance(column_type, str) else str(arrow_type(column_type))


def _field(column: Column, *, physical: bool) -> pa.Field:
    data_type = arrow_type(column.type, physical=physical)
    if not physical:
        return pa.field(column.name, data_type, column.nullable)
    metadata = {FIELD_ID_KEY: str(column.id).encode()}
    if column.initial_default is not None and column.initial_default is not msgspec.UNSET:
        metadata[DEFAULT_KEY] = msgspec.json.encode(column.initial_default)
    return pa.field(column.physical, data_type, column.nullable, metadata=metadata)


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
