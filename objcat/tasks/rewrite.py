"""Merging a batch with the file groups of a copy-on-write table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.storage.files import TXN_COLUMN, base_path, constant, read_base, txn_of_path, write_base
from objcat.storage.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, merge
from objcat.table import BaseFile, FileGroup, LogRows, TableSpec
from objcat.tasks.model import OP_FIELD, TXN_FIELD, Operation, Rewritten, WriteResult, WriteTask
from objcat.tasks.parallel import run_all
from objcat.tasks.scan import bare, own_rows, read_logs, rows_of_slice
from objcat.tasks.write import log_schema, prepare, put_log
from objcat.timeline import Home


def rewrite_homes(fileio: FileIO, task: WriteTask, name: str, rows: pa.Table) -> WriteResult:
    """Merge rows, which hold *every* row of their homes in this transaction, with the file groups of a copy-on-write table.

    A home whose rows change gets a new base file. Deletes that keep older late rows out go, of all homes together, into one log object.
    """
    fitted, runs = prepare(task, rows)
    batch = fitted.append_column(TXN_FIELD, constant(task.txn, fitted.num_rows))
    homes = run_all(fileio.env, lambda run: _rewrite_home(fileio, task, run.home, batch.slice(run.start, run.end - run.start)), runs)
    result = WriteResult(
        bases=tuple(home.base for home in homes if home.base is not None),
        rows=fitted.num_rows,
        rewritten=tuple(home.rewritten for home in homes),
    )
    kept = [home for home in homes if home.tombstones.num_rows]
    if kept:
        ends = np.cumsum([home.tombstones.num_rows for home in kept]).tolist()
        runs = tuple(LogRows(home.rewritten.home, end - home.tombstones.num_rows, end) for home, end in zip(kept, ends, strict=True))
        tombstones = pa.concat_tables([home.tombstones for home in kept]).cast(log_schema(task.spec))
        result += WriteResult(logs=put_log(fileio, task, name, tombstones, runs).logs)
    return result


@dataclass(frozen=True, slots=True)
class _RewrittenHome:
    """What one home becomes. base: None when its rows stay as they are. tombstones: to be written for it, physical columns."""

    rewritten: Rewritten
    base: BaseFile | None
    tombstones: pa.Table


def _rewrite_home(fileio: FileIO, task: WriteTask, home: Home, batch: pa.Table) -> _RewrittenHome:
    spec = task.spec
    key = [column.physical for column in spec.key_columns]
    ordering = spec.ordering_column
    before = current_rows(fileio, spec, task.groups.get(home, FileGroup(home)))
    rows_before = before.num_rows - _count(before, OP_COLUMN, OP_DELETE)
    merged = merge(
        pa.concat_tables([before, bare(batch).select(before.column_names)]),
        key=key,
        ordering=None if ordering is None else ordering.physical,
        keep_deletes=True,
    )
    deleted = pc.equal(merged.column(OP_COLUMN), OP_DELETE)
    rows, tombstones = merged.filter(pc.invert(deleted)), _tombstones(merged.filter(deleted), spec)
    written = _count(rows, TXN_COLUMN, task.txn)
    if task.operation is Operation.DELETE:
        counts = (0, 0, rows_before - rows.num_rows)
    else:
        inserted = rows.num_rows - rows_before
        counts = (inserted, written - inserted, 0)
    # A delete without an ordering value may end no row but a tombstone, which is gone once a new base file stands for the home.
    changed = any(counts) or tombstones.num_rows < before.num_rows - rows_before
    if not changed:
        # What was there stays, so only what the batch adds to it is written.
        tombstones = tombstones.filter(pc.equal(tombstones.column(TXN_COLUMN), task.txn))
    base = None
    if changed:
        path = base_path(task.txn, home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
        schema = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
        base = write_base(fileio, path, rows.select(schema.names).cast(schema), home, task.txn, bounded=spec.bounded)
    return _RewrittenHome(Rewritten(home, batch.num_rows, *counts, changed=changed), base, tombstones.drop_columns([TXN_COLUMN]))


def current_rows(fileio: FileIO, spec: TableSpec, group: FileGroup) -> pa.Table:
    """The rows of a file group and the tombstones that it still needs, each key once, with their operation and the txn that wrote them."""
    columns = [column.physical for column in spec.table_schema.columns]
    names = [*columns, OP_COLUMN, TXN_COLUMN]
    parts = [spec.table_schema.to_arrow_physical().append(OP_FIELD).append(TXN_FIELD).empty_table()]
    if group.base is not None:
        base = own_rows(read_base(fileio, group.base, [*columns, TXN_COLUMN], spec.table_schema), spec, group, group.base.home)
        parts.append(base.append_column(OP_COLUMN, pa.array(np.full(base.num_rows, OP_UPSERT, dtype=np.int8))))
    logs = read_logs(fileio, [group], columns, spec.table_schema)
    for rows in group.logs:
        table = rows_of_slice(logs[rows.object.path, rows.start], spec, group, rows)
        parts.append(table.append_column(TXN_COLUMN, constant(txn_of_path(rows.object.path), table.num_rows)))
    merged = pa.concat_tables([bare(part.select(names)) for part in parts])
    if not group.logs or spec.is_keyless:
        return merged
    ordering = spec.ordering_column
    key = [column.physical for column in spec.key_columns]
    merged = merge(merged, key=key, ordering=None if ordering is None else ordering.physical, keep_deletes=True)
    deleted = pc.equal(merged.column(OP_COLUMN), OP_DELETE)
    return pa.concat_tables([merged.filter(pc.invert(deleted)), _tombstones(merged.filter(deleted), spec)])


def _tombstones(deletes: pa.Table, spec: TableSpec) -> pa.Table:
    """Those of a home's winning deletes that rows yet to come are measured by: barriers, and deletes of tables without an ordering column,
    have done their work."""
    ordering = spec.ordering_column
    if ordering is None:
        return deletes.slice(0, 0)
    return deletes.filter(pc.is_valid(deletes.column(ordering.physical)))


def _count(rows: pa.Table, column: str, value: int | str) -> int:
    return int(pc.sum(pc.equal(rows.column(column), value)).as_py() or 0)
