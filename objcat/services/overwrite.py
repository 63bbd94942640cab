"""Replacing partitions, or a table, whole: file groups end, and others begin, in one slot. Older slots keep what they had."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

import msgspec

from fileio.store import FileIO
from objcat.errors import InvalidInput
from objcat.parts import Change, Part
from objcat.services.compute import Work
from objcat.services.perform import Proposal
from objcat.table import FileGroup, Manifests, Snapshot, TableDelta
from objcat.table.files import encode_delta
from objcat.tasks import Filter, ScanTask, scan_groups
from objcat.timeline import Footprint, Home, Summary, Txn

EVERYTHING = ("",)
"""The partitions of a whole table, as a footprint says it."""

Touched: TypeAlias = Callable[[Collection[str]], Collection[str]]
"""Which partitions to replace, when the batch has rows in these."""


def replaces(fileio: FileIO, snapshot: Snapshot, change: Change, touched: Touched) -> Work:
    """Write a batch in the place of all rows of some partitions. Raises as an insert, when it runs."""
    manifests = Manifests(fileio)

    def work(txn: Txn) -> Proposal:
        part = Part(fileio, manifests, snapshot.spec.table, [change], empties=True)
        part.write(snapshot, txn)
        own = part.footprint(snapshot)
        replaced = touched({home.partition for home in (*own.creates, *own.appends)})
        ended = _ended(snapshot, manifests, replaced)
        delta = msgspec.structs.replace(part.delta(snapshot), retires=ended)
        return Proposal(
            footprint=msgspec.structs.replace(own, overwrites=tuple(sorted(replaced)), retires=ended),
            changes=encode_delta(delta),
            summary=msgspec.structs.replace(part.summary(), inserted=part.all.rows, updated=0, deleted=None),
            files=tuple(delta.paths),
        )

    return work


def ends(snapshot: Snapshot, manifests: Manifests, partitions: Collection[str]) -> Work | None:
    """Take all rows of some partitions away; None when there are none."""
    ended = _ended(snapshot, manifests, partitions)
    if not ended:
        return None
    return lambda _txn: Proposal(
        footprint=Footprint(overwrites=tuple(sorted(partitions)), retires=ended),
        changes=encode_delta(TableDelta(retires=ended)),
        summary=Summary(inserted=0, updated=0, deleted=None),
    )


def _ended(snapshot: Snapshot, manifests: Manifests, partitions: Collection[str]) -> tuple[Home, ...]:
    return tuple(sorted(snapshot.live_homes(manifests, partitions=None if "" in partitions else partitions)))


def partitions_where(fileio: FileIO, snapshot: Snapshot, where: Filter) -> frozenset[str]:
    """The partitions of which every row passes a filter over partition columns.

    By their bounds where these say it, else by their rows. Raises InvalidInput when the filter names other columns, or divides a partition.
    """
    spec, manifests = snapshot.spec, Manifests(fileio)
    homes = [column.name for column in spec.partition_columns]
    for name in where.columns:
        if name not in homes:
            raise InvalidInput(
                f"the filter names {name!r}, and partitions are made of {homes}: name these alone, or delete rows by delete(where)"
                if homes
                else "the table has no partitions: overwrite it whole, or delete rows by delete(where)"
            )
    pruning, failing = where.to_pruning(), where.to_failing()
    groups: dict[str, list[FileGroup]] = {}
    for group in snapshot.file_groups(manifests):
        groups.setdefault(group.home.partition, []).append(group)
    may_pass = {group.home.partition for group in snapshot.file_groups(manifests, where=pruning)}
    may_fail = {group.home.partition for group in snapshot.file_groups(manifests, where=failing)} if failing is not None else set(groups)
    return frozenset(
        name
        for name in may_pass
        if name not in may_fail or _passes(fileio, ScanTask(spec, tuple(groups[name]), where.columns, None), where, name)
    )


def _passes(fileio: FileIO, task: ScanTask, where: Filter, partition: str) -> bool:
    """Whether the rows of a partition pass, all of them. Raises InvalidInput when only some do."""
    passed = total = 0
    for rows in scan_groups(fileio, task):
        total += rows.num_rows
        passed += rows.filter(where.to_arrow()).num_rows
    if 0 < passed < total:
        raise InvalidInput(
            f"the filter is true of some rows of the partition {partition!r} and not of others: name partitions whole, or delete rows by "
            "delete(where)"
        )
    return passed > 0
