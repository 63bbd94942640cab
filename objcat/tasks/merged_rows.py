"""The current rows of a file group, merged piece by piece ("cuts"). Rewrites and compactions start here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.env import Env
from fileio.store import FileIO
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.log_reader import EXPANSION, LogReader
from objcat.datafile.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, has_order, merge
from objcat.datafile.parquet import BASE_ROW_GROUP_ROWS, base_pieces, constant, txn_of_path
from objcat.datafile.streaming_merge import cut_sorted, sort_by_key
from objcat.metadata.files import FileGroup, LogSlice
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.model import OP_FIELD, TXN_FIELD
from objcat.tasks.row_order import by_key, lies_otherwise, sorting_bytes
from objcat.tasks.scan import GROUP_LOGS_BYTES_MAX, bare, own_rows, rows_of_slice

REWRITE_SHARE = 2
"""The part of the process's memory for file groups that are rewritten at the same time."""
STREAM_BYTES_MAX = 48 * 1024**2
"""Memory of a stream that writes a large file."""


def current_cuts(
    fileio: FileIO, spec: TableSpec, group: FileGroup, logs: LogReader, batch: Iterable[pa.Table] = ()
) -> Iterator[tuple[pa.Table, pa.Table | None]]:
    """The rows of a file group and its needed tombstones, in cuts by key order.

    Each key comes once, with its operation and the txn that wrote it. Each cut includes the rows of `batch` with its keys. A table without
    a
    key has no batch, and yields every row. Raises CorruptTable and storage errors.

    Args:
        logs: has loaded the file group, with all columns.
        batch: pieces sorted by key, each key once, with operation and txn.
    """
    names = current_names(spec)
    if not spec.has_key:
        for rows in (*_base(fileio, spec, group), *(rows for part in group.logs for rows in _log(spec, group, part, logs))):
            yield rows.select(names), None
        return
    key = [column.physical for column in spec.key_columns]
    of_base = _base(fileio, spec, group)
    sources: list[Iterable[pa.Table]] = [
        (bare(rows).select(names) for rows in batch),
        by_key(of_base, key=key) if lies_otherwise(group) else of_base,
    ]
    if logs.bytes_of(group) <= GROUP_LOGS_BYTES_MAX:
        together = [rows for part in group.logs for rows in _log(spec, group, part, logs)]
        sources.append([sort_by_key(pa.concat_tables(together), key=key)] if together else ())
    else:
        sources.extend(_log(spec, group, part, logs) for part in group.logs)
    empty = current_empty(spec)
    for given, base, *on_top in cut_sorted(sources, key=key):
        present = [rows.select(names) for rows in on_top if rows is not None]
        before = empty if base is None else base.select(names)
        if present:
            before = fully_merged(pa.concat_tables([before, *present]), spec)
        yield before, given


def current_rows(fileio: FileIO, spec: TableSpec, group: FileGroup) -> pa.Table:
    """All `current_cuts` of a file group together."""
    return pa.concat_tables(
        [current_empty(spec), *(rows for rows, _ in current_cuts(fileio, spec, group, loaded_logs(fileio, spec, [group])))]
    )


def loaded_logs(fileio: FileIO, spec: TableSpec, groups: Sequence[FileGroup]) -> LogReader:
    """A reader of the log rows of some file groups, with all columns. Raises CorruptTable and storage errors."""
    logs = LogReader(fileio, [column.physical for column in spec.table_schema.columns], spec.table_schema)
    logs.load(groups)
    return logs


def fully_merged(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Merged rows: existing rows by key, then the tombstones that are still needed. rows: in the order in which they count."""
    ordering = spec.ordering_physical
    key = [column.physical for column in spec.key_columns]
    merged = merge(rows, key=key, ordering=ordering, keep_deletes=True)
    live, deletes = split_by_group(merged)
    if not ordering:
        # Barriers, and deletes without an ordering column, have had their effect.
        return live
    return pa.concat_tables([live, deletes.filter(has_order(deletes, ordering))])


def split_by_group(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Existing rows, and deletes."""
    deleted = pc.equal(rows.column(OP_COLUMN), OP_DELETE)
    if not pc.any(deleted).as_py():
        # An empty slice would hold the other rows in memory.
        return rows, rows.schema.empty_table()
    return rows.filter(pc.invert(deleted)), rows.filter(deleted)


def current_names(spec: TableSpec) -> list[str]:
    """The columns of `current_cuts`."""
    return [*(column.physical for column in spec.table_schema.columns), OP_COLUMN, TXN_COLUMN]


def rewritten_at_once(groups: Iterable[FileGroup], env: Env, *, sorts: bool = False, added_bytes: int = 0) -> int:
    """How many file groups fit into memory for rewrites at the same time.

    sorts: the result has another order than the key's. added_bytes: Arrow bytes of rows that are merged into a file group, at most.
    """
    largest = 1
    for group in groups:
        if group.base is not None:
            rows = min(BASE_ROW_GROUP_ROWS, group.base.rows)
            pieces = 4 * EXPANSION * group.base.bytes * rows // max(1, group.base.rows)
            sorting = sorting_bytes(group) if sorts or lies_otherwise(group) else 0
            largest = max(largest, pieces + min(STREAM_BYTES_MAX, 2 * group.base.bytes) + sorting)
    # The rows of the batch are copied, merged with the others, and copied again into a row group.
    largest += min(STREAM_BYTES_MAX, 3 * added_bytes)
    return max(1, min(env.parallelism, env.memory_bytes // REWRITE_SHARE // largest))


def _base(fileio: FileIO, spec: TableSpec, group: FileGroup) -> Iterator[pa.Table]:
    base = group.base
    if base is None:
        return
    columns = [*(column.physical for column in spec.table_schema.columns), TXN_COLUMN]
    for rows in base_pieces(fileio, base, columns, spec=spec):
        own = own_rows(rows, spec, group, base.group_id)
        yield bare(own.append_column(OP_COLUMN, pa.array(np.full(own.num_rows, OP_UPSERT, dtype=np.int8))))


def _log(spec: TableSpec, group: FileGroup, part: LogSlice, logs: LogReader) -> Iterator[pa.Table]:
    txn = txn_of_path(part.object.path)
    for rows in logs.pieces(part):
        own = rows_of_slice(rows, spec, group, part)
        yield bare(own.append_column(TXN_COLUMN, constant(txn, own.num_rows)))


def current_empty(spec: TableSpec) -> pa.Table:
    """The result of `current_cuts` without rows."""
    return bare(spec.table_schema.to_arrow_physical().append(OP_FIELD).append(TXN_FIELD).empty_table())
