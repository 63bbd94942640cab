"""Parts of an upload: their sizes, and their buffers in memory or in temporary files."""

from __future__ import annotations

import mmap
import sys
import tempfile
from typing import IO, Protocol

from fileio.contract import Buffer, Capabilities

GROWTH_STEPS = 11
"""The number of times the part size may double in an upload. 10,000 parts that begin at 5 MiB add up to 8 TiB."""


def part_size(number: int, *, first_bytes: int, capabilities: Capabilities) -> int:
    """The size in bytes of one part of an upload of unknown length.

    It begins near `first_bytes` and doubles after every eleventh of the parts that the store allows. So a small upload needs little memory,
    and a huge one still has parts left. It respects the store's limits and multiple.

    Args:
        number: The number of the part, from 1.
        first_bytes: The wanted size of the first part.
        capabilities: The limits of the store.
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
    def is_full(self) -> bool:
        """Whether the buffer has no room left."""

    def fill(self, source: memoryview) -> int:
        """Take as many bytes as fit, and return their number."""

    def content(self) -> Buffer:
        """The bytes so far. Valid until the next `clear`."""

    def clear(self) -> None:
        """Empty the buffer for another part."""

    def close(self) -> None:
        """Release the buffer."""


class PartPool:
    """The buffers of one writer, reused while the part size stays. `directory`: of temporary files; None buffers in memory."""

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
        """Return a part whose content is no longer needed."""
        if not isinstance(part, WholePart):
            self._free.append(part)

    def close(self) -> None:
        """Release every part, also those that were not given back."""
        for part in self._all:
            part.close()
        self._all.clear()
        self._free.clear()


class WholePart:
    """The caller's own `bytes`, which are immutable, as a part."""

    is_full = True

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = data

    def fill(self, source: memoryview) -> int:
        """Returns the length of `source`, which is a view of these very bytes."""
        return len(source)

    def content(self) -> bytes:
        """The bytes."""
        return self._data

    def clear(self) -> None:
        """Never called: a pool does not reuse it."""
        raise AssertionError("bytes cannot be filled again")

    def close(self) -> None:
        """Nothing to release."""


class _MemoryPart:
    """Anonymous memory. The system assigns pages on first use, so a large buffer costs little for a small object."""

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
        """Release the pages at once: SDKs leave requests, and so views of their bodies, in reference cycles."""
        if sys.platform == "linux":
            self._memory.madvise(mmap.MADV_DONTNEED)


class _SpilledPart:
    """An unlinked temporary file. Writing with `write` turns a full disk into an error; sending maps the file."""

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
