"""Rows of a batch sorted by home and key, also where they do not fit into memory: in runs, all but one of them on disk."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from fileio.store import FileIO
from objcat.storage.local_disk import room_for_rows
from objcat.storage.merge import merge
from objcat.storage.streaming import cut_sorted
from objcat.table import LogRows, TableSpec
from objcat.tasks.model import WriteResult, WriteTask
from objcat.tasks.record import put_index
from objcat.tasks.write import Prepared, gather, prepare, take_runs
from objcat.timeline import Home

RUN_BYTES_MAX = 256 * 1024**2
"""Arrow bytes of a batch that a task holds: of what exceeds them it writes sorted runs to local disk."""
PIECE_ROWS = 16 * 1024


class Run:
    """A part of a batch: its rows under physical names, folded, sorted by (home, key), in memory or in a file of this process.

    placed, updated: as of `WriteResult`. entries: as of `Prepared`.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._parts = {part.home: part for part in prepared.runs}
        self._rows: pa.Table | None = prepared.rows
        self._path: Path | None = None
        self.rows = prepared.rows.num_rows
        self.placed, self.updated = prepared.placed, prepared.updated
        self.entries = prepared.entries

    @property
    def homes(self) -> Iterable[Home]:
        """In order."""
        return self._parts.keys()

    def spill(self, path: Path) -> None:
        """Leave memory. Raises StoreFull when the local disk is full."""
        assert self._rows is not None, "a run is spilled once"
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with room_for_rows(), pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, self._rows.schema, options=options) as writer:
            # Of one size, so that a row's batch is known by its number.
            writer.write_table(self._rows.combine_chunks(), max_chunksize=PIECE_ROWS)
        self._rows, self._path = None, path

    def pieces(self, home: Home) -> Iterator[pa.Table]:
        """The rows of a home, in order."""
        part = self._parts.get(home)
        if part is None:
            return
        if self._rows is not None:
            yield self._rows.slice(part.start, part.end - part.start)
            return
        with pa.OSFile(str(self._path), "rb") as file:
            reader = pa.ipc.open_file(file)
            for number in range(part.start // PIECE_ROWS, (part.end - 1) // PIECE_ROWS + 1):
                first = number * PIECE_ROWS
                start, end = max(part.start, first), min(part.end, first + PIECE_ROWS)
                yield pa.Table.from_batches([reader.get_batch(number)]).slice(start - first, end - start)

    def take(self, homes: Iterable[Home]) -> tuple[pa.Table, tuple[LogRows, ...]]:
        """The rows of some homes, all of which it has, in memory; and which are of which. The run must be in memory."""
        assert self._rows is not None, "rows are taken before a run is spilled"
        return take_runs(self._rows, [self._parts[home] for home in homes])


@contextmanager
def sorted_runs(task: WriteTask, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterator[Run]]:
    """Runs of all rows of some batches, in their order; one that the consumer goes on from is spilled. Until the end of the block.

    Raises InvalidBatch and NullKey, and StoreFull when the local disk is full.
    """
    with tempfile.TemporaryDirectory(prefix="objcat-") as directory:

        def runs() -> Iterator[Run]:
            last: Run | None = None
            # Not by `enumerate`, which holds what it gave.
            numbers = itertools.count()
            for rows in gather(batches, RUN_BYTES_MAX):
                if last is not None:
                    last.spill(Path(directory, f"run-{next(numbers)}"))
                last = Run(prepare(task, rows))
                # What it was made of need not wait until it is written.
                del rows
                if last.rows:
                    yield last
                else:
                    last = None

        yield runs()


def keys_of(runs: Sequence[Run]) -> WriteResult:
    """The digests of the keys of all runs."""
    return WriteResult(placed=b"".join(run.placed for run in runs), updated=b"".join(run.updated for run in runs))


def index_of(fileio: FileIO, task: WriteTask, name: str, runs: Sequence[Run]) -> WriteResult:
    """What the rows of all runs change in the record index, as one log object. Raises storage errors."""
    changes = [run.entries for run in runs if run.entries is not None and run.entries.num_rows]
    return put_index(fileio, task, f"{name}-index", pa.concat_tables(changes)) if changes else WriteResult()


def rows_of_home(spec: TableSpec, runs: Sequence[Run], home: Home) -> Iterator[pa.Table]:
    """The rows of a home in all runs, by key, each key once: of several, the one that counts by ordering and order."""
    mine = [run for run in runs if home in run.homes]
    if len(mine) == 1:
        yield from mine[0].pieces(home)
        return
    key = [column.physical for column in spec.key_columns]
    ordering = None if spec.ordering_column is None else spec.ordering_column.physical
    for cut in cut_sorted([run.pieces(home) for run in mine], key=key):
        present = [rows for rows in cut if rows is not None]
        yield present[0] if len(present) == 1 else merge(pa.concat_tables(present), key=key, ordering=ordering, keep_deletes=True)
