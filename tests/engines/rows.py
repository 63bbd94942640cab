"""Rows of an engine beside rows of objcat: one way to compare them, whatever types the engine gives values in."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as at

WHOLE = {8: "int", 16: "int", 32: "int", 64: "bigint"}
"""Neither format has whole numbers of less than 32 bits in all engines; what such a column may hold is checked by its values."""
SHOWN_MOST = 3


@dataclass(frozen=True)
class Difference:
    """How rows differ. text: for people. shapes: which types came as which others, where the values are equal."""

    text: str
    shapes: frozenset[str] = frozenset()


def compare(truth: pa.Table, found: pa.Table, *, empties: bool = False) -> Difference | None:
    """None where the rows are equal, as a bag of rows with the same columns in any order of rows.

    empties: whether a null of a nested type equals an empty value of it, for engines that have no such null.
    """
    if truth.column_names != found.column_names:
        return Difference(f"columns {found.column_names} instead of {truth.column_names}")
    shapes = frozenset(
        f"{wanted} as {given}"
        for field, other in zip(truth.schema, found.schema, strict=True)
        for wanted, given in _differing(field.type, other.type)
    )
    wanted, given = _bag(truth, truth.schema, empties), _bag(found, truth.schema, empties)
    if wanted == given:
        return Difference(f"equal, with {', '.join(sorted(shapes))}", shapes) if shapes else None
    missing, unknown = wanted - given, given - wanted
    counts = f"{truth.num_rows} rows, and {found.num_rows} came: {missing.total()} are missing, {unknown.total()} are not of this state"
    return Difference(f"{counts}; missing {_some(missing)}; not of this state {_some(unknown)}")


def _bag(rows: pa.Table, schema: pa.Schema, empties: bool) -> Counter[tuple[Any, ...]]:
    columns = [
        [comparable(value, field.type, empties) for value in _microseconds(rows.column(number)).to_pylist()]
        for number, field in enumerate(schema)
    ]
    return Counter(zip(*columns, strict=True)) if columns else Counter()


def _some(rows: Counter[tuple[Any, ...]]) -> str:
    return str([*rows][:SHOWN_MOST])


def _microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without this, times in nanoseconds become values of pandas."""
    kind = column.type
    return column.cast(pa.timestamp("us", kind.tz)) if at.is_timestamp(kind) and kind.unit != "us" else column


def comparable(value: Any, kind: pa.DataType, empties: bool) -> Any:
    """A value that equals another one, and hashes like it, when both mean the same under this type of objcat."""
    if value is None:
        return _empty(kind) if empties else None
    if at.is_struct(kind):
        inside = [comparable(value.get(field.name), field.type, empties) for field in kind]
        return _empty(kind) if empties and not any(item for item in inside) else tuple(inside)
    if at.is_map(kind):
        pairs = [(item["key"], item["value"]) if isinstance(item, dict) else item for item in _items(value)]
        return tuple(
            sorted(((comparable(key, kind.key_type, empties), comparable(item, kind.item_type, empties)) for key, item in pairs), key=repr)
        )
    if at.is_list(kind):
        return tuple(comparable(item, kind.value_type, empties) for item in value)
    return _plain(value, kind)


def _items(value: Any) -> Sequence[Any]:
    return list(value.items()) if isinstance(value, dict) else value


def _empty(kind: pa.DataType) -> Any:
    if at.is_struct(kind):
        return tuple(_empty(field.type) for field in kind)
    return () if at.is_map(kind) or at.is_list(kind) else None


def _plain(value: Any, kind: pa.DataType) -> Any:
    if at.is_string(kind):
        return value.decode() if isinstance(value, bytes) else value
    if at.is_binary(kind):
        return value.encode() if isinstance(value, str) else value
    if isinstance(value, Decimal):
        return str(value.normalize() if value else Decimal(0))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else "-0.0" if value == 0 and math.copysign(1, value) < 0 else value
    if isinstance(value, dt.datetime):
        moment = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        return moment.isoformat()
    return value


def _differing(wanted: pa.DataType, given: pa.DataType) -> list[tuple[str, str]]:
    """The types that came as others, also within nested ones."""
    if at.is_struct(wanted) and at.is_struct(given):
        if [field.name for field in wanted] != [field.name for field in given]:
            return [(str(wanted), str(given))]
        return [pair for one, other in zip(wanted, given, strict=True) for pair in _differing(one.type, other.type)]
    if at.is_map(wanted) and at.is_map(given):
        return [*_differing(wanted.key_type, given.key_type), *_differing(wanted.item_type, given.item_type)]
    if at.is_list(wanted) and _is_list(given):
        return _differing(wanted.value_type, given.value_type)
    pair = (_shape(wanted), _shape(given))
    return [] if pair[0] == pair[1] else [pair]


def _is_list(kind: pa.DataType) -> bool:
    return bool(at.is_list(kind) or at.is_large_list(kind) or at.is_list_view(kind) or at.is_large_list_view(kind))


def _shape(kind: pa.DataType) -> str:
    """The name of a type without what does not matter: units of times that all hold microseconds, sizes of offsets, names of zones."""
    if at.is_dictionary(kind):
        return _shape(kind.value_type)
    if at.is_signed_integer(kind):
        return WHOLE[kind.bit_width]
    if at.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if at.is_string(kind) or at.is_large_string(kind) or at.is_string_view(kind):
        return "string"
    if at.is_binary(kind) or at.is_large_binary(kind) or at.is_binary_view(kind):
        return "binary"
    if at.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    for is_kind, name in ((at.is_struct, "struct"), (at.is_map, "map"), (_is_list, "list")):
        if is_kind(kind):
            return name
    return str(kind)
