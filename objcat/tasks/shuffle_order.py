"""Rows that a shuffle of Spark brought, in the order of their frame again: of rows with one key the last counts."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from objcat.datafile.local_disk import room_for_rows

POSITION = "_objcat_position"
"""The place of a row in its frame, as `monotonically_increasing_id` has it: the task that read it above, the row of that task below."""
ARRIVED_BYTES_MAX = 64 * 1024**2
"""Arrow bytes of rows that wait in memory until all have arrived; more wait on local disk."""
_TASK_SHIFT = 33
_BATCH_ROWS_MIN = 1024
"""Shorter stretches are put together: what sorts and takes rows goes from piece to piece."""


@dataclass(slots=True)
class _Stretch:
    """Rows of ascending positions, of one task. rows: in memory, or the file and the number of the batch in which they wait."""

    first: int
    last: int
    rows: pa.RecordBatch | tuple[Path, int]


def in_frame_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows by `POSITION`, their last column, which is left out.

    What a task sent arrives in its order, but between that of other tasks. So stretches of rows are put in order, and no row is moved.
    Where Spark should not keep to that, rows are sorted. Raises StoreFull when the local disk is full.
    """
    with tempfile.TemporaryDirectory(prefix="objcat-") as directory:
        stretches: list[_Stretch] = []
        waiting: list[_Stretch] = []
        arrived = 0
        for number, batch in enumerate(batches):
            waiting += _stretches(batch)
            arrived += batch.nbytes
            if arrived >= ARRIVED_BYTES_MAX:
                _spill(waiting, Path(directory, f"arrived-{number}"))
                stretches += waiting
                waiting, arrived = [], 0
        if stretches and waiting:
            # Whoever takes the rows holds as many again.
            _spill(waiting, Path(directory, "arrived-last"))
        stretches += waiting
        del waiting
        stretches.sort(key=lambda stretch: stretch.first, reverse=True)
        yield from _put_together(_sorted(stretches))


def _stretches(batch: pa.RecordBatch) -> list[_Stretch]:
    if not batch.num_rows:
        return []
    at = np.asarray(batch.column(batch.num_columns - 1))
    cuts = np.flatnonzero((np.diff(at) < 0) | (np.diff(at >> _TASK_SHIFT) != 0)) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), batch.num_rows]
    return [_Stretch(int(at[start]), int(at[end - 1]), batch.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)]


def _spill(stretches: list[_Stretch], path: Path) -> None:
    """Have the rows of some stretches, at least one, wait in a file."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    batches = [stretch.rows for stretch in stretches if isinstance(stretch.rows, pa.RecordBatch)]
    with room_for_rows(), pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches[0].schema, options=options) as writer:
        for number, (stretch, batch) in enumerate(zip(stretches, batches, strict=True)):
            writer.write_batch(batch)
            stretch.rows = (path, number)
    del stretch, batch
    batches.clear()
    # What Spark sends lies in the heap of the C library, which would keep it, while Arrow takes as much again of the system.
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _sorted(stretches: list[_Stretch]) -> Iterator[pa.RecordBatch]:
    """The rows of stretches in order. stretches: by their first positions, the least last; given up one by one."""
    readers: dict[Path, pa.RecordBatchFileReader] = {}

    def read(stretch: _Stretch) -> pa.RecordBatch:
        if isinstance(stretch.rows, pa.RecordBatch):
            return stretch.rows
        path, number = stretch.rows
        if path not in readers:
            readers[path] = pa.ipc.open_file(pa.OSFile(str(path), "rb"))
        return readers[path].get_batch(number)

    while stretches:
        stretch = stretches.pop()
        rows, last = read(stretch), stretch.last
        meeting = []
        while stretches and stretches[-1].first <= last:
            last = max(last, stretches[-1].last)
            meeting.append(read(stretches.pop()))
        if meeting:
            rows = pa.concat_batches([rows, *meeting])
            rows = rows.take(pa.array(np.argsort(np.asarray(rows.column(rows.num_columns - 1)), kind="stable")))
        yield rows.select(range(rows.num_columns - 1))


def _put_together(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of at least `_BATCH_ROWS_MIN` rows, but the last one."""
    held: list[pa.RecordBatch] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += piece.num_rows
        if count >= _BATCH_ROWS_MIN:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, count = [], 0
    if held:
        yield pa.concat_batches(held)
