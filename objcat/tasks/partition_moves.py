"""Looks up keys that are unique in the whole table, and finds those that move to another partition.

A key is stored in the one file group whose merged rows of it leave a row, or a delete with an ordering value. A row of another partition
moves its key: the key is deleted in its file group, whatever is there, and the row goes to a file group of its own partition. A row that
is older than the stored one moves nothing. It goes to the file group of the key, and loses there for every reader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.datafile.batch_checks import keyed, located, ordered
from objcat.datafile.bucket_hash import spark_hash
from objcat.datafile.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, key_runs, winners
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.parse import Predicate
from objcat.tasks.key_lookup import NOWHERE, BatchKeys, Ints, LocateTask, provisional_place
from objcat.tasks.merged_rows import current_cuts, loaded_logs
from objcat.tasks.model import PLACE_COLUMN, Operation
from objcat.tasks.write_log_rows import deleted_by

Flags = npt.NDArray[np.bool_]

ORDERING = "_objcat_ordering_"
"""With a number: the values of an ordering column, by its place among them."""
GROUPS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class PartitionMoves:
    """The rows of a batch in its order, with what decides where they go.

    keys: with the partition of each row. ordering: None if the batch has no ordering values. deleted: marks deletes. Their keys alone say
    where
    they go, and their partition is that of nulls.
    """

    keys: BatchKeys
    ordering: pa.Table | None
    deleted: Flags

    @classmethod
    def of(
        cls, spec: TableSpec, batches: Iterator[pa.Table], former: Collection[str], operation: Operation, delete_when: Predicate | None
    ) -> PartitionMoves:
        """Read the rows of some batches. former, delete_when: see `WriteTask`. Raises InvalidBatch and NullKey."""
        names = [column.physical for column in spec.key_columns]
        numbers: dict[str, int] = {}
        orderings: list[pa.Table] = []
        keys, partitions, deletes = [], [], []
        for batch in batches:
            deleted = np.full(batch.num_rows, operation is Operation.DELETE)
            if delete_when is not None:
                deleted = deleted_by(batch, delete_when)
            own = np.full(batch.num_rows, numbers.setdefault(nowhere(spec, former), len(numbers)) if deleted.any() else 0, np.int64)
            if not deleted.all():
                found = spec.partition_of(located(batch.filter(pa.array(~deleted)), spec), former)
                codes = np.array([numbers.setdefault(text, len(numbers)) for text in found.texts], np.int64)
                own[~deleted] = codes[found.codes]
            values = ordered(batch, spec)
            keys.append(keyed(batch, spec).select(names).replace_schema_metadata(None))
            partitions.append(own)
            deletes.append(deleted)
            orderings += [] if values is None else [values.rename_columns(ordering_names(spec))]
        rows = pa.concat_tables(keys)
        ordering = pa.concat_tables(orderings) if orderings else None
        hashed = BatchKeys(rows, np.concatenate(partitions), tuple(numbers), spark_hash(rows.columns))
        return cls(hashed, ordering, np.concatenate(deletes))

    @property
    def winners(self) -> npt.NDArray[np.int64]:
        """The rows that count, one per key. The others lost within the batch, whatever their partition."""
        op = pa.array(np.where(self.deleted, np.int8(OP_DELETE), np.int8(OP_UPSERT)))
        rows = self.keys.rows.append_column(OP_COLUMN, op)
        key = self.keys.rows.column_names
        if self.ordering is None:
            return winners(rows, key=key, ordering=())
        names = self.ordering.column_names
        for name in names:
            rows = rows.append_column(name, self.ordering.column(name))
        return winners(rows, key=key, ordering=names)


@dataclass(frozen=True, slots=True)
class CurrentLocations:
    """For every row of a batch, the file group of its key.

    number: of the file group, or `NOWHERE`. is_row: it stores a row, else a delete. has_lost: the stored row is newer.
    """

    number: Ints
    is_row: Flags
    has_lost: Flags


@dataclass(frozen=True, slots=True)
class MoveResult:
    """Where every row of a batch goes.

    places: numbers of file groups, or of `provisional_place`. left: the file group that its key leaves, or `NOWHERE`. was_row: of keys
    that
    leave one, whether it had a row.
    """

    places: Ints
    left: Ints
    was_row: Flags


def ordering_names(spec: TableSpec) -> list[str]:
    """Names for the ordering columns of a table, in the order in which they decide."""
    return [f"{ORDERING}{number}" for number in range(len(spec.ordering_ids))]


def are_older(rows: pa.Table, others: pa.Table) -> pa.ChunkedArray:
    """For every row, whether the ordering values of the other table's row are greater. They have these columns alone, at least one."""
    pairs = list(zip(rows.columns, others.columns, strict=True))
    older = pc.less(*pairs[-1])
    for mine, theirs in reversed(pairs[:-1]):
        older = pc.or_(pc.less(mine, theirs), pc.and_(pc.equal(mine, theirs), older))
    return older


def nowhere(spec: TableSpec, former: Collection[str]) -> str:
    """The partition for deletes of unknown keys."""
    columns = spec.partition_columns
    schema = spec.table_schema.to_arrow_physical(nullable=True)
    nulls = [pa.nulls(1, schema.field(column.physical).type) for column in columns]
    return spec.partition_of(pa.table(nulls, names=[column.physical for column in columns]), former).texts[0]


def moves_of(lives: CurrentLocations, keys: BatchKeys, deleted: Flags, partitions: Sequence[str]) -> MoveResult:
    """Where each row of a batch goes. partitions: of every file group."""
    code = {text: number for number, text in enumerate(keys.texts)}
    of_group = np.array([code.get(partition, NOWHERE) for partition in partitions], np.int64)
    there = lives.number >= 0
    is_other = np.zeros(len(there), np.bool_)
    is_other[there] = of_group[lives.number[there]] != keys.partition[there]
    moves = is_other & ~deleted & ~lives.has_lost
    places = np.where(there & ~moves, lives.number, provisional_place(keys.hashes))
    return MoveResult(places, np.where(moves, lives.number, NOWHERE), moves & lives.is_row)


def find_lives(fileio: FileIO, task: LocateTask, moving: PartitionMoves) -> CurrentLocations:
    """The current file groups of the keys of a batch, see the head of this module. Raises as `living_keys`."""
    keys = moving.keys
    count = keys.rows.num_rows
    number, is_row, has_lost = np.full(count, NOWHERE, np.int64), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    found = list(living_keys(fileio, task, hashes=np.unique(keys.hashes)))
    if not found:
        return CurrentLocations(number, is_row, has_lost)
    known = pa.concat_tables(found)
    both = pa.concat_tables([known.select(keys.rows.column_names), keys.rows])
    order, last = key_runs(both, keys.rows.column_names)
    first = np.concatenate(([0], last[:-1] + 1))
    # The sort is stable, so the known row of a key comes first. There is at most one.
    heads = np.empty(len(order), np.int64)
    heads[order] = np.repeat(order[first], last - first + 1)
    head = heads[known.num_rows :]
    there = head < known.num_rows
    of_known = head[there]
    number[there] = np.asarray(known.column(PLACE_COLUMN).to_numpy()).astype(np.int64)[of_known]
    is_row[there] = np.asarray(known.column(OP_COLUMN).to_numpy())[of_known] != OP_DELETE
    if moving.ordering is not None:
        names = moving.ordering.column_names
        newer = are_older(moving.ordering.filter(pa.array(there)), known.select(names).take(pa.array(of_known)))
        has_lost[there] = np.asarray(newer.to_numpy())
    return CurrentLocations(number, is_row, has_lost)


def living_keys(fileio: FileIO, task: LocateTask, *, hashes: npt.NDArray[np.int32] | None = None) -> Iterator[pa.Table]:
    """The keys stored in the file groups of a task.

    Columns: the key, the file group number in `PLACE_COLUMN`, the stored operation, and `ordering_names`. Holds some row groups, and the
    log rows that fit, see `LogReader`. Raises CorruptTable and storage errors.

    hashes: ascending. Only keys with one of these hashes.
    """
    wanted = (*task.spec.key, *task.spec.ordering_ids)
    schema = task.spec.table_schema
    narrow = msgspec.structs.replace(schema, columns=tuple(column for column in schema.columns if column.id in wanted))
    spec = msgspec.structs.replace(task.spec, table_schema=narrow)
    logs = loaded_logs(fileio, spec, task.groups)
    key = [column.physical for column in spec.key_columns]

    def keys(number: int) -> list[pa.Table]:
        """The keys of one file group."""
        group = task.groups[number]
        found = []
        for rows, _ in current_cuts(fileio, spec, group, logs):
            kept = {name: rows.column(name) for name in (*key, OP_COLUMN)}
            for name, column in zip(ordering_names(spec), spec.ordering_physical, strict=True):
                kept[name] = rows.column(column)
            chosen = pa.table(kept)
            if hashes is not None:
                chosen = chosen.filter(pa.array(np.isin(spark_hash([chosen.column(name) for name in key]), hashes)))
            found.append(chosen.append_column(PLACE_COLUMN, pa.array(np.full(chosen.num_rows, number, np.int32))))
        logs.done(group)
        return found

    for start in range(0, len(task.groups), GROUPS_AT_ONCE):
        wave = range(start, min(start + GROUPS_AT_ONCE, len(task.groups)))
        for tables in fileio.env.map(keys, wave):
            yield from (table for table in tables if table.num_rows)
