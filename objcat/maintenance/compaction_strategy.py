"""Which file groups a compaction takes: pure choices over the metadata of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass

import pyarrow.compute as pc

from objcat.common.plugins import check_plugin_name
from objcat.common.validation import GroupOrder, one_of, whole_number
from objcat.errors import InvalidInput
from objcat.maintenance.compaction_plugin import CompactionCandidate, choose_by_plugin
from objcat.metadata.files import FileGroup
from objcat.metadata.maintenance_policy import Policy
from objcat.metadata.newest_partitions import newest_first
from objcat.metadata.properties import COMPACTION_ORDERS
from objcat.metadata.table_spec import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStrategy:
    """Which file groups a compaction takes: those that meet every condition set here, up to a byte limit.

    Without conditions it takes all groups that have something to merge.

    Args:
        log_bytes_min: only groups with at least so many bytes of log rows.
        log_count_min: only groups with at least so many runs of log rows.
        partitions_newest: only groups in the N newest partitions of the table, by the values of the partition columns. Partitions with
            nothing to merge count too.
        partitions_older: only groups in all but the N newest, so one job can take the newest and another the rest.
        where: only groups that may hold a row for which this scan filter is true.
        io_bytes_max: bytes to read and write at most. The first group is always taken, or it would wait forever.
        order: which groups come first under that limit: `log_bytes` (most bytes of log rows), `log_count` (most runs of them) or `newest`
            (newest partition).
        plugin: the strategy of an installed package, by the name of its entry point in the group `objcat.compaction_strategies`. It
            chooses among the groups that meet the conditions, and says which come first, in the place of `order`.

    Raises:
        InvalidInput: an argument is out of range, or two exclude each other.
    """

    log_bytes_min: int | None = None
    log_count_min: int | None = None
    partitions_newest: int | None = None
    partitions_older: int | None = None
    where: str | pc.Expression | None = None
    io_bytes_max: int | None = None
    order: GroupOrder = "log_bytes"
    plugin: str | None = None

    def __post_init__(self) -> None:
        for name in ("log_bytes_min", "log_count_min", "partitions_newest", "partitions_older", "io_bytes_max"):
            value = getattr(self, name)
            if value is not None:
                whole_number(value, what=name, least=1)
        if self.partitions_newest is not None and self.partitions_older is not None:
            raise InvalidInput("partitions_newest and partitions_older exclude each other. Give one of them.")
        one_of(self.order, COMPACTION_ORDERS, what="order")
        if self.plugin is not None:
            check_plugin_name(self.plugin, what="plugin")
            if self.order != "log_bytes":
                raise InvalidInput("plugin and order exclude each other, because a plug-in says which groups come first. Leave out order.")


EVERYTHING = CompactionStrategy()


def strategy_of(policy: Policy, *, io_bytes_max: int | None = None) -> CompactionStrategy:
    """The strategy of a policy, within a byte limit."""
    return CompactionStrategy(**asdict(policy.choice), io_bytes_max=io_bytes_max)


def choose(
    groups: Sequence[FileGroup], strategy: CompactionStrategy, spec: TableSpec, partitions: Callable[[], Collection[str]], *, now_ms: int
) -> list[FileGroup]:
    """The groups that a strategy takes, sorted by file group.

    Args:
        groups: those with something to merge that may pass its filter.
        partitions: gives all partitions of the table; called only when they matter.
        now_ms: the time of the newest commit.

    Raises:
        PluginMissing, PluginFailed: of the strategy of another package.
    """
    wanted = _partitions(strategy, spec, partitions)
    chosen = [
        group
        for group in groups
        if (wanted is None or group.group_id.partition in wanted)
        and log_bytes(group) >= (strategy.log_bytes_min or 0)
        and log_count(group) >= (strategy.log_count_min or 0)
    ]
    if strategy.plugin is not None:
        chosen = _chosen_by_plugin(strategy.plugin, sorted(chosen, key=lambda group: group.group_id), spec, now_ms=now_ms)
    return sorted(_within(chosen, strategy, spec), key=lambda group: group.group_id)


def _chosen_by_plugin(plugin: str, groups: Sequence[FileGroup], spec: TableSpec, *, now_ms: int) -> list[FileGroup]:
    """What the strategy of another package chooses, in its order. It is not asked where there is nothing to choose."""
    if not groups:
        return []
    by_id = {group.group_id: group for group in groups}
    candidates = [
        CompactionCandidate(
            file_group=group.group_id,
            log_bytes=log_bytes(group),
            log_count=log_count(group),
            base_bytes=base_bytes(group),
            io_bytes=io_bytes(group),
            waiting_s=waiting_s(group, now_ms=now_ms),
        )
        for group in groups
    ]
    return [by_id[group_id] for group_id in choose_by_plugin(plugin, spec.properties, candidates)]


def _partitions(strategy: CompactionStrategy, spec: TableSpec, partitions: Callable[[], Collection[str]]) -> frozenset[str] | None:
    """The partitions that a strategy takes; None for all."""
    if strategy.partitions_newest is not None:
        return frozenset(newest_first(partitions(), spec)[: strategy.partitions_newest])
    if strategy.partitions_older is not None:
        return frozenset(newest_first(partitions(), spec)[strategy.partitions_older :])
    return None


def log_bytes(group: FileGroup) -> int:
    """Bytes of log rows that wait to be merged: the group's share of its log objects, and of rows that a split divides."""
    count = group.group_id.bucket_count
    return sum(
        part.object.bytes * part.rows // max(1, part.object.rows) // max(1, count // part.group_id.bucket_count)
        for part in group.logs
        if part.slot > group.as_of
    )


def log_count(group: FileGroup) -> int:
    """Runs of log rows that wait to be merged."""
    return sum(part.slot > group.as_of for part in group.logs)


def waiting_s(group: FileGroup, *, now_ms: int) -> float:
    """Seconds between the commit of the oldest log rows that wait to be merged, and `now_ms`; 0 when none waits."""
    oldest_ms = min((part.committed_at_ms for part in group.logs if part.slot > group.as_of and part.committed_at_ms), default=now_ms)
    return max(0, now_ms - oldest_ms) / 1000


def base_bytes(group: FileGroup) -> int:
    """Bytes of the group's base file; its share of a file that it shares with others since a split."""
    if group.base is None:
        return 0
    return group.base.bytes * group.base.group_id.bucket_count // max(group.group_id.bucket_count, group.base.group_id.bucket_count)


def io_bytes(group: FileGroup) -> int:
    """About how many bytes a compaction of the group reads and writes. A shared base file is read whole for each group."""
    read = (0 if group.base is None else group.base.bytes) + log_bytes(group)
    return read + base_bytes(group) + log_bytes(group)


def _within(groups: list[FileGroup], strategy: CompactionStrategy, spec: TableSpec) -> list[FileGroup]:
    """As many groups as the byte limit allows, in the order of the strategy. One that does not fit leaves room for smaller ones."""
    if strategy.io_bytes_max is None:
        return groups
    match strategy.order:
        case _ if strategy.plugin is not None:
            ordered = groups
        case "newest":
            places = {name: place for place, name in enumerate(newest_first({group.group_id.partition for group in groups}, spec))}
            ordered = sorted(sorted(groups, key=log_bytes, reverse=True), key=lambda group: places[group.group_id.partition])
        case "log_count":
            ordered = sorted(groups, key=log_count, reverse=True)
        case _:
            ordered = sorted(groups, key=log_bytes, reverse=True)
    taken: list[FileGroup] = []
    left = strategy.io_bytes_max
    for group in ordered:
        needed = io_bytes(group)
        if needed <= left or not taken:
            taken.append(group)
            left -= needed
    return taken
