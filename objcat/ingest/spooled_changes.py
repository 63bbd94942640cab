"""`SpooledChanges`: the changes of one transaction of a source, in memory or, when they are many, on local disk."""

from __future__ import annotations

import contextlib
import io
import pickle
import tempfile
import weakref
from collections.abc import Iterator
from typing import IO, Any

from objcat.datafile.local_disk import room_for_rows
from objcat.ingest.model import Change, SourceTable

PIECE_CHANGES = 2_000
"""So many changes are written, and read again, at once."""


class SpooledChanges:
    """Changes in order. They are added by one thread, and may then be read by another, several times.

    Args:
        bytes_max: more bytes than that are written to a file of this process, which goes with the object.
    """

    def __init__(self, bytes_max: int) -> None:
        self.count = 0
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._held: list[Change] = []
        self._held_bytes = 0
        self._tables: list[SourceTable] = []
        self._places: dict[int, int] = {}
        self._file: IO[bytes] | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes that are in memory and not on disk, about."""
        return self._held_bytes

    def add(self, change: Change, size_bytes: int) -> None:
        """Add a change. `size_bytes`: about how much memory it takes. Raises StoreFull when the local disk is full."""
        self._held.append(change)
        self.count += 1
        self.size_bytes += size_bytes
        self._held_bytes += size_bytes
        if self._file is not None:
            if len(self._held) >= PIECE_CHANGES or self._held_bytes > self._bytes_max:
                self._write()
        elif self._held_bytes > self._bytes_max:
            self.spill()

    def spill(self) -> None:
        """Write what is in memory to disk. Raises StoreFull when the local disk is full."""
        if self._file is None:
            with room_for_rows():
                self._file = tempfile.TemporaryFile(prefix="objcat-")  # noqa: SIM115 - it goes with this object
            weakref.finalize(self, _close, self._file)
        self._write()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Change]:
        if self._file is not None:
            end = self._file.seek(0, io.SEEK_END)
            at = self._file.seek(0)
            while at < end:
                self._file.seek(at)
                piece = _Unpickler(self._file, self._tables).load()
                at = self._file.tell()
                yield from piece
        yield from self._held

    def _write(self) -> None:
        assert self._file is not None
        with room_for_rows():
            self._file.seek(0, io.SEEK_END)
            for start in range(0, len(self._held), PIECE_CHANGES):
                buffer = io.BytesIO()
                _Pickler(buffer, self._tables, self._places).dump(self._held[start : start + PIECE_CHANGES])
                self._file.write(buffer.getvalue())
            # What waits in a buffer would fail where nobody expects it.
            self._file.flush()
        self._held = []
        self._held_bytes = 0


def _close(file: IO[bytes]) -> None:
    # A disk that is full refuses what is left to write, which nobody reads any more.
    with contextlib.suppress(OSError):
        file.close()


class _Pickler(pickle.Pickler):
    """Writes each table once for all changes, and a number in its place."""

    def __init__(self, file: IO[bytes], tables: list[SourceTable], places: dict[int, int]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tables = tables
        self._places = places

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, SourceTable):
            return None
        if id(value) not in self._places:
            self._places[id(value)] = len(self._tables)
            self._tables.append(value)  # It is held, so no other object gets its id.
        return self._places[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], tables: list[SourceTable]) -> None:
        super().__init__(file)
        self._tables = tables

    def persistent_load(self, place: Any) -> SourceTable:
        found: SourceTable = self._tables[place]
        return found
