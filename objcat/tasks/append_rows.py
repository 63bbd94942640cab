"""Writes rows without a key. Nothing is merged, and every row stays.

Each written file names its partition and the provisional bucket 0. The driver assigns file groups later (`write.file_sizing`).
So tasks are independent, and after a conflict the commit takes other file groups without writing a byte again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from fileio.store import FileIO
from objcat.datafile.batch_checks import conform
from objcat.datafile.merge import OP_UPSERT
from objcat.datafile.parquet import base_path, read_base, write_base
from objcat.datafile.streaming_merge import sort_by_key
from objcat.metadata.files import BaseFile, FileGroup, LogRows
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.model import OP_FIELD, TXN_FIELD, WriteResult, WriteTask
from objcat.tasks.parallel import run_all
from objcat.tasks.write_log_rows import gather, put_log
from objcat.timeline.entry import FileGroupId, Txn

HELD_BYTES_MAX = 256 * 1024**2
"""Arrow bytes that a task holds before it writes a file below the target size."""
SMALL_SHARE = 2
"""Rows that fill less than one part in so many of a file become log rows of a file group with room, where the table has log files."""
PARTITIONS_FEW = 16
"""In up to so many new partitions small files are written, so that a read merges nothing. In more, the rows share one log object."""
FILE_SHARE = 0.35
"""Assumed bytes in a file per Arrow byte, while no file shows a better figure."""


def append_rows(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    """Write a user's batches as base files of about the target size, and the rest as log rows or smaller files.

    Holds about `HELD_BYTES_MAX` of rows. Raises InvalidBatch before the batch at fault is written, and storage errors.

    name: of this task within the transaction.
    """
    appender = _Appender(fileio, task, name)
    for rows in gather(batches):
        appender.add(rows)
    return appender.finish()


@dataclass(slots=True)
class _Held:
    """Rows of one partition that wait for more."""

    parts: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class _Appender:
    def __init__(self, fileio: FileIO, task: WriteTask, name: str) -> None:
        self._fileio, self._task, self._name = fileio, task, name
        self._held: dict[str, _Held] = {}
        self._bases: list[BaseFile] = []
        self._row_bytes = task.row_bytes

    def add(self, rows: pa.Table) -> None:
        """Take rows, and write every partition that fills a file."""
        spec = self._task.spec
        layout = self._task.layout
        if layout is not None and layout.columns:
            rows = sort_by_key(rows, key=layout.columns)
        fitted = conform(rows, spec)
        partitions = spec.partition_of(fitted, self._task.previous_partitions)
        order = np.argsort(partitions.codes, kind="stable") if len(partitions.texts) > 1 else None
        sorted_rows = fitted if order is None else fitted.take(pa.array(order))
        ends = np.cumsum(np.bincount(partitions.codes, minlength=len(partitions.texts))).tolist()
        for text, start, end in zip(partitions.texts, [0, *ends], ends, strict=False):
            part = sorted_rows.slice(start, end - start)
            held = self._held.setdefault(text, _Held())
            held.parts.append(part)
            held.rows += part.num_rows
            held.bytes += part.nbytes
            if self._file_bytes(held) >= spec.target_file_bytes:
                self._write(text)
        while sum(held.bytes for held in self._held.values()) > HELD_BYTES_MAX:
            self._write(max(self._held, key=lambda text: self._held[text].bytes))

    def finish(self) -> WriteResult:
        """Write the rest."""
        target = self._task.spec.target_file_bytes
        small = {text for text, held in self._held.items() if self._file_bytes(held) * SMALL_SHARE < target}
        fillable = self._task.fillable
        new = set() if fillable is None else small - fillable
        if self._task.spec.rewrites or self._task.layout is not None:
            small = set()
        elif len(new) <= PARTITIONS_FEW:
            small -= new
        result = WriteResult()
        if small:
            texts = sorted(small)
            runs, end = [], 0
            for text in texts:
                start, end = end, end + self._held[text].rows
                runs.append(LogRows(self._task.group_id(0, text), start, end))
            rows = pa.concat_tables([part for text in texts for part in self._held.pop(text).parts])
            op = pa.array(np.full(rows.num_rows, OP_UPSERT, dtype=np.int8))
            result += put_log(self._fileio, self._task, self._name, rows.append_column(OP_FIELD, op), tuple(runs))
        run_all(self._fileio.env, self._write, list(self._held))
        bases = tuple(sorted(self._bases, key=lambda base: (base.group_id, base.path)))
        return result + WriteResult(bases=bases, rows=sum(base.rows for base in bases))

    def _file_bytes(self, held: _Held) -> float:
        return held.bytes * FILE_SHARE if self._row_bytes is None else held.rows * self._row_bytes

    def _write(self, text: str) -> None:
        """Write the rows held for a partition as one base file."""
        held = self._held.pop(text)
        base = write_part(self._fileio, self._task.spec, self._task.txn, pa.concat_tables(held.parts), self._task.group_id(0, text))
        self._bases.append(base)
        if self._row_bytes is None and base.rows:
            self._row_bytes = base.bytes / base.rows


def write_part(fileio: FileIO, spec: TableSpec, txn: Txn, rows: pa.Table, group_id: FileGroupId) -> BaseFile:
    """Write one base file of a table without a key."""
    path = base_path(txn, group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    return write_base(fileio, path, rows, group_id, txn, statistics=spec.statistics)


def fill_group(fileio: FileIO, spec: TableSpec, txn: Txn, group: FileGroup, additions: tuple[BaseFile, ...]) -> BaseFile:
    """A base file with the rows of a file group without log rows, and those of files of the transaction."""
    assert group.base is not None and not group.logs
    columns = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
    files = (group.base, *additions)
    parts = [read_base(fileio, base, columns.names, spec.table_schema).select(columns.names).cast(columns) for base in files]
    return write_part(fileio, spec, txn, pa.concat_tables(parts), group.group_id)
