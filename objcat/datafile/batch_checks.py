"""Casts a user's batch to the table: columns by name, types by lossless casts, no null keys. Arrow in, Arrow out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from objcat.common.validation import nearest_name
from objcat.datafile.casting import cast_column, nulls, relabelled, repeated
from objcat.errors import InvalidBatch, NullKey
from objcat.metadata.column_defaults import is_said, write_value
from objcat.metadata.schema import Column, arrow_type, is_list, type_text
from objcat.metadata.table_spec import TableSpec


def conform(batch: pa.Table, spec: TableSpec) -> pa.Table:
    """The batch under the table's physical names, types and column order. Columns that it lacks have their default for writes, else null.

    Raises InvalidBatch for a missing or unknown column, a cast that loses values, and a null where none is allowed. Raises NullKey for a
    null
    key, and a null or NaN ordering value.
    """
    given = set(batch.column_names)
    check_columns(batch.column_names, spec)
    columns = spec.table_schema.columns
    arrays = []
    for column in columns:
        if column.name in given:
            cast = _placing if column.id in spec.bounded else _cast
            arrays.append(cast(batch.column(column.name), column))
        else:
            arrays.append(repeated(write_value(column), batch.num_rows, arrow_type(column.type, physical=True)))
    fitted = pa.Table.from_arrays(arrays, schema=spec.table_schema.to_arrow_physical())
    _check_nulls(fitted, spec)
    return normalise_keys(fitted, spec)


def conform_delete(batch: pa.Table, spec: TableSpec) -> pa.Table:
    """The key and partition columns of a batch of deletes (and the ordering columns, if present), padded with nulls.

    A delete without ordering values is a barrier: it removes the key whatever the ordering values of its rows. Other columns are
    ignored.
    """
    check_delete_columns(batch.column_names, spec)
    names = [column.name for column in located_by(spec)]
    ordering = given_ordering(batch.column_names, spec)
    names += [column.name for column in ordering]
    arrays = []
    for column in spec.table_schema.columns:
        if column.name in names:
            arrays.append(_placing(batch.column(column.name), column))
        else:
            arrays.append(nulls(batch.num_rows, arrow_type(column.type, physical=True)))
    fitted = pa.Table.from_arrays(arrays, schema=spec.table_schema.to_arrow_physical(nullable=True))
    for column in spec.key_columns:
        _refuse_null(fitted, column, role="key")
    for column in ordering:
        _refuse_null(fitted, column, role="ordering")
    return normalise_keys(fitted, spec)


def conform_mixed(batch: pa.Table, spec: TableSpec, deleted: npt.NDArray[np.bool_]) -> pa.Table:
    """A batch of rows and deletes, each as it would be conformed alone, in the order of the batch. Raises as those functions."""
    schema = spec.table_schema.to_arrow_physical(nullable=True)
    rows, deletes = np.flatnonzero(~deleted), np.flatnonzero(deleted)
    parts = [conform(batch.take(pa.array(rows)), spec).cast(schema), conform_delete(batch.take(pa.array(deletes)), spec).cast(schema)]
    return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate([rows, deletes]), kind="stable")))


def check_columns(given: list[str], spec: TableSpec) -> None:
    """Check that these columns make a batch of rows: known, unique, with all that are required and have no default. Raises InvalidBatch."""
    columns = spec.table_schema.columns
    group_ids = {column.id for column in (*spec.key_columns, *spec.partition_columns)}
    said = {*group_ids, *spec.ordering_ids}
    needed = [column.name for column in columns if column.id in said or not (column.nullable or is_said(column.write_default))]
    _check_columns(given, [column.name for column in columns], required=needed)


def check_named_once(schema: pa.Schema) -> None:
    """Check that no two columns, or two fields of one struct, have the same name. Raises InvalidBatch."""
    _check_counts(schema.names, "column", "")
    for field in schema:
        _check_fields_once(field.type, field.name)


def _check_fields_once(data_type: pa.DataType, path: str) -> None:
    if pa.types.is_dictionary(data_type):
        _check_fields_once(data_type.value_type, path)
    elif pa.types.is_struct(data_type):
        _check_counts([field.name for field in data_type], "field", f"{path}.")
        for field in data_type:
            _check_fields_once(field.type, f"{path}.{field.name}")
    elif pa.types.is_map(data_type):
        _check_fields_once(data_type.key_type, f"{path}.key")
        _check_fields_once(data_type.item_type, f"{path}.value")
    elif is_list(data_type):
        _check_fields_once(data_type.value_type, f"{path}.element")


def _check_counts(names: Sequence[str], what: str, path: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidBatch(f"The batch has the {what} {path + name!r} twice. Nothing was written. Drop or rename one.")


def check_delete_columns(given: list[str], spec: TableSpec) -> None:
    """Check that these columns make a batch of deletes: the whole key and the partition columns, once each. Raises InvalidBatch."""
    _check_located(given, spec)
    given_ordering(given, spec)


def _check_located(given: list[str], spec: TableSpec) -> None:
    names = [column.name for column in located_by(spec)]
    _check_columns([name for name in given if name in names], names, required=names)


def located_by(spec: TableSpec) -> list[Column]:
    """The columns that identify a row and its partition, which deletes always have."""
    if spec.is_global:
        return spec.key_columns
    return [*spec.key_columns, *(column for column in spec.partition_columns if column.id not in spec.key)]


def located(batch: pa.Table, spec: TableSpec) -> pa.Table:
    """The partition source columns of a batch, under physical names. Raises InvalidBatch if one is missing or does not cast."""
    columns = spec.partition_columns
    names = [column.name for column in columns]
    _check_columns([name for name in batch.column_names if name in names], names, required=names)
    schema = spec.table_schema.to_arrow_physical(nullable=True)
    fields = [schema.field(column.physical) for column in columns]
    return pa.Table.from_arrays([_placing(batch.column(column.name), column) for column in columns], schema=pa.schema(fields))


def keyed(batch: pa.Table, spec: TableSpec) -> pa.Table:
    """The key and partition columns of a batch, under physical names. Raises InvalidBatch and NullKey."""
    # The check was made against columns that may have been renamed since.
    _check_located(batch.column_names, spec)
    columns = located_by(spec)
    schema = spec.table_schema.to_arrow_physical(nullable=True)
    arrays = [_placing(batch.column(column.name), column) for column in columns]
    rows = pa.Table.from_arrays(arrays, schema=pa.schema([schema.field(column.physical) for column in columns]))
    for column in spec.key_columns:
        _refuse_null(rows, column, role="key")
    return normalise_keys(rows, spec)


def key_values(batch: pa.Table, spec: TableSpec) -> pa.Table:
    """The key columns of a batch, under physical names, and nothing else. Raises InvalidBatch and NullKey."""
    _check_columns(batch.column_names, spec.table_schema.names, required=[column.name for column in spec.key_columns])
    fields = [spec.table_schema.to_arrow_physical(nullable=True).field(column.physical) for column in spec.key_columns]
    rows = pa.Table.from_arrays([_placing(batch.column(column.name), column) for column in spec.key_columns], schema=pa.schema(fields))
    for column in spec.key_columns:
        _refuse_null(rows, column, role="key")
    return rows


def ordered(batch: pa.Table, spec: TableSpec) -> pa.Table | None:
    """The ordering columns of a batch, under physical names, or None without any. Raises InvalidBatch and NullKey."""
    columns = given_ordering(batch.column_names, spec)
    if not columns:
        return None
    values = pa.table({column.physical: _placing(batch.column(column.name), column) for column in columns})
    for column in columns:
        _refuse_null(values, column, role="ordering")
    return values


def given_ordering(given: Sequence[str], spec: TableSpec) -> list[Column]:
    """The ordering columns of a table, if a batch has them; none for one without ordering values.

    Raises InvalidBatch if it has only some, besides those that locate rows and are there in any case.
    """
    columns = spec.ordering_columns
    lacking = [column.name for column in columns if column.name not in given]
    if not lacking:
        return columns
    others = {column.name for column in located_by(spec)}
    found = [column.name for column in columns if column.name in given and column.name not in others]
    if found:
        raise InvalidBatch(
            f"The batch has the ordering column {found[0]!r} and lacks {lacking[0]!r}. Nothing was written. Give all of "
            f"{[column.name for column in columns]}, which are compared in order. Deletes and partial rows may also have none of them."
        )
    return []


def normalise_keys(table: pa.Table, spec: TableSpec) -> pa.Table:
    """In floating key columns -0.0 becomes 0.0 and every NaN the same NaN, as in Spark before a hash or comparison."""
    for column in spec.key_columns:
        if column.type in ("float", "double"):
            index = table.schema.get_field_index(column.physical)
            values = table.column(index)
            nan = pa.scalar(float("nan"), values.type)
            clean = pc.if_else(pc.is_nan(values), nan, pc.add(values, pa.scalar(0.0, values.type)))
            table = table.set_column(index, table.schema.field(index), clean)
    return table


def _check_columns(given: list[str], valid: list[str], *, required: list[str]) -> None:
    _check_counts(given, "column", "")
    for name in given:
        if name not in valid:
            raise InvalidBatch(
                f"The batch has the column {name!r}, which the table does not have ({nearest_name(name, valid)}). Nothing was written. "
                "Rename or drop it."
            )
    for name in required:
        if name not in given:
            raise InvalidBatch(f"The batch lacks the column {name!r}, which the table needs in every row. Nothing was written. Add it.")


def _cast(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """The values under the column's physical names and types."""
    physical = arrow_type(column.type, physical=True)
    if pa.types.is_null(values.type):
        return nulls(len(values), physical)
    wanted = arrow_type(column.type)
    if not values.type.equals(wanted):
        _check_fields(values.type, wanted, column.name)
        _refuse_change_of_meaning(values.type, wanted, column)
        try:
            values = cast_column(values, wanted, _cast_exactly)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidBatch(
                f"The column {column.name!r} is {values.type} in the batch and {type_text(column.type)} in the table, and does not cast "
                f"without loss ({str(error).splitlines()[0]}). Nothing was written. Cast it yourself."
            ) from error
        for chunk in values.chunks:
            _check_nulls_inside(chunk, column.name)
    return relabelled(values, physical)


def fitted_column(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """The values of a batch cast to a column, under its logical names. Raises InvalidBatch if the cast loses values."""
    return relabelled(_cast(values, column), arrow_type(column.type))


def _placing(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """Like `_cast`, for a column that locates rows. Invalid text is refused, because no lookup finds it again."""
    values = _cast(values, column)
    if column.type == "string":
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidBatch(
                f"The column {column.name!r} of the batch holds text that is not valid UTF-8 ({str(error).splitlines()[0]}). Nothing "
                "was written. Mend the text."
            ) from error
    return values


_INTEGER_DIGITS_MAX = 20
"""Digits of a 64-bit integer."""


def _cast_exactly(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A plain array in another plain type. Raises ArrowInvalid if a value would change."""
    if pa.types.is_integer(values.type) and pa.types.is_decimal(wanted):
        # Arrow refuses a direct cast to fewer digits than the widest number of the type has, whatever the values.
        values = values.cast(pa.decimal256(_INTEGER_DIGITS_MAX + wanted.scale, wanted.scale))
    found = values.cast(wanted)
    if pa.types.is_floating(wanted) and wanted.bit_width < values.type.bit_width and not _same_numbers(found.cast(values.type), values):
        raise pa.ArrowInvalid("a number would be rounded")
    return found


def _check_fields(given: pa.DataType, wanted: pa.DataType, path: str) -> None:
    """Refuse nested fields that the table does not have, and missing fields that may not be null."""
    for name, one, other in _inside(given, wanted):
        if one is None:
            raise InvalidBatch(f"The batch lacks the field {f'{path}.{name}'!r}, which is never null. Nothing was written. Add it.")
        if other is None:
            hint = nearest_name(name, [field.name for field in wanted])
            raise InvalidBatch(
                f"The batch has the field {f'{path}.{name}'!r}, which the table does not have ({hint}). Nothing was written. Rename "
                "or drop it."
            )
        _check_fields(one, other, f"{path}.{name}")


def _inside(given: pa.DataType, wanted: pa.DataType) -> list[tuple[str, pa.DataType | None, pa.DataType | None]]:
    """The members of two nested types side by side: name, one type, other type. None if a required one is missing."""
    if pa.types.is_dictionary(given):
        given = given.value_type
    if pa.types.is_struct(wanted) and pa.types.is_struct(given):
        mine, theirs = ({field.name: field for field in data_type} for data_type in (given, wanted))
        found = [(name, field.type, theirs[name].type if name in theirs else None) for name, field in mine.items()]
        return found + [(name, None, field.type) for name, field in theirs.items() if name not in mine and not field.nullable]
    if pa.types.is_map(wanted) and pa.types.is_map(given):
        return [("key", given.key_type, wanted.key_type), ("value", given.item_type, wanted.item_type)]
    if pa.types.is_list(wanted) and is_list(given):
        return [("element", given.value_type, wanted.value_type)]
    return []


def _check_nulls_inside(values: pa.Array, path: str) -> None:
    """Refuse nulls in nested fields that do not allow them, where the parent is not null."""
    children: list[tuple[pa.Field, pa.Array]] = []
    if pa.types.is_struct(values.type):
        children = [(field, values.field(i)) for i, field in enumerate(values.type)]
        valid = values.is_valid()
        children = [(field, child.filter(valid) if values.null_count else child) for field, child in children]
    elif pa.types.is_map(values.type):
        entries = values.filter(values.is_valid())
        children = [(values.type.item_field, entries.items)]
    elif pa.types.is_list(values.type):
        children = [(values.type.value_field, values.flatten())]
    for field, child in children:
        if not field.nullable and child.null_count:
            raise InvalidBatch(
                f"The field {f'{path}.{field.name}'!r} holds a null, but the table does not allow one. Nothing was written. Fill it."
            )
        _check_nulls_inside(child, f"{path}.{field.name}")


def _same_numbers(left: pa.Array, right: pa.Array) -> bool:
    """Whether two floating arrays are equal, with NaN equal to itself."""
    differ = pc.and_not(pc.not_equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return not pc.any(differ).as_py()


_FAMILIES: Sequence[tuple[str, Callable[[pa.DataType], bool]]] = (
    ("boolean", pa.types.is_boolean),
    ("integer", pa.types.is_integer),
    ("floating", pa.types.is_floating),
    ("decimal", pa.types.is_decimal),
    ("text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)),
    ("binary", lambda t: "binary" in str(t)),
    ("date", pa.types.is_date),
    ("time with a zone", lambda t: pa.types.is_timestamp(t) and t.tz is not None),
    ("time without a zone", lambda t: pa.types.is_timestamp(t) and t.tz is None),
)
_SAME_VALUES = {("integer", "floating"), ("floating", "integer"), ("integer", "decimal")}


def _family(data_type: pa.DataType) -> str:
    if pa.types.is_dictionary(data_type):
        return _family(data_type.value_type)
    return next((name for name, matches in _FAMILIES if matches(data_type)), "nested")


def _refuse_change_of_meaning(given: pa.DataType, wanted: pa.DataType, column: Column) -> None:
    """Refuse casts that guess a meaning. Arrow would parse text, turn numbers into times and add zones, and Spark guesses otherwise."""
    if not means_the_same(given, wanted):
        raise InvalidBatch(
            f"The column {column.name!r} is {given} in the batch and {type_text(column.type)} in the table, and a cast between them "
            "would have to guess. Nothing was written. Cast it yourself."
        )


def means_the_same(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type mean the same in the other. Whether they fit is decided by the cast."""
    if pa.types.is_null(given):
        return True
    if pa.types.is_struct(wanted):
        theirs = {field.name: field.type for field in wanted}
        return pa.types.is_struct(given) and all(f.name in theirs and means_the_same(f.type, theirs[f.name]) for f in given)
    if pa.types.is_map(wanted):
        return bool(
            pa.types.is_map(given) and means_the_same(given.key_type, wanted.key_type) and means_the_same(given.item_type, wanted.item_type)
        )
    if pa.types.is_list(wanted):
        return is_list(given) and means_the_same(given.value_type, wanted.value_type)
    pair = (_family(given), _family(wanted))
    return pair[0] == pair[1] or pair in _SAME_VALUES


def _check_nulls(fitted: pa.Table, spec: TableSpec) -> None:
    for column in spec.key_columns:
        _refuse_null(fitted, column, role="key")
    for column in spec.ordering_columns:
        _refuse_null(fitted, column, role="ordering")
    for column in spec.table_schema.columns:
        if not column.nullable and fitted.column(column.physical).null_count:
            raise InvalidBatch(f"The column {column.name!r} holds a null, but the table does not allow one. Nothing was written. Fill it.")


def _refuse_null(fitted: pa.Table, column: Column, *, role: str) -> None:
    values = fitted.column(column.physical)
    if values.null_count:
        row = pc.index(pc.is_null(values), True).as_py()
        raise NullKey(
            f"The {role} column {column.name!r} is null in row {row} of the batch. Nothing was written. Fill it or filter it out."
        )
    if role == "ordering" and pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        raise NullKey(f"The ordering column {column.name!r} is NaN in the batch, which has no order. Nothing was written. Fill it.")
