"""Which file groups a compaction takes, of all that have something to merge: pure choices over the metadata of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass

import pyarrow.compute as pc

from objcat.common.validation import GroupOrder, one_of, whole_number
from objcat.errors import InvalidInput
from objcat.metadata.files import FileGroup
from objcat.metadata.maintenance_policy import Policy
from objcat.metadata.newest_partitions import newest_first
from objcat.metadata.properties import COMPACTION_ORDERS
from objcat.metadata.table_spec import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStrategy:
    """What a compaction takes: the file groups that meet every condition which is given, in some order, up to a bound of bytes.

    log_bytes_min, log_count_min: only groups with at least so many bytes, or so many runs, of log rows. partitions_newest: only groups in
    the so many newest partitions of all that the table has, whether they have anything to merge or not; newest by the values of the
    partition columns. partitions_older: only groups in all the others, so one job can take the newest and another one the rest. where: only
    groups that may hold a row for which this filter, as of a scan, is true. io_bytes_max: what is read and written at most, in bytes; the
    first group is taken whatever its size, or it would wait for ever. order: who comes first where that bound leaves some out: `log_bytes`,
    the most bytes of log rows; `log_count`, the most runs of them; `newest`, the newest partition. All groups with something to merge when
    nothing is given. Raises InvalidInput.
    """

    log_bytes_min: int | None = None
    log_count_min: int | None = None
    partitions_newest: int | None = None
    partitions_older: int | None = None
    where: str | pc.Expression | None = None
    io_bytes_max: int | None = None
    order: GroupOrder = "log_bytes"

    def __post_init__(self) -> None:
        for name in ("log_bytes_min", "log_count_min", "partitions_newest", "partitions_older", "io_bytes_max"):
            value = getattr(self, name)
            if value is not None:
                whole_number(value, what=name, least=1)
        if self.partitions_newest is not None and self.partitions_older is not None:
            raise InvalidInput("partitions_newest and partitions_older say what the other leaves: give one of them")
        one_of(self.order, COMPACTION_ORDERS, what="order")


EVERYTHING = CompactionStrategy()


def strategy_of(policy: Policy, *, io_bytes_max: int | None = None) -> CompactionStrategy:
    """What a compaction by policy takes, within a bound of bytes."""
    return CompactionStrategy(**asdict(policy.choice), io_bytes_max=io_bytes_max)


def choose(
    groups: Sequence[FileGroup], strategy: CompactionStrategy, spec: TableSpec, partitions: Callable[[], Collection[str]]
) -> list[FileGroup]:
    """The groups that a strategy takes, sorted by file group.

    groups: those with something to merge, that may pass its filter. partitions: gives all that the table has; asked only when it matters.
    """
    wanted = _partitions(strategy, spec, partitions)
    chosen = [
        group
        for group in groups
        if (wanted is None or group.group_id.partition in wanted)
        and log_bytes(group) >= (strategy.log_bytes_min or 0)
        and log_count(group) >= (strategy.log_count_min or 0)
    ]
    return sorted(_within(chosen, strategy, spec), key=lambda group: group.group_id)


def _partitions(strategy: CompactionStrategy, spec: TableSpec, partitions: Callable[[], Collection[str]]) -> frozenset[str] | None:
    """Those that a strategy takes; None for all."""
    if strategy.partitions_newest is not None:
        return frozenset(newest_first(partitions(), spec)[: strategy.partitions_newest])
    if strategy.partitions_older is not None:
        return frozenset(newest_first(partitions(), spec)[strategy.partitions_older :])
    return None


def log_bytes(group: FileGroup) -> int:
    """Bytes of the log rows that wait to be merged: their share of the log objects, and of rows that are divided by a split."""
    count = group.group_id.bucket_count
    return sum(
        part.object.bytes * part.rows // max(1, part.object.rows) // max(1, count // part.group_id.bucket_count)
        for part in group.logs
        if part.slot > group.as_of
    )


def log_count(group: FileGroup) -> int:
    """Runs of log rows that wait to be merged."""
    return sum(part.slot > group.as_of for part in group.logs)


def base_bytes(group: FileGroup) -> int:
    """Bytes of its base file; its share of one that it has in common with others since a split."""
    if group.base is None:
        return 0
    return group.base.bytes * group.base.group_id.bucket_count // max(group.group_id.bucket_count, group.base.group_id.bucket_count)


def io_bytes(group: FileGroup) -> int:
    """What a compaction of the group reads and writes, about. A base file that several share is read whole for each."""
    read = (0 if group.base is None else group.base.bytes) + log_bytes(group)
    return read + base_bytes(group) + log_bytes(group)


def _within(groups: list[FileGroup], strategy: CompactionStrategy, spec: TableSpec) -> list[FileGroup]:
    """As many as the bound of bytes allows, in the order of the strategy; one that does not fit leaves room for smaller ones."""
    if strategy.io_bytes_max is None:
        return groups
    match strategy.order:
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
