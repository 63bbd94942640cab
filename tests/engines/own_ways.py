"""Rows as an engine shows them that has its own way with names, types or columns: exactly what objcat's rows become by it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as at

from tests.engines.limits import LOWER_CASE, MILLISECONDS, NULLS_AS_EMPTY, WIDENED_HIDDEN
from tests.engines.readers.serve import Request
from tests.engines.rows import compare

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND_MAX = 253_402_300_799_999
"""The last one of the year 9999, since the epoch."""
READ_BY_TRINO = {("byte", "short"), ("byte", "integer"), ("short", "integer")}
"""Changes of types of Delta that Trino knows."""
EMPTIES = ("chdb", "pyiceberg", "polars")
"""Engines that lose nulls of nested types, some of them or all."""
Show = Callable[[pa.Table, Request], pa.Table]
"""Rows of objcat, as an engine shows them for a request."""


def differences(truth: pa.Table, found: pa.Table, engine: str, request: Request) -> tuple[str, ...]:
    """Nothing where the rows are equal. Else the ways of the engine that explain all of it, or how the rows differ."""
    difference = compare(truth, found)
    if difference is None:
        return ()
    used: list[str] = []
    for name, show in WAYS.get((engine, request.format), ()):
        shown = show(truth, request)
        if shown is not truth:
            truth, used = shown, [*used, name]
    for empties in (False, True) if engine in EMPTIES else (False,):
        softer = compare(truth, found, empties=empties)
        if softer is None or softer.shapes:
            return (*used, *sorted(softer.shapes if softer else ()), *([NULLS_AS_EMPTY] if empties else []))
    return (difference.text,)


def _in_lower_case(truth: pa.Table, _request: Request) -> pa.Table:
    names = [name.lower() for name in truth.column_names]
    return truth if names == truth.column_names else truth.rename_columns(names)


def _without_widened(truth: pa.Table, request: Request) -> pa.Table:
    """Without columns that the Delta log says were widened, in the newest metadata up to the slot."""
    log = Path(request.prefix, "_delta_log")
    for commit in sorted(log.glob("*.json"), reverse=True):
        if int(commit.stem) > request.slot:
            continue
        for line in commit.read_text().splitlines():
            metadata = json.loads(line).get("metaData")
            if metadata is not None:
                fields = json.loads(metadata["schemaString"])["fields"]
                hidden = [field["name"] for field in fields if not {*_type_changes(field)} <= READ_BY_TRINO]
                return truth.drop_columns(hidden) if hidden else truth
    raise AssertionError(f"there is no metadata up to slot {request.slot} below {log}")


def _type_changes(said: Any) -> Iterator[tuple[str, str]]:
    """All changes of types in a field, also of fields within it."""
    if isinstance(said, dict):
        yield from ((change["fromType"], change["toType"]) for change in said.get("delta.typeChanges", ()))
    for inside in said.values() if isinstance(said, dict) else said if isinstance(said, list) else ():
        yield from _type_changes(inside)


def _in_milliseconds(truth: pa.Table, _request: Request) -> pa.Table:
    """With times in a zone rounded to milliseconds, also within nested values, but none after the year 9999."""
    before = truth.columns
    columns = [_rounded_column(column, field) for column, field in zip(before, truth.schema, strict=True)]
    return pa.table(columns, truth.schema) if any(one is not other for one, other in zip(columns, before, strict=True)) else truth


def _rounded_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    values = column.to_pylist()
    rounded = [_rounded(value, field.type) for value in values]
    return column if repr(rounded) == repr(values) else pa.chunked_array([pa.array(rounded, field.type)])


def _rounded(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if at.is_timestamp(kind) and kind.tz is not None:
        assert isinstance(value, dt.datetime)
        micros = (value - EPOCH) // dt.timedelta(microseconds=1)
        return EPOCH + dt.timedelta(microseconds=min((micros + 500) // 1000, MILLISECOND_MAX) * 1000)
    if at.is_struct(kind):
        return {field.name: _rounded(value[field.name], field.type) for field in kind}
    if at.is_map(kind):
        return [(_rounded(key, kind.key_type), _rounded(item, kind.item_type)) for key, item in value]
    return [_rounded(item, kind.value_type) for item in value] if at.is_list(kind) else value


WAYS: Mapping[tuple[str, str], Sequence[tuple[str, Show]]] = {
    ("trino", "iceberg"): ((LOWER_CASE, _in_lower_case),),
    ("trino", "delta"): ((WIDENED_HIDDEN, _without_widened), (LOWER_CASE, _in_lower_case), (MILLISECONDS, _in_milliseconds)),
}
"""By engine and format. They are tried in this order, and only where rows differ."""
