"""Which log rows certainly win over the base row of their key: those whose ordering values are not below the greatest of the base file.

Footers say between which values the rows of a file lie. What a footer does not say for certain is unknown, and then rows are compared one
by one, as `objcat.datafile.merge` does: where ordering values are null, in columns without statistics, of floating-point numbers, whose NaN
is in no bound, or of a type that was widened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from objcat.datafile.merge import OP_COLUMN, OP_DELETE, has_order
from objcat.datafile.statistics import leaves, reader_of
from objcat.metadata.ordering import OrderingBounds
from objcat.metadata.schema import FIELD_ID_KEY, Column, arrow_type


def ordering_bounds(footer: pq.FileMetaData, schema: pa.Schema, ordering: Sequence[Column]) -> OrderingBounds | None:
    """The bounds that a footer gives. None where they are not known.

    Args:
        footer: of a file that objcat wrote.
        schema: of the same file.
        ordering: the ordering columns, one at least.
    """
    places = _places(schema)
    least: list[Any] = []
    greatest: list[Any] = []
    has_nulls = is_empty = is_cut = False
    for column in ordering:
        if column.id not in places:
            return None
        leaf, data_type = places[column.id]
        chunks = [footer.row_group(number).column(leaf) for number in range(footer.num_row_groups)]
        known = [(chunk.num_values, chunk.statistics) for chunk in chunks if chunk.num_values]
        if any(one is None or not one.has_null_count for _, one in known):
            return None
        some = [one for count, one in known if one.null_count < count]
        has_nulls |= any(one.null_count for _, one in known)
        is_empty |= not some
        is_cut |= not _is_comparable(data_type, column) or not all(one.has_min_max for one in some)
        if some and not is_cut:
            read = _bytes if pt.is_string(data_type) else reader_of(data_type)
            least.append(min(read(one.min_raw) for one in some))
            greatest.append(max(read(one.max_raw) for one in some))
    if is_empty:
        return OrderingBounds(None, None, is_whole=True, has_nulls=has_nulls)
    return OrderingBounds(tuple(least), tuple(greatest), is_whole=not is_cut, has_nulls=has_nulls) if least else None


def are_later(rows: pa.Table, ordering: Sequence[Column], bounds: OrderingBounds) -> bool:
    """Whether each of some log rows wins over every row of a file, so that keys alone say which rows of the file stay.

    A delete without an ordering value always does.

    Args:
        rows: under physical names, with their operation.
        ordering: the ordering columns.
        bounds: of the file.
    """
    if bounds.has_nulls:
        return False
    if bounds.greatest is None:
        return True
    ordered = has_order(rows, [column.physical for column in ordering])
    settled = pc.if_else(ordered, are_not_below(rows, ordering, bounds), pc.equal(rows.column(OP_COLUMN), OP_DELETE))
    return not pc.any(pc.invert(settled)).as_py()


def are_not_below(rows: pa.Table, ordering: Sequence[Column], bounds: OrderingBounds) -> pa.Array | pa.ChunkedArray:
    """For each row, whether its ordering values are certainly not below the greatest of some bounds. False without such values.

    rows: under physical names. ordering: the ordering columns. bounds: with greatest values.
    """
    assert bounds.greatest is not None
    later: Any = pa.repeat(bounds.is_whole, rows.num_rows)
    for column, value in reversed([*zip(ordering, bounds.greatest, strict=False)]):
        values = rows.column(column.physical)
        if pt.is_string(values.type):
            values = values.cast(pa.binary())
        limit = _scalar(value, values.type)
        later = pc.or_(pc.greater(values, limit), pc.and_(pc.equal(values, limit), later))
    return pc.fill_null(later, False)


def _places(schema: pa.Schema) -> Mapping[int, tuple[int, pa.DataType]]:
    """Where each plain column of a file is among its leaves, and its type, by id."""
    found: dict[int, tuple[int, pa.DataType]] = {}
    leaf = 0
    for field in schema:
        column_id = (field.metadata or {}).get(FIELD_ID_KEY)
        if column_id is not None and not pt.is_nested(field.type):
            found[int(column_id)] = (leaf, field.type)
        leaf += leaves(field.type)
    return found


def _is_comparable(data_type: pa.DataType, column: Column) -> bool:
    """Whether values of a footer compare as those of the column do."""
    wanted = arrow_type(column.type)
    if pt.is_signed_integer(data_type) and pt.is_signed_integer(wanted):
        return True
    if pt.is_decimal(data_type) and pt.is_decimal(wanted):
        return bool(data_type.scale == wanted.scale)
    return bool(data_type == wanted) and (pt.is_string(wanted) or pt.is_date32(wanted) or pt.is_timestamp(wanted))


def _bytes(raw: str | bytes) -> bytes:
    return raw.encode() if isinstance(raw, str) else bytes(raw)


def _scalar(value: Any, data_type: pa.DataType) -> pa.Scalar:
    """A value as Arrow compares it with a column."""
    if pt.is_binary(data_type):
        return pa.scalar(value, data_type)
    if pt.is_decimal(data_type):
        return pa.scalar(Decimal(value).scaleb(-data_type.scale, Context(prec=data_type.precision + 1)), data_type)
    return pa.scalar(value, pa.int32() if pt.is_date(data_type) else pa.int64()).cast(data_type)
