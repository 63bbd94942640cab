"""Column bounds of a data file, from the footer statistics of its writer. No row is read again."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from objcat.metadata.column_defaults import default_bounds
from objcat.metadata.files import BaseFile, Bound
from objcat.metadata.manifest import Pruning
from objcat.metadata.manifest_rows import ManifestChange, rows_of
from objcat.metadata.schema import FIELD_ID_KEY, HIDDEN_PREFIX, Column
from objcat.metadata.table_spec import TableSpec
from objcat.timeline.entry import FileGroupId

BOUND_BYTES_MAX = 64
"""UTF-8 bytes of a text bound. A longer one is cut, and an upper bound is rounded up."""
COLUMNS_MAX = 32
"""Columns of a file with bounds, from the first one on, besides those that always have them. It limits the metadata of wide tables."""

_SURROGATES = range(0xD800, 0xE000)
_LAST = 0x10FFFF


def bounds_of(footer: pq.FileMetaData, schema: pa.Schema, *, always: Collection[int] = ()) -> dict[int, Bound]:
    """By field id, the bounds of columns that have an id and are not nested. Columns without known bounds are missing.

    In an empty file, every column has none.

    Args:
        footer: of a file with the columns of `schema`, in order.
        always: columns with bounds, however many come before them.
    """
    found: dict[int, Bound] = {}
    leaf = others = 0
    for field in schema:
        column_id = (field.metadata or {}).get(FIELD_ID_KEY)
        is_due = column_id is not None and not pt.is_nested(field.type) and (others < COLUMNS_MAX or int(column_id) in always)
        if column_id is not None and is_due:
            bound = _bound([footer.row_group(i).column(leaf) for i in range(footer.num_row_groups)], field.type)
            if bound is not None:
                found[int(column_id)] = bound
                others += int(column_id) not in always
        leaf += leaves(field.type)
    return found


def row_groups_that_may_match(
    footer: pq.FileMetaData,
    schema: pa.Schema,
    where: Pruning,
    spec: TableSpec,
    *,
    among: range | None = None,
    has_own_fields: bool = False,
) -> list[int]:
    """The numbers of the row groups that may hold a matching row. Columns without a field id exclude nothing.

    Args:
        footer: of one file.
        schema: of the same file.
        among: only these row groups. None: all.
        has_own_fields: whether ids of fields inside of structs are those of the table, as in every file of objcat.
    """
    numbers = range(footer.num_row_groups) if among is None else among
    placed: dict[int, tuple[int, pa.DataType]] = {}
    leaf = 0
    for field in schema:
        for column_id, at, data_type in _leaves_with_ids(field, leaf, is_deep=has_own_fields):
            if column_id in where.columns:
                placed[column_id] = (at, data_type)
        leaf += leaves(field.type)
    absent = _bounds_of_absent(schema, where, spec)
    changes = []
    for number in numbers:
        group = footer.row_group(number)
        found = {column_id: _bound([group.column(at)], data_type) for column_id, (at, data_type) in placed.items()}
        known = absent | {column_id: bound for column_id, bound in found.items() if bound is not None}
        # Bounds are compared like those of a manifest, with a row group in place of a file.
        group_id = FileGroupId("", number, footer.num_row_groups)
        changes.append(ManifestChange(group_id, base=BaseFile(path="", bytes=0, rows=group.num_rows, group_id=group_id, bounds=known)))
    return [numbers[at] for at in np.flatnonzero(where.may_match(rows_of(changes, spec), spec)).tolist()]


def _leaves_with_ids(field: pa.Field, first: int, *, is_deep: bool) -> Iterator[tuple[int, int, pa.DataType]]:
    """The id, place and type of a plain column, or of plain fields of structs. first: the place of its first leaf."""
    column_id = (field.metadata or {}).get(FIELD_ID_KEY)
    if not pt.is_nested(field.type):
        if column_id is not None:
            yield int(column_id), first, field.type
    elif is_deep and pt.is_struct(field.type):
        for inner in field.type:
            yield from _leaves_with_ids(inner, first, is_deep=True)
            first += leaves(inner.type)


class RunningBounds:
    """The bounds of rows that pass by, of a file without statistics.

    Args:
        columns: of the table, in order. Nested ones have no bounds.
        always: ids of columns with bounds, however many come before them.
        fields: of structs, with bounds too, each as the columns that lead to it.
    """

    def __init__(self, columns: Sequence[Column], *, always: Collection[int] = (), fields: Sequence[tuple[Column, ...]] = ()) -> None:
        self._fields = fields
        plain = [column for column in columns if isinstance(column.type, str)]
        others = [column for column in plain if column.id not in always][:COLUMNS_MAX]
        self._columns = [column for column in plain if column.id in always or column in others]
        self._types: dict[int, pa.DataType] = {}
        self._extremes: dict[int, tuple[Any, Any]] = {}
        self._nulls: dict[int, int] = {}

    def add(self, rows: pa.Table) -> None:
        """Take in rows, under physical names. A column that is missing once is not known."""
        for column in self._columns:
            if column.physical in rows.column_names:
                self._meet(column.id, rows.column(column.physical))
        for path in self._fields:
            if path[0].physical in rows.column_names:
                values = rows.column(path[0].physical)
                names = [step.physical for step in path[1:]]
                if _has_field(values.type, names):
                    self._meet(path[-1].id, pc.struct_field(values, names))

    def _meet(self, column_id: int, values: pa.ChunkedArray) -> None:
        self._types[column_id] = values.type
        self._nulls[column_id] = self._nulls.get(column_id, 0) + values.null_count
        if pt.is_temporal(values.type):
            values = values.cast(pa.int32() if pt.is_date(values.type) else pa.int64())
        elif pt.is_floating(values.type):
            values = values.filter(pc.invert(pc.is_nan(values)))
        found = pc.min_max(values).as_py()
        if found["min"] is None:
            return
        low, high = self._extremes.get(column_id, (found["min"], found["max"]))
        self._extremes[column_id] = min(low, found["min"]), max(high, found["max"])

    def found(self) -> dict[int, Bound]:
        """By column id, the bounds of all rows so far."""
        return {column_id: (*self._said(column_id), nulls) for column_id, nulls in self._nulls.items()}

    def _said(self, column_id: int) -> tuple[Any, Any]:
        if column_id not in self._extremes:
            return None, None
        data_type = self._types[column_id]
        low, high = self._extremes[column_id]
        if pt.is_decimal(data_type):
            return str(low), str(high)
        return _say(low, data_type, upper=False), _say(high, data_type, upper=True)


def _has_field(data_type: pa.DataType, names: Sequence[str]) -> bool:
    for name in names:
        if not pt.is_struct(data_type) or data_type.get_field_index(name) < 0:
            return False
        data_type = data_type.field(name).type
    return True


def _bounds_of_absent(schema: pa.Schema, where: Pruning, spec: TableSpec) -> dict[int, Bound]:
    """The bounds of columns that a file of objcat lacks, and whose rows have a default there. None of a file of another tool."""
    if any(FIELD_ID_KEY not in (field.metadata or {}) for field in schema if not field.name.startswith(HIDDEN_PREFIX)):
        return {}
    names = set(schema.names)
    absent = [column for column in spec.table_schema.columns if column.id in where.columns and column.physical not in names]
    return {column.id: bound for column in absent if (bound := default_bounds(column)) is not None}


def leaves(data_type: pa.DataType) -> int:
    """How many columns of a file hold the values of a type."""
    if not pt.is_nested(data_type):
        return 1
    return sum(leaves(data_type.field(i).type) for i in range(data_type.num_fields))


def _bound(chunks: Sequence[pq.ColumnChunkMetaData], data_type: pa.DataType) -> Bound | None:
    chunks = [chunk for chunk in chunks if chunk.num_values]
    statistics = [chunk.statistics for chunk in chunks]
    if any(one is None or not one.has_null_count for one in statistics):
        return None
    nulls = sum(one.null_count for one in statistics)
    some = [one for one, chunk in zip(statistics, chunks, strict=True) if one.null_count < chunk.num_values]
    lower = upper = None
    if some and all(one.has_min_max for one in some):
        read = reader_of(data_type)
        lows, highs = [read(one.min_raw) for one in some], [read(one.max_raw) for one in some]
        # Other writers may have NaN for a bound of a row group, which compares with nothing.
        if not (pt.is_floating(data_type) and any(map(math.isnan, [*lows, *highs]))):
            lower, upper = _say(min(lows), data_type, upper=False), _say(max(highs), data_type, upper=True)
    return lower, upper, nulls


def reader_of(data_type: pa.DataType) -> Callable[[Any], Any]:
    """A function from footer values to values that compare like the column."""
    if pt.is_decimal(data_type):
        return lambda raw: int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)
    return lambda raw: raw


def _say(value: Any, data_type: pa.DataType, *, upper: bool) -> bool | int | float | str | None:
    """A bound as JSON. None if that is not possible."""
    if pt.is_decimal(data_type):
        return str(decimal.Decimal(value).scaleb(-data_type.scale, decimal.Context(prec=data_type.precision + 1)))
    if pt.is_floating(data_type):
        # JSON has no infinity, and NaN is no bound.
        return float(value) if abs(value) < float("inf") else None
    if pt.is_string(data_type) or pt.is_binary(data_type):
        raw = value.encode() if isinstance(value, str) else value
        return _cut_bytes(raw, upper=upper) if pt.is_binary(data_type) else _cut_text(raw, upper=upper)
    return bool(value) if pt.is_boolean(data_type) else int(value)


def _cut_bytes(raw: bytes, *, upper: bool) -> str | None:
    if len(raw) <= BOUND_BYTES_MAX:
        return raw.hex()
    if not upper:
        return raw[:BOUND_BYTES_MAX].hex()
    short = raw[:BOUND_BYTES_MAX].rstrip(b"\xff")
    return (short[:-1] + bytes([short[-1] + 1])).hex() if short else None


def _cut_text(raw: bytes, *, upper: bool) -> str | None:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    if len(raw) <= BOUND_BYTES_MAX:
        return text
    short = raw[:BOUND_BYTES_MAX].decode(errors="ignore")
    if not upper:
        return short
    short = short.rstrip(chr(_LAST))
    if not short:
        return None
    following = ord(short[-1]) + 1
    return short[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
