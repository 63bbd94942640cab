"""Index lookup without hash buckets: finds the file group of each key of a batch among the candidates.

A key is stored in a file group that has a row of it, or a log row that deletes it. It is in at most one file group of its partition.
A lookup reads the key columns of base files and log rows, and no other column.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.common.bounded_cache import BoundedCache
from objcat.datafile.batch_checks import keyed
from objcat.datafile.bloom_lookup import FILTERS_BYTES_MAX, FileFilters, Probe
from objcat.datafile.bucket_hash import spark_hash
from objcat.datafile.log_reader import LogReader
from objcat.datafile.merge import OP_COLUMN, key_runs
from objcat.datafile.parquet import base_pieces, key_pieces
from objcat.metadata.files import FileGroup
from objcat.metadata.manifest import Pruning
from objcat.metadata.schema import Column
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.parse import Predicate
from objcat.tasks.model import PLACE_COLUMN, Operation, WriteTask
from objcat.tasks.scan import bare

Ints = npt.NDArray[np.int64]

NOWHERE = -1
"""The file group number of a key that is stored in none."""
RANGES_MAX = 32
"""Ranges of a key column that are compared with the bounds of files."""
_PARTITION = "_objcat_partition"


@dataclass(frozen=True, slots=True)
class LocateTask:
    """Find the keys of a batch in some file groups, numbered in order.

    Args:
        former: see `previous_partitions` of `WriteTask`.
        operation: of the write, where keys move between partitions.
        delete_when: likewise.
        is_first: the table has no file groups, so every key is new.
    """

    spec: TableSpec
    groups: tuple[FileGroup, ...]
    former: frozenset[str] = frozenset()
    operation: Operation = Operation.UPSERT
    delete_when: Predicate | None = None
    is_first: bool = False

    @classmethod
    def of(cls, task: WriteTask, groups: Sequence[FileGroup], *, is_first: bool) -> LocateTask:
        """The lookup before a write. task: without file groups."""
        return cls(task.spec, tuple(groups), task.previous_partitions, task.operation, task.delete_when, is_first)


@dataclass(frozen=True, slots=True)
class BatchKeysHandle:
    """A batch whose keys were read once.

    data: for `KeyLookup.locate`. span: what is known of the keys. files: cached filters of data files.
    """

    data: Any
    span: KeySpan
    files: BoundedCache[Any] = field(default_factory=lambda: BoundedCache(bytes_max=FILTERS_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class KeyLocations:
    """A batch whose keys were looked up.

    Args:
        data: for `KeyLookup.write_placed`.
        new: number of rows with new keys, by partition.
        found: numbers of the file groups that store keys of the other rows, or that keys leave.
        release: releases what holds the batch.
        left: number of keys that leave a file group for another.
        moved: how many of those had a row there.
        rows: number of rows to write, with those that delete a key in its previous file group. None while repeated keys are not merged.
    """

    data: Any
    new: Mapping[str, int]
    found: frozenset[int]
    release: Callable[[], object] = lambda: None
    left: int = 0
    moved: int = 0
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """The keys of a batch in its order.

    rows: the key columns under physical names. partition: for every row, an index into `texts`. If a key may be in any partition, its text
    is
    empty.
    """

    rows: pa.Table
    partition: Ints
    texts: tuple[str, ...]
    hashes: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @classmethod
    def of(cls, spec: TableSpec, batches: Iterator[pa.Table], former: Collection[str]) -> BatchKeys:
        """Read the keys of some batches. Raises InvalidBatch and NullKey."""
        names = [column.physical for column in spec.key_columns]
        numbers: dict[str, int] = {}
        keys, partitions = [], []
        for batch in batches:
            rows = keyed(batch, spec)
            keys.append(bare(rows.select(names)))
            if spec.is_global:
                numbers.setdefault("", 0)
                partitions.append(np.zeros(rows.num_rows, np.int64))
                continue
            found = spec.partition_of(rows, former)
            own = np.array([numbers.setdefault(text, len(numbers)) for text in found.texts], np.int64)
            partitions.append(own[found.codes] if rows.num_rows else np.zeros(0, np.int64))
        rows = pa.concat_tables(keys)
        return cls(rows, np.concatenate(partitions), tuple(numbers), spark_hash(rows.columns))

    def span(self, spec: TableSpec) -> KeySpan:
        """A summary of all keys."""
        return KeySpan(self.rows.num_rows, frozenset(self.texts), ranges_of(spec.key_columns, self.rows))


Range = tuple[pa.Array, pa.Array]
"""First and last values of some ranges, both included. The ranges are sorted and disjoint."""


@dataclass(frozen=True, slots=True)
class KeySpan:
    """A small picklable summary of the keys of a batch.

    rows: number of keys. partitions: where they are. ranges: by column id, ranges that cover all values. A column without known ranges is
    missing.
    """

    rows: int
    partitions: frozenset[str]
    ranges: Mapping[int, Range]

    @classmethod
    def of_all(cls, spans: Sequence[KeySpan]) -> KeySpan:
        """The summary of a batch in parts."""
        some = [span for span in spans if span.rows]
        ids = set[int].intersection(*(set(span.ranges) for span in some)) if some else set[int]()
        ranges = {column_id: _few(*_joined([span.ranges[column_id] for span in some])) for column_id in sorted(ids)}
        return cls(sum(span.rows for span in some), frozenset().union(*(span.partitions for span in some)), ranges)

    @property
    def pruning(self) -> Pruning | None:
        """Excludes file groups that cannot hold a key, by the bounds of their files. None if nothing is known."""
        may: Any = None
        for column_id, (firsts, lasts) in self.ranges.items():
            lower, upper = pc.field(f"lower_{column_id}"), pc.field(f"upper_{column_id}")
            unknown = lower.is_null() | upper.is_null()
            pairs = zip(firsts, lasts, strict=True)
            term = reduce(operator.or_, ((lower <= last) & (upper >= first) for first, last in pairs), unknown)
            may = term if may is None else may & term
        return None if may is None else Pruning(may, tuple(self.ranges))

    def holds(self, keys: BatchKeys, spec: TableSpec) -> bool:
        """Whether the summary covers these keys."""
        for column_id, (firsts, lasts) in self.ranges.items():
            values = keys.rows.column(spec.table_schema.by_id(column_id).physical)
            pairs = zip(firsts, lasts, strict=True)
            within = (pc.and_(pc.greater_equal(values, first), pc.less_equal(values, last)) for first, last in pairs)
            if not pc.all(reduce(pc.or_, within), min_count=0).as_py():
                return False
        return self.partitions.issuperset(keys.texts)


def ranges_of(columns: Sequence[Column], rows: pa.Table) -> Mapping[int, Range]:
    """By column id, ranges that cover all values of some columns. rows: under physical names."""
    ranges = {}
    for column in columns:
        values = rows.column(column.physical)
        # Footer statistics of the other types use another order.
        if not pa.types.is_floating(values.type) and not pa.types.is_binary(values.type) and rows.num_rows:
            found = values.unique()
            ordered = found.take(pc.sort_indices(found))
            ranges[column.id] = _few(ordered, ordered)
    return ranges


def _joined(ranges: Sequence[Range]) -> Range:
    """Merge ranges that overlap."""
    firsts, lasts = (pa.concat_arrays([one[end] for one in ranges]) for end in (0, 1))
    values = pa.concat_arrays([firsts, lasts]).unique()
    values = values.take(pc.sort_indices(values))
    begin, end = (np.asarray(pc.index_in(of, values)).astype(np.int64) for of in (firsts, lasts))
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    starts = np.flatnonzero(np.concatenate(([True], begin[1:] > end[:-1])))
    stops = np.concatenate((starts[1:], [len(begin)])) - 1
    return values.take(pa.array(begin[starts])), values.take(pa.array(end[stops]))


def _few(firsts: pa.Array, lasts: pa.Array) -> Range:
    """At most `RANGES_MAX` ranges that cover the sorted input. They are split at the widest gaps, where the type has distances."""
    count = len(firsts)
    if count <= RANGES_MAX:
        return firsts, lasts
    if pa.types.is_integer(firsts.type) or pa.types.is_date(firsts.type) or pa.types.is_timestamp(firsts.type):
        # As floats, because the distance of two integers may overflow.
        gaps = _numbers(firsts)[1:] - _numbers(lasts)[:-1]
        starts = np.sort(np.argsort(gaps, kind="stable")[::-1][: RANGES_MAX - 1]) + 1
    else:
        starts = np.linspace(0, count, RANGES_MAX, endpoint=False).astype(np.int64)
    starts = np.unique(np.concatenate(([0], starts)))
    stops = np.concatenate((starts[1:], [count])) - 1
    return firsts.take(pa.array(starts)), lasts.take(pa.array(stops))


def _numbers(values: pa.Array) -> npt.NDArray[np.float64]:
    whole = values.cast(pa.int32()) if pa.types.is_date(values.type) else values
    return np.asarray(whole.cast(pa.int64())).astype(np.float64)


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Excludes row groups of base files that hold none of the keys, by their bloom filters. files: cached filters."""

    probe: Probe
    files: BoundedCache[FileFilters]

    @classmethod
    def of(cls, spec: TableSpec, keys: pa.Table, files: BoundedCache[FileFilters]) -> KeyFilter | None:
        """The filter for some keys. None without keys or bloom filters. keys: the key columns, under physical names."""
        return cls(Probe.of(spec, keys), files) if spec.filtered and keys.num_rows else None


def known_keys(
    fileio: FileIO, task: LocateTask, *, hashes: npt.NDArray[np.int32] | None = None, sieve: KeyFilter | None = None
) -> Iterator[pa.Table]:
    """The keys in the file groups of a task, each at least once, with the file group number in `PLACE_COLUMN`.

    Holds about a row group, and the log rows that fit, see `LogReader`. Raises CorruptTable and storage errors.

    Args:
        hashes: ascending. Only keys with one of these hashes.
        sieve: only row groups of base files that may hold one of its keys. Log rows have no filters, and all are read.
    """
    names = [column.physical for column in task.spec.key_columns]
    logs = LogReader(fileio, names, task.spec.table_schema)
    logs.load(task.groups)

    def keys(number: int) -> list[pa.Table]:
        """The keys of one file group."""
        group = task.groups[number]
        found = []
        if group.base is not None:
            if sieve is None:
                pieces = base_pieces(fileio, group.base, names, spec=task.spec)
            else:
                pieces = key_pieces(fileio, group.base, names, sieve.probe, sieve.files, task.spec)
            found += [_chosen(rows, number, hashes) for rows in pieces]
        found += [_chosen(rows.drop_columns([OP_COLUMN]), number, hashes) for part in group.logs for rows in logs.pieces(part)]
        logs.done(group)
        return found

    for start in range(0, len(task.groups), _GROUPS_AT_ONCE):
        wave = range(start, min(start + _GROUPS_AT_ONCE, len(task.groups)))
        for tables in fileio.env.map(keys, wave):
            yield from (table for table in tables if table.num_rows)


_GROUPS_AT_ONCE = 64


def _chosen(rows: pa.Table, number: int, hashes: npt.NDArray[np.int32] | None) -> pa.Table:
    rows = bare(rows)
    if hashes is not None:
        own = spark_hash(rows.columns)
        at = np.minimum(np.searchsorted(hashes, own), max(0, len(hashes) - 1))
        rows = rows.filter(pa.array(hashes[at] == own if len(hashes) else np.zeros(len(own), np.bool_)))
    return rows.append_column(PLACE_COLUMN, pa.array(np.full(rows.num_rows, number, np.int32)))


def locate(fileio: FileIO, task: LocateTask, keys: BatchKeys, files: BoundedCache[Any]) -> Ints:
    """For every key of a batch, the number of its file group, or `NOWHERE`. Raises as `known_keys`.

    files: see `BatchKeysHandle`.
    """
    found = list(known_keys(fileio, task, hashes=np.unique(keys.hashes), sieve=KeyFilter.of(task.spec, keys.rows, files)))
    partitions = [group.group_id.partition for group in task.groups]
    return matched(pa.concat_tables(found), partitions, keys) if found else np.full(keys.rows.num_rows, NOWHERE, np.int64)


def matched(known: pa.Table, partitions: Sequence[str], keys: BatchKeys) -> Ints:
    """For every key of a batch, its known number, or `NOWHERE`.

    known: keys with the number of a file group in `PLACE_COLUMN`. partitions: of every file group.
    """
    if not known.num_rows:
        return np.full(keys.rows.num_rows, NOWHERE, np.int64)
    group = np.asarray(known.column(PLACE_COLUMN).to_numpy()).astype(np.int64)
    code = {text: number for number, text in enumerate(keys.texts)}
    partition_of_group = np.array([code.get(partition, NOWHERE) for partition in partitions], np.int64)
    both = pa.concat_tables([known.drop_columns([PLACE_COLUMN]), keys.rows])
    partition = np.concatenate((partition_of_group[group], keys.partition))
    both = both.append_column(_PARTITION, pa.array(partition))
    order, last = key_runs(both, [_PARTITION, *keys.rows.column_names])
    first = np.concatenate(([0], last[:-1] + 1))
    # The sort is stable, so the known row of a key comes first.
    heads = order[first]
    of_run = np.where(heads < len(group), group[np.minimum(heads, len(group) - 1)], NOWHERE)
    of_row = np.empty(len(order), np.int64)
    of_row[order] = np.repeat(of_run, last - first + 1)
    return of_row[len(group) :]


def provisional_place(hashes: npt.NDArray[np.int32]) -> Ints:
    """A negative number for rows without a file group yet. It depends only on the key."""
    result: Ints = -1 - (hashes.astype(np.int64) & 0x7FFFFFFF)
    return result


def placed(places: Ints, partition: Ints, texts: Sequence[str], targets: Mapping[str, tuple[int, ...]]) -> npt.NDArray[np.int32]:
    """The values of `PLACE_COLUMN`.

    places: numbers of file groups, or of `provisional_place`. targets: the file groups of new keys, by partition.
    """
    result = places << 1
    for number, text in enumerate(texts):
        new = np.flatnonzero((places < 0) & (partition == number))
        if len(new):
            group_ids = np.array(targets[text], np.int64)
            result[new] = (group_ids[(-1 - places[new]) % len(group_ids)] << 1) | 1
    return result.astype(np.int32)


def parts_of(task: LocateTask, size: int) -> list[tuple[int, LocateTask]]:
    """The task in pieces of `size` file groups, each with the number of its first one."""
    return [(at, replace(task, groups=task.groups[at : at + size])) for at in range(0, len(task.groups), size)]
