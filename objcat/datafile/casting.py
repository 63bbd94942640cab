"""Casts columns to another schema: files to the table's current schema, and nested columns to other names. Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from objcat.metadata.column_defaults import value_of_field
from objcat.metadata.schema import TableSchema, arrow_type, is_list

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

Values = TypeVar("Values", pa.Array, pa.ChunkedArray)

Cast = Callable[[pa.Array, pa.DataType], pa.Array]
"""A cast of a plain array to a plain type."""


def cast_rows(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Rows of a file of any age under a newer schema, by physical names, nested columns included.

    Missing columns have the default of their field, else null. Columns outside `wanted` are dropped, and narrower types are widened.
    """
    given = set(rows.column_names)
    columns = [
        cast_column(rows.column(field.name), field.type, _widen)
        if field.name in given
        else repeated(value_of_field(field), rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.Table.from_arrays(columns, schema=wanted)


def repeated(value: pa.Scalar | None, count: int, data_type: pa.DataType) -> pa.ChunkedArray:
    """A column with one value in every row, None for null."""
    if value is None:
        return nulls(count, data_type)
    return pa.chunked_array([pa.repeat(value, count)], data_type)


def cast_column(values: pa.ChunkedArray, wanted: pa.DataType, cast: Cast) -> pa.ChunkedArray:
    """A column in another type. Struct fields match by name, and missing ones are null. `cast` converts plain values."""
    if values.type.equals(wanted):
        return values
    return pa.chunked_array([_fit(chunk, wanted, cast) for chunk in values.chunks], wanted)


def relabelled(values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """A column in a type that differs only in names of nested fields, which match by position. No copy."""
    if values.type.equals(wanted):
        return values
    return pa.chunked_array([chunk.view(wanted) for chunk in values.chunks], wanted)


def named(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, in its order, with its names of nested fields, see `relabelled`. Raises as `exactly`."""
    columns = [rows.column(field.name) for field in schema]
    fitting = [
        relabelled(values, field.type) if pa.types.is_nested(field.type) else exactly(values, field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(fitting, schema=schema)


def exactly(values: Values, wanted: pa.DataType) -> Values:
    """Plain values in another plain type. Raises ArrowInvalid if a value is lost.

    Arrow itself would round floats to decimals and shorter floats, and decimals to floats.
    """
    cast = values.cast(wanted)
    given = values.type
    if given != wanted and _may_round(given, wanted):
        back = cast.cast(given)
        lost = pc.not_equal(back, values)
        if pa.types.is_floating(given):
            lost = pc.and_not(lost, pc.is_nan(values))
        if pc.any(lost).as_py():
            raise pa.ArrowInvalid(f"values of {given} do not fit {wanted}")
    return cast


def _may_round(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_floating(given):
        return bool(pa.types.is_decimal(wanted) or (pa.types.is_floating(wanted) and wanted.bit_width < given.bit_width))
    return bool(pa.types.is_decimal(given) and pa.types.is_floating(wanted))


def logical(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Rows of files under logical names, nested columns included. Call it before a filter, which may name a field of a struct.

    Columns outside the table stay as they are.
    """
    known = {column.physical: column for column in schema.columns}
    names, columns = [], []
    for name, values in zip(rows.column_names, rows.columns, strict=True):
        column = known.get(name)
        names.append(name if column is None else column.name)
        is_nested = column is not None and pa.types.is_nested(values.type)
        columns.append(relabelled(values, arrow_type(column.type)) if column is not None and is_nested else values)
    return pa.Table.from_arrays(columns, names=names)


def plain(rows: Rows) -> Rows:
    """The rows without views and dictionaries, nested ones included. Arrow neither sorts by all of these nor takes rows of them."""
    types = [_plain_type(data_type) for data_type in rows.schema.types]
    if types == rows.schema.types:
        return rows
    to_type = cast_column if isinstance(rows, pa.Table) else _fit
    columns = [to_type(values, wanted, _widen) for values, wanted in zip(rows.columns, types, strict=True)]
    fields = [field.with_type(wanted) for field, wanted in zip(rows.schema, types, strict=True)]
    return rows.from_arrays(columns, schema=pa.schema(fields))


def nulls(count: int, data_type: pa.DataType) -> pa.ChunkedArray:
    """A column of nulls. `pa.nulls` would also null the fields of a struct, which Arrow does not cast to required fields."""
    one = pa.array([None], data_type)
    return pa.chunked_array([one.take(pa.array(np.zeros(count, dtype=np.int64)))])


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(data_type):
        return _plain_type(data_type.value_type)
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in data_type])
    if pa.types.is_map(data_type):
        key, item = data_type.key_field, data_type.item_field
        return pa.map_(key.with_type(_plain_type(key.type)), item.with_type(_plain_type(item.type)), data_type.keys_sorted)
    if is_list(data_type):
        return pa.list_(data_type.value_field.with_type(_plain_type(data_type.value_type)))
    return _PLAIN_TYPES.get(data_type, data_type)


_PLAIN_TYPES = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def _widen(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return exactly(values, wanted)


def _fit(values: pa.Array, wanted: pa.DataType, cast: Cast) -> pa.Array:
    if values.type.equals(wanted):
        return values
    if pa.types.is_null(values.type):
        return nulls(len(values), wanted).combine_chunks()
    if pa.types.is_dictionary(values.type):
        return _fit(values.dictionary, wanted, cast).take(values.indices)
    if pa.types.is_struct(wanted):
        children = [_child(values, field, cast) for field in wanted]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=values.is_null())
    if pa.types.is_map(wanted):
        keys = _fit(values.keys, wanted.key_type, cast)
        items = _fit(values.items, wanted.item_type, cast)
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=wanted, mask=values.is_null())
    if pa.types.is_list(wanted):
        values = _as_list(values)
        return pa.ListArray.from_arrays(_offsets(values), _fit(values.values, wanted.value_type, cast), type=wanted, mask=values.is_null())
    return cast(values, wanted)


def _as_list(values: pa.Array) -> pa.ListArray:
    if pa.types.is_list(values.type):
        return values
    wanted = pa.list_(values.type.value_field)
    if not (pa.types.is_list_view(values.type) or pa.types.is_large_list_view(values.type)):
        return values.cast(wanted)
    # Arrow's own cast reads the offsets of a list view as those of a list, but a view has no final offset.
    lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values.flatten(), type=wanted, mask=values.is_null())


def _child(values: pa.StructArray, wanted: pa.Field, cast: Cast) -> pa.Array:
    index = values.type.get_field_index(wanted.name)
    return nulls(len(values), wanted.type).combine_chunks() if index < 0 else _fit(values.field(index), wanted.type, cast)


def _offsets(values: pa.Array) -> pa.Array:
    """The offsets as a separate array. Arrow takes no mask with a slice."""
    return pa.array(np.array(values.offsets))
