"""Rows in a file of this process that has no name: it is gone with the last reference to it, and with the process."""

from __future__ import annotations

import contextlib
import io
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from fileio.env import default_env
from objcat.common.progress import shown_progress
from objcat.datafile.local_disk import room_for_rows

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class RowFile:
    """Rows in a file of this process that has no name. Written by one thread."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="objcat-")  # noqa: SIM115 - it lives as long as this object
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._file)

    def append(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> FileRows:
        """Write batches at the end. Raises what they raise, and StoreFull if the local disk is full."""
        start = self.end()
        rows = 0
        with shown_progress(default_env(), "objcat: take rows", None, unit="rows") as advance:
            with room_for_rows():
                writer = self.writer(schema)
            for batch in batches:
                with room_for_rows():
                    writer.write_batch(batch)
                rows += batch.num_rows
                advance(batch.num_rows)
        with room_for_rows():
            writer.close()
            self.flush()
        return FileRows(self, start, rows)

    def end(self) -> int:
        """Where the next batch begins."""
        return self._file.seek(0, io.SEEK_END)

    def writer(self, schema: pa.Schema, *, compressed: bool = True) -> pa.RecordBatchWriter:
        """A writer of batches at the end."""
        return pa.ipc.new_stream(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None))

    def flush(self) -> None:
        """Let other threads read what was written."""
        self._file.flush()

    def stream(self, start: int) -> Iterator[pa.RecordBatch]:
        """The batches of a writer that began here."""
        yield from pa.ipc.open_stream(io.BufferedReader(_Section(self, start), 1024**2))

    def read_at(self, at: int, buffer: WriteableBuffer) -> int:
        """Read bytes from a position. Returns how many there were."""
        with self._lock:
            self._file.seek(at)
            return self._file.readinto(buffer)


class FileRows:
    """Some rows of a `RowFile`."""

    def __init__(self, file: RowFile, start: int, rows: int) -> None:
        self.num_rows = rows
        self._file = file
        self._start = start

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, in order, from the first one on."""
        yield from self._file.stream(self._start)


class _Section(io.RawIOBase):
    """A file from a position on, with a position of its own."""

    def __init__(self, file: RowFile, start: int) -> None:
        self._file = file
        self._at = start

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = self._file.read_at(self._at, buffer)
        self._at += count
        return count


def _close(file: IO[bytes]) -> None:
    # If the disk is full, its buffer cannot be written, and nobody needs it.
    with contextlib.suppress(OSError):
        file.close()
