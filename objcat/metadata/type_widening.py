"""Type widening: which types hold every value of another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from objcat.metadata.column_defaults import with_type
from objcat.metadata.schema import (
    Column,
    ColumnType,
    ListType,
    MapType,
    StructType,
    TableSchema,
    decimal_digits,
)
from objcat.metadata.table_spec import TableSpec


def is_wider(new: ColumnType, old: ColumnType) -> bool:
    """Whether a type holds every value of another, and every reader of old files reads them so.

    These are wider:
    - a larger integer type than a smaller one, and double than float;
    - a decimal with more digits before the point and the same scale;
    - double than an integer type of up to 32 bits;
    - a decimal with at least 10 digits before the point than an integer type of up to 32 bits, and with at least 20 than bigint.
    """
    if not isinstance(new, str) or not isinstance(old, str) or new == old:
        return False
    digits, before = decimal_digits(new), decimal_digits(old)
    if digits is not None and before is not None:
        return digits[1] == before[1] and digits[0] > before[0]
    if old in INTEGERS:
        if digits is not None:
            return digits[0] - digits[1] >= (20 if old == "bigint" else 10)
        return (new in INTEGERS and INTEGERS.index(new) > INTEGERS.index(old)) or (new == "double" and old != "bigint")
    return (old, new) == ("float", "double")


def widest(schema: TableSchema, others: Iterable[TableSchema]) -> TableSchema:
    """The schema with every column and nested field in its widest type among these schemas.

    It allows nulls where one of them does. Of two types that do not hold each other's values, the first one stays.
    """
    found: dict[int, ColumnType] = {}
    nullable: set[int] = set()

    def meet(columns: Iterable[Column]) -> None:
        for column in columns:
            if column.nullable:
                nullable.add(column.id)
            if isinstance(column.type, str):
                known = found.setdefault(column.id, column.type)
                found[column.id] = column.type if is_wider(column.type, known) else known
            else:
                meet(child_fields(column))

    def wide(column: Column) -> Column:
        match column.type:
            case StructType(fields):
                new: ColumnType = StructType(fields=tuple(map(wide, fields)))
            case ListType(element):
                new = ListType(element=wide(element))
            case MapType(key, value):
                new = MapType(key=wide(key), value=wide(value))
            case _:
                new = found[column.id]
        return msgspec.structs.replace(with_type(column, new), nullable=column.id in nullable)

    meet(schema.columns)
    for other in others:
        meet(other.columns)
    return msgspec.structs.replace(schema, columns=tuple(map(wide, schema.columns)))


def under(spec: TableSpec, schema: TableSchema) -> TableSpec:
    """The settings of one slot with the columns of another, in types that hold the values of both.

    Columns that find and order rows stay. If the other slot lacks one, it gets a name that no user's column has.
    """
    known = {column.id for column in schema.columns}
    lost = (column for column in spec.table_schema.columns if column.id in spec.bounded and column.id not in known)
    columns = (*schema.columns, *(msgspec.structs.replace(column, name=f"_objcat_{column.id}") for column in lost))
    return msgspec.structs.replace(spec, table_schema=widest(msgspec.structs.replace(schema, columns=columns), [spec.table_schema]))


INTEGERS = ("tinyint", "smallint", "int", "bigint")


Siblings: TypeAlias = tuple[Column, ...]


def child_fields(column: Column) -> Siblings:
    """The fields directly inside a column."""
    match column.type:
        case StructType(fields):
            return fields
        case ListType(element):
            return (element,)
        case MapType(key, value):
            return (key, value)
    return ()
