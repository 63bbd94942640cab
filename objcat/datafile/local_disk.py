"""Rows on the local disk, where those wait that do not fit into memory."""

from __future__ import annotations

import bisect
import errno
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pyarrow as pa

from fileio.errors import StoreFull

PIECE_ROWS, PIECE_BYTES = 16 * 1024, 2 * 1024**2
"""The largest piece of waiting rows. One piece of every merged file is in memory at the same time."""


class SpilledRows:
    """Rows in a file of this process. They can be read in order, any number of times."""

    def __init__(self, tables: Iterable[pa.Table], path: Path) -> None:
        """Write the rows. tables: of one schema, at least one, none of them empty. Raises StoreFull if the local disk is full."""
        self._path = path
        self._ends: list[int] = []
        coming = chain.from_iterable(map(_pieces, tables))
        held = [next(coming)]
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with room_for_rows(), pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, held[0].schema, options=options) as writer:
            for piece in coming:
                together = [*held, piece]
                if sum(rows.num_rows for rows in together) > PIECE_ROWS or sum(rows.nbytes for rows in together) > PIECE_BYTES:
                    self._write(writer, held)
                    together = [piece]
                held = together
            self._write(writer, held)

    def _write(self, writer: pa.RecordBatchWriter, pieces: list[pa.Table]) -> None:
        together = pa.concat_tables(pieces)
        writer.write_table(together.combine_chunks())
        self._ends.append((self._ends[-1] if self._ends else 0) + together.num_rows)

    def pieces(self, start: int = 0, end: int | None = None) -> Iterator[pa.Table]:
        """The rows from `start` to `end`, a few at a time."""
        end = self._ends[-1] if end is None else end
        with pa.OSFile(str(self._path), "rb") as file:
            reader = pa.ipc.open_file(file)
            number = bisect.bisect_right(self._ends, start)
            while start < end:
                rows = pa.Table.from_batches([reader.get_batch(number)])
                first, last = self._ends[number] - rows.num_rows, min(end, self._ends[number])
                yield rows.slice(start - first, last - start)
                start, number = last, number + 1

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink()


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    size = max(1, min(PIECE_ROWS, PIECE_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, size):
        piece = rows.slice(start, size)
        # Some rows may be much wider than the others.
        yield from _pieces(piece) if 1 < piece.num_rows < rows.num_rows and piece.nbytes > PIECE_BYTES else [piece]


@contextmanager
def room_for_rows() -> Iterator[None]:
    """Context for writing rows to the temporary directory. Raises StoreFull in place of an OSError if it is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        said = f"There is no room in {tempfile.gettempdir()!r} for rows that do not fit into memory ({error.strerror or error})."
        raise StoreFull(f"{said} Free some space there, or name another directory in TMPDIR.") from error
