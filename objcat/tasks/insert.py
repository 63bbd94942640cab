"""Writing rows whose keys are declared new: base files of homes that have no file group, log rows else."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from fileio.store import FileIO
from objcat.storage.files import BaseWriter, base_path, constant
from objcat.storage.merge import OP_COLUMN
from objcat.table import BaseFile
from objcat.tasks.model import TXN_FIELD, WriteResult, WriteTask
from objcat.tasks.parallel import run_all
from objcat.tasks.runs import Run, rows_of_home, sorted_runs
from objcat.tasks.write import put_log
from objcat.timeline import Home


def write_inserts(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    """Write rows that hold *every* row of their homes in this transaction. name: of this task within it.

    Memory is bounded, whatever comes: see `sorted_runs`. Raises InvalidBatch, NullKey, storage errors, and OSError when the local disk is
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
        bases = tuple(run_all(fileio.env, lambda home: _write_base(fileio, task, runs, home), new))
    return result + WriteResult(bases=bases, rows=sum(base.rows for base in bases))


def _write_base(fileio: FileIO, task: WriteTask, runs: list[Run], home: Home) -> BaseFile:
    schema = task.spec.table_schema.to_arrow_physical().append(TXN_FIELD)
    path = base_path(task.txn, home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    with BaseWriter(fileio, path, schema, home, bounded=task.spec.bounded) as writer:
        for rows in rows_of_home(task.spec, runs, home):
            writer.write(rows.drop_columns([OP_COLUMN]).append_column(TXN_FIELD, constant(task.txn, rows.num_rows)))
        return writer.finish()
