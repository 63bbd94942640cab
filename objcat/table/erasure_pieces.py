"""Large Parquet files of an erasure's search, a piece at a time: ranges of their bytes, and batches of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fileio.contract import ObjectMeta, Range
from fileio.store import FileIO
from fileio.stream_settings import StreamSettings

PIECE_BYTES = 64 * 1024**2
"""A larger object is searched in pieces of this size."""
PIECE_ROWS = 64 * 1024
BUFFER_BYTES = 1024**2
"""Of each column that is read."""


def byte_pieces(fileio: FileIO, meta: ObjectMeta, *, overlap: int) -> Iterator[bytes]:
    """The bytes of an object in order, by one request for each piece. Raises NotFound.

    overlap: how many bytes of the next piece each one has too, so that what lies across is in one of them.
    """
    for at in range(0, meta.size, PIECE_BYTES):
        yield fileio.read(meta.key, byte_range=Range(at, min(meta.size, at + PIECE_BYTES + overlap)))


def row_pieces(fileio: FileIO, meta: ObjectMeta) -> Iterator[pa.Table]:
    """The rows of a Parquet object, which is not read as a whole. Raises NotFound."""
    with fileio.open_read(meta.key, meta=meta, settings=StreamSettings(part_bytes=BUFFER_BYTES, prefetch=0)) as stream:
        yield from rows_of(stream)


def rows_of(source: Any) -> Iterator[pa.Table]:
    """The rows of a Parquet file, some at a time. source: a file object."""
    # Without a buffer, each column of a row group is read as a whole.
    with pq.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
        for batch in file.iter_batches(batch_size=PIECE_ROWS):
            yield pa.Table.from_batches([batch])
