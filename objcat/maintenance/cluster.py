"""Clustering: file groups are rewritten into others of a good size, in which similar rows lie together.

Rows without a key, and rows whose key is looked up, may be in any file group of their partition. So some groups end and new ones begin with
their rows, in one slot and as of one slot. Each row keeps the transaction that wrote it. Under the bucket index groups stay and their rows
are sorted; see `reorder`.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fileio.store import FileIO
from objcat.datafile.parquet import BaseWriter, base_path
from objcat.maintenance.cluster_keys import Clustering, check_clustering
from objcat.maintenance.cluster_order import order_of, reorder
from objcat.maintenance.cluster_rows import RelocateTask, relocate_groups
from objcat.maintenance.workers import Advance, LocalWorkers, Workers
from objcat.metadata.files import BaseFile, FileGroup, LogObject, TableDelta, decode_delta, encode_delta, features_of
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.planning.scan import plan_scan
from objcat.tasks.merged_rows import current_cuts, loaded_logs
from objcat.tasks.model import TXN_FIELD, WriteResult
from objcat.tasks.row_order import sorted_rows
from objcat.timeline.entry import Action, FileGroupId, Footprint, Summary, Txn
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.file_sizing import assign_file_groups, groups_apart, size_of
from objcat.write.service_commit import Service, ServiceResult, run_service

SORTED_BYTES_MAX = 256 * 1024**2
"""Bytes of files whose rows are sorted together, in memory."""
SMALL_SHARE = 2
"""Groups below this part (a half) of the target size are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringResult:
    """A clustering that is durable.

    Attributes:
        slot, txn: of its commit.
        as_of: the slot whose rows it moved.
        groups_before, groups: file groups that ended, and that began.
        rows, bytes: written.
    """

    slot: int
    txn: Txn
    as_of: int
    groups_before: int
    groups: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """Rewrite some file groups of one partition together. `columns`: physical names that rows are sorted by."""

    spec: TableSpec
    txn: Txn
    groups: tuple[FileGroup, ...]
    columns: tuple[str, ...]
    zorder: bool


@dataclass(frozen=True, slots=True)
class _Work:
    """Groups to rewrite, in parts of one partition each. `live`: all live file groups of these partitions."""

    snapshot: Snapshot
    parts: tuple[tuple[FileGroup, ...], ...]
    live: dict[FileGroupId, FileGroup]


def cluster(timeline: Timeline[Tables], table: str, clustering: Clustering, *, workers: Workers | None = None) -> ClusteringResult | None:
    """Rewrite file groups in one commit; None when there is nothing to gain.

    Under the bucket index, each group whose base file is not in the order of the columns is rewritten by itself. It is a compaction with
    another order, so no writer conflicts with it.
    Under other indexes, without columns: two or more groups of a partition below half the property `target_file_bytes` become groups of
    that size. With columns: all groups that the filter leaves, except in partitions whose groups are large enough and hold ranges of the
    first column that do not overlap. A z-order is always rewritten.
    Rows are sorted within parts of about 256 MB of files. Log rows are merged on the way.
    A writer that adds rows to a group that ends meanwhile puts them elsewhere. It does not write them again where there is no key, and
    looks its keys up again where they are looked up. Rows added before the clustering commits make it leave that partition as it is or,
    with a record index, start again.

    Args:
        workers: do the work; this process when None.

    Raises:
        InvalidInput: columns that rows cannot be sorted by, or none under the bucket index.
        InvalidPredicate, TableClosed, CommitUnknown, storage errors: see `objcat.errors`.
        CommitConflict: writers were faster each time.
    """
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)
    doing = workers or LocalWorkers(fileio)
    begin = timeline.open()
    if not snapshot_of(begin, table, where=fileio.url).spec.has_free_groups:
        return _reordered(timeline, table, clustering, begin, doing)

    def plan(view: LogView[Tables]) -> _Work | None:
        snapshot = snapshot_of(view, table, where=fileio.url)
        snapshot.spec.check_own_files("cluster files")
        check_clustering(snapshot.spec, clustering)
        work = _plan(snapshot, manifests, clustering)
        return work if work.parts else None

    service = Service(
        action=Action.COMPACTION,
        table=table,
        plan=plan,
        run=lambda work, txn: _run(fileio, doing, work, clustering, txn),
        narrow=_narrow,
    )
    done = run_service(timeline, service, begin)
    if done is None:
        return None
    entry, proposal = done.entry, done.proposal
    return ClusteringResult(
        slot=entry.slot,
        txn=entry.txn,
        as_of=done.plan.snapshot.slot,
        groups_before=len(proposal.footprint.retires),
        groups=len(proposal.footprint.creates),
        rows=proposal.summary.rows,
        bytes=proposal.summary.bytes,
    )


def _reordered(
    timeline: Timeline[Tables], table: str, clustering: Clustering, view: LogView[Tables], workers: Workers
) -> ClusteringResult | None:
    done = reorder(timeline, table, clustering, view, workers=workers)
    if done is None:
        return None
    entry, summary = done.entry, done.proposal.summary
    groups = len(done.proposal.footprint.replaces)
    return ClusteringResult(
        slot=entry.slot,
        txn=entry.txn,
        as_of=done.plan.plan.slot,
        groups_before=groups,
        groups=groups,
        rows=summary.rows,
        bytes=summary.bytes,
    )


def small_groups_of(snapshot: Snapshot, manifests: Manifests) -> int:
    """The number of small groups in the partition that has most of them.

    It is 0 for a table with a key, whose writers would look keys up again, and for one in place, whose files are not ours.
    """
    if snapshot.spec.has_key or snapshot.spec.is_in_place:
        return 0
    target = snapshot.spec.target_file_bytes
    small = Counter(group.group_id.partition for group in snapshot.file_groups(manifests) if size_of(group) * SMALL_SHARE < target)
    return max(small.values(), default=0)


# ---- which groups ------------------------------------------------------------------------------------------------


def _plan(snapshot: Snapshot, manifests: Manifests, clustering: Clustering) -> _Work:
    spec = snapshot.spec
    chosen = sorted(plan_scan(snapshot, manifests, where=clustering.where, columns=None).groups, key=lambda group: group.group_id)
    by_partition: dict[str, list[FileGroup]] = defaultdict(list)
    for group in chosen:
        by_partition[group.group_id.partition].append(group)
    lowest = _lowest(snapshot, manifests, clustering)
    parts: list[tuple[FileGroup, ...]] = []
    left = clustering.io_bytes_max
    for _, groups in sorted(by_partition.items()):
        for part in _parts(groups, spec, clustering, lowest):
            needed = 2 * sum(map(size_of, part))
            if left is not None and parts and needed > left:
                continue
            parts.append(part)
            left = None if left is None else left - needed
    partitions = {part[0].group_id.partition for part in parts}
    live = {group.group_id: group for group in snapshot.file_groups(manifests, partitions=partitions)} if parts else {}
    return _Work(snapshot, tuple(parts), live)


_Range = tuple[Any, Any]


def _lowest(snapshot: Snapshot, manifests: Manifests, clustering: Clustering) -> dict[str, _Range]:
    """The range of the first column in each base file, where it is known."""
    if not clustering.by:
        return {}
    column = snapshot.spec.table_schema.column(clustering.by[0]).id
    bounds = snapshot.live(manifests, (column,)).bounds()
    names = ("base_path", f"lower_{column}", f"upper_{column}")
    if not set(names) <= set(bounds.column_names):
        return {}
    known = zip(*(bounds.column(name).to_pylist() for name in names), strict=True)
    return {path: (lower, upper) for path, lower, upper in known if path is not None and lower is not None and upper is not None}


def _parts(groups: Sequence[FileGroup], spec: TableSpec, clustering: Clustering, ranges: dict[str, _Range]) -> list[tuple[FileGroup, ...]]:
    """The groups of one partition to rewrite, in parts that are sorted separately."""
    small = [group for group in groups if size_of(group) * SMALL_SHARE < spec.target_file_bytes]
    if not clustering.by:
        chosen = small if len(small) > 1 else []
    else:
        chosen = [] if len(small) < 2 and _is_done(groups, spec, clustering, ranges) else list(groups)
        # Neighbours go into one part.
        ranked = [(found, group) for group in chosen if (found := _range_of(group, ranges)) is not None]
        if len(ranked) == len(chosen):
            chosen = [group for _, group in sorted(ranked, key=lambda pair: pair[0])]
    parts: list[list[FileGroup]] = []
    held = 0
    for group in chosen:
        size = size_of(group)
        if not parts or held + size > SORTED_BYTES_MAX:
            parts.append([])
            held = 0
        parts[-1].append(group)
        held += size
    return [tuple(part) for part in parts if len(part) > 1 or clustering.by]


def _is_done(groups: Sequence[FileGroup], spec: TableSpec, clustering: Clustering, ranges: dict[str, _Range]) -> bool:
    """Whether the rows are in order across the groups and within each, as far as the metadata says."""
    if spec.is_located and any(group.base is None or group.base.order != order_of(spec, clustering) for group in groups):
        return False
    return not clustering.zorder and _is_sorted(groups, ranges)


def _range_of(group: FileGroup, ranges: dict[str, _Range]) -> _Range | None:
    return None if group.base is None else ranges.get(group.base.path)


def _is_sorted(groups: Sequence[FileGroup], ranges: dict[str, _Range]) -> bool:
    """Whether groups without log rows hold ranges of the first column that do not overlap."""
    found = [_range_of(group, ranges) for group in groups if group.is_plain]
    if len(found) < len(groups) or any(one is None for one in found):
        return False
    ordered = sorted(one for one in found if one is not None)
    return all(before[1] <= after[0] for before, after in itertools.pairwise(ordered))


# ---- the work ----------------------------------------------------------------------------------------------------


def _run(fileio: FileIO, workers: Workers, work: _Work, clustering: Clustering, txn: Txn) -> ServiceResult:
    spec = work.snapshot.spec
    columns = tuple(spec.table_schema.column(name).physical for name in clustering.by)
    draw: Callable[[], int] = lambda: int(fileio.env.new_id(), 16)  # noqa: E731
    groups = sum(map(len, work.parts))
    if spec.is_located:
        order = order_of(spec, clustering)
        group_ids = groups_apart(spec, [(part[0].group_id.partition, _files_of(part, spec)) for part in work.parts], work.live, draw)
        parts = enumerate(zip(work.parts, group_ids, strict=True))
        moving = [RelocateTask(spec, txn, f"cluster-{number}", part, own, order) for number, (part, own) in parts]
        written = workers.run(relocate_groups, moving, service="cluster", groups=groups)
    else:
        tasks = [ClusterTask(spec, txn, part, columns, clustering.zorder) for part in work.parts]
        pieces = workers.run(cluster_groups, tasks, service="cluster", groups=groups)
        written = assign_file_groups(spec, pieces, work.live, draw, fills=False).written
    retires = tuple(sorted(group.group_id for part in work.parts for group in part))
    return _proposal(written, retires, as_of=work.snapshot.slot)


def _files_of(part: Sequence[FileGroup], spec: TableSpec) -> int:
    """How many files of the target size the rows of some groups make."""
    return max(1, round(sum(map(size_of, part)) / spec.target_file_bytes))


def cluster_groups(fileio: FileIO, task: ClusterTask, advance: Advance) -> WriteResult:
    """Write new base files of about the target size with the rows of a task. Their file groups are chosen later.

    Calls `advance` for every group. Raises CorruptTable, storage errors.
    """
    spec, part = task.spec, task.groups
    schema = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
    logs = loaded_logs(fileio, spec, part)
    cuts = [rows.select(schema.names) for group in part for rows, _ in current_cuts(fileio, spec, group, logs)]
    rows = pa.concat_tables([schema.empty_table(), *(cut.cast(schema) for cut in cuts)])
    if not rows.num_rows:
        return WriteResult()
    rows = sorted_rows(rows, task.columns, zorder=task.zorder)
    size = -(-rows.num_rows // _files_of(part, spec))
    group_id = FileGroupId(part[0].group_id.partition, 0, spec.index.count)
    found = []
    for start in range(0, rows.num_rows, size):
        path = base_path(task.txn, group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
        with BaseWriter(fileio, path, schema, group_id, statistics=spec.statistics) as writer:
            writer.write(rows.slice(start, size))
            found.append(writer.finish())
    advance(len(part))
    return WriteResult(tuple(found))


def _proposal(written: WriteResult, retires: tuple[FileGroupId, ...], *, as_of: int) -> ServiceResult:
    bases = written.bases
    files: list[BaseFile | LogObject] = [*bases, *written.logs, *written.index]
    index = TableDelta(logs=written.index) if written.index else None
    delta = TableDelta(bases=bases, retires=retires, logs=written.logs, as_of=as_of, index=index)
    return ServiceResult(
        footprint=Footprint(creates=tuple(sorted(base.group_id for base in bases)), retires=retires),
        changes=encode_delta(delta),
        summary=Summary(rows=sum(base.rows for base in bases), files=len(files), bytes=sum(file.bytes for file in files)),
        files=tuple(file.path for file in files),
        features=features_of(delta),
    )


def _narrow(proposal: ServiceResult, taken: frozenset[FileGroupId]) -> ServiceResult | None:
    """The same result without the partitions in which others committed first.

    The keys that a log object of a record index names are not known here. Index rows for file groups that never begin would hide where
    these keys are stored, so with a record index everything is planned again.
    """
    assert proposal.changes is not None
    delta = decode_delta(proposal.changes)
    if delta.index is not None:
        return None
    lost = {group_id.partition for group_id in taken}
    retires = tuple(group_id for group_id in delta.retires if group_id.partition not in lost)
    bases = tuple(base for base in delta.bases if base.group_id.partition not in lost)
    logs = tuple(log for log in delta.logs if not lost.intersection(rows.group_id.partition for rows in log.slices))
    as_of = delta.as_of if delta.as_of is not None else -1
    return _proposal(WriteResult(bases, logs), retires, as_of=as_of) if retires else None
