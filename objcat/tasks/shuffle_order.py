"""Restores the order of the DataFrame after a Spark shuffle. Of rows with one key the last counts."""

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
"""The position of a row in its DataFrame (`monotonically_increasing_id`): the reading task in the high bits, its row in the low bits."""
ARRIVED_BYTES_MAX = 64 * 1024**2
"""Arrow bytes of rows that wait in memory until all have arrived. More wait on local disk."""
_TASK_SHIFT = 33
_BATCH_ROWS_MIN = 1024
"""Shorter runs are joined, because sorts and takes cost per piece."""


@dataclass(slots=True)
class _Stretch:
    """Rows of ascending positions, from one task. rows: in memory, or the file and the number of the batch in it."""

    first: int
    last: int
    rows: pa.RecordBatch | tuple[Path, int]


def in_frame_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows by `POSITION`, their last column, which is dropped.

    Rows of one task arrive in its order, interleaved with those of other tasks. So whole runs are reordered, and no row moves. If Spark
    does
    not preserve that, rows are sorted. Raises StoreFull if the local disk is full.
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
            # The consumer holds as many again.
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
    """Write the rows of some runs, at least one, to a file."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    batches = [stretch.rows for stretch in stretches if isinstance(stretch.rows, pa.RecordBatch)]
    with room_for_rows(), pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches[0].schema, options=options) as writer:
        for number, (stretch, batch) in enumerate(zip(stretches, batches, strict=True)):
            writer.write_batch(batch)
            stretch.rows = (path, number)
    del stretch, batch
    batches.clear()
    # Rows from Spark are in the heap of the C library, which would retain that memory while Arrow allocates as much again.
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _sorted(stretches: list[_Stretch]) -> Iterator[pa.RecordBatch]:
    """The rows of runs in order. stretches: by first position, the lowest last. Each is released after use."""
    readers: dict[Path, pa.RecordBatchFileReader] = {}

    def read(stretch: _Stretch) -> pa.RecordBatch:
        """The rows of one run."""
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
    """Batches of at least `_BATCH_ROWS_MIN` rows, except the last one."""
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
