"""A file object over byte ranges of a Parquet file that were fetched before."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence

import pyarrow.parquet as pq

Span = tuple[int, int]
"""Bytes of a file, from one offset up to another."""


def chunk_spans(footer: pq.FileMetaData, numbers: Sequence[int], columns: Sequence[str]) -> list[Span]:
    """The byte ranges of the flat columns in some row groups, ascending."""
    spans = []
    for number in numbers:
        group = footer.row_group(number)
        for chunk in (group.column(at) for at in range(group.num_columns)):
            if chunk.path_in_schema in columns:
                pages = (chunk.data_page_offset, chunk.dictionary_page_offset)
                begin = min(offset for offset in pages if offset)
                spans.append((begin, begin + chunk.total_compressed_size))
    return sorted(spans)


class PrefetchedFile(io.RawIOBase):
    """A file of `size` bytes with some known spans, ascending and disjoint. For one thread.

    A read of other bytes raises ValueError.
    """

    def __init__(self, size: int, spans: Sequence[Span], data: Sequence[bytes]) -> None:
        super().__init__()
        self._size = size
        self._begins = [begin for begin, _ in spans]
        self._data = data
        self._position = 0

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
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """The next `size` bytes, which lie in one span."""
        length = self._size - self._position if size is None or size < 0 else size
        number = bisect_right(self._begins, self._position) - 1
        begin = self._position - self._begins[number] if number >= 0 else 0
        found = self._data[number][begin : begin + length] if number >= 0 else b""
        if len(found) < length:
            raise ValueError(f"bytes {self._position} to {self._position + length} of the file were not fetched")
        self._position += length
        return found
