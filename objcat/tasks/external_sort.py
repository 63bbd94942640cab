"""Sorts the rows of a batch by file group and key, with all but one sorted run on local disk."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pyarrow as pa

from fileio.env import Env
from fileio.store import FileIO
from objcat.datafile.local_disk import PIECE_BYTES, PIECE_ROWS, SpilledRows
from objcat.datafile.merge import merge
from objcat.datafile.parquet import BASE_ROW_GROUP_ROWS
from objcat.datafile.row_selection import RowSelection
from objcat.datafile.streaming_merge import cut_sorted
from objcat.metadata.files import LogRows
from objcat.tasks.key_index import put_index
from objcat.tasks.model import WriteResult, WriteTask
from objcat.tasks.write_log_rows import bounded, gather, prepare, take_runs
from objcat.timeline.entry import FileGroupId

RUN_SHARE = 4
"""The part of the process's memory, in Arrow bytes, for one run. A sort holds the run twice."""
PIECES_SHARE = 8
"""Runs on disk are merged into one when one piece of each takes this part of a run.

While a file group is written, a piece of every run is in memory and a file is open.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a batch, sorted by (file group, key), with repeated keys merged, in memory or in a local file.

    parts: which rows belong to which file group. level: how often the rows were merged.
    """

    rows: RowSelection | SpilledRows
    parts: dict[FileGroupId, LogRows]
    level: int = 0

    def pieces(self, group_id: FileGroupId) -> Iterator[pa.Table]:
        """The rows of one of its file groups, in order."""
        part = self.parts[group_id]
        if isinstance(self.rows, SpilledRows):
            yield from self.rows.pieces(part.start, part.end)
        else:
            yield from self.rows.pieces(part.start, part.end, rows_max=BASE_ROW_GROUP_ROWS)

    def take(self, group_ids: Iterable[FileGroupId]) -> tuple[RowSelection, tuple[LogRows, ...]]:
        """The rows of some of its file groups, and which belong to which. The run must be in memory."""
        assert isinstance(self.rows, RowSelection), "take() needs a run in memory"
        return take_runs(self.rows, [self.parts[group_id] for group_id in group_ids])


class SortedRuns:
    """All rows of some batches as runs, in the order of the batches. See `sorted_runs`."""

    def __init__(self, env: Env, task: WriteTask, batches: Iterable[pa.RecordBatch], directory: Path) -> None:
        memory_bytes = env.memory_bytes
        self._env = env
        self._task = task
        size_max = task.spec.target_log_bytes
        self._batches = batches if size_max is None else bounded(batches, size_max)
        self._directory = directory
        # The rows of a run for existing file groups form one log file.
        self._run_bytes = min(memory_bytes // RUN_SHARE, memory_bytes if size_max is None else size_max)
        self._runs_max = max(2, memory_bytes // PIECES_SHARE // PIECE_BYTES)
        self._files = 0
        self._spilling: Future[SpilledRows] | None = None
        self._runs: list[Run] = []
        self._bytes = self._rows = 0
        self._placed: list[bytes] = []
        self._updated: list[bytes] = []
        self._entries: list[pa.Table] = []
        self._late = 0
        self._keys: list[bytes] = []

    def read(self, seen: Callable[[Run], None] = lambda _run: None) -> None:
        """Make the runs. Call this first.

        seen: receives each run while it is in memory, and must not hold it. Raises InvalidBatch, NullKey, StoreFull if the local disk is
        full, and
        what `seen` raises.
        """
        coming = _Ahead(self._batches)
        for rows in gather(coming, self._run_bytes):
            self._spilled()
            prepared = prepare(self._task, rows)
            # Release the source rows before the run is written.
            del rows
            self._late += prepared.late
            self._keys.append(prepared.keys)
            if not prepared.rows.num_rows:
                continue
            self._placed.append(prepared.placed)
            self._updated.append(prepared.updated)
            if prepared.entries is not None and prepared.entries.num_rows:
                self._entries.append(prepared.entries)
            self._bytes += prepared.rows.nbytes
            self._rows += prepared.rows.num_rows
            self._runs.append(Run(prepared.rows, {part.group_id: part for part in prepared.runs}))
            del prepared
            seen(self._runs[-1])
            if coming.has_more():
                self._spill()
        self._spilled()

    def end(self) -> None:
        """Wait for what still writes to the local disk."""
        if self._spilling is not None:
            wait([self._spilling])

    @property
    def group_ids(self) -> list[FileGroupId]:
        """The file group ids of all rows, in order."""
        return sorted({group_id for run in self._runs for group_id in run.parts})

    @property
    def group_bytes(self) -> int:
        """Arrow bytes of the rows of the largest file group, about. 0 without any."""
        rows = Counter[FileGroupId]()
        for run in self._runs:
            for group_id, part in run.parts.items():
                rows[group_id] += part.end - part.start
        return max(rows.values(), default=0) * self._bytes // max(1, self._rows)

    def rows_of(self, group_id: FileGroupId) -> Iterator[pa.Table]:
        """The rows of a file group from all runs, by key, each key once. The winner is decided by ordering value, then order."""
        return self._rows_of(group_id, self._runs)

    @property
    def keys(self) -> WriteResult:
        """The digests of the keys of all rows, and how many rows were late."""
        placed, updated, told = (b"".join(digests) for digests in (self._placed, self._updated, self._keys))
        return WriteResult(placed=placed, updated=updated, late=self._late, keys=told)

    def put_index(self, fileio: FileIO, name: str) -> WriteResult:
        """Write the record index changes of all rows as one log object. Raises storage errors."""
        return put_index(fileio, self._task, name, pa.concat_tables(self._entries)) if self._entries else WriteResult()

    def _rows_of(self, group_id: FileGroupId, runs: Sequence[Run]) -> Iterator[pa.Table]:
        spec = self._task.spec
        mine = [run.pieces(group_id) for run in runs if group_id in run.parts]
        if len(mine) == 1:
            yield from mine[0]
            return
        key = [column.physical for column in spec.key_columns]
        ordering = spec.ordering_physical
        for cut in cut_sorted(mine, key=key):
            present = [rows for rows in cut if rows is not None]
            yield present[0] if len(present) == 1 else merge(pa.concat_tables(present), key=key, ordering=ordering, keep_deletes=True)

    def _spill(self) -> None:
        """Begin to spill the run in memory, beside the reading of the next one."""
        rows = self._runs[-1].rows
        assert isinstance(rows, RowSelection), "only the last run may be in memory"
        path = self._new_path()
        self._spilling = self._env.submit(lambda: SpilledRows(rows.pieces(0, rows.num_rows, rows_max=PIECE_ROWS), path))

    def _spilled(self) -> None:
        """Release the run that is being spilled, and merge runs when there are too many on disk.

        Each row is merged once for every `_runs_max` times as many rows.
        """
        if self._spilling is None:
            return
        spilling, self._spilling = self._spilling, None
        self._runs[-1] = replace(self._runs[-1], rows=spilling.result())
        while len(latest := self._runs[-self._runs_max :]) == self._runs_max and latest[0].level == latest[-1].level:
            merged = self._merged(latest)
            for run in latest:
                assert isinstance(run.rows, SpilledRows), "merged runs must be on disk"
                run.rows.remove()
            self._runs[-self._runs_max :] = [merged]

    def _merged(self, runs: Sequence[Run]) -> Run:
        parts: dict[FileGroupId, LogRows] = {}

        def pieces() -> Iterator[pa.Table]:
            """The merged rows, piece by piece."""
            start = end = 0
            for group_id in sorted({group_id for run in runs for group_id in run.parts}):
                for rows in self._rows_of(group_id, runs):
                    end += rows.num_rows
                    yield rows
                parts[group_id] = LogRows(group_id, start, end)
                start = end

        return Run(SpilledRows(pieces(), self._new_path()), parts, runs[0].level + 1)

    def _new_path(self) -> Path:
        self._files += 1
        return self._directory / f"run-{self._files}"


class _Ahead:
    """Batches, of which one may be looked for before it is asked for."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._coming = iter(batches)
        self._next: list[pa.RecordBatch] = []

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while self.has_more():
            yield self._next.pop()

    def has_more(self) -> bool:
        """Whether another batch comes."""
        self._next = self._next or list(islice(self._coming, 1))
        return bool(self._next)


@contextmanager
def sorted_runs(env: Env, task: WriteTask, batches: Iterable[pa.RecordBatch]) -> Iterator[SortedRuns]:
    """Runs of all rows of some batches. They exist until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="objcat-") as directory:
        runs = SortedRuns(env, task, batches, Path(directory))
        try:
            yield runs
        finally:
            runs.end()
