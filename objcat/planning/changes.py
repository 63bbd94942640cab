"""Plans a change feed: the rows that each commit of a slot range inserted, updated and deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd

import msgspec
import pyarrow as pa

from objcat.metadata.files import FileGroup, LogSlice, TableDelta, decode_delta
from objcat.metadata.manifest import Manifests
from objcat.metadata.partitioning import shape_of
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TABLE_SCOPE, TableSpec
from objcat.metadata.table_state import Tables
from objcat.metadata.type_widening import widest
from objcat.tasks.change_columns import COMMIT_SLOT
from objcat.tasks.changes import ChangeTask, RowChanges, change_schema, increment_schema
from objcat.tasks.model import Filter
from objcat.tasks.row_differences import ChangeStep
from objcat.timeline.entry import Action, Entry, FileGroupId
from objcat.timeline.log_view import LogView


@dataclass(frozen=True, slots=True)
class ChangesPlan:
    """What a read of changes reads.

    Args:
        spec: of the end of the range.
        wide: the same with the widest column types of the range, and nulls where they were allowed at any time. It differs if a RESTORE
            made a
            column narrower or required again. Rows from between are returned in it.
        columns: see `ChangeTask`.
        net: likewise.
        where: likewise.
        moved: likewise. If rows moved, additions and removals are found per partition.
        latest: whether only existing rows are returned.
        parted: whether a key that is unique in the table may have been in several partitions of the range.
    """

    spec: TableSpec
    wide: TableSpec
    classes: tuple[RowChanges, ...]
    columns: tuple[str, ...]
    net: bool
    latest: bool = False
    where: Filter | None = None
    moved: bool = False
    parted: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return increment_schema(self.spec, self.columns) if self.latest else change_schema(self.wide, self.columns)

    @property
    def sort_by(self) -> str | None:
        """The column that orders the changes of all tasks."""
        return None if self.latest else COMMIT_SLOT

    @property
    def is_mixed(self) -> bool:
        """Whether the range has partitions of several partition specs.

        One commit may then end a row in one partition and begin it in another.
        """
        return len({shape_of(changed.partition) for changed in self.classes}) > 1

    def tasks(self, *, count_max: int) -> list[ChangeTask]:  # noqa: ARG002 - each class is one state, which is not divided
        """One task per class of file groups. Classes between which keys move share one, and so do rows without a key."""
        dealt: dict[object, list[RowChanges]] = {}
        for number, changed in enumerate(self.classes):
            within = "" if self.parted else changed.partition
            together = self.parted or self.spec.is_located or self.moved
            dealt.setdefault(within if together else number, []).append(changed)
        met = self.parted or self.spec.is_located
        return [
            ChangeTask(self.wide, tuple(some), self.columns, self.net, self.spec if self.latest else None, self.where, self.moved, met)
            for some in dealt.values()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRange:
    """A slot range of the log of one table.

    Args:
        before: the log at the slot before the range. None if that is before its first slot.
        until: the table at the end of the range.
        entries: of the range, with their changes.
        at: gives the log at a slot.
    """

    table: str
    before: LogView[Tables] | None
    until: Snapshot
    entries: Sequence[Entry]
    at: Callable[[int], LogView[Tables]]

    @property
    def since(self) -> int:
        """The slot before the range."""
        return -1 if self.before is None else self.before.slot


def clusterings_of(entries: Sequence[Entry], table: str) -> list[int]:
    """The slots at which rows of a table moved to other file groups unchanged."""
    touched = ((entry, entry.footprint.get(table)) for entry in entries if entry.action is Action.COMPACTION)
    return [entry.slot for entry, footprint in touched if footprint is not None and footprint.retires]


def plan_changes(within: ChangeRange, manifests: Manifests, *, columns: Sequence[str], net: bool) -> ChangesPlan:
    """The plan of a read of changes. Raises as `Manifests.load`, and what `within.at` raises."""
    happened = [step for entry in within.entries if (step := _happened(entry, within)) is not None]
    spec = within.until.spec
    states = [within.until, *_snapshots(within, happened)]
    classes = _Classes(_divisors(within, states, happened))
    for event in happened:
        if event.restores is None:
            classes.written(event)
        else:
            classes.restored(
                event, _groups(within, within.at(event.restores), manifests), _groups(within, within.at(event.entry.slot - 1), manifests)
            )
    touched = sorted(classes.steps)
    before: dict[_Class, list[FileGroup]] = {}
    # Without a key, added rows are changes whatever the table holds.
    measured = [one for one in touched if spec.has_key or any(step.replaces for step in classes.steps[one])]
    if within.before is not None and within.table in within.before.state and measured:
        group_ids = [FileGroupId(partition, bucket, classes.divisors[partition]) for partition, bucket in measured]
        for group in Snapshot(within.before.log, within.before.state[within.table]).file_groups(manifests, group_ids=group_ids):
            before.setdefault(classes.of(group.group_id), []).append(group)
    changed = tuple(RowChanges(one[0], tuple(before.get(one, ())), tuple(classes.steps[one])) for one in touched)
    deltas = (decode_delta(entry.changes[within.table]) for entry in within.entries if within.table in entry.changes)
    specs = [*(state.spec for state in states), *(delta.spec for delta in deltas if delta.spec is not None)]
    return ChangesPlan(
        spec,
        with_widest(spec, specs),
        changed,
        tuple(columns),
        net,
        parted=_parts_keys(spec, specs, happened, {partition for partition, _ in touched}),
    )


def with_widest(spec: TableSpec, specs: Iterable[TableSpec]) -> TableSpec:
    """The spec with the widest column types of these specs, and nullable columns if one of them allows nulls."""
    schema = widest(spec.table_schema, (other.table_schema for other in specs))
    return spec if schema == spec.table_schema else msgspec.structs.replace(spec, table_schema=schema)


def _parts_keys(spec: TableSpec, specs: Iterable[TableSpec], happened: Iterable[_Event], partitions: Collection[str]) -> bool:
    """Whether a key that is unique in the table may have left one of these partitions for another.

    That happens if its rows move, or if a RESTORE or an end of whole partitions took it to a partition of another spec.
    """
    if not spec.has_key or spec.key_scope != TABLE_SCOPE:
        return False
    if any(one.is_global for one in specs):
        return True
    # While a partition of a previous spec exists, its keys stay in it.
    ended = any(event.restores is not None or (event.delta.retires and event.entry.action is not Action.COMPACTION) for event in happened)
    return ended and len({shape_of(partition) for partition in partitions}) > 1


_Class = tuple[str, int]
"""A partition, and the remainder of the buckets of a class modulo the partition's divisor."""


@dataclass(frozen=True, slots=True)
class _Event:
    """An entry that may change rows of the table. restores: the slot that a RESTORE returns to."""

    entry: Entry
    delta: TableDelta
    restores: int | None


def _happened(entry: Entry, within: ChangeRange) -> _Event | None:
    """What an entry does to the table. None if it changes no row, like a compaction or a split.

    A clustering changes no row either, but moves rows between file groups. Rows with a key are followed.
    """
    footprint = entry.footprint.get(within.table)
    if footprint is not None and footprint.restores is not None:
        return _Event(entry, TableDelta(), footprint.restores)
    if within.table not in entry.changes:
        return None
    if entry.action is Action.COMPACTION and (not within.until.spec.has_key or footprint is None or not footprint.retires):
        return None
    delta = decode_delta(entry.changes[within.table])
    return _Event(entry, delta, None) if delta.bases or delta.logs or delta.retires else None


def _snapshots(within: ChangeRange, happened: Sequence[_Event]) -> list[Snapshot]:
    """The snapshots whose bucket counts a class must be divisible by, apart from the last."""
    views = [within.before] if within.before is not None else []
    views += [within.at(slot) for event in happened if event.restores is not None for slot in (event.restores, event.entry.slot - 1)]
    return [Snapshot(view.log, view.state[within.table]) for view in views if within.table in view.state]


def _divisors(within: ChangeRange, states: Sequence[Snapshot], happened: Sequence[_Event]) -> dict[str, int]:
    """By partition, a divisor of every bucket count in the range."""
    deltas = [decode_delta(entry.changes[within.table]) for entry in within.entries if within.table in entry.changes]
    named = [group_id for event in happened for group_id in _group_ids(event.delta)]
    partitions = {group_id.partition for group_id in named} | {partition for state in states for partition in state.table.bucket_counts}
    found: dict[str, int] = {}
    common = 0
    for state in states:
        common = gcd(common, state.spec.index.count)
    for partition in partitions:
        found[partition] = gcd(common, *(state.table.bucket_count(partition) for state in states))
    for group_id in named:
        found[group_id.partition] = gcd(found[group_id.partition], group_id.bucket_count)
    for delta in deltas:
        for partition, count in delta.splits.items():
            found[partition] = gcd(found.get(partition, common), count)
    return _Default(found, common)


class _Default(dict[str, int]):
    """A mapping with a default value."""

    def __init__(self, known: dict[str, int], otherwise: int) -> None:
        super().__init__(known)
        self._otherwise = otherwise

    def __missing__(self, key: str) -> int:
        return self._otherwise


def _group_ids(delta: TableDelta) -> Iterable[FileGroupId]:
    yield from (base.group_id for base in delta.bases)
    yield from delta.retires
    yield from (rows.group_id for log in delta.logs for rows in log.slices)


def _groups(within: ChangeRange, view: LogView[Tables], manifests: Manifests) -> list[FileGroup]:
    if within.table not in view.state:
        return []
    return Snapshot(view.log, view.state[within.table]).file_groups(manifests)


@dataclass(slots=True)
class _Classes:
    """The steps of every class of file groups. divisors: by partition."""

    divisors: dict[str, int]
    steps: dict[_Class, list[ChangeStep]] = field(default_factory=dict)

    def of(self, group_id: FileGroupId) -> _Class:
        """The class of a file group."""
        return group_id.partition, group_id.bucket % self.divisors[group_id.partition]

    def written(self, event: _Event) -> None:
        """What an entry wrote. Base files replace their file groups with the deletes that belong to them, since nothing came in between."""
        entry, delta = event.entry, event.delta
        slices: dict[FileGroupId, list[LogSlice]] = {}
        rewritten = {base.group_id for base in delta.bases}
        for number, log in enumerate(delta.logs):
            bare = msgspec.structs.replace(log, slices=())
            for rows in log.slices:
                kept = delta.as_of is not None and rows.group_id in rewritten
                counts_as = delta.as_of if kept and delta.as_of is not None else entry.slot
                at_ms = 0 if kept else entry.committed_at_ms
                part = LogSlice(counts_as, bare, rows.start, rows.end, rows.group_id, entry.slot, number, at_ms)
                slices.setdefault(rows.group_id, []).append(part)
        groups = {group_id: FileGroup(group_id, logs=tuple(slices.get(group_id, ()))) for group_id in delta.retires}
        for base in delta.bases:
            as_of = -1 if delta.as_of is None else delta.as_of
            groups[base.group_id] = FileGroup(base.group_id, base, entry.slot, entry.txn, as_of, tuple(slices.get(base.group_id, ())))
        added: dict[_Class, list[LogSlice]] = {}
        for group_id, parts in slices.items():
            if group_id not in groups:
                added.setdefault(self.of(group_id), []).extend(parts)
        replaced: dict[_Class, list[FileGroup]] = {}
        for group_id, group in groups.items():
            replaced.setdefault(self.of(group_id), []).append(group)
        for one in {**added, **replaced}:
            parts = sorted(added.get(one, ()), key=lambda part: (part.number, part.start))
            self._add(one, ChangeStep(entry.slot, entry.committed_at_ms, tuple(parts), tuple(replaced.get(one, ()))))

    def restored(self, event: _Event, now: Sequence[FileGroup], former: Sequence[FileGroup]) -> None:
        """A RESTORE: all classes whose files differ. now, former: the file groups after and before it."""
        after, before = self._dealt(now), self._dealt(former)
        for one in {**after, **before}:
            groups = after.get(one, [])
            if _files(groups) != _files(before.get(one, [])):
                self._add(one, ChangeStep(event.entry.slot, event.entry.committed_at_ms, groups=tuple(groups), whole=True))

    def _dealt(self, groups: Iterable[FileGroup]) -> dict[_Class, list[FileGroup]]:
        dealt: dict[_Class, list[FileGroup]] = {}
        for group in groups:
            dealt.setdefault(self.of(group.group_id), []).append(group)
        return dealt

    def _add(self, one: _Class, step: ChangeStep) -> None:
        self.steps.setdefault(one, []).append(step)


def _files(groups: Iterable[FileGroup]) -> set[tuple[str, int, int]]:
    """What distinguishes two states of the file groups of a class."""
    bases = {(group.base.path, 0, 0) for group in groups if group.base is not None}
    return bases | {(rows.object.path, rows.start, rows.slot) for group in groups for rows in group.logs}
