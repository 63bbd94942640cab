"""Stores the rows of a stream so that a write can read them again: in memory if small, else on local disk."""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import IO, TypeAlias

import pyarrow as pa

from fileio.env import default_env
from objcat.common.progress import shown_progress
from objcat.datafile.local_disk import room_for_rows

SPOOL_BYTES_MAX = 256 * 1024**2
"""Arrow bytes of a stream that are held in memory."""


class SpooledBatch:
    """The rows of a stream in a file of this process, deleted with the last reference to it. For one thread at a time."""

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Read all batches. Raises what they raise, and StoreFull if the local disk is full."""
        self.schema = schema
        self.num_rows = 0
        self._file = tempfile.TemporaryFile(prefix="objcat-")  # noqa: SIM115 - it lives as long as this object
        weakref.finalize(self, _close, self._file)
        writer = pa.ipc.new_stream(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        with shown_progress(default_env(), "objcat: take rows", None, unit="rows") as advance:
            for batch in batches:
                with room_for_rows():
                    writer.write_batch(batch)
                self.num_rows += batch.num_rows
                advance(batch.num_rows)
        with room_for_rows():
            writer.close()
            self._file.flush()

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        names: list[str] = self.schema.names
        return names

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, in order, from the first one on."""
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)


Rows: TypeAlias = pa.Table | SpooledBatch
"""A batch in this process."""


def spooled(reader: pa.RecordBatchReader) -> Rows:
    """All rows of a stream. Raises what the stream raises."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        held.append(batch)
        size += batch.nbytes
        if size > SPOOL_BYTES_MAX:
            return SpooledBatch(reader.schema, _chain(held, reader))
    return pa.Table.from_batches(held, schema=reader.schema)


def _close(file: IO[bytes]) -> None:
    # If the disk is full, its buffer cannot be written, and nobody needs it.
    with contextlib.suppress(OSError):
        file.close()


def _chain(held: list[pa.RecordBatch], reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Held batches, each released when it is taken, and then the rest of the stream."""
    held.reverse()
    while held:
        yield held.pop()
    yield from reader
