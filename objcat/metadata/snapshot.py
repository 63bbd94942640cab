"""`Snapshot`: a table as of one slot, and its live file groups.

Live files are looked up on demand, in the manifests of a checkpoint and in the entries after it. `snapshot_of` takes a snapshot from a view
of the log. `Snapshot.file_groups` is the usual way to the files. Scans, writes and table services all begin here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from objcat.errors import CorruptTable, TableClosed, TableNotFound
from objcat.metadata.file_digest import FILE_BYTES, packed, unpacked
from objcat.metadata.files import (
    BaseFile,
    FileGroup,
    LogObject,
    LogSlice,
    PrecomputedColumns,
    decode_adoption,
    decode_order,
    decode_promotion,
)
from objcat.metadata.group_filter import GroupFilter
from objcat.metadata.manifest import Manifests, Pruning
from objcat.metadata.manifest_rows import (
    BUCKET_BITS,
    SLICE,
    Ints,
    ManifestChange,
    Mask,
    Members,
    MergedManifest,
    Partitions,
    aligned,
    integers,
    merge_members,
    rows_of,
)
from objcat.metadata.partition_values import PartitionRanges, leading_bounds
from objcat.metadata.schema import Column, arrow_type
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables, TableState
from objcat.metadata.watermark import Watermark
from objcat.timeline.attempt import moved_error
from objcat.timeline.checkpoint import root_key
from objcat.timeline.entry import FileGroupId
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView

BASE_COLUMNS = ("base_path", "base_bytes", "base_rows", "base_txn", "base_order", "base_adopted", "base_xxh3", "base_footer_xxh3")
FILTERED_ROWS_MIN = 4096
"""Rows of manifests from which only those of the wanted file groups are looked at. The rows of smaller tables are cached as a whole."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table as of one slot: immutable, shareable, picklable and small. log: the log up to that slot."""

    log: LogState
    table: TableState

    @property
    def spec(self) -> TableSpec:
        """The settings of the table."""
        return self.table.spec

    @property
    def index(self) -> Snapshot | None:
        """The record index of the table, as a table. None if there is none."""
        return None if self.table.index is None else Snapshot(self.log, self.table.index)

    @property
    def slot(self) -> int:
        """The newest slot replayed."""
        return self.log.slot

    @property
    def committed_at_ms(self) -> int:
        """Its commit time, ms since 1970 UTC."""
        return self.log.committed_at_ms

    def file_groups(
        self,
        manifests: Manifests,
        *,
        where: Pruning | None = None,
        group_ids: Collection[FileGroupId] | None = None,
        partitions: Collection[str] | PartitionRanges | None = None,
        hashes: Collection[int] | None = None,
        unmerged: bool = False,
    ) -> list[FileGroup]:
        """The live file groups, sorted by id. Reads the manifests whose ranges match, each once.

        Args:
            where: Leave out file groups without a row that can pass.
            group_ids: Only file groups that have keys in common with one of these.
            partitions: Only these partitions.
            hashes: Only file groups that may hold a key with one of these hashes.
            unmerged: Only file groups that are more than one base file of their own, or hold deletes from before the watermark was set.

        Raises:
            CheckpointCollected, CorruptTable: As `Manifests.load`.
        """
        live = self.live(manifests, () if where is None else where.columns, group_ids, partitions, hashes, where)
        chosen = live.merged.is_live if where is None else live.merged.is_live & live.may_match(where, self.spec)
        if unmerged:
            chosen &= ~live.is_plain | live.retains_before(self.spec)
        return live.groups(np.flatnonzero(chosen))

    def all_groups(self, manifests: Manifests, *, group_ids: Collection[FileGroupId] | None = None) -> list[FileGroup]:
        """The live file groups of the table and of its index. Arguments as in `file_groups`."""
        own = self.file_groups(manifests, group_ids=group_ids)
        return own if self.index is None else own + self.index.file_groups(manifests, group_ids=group_ids)

    def live_group_ids(
        self, manifests: Manifests, *, group_ids: Collection[FileGroupId] | None = None, partitions: Collection[str] | None = None
    ) -> frozenset[FileGroupId]:
        """The ids of the live file groups: what `file_groups` would return, for a fraction of its cost."""
        live = self.live(manifests, (), group_ids, partitions)
        return frozenset(live.group_ids(np.flatnonzero(live.merged.is_live)))

    def live_partitions(self, manifests: Manifests) -> frozenset[str]:
        """The partitions with a live file group."""
        live = self.live(manifests)
        return frozenset(live.partitions.names[code] for code in np.unique(live.partition[live.merged.is_live]).tolist())

    def paths(self, manifests: Manifests) -> frozenset[str]:
        """Every data file that the snapshot needs, including those of an index."""
        own = self.live(manifests).paths()
        return own if self.index is None else own | self.index.paths(manifests)

    def bounds(self, manifests: Manifests, columns: Iterable[Column], *, group_ids: Collection[FileGroupId] | None = None) -> pa.Table:
        """Known bounds of columns of live files.

        The table has `base_path`, `rows`, and the bound columns of `objcat.metadata.manifest_rows`.

        The bounds of a row cover its base file, which may be none (null) or superseded, and the log rows on top. All rows of the table lie
        within the bounds of some row here. Raises as `Manifests.load`.

        Args:
            group_ids: Only these file groups, from the manifests of their partitions.
        """
        return self.live(manifests, {column.id for column in columns}, group_ids=group_ids).bounds()

    def live(
        self,
        manifests: Manifests,
        columns: Collection[int] | None = (),
        group_ids: Collection[FileGroupId] | None = None,
        partitions: Collection[str] | PartitionRanges | None = None,
        hashes: Collection[int] | None = None,
        where: Pruning | None = None,
    ) -> LiveFiles:
        """The manifest rows of the chosen file groups, merged, for work on all of them at once.

        Args:
            columns: Ids of columns whose bounds are read, None for all.
            group_ids: As in `file_groups`, like `partitions` and `hashes`.
            where: Leaves out partitions whose text excludes every row, and reads no manifest for them.
        """
        wanted = partitions if partitions is None or isinstance(partitions, PartitionRanges) else PartitionRanges.of_names(partitions)
        groups = None
        if group_ids is not None:
            if not self._is_all_in({group_id.partition for group_id in group_ids}):
                wanted = PartitionRanges.of_names(
                    group_id.partition for group_id in group_ids if wanted is None or group_id.partition in wanted
                )
            groups = GroupFilter.of(group_ids, self.table.bucket_count)
        is_few = groups is not None and sum(ref.rows for ref in self.table.manifest) + len(self.table.overlay) > FILTERED_ROWS_MIN
        chosen = _Chosen(self.spec, wanted, where, groups if is_few else None)
        if chosen.is_all:
            rows = manifests.rows_of_state(self.table, columns, lambda: self._rows(manifests, columns, chosen))
        else:
            rows = self._rows(manifests, columns, chosen)
        return _group(rows, self.table, groups, hashes)

    def _is_all_in(self, partitions: Collection[str]) -> bool:
        """Whether the table has one partition, and these are it."""
        ends = [group_id.partition for ref in self.table.manifest for group_id in (ref.first, ref.last)]
        return len(partitions) == 1 and all(
            name in partitions for name in (*ends, *(group_id.partition for group_id in self.table.overlay))
        )

    def _rows(self, manifests: Manifests, columns: Collection[int] | None, chosen: _Chosen) -> pa.Table:
        refs = list(self.table.manifest)
        changes = list(self.table.overlay.values())
        if not chosen.is_all:
            if chosen.groups is not None:
                refs, changes = list(filter(chosen.groups.meets, refs)), self._changes_of(chosen.groups)
            refs = list(compress(refs, chosen.meet([(ref.first.partition, ref.last.partition) for ref in refs])))
            changes = list(compress(changes, chosen.meet([(change.group_id.partition,) * 2 for change in changes])))
        tables = [shard.rows(columns, self.spec) for shard in manifests.load(refs)]
        if not chosen.is_all:
            tables = [chosen.of(table) for table in tables]
        if changes or not tables:
            tables.append(rows_of(changes, self.spec, columns))
        return aligned(tables, self.spec)

    def _changes_of(self, groups: GroupFilter) -> list[ManifestChange]:
        """The changes since the checkpoint of some file groups."""
        return [change for change in self.table.overlay.values() if groups.has(change.group_id)]


class _Chosen:
    """The requested partitions and file groups. Manifest rows of either are left out as a whole, or not at all.

    groups: None where all file groups of the partitions are read.
    """

    def __init__(self, spec: TableSpec, wanted: PartitionRanges | None, where: Pruning | None, groups: GroupFilter | None = None) -> None:
        self._spec = spec
        self._wanted = wanted
        self.groups = groups
        fields = spec.partitioning.fields
        self._where = where if where is not None and fields and fields[0].column in where.columns else None

    @property
    def is_all(self) -> bool:
        return self._wanted is None and self._where is None and self.groups is None

    def meet(self, ranges: Sequence[tuple[str, str]]) -> Mask:
        """For each range of partitions, ends included, whether it may contain a requested one."""
        mask = np.array([self._wanted is None or self._wanted.meets(*ends) for ends in ranges], np.bool_)
        if self._where is not None:
            mask[mask] = self._may_match([ends for ends, may in zip(ranges, mask.tolist(), strict=True) if may], self._where)
        return mask

    def of(self, rows: pa.Table) -> pa.Table:
        """The rows of the requested partitions and file groups."""
        if self.groups is not None:
            rows = self.groups.rows_of(rows)
        if self._wanted is None and self._where is None:
            return rows
        partitions = Partitions.of(rows.column("partition"))
        mask = self.meet([(name, name) for name in partitions.names])
        return rows if mask.all() else rows.filter(pa.array(mask[partitions.codes]))

    def _may_match(self, ranges: Sequence[tuple[str, str]], where: Pruning) -> Mask:
        """Whether a filter can match in partitions by time, whose texts sort by time."""
        spec = self._spec
        known = [leading_bounds(spec.partitioning, spec.table_schema, first, last) for first, last in ranges]
        mask = np.ones(len(known), np.bool_)
        numbers = [i for i, bounds in enumerate(known) if bounds is not None]
        if not numbers:
            return mask
        column = spec.table_schema.by_id(spec.partitioning.fields[0].column)
        whole = pa.int32() if column.type == "date" else pa.int64()
        ends = [bounds for bounds in known if bounds is not None]
        bounded = {
            "rows": pa.array([1] * len(ends)),
            f"lower_{column.id}": pa.array([low for low, _ in ends], whole).cast(arrow_type(column.type)),
            f"upper_{column.id}": pa.array([high for _, high in ends], whole).cast(arrow_type(column.type)),
            f"nulls_{column.id}": pa.array([0] * len(ends)),
        }
        mask[numbers] = where.may_match(pa.table(bounded), spec)
        return mask


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """Manifest rows, grouped by live file group.

    Args:
        counts: Bucket counts, by number of partition.
        partition: The number of the partition, by file group.
        bucket: The bucket, by file group.
    """

    rows: pa.Table
    partitions: Partitions
    counts: Ints
    partition: Ints
    bucket: Ints
    members: Members
    merged: MergedManifest

    def group_ids(self, chosen: Ints) -> list[FileGroupId]:
        """The ids of the chosen file groups."""
        names, counts = self.partitions.names, self.counts.tolist()
        pairs = zip(self.partition[chosen].tolist(), self.bucket[chosen].tolist(), strict=True)
        return [FileGroupId(names[partition], bucket, counts[partition]) for partition, bucket in pairs]

    def may_match(self, where: Pruning, spec: TableSpec) -> Mask:
        """By file group, whether a row may match. A row lies whole in one file, so all live rows of a group must rule out a match."""
        of_member = where.may_match(self.rows, spec)[self.members.row] & self.merged.used
        mask = np.zeros(len(self.merged.winner), np.bool_)
        mask[self.members.group[of_member]] = True
        return mask

    @property
    def is_plain(self) -> Mask:
        """By file group, as `FileGroup.is_plain`."""
        row = self.members.row[self.merged.winner]
        whole = integers(self.rows, "bucket_count")[row] % self.counts[self.partition] == 0
        counts_as = self.slices().field("slot").to_numpy()
        later = np.zeros(len(row), np.bool_)
        later[self.merged.slice_group[counts_as > self.merged.cut[self.merged.slice_group]]] = True
        result: Mask = self.merged.has_base & whole & ~later
        return result

    def retains_before(self, spec: TableSpec) -> Mask:
        """By file group, whether a compaction that did not know the watermark retained deletes in it."""
        found = np.zeros(len(self.merged.winner), np.bool_)
        if isinstance(spec.watermark, Watermark):
            counts_as = self.slices().field("slot").to_numpy()
            group = self.merged.slice_group
            found[group[(counts_as <= self.merged.cut[group]) & (counts_as < spec.watermark.slot)]] = True
        return found

    def paths(self) -> frozenset[str]:
        """The paths of all live files."""
        row = self.members.row[self.merged.winner[self.merged.has_base]]
        bases = self.rows.column("base_path").take(pa.array(row)).to_pylist()
        precomputed = [file.path for file in self._precomputed(row)]
        return frozenset(bases) | frozenset(precomputed) | frozenset(self.slices().field("path").unique().to_pylist())

    def _precomputed(self, row: Ints) -> list[PrecomputedColumns]:
        """The files with precomputed columns that some manifest rows name."""
        texts = self.rows.column("base_adopted").take(pa.array(row)).drop_null()
        if not len(texts):
            return []
        texts = texts.filter(pc.match_substring(texts, '"precomputed":'))
        found = [decode_adoption(text) for text in texts.to_pylist()]
        return [one.source.precomputed for one in found if one is not None and one.source is not None and one.source.precomputed]

    def files(self) -> pa.Table:
        """Every live file once: `path`, `bytes` and `xxh3`, the digest (null: not known)."""
        bases = np.unique(self.members.row[self.merged.winner[self.merged.has_base]])
        found = self.rows.select(["base_path", "base_bytes", "base_xxh3"]).take(pa.array(bases)).rename_columns(["path", "bytes", "xxh3"])
        precomputed = [(file.path, file.bytes, packed(file.digest, FILE_BYTES, path=file.path)) for file in self._precomputed(bases)]
        if precomputed:
            added = [pa.array(values, field.type) for values, field in zip(zip(*precomputed, strict=True), found.schema, strict=True)]
            found = pa.concat_tables([found, pa.Table.from_arrays(added, schema=found.schema)])
        slices = self.slices()
        encoded = slices.field("path").dictionary_encode()
        _, first = np.unique(np.asarray(encoded.indices.to_numpy(zero_copy_only=False)), return_index=True)
        logs = slices.take(pa.array(first))
        return pa.concat_tables([found, pa.table({name: logs.field(name) for name in found.column_names}, schema=found.schema)])

    def bounds(self) -> pa.Table:
        """See `Snapshot.bounds`."""
        used = np.unique(self.members.row[self.merged.used])
        names = [name for name in self.rows.column_names if name.partition("_")[0] in ("lower", "upper", "nulls")]
        return self.rows.select(["base_path", "rows", *names]).take(pa.array(used))

    def slices(self) -> pa.StructArray:
        """The live log slices, in the order of `merged.slices`."""
        values = self.rows.column("logs").combine_chunks().values
        return values.take(pa.array(self.merged.slices))

    def groups(self, chosen: Ints) -> list[FileGroup]:
        """File groups as Python values. It is a plain loop, so pass only those that a plan uses."""
        if not len(chosen):
            return []
        merged = self.merged
        bases = self.rows.select([*("partition", "bucket", "bucket_count", "slot"), *BASE_COLUMNS])
        bases = bases.take(pa.array(self.members.row[merged.winner[chosen]]))
        columns = zip(*(column.to_pylist() for column in bases.columns), strict=True)
        logs = self._logs(chosen)
        groups = []
        for number, group_id, as_of, row in zip(chosen.tolist(), self.group_ids(chosen), merged.cut[chosen].tolist(), columns, strict=True):
            partition, bucket, count, slot, path, size, rows, txn, order, adopted, digest, footer = row
            if path is None:
                groups.append(FileGroup(group_id, as_of=as_of, logs=logs.get(number, ())))
                continue
            own = group_id if (bucket, count) == (group_id.bucket, group_id.bucket_count) else FileGroupId(partition, bucket, count)
            base = BaseFile(
                path=path,
                bytes=size,
                rows=rows,
                group_id=own,
                order=decode_order(order),
                digest=unpacked(digest),
                footer=unpacked(footer),
                adopted=decode_adoption(adopted),
                promoted=decode_promotion(adopted),
            )
            groups.append(FileGroup(group_id, base, slot, txn, as_of, logs.get(number, ())))
        return groups

    def _logs(self, chosen: Ints) -> dict[int, tuple[LogSlice, ...]]:
        """The log slices of the chosen file groups, by group."""
        merged = self.merged
        wanted = np.zeros(len(merged.winner), np.bool_)
        wanted[chosen] = True
        kept = np.flatnonzero(wanted[merged.slice_group])
        slices = self.slices().take(pa.array(kept))
        group_ids = self.rows.select(["partition", "bucket", "bucket_count"]).take(pa.array(merged.slice_row[kept]))
        addressed = zip(*(column.to_pylist() for column in group_ids.columns), strict=True)
        values = zip(*(slices.field(field.name).to_pylist() for field in SLICE), strict=True)
        objects: dict[str, LogObject] = {}
        known: dict[tuple[str, int, int], FileGroupId] = {}
        found: dict[int, list[LogSlice]] = {}
        for number, key, (slot, named_at, turn, at_ms, path, size, rows, row_group_rows, start, end, digest, footer) in zip(
            merged.slice_group[kept].tolist(), addressed, values, strict=True
        ):
            if path not in objects:
                objects[path] = LogObject(
                    path=path,
                    bytes=size,
                    rows=rows,
                    row_group_rows=row_group_rows,
                    slices=(),
                    digest=unpacked(digest),
                    footer=unpacked(footer),
                )
            group_id = known.setdefault(key, FileGroupId(*key))
            found.setdefault(number, []).append(LogSlice(slot, objects[path], start, end, group_id, named_at, turn, at_ms))
        return {number: tuple(slices) for number, slices in found.items()}


def _group(rows: pa.Table, table: TableState, groups: GroupFilter | None, hashes: Collection[int] | None = None) -> LiveFiles:
    """Assign rows to the live file groups: those of the partition's current bucket count that have keys in common with the row's."""
    partitions = Partitions.of(rows.column("partition"))
    counts = np.array([table.bucket_count(name) for name in partitions.names], dtype=np.int64)
    own, addressed = integers(rows, "bucket_count"), integers(rows, "bucket")
    now = counts[partitions.codes]
    divisor = np.gcd(own, now)
    repeats = now // np.maximum(divisor, 1)
    row = np.repeat(np.arange(rows.num_rows), repeats)
    turn = np.arange(len(row)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    bucket = (addressed % np.maximum(divisor, 1))[row] + turn * divisor[row]
    keys = (partitions.codes[row] << BUCKET_BITS) | bucket
    if groups is not None:
        kept = np.isin(keys, groups.keys(partitions))
        keys, row = keys[kept], row[kept]
    if hashes is not None:
        kept = _holds_any(keys & ((1 << BUCKET_BITS) - 1), counts[keys >> BUCKET_BITS], hashes)
        keys, row = keys[kept], row[kept]
    unique, group = np.unique(keys, return_inverse=True)
    members = Members(group.astype(np.int64), row)
    return LiveFiles(
        rows, partitions, counts, unique >> BUCKET_BITS, unique & ((1 << BUCKET_BITS) - 1), members, merge_members(rows, members)
    )


def _holds_any(bucket: Ints, count: Ints, hashes: Collection[int]) -> Mask:
    """For each file group, whether one of these hashes belongs to it."""
    mask = np.zeros(len(bucket), np.bool_)
    for one in set(hashes):
        mask |= one % np.maximum(count, 1) == bucket
    return mask


def snapshot_of(view: LogView[Tables], table: str | None = None, *, where: str) -> Snapshot:
    """One table of a view. The only one when `table` is None.

    Args:
        where: Its URL, for the error.

    Raises:
        TableNotFound: The log is empty.
        CorruptTable: The log holds no such table.
        TableClosed: The table was dropped.
        TableMoved: The table moved to a shared log.
    """
    if view.slot < 0:
        raise TableNotFound(f"There is no table at {where}. Create it.")
    if table is None and len(view.state) == 1:
        (table,) = view.state
    if table is None or table not in view.state:
        source = f", as {root_key(view.checkpoint)} says" if view.checkpoint >= 0 else ""
        raise CorruptTable(
            f"The log of {where} does not hold the table {table or 'of that name'}{source}. "
            "Check that this is the prefix of an objcat table."
        )
    marks = view.log.marks(table)
    closed_at = marks.closed_at
    if closed_at is not None and marks.moved_to is not msgspec.UNSET:
        raise moved_error(table, marks.moved_to, closed_at)
    if closed_at is not None:
        raise TableClosed(
            f"Table {table} at {where} was dropped at slot {closed_at}. Call undrop_table() to restore it, unless it was purged."
        )
    return Snapshot(view.log, view.state[table])
