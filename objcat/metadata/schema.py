"""Table schemas: columns with ids and physical names that never change, and the types that every engine of ours reads alike.

A type is written as Spark and Hive do (`bigint`, `decimal(10,2)`, `struct<...>` as JSON), with an id for every nested field, so that
nested fields are renamed, added and dropped without rewriting files, as columns are. `schema_evolution` says how a schema changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Annotated, TypeAlias

import msgspec
import pyarrow as pa

from objcat.common.validation import folded
from objcat.errors import InvalidSchema

HIDDEN_PREFIX = "_objcat_"
"""Of the names of columns that files have besides those of the table."""
HIDDEN_NAMES = frozenset({"_file", "_commit_slot", "_commit_time", "_change_type"})
"""What reads say of a row besides its columns, where they are asked to: see `Table.scan` and `Table.changes`."""
FIELD_ID_KEY = b"PARQUET:field_id"
NESTING_MAX = 98
"""Of groups of Parquet in one another, of which a struct is one, a list and a map are two. Arrow writes more, and does not read them."""


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

    id: unique in the table for ever. name: what users say. physical: what files say, fixed when the column is added and never used again
    among its neighbours. type: a primitive's name or a nested type. nullable: whether nulls are allowed.
    """

    id: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    name: str
    physical: str
    type: ColumnType
    nullable: bool = True


class TableSchema(msgspec.Struct, frozen=True, kw_only=True):
    """Columns in their order. last_id: the highest id ever given."""

    columns: tuple[Column, ...]
    last_id: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]

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

    def to_arrow_physical(self, *, nullable: bool = False, only: Collection[str] | None = None) -> pa.Schema:
        """As files hold it, see `to_arrow_physical`. only: just the columns of these physical names."""
        return to_arrow_physical([column for column in self.columns if only is None or column.physical in only], nullable=nullable)


def to_arrow_physical(columns: Iterable[Column], *, nullable: bool = False) -> pa.Schema:
    """Columns as files hold them: physical names, field ids. nullable: allow nulls everywhere at the top (rows of a delete carry only their
    key)."""
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
    """A table schema from an Arrow one; ids are given in order, depth first.

    Types narrow to those that Spark, Parquet and Arrow share: views, large and dictionary types lose their encoding, unsigned integers
    widen, timestamps are microseconds. Raises InvalidSchema for a type with no such equal, for empty or repeated names, and for names
    beginning with `_objcat_`.
    """
    if len(schema) == 0:
        raise InvalidSchema("a table needs at least one column: give a schema with the key columns in it")
    check_nesting(schema)
    found = columns_from_arrow(schema)
    check_names(found.names, where="the schema")
    return found


def columns_from_arrow(schema: pa.Schema) -> TableSchema:
    """As `schema_from_arrow`, for filters over a batch, whose columns may have names that no table's have: changes have `_change_type`."""
    ids = Ids()
    columns = tuple(column_from_arrow(field, ids, path=field.name) for field in schema)
    return TableSchema(columns=columns, last_id=ids.last)


def check_nesting(fields: Iterable[pa.Field]) -> None:
    """Raises InvalidSchema for a column that is nested deeper than files are read."""
    for field in fields:
        inside: list[tuple[pa.DataType, int]] = [(field.type, 0)]
        while inside:
            data_type, depth = inside.pop()
            if not pa.types.is_nested(data_type):
                continue
            # The entries of a map are a struct in it.
            depth += 2 if is_list(data_type) else 1
            if depth > NESTING_MAX:
                raise InvalidSchema(
                    f"the column {field.name!r} is nested deeper than Parquet files are read ({NESTING_MAX} levels, of which a struct is "
                    "one, a list and a map are two): make it flatter, or text"
                )
            inside += [(data_type.field(number).type, depth) for number in range(data_type.num_fields)]


def check_names(names: list[str], *, where: str, nested: bool = False, known: Iterable[str] = ()) -> None:
    """Raises InvalidSchema when a name is empty, hidden, or equal to another but for case or Unicode normalisation: Spark would not tell
    the ones apart, and people not the others.

    nested: fields of a struct, which may have the names of columns that reads add. known: names of neighbours that are there already, and
    are not looked at: a table may be older than this rule.
    """
    seen = {folded(name): name for name in known}
    for name in names:
        if not name:
            raise InvalidSchema(f"{where} has a column without a name: name every column")
        if name.lower().startswith(HIDDEN_PREFIX):
            raise InvalidSchema(f"{where} has the column {name!r}, but names beginning with {HIDDEN_PREFIX!r} are reserved: rename it")
        if name.lower() in HIDDEN_NAMES and not nested:
            raise InvalidSchema(f"{where} has the column {name!r}, but every table has one of that name that nobody writes: rename it")
        if folded(name) in seen:
            first = seen[folded(name)]
            raise InvalidSchema(f"{where} has both {first!r} and {name!r}, but names must {DIFFER}: rename one")
        seen[folded(name)] = name


DIFFER = "differ in more than case and Unicode normalisation"


class Ids:
    """Gives ids to columns. last: the highest one given so far."""

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def next(self) -> int:
        self.last += 1
        return self.last


def column_from_arrow(field: pa.Field, ids: Ids, *, path: str, joins: bool = False) -> Column:
    """A column of an Arrow field; nested fields get ids after its own. path: how the user says it. joins: whether files of its table, or of
    the column that it is a field of, may be older than the column. Raises InvalidSchema."""
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
"""A physical name that ends so ends in the id of its column. So no two columns ever have one physical name, whatever their names are."""
_ROW_INDEX = "_tmp_metadata_row_index"
"""Spark's Parquet reader fills a column of this name with the numbers of rows, whatever the file holds."""


def type_from_arrow(data_type: pa.DataType, ids: Ids, *, path: str) -> ColumnType:
    """The type that stands for an Arrow type. Raises InvalidSchema where there is none."""
    if pa.types.is_dictionary(data_type):
        return type_from_arrow(data_type.value_type, ids, path=path)
    if pa.types.is_decimal(data_type) and data_type.precision <= 38 and 0 <= data_type.scale <= data_type.precision:
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_struct(data_type):
        if data_type.num_fields == 0:
            raise InvalidSchema(
                f"the column {path!r} is a struct without fields, which Parquet cannot hold: give it a field or leave it out"
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
        f"the column {path!r} has the type {data_type}, which Spark cannot hold: "
        "cast it (uint64 to decimal(20,0), time and duration to bigint)"
    )


def is_list(data_type: pa.DataType) -> bool:
    """Whether a type is one of lists, in any of Arrow's forms."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view, pa.types.is_large_list_view)
    return any(kind(data_type) for kind in kinds)


def nullable_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as those of a table that is made from rows: these may hold no null, and later ones may."""
    return pa.schema([all_nullable(field) for field in schema])


def all_nullable(field: pa.Field) -> pa.Field:
    """The same with nulls allowed in it and in all that it holds, but the keys of maps."""
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
    """The canonical Arrow type. physical: nested fields under their physical names and with their ids."""
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
        raise InvalidSchema(f"the column type {column_type!r} is not known to this objcat: upgrade objcat to read this table") from None


def decimal_digits(column_type: ColumnType) -> tuple[int, int] | None:
    """Precision and scale of a decimal type; None for any other."""
    found = _DECIMAL.match(column_type) if isinstance(column_type, str) else None
    return None if found is None else (int(found[1]), int(found[2]))


def type_text(column_type: ColumnType) -> str:
    """A type in words that a user knows."""
    return column_type if isinstance(column_type, str) else str(arrow_type(column_type))


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
