"""Schema evolution: a schema and a change give the next schema, or an error that says why not.

Nothing is read or written here, and no change touches a file. A column keeps its id and physical name for ever; neither is assigned to
another column. Files of every age are read by physical names: a missing column has its default or is null, an extra one is left out, and a
narrower type becomes the wider one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from fileio.options import nearest
from objcat.common.validation import case_folded, shown, text
from objcat.errors import InvalidBatch, InvalidInput, InvalidSchema
from objcat.metadata.column_defaults import with_default, with_type
from objcat.metadata.properties import STATISTICS, SchemaMode
from objcat.metadata.schema import (
    DIFFER,
    Column,
    ColumnType,
    Ids,
    ListType,
    MapType,
    StructType,
    TableSchema,
    all_nullable,
    arrow_type,
    check_names,
    check_nesting,
    column_from_arrow,
    decimal_digits,
    type_from_arrow,
    type_text,
)
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.type_widening import INTEGERS, Siblings, is_wider

# ---- what a user asks for ----------------------------------------------------------------------------------------

_PATH = re.compile(r"(?:`(?:[^`]|``)+`|[^.`]+)(?:\.(?:`(?:[^`]|``)+`|[^.`]+))*")
_STEP = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A change of one column, or of a field inside one. path: its name, or `struct.field`."""

    path: str


@dataclass(frozen=True, slots=True)
class AddColumn(ColumnChange):
    """Add a column, or a field of a struct. In all existing rows it has its default, or is null.

    Args:
        path: Its name, or `struct.name`.
        type: An Arrow type, or a name as in `docs/spec/format.md`: `bigint`, `decimal(10,2)`.
        after: The neighbour that it follows. None: it is the last one.
        first: Whether it comes before all others.
        default: Its value in existing rows, and in later batches that leave it out. None: null. Only for columns that are not nested.
        nullable: Whether nulls are allowed. A column without nulls needs a default.
    """

    type: pa.DataType | str
    after: str | None = None
    first: bool = False
    default: Any = None
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class DropColumn(ColumnChange):
    """Drop a column, or a field of a struct.

    Older snapshots still have it. A later column of the same name is another column.

    Args:
        path: Its name, or `struct.field`.
    """


@dataclass(frozen=True, slots=True)
class RenameColumn(ColumnChange):
    """Rename a column or a field.

    Args:
        path: Its name, or `struct.field`.
        name: The new name alone, without the structs around it.
    """

    name: str


@dataclass(frozen=True, slots=True)
class MoveColumn(ColumnChange):
    """Move a column among its neighbours. Give one of `after` and `first`.

    Args:
        path: Its name, or `struct.field`.
        after: The neighbour that it follows.
        first: Whether it comes before all others.
    """

    after: str | None = None
    first: bool = False


@dataclass(frozen=True, slots=True)
class WidenColumn(ColumnChange):
    """Give a column a type that holds every value of its current type: see `is_wider`.

    Args:
        path: A column, a field, or the `element` or `value` in one.
        type: An Arrow type, or a name as in `docs/spec/format.md`.
    """

    type: pa.DataType | str


@dataclass(frozen=True, slots=True)
class DropNotNull(ColumnChange):
    """Allow nulls in a column from now on.

    Args:
        path: A column, a field, or the `element` or `value` in one.
    """


@dataclass(frozen=True, slots=True)
class SetDefault(ColumnChange):
    """Set the value of a column in later batches that leave it out. No existing row changes.

    Args:
        path: A column.
        default: A value of its type.
    """

    default: Any


@dataclass(frozen=True, slots=True)
class DropDefault(ColumnChange):
    """Take back the default for later batches: a column that they leave out is null, or is required again.

    The value of rows that are older than the column stays.

    Args:
        path: A column.
    """


def evolve(spec: TableSpec, changes: Sequence[ColumnChange]) -> TableSpec:
    """The spec after some changes, one after another. New ids follow the highest one ever assigned.

    Raises InvalidSchema and InvalidInput that name the column and what would fit. The causes are a missing or taken name, a type that is
    not wider, and columns that the key, the buckets, the partitions or the ordering need.
    """
    for change in changes:
        ids = Ids(spec.table_schema.last_id)
        steps = path_steps(change.path, spec.table_schema)
        columns = _changed(spec.table_schema.columns, steps, _edit_of(change, spec, ids), said=change.path)
        schema = TableSchema(columns=columns, last_id=ids.last)
        spec = msgspec.structs.replace(spec, table_schema=schema, properties=_followed(spec, schema))
        check_nesting(spec.table_schema.to_arrow())
    return spec


def _followed(spec: TableSpec, schema: TableSchema) -> dict[str, str]:
    """The properties of columns under their names in another schema. Those of dropped columns are left out."""
    names = {column.id: column.name for column in schema.columns}
    now = {f"{STATISTICS}{column.name}": names.get(column.id) for column in spec.table_schema.columns}
    renamed = {name: f"{STATISTICS}{now[name]}" if now.get(name) is not None else None if name in now else name for name in spec.properties}
    return {new: spec.properties[name] for name, new in renamed.items() if new is not None}


KINDS_OF_CHANGE = "AddColumn, DropColumn, RenameColumn, MoveColumn, WidenColumn, DropNotNull, SetDefault or DropDefault"

_NAMED_TYPES = (*INTEGERS, "boolean", "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz")

# ---- one change --------------------------------------------------------------------------------------------------

_Edit: TypeAlias = Callable[[Siblings, str, type | None], Siblings]
"""Siblings, the name of the changed one, and the nested type around them (None: the table) -> the siblings after the change."""


def path_steps(path: str, schema: TableSchema) -> list[str]:
    """The names along a path. A whole column name is that column; a name with a dot is written in backticks."""
    text(path, what="column")
    if path in schema.names:
        return [path]
    if not _PATH.fullmatch(path):
        raise InvalidInput(f"column={shown(path)} is no column. Write its name, or struct.field. Put a name with a dot in it in backticks.")
    return [quoted.replace("``", "`") or plain for quoted, plain in _STEP.findall(path)]


def _changed(columns: Siblings, steps: Sequence[str], edit: _Edit, *, said: str, inside: type | None = None) -> Siblings:
    """The columns with the edit made at the end of the path. inside: the nested type around them."""
    if len(steps) == 1:
        return edit(columns, steps[0], inside)
    column = _named(columns, steps[0], said=said)
    if inside is MapType and column.name == "key":
        raise InvalidSchema(f"{said!r} is inside of the keys of a map, which never change. Add another column, or change the values.")
    new: ColumnType
    match column.type:
        case StructType(fields):
            new = StructType(fields=_changed(fields, steps[1:], edit, said=said, inside=StructType))
        case ListType(element):
            (element,) = _changed((element,), steps[1:], edit, said=said, inside=ListType)
            new = ListType(element=element)
        case MapType(key, value):
            key, value = _changed((key, value), steps[1:], edit, said=said, inside=MapType)
            new = MapType(key=key, value=value)
        case _:
            raise InvalidSchema(f"{said!r} leads into {column.name!r}, which is {column.type} and has no fields. Name a struct.")
    return tuple(msgspec.structs.replace(column, type=new) if one.id == column.id else one for one in columns)


def _edit_of(change: ColumnChange, spec: TableSpec, ids: Ids) -> _Edit:
    roles = _roles(spec)

    def edit(siblings: Siblings, name: str, inside: type | None) -> Siblings:
        if inside in (ListType, MapType) and not isinstance(change, (WidenColumn, DropNotNull)):
            _named(siblings, name, said=change.path)
            raise InvalidSchema(
                f"{change.path!r} is the {name} of a {_word(inside)}, which can only be widened or allow nulls. "
                "Change the column around it."
            )
        match change:
            case AddColumn():
                return _added(siblings, name, change, ids, inside=inside)
            case DropColumn():
                return _dropped(siblings, _named(siblings, name, said=change.path), change, roles)
            case RenameColumn():
                return _renamed(siblings, _named(siblings, name, said=change.path), change)
            case MoveColumn():
                column = _named(siblings, name, said=change.path)
                others = tuple(one for one in siblings if one.id != column.id)
                if (change.after is None) != change.first:
                    raise InvalidInput(f"{change.path!r} needs exactly one place to move to. Give after='a neighbour' or first=True.")
                return _placed(others, column, after=change.after, first=change.first)
            case WidenColumn():
                column = _named(siblings, name, said=change.path)
                return _widened(siblings, column, change, roles, is_key=inside is MapType and name == "key")
            case DropNotNull():
                column = _named(siblings, name, said=change.path)
                return _optional(siblings, column, change, spec, is_key=inside is MapType and name == "key")
            case SetDefault() | DropDefault():
                return _defaulted(siblings, _named(siblings, name, said=change.path), change, roles, inside=inside)
        raise InvalidInput(f"{shown(change)} is no change of a schema. Give {KINDS_OF_CHANGE}.")

    return edit


_ORDERING_ROLES = ("the ordering column", "an ordering column")
"""Of the only one, and of one among several. Its type may become wider."""


def _roles(spec: TableSpec) -> dict[int, str]:
    """The roles of columns in the table, by id. The first of several."""
    found = dict.fromkeys(spec.ordering_ids, _ORDERING_ROLES[len(spec.ordering_ids) > 1])
    found |= {column.id: "a column that partitions are made of" for column in spec.partition_columns}
    found |= dict.fromkeys(spec.index.columns, "a bucket column")
    return found | dict.fromkeys(spec.key, "a key column")


def _added(siblings: Siblings, name: str, change: AddColumn, ids: Ids, *, inside: type | None) -> Siblings:
    if change.default is not None and inside is not None:
        raise InvalidSchema(_NOT_INSIDE.format(change.path))
    if not change.nullable and change.default is None:
        raise InvalidSchema(
            f"{change.path!r} allows no nulls, and existing rows have no value of it. Nothing was changed. Give a default, or allow nulls."
        )
    field = pa.field(name, _asked(change.type, said=change.path), nullable=change.nullable)
    check_nesting([field])
    column = column_from_arrow(field, ids, path=change.path, joins=True)
    same = [one.name for one in siblings if case_folded(one.name) == case_folded(name)]
    if same:
        raise InvalidSchema(f"There is a column {same[0]!r} already. Give {change.path!r} another name, since names must {DIFFER}.")
    check_names([name], where="the change")
    if change.default is not None:
        column = with_default(column, change.default, path=change.path, initial=True)
    return _placed(siblings, column, after=change.after, first=change.first)


def _placed(others: Siblings, column: Column, *, after: str | None, first: bool) -> Siblings:
    if after is not None and first:
        raise InvalidInput(f"{column.name!r} cannot be both first and after {after!r}. Give one of them.")
    if first:
        return (column, *others)
    at = len(others) if after is None else others.index(_named(others, after, said=after)) + 1
    return (*others[:at], column, *others[at:])


def _dropped(siblings: Siblings, column: Column, change: DropColumn, roles: dict[int, str]) -> Siblings:
    if column.id in roles:
        raise InvalidSchema(f"{change.path!r} is {roles[column.id]}. It cannot be dropped, because the table finds its rows by it.")
    if len(siblings) == 1:
        raise InvalidSchema(f"{change.path!r} is the only one there, and neither a table nor a struct can be empty. Add another one first.")
    return tuple(one for one in siblings if one.id != column.id)


def _renamed(siblings: Siblings, column: Column, change: RenameColumn) -> Siblings:
    text(change.name, what="name")
    check_names([change.name], where="the change")
    same = [one.name for one in siblings if one.id != column.id and case_folded(one.name) == case_folded(change.name)]
    if same:
        raise InvalidSchema(f"There is a column {same[0]!r} already. Give {change.path!r} another name, since names must {DIFFER}.")
    return tuple(msgspec.structs.replace(one, name=change.name) if one.id == column.id else one for one in siblings)


def _widened(siblings: Siblings, column: Column, change: WidenColumn, roles: dict[int, str], *, is_key: bool) -> Siblings:
    wanted = type_from_arrow(_asked(change.type, said=change.path), Ids(), path=change.path)
    if wanted == column.type:
        return siblings
    role = "a map's key" if is_key else roles.get(column.id, "")
    if role and role not in _ORDERING_ROLES:
        raise InvalidSchema(f"{change.path!r} is {role}. Its type stays {type_text(column.type)}, because the table finds its rows by it.")
    if not is_wider(wanted, column.type):
        raise InvalidSchema(
            f"{change.path!r} is {type_text(column.type)}, and {type_text(wanted)} does not hold all its values, or cannot be read from "
            f"the existing files. {_wider_text(column.type)}."
        )
    return tuple(with_type(one, wanted) if one.id == column.id else one for one in siblings)


_NOT_INSIDE = "{!r} is a field inside a column, and only columns have defaults. Nothing was changed. Leave the default out."


def _defaulted(
    siblings: Siblings, column: Column, change: SetDefault | DropDefault, roles: dict[int, str], *, inside: type | None
) -> Siblings:
    if inside is not None:
        raise InvalidSchema(_NOT_INSIDE.format(change.path))
    if isinstance(change, DropDefault):
        new = msgspec.structs.replace(column, write_default=msgspec.UNSET)
    elif change.default is None:
        raise InvalidSchema(f"The default of {change.path!r} is None. Nothing was changed. Drop the default instead.")
    elif column.id in roles:
        raise InvalidSchema(f"{change.path!r} is {roles[column.id]}, which each row has to say itself. It has no default.")
    else:
        new = with_default(column, change.default, path=change.path, initial=False)
    return tuple(new if one.id == column.id else one for one in siblings)


def _optional(siblings: Siblings, column: Column, change: DropNotNull, spec: TableSpec, *, is_key: bool) -> Siblings:
    role = (
        "a map's key"
        if is_key
        else "a key column"
        if column.id in spec.key
        else _ORDERING_ROLES[len(spec.ordering_ids) > 1]
        if column.id in spec.ordering_ids
        else ""
    )
    if role:
        raise InvalidSchema(f"{change.path!r} is {role}, which is never null. Add another column for values that may be null.")
    return tuple(msgspec.structs.replace(one, nullable=True) if one.id == column.id else one for one in siblings)


def _wider_text(old: ColumnType) -> str:
    wider = [name for name in _NAMED_TYPES if is_wider(name, old)]
    digits = decimal_digits(old)
    if digits is not None:
        wider = [f"decimals of more digits and the scale {digits[1]}"]
    return f"It can become {', '.join(wider)}" if wider else "Its type stays, so add another column"


def _named(columns: Siblings, name: str, *, said: str) -> Column:
    for column in columns:
        if column.name == name:
            return column
    where = "" if said == name else f"{said!r} names {name!r}. "
    raise InvalidInput(f"{where}There is no column {name!r} ({nearest(name, [column.name for column in columns])}).")


def _asked(asked: pa.DataType | str, *, said: str) -> pa.DataType:
    """The requested type, from its name or an Arrow type."""
    if isinstance(asked, pa.DataType):
        return asked
    if not isinstance(asked, str):
        raise InvalidInput(f"The type of {said!r} is {shown(asked)}. Give an Arrow type, or a name such as 'bigint'.")
    name = asked.replace(" ", "").lower()
    digits = decimal_digits(name)
    if digits is not None:
        if not 1 <= digits[0] <= 38 or digits[1] > digits[0]:
            raise InvalidSchema(f"The type of {said!r} is {asked!r}. Give a decimal 1 to 38 digits, and at most as many after the point.")
    elif name not in _NAMED_TYPES:
        raise InvalidSchema(
            f"The type of {said!r} is {asked!r}, which is no type. Give an Arrow type, or a name ({nearest(name, _NAMED_TYPES)})."
        )
    return arrow_type(name)


def _word(kind: type | None) -> str:
    return "list" if kind is ListType else "map"


# ---- what a batch asks for ---------------------------------------------------------------------------------------


def widened_spec(spec: TableSpec, given: pa.Schema, mode: SchemaMode) -> TableSpec:
    """The spec under which a batch can be written. The same spec if the batch has nothing new, or nothing may change.

    What the batch has and the table lacks is appended, nullable, in nested columns too. Under WIDEN, types become as wide as the batch's.
    The types of columns that find rows stay, and the batch must fit them. Raises InvalidSchema and InvalidBatch.

    given: the columns of the batch.
    """
    if mode is SchemaMode.STRICT:
        return spec
    fixed = {column_id for column_id, role in _roles(spec).items() if role not in _ORDERING_ROLES}
    ids = Ids(spec.table_schema.last_id)
    growth = _Growth(ids, fixed, widens=mode is SchemaMode.WIDEN)
    columns = growth.siblings(spec.table_schema.columns, list(given), path="")
    if columns == spec.table_schema.columns:
        return spec
    schema = TableSchema(columns=columns, last_id=ids.last)
    check_nesting(schema.to_arrow())
    return msgspec.structs.replace(spec, table_schema=schema)


@dataclass(frozen=True, slots=True)
class _Growth:
    """A schema that grows to fit a batch. fixed: ids of columns whose type stays."""

    ids: Ids
    fixed: set[int]
    widens: bool

    def siblings(self, columns: Siblings, given: Sequence[pa.Field], *, path: str) -> Siblings:
        """The columns, grown to fit the fields of the batch."""
        by_name = {column.name: column for column in columns}
        added = []
        for field in given:
            where = f"{path}{field.name}"
            known = by_name.get(field.name)
            if known is not None:
                by_name[field.name] = with_type(known, self.type(known, field.type, path=where))
            elif pa.types.is_null(field.type):
                raise InvalidBatch(
                    f"The batch has the column {where!r}, which the table lacks. It holds only nulls, so its type is unknown. "
                    "Nothing was written. Give it a type, or leave it out."
                )
            else:
                added.append(column_from_arrow(all_nullable(field), self.ids, path=where, joins=True))
        found = (*(by_name[column.name] for column in columns), *added)
        if added:
            where = f"the batch, compared with {path.rstrip('.') or 'the table'},"
            check_names([column.name for column in added], where=where, known=by_name)
        return found

    def type(self, column: Column, given: pa.DataType, *, path: str) -> ColumnType:
        """The type of a column, grown to fit that of the batch."""
        if pa.types.is_dictionary(given):
            given = given.value_type
        match column.type:
            case StructType(fields) if pa.types.is_struct(given):
                return StructType(fields=self.siblings(fields, list(given), path=f"{path}."))
            case ListType(element) if hasattr(given, "value_type") and not pa.types.is_map(given):
                new = self.type(element, given.value_type, path=f"{path}.element")
                return ListType(element=msgspec.structs.replace(element, type=new))
            case MapType(key, value) if pa.types.is_map(given):
                new = self.type(value, given.item_type, path=f"{path}.value")
                return MapType(key=key, value=msgspec.structs.replace(value, type=new))
            case str() if self.widens and column.id not in self.fixed and not pa.types.is_null(given) and not pa.types.is_nested(given):
                wanted = type_from_arrow(given, Ids(), path=path)
                return wanted if is_wider(wanted, column.type) else column.type
        return column.type
