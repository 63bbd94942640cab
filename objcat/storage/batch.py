"""Fitting a batch of the user's to a table: columns by name, types by safe casts, no null keys. Pure Arrow in, Arrow out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.config import nearest
from objcat.errors import InvalidBatch, NullKey
from objcat.table import TableSpec
from objcat.table.schema import Column, arrow_type


def conform(batch: pa.Table, spec: TableSpec) -> pa.Table:
    """The batch under the table's physical names, types and column order.

    Raises InvalidBatch for a column that is missing, unknown or does not cast without loss, for a null where none is allowed; NullKey for
    a null key or a null or NaN ordering value.
    """
    given = set(batch.column_names)
    check_columns(batch.column_names, spec)
    columns = spec.table_schema.columns
    arrays = []
    for column in columns:
        if column.name in given:
            arrays.append(_cast(batch.column(column.name), column))
        else:
            arrays.append(_nulls(batch.num_rows, column))
    fitted = pa.Table.from_arrays(arrays, schema=spec.table_schema.to_arrow_physical())
    _check_nulls(fitted, spec)
    return normalise_keys(fitted, spec)


def conform_delete(batch: pa.Table, spec: TableSpec) -> pa.Table:
    """The key columns (and the ordering column, when the batch has it) of a batch of deletes, padded to the table's columns with nulls.

    Without an ordering value a delete is a barrier: it removes the key whatever the ordering of its rows. Columns beyond these are ignored.
    """
    check_delete_columns(batch.column_names, spec)
    names = [column.name for column in spec.key_columns]
    ordering = spec.ordering_column
    if ordering is not None and ordering.name in batch.column_names:
        names.append(ordering.name)
    arrays = []
    for column in spec.table_schema.columns:
        if column.name in names:
            arrays.append(_cast(batch.column(column.name), column))
        else:
            arrays.append(_nulls(batch.num_rows, column))
    fitted = pa.Table.from_arrays(arrays, schema=spec.table_schema.to_arrow_physical(nullable=True))
    for column in spec.key_columns:
        _refuse_null(fitted, column, role="key")
    if ordering is not None and ordering.name in names:
        _refuse_null(fitted, ordering, role="ordering")
    return normalise_keys(fitted, spec)


def check_columns(given: list[str], spec: TableSpec) -> None:
    """Raises InvalidBatch unless these columns make a batch of rows: known ones, once each, with all that may not be null."""
    columns = spec.table_schema.columns
    needed = [column.name for column in columns if not column.nullable or column.id in spec.key or column.id == spec.ordering]
    _check_columns(given, [column.name for column in columns], required=needed)


def check_delete_columns(given: list[str], spec: TableSpec) -> None:
    """Raises InvalidBatch unless these columns make a batch of deletes: the whole key, once each."""
    names = [column.name for column in spec.key_columns]
    _check_columns([name for name in given if name in names], names, required=names)


def normalise_keys(table: pa.Table, spec: TableSpec) -> pa.Table:
    """-0.0 becomes 0.0 and every NaN one NaN in floating key columns, as Spark does before it hashes and compares."""
    for column in spec.key_columns:
        if column.type in ("float", "double"):
            index = table.schema.get_field_index(column.physical)
            values = table.column(index)
            nan = pa.scalar(float("nan"), values.type)
            clean = pc.if_else(pc.is_nan(values), nan, pc.add(values, pa.scalar(0.0, values.type)))
            table = table.set_column(index, table.schema.field(index), clean)
    return table


def _check_columns(given: list[str], valid: list[str], *, required: list[str]) -> None:
    counts = Counter(given)
    for name in given:
        if counts[name] > 1:
            raise InvalidBatch(f"the batch has the column {name!r} twice: drop or rename one; nothing was written")
        if name not in valid:
            raise InvalidBatch(f"the batch has the column {name!r}, which the table does not: {nearest(name, valid)} Nothing was written.")
    for name in required:
        if name not in given:
            raise InvalidBatch(f"the batch lacks the column {name!r}, which the table needs in every row: add it; nothing was written")


def _cast(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    wanted = arrow_type(column.type, physical=True)
    if values.type.equals(wanted):
        return values
    if pa.types.is_null(values.type):
        return _nulls(len(values), column)
    _refuse_change_of_meaning(values.type, wanted, column)
    try:
        fitted = values.cast(wanted)
        if (
            pa.types.is_floating(wanted)
            and wanted.bit_width < values.type.bit_width
            and not _same_numbers(fitted.cast(values.type), values)
        ):
            raise pa.ArrowInvalid("a number would be rounded")
        return fitted
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidBatch(
            f"the column {column.name!r} is {values.type} in the batch and {type_text(column)} in the table, and does not cast without "
            f"loss ({str(error).splitlines()[0]}): cast it yourself; nothing was written"
        ) from error


def _nulls(count: int, column: Column) -> pa.ChunkedArray:
    """A column of nulls. `pa.nulls` would also make the fields of a struct null, which Arrow does not cast where these may not be null."""
    one = pa.array([None], arrow_type(column.type, physical=True))
    return pa.chunked_array([one.take(pa.array(np.zeros(count, dtype=np.int64)))])


def _same_numbers(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    """Whether two floating columns hold the same, NaN being equal to itself."""
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
    """Arrow would parse text, take numbers for times and give zoneless times a zone: guesses that are the user's, and Spark's differ."""
    if not _means_the_same(given, wanted):
        raise InvalidBatch(
            f"the column {column.name!r} is {given} in the batch and {type_text(column)} in the table, and what one means in the other "
            "is a guess: cast it yourself; nothing was written"
        )


def _means_the_same(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a value of one type is a value of the other, and of no other meaning; whether it fits is for the cast to say."""
    if pa.types.is_null(given):
        return True
    if pa.types.is_struct(wanted):
        theirs = {field.name: field.type for field in wanted}
        return pa.types.is_struct(given) and all(f.name in theirs and _means_the_same(f.type, theirs[f.name]) for f in given)
    if pa.types.is_map(wanted):
        return bool(
            pa.types.is_map(given)
            and _means_the_same(given.key_type, wanted.key_type)
            and _means_the_same(given.item_type, wanted.item_type)
        )
    if pa.types.is_list(wanted):
        return hasattr(given, "value_type") and not pa.types.is_dictionary(given) and _means_the_same(given.value_type, wanted.value_type)
    pair = (_family(given), _family(wanted))
    return pair[0] == pair[1] or pair in _SAME_VALUES


def type_text(column: Column) -> str:
    """The type of a column in words that a user knows."""
    return column.type if isinstance(column.type, str) else str(arrow_type(column.type))


def _check_nulls(fitted: pa.Table, spec: TableSpec) -> None:
    for column in spec.key_columns:
        _refuse_null(fitted, column, role="key")
    ordering = spec.ordering_column
    if ordering is not None:
        _refuse_null(fitted, ordering, role="ordering")
    for column in spec.table_schema.columns:
        if not column.nullable and fitted.column(column.physical).null_count:
            raise InvalidBatch(f"the column {column.name!r} holds a null, but the table does not allow one: fill it; nothing was written")


def _refuse_null(fitted: pa.Table, column: Column, *, role: str) -> None:
    values = fitted.column(column.physical)
    if values.null_count:
        row = pc.index(pc.is_null(values), True).as_py()
        raise NullKey(f"the {role} column {column.name!r} is null in row {row} of the batch: fill it or filter it out; nothing was written")
    if role == "ordering" and pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        raise NullKey(f"the ordering column {column.name!r} is NaN in the batch, which orders nothing: fill it; nothing was written")
