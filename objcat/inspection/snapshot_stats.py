"""Statistics of a snapshot from metadata alone: counts, files, partitions and column bounds. Reads no row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from objcat.metadata.manifest import Manifests, Pruning
from objcat.metadata.manifest_rows import Ints, bounded_columns, integers
from objcat.metadata.schema import Column
from objcat.metadata.snapshot import LiveFiles, Snapshot
from objcat.planning.scan import READ_OPTIMIZED
from objcat.timeline.entry import FileGroupId

CUT_BYTES_MIN = 61
"""The shortest lower bound that may have been cut, see `objcat.datafile.statistics`: up to 64 bytes, less a last character that did not
fit.
"""


# ---- how much ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStats:
    """How much some file groups hold.

    Attributes:
        groups: number of file groups.
        plain: of these, file groups with one base file of their own and no log rows.
        base_files: each counted once, however many file groups share it.
        log_objects: likewise.
        log_rows: rows that count on top of base files.
        log_bytes: bytes of log objects, by the share of these rows.
    """

    groups: int = 0
    plain: int = 0
    base_files: int = 0
    base_rows: int = 0
    base_bytes: int = 0
    log_objects: int = 0
    log_rows: int = 0
    log_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of base files, and of log objects by their share."""
        return self.base_bytes + self.log_bytes


def survey_of(
    snapshot: Snapshot,
    manifests: Manifests,
    *,
    where: Pruning | None = None,
    hashes: Collection[int] | None = None,
    mode: str = "snapshot",
) -> SnapshotStats:
    """Statistics of the file groups that `Snapshot.file_groups` would return. mode: of the scan. Raises as `Manifests.load`."""
    live = snapshot.live(manifests, () if where is None else where.columns, hashes=hashes)
    chosen = live.merged.is_live.copy()
    if where is not None:
        chosen &= live.may_match(where, snapshot.spec)
    plain, merged = live.is_plain, live.merged
    optimized = mode == READ_OPTIMIZED and not snapshot.spec.rewrites
    if optimized:
        chosen &= merged.has_base
    # After a split several file groups share a base file.
    base = np.unique(live.members.row[merged.winner[chosen & merged.has_base]])
    slices = live.slices().take(pa.array(np.flatnonzero(chosen[merged.slice_group]))) if not optimized else live.slices().slice(0, 0)
    rows, sizes, counts = (np.asarray(values, dtype=np.int64) for values in (_lengths(slices), slices.field("bytes"), slices.field("rows")))
    return SnapshotStats(
        groups=int(chosen.sum()),
        plain=int(chosen.sum() if optimized else (chosen & plain).sum()),
        base_files=len(base),
        base_rows=int(integers(live.rows.select(["base_rows"]).take(pa.array(base)), "base_rows").sum()),
        base_bytes=int(integers(live.rows.select(["base_bytes"]).take(pa.array(base)), "base_bytes").sum()),
        log_objects=len(slices.field("path").unique()),
        log_rows=int(rows.sum()),
        log_bytes=int((sizes * rows // np.maximum(counts, 1)).sum()),
    )


def _lengths(slices: pa.StructArray) -> pa.Array:
    return pc.subtract(slices.field("end"), slices.field("start"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStats:
    """What a table holds as of a slot, by its metadata alone.

    Attributes:
        rows: rows of the table. Exact if `rows_exact`, else an upper limit, since log rows may replace or delete others.
        bytes: of data files that the slot needs.
        base: number of base files.
        log: number of log objects.
    """

    slot: int
    rows: int
    rows_exact: bool
    bytes: int
    partitions: int
    groups: int
    groups_unmerged: int
    base_files: int
    base_rows: int
    base_bytes: int
    log_objects: int
    log_rows: int
    log_bytes: int


def stats_of(snapshot: Snapshot, manifests: Manifests) -> TableStats:
    """Count a snapshot. Reads only manifests. Raises as `Manifests.load`."""
    survey = survey_of(snapshot, manifests)
    merges = survey.plain < survey.groups
    rows = survey.base_rows + (survey.log_rows if merges else 0)
    return TableStats(
        slot=snapshot.slot,
        rows=rows,
        rows_exact=not snapshot.spec.has_key or not merges,
        bytes=survey.bytes,
        partitions=len(snapshot.live_partitions(manifests)),
        groups=survey.groups,
        groups_unmerged=survey.groups - survey.plain,
        base_files=survey.base_files,
        base_rows=survey.base_rows,
        base_bytes=survey.base_bytes,
        log_objects=survey.log_objects,
        log_rows=survey.log_rows,
        log_bytes=survey.log_bytes,
    )


# ---- which files -------------------------------------------------------------------------------------------------

FILES = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("partition", pa.string()),
        pa.field("bucket", pa.int32()),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("lower", pa.map_(pa.string(), pa.string())),
        pa.field("upper", pa.map_(pa.string(), pa.string())),
    ]
)
"""Schema of `files_of`.

kind: `base`, or `log` for an object with rows of many file groups. That has no partition and bucket of its own. rows: of a base file all,
of
a log object those that still count on top of base files. bytes: of the whole file. slot: of the commit that added it. lower, upper: bounds
by column as text. Null if only bounds over several files are known.
"""


def files_of(snapshot: Snapshot, manifests: Manifests) -> pa.Table:
    """The data files that a snapshot needs, one row each, with the schema `FILES`. Reads only manifests. Raises as `Manifests.load`."""
    live = snapshot.live(manifests, None)
    return pa.concat_tables([_base_files(live, snapshot), _log_objects(live)])


def _base_files(live: LiveFiles, snapshot: Snapshot) -> pa.Table:
    merged = live.merged
    rows = live.rows.take(pa.array(np.unique(live.members.row[merged.winner[merged.is_live & merged.has_base]])))
    # A manifest row with log rows has bounds over all of its files.
    own = np.asarray(pc.fill_null(pc.equal(rows.column("rows"), rows.column("base_rows")), False))
    lower: list[list[tuple[str, str]]] = [[] for _ in range(rows.num_rows)]
    upper: list[list[tuple[str, str]]] = [[] for _ in range(rows.num_rows)]
    for column in bounded_columns(snapshot.spec):
        if f"nulls_{column.id}" in rows.column_names:
            for kind, said in (("lower", lower), ("upper", upper)):
                for number, text in enumerate(_texts(rows.column(f"{kind}_{column.id}"))):
                    if text is not None:
                        said[number].append((column.name, text))
    columns = [
        rows.column("base_path"),
        pa.array(["base"] * rows.num_rows, pa.string()),
        rows.column("partition"),
        rows.column("bucket"),
        rows.column("base_rows"),
        rows.column("base_bytes"),
        rows.column("slot"),
        *(
            pa.array([pairs if mine else None for pairs, mine in zip(said, own, strict=True)], FILES.field("lower").type)
            for said in (lower, upper)
        ),
    ]
    return pa.Table.from_arrays(columns, schema=FILES)


def _texts(values: pa.ChunkedArray) -> list[str | None]:
    if pa.types.is_binary(values.type):
        return [None if value is None else value.hex() for value in values.to_pylist()]
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts


def _log_objects(live: LiveFiles) -> pa.Table:
    slices = live.slices()
    found = pa.table(
        {"path": slices.field("path"), "bytes": slices.field("bytes"), "slot": slices.field("named_at"), "rows": _lengths(slices)}
    )
    grouped = found.group_by("path", use_threads=False).aggregate([("bytes", "max"), ("slot", "max"), ("rows", "sum")])
    number = grouped.num_rows
    columns = [
        grouped.column("path"),
        pa.array(["log"] * number, pa.string()),
        pa.nulls(number, pa.string()),
        pa.nulls(number, pa.int32()),
        grouped.column("rows_sum"),
        grouped.column("bytes_max"),
        grouped.column("slot_max"),
        pa.nulls(number, FILES.field("lower").type),
        pa.nulls(number, FILES.field("upper").type),
    ]
    return pa.Table.from_arrays(columns, schema=FILES)


PARTITIONS = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        pa.field("groups", pa.int64(), nullable=False),
        pa.field("groups_unmerged", pa.int64(), nullable=False),
        pa.field("base_rows", pa.int64(), nullable=False),
        pa.field("base_bytes", pa.int64(), nullable=False),
        pa.field("log_rows", pa.int64(), nullable=False),
        pa.field("log_bytes", pa.int64(), nullable=False),
        pa.field("slot", pa.int64(), nullable=False),
    ]
)
"""Schema of `partitions_of_snapshot`.

partition: as in paths, empty in a table without partitions. groups_unmerged: file groups that are more than one base file of their own.
log_bytes: of log objects, by the share of the partition's rows. slot: of the newest commit that added rows or a base file.
"""


def partitions_of_snapshot(snapshot: Snapshot, manifests: Manifests) -> pa.Table:
    """The live partitions, sorted, one row each, with the schema `PARTITIONS`. Reads only manifests. Raises as `Manifests.load`."""
    live = snapshot.live(manifests)
    merged, count = live.merged, len(live.partitions.names)
    is_live, slices = merged.is_live, live.slices()
    of_slice = live.partition[merged.slice_group]
    base = live.members.row[merged.winner[merged.has_base]]
    base, first = np.unique(base, return_index=True)
    of_base = live.partition[np.flatnonzero(merged.has_base)[first]]
    files = live.rows.select(["base_rows", "base_bytes", "slot"]).take(pa.array(base))
    rows, sizes, totals, slots = (
        np.asarray(values, dtype=np.int64) for values in (_lengths(slices), *(slices.field(name) for name in ("bytes", "rows", "slot")))
    )
    newest = np.full(count, -1, np.int64)
    np.maximum.at(newest, of_base, integers(files, "slot"))
    np.maximum.at(newest, of_slice, slots)
    groups = np.bincount(live.partition[is_live], minlength=count)
    columns = [
        live.partitions.names,
        groups,
        np.bincount(live.partition[is_live & ~live.is_plain], minlength=count),
        _sums(of_base, integers(files, "base_rows"), count),
        _sums(of_base, integers(files, "base_bytes"), count),
        _sums(of_slice, rows, count),
        _sums(of_slice, sizes * rows // np.maximum(totals, 1), count),
        newest,
    ]
    table = pa.table([pa.array(values, field.type) for values, field in zip(columns, PARTITIONS, strict=True)], schema=PARTITIONS)
    return table.filter(pa.array(groups > 0))


def _sums(codes: Ints, values: Ints, count: int) -> Ints:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, codes, values)
    return sums


# ---- within which bounds -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnBound:
    """A lower or upper bound of a column in a file group.

    Attributes:
        bound: no value is beyond it. Dates and times are numbers. None if nothing is known.
        none: whether all values are null.
        exact: whether `bound` is a value of a row that counts.
    """

    bound: Any
    none: bool
    exact: bool


UNKNOWN = ColumnBound(None, none=False, exact=False)


def extremes_of(
    snapshot: Snapshot,
    manifests: Manifests,
    column: Column,
    *,
    least: bool,
    where: Pruning | None = None,
    hashes: Collection[int] | None = None,
) -> dict[FileGroupId, ColumnBound]:
    """Column bounds by file group, for the file groups that `Snapshot.file_groups` would return. Reads only manifests.

    Raises as `Manifests.load`.
    """
    live = snapshot.live(manifests, (column.id, *(() if where is None else where.columns)), hashes=hashes)
    merged = live.merged
    chosen = merged.is_live if where is None else merged.is_live & live.may_match(where, snapshot.spec)
    if f"nulls_{column.id}" not in live.rows.column_names:
        return dict.fromkeys(live.group_ids(np.flatnonzero(chosen)), UNKNOWN)
    bounds = as_numbers(live.rows.column(f"{'lower' if least else 'upper'}_{column.id}")).to_pylist()
    nulls, rows, base_rows = (live.rows.column(name).to_pylist() for name in (f"nulls_{column.id}", "rows", "base_rows"))
    used = np.flatnonzero(merged.used)
    members: dict[int, list[int]] = {}
    for group, row in zip(live.members.group[used].tolist(), live.members.row[used].tolist(), strict=True):
        members.setdefault(group, []).append(row)
    plain = live.is_plain
    numbers = np.flatnonzero(chosen)
    found: dict[FileGroupId, ColumnBound] = {}
    for number, group_id in zip(numbers.tolist(), live.group_ids(numbers), strict=True):
        of_group = members.get(number, [])
        some = [row for row in of_group if nulls[row] is None or rows[row] is None or nulls[row] < rows[row]]
        values = [bounds[row] for row in some]
        if None in values:
            found[group_id] = UNKNOWN
            continue
        bound = (min(values) if least else max(values)) if values else None
        exact = bool(plain[number]) and len(of_group) == 1 and rows[of_group[0]] == base_rows[of_group[0]]
        found[group_id] = ColumnBound(bound, none=bool(of_group) and not some, exact=exact and _is_value(bound, least=least))
    return found


def as_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates and times as numbers, since Python has no values for some of them. Other values stay as they are."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _is_value(bound: Any, *, least: bool) -> bool:
    """Whether a bound of a file is a value in it. Text bounds may have been cut."""
    if isinstance(bound, (str, bytes)):
        return least and len(bound.encode() if isinstance(bound, str) else bound) < CUT_BYTES_MIN
    return True
