"""Rows of manifests as Arrow tables: what is known of one file group, and the merge of several levels.

A row holds the newest base file or retirement of its file group (an *event*), the slot that it is as of, and the log rows on top. Rows of
one file group merge in any order, because the slots decide what supersedes what. The newest event wins. Log rows up to the greatest `as_of`
are part of it, and the others stay on top. So a level may hold only what changed, and is written without reading older levels.

    partition, bucket, bucket_count                 the file group id
    slot, as_of                                     of the event; -1 for none. An event without a base file is a retirement
    base_path, base_bytes, base_rows, base_txn      null for none
    base_order                                      order of its rows; null: sorted by key. The column is left out if all are null
    base_adopted                                    of a file that another tool wrote; null: objcat wrote it. Left out likewise
    base_xxh3, base_footer_xxh3                     digests of the base file and of its footer; null: not known. Left out likewise
    logs                                            list of slices of log files, by slot
    rows                                            how many rows of data the bounds cover
    lower_<id>, upper_<id>, nulls_<id>              bounds of a column, by its id and in its type; null: not known

Bounds cover at least the rows that the row of the manifest names. A column is all null when it has as many nulls as `rows`.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from objcat.errors import CorruptTable
from objcat.metadata.column_parts import with_bounded_fields
from objcat.metadata.file_digest import FILE_BYTES, FOOTER_BYTES, packed
from objcat.metadata.files import BaseFile, Bound, LogObject, LogSlice, encode_adoption, encode_order
from objcat.metadata.schema import Column, arrow_type
from objcat.metadata.table_spec import TableSpec
from objcat.timeline.entry import FileGroupId, Txn

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SLICE = pa.struct(
    [
        ("slot", pa.int64()),
        ("named_at", pa.int64()),
        ("number", pa.int32()),
        ("committed_at_ms", pa.int64()),
        ("path", pa.string()),
        ("bytes", pa.int64()),
        ("rows", pa.int64()),
        ("row_group_rows", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("xxh3", pa.binary(FILE_BYTES)),
        ("footer_xxh3", pa.binary(FOOTER_BYTES)),
    ]
)
DIGESTS = ("xxh3", "footer_xxh3")
"""Fields of a slice that may be null."""
CORE = pa.schema(
    [
        ("partition", pa.string()),
        ("bucket", pa.int32()),
        ("bucket_count", pa.int32()),
        ("slot", pa.int64()),
        ("as_of", pa.int64()),
        ("base_path", pa.string()),
        ("base_bytes", pa.int64()),
        ("base_rows", pa.int64()),
        ("base_txn", pa.string()),
        ("base_order", pa.string()),
        ("base_adopted", pa.string()),
        ("base_xxh3", pa.binary(FILE_BYTES)),
        ("base_footer_xxh3", pa.binary(FOOTER_BYTES)),
        ("logs", pa.list_(SLICE)),
        ("rows", pa.int64()),
    ]
)
_MERGED = ("as_of", "logs", "rows")
"""Columns that a merge computes. The others are those of the row with the newest event."""
BUCKET_BITS = 17
"""Buckets and bucket counts are below 2 to this power."""


class ManifestChange(msgspec.Struct, frozen=True):
    """What some entries change in one file group: one row of a manifest before it is written.

    Args:
        slot: Slot of the newest event, -1 for none.
        base: The base file of the event. None for a retirement.
        as_of: The slot up to which nothing older counts.
        logs: On top, with the bounds of their files.
    """

    group_id: FileGroupId
    slot: int = -1
    base: BaseFile | None = None
    txn: Txn | None = None
    as_of: int = -1
    logs: tuple[LogSlice, ...] = ()


def bounded_columns(spec: TableSpec) -> list[Column]:
    """Columns that can have bounds: all that are not nested."""
    return [column for column in spec.table_schema.columns if isinstance(column.type, str)]


def _on() -> None:
    """No pause."""


def rows_of(
    changes: Iterable[ManifestChange], spec: TableSpec, columns_bounded: Collection[int] | None = None, *, pause: Callable[[], None] = _on
) -> pa.Table:
    """Changes as rows, with the bounds of every column that has any.

    Args:
        columns_bounded: Ids of the columns whose bounds are wanted, None for all.
        pause: Called between steps of about a millisecond.
    """
    listed = list(changes)
    bases = [change.base for change in listed]
    files: list[list[BaseFile | LogObject]] = [
        [*([change.base] if change.base is not None else []), *(part.object for part in change.logs)] for change in listed
    ]
    columns: dict[str, Any] = {
        "partition": [change.group_id.partition for change in listed],
        "bucket": [change.group_id.bucket for change in listed],
        "bucket_count": [change.group_id.bucket_count for change in listed],
        "slot": [change.slot for change in listed],
        "as_of": [change.as_of for change in listed],
        "base_path": [base and base.path for base in bases],
        "base_bytes": [None if base is None else base.bytes for base in bases],
        "base_rows": [None if base is None else base.rows for base in bases],
        "base_txn": [change.txn if change.base is not None else None for change in listed],
        "base_order": [None if base is None else encode_order(base.order) for base in bases],
        "base_adopted": [None if base is None else encode_adoption(base) for base in bases],
        "base_xxh3": [base and packed(base.digest, FILE_BYTES, path=base.path) for base in bases],
        "base_footer_xxh3": [base and packed(base.footer, FOOTER_BYTES, path=base.path) for base in bases],
        "logs": _slices([change.logs for change in listed]),
        "rows": [sum(file.rows for file in of_row) for of_row in files],
    }
    pause()
    made: dict[str, Any] = {field.name: pa.array(columns[field.name], field.type) for field in CORE}
    pause()
    # Under the bucket index many rows share log files, so their bounds are merged once.
    names = [tuple(map(id, of_row)) for of_row in files]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    distinct = list(dict(zip(names, files, strict=True)).values())
    which = pa.array([places[name] for name in names], pa.int64())
    known = {column_id for of_row in distinct for file in of_row for column_id in file.bounds}
    for column in with_bounded_fields(bounded_columns(spec), spec):
        if column.id in known and (columns_bounded is None or column.id in columns_bounded):
            bounds = _bounds(distinct, column)
            made |= bounds if len(distinct) == len(files) else {name: values.take(which) for name, values in bounds.items()}
            pause()
    return pa.table(made)


def bounded_by(rows: pa.Table, files: Sequence[Sequence[BaseFile | LogObject]], spec: TableSpec) -> pa.Table:
    """The rows with the bounds of exactly these files instead of their own. files: one sequence for each row."""
    counts = pa.array([sum(file.rows for file in of_row) for of_row in files], pa.int64())
    made = {name: counts if name == "rows" else rows.column(name) for name in CORE.names}
    known = {column_id for of_row in files for file in of_row for column_id in file.bounds}
    for column in with_bounded_fields(bounded_columns(spec), spec):
        if column.id in known:
            made |= _bounds(files, column)
    return pa.table(made)


def _slices(logs: Sequence[Sequence[LogSlice]]) -> pa.Array:
    flat = [part for of_row in logs for part in of_row]
    values: dict[str, list[Any]] = {
        "slot": [part.slot for part in flat],
        "named_at": [part.named_at for part in flat],
        "number": [part.number for part in flat],
        "committed_at_ms": [part.committed_at_ms for part in flat],
        "path": [part.object.path for part in flat],
        "bytes": [part.object.bytes for part in flat],
        "rows": [part.object.rows for part in flat],
        "row_group_rows": [part.object.row_group_rows for part in flat],
        "start": [part.start for part in flat],
        "end": [part.end for part in flat],
        "xxh3": [packed(part.object.digest, FILE_BYTES, path=part.object.path) for part in flat],
        "footer_xxh3": [packed(part.object.footer, FOOTER_BYTES, path=part.object.path) for part in flat],
    }
    fields = [pa.array(values[field.name], field.type) for field in SLICE]
    offsets = np.concatenate(([0], np.cumsum([len(of_row) for of_row in logs], dtype=np.int64))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(fields, fields=list(SLICE)))


def _bounds(files: Sequence[Sequence[BaseFile | LogObject]], column: Column) -> dict[str, pa.Array]:
    """The bounds of one column over the files of each row."""
    assert isinstance(column.type, str)
    value_of = _VALUES.get(column.type.partition("(")[0], _same)
    lows, highs, nulls = [], [], []
    for of_row in files:
        low, high, count = _union([file.bounds.get(column.id) for file in of_row], [file.rows for file in of_row], value_of)
        lows.append(low)
        highs.append(high)
        nulls.append(count)
    data_type = arrow_type(column.type)
    return {
        f"lower_{column.id}": _typed(lows, data_type),
        f"upper_{column.id}": _typed(highs, data_type),
        f"nulls_{column.id}": pa.array(nulls, pa.int64()),
    }


def _union(bounds: Sequence[Bound | None], rows: Sequence[int], value_of: Callable[[Any], Any]) -> tuple[Any, Any, int | None]:
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds) or not bounds:
        return None, None, None
    some = [bound for bound, count in zip(known, rows, strict=True) if bound[2] < count]
    lows = [bound[0] for bound in some]
    highs = [bound[1] for bound in some]
    low = None if None in lows or not lows else min(map(value_of, lows))
    high = None if None in highs or not highs else max(map(value_of, highs))
    return low, high, sum(bound[2] for bound in known)


def _same(value: Any) -> Any:
    return value


_VALUES: Mapping[str, Callable[[Any], Any]] = {"decimal": decimal.Decimal, "binary": bytes.fromhex}


def _typed(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """Values in the type of their column. Values that do not fit become unknown."""
    try:
        return pa.array(values, data_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.nulls(len(values), data_type)


def aligned(tables: Sequence[pa.Table], spec: TableSpec) -> pa.Table:
    """Rows of several levels as one table in one chunk.

    It has the bounds of every column of `spec` that any level has, in the column's type.
    """
    present = {name for table in tables for name in table.column_names}
    fields = list(CORE)
    for column in with_bounded_fields(bounded_columns(spec), spec):
        if f"nulls_{column.id}" in present:
            data_type = arrow_type(column.type)
            fields += [pa.field(f"lower_{column.id}", data_type), pa.field(f"upper_{column.id}", data_type)]
            fields += [pa.field(f"nulls_{column.id}", pa.int64())]
    schema = pa.schema(fields)
    return pa.concat_tables([_fitted(table, schema) for table in tables]).combine_chunks() if tables else schema.empty_table()


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns: list[pa.ChunkedArray | pa.Array] = []
    known = dict(zip(table.column_names, table.columns, strict=True))
    for field in schema:
        values = known.get(field.name)
        if values is None:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        try:
            columns.append(values if values.type.equals(field.type) else values.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.table(columns, schema=schema)


def integers(rows: pa.Table, name: str) -> Ints:
    """A column of integers without nulls."""
    return np.asarray(rows.column(name).to_numpy(), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of some rows: their names, sorted, and the number of every row's partition."""

    names: list[str]
    codes: Ints

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Partitions:
        """The partitions in a column of names."""
        encoded = column.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        names = encoded.dictionary.to_pylist()
        order = sorted(range(len(names)), key=names.__getitem__)
        rank = np.empty(len(names), dtype=np.int64)
        rank[order] = np.arange(len(names))
        codes = rank[np.asarray(encoded.indices.to_numpy(), dtype=np.int64)] if len(names) else np.zeros(0, np.int64)
        return cls([names[i] for i in order], codes)


# ---- the merge ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Members:
    """Which rows belong to which group. group: dense from 0, of every member. row: of the table, of every member."""

    group: Ints
    row: Ints


@dataclass(frozen=True, slots=True)
class MergedManifest:
    """What is live in every group.

    Args:
        winner: By group, the member with the newest event; any member if there is none.
        cut: By group, the slot up to which log rows are superseded.
        slices: Positions in the flattened slices of all rows, by group and in the order in which they count.
        slice_group: The group of each of these slices. `slice_row` is its row.
        used: By member, whether anything of its row is live.
    """

    winner: Ints
    cut: Ints
    slices: Ints
    slice_group: Ints
    slice_row: Ints
    used: Mask
    has_base: Mask

    @property
    def is_live(self) -> Mask:
        """By group, whether it has a file."""
        live = self.has_base.copy()
        live[self.slice_group] = True
        return live


def merge_members(rows: pa.Table, members: Members) -> MergedManifest:
    """Merge the rows of every group. rows: in one chunk. Raises CorruptTable when a base file was written without the rows before it."""
    if not len(members.group):
        none = np.zeros(0, np.int64)
        return MergedManifest(none, none, none, none, none, np.zeros(0, np.bool_), np.zeros(0, np.bool_))
    group, row = members.group, members.row
    slot = integers(rows, "slot")[row]
    order = np.lexsort((slot, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    winner = order[np.append(starts[1:], len(order)) - 1]
    cut = np.maximum.reduceat(integers(rows, "as_of")[row][order], starts)
    based = np.asarray(rows.column("base_path").is_valid().to_numpy(), dtype=np.bool_)[row]
    has_base = based[winner]
    _check_superseded(rows, members, based, slot, winner, cut)

    logs = rows.column("logs").combine_chunks()
    offsets = np.asarray(logs.offsets.to_numpy(), dtype=np.int64)
    lengths = np.diff(offsets)[row]
    member = np.repeat(np.arange(len(row)), lengths)
    position = np.arange(len(member)) + np.repeat(offsets[:-1][row] - (np.cumsum(lengths) - lengths), lengths)
    counts_as = np.asarray(logs.values.field("slot").to_numpy(), dtype=np.int64)[position]
    named_at = np.asarray(logs.values.field("named_at").to_numpy(), dtype=np.int64)[position]
    number = np.asarray(logs.values.field("number").to_numpy(), dtype=np.int64)[position]
    of_group = group[member]
    # Deletes that a compaction retained count as of its `as_of`, but belong to it: they are live while its base file is the newest.
    kept = np.flatnonzero((counts_as > cut[of_group]) | (named_at == slot[winner][of_group]))
    kept = kept[np.lexsort((number[kept], named_at[kept], counts_as[kept], of_group[kept]))]
    used = np.zeros(len(row), np.bool_)
    used[member[kept]] = True
    used[winner[has_base]] = True
    return MergedManifest(winner, cut, position[kept], of_group[kept], row[member[kept]], used, has_base)


def _check_superseded(rows: pa.Table, members: Members, based: Mask, slot: Ints, winner: Ints, cut: Ints) -> None:
    second = based & (slot > cut[members.group])
    second[winner] = False
    if second.any():
        first = int(np.flatnonzero(second)[0])
        row = int(members.row[first])
        newest = int(slot[winner[members.group[first]]])
        raise CorruptTable(
            f"Slot {newest} writes a base file for {group_id_at(rows, row)} without the rows of slot {int(slot[first])}. "
            "Run `objcat doctor` to see what the log holds."
        )


def group_id_at(rows: pa.Table, row: int) -> FileGroupId:
    """The file group id of a row."""
    partition, bucket, count = (rows.column(name)[row].as_py() for name in ("partition", "bucket", "bucket_count"))
    return FileGroupId(partition, bucket, count)


def order_keys(rows: pa.Table, partitions: Partitions) -> Ints:
    """A number for every row, in the order of manifests: partition, bucket count, bucket."""
    return (partitions.codes << (2 * BUCKET_BITS)) | (integers(rows, "bucket_count") << BUCKET_BITS) | integers(rows, "bucket")


def merge_rows(
    tables: Sequence[pa.Table], spec: TableSpec, *, whole: Callable[[str], bool] | None = None, pause: Callable[[], None] = _on
) -> pa.Table:
    """One row for every file group, sorted.

    Args:
        whole: Whether the tables hold all that is known of a partition. Then file groups without a file are left out, unless rows of other
            bucket counts are there, which they may supersede.
        pause: Called between steps.
    """
    rows = aligned(tables, spec)
    pause()
    if not rows.num_rows:
        return rows
    partitions = Partitions.of(rows.column("partition"))
    unique, group = np.unique(order_keys(rows, partitions), return_inverse=True)
    members = Members(group.astype(np.int64), np.arange(rows.num_rows))
    live = merge_members(rows, members)
    pause()
    merged = _unchanged(rows, group) if len(unique) == rows.num_rows else _merged(rows, members, live, pause)
    if whole is None:
        return merged
    counts = integers(rows, "bucket_count")
    least = np.full(len(partitions.names), np.iinfo(np.int64).max)
    most = np.zeros(len(partitions.names), np.int64)
    np.minimum.at(least, partitions.codes, counts)
    np.maximum.at(most, partitions.codes, counts)
    settled = np.array([whole(name) for name in partitions.names], np.bool_) & (least == most)
    return merged.filter(pa.array(live.is_live | ~settled[unique >> (2 * BUCKET_BITS)]))


def _unchanged(rows: pa.Table, group: npt.NDArray[np.intp]) -> pa.Table:
    return rows.take(pa.array(np.argsort(group, kind="stable")))


def _merged(rows: pa.Table, members: Members, live: MergedManifest, pause: Callable[[], None]) -> pa.Table:
    taken = rows.select([name for name in CORE.names if name not in _MERGED]).take(pa.array(live.winner))
    lengths = np.bincount(live.slice_group, minlength=len(live.winner))
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    slices = rows.column("logs").combine_chunks().values.take(pa.array(live.slices))
    used = np.flatnonzero(live.used)
    group, row = members.group[used], members.row[used]
    known = rows.column("rows").fill_null(-1)
    of_row = np.asarray(known.to_numpy(), np.int64)[row]
    counts = np.bincount(group, weights=of_row, minlength=len(live.winner)).astype(np.int64)
    unknown = np.zeros(len(live.winner), np.bool_)
    unknown[group[of_row < 0]] = True
    columns = dict(zip(taken.column_names, taken.columns, strict=True)) | {
        "as_of": pa.array(live.cut),
        "logs": pa.ListArray.from_arrays(offsets, slices),
        "rows": pa.array(counts, mask=unknown),
    }
    pause()
    # If one row of a group is used, its bounds stay as they are; -1 means none.
    only = np.full(len(live.winner), -1, dtype=np.int64)
    only[group] = row
    several = np.bincount(group, minlength=len(live.winner)) > 1
    names = [name for name in rows.column_names if name.partition("_")[0] in ("lower", "upper", "nulls")]
    bounds = rows.select(names).take(pa.array(only, mask=only < 0))
    if names and several.any():
        chosen = several[group]
        union = _united(rows.select([*names, "rows"]).take(pa.array(row[chosen])), group[chosen], pause)
        # Groups with several rows have their merged bounds after the others.
        place = np.arange(len(several))
        place[several] = len(several) + np.arange(union.num_rows)
        bounds = pa.concat_tables([bounds, union.select(names)]).combine_chunks().take(pa.array(place))
    columns |= dict(zip(names, bounds.columns, strict=True))
    return pa.table([columns[name] for name in rows.column_names], schema=rows.schema)


def _united(parts: pa.Table, group: Ints, pause: Callable[[], None]) -> pa.Table:
    """The bounds of all columns over the rows of each group. They are unknown if those of one row are.

    A group has few rows, one for each level, so they are compared row by row. Arrow's own grouping loads pandas if it is installed.
    """
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    lengths = np.diff(starts, append=len(order))
    nth = range(int(lengths.max()))
    layers = [pa.array(order[np.minimum(starts + n, len(order) - 1)], mask=n >= lengths) for n in nth]

    def among(values: pa.ChunkedArray, of: Callable[..., pa.ChunkedArray]) -> pa.ChunkedArray:
        plain = _comparable(values.type)
        return of(*(values.cast(plain).take(layer) for layer in layers)).cast(values.type)

    def known(is_known: pa.ChunkedArray) -> pa.Array:
        return pa.array(np.logical_and.reduceat(np.asarray(is_known.to_numpy(), np.bool_)[order], starts))

    found = {}
    for column_id in (name.partition("_")[2] for name in parts.column_names if name.startswith("nulls_")):
        lower, upper, nulls = (f"{kind}_{column_id}" for kind in ("lower", "upper", "nulls"))
        counts = parts.column(nulls)
        all_null = pc.fill_null(pc.equal(counts, parts.column("rows")), False)
        for name, of in ((lower, pc.min_element_wise), (upper, pc.max_element_wise)):
            values = parts.column(name)
            found[name] = pc.if_else(known(pc.or_(values.is_valid(), all_null)), among(values, of), pa.scalar(None, values.type))
        total = pa.array(np.add.reduceat(np.asarray(pc.fill_null(counts, 0).to_numpy(), np.int64)[order], starts))
        found[nulls] = pc.if_else(known(counts.is_valid()), total, pa.scalar(None, pa.int64()))
        pause()
    return pa.table(found)


def _comparable(data_type: pa.DataType) -> pa.DataType:
    """A type of the same order whose values Arrow compares row by row."""
    if pa.types.is_boolean(data_type):
        return pa.int8()
    return pa.timestamp(data_type.unit) if pa.types.is_timestamp(data_type) else data_type
