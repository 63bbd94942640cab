"""Finding where keys live, where the index is no hash: the keys of a batch beside those of the file groups that may hold them.

A key lives in a file group that has a row of it, a log row that deletes it included; it is in at most one of its partition. Keys of base
files and log rows are read, and no other column.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.storage.batch import keyed
from objcat.storage.files import base_pieces
from objcat.storage.hashing import spark_hash
from objcat.storage.logs import LogReader
from objcat.storage.merge import OP_COLUMN, key_runs
from objcat.table import FileGroup, Pruning, TableSpec
from objcat.tasks.model import PLACE_COLUMN
from objcat.tasks.scan import bare

Ints = npt.NDArray[np.int64]

NOWHERE = -1
"""The number of the file group of a key that lives in none."""
RANGES_MAX = 32
"""Ranges of a key column by which file groups are left out."""
_PARTITION = "_objcat_partition"


@dataclass(frozen=True, slots=True)
class LocateTask:
    """Find the keys of a batch in some file groups, which are numbered in order. former: as `former_partitions` of `WriteTask`."""

    spec: TableSpec
    groups: tuple[FileGroup, ...]
    former: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Located:
    """A batch whose keys were looked up.

    data: for `Engine.place`. new: how many rows have keys that live nowhere, by partition. found: the numbers of the file groups that hold
    keys of other rows. release: gives up what holds the batch.
    """

    data: Any
    new: Mapping[str, int]
    found: frozenset[int]
    release: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """The keys of a batch in its order. rows: the key columns under physical names. partition: of every row, the number of a text."""

    rows: pa.Table
    partition: Ints
    texts: tuple[str, ...]
    hashes: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @classmethod
    def of(cls, spec: TableSpec, batches: Iterator[pa.Table], former: Collection[str]) -> BatchKeys:
        """Raises InvalidBatch and NullKey."""
        names = [column.physical for column in spec.key_columns]
        numbers: dict[str, int] = {}
        keys, partitions = [], []
        for batch in batches:
            rows = keyed(batch, spec)
            found = spec.partition_of(rows, former)
            own = np.array([numbers.setdefault(text, len(numbers)) for text in found.texts], np.int64)
            keys.append(bare(rows.select(names)))
            partitions.append(own[found.codes] if rows.num_rows else np.zeros(0, np.int64))
        rows = pa.concat_tables(keys)
        return cls(rows, np.concatenate(partitions), tuple(numbers), spark_hash(rows.columns))

    def pruning(self, spec: TableSpec) -> Pruning | None:
        """Leaves out file groups in which none of the keys can be, by the bounds of their files; None where nothing can be said."""
        may: Any = None
        ids = []
        for column in spec.key_columns:
            values = self.rows.column(column.physical)
            # What a footer says of the others is not in the order in which they compare.
            if pa.types.is_floating(values.type) or pa.types.is_binary(values.type) or not self.rows.num_rows:
                continue
            lower, upper = pc.field(f"lower_{column.id}"), pc.field(f"upper_{column.id}")
            unknown = lower.is_null() | upper.is_null()
            term = reduce(operator.or_, ((lower <= last) & (upper >= first) for first, last in _ranges(values)), unknown)
            may = term if may is None else may & term
            ids.append(column.id)
        return None if may is None else Pruning(may, tuple(ids))


def _ranges(values: pa.ChunkedArray) -> list[tuple[pa.Scalar, pa.Scalar]]:
    """A few ranges, ends included, that hold all of some values: between the widest gaps, where gaps can be told."""
    found = values.unique()
    found = found.take(pc.sort_indices(found))
    if pa.types.is_integer(found.type) or pa.types.is_date(found.type) or pa.types.is_timestamp(found.type):
        whole = found.cast(pa.int32()) if pa.types.is_date(found.type) else found
        # As floats, for two of them may be further apart than an integer tells.
        gaps = np.diff(np.asarray(whole.cast(pa.int64())).astype(np.float64))
        starts = np.sort(np.argsort(gaps, kind="stable")[::-1][: RANGES_MAX - 1]) + 1
    else:
        starts = np.unique(np.linspace(0, len(found), RANGES_MAX, endpoint=False).astype(np.int64))
    edges = np.unique(np.concatenate(([0], starts, [len(found)]))).tolist()
    return [(found[start], found[end - 1]) for start, end in pairwise(edges)]


def known_keys(fileio: FileIO, task: LocateTask, *, hashes: npt.NDArray[np.int32] | None = None) -> Iterator[pa.Table]:
    """The keys that live in the file groups of a task, each at least once, with the number of the group in `PLACE_COLUMN`.

    hashes: ascending; only keys with one of these hashes. Holds about a row group, and the log rows that fit, see `LogReader`. Raises
    CorruptTable, storage errors.
    """
    names = [column.physical for column in task.spec.key_columns]
    logs = LogReader(fileio, names, task.spec.table_schema)
    logs.load(task.groups)

    def keys(number: int) -> list[pa.Table]:
        group = task.groups[number]
        found = []
        if group.base is not None:
            found += [_chosen(rows, number, hashes) for rows in base_pieces(fileio, group.base, names, spec=task.spec)]
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


def locate(fileio: FileIO, task: LocateTask, keys: BatchKeys) -> Ints:
    """Of every key of a batch, the number of the file group that it lives in, or `NOWHERE`. Raises as `known_keys`."""
    found = list(known_keys(fileio, task, hashes=np.unique(keys.hashes)))
    numbers = np.full(keys.rows.num_rows, NOWHERE, np.int64)
    if not found:
        return numbers
    known = pa.concat_tables(found)
    group = np.asarray(known.column(PLACE_COLUMN).to_numpy()).astype(np.int64)
    code = {text: number for number, text in enumerate(keys.texts)}
    partition_of_group = np.array([code.get(group.home.partition, NOWHERE) for group in task.groups], np.int64)
    both = pa.concat_tables([known.drop_columns([PLACE_COLUMN]), keys.rows])
    partition = np.concatenate((partition_of_group[group], keys.partition))
    both = both.append_column(_PARTITION, pa.array(partition))
    order, last = key_runs(both, [_PARTITION, *keys.rows.column_names])
    first = np.concatenate(([0], last[:-1] + 1))
    # Rows of one key keep their order, and those that are known come first.
    heads = order[first]
    of_run = np.where(heads < len(group), group[np.minimum(heads, len(group) - 1)], NOWHERE)
    of_row = np.empty(len(order), np.int64)
    of_row[order] = np.repeat(of_run, last - first + 1)
    return of_row[len(group) :]


def waiting(hashes: npt.NDArray[np.int32]) -> Ints:
    """What stands for the place of a row that is not placed yet: negative, and a function of its key."""
    result: Ints = -1 - (hashes.astype(np.int64) & 0x7FFFFFFF)
    return result


def placed(places: Ints, partition: Ints, texts: Sequence[str], targets: Mapping[str, tuple[int, ...]]) -> npt.NDArray[np.int32]:
    """The values of `PLACE_COLUMN`. places: numbers of file groups, or of `waiting`. targets: the homes of new keys, by partition."""
    result = places << 1
    for number, text in enumerate(texts):
        new = np.flatnonzero((places < 0) & (partition == number))
        if len(new):
            homes = np.array(targets[text], np.int64)
            result[new] = (homes[(-1 - places[new]) % len(homes)] << 1) | 1
    return result.astype(np.int32)


def parts_of(task: LocateTask, size: int) -> list[tuple[int, LocateTask]]:
    """The task in pieces of so many groups, each with the number of its first one."""
    return [(at, replace(task, groups=task.groups[at : at + size])) for at in range(0, len(task.groups), size)]
