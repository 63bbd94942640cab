"""The disk of this machine, where rows wait that do not fit into memory."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from fileio.errors import StoreFull


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
