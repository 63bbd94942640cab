"""Holds rows so that a write can read them again: in memory if they are few, else on local disk.

`SpooledBatch` is a batch of which some rows are on disk. `RowSpool` holds the batches of a transaction's block, which share a limit and a
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from objcat.engine.parted_rows import BucketParts, PartedRows, can_be_cut
from objcat.engine.row_file import FileRows, RowFile

SPOOL_BYTES_MAX = 256 * 1024**2
"""Arrow bytes of a stream that are held in memory."""
CUT_BYTES_MAX = 64 * 1024**2
"""The same of a stream whose rows are cut by bucket. On disk each bucket is read when it is written, so less is held at once."""
SPOOL_SHARE = 4
"""The part of the process's memory for the rows that a block holds."""


class SpooledBatch:
    """A batch of which some rows are on local disk. For one thread at a time."""

    def __init__(self, schema: pa.Schema, parts: Sequence[pa.Table | FileRows | PartedRows]) -> None:
        self.schema = schema
        self.num_rows = sum(part.num_rows for part in parts)
        self._parts = tuple(parts)

    @property
    def parts(self) -> Sequence[pa.Table | FileRows | PartedRows]:
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

    def take(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], parts: BucketParts | None = None) -> Rows:
        """All rows of a stream. Raises what the stream raises, and StoreFull if the local disk is full.

        parts: how rows are cut that go to the disk. None: they stay in their order.
        """
        cut = parts is not None and can_be_cut(schema)
        bytes_max = min(self._left, CUT_BYTES_MAX) if cut else self._left
        coming = iter(batches)
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in coming:
            held.append(batch)
            size += batch.nbytes
            if size > bytes_max:
                rows = _chain(held, coming)
                if parts is not None and cut:
                    return SpooledBatch(schema, [PartedRows(self._rows_file(), schema, rows, parts)])
                return SpooledBatch(schema, [self._rows_file().append(schema, rows)])
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


def _chain(held: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Held batches, each released when it is taken, and then the rest of the stream."""
    held.reverse()
    while held:
        yield held.pop()
    yield from rest
