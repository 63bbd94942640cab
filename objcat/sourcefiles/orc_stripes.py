"""The stripes of an ORC file, which its tail lists, and a file object that asks a store for no other bytes than a reader of stripes wants.

Arrow reads stripes, and does not say how many rows each has or where it is. The tail is a message of Protocol Buffers: `FileTail` of the
specification of ORC.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from pyarrow import orc

from fileio.contract import ObjectMeta
from fileio.store import FileIO
from fileio.stream_settings import StreamSettings

HELD_BYTES_MAX = 64 * 1024 * 1024
"""The longest stripe that is read at once."""
HELD_BYTES_ANYWAY = 256 * 1024
"""A stripe that is not longer is read at once also for few of its columns: their requests would take as many bytes."""
_FOOTER, _STRIPES = 2, 3
_OFFSET, _INDEX_BYTES, _DATA_BYTES, _FOOTER_BYTES, _ROWS = 1, 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class Stripe:
    """Rows of an ORC file that are stored together.

    Args:
        begin: the place of its first byte.
        end: the place after its last one.
        rows: how many it has.
    """

    begin: int
    end: int
    rows: int


def stripes_of(file: orc.ORCFile) -> list[Stripe]:
    """The stripes of an opened file, in order. No request is sent."""
    found = []
    for footer in _messages(file.reader.serialized_file_tail(), _FOOTER):
        for stripe in _messages(footer, _STRIPES):
            numbers = {number: value for number, value in _fields(stripe) if isinstance(value, int)}
            begin = numbers.get(_OFFSET, 0)
            length = sum(numbers.get(number, 0) for number in (_INDEX_BYTES, _DATA_BYTES, _FOOTER_BYTES))
            found.append(Stripe(begin, begin + length, numbers.get(_ROWS, 0)))
    return found


def _messages(data: bytes, wanted: int) -> list[bytes]:
    return [value for number, value in _fields(data) if number == wanted and isinstance(value, bytes)]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbers and bytes of a message of Protocol Buffers, each with the number of its field."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                yield key >> 3, value
            case 2:
                length, at = _varint(data, at)
                yield key >> 3, data[at : at + length]
                at += length
            case kind:
                at += 8 if kind == 1 else 4


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


class StripedFile(io.RawIOBase):
    """A seekable file over one version of an object. A stripe can be held, and is then read in one piece. For one thread.

    A reader of ORC goes to and fro between the columns of a stripe, in short steps. So nothing is read ahead.

    Args:
        fileio: the store.
        meta: the object.
    """

    def __init__(self, fileio: FileIO, meta: ObjectMeta) -> None:
        super().__init__()
        self._stream = fileio.open_read(meta.key, meta=meta, settings=StreamSettings(prefetch=0))
        self._position = 0
        self._held_begin = 0
        self._held = b""
        self.failure: Exception | None = None
        """What the store raised. A reader of ORC hides it behind an error of its own."""

    def hold(self, stripe: Stripe) -> None:
        """Read a stripe, in place of the one before. Raises ObjectChanged and what stores raise."""
        self._held = b""
        self._stream.seek(stripe.begin)
        self._held_begin, self._held = stripe.begin, self._stream.read(stripe.end - stripe.begin)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._stream.meta.size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """The next `size` bytes; fewer only at the end of the object."""
        length = self._stream.meta.size - self._position if size is None or size < 0 else size
        begin = self._position - self._held_begin
        if begin >= 0 and begin + length <= len(self._held):
            found = self._held[begin : begin + length]
        else:
            try:
                self._stream.seek(self._position)
                found = self._stream.read(length)
            except Exception as error:
                self.failure = error
                raise
        self._position += len(found)
        return found
