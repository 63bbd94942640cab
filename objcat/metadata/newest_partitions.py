"""The newest partitions of a table, in the order of their values. Their texts may sort differently."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

from objcat.metadata.partitioning import NULL, TRUNCATE, PartitionField, shape_of
from objcat.metadata.table_spec import TableSpec

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_MOMENTS = ("year", "month", "day", "hour")
_YEAR = re.compile(r"(-?\d+)(.*)")

_Order: TypeAlias = tuple[Any, ...]


def newest_first(partitions: Iterable[str], spec: TableSpec) -> list[str]:
    """Partitions from the last to the first, by the values of their columns in turn. A null comes before every value.

    Numbers, dates and times compare as such, texts by their bytes. Partitions of previous partition specs have no place among the current
    ones. They are the oldest, in the order of their texts.
    """
    present = spec.partitioning
    fields = [(field, str(spec.table_schema.by_id(field.column).type)) for field in present.fields]

    def order(partition: str) -> _Order:
        if shape_of(partition) != present.shape:
            return (0, partition)
        values = [part.partition("=")[2] for part in partition.split("/")] if fields else []
        values = values[len(values) - len(fields) :]
        return (1, *(_order_of(value, field, data_type) for value, (field, data_type) in zip(values, fields, strict=True)))

    return sorted(partitions, key=order, reverse=True)


def _order_of(value: str, field: PartitionField, data_type: str) -> _Order:
    """The sort key of one value's text."""
    if value == NULL:
        return (0,)
    raw = unquote_to_bytes(value)
    kind = data_type.partition("(")[0]
    if field.transform in _MOMENTS or kind in ("date", "timestamp", "timestamp_ntz"):
        found = _YEAR.fullmatch(raw.decode())
        assert found is not None, f"{value!r} begins with a year"
        return (1, int(found[1]), found[2])
    if kind not in _NUMBERS:
        return (1, raw)
    if kind in ("float", "double"):
        number = float(raw)
        return (1, 1, 0.0) if math.isnan(number) else (1, 0, number)
    if field.transform == TRUNCATE or kind != "decimal":
        return (1, int(raw))
    return (1, _decimal(raw.decode()))


def _decimal(text: str) -> int:
    """A decimal without its point. All values of a column have one scale."""
    return int(text.replace(".", ""))
