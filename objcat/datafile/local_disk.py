"""The disk of this machine, where rows wait that do not fit into memory."""

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
"""What is read at once of rows that wait, at most: of all files that are merged this much is held at the same time."""


class SpilledRows:
    """Rows in a file of this process, from which they are read again in their order, as often as one likes."""

    def __init__(self, tables: Iterable[pa.Table], path: Path) -> None:
        """tables: of one schema; at least one, none of them empty. Raises StoreFull when the local disk is full."""
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
        """Give the file up."""
        self._path.unlink()


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    size = max(1, min(PIECE_ROWS, PIECE_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, size):
        piece = rows.slice(start, size)
        # Neighbours may be much wider than the others.
        yield from _pieces(piece) if 1 < piece.num_rows < rows.num_rows and piece.nbytes > PIECE_BYTES else [piece]


@contextmanager
def room_for_rows() -> Iterator[None]:
    """While rows are written to the directory for temporary files. Raises StoreFull instead of an OSError when it has no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        said = f"no room in {tempfile.gettempdir()!r} for rows that do not fit into memory ({error.strerror or error})"
        raise StoreFull(f"{said}: free some space there, or name another directory in TMPDIR") from error
