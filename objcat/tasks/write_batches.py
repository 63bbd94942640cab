"""Chooses the write function for a task by the kind of its table."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from fileio.store import FileIO
from objcat.tasks.append_rows import append_rows
from objcat.tasks.model import WriteResult, WriteTask
from objcat.tasks.rewrite_groups import rewrite_file_groups
from objcat.tasks.write_base_files import write_inserts
from objcat.tasks.write_log_rows import write_rows


def write_routed(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    """Write batches that hold *every* row of the transaction for their file groups. Raises as `write_inserts`."""
    return (rewrite_file_groups if task.spec.rewrites else write_inserts)(fileio, task, name, batches)


def write_unrouted(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    """Write batches with any rows of the transaction. Raises as `write_rows`."""
    return (write_rows if task.spec.has_key else append_rows)(fileio, task, name, batches)
