"""Replaces whole partitions or a whole table: file groups end and others begin in one slot. Older slots are unchanged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TypeAlias

import msgspec

from fileio.store import FileIO
from objcat.dml.computed_write import Work, former_of
from objcat.errors import EmptyBatch, InvalidInput
from objcat.metadata.files import FileGroup, TableDelta, decode_delta, encode_delta
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot
from objcat.tasks.model import Filter, ScanTask
from objcat.tasks.scan import scan_groups
from objcat.timeline.entry import FileGroupId, Footprint, Summary, Txn
from objcat.write.service_commit import ServiceResult
from objcat.write.table_writer import TableWriter, WriteBatch

EVERYTHING = ("",)
"""A whole table, as a footprint writes it.

It also means the partition with the empty name, which may exist next to those of another partition spec. To replace only that one, the
footprint claims more than happens.
"""

Touched: TypeAlias = Callable[[Collection[str]], Collection[str]]
"""The partitions to replace, given those in which the batch has rows."""


def replace_partitions(fileio: FileIO, snapshot: Snapshot, change: WriteBatch, touched: Touched | None) -> Work:
    """Write a batch in place of all rows of some partitions.

    touched: None for the whole table. Raises as an insert, when it runs.
    """
    manifests = Manifests(fileio)

    def work(txn: Txn) -> ServiceResult:
        """Write the files."""
        ends: Collection[str] | None = None
        if touched is not None and snapshot.spec.is_global:
            # Keys may move out of partitions that stay, so the partitions that end must be known first.
            ends = touched(_named(change, snapshot, manifests))
        part = TableWriter(fileio, manifests, snapshot.spec.table, [change], ends=ends, whole=touched is None)
        part.write(snapshot, txn)
        own = part.footprint(snapshot)
        if touched is not None and not snapshot.spec.is_global:
            ends = touched({group_id.partition for group_id in (*own.creates, *own.appends)})
        ended = _ended(snapshot, manifests, ends)
        delta = msgspec.structs.replace(part.delta(snapshot), retires=ended)
        return ServiceResult(
            footprint=msgspec.structs.replace(own, overwrites=_overwrites(ends), retires=ended),
            changes=encode_delta(delta),
            summary=_summary(part, may_lose=touched is not None and snapshot.spec.is_global and snapshot.spec.ordering is not None),
            files=tuple(delta.paths),
        )

    return work


def renewed(
    manifests: Manifests, proposal: ServiceResult, before: Snapshot, after: Snapshot, ends: Callable[[], Collection[str] | None]
) -> ServiceResult | None:
    """The proposal of `replace_partitions` or `drop_partitions` for a later snapshot, with the same files.

    An overwrite reads no row that it replaces. So its files stay right whatever others write to these partitions, and only the set of file
    groups that end changes. None if rows may have to be written in another way or place. Raises as `ends`.

    manifests: the same ones for each lost slot, so that a checkpoint is read once. ends: returns the partitions that end, None for all.
    """
    spec, own = after.spec, proposal.footprint
    group_ids = (*own.creates, *own.appends)
    if spec != before.spec or (group_ids and (spec.is_global or spec.former)):
        return None
    if any(before.table.bucket_count(group_id.partition) != after.table.bucket_count(group_id.partition) for group_id in group_ids):
        return None
    partitions = ends()
    ended = _ended(after, manifests, partitions)
    assert proposal.changes is not None
    delta = msgspec.structs.replace(decode_delta(proposal.changes), retires=ended)
    footprint = msgspec.structs.replace(own, overwrites=_overwrites(partitions), retires=ended)
    return replace(proposal, footprint=footprint, changes=encode_delta(delta))


def _overwrites(partitions: Collection[str] | None) -> tuple[str, ...]:
    return EVERYTHING if partitions is None else tuple(sorted(partitions))


def _named(change: WriteBatch, snapshot: Snapshot, manifests: Manifests) -> Collection[str]:
    found = change.engine.capabilities.lookup.partitions_named(
        change.data, change.widened_spec(snapshot.spec), former_of(snapshot, manifests)
    )
    if not found:
        raise EmptyBatch(f"The batch to {change.operation} is empty. Nothing was written. Give it rows, or skip the call.")
    return found


def _summary(part: TableWriter, *, may_lose: bool) -> Summary:
    """What was written. A row whose key was in a remaining partition counts as updated.

    may_lose: whether a newer stored row may win. Rows that lose are not counted.
    """
    written = part.all
    return msgspec.structs.replace(
        part.summary(),
        inserted=None if may_lose else written.rows - written.moved,
        updated=None if may_lose else written.moved,
        deleted=None,
    )


def drop_partitions(snapshot: Snapshot, manifests: Manifests, partitions: Collection[str]) -> Work | None:
    """Remove all rows of some partitions. None if there are none."""
    ended = _ended(snapshot, manifests, partitions)
    if not ended:
        return None
    return lambda _txn: ServiceResult(
        footprint=Footprint(overwrites=_overwrites(partitions), retires=ended),
        changes=encode_delta(TableDelta(retires=ended)),
        summary=Summary(inserted=0, updated=0, deleted=None),
    )


def _ended(snapshot: Snapshot, manifests: Manifests, partitions: Collection[str] | None) -> tuple[FileGroupId, ...]:
    """The file groups of some partitions, or of all if None."""
    return tuple(sorted(snapshot.live_group_ids(manifests, partitions=partitions)))


def partitions_where(fileio: FileIO, snapshot: Snapshot, where: Filter) -> frozenset[str]:
    """The partitions in which every row passes a filter over partition columns. Decided by bounds if possible, else by rows.

    Raises InvalidInput if the filter names other columns, or passes a part of a partition.
    """
    spec, manifests = snapshot.spec, Manifests(fileio)
    partition_names = [column.name for column in spec.partition_columns]
    for name in where.columns:
        if name not in partition_names:
            raise InvalidInput(
                f"The filter names {name!r}, and the partition columns are {partition_names}. Name only these, or delete rows with "
                "delete(where)."
                if partition_names
                else "The table has no partitions. Overwrite it whole, or delete rows with delete(where)."
            )
    pruning, failing = where.to_pruning(), where.to_failing()
    groups: dict[str, list[FileGroup]] = {}
    for group in snapshot.file_groups(manifests):
        groups.setdefault(group.group_id.partition, []).append(group)
    may_pass = {group.group_id.partition for group in snapshot.file_groups(manifests, where=pruning)}
    may_fail = (
        {group.group_id.partition for group in snapshot.file_groups(manifests, where=failing)} if failing is not None else set(groups)
    )
    return frozenset(
        name
        for name in may_pass
        if name not in may_fail or _passes(fileio, ScanTask(spec, tuple(groups[name]), where.columns, None), where, name)
    )


def first_nonempty_partition(fileio: FileIO, snapshot: Snapshot, partitions: Iterable[str]) -> str | None:
    """The first of some partitions with a row. None if all are empty."""
    chosen = frozenset(partitions)
    if not chosen:
        return None
    columns = tuple(column.name for column in snapshot.spec.partition_columns)
    for group in snapshot.file_groups(Manifests(fileio), partitions=chosen):
        if any(rows.num_rows for rows in scan_groups(fileio, ScanTask(snapshot.spec, (group,), columns, None))):
            return group.group_id.partition
    return None


def _passes(fileio: FileIO, task: ScanTask, where: Filter, partition: str) -> bool:
    """Whether all rows of a partition pass. Raises InvalidInput if only some do."""
    passed = total = 0
    for rows in scan_groups(fileio, task):
        total += rows.num_rows
        passed += rows.filter(where.to_arrow()).num_rows
    if 0 < passed < total:
        raise InvalidInput(
            f"The filter is true of some rows of the partition {partition!r} and not of others. Select whole partitions, or delete rows "
            "with delete(where)."
        )
    return passed > 0
