"""An index in an SQLite file: which data files hold which keys. For the writers of one machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import numpy as np
import numpy.typing as npt

from objcat import FoundKeys, KeyFile

TABLES = """
CREATE TABLE IF NOT EXISTS files (number INTEGER PRIMARY KEY, path TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS files_by_name ON files (path, first, last);
CREATE TABLE IF NOT EXISTS keys (digest INTEGER, file INTEGER, PRIMARY KEY (digest, file)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keys_by_file ON keys (file);
"""


class SqliteIndex:
    """The index `sqlite`.

    Args:
        options: `path`: of the database file, on a local disk. `wait_s`: how long to wait for other writers; 60 when it is not set.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._path = options["path"]
        self._wait_s = float(options.get("wait_s", "60"))

    def find(self, digests: npt.NDArray[np.uint64], files: Sequence[KeyFile]) -> FoundKeys:
        """Look digests up. One transaction sees files and keys as of one moment."""
        with self._transaction("DEFERRED") as database:
            database.execute("CREATE TEMP TABLE asked_files (at INTEGER PRIMARY KEY, path TEXT, first INTEGER, last INTEGER)")
            database.execute("CREATE TEMP TABLE asked_keys (at INTEGER PRIMARY KEY, digest INTEGER)")
            database.executemany(
                "INSERT INTO asked_files VALUES (?, ?, ?, ?)", ((at, f.path, f.start, f.end) for at, f in enumerate(files))
            )
            database.executemany("INSERT INTO asked_keys VALUES (?, ?)", enumerate(digests.view(np.int64).tolist()))
            held = dict(database.execute("SELECT number, at FROM asked_files JOIN files USING (path, first, last)"))
            found = database.execute("SELECT at, file FROM asked_keys CROSS JOIN keys USING (digest)").fetchall()
        pairs = np.array([(key, held[file]) for key, file in found if file in held], np.int64).reshape(-1, 2)
        known = set(held.values())
        return FoundKeys(pairs[:, 0], pairs[:, 1], [file for at, file in enumerate(files) if at not in known])

    def add(self, file: KeyFile, digests: npt.NDArray[np.uint64]) -> None:
        """Remember a file, all of it or nothing."""
        with self._transaction("IMMEDIATE") as database:
            name = (file.path, file.start, file.end)
            if database.execute("SELECT 1 FROM files WHERE (path, first, last) = (?, ?, ?)", name).fetchone():
                return
            number = database.execute("INSERT INTO files (path, first, last) VALUES (?, ?, ?)", name).lastrowid
            database.executemany("INSERT INTO keys VALUES (?, ?)", ((digest, number) for digest in digests.view(np.int64).tolist()))

    def remove(self, paths: Iterable[str]) -> None:
        """Forget files and their keys."""
        with self._transaction("IMMEDIATE") as database:
            for path in paths:
                database.execute("DELETE FROM keys WHERE file IN (SELECT number FROM files WHERE path = ?)", (path,))
                database.execute("DELETE FROM files WHERE path = ?", (path,))

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """A connection of its own, in one transaction. kind: IMMEDIATE for a change."""
        with closing(sqlite3.connect(self._path, timeout=self._wait_s, isolation_level=None)) as database:
            # After a power failure, the newest files may be unknown again, which is as good.
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(TABLES)
            database.execute(f"BEGIN {kind}")
            yield database
            database.execute("COMMIT")
