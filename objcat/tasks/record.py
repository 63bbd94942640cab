"""The record index as writers read and write it: of every key the home in which it lives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.store import FileIO
from objcat.storage.files import base_pieces
from objcat.storage.hashing import spark_hash
from objcat.storage.logs import LogReader
from objcat.storage.merge import OP_COLUMN, OP_UPSERT, merge, winners
from objcat.table import FileGroup, TableSpec
from objcat.table.record import BUCKET_FIELD, INDEX_PARTITION, PARTITION_FIELD, index_spec
from objcat.table.spec import BUCKETS_MAX
from objcat.tasks.locate import BatchKeys, KeySpan, ranges_of
from objcat.tasks.model import OP_FIELD, PLACE_COLUMN, WriteResult, WriteTask
from objcat.tasks.scan import bare
from objcat.tasks.write import by_home, put_log
from objcat.timeline import Home


def put_index(fileio: FileIO, task: WriteTask, name: str, changes: pa.Table) -> WriteResult:
    """Write what a task changes in the index of its table, as one log object. changes: as of `index_changes`, the later one of a key
    counts. Raises storage errors."""
    spec = index_spec(task.spec)
    assert spec is not None, "a table with the record index has one"
    own = WriteTask(spec, task.txn, task.operation)
    by_key = winners(changes, key=[column.physical for column in spec.key_columns], ordering=None)
    rows, runs = by_home(own, changes, by_key, [INDEX_PARTITION], np.zeros(len(by_key), np.int32))
    return WriteResult(index=put_log(fileio, own, name, rows, runs).logs)


def homes_known(
    fileio: FileIO, spec: TableSpec, groups: Sequence[FileGroup], keys: BatchKeys, *, count: int
) -> tuple[pa.Table, list[Home]]:
    """What an index knows of the keys of a batch: those that it knows, at least, with the number of the home of each in `PLACE_COLUMN`;
    and these homes.

    spec: of the index. groups: of it, all to which keys hash. count: of homes that a partition of the table can have. Of base files only
    row groups are read that may hold a key, of log objects those with rows of these groups. Raises CorruptTable, storage errors.
    """
    logs = LogReader(fileio, _columns(spec), spec.table_schema)
    logs.load(groups)
    found = list(fileio.env.map(lambda group: _entries(fileio, spec, group, logs, keys), groups))
    known = pa.concat_tables([_empty(spec).drop_columns([OP_COLUMN]), *found])
    partitions = known.column(PARTITION_FIELD).combine_chunks().dictionary_encode()
    codes = np.asarray(partitions.indices).astype(np.int64)
    buckets = np.asarray(known.column(BUCKET_FIELD).to_numpy()).astype(np.int64)
    homes, number = np.unique(codes * BUCKETS_MAX + buckets, return_inverse=True)
    texts = partitions.dictionary.to_pylist()
    named = [Home(texts[code // BUCKETS_MAX], code % BUCKETS_MAX, count) for code in homes.tolist()]
    numbered = known.select(keys.rows.column_names).append_column(PLACE_COLUMN, pa.array(number.astype(np.int32)))
    return numbered, named


def only_homes(known: pa.Table, kept: npt.NDArray[np.bool_]) -> pa.Table:
    """What is known of the keys of some homes, which are numbered anew. kept: of every home, whether it is one."""
    numbers = np.asarray(known.column(PLACE_COLUMN).to_numpy())
    chosen = np.flatnonzero(kept[numbers]) if len(kept) else np.zeros(0, np.int64)
    anew = (np.cumsum(kept) - 1).astype(np.int32)
    return known.drop_columns([PLACE_COLUMN]).take(pa.array(chosen)).append_column(PLACE_COLUMN, pa.array(anew[numbers[chosen]]))


def all_entries(fileio: FileIO, spec: TableSpec, group: FileGroup) -> pa.Table:
    """The whole of one group of an index. Raises CorruptTable, storage errors."""
    logs = LogReader(fileio, _columns(spec), spec.table_schema)
    logs.load([group])
    return _entries(fileio, spec, group, logs, None)


def _entries(fileio: FileIO, spec: TableSpec, group: FileGroup, logs: LogReader, keys: BatchKeys | None) -> pa.Table:
    """What a group says of the keys that hash to it, and perhaps of others; keys: None for all."""
    names = _columns(spec)
    key = [column.physical for column in spec.bucket_columns]
    where = hashes = None
    if keys is not None:
        own = np.flatnonzero(np.mod(keys.hashes, np.int32(group.home.bucket_count)) == group.home.bucket)
        hashes = np.unique(keys.hashes[own])
        ranges = ranges_of(spec.bucket_columns, keys.rows.take(pa.array(own)))
        where = KeySpan(len(own), frozenset(), ranges).pruning

    def chosen(rows: pa.Table) -> pa.Table:
        rows = bare(rows).select([*names, OP_COLUMN])
        return rows if hashes is None else rows.filter(pa.array(np.isin(spark_hash([rows.column(name) for name in key]), hashes)))

    parts = [_empty(spec)]
    if group.base is not None:
        for rows in base_pieces(fileio, group.base, names, where=where, spec=spec):
            upserts = pa.array(np.full(rows.num_rows, OP_UPSERT, np.int8))
            parts.append(chosen(rows.append_column(OP_COLUMN, upserts)))
    parts += [chosen(rows) for part in group.logs for rows in logs.pieces(part)]
    return merge(pa.concat_tables(parts), key=[column.physical for column in spec.key_columns], ordering=None, keep_deletes=False)


def _columns(spec: TableSpec) -> list[str]:
    return [column.physical for column in spec.table_schema.columns]


def _empty(spec: TableSpec) -> pa.Table:
    return bare(spec.table_schema.to_arrow_physical(nullable=True).append(OP_FIELD).empty_table())
