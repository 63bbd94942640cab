"""`LogReader`: reads log rows of many file groups, each log object once, since one holds rows of most groups.

`write_log` in `objcat.datafile.parquet` writes log objects, called by `put_log` in `objcat.tasks.write_log_rows`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

import pyarrow as pa

from fileio.env import on_fork
from fileio.store import FileIO
from objcat.datafile.parquet import log_pieces, read_log
from objcat.metadata.files import FileGroup, LogObject, LogSlice
from objcat.metadata.schema import TableSchema

HELD_BYTES_MAX = 128 * 1024**2
"""Arrow bytes of log rows that a scan holds. Rows beyond it are read again for each file group."""
EXPANSION = 8
"""How much larger rows are in Arrow than in a compressed file, about, rounded up."""


class LogReader:
    """Log rows of file groups, under physical names and with `_objcat_op`. Thread-safe.

    Args:
        columns: physical names.
        schema: cast to this, however old the log objects are.
        held_bytes_max: Arrow bytes that it holds. None: `HELD_BYTES_MAX`.
    """

    def __init__(self, fileio: FileIO, columns: Sequence[str], schema: TableSchema, *, held_bytes_max: int | None = None) -> None:
        self._fileio = fileio
        self._schema = schema
        self._columns = list(columns)
        self._left = HELD_BYTES_MAX if held_bytes_max is None else held_bytes_max
        self._held: dict[str, Future[dict[tuple[int, int], pa.Table]]] = {}
        self._uses: dict[str, int] = {}
        self._lock = threading.Lock()
        on_fork(self)

    def after_fork(self) -> None:
        """Start with a new lock in a forked process."""
        self._lock = threading.Lock()

    def load(self, groups: Iterable[FileGroup]) -> None:
        """Begin to read what these file groups need, in parallel and while there is room. `rows` and `pieces` wait for it.

        Call `done` for each file group later. Where not all of it fits by its estimate, it waits, and raises as `rows`.
        """
        wanted: dict[str, tuple[LogObject, list[tuple[int, int]]]] = {}
        for part in (part for group in groups for part in group.logs):
            wanted.setdefault(part.object.path, (part.object, []))[1].append((part.start, part.end))
            with self._lock:
                self._uses[part.object.path] = self._uses.get(part.object.path, 0) + 1
        waiting = [pair for path, pair in wanted.items() if path not in self._held]
        while waiting:
            # Rows usually take less than estimated, so there may be room for more.
            wave, room = [], self._left
            for log, ranges in waiting:
                room -= _bytes(log, sum(end - start for start, end in ranges))
                if room < 0:
                    break
                wave.append((log, ranges))
            if not wave:
                return
            begun = {log.path: self._fileio.env.submit(partial(self._read, log, ranges)) for log, ranges in wave}
            with self._lock:
                self._held.update(begun)
            waiting = waiting[len(wave) :]
            if waiting:
                for reading in begun.values():
                    reading.result()

    def _read(self, log: LogObject, ranges: list[tuple[int, int]]) -> dict[tuple[int, int], pa.Table]:
        tables = dict(zip(ranges, read_log(self._fileio, log, ranges, self._columns, self._schema), strict=True))
        with self._lock:
            self._left -= sum(table.nbytes for table in tables.values())
        return tables

    def close(self) -> None:
        """Read nothing that was not begun."""
        for reading in list(self._held.values()):
            reading.cancel()

    def rows(self, part: LogSlice) -> pa.Table:
        """The rows of a slice. Raises CorruptTable and storage errors."""
        reading = self._held.get(part.object.path)
        held = None if reading is None else reading.result()
        if held is not None and (part.start, part.end) in held:
            return held[part.start, part.end]
        return read_log(self._fileio, part.object, [(part.start, part.end)], self._columns, self._schema)[0]

    def pieces(self, part: LogSlice) -> Iterator[pa.Table]:
        """The rows of a slice, a row group at a time."""
        if part.object.path in self._held:
            yield self.rows(part)
        else:
            yield from log_pieces(self._fileio, part.object, part.start, part.end, self._columns, self._schema)

    def done(self, group: FileGroup) -> None:
        """The file group was read. Drops what no other one needs."""
        with self._lock:
            for part in group.logs:
                path = part.object.path
                self._uses[path] = self._uses.get(path, 1) - 1
                reading = None if self._uses[path] else self._held.pop(path, None)
                if reading is not None and reading.done() and not reading.cancelled() and reading.exception() is None:
                    self._left += sum(table.nbytes for table in reading.result().values())

    def bytes_of(self, group: FileGroup) -> int:
        """Arrow bytes of the log rows of a file group, about."""
        return sum(_bytes(part.object, part.rows) for part in group.logs)


def _bytes(log: LogObject, rows: int) -> int:
    return EXPANSION * log.bytes * rows // max(1, log.rows)
