"""DuckDB as objcat runs it: it reaches the relations that are registered with it, and nothing else of the machine.

Every connection that objcat makes is made here. One that a user makes and hands in is the user's, with what it may reach.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any

from fileio.optional import library
from objcat.common.memory_errors import address_room_bytes

_CLOSED: Mapping[str, str] = {
    "enable_external_access": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # A name in a query that is no relation would else be looked for among the variables of Python.
    "python_enable_replacements": "false",
}

LEAST_BYTES = 384 * 1024**2
"""With less room than this under a limit of addresses, DuckDB is not begun."""
UNLIMITED_BYTES = 64 * 1024**3
"""With as much room as this, a limit of addresses is none."""


def connect_duckdb(*, needed_by: str, zone: str = "UTC", settings: Mapping[str, str] | None = None) -> Any:
    """A database in memory without files, network, extensions and variables of Python, whose settings no text can change.

    What does not fit into memory waits in a directory of its own, which nobody else may read and which ends with the connection.
    needed_by: for the sentence of a missing library. zone: of days and hours, in DuckDB's words. settings: more of DuckDB's. Raises
    MissingDependency, and LookupError for a zone that nobody knows.
    """
    duckdb = library("duckdb", needed_by=needed_by, extra="local")
    within = _within_limit()
    directory = _private_directory()
    # DuckDB makes a directory that all may read, so it is one within the private one.
    spilled = "" if directory is None else os.path.join(directory, "spilled")
    connection = duckdb.connect(":memory:", config={**_CLOSED, "temp_directory": spilled, **within, **(settings or {})})
    if directory is not None:
        weakref.finalize(connection, shutil.rmtree, directory, ignore_errors=True)
    try:
        connection.execute("SET TimeZone = '{}'".format(zone.replace("'", "''")))
    except duckdb.Error as error:
        # Without the extension that knows zones there is only UTC.
        if zone != "UTC":
            raise LookupError(f"DuckDB knows no zone {zone!r}") from error
    connection.execute("SET lock_configuration = true")
    return connection


def _within_limit() -> dict[str, str]:
    """What keeps DuckDB within a limit of the process's addresses: it ends the process where a thread or a page is refused to it. Raises
    MemoryError where there is no room for it."""
    room = address_room_bytes()
    if room is None or room >= UNLIMITED_BYTES:
        return {}
    if room < LEAST_BYTES:
        raise MemoryError(f"DuckDB needs {LEAST_BYTES // 1024**2} MiB of addresses, and the process may have {room // 1024**2} more")
    return {"threads": "1", "memory_limit": f"{room // 4 // 1024**2}MiB"}


def _private_directory() -> str | None:
    """None where this machine has no place for one: then everything has to fit into memory."""
    try:
        return tempfile.mkdtemp(prefix="objcat-")
    except OSError:
        return None
