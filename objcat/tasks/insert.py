"""Writing rows whose keys are declared new, or were located: base files of homes that have no file group, log rows else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fileio.store import FileIO
from objcat.storage.files import BaseWriter, base_path, constant
from objcat.storage.merge import OP_COLUMN
from objcat.table import BaseFile, LogRows
from objcat.tasks.current import parted
from objcat.tasks.model import TXN_FIELD, WriteResult, WriteTask
from objcat.tasks.parallel import run_all
from objcat.tasks.runs import Run, index_of, keys_of, rows_of_home, sorted_runs
from objcat.tasks.write import log_schema, put_log
from objcat.timeline import Home

WRITTEN_AT_ONCE = 4
"""Files that are written beside one another: each holds a row group, what is merged into the next one, and what is on its way."""


def write_inserts(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    """Write rows that hold *every* row of their homes in this transaction. name: of this task within it.

    Memory is bounded, whatever comes: see `sorted_runs`. Raises InvalidBatch, NullKey, storage errors, and StoreFull when the local disk is
    full.
    """
    result = WriteResult()
    with sorted_runs(task, batches) as coming:
        runs: list[Run] = []
        for number, run in enumerate(coming):
            live = [home for home in run.homes if home in task.live_homes]
            if live:
                result += put_log(fileio, task, f"{name}-{number}", *run.take(live))
            runs.append(run)
        new = sorted({home for run in runs for home in run.homes if home not in task.live_homes})
        written = run_all(fileio.env, lambda home: _write_base(fileio, task, runs, home), new, at_once=WRITTEN_AT_ONCE)
        result += keys_of(runs) + index_of(fileio, task, name, runs)
    for one in written:
        result += WriteResult(bases=() if one.base is None else (one.base,), rows=one.rows)
    kept = [(home, one.tombstones) for home, one in zip(new, written, strict=True) if one.tombstones.num_rows]
    if kept:
        ends = np.cumsum([rows.num_rows for _, rows in kept]).tolist()
        parts = tuple(LogRows(home, end - rows.num_rows, end) for (home, rows), end in zip(kept, ends, strict=True))
        logs = put_log(fileio, task, f"{name}-deletes", pa.concat_tables([rows for _, rows in kept]), parts).logs
        result += WriteResult(logs=logs)
    return result


@dataclass(frozen=True, slots=True)
class _NewHome:
    """What a home without a file group gets. base: None when there are only deletes. tombstones: these, for whoever inserts such a key
    meanwhile has to be noticed, and late rows that are older are kept out. rows: of the batch."""

    base: BaseFile | None
    tombstones: pa.Table
    rows: int


def _write_base(fileio: FileIO, task: WriteTask, runs: list[Run], home: Home) -> _NewHome:
    schema = task.spec.table_schema.to_arrow_physical().append(TXN_FIELD)
    path = base_path(task.txn, home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    given = 0
    ended = [log_schema(task.spec).empty_table()]
    with BaseWriter(fileio, path, schema, home, bounded=task.spec.bounded, filtered=task.spec.filtered) as writer:
        for rows in rows_of_home(task.spec, runs, home):
            given += rows.num_rows
            live, deletes = parted(rows)
            writer.write(live.drop_columns([OP_COLUMN]).append_column(TXN_FIELD, constant(task.txn, live.num_rows)))
            if deletes.num_rows:
                ended.append(deletes.cast(ended[0].schema))
        base = writer.finish() if writer.rows else None
    return _NewHome(base, pa.concat_tables(ended), given)
