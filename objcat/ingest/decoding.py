"""Raw values of a source as columns of the lake: decoded for a column at once, masked, and without the rows that do not fit."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from objcat.errors import IngestStopped
from objcat.ingest.config import Mask
from objcat.ingest.model import BadRecord, ChangeKind, ChangeStamp, KeyValues, Row, SourceColumn, SourceTable
from objcat.ingest.packed_row import PackedRow
from objcat.ingest.routes import DELETED, OPERATION, SEQUENCE, SOURCE_POSITION, SOURCE_TIME, RoutedTable
from objcat.sourcefiles.values import UNFIT


@dataclass(frozen=True, slots=True)
class DecodedValue:
    """A value that came from the lake, among raw ones."""

    value: Any


class RowWrite(msgspec.Struct, frozen=True, gc=False):
    """A row to write.

    Args:
        key: its raw key.
        row: raw values by column; the key columns may be missing, then `key` has them.
        kind: by which operation it came.
        stamp: of the change.
        sequence: greater than that of an earlier change of the transaction.
    """

    key: KeyValues
    row: Row
    kind: ChangeKind | str
    stamp: ChangeStamp
    sequence: int = 0


def decode_rows(
    routed: RoutedTable, table: SourceTable, columns: Sequence[str], rows: Sequence[RowWrite]
) -> tuple[pa.Table, list[BadRecord], int]:
    """Rows as a table of the lake.

    Args:
        routed: where they go.
        table: the schema of their raw values.
        columns: which of its columns to take.
        rows: the rows.

    Returns:
        The rows that fit, a record for each that does not, and how many values are null since no type of the lake holds them. Rows
        that differ in how they are read come one kind after the other.
    """
    packed = [row for row in rows if isinstance(row.row, PackedRow) and row.row.table is table]
    if not packed:
        return _decoded(routed, table, columns, rows, None)
    found = [_decoded(routed, table, columns, packed, _read_columns(packed))]
    if len(packed) < len(rows):
        others = [row for row in rows if not isinstance(row.row, PackedRow) or row.row.table is not table]
        found.append(_decoded(routed, table, columns, others, None))
    return (
        pa.concat_tables([made for made, _, _ in found]),
        [one for _, bad, _ in found for one in bad],
        sum(nulled for _, _, nulled in found),
    )


def _read_columns(rows: Sequence[RowWrite]) -> Mapping[str, Any]:
    """The columns of packed rows of one schema. Raises IngestStopped, which names the first row that cannot be read."""
    packed: list[Any] = [row.row for row in rows]
    table: SourceTable = packed[0].table
    read: Callable[[SourceTable, Sequence[Any]], Mapping[str, pa.Array]] = type(packed[0]).read_columns
    try:
        return read(table, packed)
    except UNFIT:
        for row in rows:
            try:
                read(table, [row.row])
            except UNFIT as error:
                raise IngestStopped(
                    f"A row of {table.name} with the key {row.key!r} at the position {row.stamp.position} cannot be read: {error}. "
                    "Nothing of this batch was written. Skip the table by a route, or leave the transaction out by `objcat ingest skip`."
                ) from error
        raise


def _decoded(
    routed: RoutedTable, table: SourceTable, columns: Sequence[str], rows: Sequence[RowWrite], read: Mapping[str, pa.Array] | None
) -> tuple[pa.Table, list[BadRecord], int]:
    """See `decode_rows`. read: the raw values by column, where they were read together."""
    places = {name: at for at, name in enumerate(table.key)}
    arrays, fields, errors, nulled = [], [], dict[int, str](), 0
    for column in routed.written(table):
        if column.name not in columns:
            continue
        at = places.get(column.name)
        raw: Sequence[Any] | pa.Array
        if read is not None:
            raw = read[column.name]
        elif at is None:
            raw = [row.row.get(column.name) for row in rows]
        else:
            raw = [row.row.get(column.name, row.key[at]) for row in rows]
        array, bad = decode_column(column, raw)
        errors |= {place: f"{column.name}: {why}" for place, why in bad.items()}
        nulled += nulled_values(column, raw, array, bad)
        arrays.append(masked(array, routed.route.mask.get(column.name), routed.route.mask_secret))
        fields.append(routed.field(column).with_nullable(True))
    for name, data_type, values in _own_columns(routed, rows):
        arrays.append(pa.array(values, data_type))
        fields.append(pa.field(name, data_type))
    made = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    if not errors:
        return made, [], nulled
    keep = pa.array([place not in errors for place in range(len(rows))])
    return made.filter(keep), [_record(table, rows[place], why) for place, why in sorted(errors.items())], nulled


def decode_column(column: SourceColumn, raw: Sequence[Any] | pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Raw values of a column as an array. Values that do not fit are null in it, with the reason by their place.

    A source may pass an array of its own raw values, such as text, or of the type of the column, which needs no decoding.
    """
    if len(raw) == 0:
        return pa.array([], column.type), {}
    if not isinstance(raw, pa.Array):
        lake = [place for place, value in enumerate(raw) if isinstance(value, DecodedValue)]
        if lake:
            return _with_lake_values(column, raw, set(lake))
    if isinstance(raw, pa.Array) and raw.type.equals(column.type):
        return raw, {}
    try:
        return column.decode(raw, column.type), {}
    except UNFIT:
        pass
    if isinstance(raw, pa.Array):
        raw = raw.to_pylist()
    good, bad = [], dict[int, str]()
    nothing = pa.nulls(1, column.type)
    for place, value in enumerate(raw):
        try:
            good.append(column.decode([value], column.type))
        except UNFIT as error:
            bad[place] = " ".join(str(error).split())[:500]
            good.append(nothing)
    return pa.concat_arrays(good), bad


def nulled_values(column: SourceColumn, raw: Sequence[Any] | pa.Array, array: pa.Array, bad: Mapping[int, str]) -> int:
    """How many values of a column became null because its type in the lake does not hold them, such as an infinite time.

    Elements of arrays count too. column, raw, array, bad: what `decode_column` took and gave.
    """
    within = 0 if column.nulls_within is None else _nulled_elements(column.nulls_within, raw, array, bad)
    if array.null_count == len(bad):
        return within
    before = raw.null_count if isinstance(raw, pa.Array) else sum(1 for value in raw if _plain(value) is None)
    return int(array.null_count) - before - len(bad) + within


def _nulled_elements(
    nulls_within: Callable[[Sequence[Any]], int], raw: Sequence[Any] | pa.Array, array: pa.Array, bad: Mapping[int, str]
) -> int:
    """How many elements of arrays became null. Raw values are looked into only where elements are null."""
    after = array.flatten().null_count
    if not after:
        return 0
    given = [value for place, value in enumerate(raw.to_pylist() if isinstance(raw, pa.Array) else raw) if place not in bad]
    of_lake = [value.value for value in given if isinstance(value, DecodedValue) and value.value is not None]
    of_source = [value for value in given if value is not None and not isinstance(value, DecodedValue)]
    return int(after) - sum(item is None for one in of_lake for item in one) - nulls_within(of_source)


def _with_lake_values(column: SourceColumn, raw: Sequence[Any], lake: set[int]) -> tuple[pa.Array, dict[int, str]]:
    plain, bad = decode_column(column, [None if place in lake else value for place, value in enumerate(raw)])
    values = [raw[place].value if place in lake else value for place, value in enumerate(plain.to_pylist())]
    return pa.array(values, column.type), bad


def masked(array: pa.Array | pa.ChunkedArray, mask: Mask | None, secret: str) -> pa.Array | pa.ChunkedArray:
    """A decoded column as it is written."""
    if mask is None:
        return array
    if mask == "null":
        return pa.nulls(len(array), array.type)
    texts = array if pa.types.is_string(array.type) else pc.cast(array, pa.binary() if pa.types.is_binary(array.type) else pa.string())
    keyed = secret.encode()

    def digest(value: Any) -> str | None:
        if value is None:
            return None
        data = value if isinstance(value, bytes) else value.encode()
        return hmac.new(keyed, data, hashlib.sha256).hexdigest()

    return pa.array([digest(value) for value in texts.to_pylist()], pa.string())


def own_columns(routed: RoutedTable, kind: str, stamp: ChangeStamp, count: int) -> list[tuple[pa.Field, pa.Array]]:
    """The columns of objcat itself for rows that all came in the same way."""
    row = RowWrite((), {}, kind, stamp)
    return [(pa.field(name, data_type), pa.array(values, data_type)) for name, data_type, values in _own_columns(routed, [row] * count)]


def _own_columns(routed: RoutedTable, rows: Sequence[RowWrite]) -> list[tuple[str, pa.DataType, list[Any]]]:
    made: list[tuple[str, pa.DataType, list[Any]]] = []
    if routed.is_soft:
        made.append((DELETED, pa.bool_(), [row.kind == ChangeKind.DELETE for row in rows]))
    if routed.has_lineage:
        times = [
            None if row.stamp.committed_at_ms is None else datetime.fromtimestamp(row.stamp.committed_at_ms / 1000, UTC) for row in rows
        ]
        made.append((SOURCE_TIME, pa.timestamp("us", tz="UTC"), times))
        made.append((SOURCE_POSITION, pa.string(), [row.stamp.position for row in rows]))
        made.append((SEQUENCE, pa.int64(), [row.sequence for row in rows]))
        made.append((OPERATION, pa.string(), [str(row.kind) for row in rows]))
    return made


def _record(table: SourceTable, row: RowWrite, why: str) -> BadRecord:
    said = {"key": row.key, "row": {name: _plain(value) for name, value in row.row.items()}, "operation": str(row.kind)}
    return BadRecord(table=table.name, payload=json.dumps(said, default=repr).encode(), error=why, position=row.stamp.position)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, DecodedValue) else value
