"""`ReadStream`: a large object as a seekable file. It reads parts ahead in parallel."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fileio.contract import (
    ByteRange,
    GetResult,
    NotModified,
    ObjectMeta,
    Range,
    Version,
)
from fileio.env import Env
from fileio.errors import ObjectChanged

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
from fileio.stream_settings import StreamSettings, as_bytes

WINDOW_BYTES = 64 * 1024
"""The least that a read at a new position fetches, also at the end of the object, where file formats have their footers."""


class RangeSource(Protocol):
    """What a reader needs of a store. `FileIO` is one. Its calls retry."""

    @property
    def env(self) -> Env:
        """Clock and threads."""

    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult | NotModified:
        """As `FileIO.get`."""


class ReadStream(io.RawIOBase):
    """A seekable binary file over one version of an object. For one thread at a time.

    A read at a new position fetches what was asked for, at least 64 KiB. Sequential reads fetch ever larger pieces ahead, in parallel, up
    to `prefetch` parts. The last 64 KiB of the object stay cached. Memory: at most `prefetch + 1` parts.

    Args:
        source: The store.
        meta: The object. An empty version stands for the version of the first answer.
        settings: Part size and read-ahead.

    Raises:
        ObjectChanged: The object changed since it was opened. Reads raise it.
    """

    def __init__(self, source: RangeSource, meta: ObjectMeta, settings: StreamSettings) -> None:
        super().__init__()
        self._source = source
        self._meta = meta
        self._version: Version | None = meta.version or None
        self._settings = settings
        self._position = 0
        self._streak = 0
        self._streak_end = 0
        self._ahead: deque[_Piece] = deque()
        self._tail: _Piece | None = None

    @property
    def meta(self) -> ObjectMeta:
        """The object at the time it was opened."""
        return self._meta

    @property
    def name(self) -> str:
        """The key."""
        return self._meta.key

    def readable(self) -> bool:
        """Always True."""
        return True

    def seekable(self) -> bool:
        """Always True."""
        return True

    def tell(self) -> int:
        """The current position, in bytes."""
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Change the position and return it. Sends no request. Beyond the end there is nothing to read."""
        self._check_open()
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._meta.size}
        if whence not in bases:
            raise ValueError(f"{whence!r} is not a place to seek from. Use io.SEEK_SET, io.SEEK_CUR or io.SEEK_END.")
        if bases[whence] + offset < 0:
            raise ValueError(f"Cannot seek to {bases[whence] + offset}, before the beginning of {self._meta.key!r}.")
        self._position = bases[whence] + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """The next `size` bytes; None or a negative size reads all that are left. Fewer only at the end of the object."""
        self._check_open()
        left = max(0, self._meta.size - self._position)
        pieces = list(self._views(left if size is None or size < 0 else min(size, left)))
        if len(pieces) == 1 and isinstance(pieces[0].obj, bytes) and len(pieces[0].obj) == len(pieces[0]):
            return pieces[0].obj
        return b"".join(pieces)

    def readall(self) -> bytes:
        """All bytes that are left."""
        return self.read(-1)

    def read1(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, with one request at most; a negative size reads 64 KiB at most. Empty only at the end."""
        self._check_open()
        wanted = size if size >= 0 else WINDOW_BYTES
        view = next(self._views(min(wanted, max(0, self._meta.size - self._position))), memoryview(b""))
        return bytes(view)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer` with the next bytes and return their number. It is smaller than the buffer only at the end."""
        self._check_open()
        with memoryview(buffer) as view, as_bytes(view) as target:
            filled = 0
            for piece in self._views(min(len(target), max(0, self._meta.size - self._position))):
                target[filled : filled + len(piece)] = piece
                filled += len(piece)
            return filled

    def close(self) -> None:
        """Drop what was read ahead."""
        self._forget_ahead()
        self._tail = None
        super().close()

    # ---- how

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"The stream that reads {self._meta.key!r} is closed. Open the object again.")

    def _views(self, length: int) -> Iterator[memoryview]:
        """The next `length` bytes, all within the object, as views that arrive one by one. Each moves the position."""
        if self._position != self._streak_end:
            self._streak = 0
        while length > 0:
            piece = self._piece_here(length)
            begin = self._position - piece.start
            view = memoryview(piece.data())[begin : begin + length]
            self._position += len(view)
            self._streak += len(view)
            self._streak_end = self._position
            length -= len(view)
            yield view

    def _piece_here(self, length: int) -> _Piece:
        """The piece at the current position. Fetches what follows as well, when it is wanted or likely."""
        if self._tail is not None and self._tail.start <= self._position:
            return self._tail
        while self._ahead and self._ahead[0].end <= self._position:
            self._ahead.popleft()
        if self._ahead and self._ahead[0].start > self._position:
            self._forget_ahead()
        if self._ahead and self._ahead[0].failed:
            self._forget_ahead()
        if not self._ahead and self._streak == 0 and self._position + WINDOW_BYTES >= self._meta.size and length <= WINDOW_BYTES:
            self._tail = self._fetched(max(0, self._meta.size - WINDOW_BYTES), self._meta.size)
            return self._tail
        self._fetch_ahead(length)
        return self._ahead[0]

    def _fetch_ahead(self, length: int) -> None:
        """Extend the pieces to the end of the read, or further when reads are sequential."""
        part_bytes = self._settings.part_bytes
        step = min(part_bytes, max(WINDOW_BYTES, self._streak))
        ahead = min(4 * self._streak, self._settings.prefetch * part_bytes)
        begin = self._ahead[-1].end if self._ahead else self._position
        goal = min(self._meta.size, max(self._position + length, self._position + ahead))
        if not self._ahead:
            goal = min(self._meta.size, max(goal, self._position + min(part_bytes, WINDOW_BYTES)))
        missing: list[tuple[int, int]] = []
        while begin < goal and len(self._ahead) + len(missing) <= self._settings.prefetch:
            # The bytes of this read take as few requests as possible. Bytes beyond it are fetched in steps.
            asked = self._position + length - begin
            end = min(self._meta.size, begin + min(part_bytes, max(step, asked)))
            missing.append((begin, end))
            begin = end
        here = missing.pop(0) if missing and not self._ahead else None
        later = [self._submitted(start, end) for start, end in missing]
        if here is not None:
            self._ahead.append(self._fetched(*here))
        self._ahead.extend(later)

    def _submitted(self, start: int, end: int) -> _Piece:
        return _Piece(start, end, self._source.env.submit_io(lambda: self._fetch(start, end)))

    def _fetched(self, start: int, end: int) -> _Piece:
        future: Future[bytes] = Future()
        future.set_result(self._fetch(start, end))
        return _Piece(start, end, future)

    def _fetch(self, start: int, end: int) -> bytes:
        result = self._source.get(self._meta.key, byte_range=Range(start, end))
        assert not isinstance(result, NotModified)
        if self._version is None:
            self._version = result.meta.version
        if result.meta.version != self._version or result.meta.size != self._meta.size or len(result.data) != end - start:
            raise ObjectChanged(
                f"{self._meta.key!r} is not the object of {self._meta.size} bytes (version {self._version}) that was opened, "
                f"but one of {result.meta.size} (version {result.meta.version}). Open it again."
            )
        return result.data

    def _forget_ahead(self) -> None:
        for piece in self._ahead:
            piece.future.cancel()
        self._ahead.clear()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes `start` to `end` of the object. They may not have arrived yet."""

    start: int
    end: int
    future: Future[bytes]

    @property
    def failed(self) -> bool:
        return self.future.done() and self.future.exception() is not None

    def data(self) -> bytes:
        return self.future.result()
