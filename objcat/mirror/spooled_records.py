"""Byte strings on local disk, in order, for what a mirror of many files cannot hold in memory."""

from __future__ import annotations

import os
import struct
import tempfile
import weakref
from collections.abc import Iterator
from typing import IO

from objcat.datafile.local_disk import room_for_rows

BLOCK_BYTES = 64 * 1024
"""Bytes that are read at once. Many readers may go through a file beside each other."""
_LENGTH = struct.Struct(">I")


class SpooledRecords:
    """Records in a file of this process, deleted with the last reference to it. Several readers may go through it beside each other."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="objcat-")  # noqa: SIM115 - it lives as long as this object
        weakref.finalize(self, _close, self._file)
        self.bytes = 0

    def add(self, record: bytes) -> None:
        """Append a record. Raises StoreFull if the local disk is full."""
        with room_for_rows():
            self._file.write(_LENGTH.pack(len(record)))
            self._file.write(record)
        self.bytes += _LENGTH.size + len(record)

    def read(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The records from one place, that `bytes` said before a record was added, to another. Default: all of them."""
        with room_for_rows():
            self._file.flush()
        end = self.bytes if end is None else end
        held, at = b"", 0
        while at < len(held) or start < end:
            if len(held) - at < _LENGTH.size or len(held) - at < _LENGTH.size + _LENGTH.unpack_from(held, at)[0]:
                wanted = BLOCK_BYTES if len(held) - at < _LENGTH.size else max(BLOCK_BYTES, _LENGTH.unpack_from(held, at)[0])
                more = os.pread(self._file.fileno(), min(wanted, end - start), start)
                if not more:
                    raise OSError(f"A temporary file of {self.bytes:,} bytes ends at {start:,}.")
                held, at, start = held[at:] + more, 0, start + len(more)
                continue
            begin = at + _LENGTH.size
            at = begin + _LENGTH.unpack_from(held, at)[0]
            yield held[begin:at]


def _close(file: IO[bytes]) -> None:
    file.close()
