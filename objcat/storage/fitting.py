"""Columns under another schema: what a file holds as the table has it now, and nested columns under other names. Pure Arrow in and out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

Cast = Callable[[pa.Array, pa.DataType], pa.Array]
"""A plain array in another plain type."""


def fitted(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Rows of a file of any age as a newer schema has them, by physical names, in nested columns too.

    What the file lacks is null, what it has beyond `wanted` is left out, and a narrower type becomes the wider one.
    """
    given = set(rows.column_names)
    columns = [
        fit(rows.column(field.name), field.type, _widen) if field.name in given else nulls(rows.num_rows, field.type) for field in wanted
    ]
    return pa.Table.from_arrays(columns, schema=wanted)


def fit(values: pa.ChunkedArray, wanted: pa.DataType, cast: Cast) -> pa.ChunkedArray:
    """A column in another type: the fields of structs match by name, and one that is not given is null; `cast` fits what is not nested."""
    if values.type.equals(wanted):
        return values
    return pa.chunked_array([_fit(chunk, wanted, cast) for chunk in values.chunks], wanted)


def relabelled(values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """A column in a type that differs in the names of nested fields only: they match by place. Copies nothing."""
    if values.type.equals(wanted):
        return values
    return pa.chunked_array([chunk.view(wanted) for chunk in values.chunks], wanted)


def named(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, in its order, nested ones with the names of its fields: see `relabelled`."""
    columns = [rows.column(field.name) for field in schema]
    fitting = [
        relabelled(values, field.type) if pa.types.is_nested(field.type) else values.cast(field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(fitting, schema=schema)


def nulls(count: int, data_type: pa.DataType) -> pa.ChunkedArray:
    """A column of nulls. `pa.nulls` would also make the fields of a struct null, which Arrow does not cast where these may not be null."""
    one = pa.array([None], data_type)
    return pa.chunked_array([one.take(pa.array(np.zeros(count, dtype=np.int64)))])


def _widen(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return values.cast(wanted)


def _fit(values: pa.Array, wanted: pa.DataType, cast: Cast) -> pa.Array:
    if values.type.equals(wanted):
        return values
    if pa.types.is_null(values.type):
        return nulls(len(values), wanted).combine_chunks()
    if pa.types.is_struct(wanted):
        children = [_child(values, field, cast) for field in wanted]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=values.is_null())
    if pa.types.is_map(wanted):
        keys = _fit(values.keys, wanted.key_type, cast)
        items = _fit(values.items, wanted.item_type, cast)
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=wanted, mask=values.is_null())
    if pa.types.is_list(wanted):
        if not pa.types.is_list(values.type):
            values = values.cast(pa.list_(values.type.value_field))
        return pa.ListArray.from_arrays(_offsets(values), _fit(values.values, wanted.value_type, cast), type=wanted, mask=values.is_null())
    return cast(values, wanted)


def _child(values: pa.StructArray, wanted: pa.Field, cast: Cast) -> pa.Array:
    index = values.type.get_field_index(wanted.name)
    return nulls(len(values), wanted.type).combine_chunks() if index < 0 else _fit(values.field(index), wanted.type, cast)


def _offsets(values: pa.Array) -> pa.Array:
    """As an array of its own: Arrow takes no mask beside a slice."""
    return pa.array(np.array(values.offsets))
