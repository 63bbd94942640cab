"""Reads and writes the record index: the file group of every key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fileio.store import FileIO
from objcat.datafile.bucket_hash import spark_hash
from objcat.datafile.merge import OP_COLUMN, OP_UPSERT, merge, winners
from objcat.datafile.parquet import picked_row_groups
from objcat.datafile.statistics import row_groups_that_may_match
from objcat.metadata.files import BaseFile, FileGroup, LogObject, LogSlice
from objcat.metadata.key_index_table import BUCKET_FIELD, INDEX_PARTITION, PARTITION_FIELD, index_spec
from objcat.metadata.manifest import Pruning
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.key_lookup import BatchKeys, KeySpan, ranges_of
from objcat.tasks.model import OP_FIELD, PLACE_COLUMN, WriteResult, WriteTask
from objcat.tasks.scan import bare
from objcat.tasks.write_log_rows import by_group, put_log
from objcat.timeline.entry import BUCKETS_MAX, FileGroupId


def put_index(fileio: FileIO, task: WriteTask, name: str, changes: pa.Table) -> WriteResult:
    """Write the changes of a task to the record index of its table, as one log object. Raises storage errors.

    changes: see `index_changes`. The later change of a key counts.
    """
    spec = index_spec(task.spec)
    assert spec is not None, "the table has no record index"
    own = WriteTask(spec, task.txn, task.operation)
    by_key = winners(changes, key=[column.physical for column in spec.key_columns], ordering=())
    rows, runs = by_group(own, changes, by_key, [INDEX_PARTITION], np.zeros(len(by_key), np.int32))
    return WriteResult(index=put_log(fileio, own, name, rows.table(), runs).logs)


def groups_known(
    fileio: FileIO, spec: TableSpec, groups: Sequence[FileGroup], keys: BatchKeys, *, count: int
) -> tuple[pa.Table, list[FileGroupId]]:
    """The entries of an index for the keys of a batch, and the file groups that they name.

    Entries are keys with a file group number in `PLACE_COLUMN`. Other keys may be among them. Of files that take more than one request
    only row
    groups are read that may hold a key. Raises CorruptTable and storage errors.

    Args:
        spec: of the index.
        groups: file groups of the index, all to which the keys hash.
        count: how many file groups a partition of the table can have.
    """
    found = _entries(fileio, spec, [_Asked.of(spec, group, keys) for group in groups])
    known = pa.concat_tables([_empty(spec).drop_columns([OP_COLUMN]), *found])
    partitions = known.column(PARTITION_FIELD).combine_chunks().dictionary_encode()
    codes = np.asarray(partitions.indices).astype(np.int64)
    buckets = np.asarray(known.column(BUCKET_FIELD).to_numpy()).astype(np.int64)
    group_ids, number = np.unique(codes * BUCKETS_MAX + buckets, return_inverse=True)
    texts = partitions.dictionary.to_pylist()
    named = [FileGroupId(texts[code // BUCKETS_MAX], code % BUCKETS_MAX, count) for code in group_ids.tolist()]
    numbered = known.select(keys.rows.column_names).append_column(PLACE_COLUMN, pa.array(number.astype(np.int32)))
    return numbered, named


def only_groups(known: pa.Table, kept: npt.NDArray[np.bool_]) -> pa.Table:
    """Known keys of some file groups, which are numbered again. kept: for every file group, whether it remains."""
    numbers = np.asarray(known.column(PLACE_COLUMN).to_numpy())
    chosen = np.flatnonzero(kept[numbers]) if len(kept) else np.zeros(0, np.int64)
    renumbered = (np.cumsum(kept) - 1).astype(np.int32)
    return known.drop_columns([PLACE_COLUMN]).take(pa.array(chosen)).append_column(PLACE_COLUMN, pa.array(renumbered[numbers[chosen]]))


def all_entries(fileio: FileIO, spec: TableSpec, group: FileGroup) -> pa.Table:
    """All entries of one file group of an index. Raises CorruptTable and storage errors."""
    return _entries(fileio, spec, [_Asked(spec, group)])[0]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is looked up in a file group of an index.

    hashes: ascending hashes of the keys, or None for all keys. where: excludes row groups without any of them.
    """

    spec: TableSpec
    group: FileGroup
    hashes: npt.NDArray[np.int32] | None = None
    where: Pruning | None = None

    @classmethod
    def of(cls, spec: TableSpec, group: FileGroup, keys: BatchKeys) -> _Asked:
        """The lookup for those of `keys` that hash to the file group."""
        own = np.flatnonzero(np.mod(keys.hashes, np.int32(group.group_id.bucket_count)) == group.group_id.bucket)
        ranges = ranges_of(spec.bucket_columns, keys.rows.take(pa.array(own)))
        return cls(spec, group, np.unique(keys.hashes[own]), KeySpan(len(own), frozenset(), ranges).pruning)

    def may_match(self, footer: pq.FileMetaData, schema: pa.Schema, among: range | None = None) -> Sequence[int]:
        """The row groups of a file that may hold a wanted row. among: the candidates, or None for all."""
        numbers = range(footer.num_row_groups) if among is None else among
        if self.where is None or footer.num_row_groups == 1:
            return numbers
        return row_groups_that_may_match(footer, schema, self.where, self.spec, among=numbers)

    def chosen(self, rows: pa.Table) -> pa.Table:
        """The wanted rows, and perhaps others."""
        rows = bare(rows).select([*_columns(self.spec), OP_COLUMN])
        if self.hashes is None:
            return rows
        key = [column.physical for column in self.spec.bucket_columns]
        return rows.filter(pa.array(np.isin(spark_hash([rows.column(name) for name in key]), self.hashes)))


_Found = tuple[int, int, pa.Table]
"""Rows of a file group, by its number and that of their slice. Rows of a base file come below all slices."""


def _entries(fileio: FileIO, spec: TableSpec, asked: Sequence[_Asked]) -> list[pa.Table]:
    """What some file groups say of the keys, and perhaps of others. Each file is read once."""
    works: list[Callable[[], list[_Found]]] = []
    logs: dict[str, tuple[LogObject, list[tuple[int, int, LogSlice]]]] = {}
    for number, one in enumerate(asked):
        if one.group.base is not None:
            works.append(partial(_of_base, fileio, one.group.base, one, number))
        for turn, part in enumerate(one.group.logs):
            logs.setdefault(part.object.path, (part.object, []))[1].append((number, turn, part))
    works += [partial(_of_log, fileio, log, asked, parts) for log, parts in logs.values()]
    parts = sorted((found for work in fileio.env.map(lambda work: work(), works) for found in work), key=itemgetter(0, 1))
    by_group: list[list[pa.Table]] = [[_empty(spec)] for _ in asked]
    for number, _, rows in parts:
        by_group[number].append(rows)
    key = [column.physical for column in spec.key_columns]
    return [merge(pa.concat_tables(tables), key=key, ordering=(), keep_deletes=False) for tables in by_group]


def _of_base(fileio: FileIO, base: BaseFile, asked: _Asked, number: int) -> list[_Found]:
    found = []
    for _, rows in picked_row_groups(fileio, base, _columns(asked.spec), asked.spec.table_schema, asked.may_match):
        upserts = pa.array(np.full(rows.num_rows, OP_UPSERT, np.int8))
        found.append((number, -1, asked.chosen(rows.append_column(OP_COLUMN, upserts))))
    return found


def _of_log(fileio: FileIO, log: LogObject, asked: Sequence[_Asked], parts: Sequence[tuple[int, int, LogSlice]]) -> list[_Found]:
    """The entries of a log object. parts: its slices, each with the number of its file group and of the slice in it."""
    spec = asked[0].spec

    def wanted(footer: pq.FileMetaData, schema: pa.Schema) -> list[int]:
        """The row groups to read."""
        found: set[int] = set()
        for number, _, part in parts:
            own = range(part.start // log.row_group_rows, (part.end - 1) // log.row_group_rows + 1)
            found.update(asked[number].may_match(footer, schema, own))
        return sorted(found)

    rows_found = []
    for first, rows in picked_row_groups(fileio, log, [*_columns(spec), OP_COLUMN], spec.table_schema, wanted):
        for number, turn, part in parts:
            begin, end = max(part.start, first), min(part.end, first + rows.num_rows)
            if begin < end:
                rows_found.append((number, turn, asked[number].chosen(rows.slice(begin - first, end - begin))))
    return rows_found


def _columns(spec: TableSpec) -> list[str]:
    return [column.physical for column in spec.table_schema.columns]


def _empty(spec: TableSpec) -> pa.Table:
    return bare(spec.table_schema.to_arrow_physical(nullable=True).append(OP_FIELD).empty_table())
