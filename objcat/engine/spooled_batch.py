"""Holds rows so that a write can read them again: in memory if they are few, else on local disk.

`SpooledBatch` is a batch of which some rows are on disk. `RowSpool` holds the batches of a transaction's block, which share a limit and a
file. The file has no name: it is gone with the last reference to it, and with the process.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, TypeAlias

import pyarrow as pa

from fileio.env import default_env
from objcat.common.progress import shown_progress
from objcat.datafile.local_disk import room_for_rows

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SPOOL_BYTES_MAX = 256 * 1024**2
"""Arrow bytes of a stream that are held in memory."""
SPOOL_SHARE = 4
"""The part of the process's memory for the rows that a block holds."""


class RowFile:
    """Rows in a file of this process that has no name. Written by one thread."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="objcat-")  # noqa: SIM115 - it lives as long as this object
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._file)

    def append(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> FileRows:
        """Write batches at the end. Raises what they raise, and StoreFull if the local disk is full."""
        start = self._file.seek(0, io.SEEK_END)
        rows = 0
        with shown_progress(default_env(), "objcat: take rows", None, unit="rows") as advance:
            with room_for_rows():
                writer = pa.ipc.new_stream(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
            for batch in batches:
                with room_for_rows():
                    writer.write_batch(batch)
                rows += batch.num_rows
                advance(batch.num_rows)
        with room_for_rows():
            writer.close()
            self._file.flush()
        return FileRows(self, start, rows)

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
        yield from pa.ipc.open_stream(io.BufferedReader(_Section(self._file, self._start), 1024**2))


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


class SpooledBatch:
    """A batch of which some rows are on local disk. For one thread at a time."""

    def __init__(self, schema: pa.Schema, parts: Sequence[pa.Table | FileRows]) -> None:
        self.schema = schema
        self.num_rows = sum(part.num_rows for part in parts)
        self._parts = tuple(parts)

    @property
    def parts(self) -> Sequence[pa.Table | FileRows]:
        """Its rows, in order."""
        return self._parts

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        names: list[str] = self.schema.names
        return names

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, in order, from the first one on."""
        for part in self._parts:
            yield from part.to_batches()


Rows: TypeAlias = pa.Table | SpooledBatch
"""A batch in this process."""


class RowSpool:
    """The rows of several batches: in memory up to a limit, the rest in one file. For one thread.

    Args:
        bytes_max: Arrow bytes that are held in memory.
    """

    def __init__(self, *, bytes_max: int) -> None:
        self._left = bytes_max
        self._file: RowFile | None = None

    def take(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Rows:
        """All rows of a stream. Raises what the stream raises, and StoreFull if the local disk is full."""
        coming = iter(batches)
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in coming:
            held.append(batch)
            size += batch.nbytes
            if size > self._left:
                return SpooledBatch(schema, [self._rows_file().append(schema, _chain(held, coming))])
        self._left -= size
        return pa.Table.from_batches(held, schema=schema)

    def keep(self, rows: Rows) -> Rows:
        """Rows that the caller may release. Raises StoreFull if the local disk is full."""
        if isinstance(rows, SpooledBatch):
            return rows
        if rows.nbytes <= self._left:
            self._left -= rows.nbytes
            return rows
        return SpooledBatch(rows.schema, [self._rows_file().append(rows.schema, rows.to_batches())])

    def _rows_file(self) -> RowFile:
        if self._file is None:
            self._file = RowFile()
        return self._file


def spooled(reader: pa.RecordBatchReader) -> Rows:
    """All rows of a stream. Raises what the stream raises."""
    return RowSpool(bytes_max=SPOOL_BYTES_MAX).take(reader.schema, reader)


def joined(batches: Sequence[Rows]) -> Rows:
    """Batches of one schema as one, in order."""
    parts = [part for rows in batches for part in (rows.parts if isinstance(rows, SpooledBatch) else [rows])]
    tables = [part for part in parts if isinstance(part, pa.Table)]
    return pa.concat_tables(tables) if len(tables) == len(parts) else SpooledBatch(batches[0].schema, parts)


def _close(file: IO[bytes]) -> None:
    # If the disk is full, its buffer cannot be written, and nobody needs it.
    with contextlib.suppress(OSError):
        file.close()


def _chain(held: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Held batches, each released when it is taken, and then the rest of the stream."""
    held.reverse()
    while held:
        yield held.pop()
    yield from rest
