"""Writes rows with new or looked-up keys: base files for new file groups, log rows for existing ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fileio.store import FileIO
from objcat.common.progress import Advance, current_advance
from objcat.datafile.merge import OP_COLUMN
from objcat.datafile.parquet import BaseWriter, base_path, constant
from objcat.metadata.files import BaseFile, LogRows
from objcat.tasks.external_sort import Run, SortedRuns, sorted_runs
from objcat.tasks.merged_rows import split_by_group
from objcat.tasks.model import TXN_FIELD, WriteResult, WriteTask
from objcat.tasks.parallel import run_all
from objcat.tasks.write_log_rows import log_schema, put_log
from objcat.timeline.entry import FileGroupId

WRITTEN_AT_ONCE, WRITING_BYTES = 4, 256 * 1024**2
"""Files written at the same time, and the memory of each: a row group, what is merged into the next one, and data in flight. A small file
needs twice its rows.
"""


def write_inserts(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    """Write rows. The batches hold *every* row of the transaction for their file groups.

    Memory is limited, see `sorted_runs`. Raises InvalidBatch, NullKey, storage errors, and StoreFull if the local disk is full.

    name: of this task within the transaction.
    """
    of_live: list[WriteResult] = []
    advance = current_advance()

    def put_live(run: Run) -> None:
        """Write the rows of a run for existing file groups as log rows."""
        live = [group_id for group_id in run.parts if group_id in task.live_group_ids]
        if live:
            rows, parts = run.take(live)
            of_live.append(put_log(fileio, task, f"{name}-{len(of_live)}", rows.table(), parts))
            advance(rows.num_rows)

    with sorted_runs(fileio.env, task, batches) as runs:
        runs.read(put_live)
        new = [group_id for group_id in runs.group_ids if group_id not in task.live_group_ids]
        largest = max(1, min(WRITING_BYTES, 2 * runs.group_bytes))
        at_once = max(1, min(WRITTEN_AT_ONCE, fileio.env.memory_bytes // largest))
        written = run_all(fileio.env, lambda group_id: _write_base(fileio, task, runs, group_id, advance), new, at_once=at_once)
        result = sum(of_live, WriteResult()) + runs.keys + runs.put_index(fileio, f"{name}-index")
    for one in written:
        result += WriteResult(bases=() if one.base is None else (one.base,), rows=one.rows)
    kept = [(group_id, one.tombstones) for group_id, one in zip(new, written, strict=True) if one.tombstones.num_rows]
    if kept:
        ends = np.cumsum([rows.num_rows for _, rows in kept]).tolist()
        parts = tuple(LogRows(group_id, end - rows.num_rows, end) for (group_id, rows), end in zip(kept, ends, strict=True))
        logs = put_log(fileio, task, f"{name}-deletes", pa.concat_tables([rows for _, rows in kept]), parts).logs
        result += WriteResult(logs=logs)
    return result


@dataclass(frozen=True, slots=True)
class _NewGroup:
    """The result for a new file group.

    base: None if there are only deletes. tombstones: the deletes. They make concurrent inserts of such a key conflict, and reject older
    late
    rows. rows: of the batch.
    """

    base: BaseFile | None
    tombstones: pa.Table
    rows: int


def _write_base(fileio: FileIO, task: WriteTask, runs: SortedRuns, group_id: FileGroupId, advance: Advance) -> _NewGroup:
    schema = task.spec.table_schema.to_arrow_physical().append(TXN_FIELD)
    path = base_path(task.txn, group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    given = 0
    ended = [log_schema(task.spec).empty_table()]
    with BaseWriter(fileio, path, schema, group_id, statistics=task.spec.statistics, filtered=task.spec.filtered) as writer:
        for rows in runs.rows_of(group_id):
            given += rows.num_rows
            advance(rows.num_rows)
            live, deletes = split_by_group(rows)
            writer.write(live.drop_columns([OP_COLUMN]).append_column(TXN_FIELD, constant(task.txn, live.num_rows)))
            if deletes.num_rows:
                ended.append(deletes.cast(ended[0].schema))
        base = writer.finish() if writer.rows else None
    return _NewGroup(base, pa.concat_tables(ended), given)
