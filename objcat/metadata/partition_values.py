"""Partition values: texts of rows by the partition spec, and the ranges of them that a filter leaves."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from objcat.metadata.partitioning import DAY_US, HOUR_US, IDENTITY, NULL, TIMES, TRUNCATE, Codes, PartitionField, Partitioning, encoded
from objcat.metadata.schema import Column, TableSchema, arrow_type


def value_text(partitioning: Partitioning, field: PartitionField, column: Column, unit: Any) -> str:
    """The text of one value. unit: as `_units` returns it; None for null."""
    if unit is None:
        return NULL
    assert isinstance(column.type, str)
    return encoded(_say(field, column.type, unit), most=partitioning.value_bytes_max)


_UNITS: Mapping[str, Callable[[int], str]] = {
    "year": lambda years: _year(1970 + years),
    "month": lambda months: f"{_year(1970 + months // 12)}-{months % 12 + 1:02d}",
    "day": lambda days: _date(days),  # noqa: PLW0108 - it is defined below
    "hour": lambda hours: f"{_date(hours // 24)}-{hours % 24:02d}",
}


def _say(field: PartitionField, column_type: str, unit: Any) -> str:
    if field.transform in _UNITS:
        return _UNITS[field.transform](unit)
    if field.transform == TRUNCATE and column_type != "string":
        return str(unit * field.width)
    kind = column_type.partition("(")[0]
    match kind:
        case "boolean":
            return "true" if unit else "false"
        case "date":
            return _date(unit)
        case "timestamp" | "timestamp_ntz":
            seconds, micros = divmod(unit % DAY_US, 1_000_000)
            clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros:06d}"
            return f"{_date(unit // DAY_US)}T{clock}{'Z' if kind == 'timestamp' else ''}"
        case "float" | "double":
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(unit), repr(unit))
        case "decimal":
            return f"{unit:f}"
        case "binary":
            return str(unit.hex())
    return str(unit)


def _year(year: int) -> str:
    return f"{year:04d}" if year >= 0 else f"-{-year:04d}"


def _date(days: int) -> str:
    months = int(np.datetime64(days, "D").astype("datetime64[M]").astype(np.int64))
    first = int(np.datetime64(months, "M").astype("datetime64[D]").astype(np.int64))
    return f"{_year(1970 + months // 12)}-{months % 12 + 1:02d}-{days - first + 1:02d}"


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The partition of every row. texts: ascending, each of some row. codes: for each row the number of its text."""

    texts: tuple[str, ...]
    codes: Codes


def partitions_of(
    partitioning: Partitioning, former: Sequence[Partitioning], live: Collection[str], schema: TableSchema, rows: pa.Table
) -> Partitioned:
    """The partition of each row. It follows the oldest partition spec under which it is live, else the current one.

    Args:
        former: Previous partition specs, the oldest first.
        live: Partitions of previous partition specs that have a file group.
        rows: Under physical names.
    """
    found = _of_one(partitioning, schema, rows)
    for earlier in reversed(former):
        of_earlier = _of_one(earlier, schema, rows)
        is_live = np.array([text in live for text in of_earlier.texts], np.bool_)
        if is_live.any():
            codes = np.where(is_live[of_earlier.codes], of_earlier.codes + len(found.texts), found.codes).astype(np.int32)
            found = _ordered((*found.texts, *of_earlier.texts), codes)
    return found


def _of_one(partitioning: Partitioning, schema: TableSchema, rows: pa.Table) -> Partitioned:
    zeros = np.zeros(rows.num_rows, np.int32)
    if not partitioning.fields:
        return Partitioned((partitioning.text(()),), zeros)
    if not rows.num_rows:
        return Partitioned((), zeros)
    codes = np.zeros(rows.num_rows, np.int64)
    values: list[tuple[str, ...]] = [()]
    for field in partitioning.fields:
        column = schema.by_id(field.column)
        own, units = _units(field, column, rows.column(column.physical))
        said = [value_text(partitioning, field, column, unit) for unit in units]
        if len(said) == 1:
            values = [(*before, said[0]) for before in values]
        else:
            # Dense codes, so that no number of fields overflows.
            codes, used = _dense(codes * len(said) + own)
            values = [(*values[code // len(said)], said[code % len(said)]) for code in used.tolist()]
    return _ordered([partitioning.text(of_row) for of_row in values], codes.astype(np.int32))


def _ordered(texts: Sequence[str], codes: Codes) -> Partitioned:
    """The same with each text once, ascending, without texts that no row has."""
    used = np.flatnonzero(np.bincount(codes, minlength=len(texts))).tolist()
    names = sorted({texts[i] for i in used})
    rank = {name: i for i, name in enumerate(names)}
    if len(names) == 1:
        return Partitioned((names[0],), np.zeros(len(codes), np.int32))
    new = np.zeros(len(texts), np.int32)
    new[used] = [rank[texts[i]] for i in used]
    return Partitioned(tuple(names), new[codes])


def _dense(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    encoding = pa.array(codes).dictionary_encode()
    return np.asarray(encoding.indices.to_numpy(), np.int64), np.asarray(encoding.dictionary.to_numpy(), np.int64)


def _units(field: PartitionField, column: Column, values: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """What is equal in all rows of a partition: the number of each row's value, and the values. None is null."""
    assert isinstance(column.type, str)
    if field.transform != IDENTITY or column.type in ("date", *TIMES):
        values = _NUMBERS[field.transform](values, field.width)
    elif column.type in ("float", "double"):
        values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 becomes 0.0
    bounds = pc.min_max(values) if pa.types.is_integer(values.type) and not values.null_count else None
    if bounds is not None and bounds["min"] == bounds["max"]:
        return np.zeros(len(values), np.int64), [bounds["min"].as_py()]
    encoding = values.combine_chunks()
    if isinstance(encoding, pa.ChunkedArray):
        encoding = pa.concat_arrays([chunk.cast(_LARGE.get(chunk.type, chunk.type)) for chunk in encoding.chunks])
    encoding = encoding.dictionary_encode(null_encoding="encode")
    found = encoding.dictionary.to_pylist()
    if column.type == "float":
        found = [None if one is None else float(one) for one in found]
    return np.asarray(encoding.indices.to_numpy(zero_copy_only=False), np.int64), found


_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def _integers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64()).cast(pa.int64())


def _mapped(values: pa.ChunkedArray, function: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]) -> pa.ChunkedArray:
    """A function of whole numbers over a column. Null stays null."""
    chunks = []
    for chunk in _integers(values).chunks:
        result = function(np.asarray(chunk.fill_null(0).to_numpy(zero_copy_only=False), np.int64))
        mask = np.asarray(chunk.is_null().to_numpy(zero_copy_only=False)) if chunk.null_count else None
        chunks.append(pa.array(result, pa.int64(), mask=mask))
    return pa.chunked_array(chunks, pa.int64())


def _days(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return _integers(values) if pa.types.is_date(values.type) else _mapped(values, lambda us: np.floor_divide(us, DAY_US))


def _calendar(unit: str) -> Callable[[pa.ChunkedArray, int], pa.ChunkedArray]:
    def mapped(values: pa.ChunkedArray, _width: int) -> pa.ChunkedArray:
        return _mapped(_days(values), lambda days: days.astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64))

    return mapped


def _truncated(values: pa.ChunkedArray, width: int) -> pa.ChunkedArray:
    """For numbers, how many widths fit: the lowest number of a partition may be below the range of the type."""
    if pa.types.is_string(values.type):
        return pc.utf8_slice_codeunits(values, 0, min(width, 2**31 - 1))
    return _mapped(values, lambda numbers: np.floor_divide(numbers, width))


_NUMBERS: Mapping[str, Callable[[pa.ChunkedArray, int], pa.ChunkedArray]] = {
    IDENTITY: lambda values, _: _integers(values),
    "hour": lambda values, _: _mapped(values, lambda us: np.floor_divide(us, HOUR_US)),
    "day": lambda values, _: _days(values),
    "month": _calendar("M"),
    "year": _calendar("Y"),
    TRUNCATE: _truncated,
}


@dataclass(frozen=True, slots=True)
class PartitionRanges:
    """Ranges of partitions, both ends included: ascending and disjoint. No range: no partition."""

    lows: tuple[str, ...]
    highs: tuple[str, ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[str, str]]) -> PartitionRanges:
        """The ranges as disjoint ones."""
        lows: list[str] = []
        highs: list[str] = []
        for low, high in sorted(ranges):
            if highs and low <= highs[-1]:
                highs[-1] = max(highs[-1], high)
            else:
                lows.append(low)
                highs.append(high)
        return cls(tuple(lows), tuple(highs))

    @classmethod
    def of_names(cls, partitions: Iterable[str]) -> PartitionRanges:
        """One range for each of some partitions."""
        names = tuple(sorted(set(partitions)))
        return cls(names, names)

    def meets(self, first: str, last: str) -> bool:
        """Whether a partition from `first` to `last`, both included, may be in a range."""
        at = bisect_left(self.highs, first)
        return at < len(self.lows) and self.lows[at] <= last

    def __contains__(self, partition: str) -> bool:
        return self.meets(partition, partition)


COMBINATIONS_MAX = 10_000
"""Combinations of values that a filter may look up one by one."""


_END = "\x7f"
"""Sorts after every character of a partition."""


def spans_of(partitionings: Iterable[Partitioning], schema: TableSchema, fixed: Mapping[str, Sequence[Any]]) -> PartitionRanges | None:
    """The partitions that may hold a row whose columns have one of some values. None if no column does.

    fixed: values by the name of a column; null is none.
    """
    if not fixed:
        return None
    ranges: list[tuple[str, str]] = []
    for partitioning in partitionings:
        begins = [partitioning.mark] if partitioning.mark else [""]
        whole = True
        for field in partitioning.fields:
            column = schema.by_id(field.column)
            values = fixed.get(column.name)
            # A floating literal may differ from the stored value that it matches, such as 0.1 in a column of 32 bits.
            if values is None or column.type in ("float", "double") or len(begins) * len(values) > COMBINATIONS_MAX:
                whole = False
                break
            assert isinstance(column.type, str)
            known = [value for value in values if value is not None]
            _, units = _units(field, column, pa.chunked_array([pa.array(known, arrow_type(column.type))])) if known else ([], [])
            texts = [value_text(partitioning, field, column, unit) for unit in units]
            begins = [f"{begin}/{field.name}={text}" if begin else f"{field.name}={text}" for begin in begins for text in texts]
        if whole:
            ranges += [(begin, begin) for begin in begins]
        elif begins in ([""], [partitioning.mark]):
            # The shape tells which partitions belong to this partition spec. They need not be adjacent.
            first = partitioning.shape[0]
            ranges.append((first, f"{first}{_END}"))
        else:
            ranges += [(f"{begin}/", f"{begin}/{_END}") for begin in begins]
    return PartitionRanges.of(ranges)


def leading_bounds(partitioning: Partitioning, schema: TableSchema, first: str, last: str) -> tuple[int, int] | None:
    """The least and greatest value of the first field's column in the partitions from `first` to `last`.

    Known for transforms of dates and times in years of four digits, as days or microseconds since 1970. Then no value is null. Else None.
    """
    if not partitioning.fields or partitioning.mark:
        return None
    field = partitioning.fields[0]
    column = schema.by_id(field.column)
    parsed = [_MOMENT.fullmatch(partition.split("/")[0].partition("=")[2]) for partition in (first, last)]
    if field.transform not in _UNITS or not all(p.startswith(f"{field.name}=") for p in (first, last)) or None in parsed:
        return None
    low, high = (_least_day_and_hour(found, later=later) for found, later in zip(parsed, (False, True), strict=True) if found is not None)
    if column.type == "date":
        return low[0], high[0] - 1
    return low[0] * DAY_US + low[1] * HOUR_US, high[0] * DAY_US + high[1] * HOUR_US - 1


_MOMENT = re.compile(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?(?:-(\d\d))?")


def _least_day_and_hour(found: re.Match[str], *, later: bool) -> tuple[int, int]:
    """When a year, month, day or hour begins, or with `later` the next one: the day since 1970, and the hour."""
    year, month, day, hour = (None if part is None else int(part) for part in found.groups())
    months = (year or 0) * 12 + (month or 1) - 1970 * 12 - 1
    if later and day is None:
        months += 12 if month is None else 1
    days = int(np.datetime64(months, "M").astype("datetime64[D]").astype(np.int64)) + (day or 1) - 1
    if not later or day is None:
        return days, hour or 0
    return (days + 1, 0) if hour is None else (days + (hour + 1) // 24, (hour + 1) % 24)
