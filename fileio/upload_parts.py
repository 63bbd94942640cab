"""Parts of an upload: how large they are, and the buffers in which they are gathered, in memory or in temporary files."""

from __future__ import annotations

import mmap
import sys
import tempfile
from typing import IO, Protocol

from fileio.contract import Buffer, Capabilities

GROWTH_STEPS = 11
"""How often the part size may double until the last part of an upload. With 10,000 parts that begin at 5 MiB, they add up to 8 TiB."""


def part_size(number: int, *, first_bytes: int, capabilities: Capabilities) -> int:
    """The size in bytes of part `number` (from 1) of an upload whose length is not known yet.

    It begins near `first_bytes` and doubles every eleventh of the parts that the store allows, so that an upload needs little memory while
    it is small and still has parts left when it is huge. Respects the store's bounds and multiple.
    """
    doublings = (number - 1) // max(1, capabilities.parts_max // GROWTH_STEPS)
    wanted = max(first_bytes, capabilities.part_bytes_min) << min(doublings, 63)
    multiple = capabilities.part_bytes_multiple
    most = capabilities.part_bytes_max // multiple * multiple
    return min(-(-wanted // multiple) * multiple, most)


class UploadPart(Protocol):
    """A buffer of `size` bytes that is filled from its beginning."""

    size: int

    @property
    def is_full(self) -> bool: ...

    def fill(self, source: memoryview) -> int:
        """Take as much as there is room for; returns how much that was."""

    def content(self) -> Buffer:
        """The bytes that were filled in. Valid until the next `clear`."""

    def clear(self) -> None: ...

    def close(self) -> None: ...


class PartPool:
    """The buffers of one writer, which are used again while the part size stays. directory: of temporary files; None: in memory."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._all: list[UploadPart] = []
        self._free: list[UploadPart] = []

    def take(self, size: int) -> UploadPart:
        """An empty part of `size` bytes."""
        while self._free:
            part = self._free.pop()
            if part.size == size:
                part.clear()
                return part
            self._all.remove(part)
            part.close()
        part = _MemoryPart(size) if self._directory is None else _SpilledPart(size, self._directory)
        self._all.append(part)
        return part

    def give_back(self, part: UploadPart) -> None:
        """The content of `part` is not needed any more."""
        if not isinstance(part, WholePart):
            self._free.append(part)

    def close(self) -> None:
        """Release every part, also those that were not given back."""
        for part in self._all:
            part.close()
        self._all.clear()
        self._free.clear()


class WholePart:
    """Somebody else's `bytes`, which nobody can change, as a part of their own."""

    is_full = True

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = data

    def fill(self, source: memoryview) -> int:
        """Says that all of `source` was taken: it is a view of these very bytes."""
        return len(source)

    def content(self) -> bytes:
        return self._data

    def clear(self) -> None:
        raise AssertionError("bytes cannot be filled again")

    def close(self) -> None:
        """Nothing of ours to release."""


class _MemoryPart:
    """Anonymous memory: the system hands out pages when they are first touched, so that a large buffer costs a small object nothing."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._filled = 0
        if sys.platform == "win32":
            self._memory = mmap.mmap(-1, size)
        else:
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)

    @property
    def is_full(self) -> bool:
        return self._filled == self.size

    def fill(self, source: memoryview) -> int:
        length = min(len(source), self.size - self._filled)
        self._view[self._filled : self._filled + length] = source[:length]
        self._filled += length
        return length

    def content(self) -> memoryview:
        return self._view[: self._filled]

    def clear(self) -> None:
        self._filled = 0

    def close(self) -> None:
        """SDKs leave requests, and so views of their bodies, in cycles of references: the pages must not wait for the garbage collector."""
        if sys.platform == "linux":
            self._memory.madvise(mmap.MADV_DONTNEED)


class _SpilledPart:
    """An unlinked temporary file. It is written with `write`, so that a full disk is an error, and mapped for sending."""

    def __init__(self, size: int, directory: str) -> None:
        self.size = size
        self._filled = 0
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0, dir=directory)  # noqa: SIM115  (closed by `close`)

    @property
    def is_full(self) -> bool:
        return self._filled == self.size

    def fill(self, source: memoryview) -> int:
        length = self._file.write(source[: self.size - self._filled])
        self._filled += length
        return length

    def content(self) -> memoryview:
        if self._filled == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(self._file.fileno(), self._filled, access=mmap.ACCESS_READ))

    def clear(self) -> None:
        self._file.seek(0)
        self._filled = 0

    def close(self) -> None:
        self._file.close()


__all__ = ["GROWTH_STEPS", "PartPool", "UploadPart", "WholePart", "part_size"]
