"""Merges a batch into file groups of a copy-on-write table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.common.progress import Advance, counted, current_advance
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.log_reader import LogReader
from objcat.datafile.merge import OP_COLUMN, OP_DELETE, may_meet, merge
from objcat.datafile.parquet import BaseWriter, base_path, constant
from objcat.metadata.files import BaseFile, FileGroup, LogRows
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.external_sort import SortedRuns, sorted_runs
from objcat.tasks.merged_rows import current_cuts, current_empty, fully_merged, loaded_logs, rewritten_at_once, split_by_group
from objcat.tasks.model import TXN_FIELD, GroupRewrite, WriteResult, WriteTask
from objcat.tasks.parallel import run_all
from objcat.tasks.write_log_rows import log_schema, put_log
from objcat.timeline.entry import FileGroupId


def rewrite_file_groups(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    """Merge rows into the file groups of a copy-on-write table. The batches hold *every* row of the transaction for their file groups.

    A file group whose rows change gets a new base file. Deletes that must still reject older late rows go into one log object for all file
    groups. Memory is limited, see `sorted_runs`. Raises as `write_inserts`.
    """
    advance = current_advance()
    with sorted_runs(fileio.env, task, batches) as runs:
        runs.read()
        touched = runs.group_ids
        groups = [task.groups[group_id] for group_id in touched if group_id in task.groups]
        logs = loaded_logs(fileio, task.spec, groups)
        group_ids = run_all(
            fileio.env,
            lambda group_id: _rewrite_group(fileio, task, group_id, runs, logs, advance),
            touched,
            at_once=rewritten_at_once(groups, fileio.env, added_bytes=runs.group_bytes),
        )
    result = (
        WriteResult(
            bases=tuple(group_id.base for group_id in group_ids if group_id.base is not None),
            rows=sum(group_id.rewritten.rows for group_id in group_ids),
            rewritten=tuple(group_id.rewritten for group_id in group_ids),
        )
        + runs.keys
    )
    result += runs.put_index(fileio, f"{name}-index")
    kept = [group_id for group_id in group_ids if group_id.tombstones.num_rows]
    if kept:
        ends = np.cumsum([group_id.tombstones.num_rows for group_id in kept]).tolist()
        parts = tuple(
            LogRows(group_id.rewritten.group_id, end - group_id.tombstones.num_rows, end) for group_id, end in zip(kept, ends, strict=True)
        )
        tombstones = pa.concat_tables([group_id.tombstones for group_id in kept]).cast(log_schema(task.spec))
        result += WriteResult(logs=put_log(fileio, task, name, tombstones, parts).logs)
    return result


@dataclass(frozen=True, slots=True)
class _RewrittenGroup:
    """The result for one file group.

    base: None if its rows stay as they are. tombstones: to be written for it, physical columns.
    """

    rewritten: GroupRewrite
    base: BaseFile | None
    tombstones: pa.Table


def _rewrite_group(
    fileio: FileIO, task: WriteTask, group_id: FileGroupId, runs: SortedRuns, logs: LogReader, advance: Advance
) -> _RewrittenGroup:
    """Merge one file group, cut by cut. The new file is discarded if nothing changed."""
    spec = task.spec
    schema = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
    group = task.groups.get(group_id, FileGroup(group_id))
    rows_before = rows_after = written = ended = given = tombstones_before = 0
    kept = [current_empty(spec)]
    own = counted(runs.rows_of(group_id), advance, lambda rows: int(rows.num_rows))
    batch = (rows.append_column(TXN_FIELD, constant(task.txn, rows.num_rows)) for rows in own)
    path = base_path(task.txn, group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    with BaseWriter(fileio, path, schema, group_id, statistics=spec.statistics, filtered=spec.filtered) as writer:
        for before, on_top in current_cuts(fileio, spec, group, logs, batch):
            given += 0 if on_top is None else on_top.num_rows
            existed = before.num_rows - _count(before, OP_COLUMN, OP_DELETE)
            rows_before += existed
            tombstones_before += before.num_rows - existed
            live, tombstones = split_by_group(before if on_top is None else fully_merged(pa.concat_tables([before, on_top]), spec))
            rows_after += live.num_rows
            written += 0 if on_top is None else _count(live, TXN_COLUMN, task.txn)
            # A row that moves to another file group is deleted here, whatever the operation.
            ended += 0 if on_top is None else _ended(before, live, on_top, spec)
            writer.write(live.select(schema.names))
            kept.append(tombstones)
        inserted = rows_after - rows_before + ended
        tombstones = pa.concat_tables(kept)
        # A delete without an ordering value may end a tombstone and no row. A new base file drops that tombstone.
        changed = bool(written or ended) or tombstones.num_rows < tombstones_before
        base = writer.finish() if changed else None
    if not changed:
        # Existing tombstones stay, so only those of the batch are written.
        tombstones = tombstones.filter(pc.equal(tombstones.column(TXN_COLUMN), task.txn))
    return _RewrittenGroup(
        GroupRewrite(group_id, given, inserted, written - inserted, ended, changed=changed), base, tombstones.drop_columns([TXN_COLUMN])
    )


def _ended(before: pa.Table, live: pa.Table, on_top: pa.Table, spec: TableSpec) -> int:
    """Number of earlier rows that no longer exist, among those that a delete of the batch may concern."""
    deletes = split_by_group(on_top)[1]
    if not deletes.num_rows:
        return 0
    key = [column.physical for column in spec.key_columns]
    was, is_now = (rows.filter(may_meet(rows, deletes, key)) for rows in (split_by_group(before)[0], live))
    return int(merge(pa.concat_tables([was, is_now]), key=key, ordering=()).num_rows) - int(is_now.num_rows)


def _count(rows: pa.Table, column: str, value: int | str) -> int:
    return int(pc.sum(pc.equal(rows.column(column), value)).as_py() or 0)
