"""DuckDB in a sandbox: it reaches only the relations that objcat registers with it.

Every DuckDB connection of objcat is made here. A connection that a user passes in may reach what the user allows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from fileio.optional import library
from objcat.common.memory_errors import address_room_bytes, check_room

_CLOSED: Mapping[str, str] = {
    "enable_external_access": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # Otherwise an unknown name in a query would be looked up in Python's variables.
    "python_enable_replacements": "false",
}

LEAST_BYTES = 384 * 1024**2
"""With less room than this under a limit of addresses, DuckDB is not started."""
UNLIMITED_BYTES = 64 * 1024**3
"""With this much room, a limit of addresses does not matter."""


def connect_duckdb(*, needed_by: str, zone: str = "UTC", settings: Mapping[str, str] | None = None) -> Any:
    """A database in memory without files, network, extensions or Python's variables. No query can change its settings.

    Data that does not fit into memory goes to a private directory that is deleted with the connection.

    Args:
        needed_by: For the error of a missing library.
        zone: Of days and hours, in DuckDB's words.
        settings: More settings of DuckDB.

    Raises:
        MissingDependency: DuckDB is not installed.
        LookupError: Nobody knows the zone.
    """
    duckdb = library("duckdb", needed_by=needed_by, extra="local")
    within = _within_limit()
    directory = _private_directory()
    # DuckDB's own directory is readable by all, so it goes inside the private one.
    spilled = "" if directory is None else os.path.join(directory, "spilled")
    connection = duckdb.connect(":memory:", config={**_CLOSED, "temp_directory": spilled, **within, **(settings or {})})
    if directory is not None:
        weakref.finalize(connection, shutil.rmtree, directory, ignore_errors=True)
    try:
        connection.execute("SET GLOBAL TimeZone = '{}'".format(zone.replace("'", "''")))
    except duckdb.Error as error:
        # Without its extension for time zones, DuckDB knows only UTC.
        if zone != "UTC":
            raise LookupError(f"DuckDB knows no zone {zone!r}") from error
    connection.execute("SET lock_configuration = true")
    return connection


class SharedDuckdb:
    """The database that the queries of this process share, since it takes 20 ms to start one.

    Each query has a connection of its own, so none sees what another registered. No fork meets an idle database, because the threads of
    one are not in the child.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A signal handler may ask while its thread holds it.
        self._database: Any = None
        os.register_at_fork(before=self._before_fork, after_in_parent=self._lock.release, after_in_child=self._lock.release)

    def connect(self, *, needed_by: str) -> Any:
        """A connection, as `connect_duckdb` makes it. Under a limit of addresses it has a database of its own."""
        if _within_limit():
            return connect_duckdb(needed_by=needed_by)
        with self._lock:
            if self._database is None:
                self._database = connect_duckdb(needed_by=needed_by)
            connection = self._database.cursor()
            # The private directory goes with the database that was opened first.
            weakref.finalize(connection, _let_go, self._database)
        return connection

    def forget(self) -> None:
        """Let the next query start a database, after an error that no query survives."""
        with self._lock:
            self._database = None

    def _before_fork(self) -> None:
        self._lock.acquire()
        self._database = None


SHARED = SharedDuckdb()


def _let_go(database: Any) -> None:
    del database


def _within_limit() -> dict[str, str]:
    """Settings that hold DuckDB within the process's limit of addresses.

    DuckDB ends the process when it is refused a thread or a page. Raises MemoryError when there is no room for it.
    """
    room = address_room_bytes()
    if room is None or room >= UNLIMITED_BYTES:
        return {}
    check_room(LEAST_BYTES, library="DuckDB")
    return {"threads": "1", "memory_limit": f"{room // 4 // 1024**2}MiB"}


def _private_directory() -> str | None:
    """A new private directory. None if this machine has no place for one; then everything has to fit into memory."""
    try:
        return tempfile.mkdtemp(prefix="objcat-")
    except OSError:
        return None
