"""Options of the local file system, and questions about a place that need no opened store."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from fileio.env import default_env
from fileio.local.files import (
    sweep_temporaries,
)
from fileio.local.listing import HIDDEN

CERTAIN_ERRORS = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM),
        *(errno.EROFS, errno.EXDEV, errno.EMLINK, errno.ENAMETOOLONG, errno.ELOOP, errno.EOPNOTSUPP),
    }
)
"""After these errors, link and rename certainly had no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options of `file:` stores.

    Args:
        fsync: Force every write to disk before it is acknowledged. Without it, a write survives the end of the process but no power cut.
        attributes: Store metadata in extended attributes where the filesystem has them. False uses sidecar files always.
        lock_timeout_s: How long a write waits for other writers of the same directory, in seconds, before it gives up without effect.
    """

    fsync: bool = True
    attributes: bool = True
    lock_timeout_s: float = 10.0


def temporaries_of(url: str, *, older_than_s: float) -> list[str]:
    """The paths of unfinished writes below a store of files. They have no key yet. Other stores have none.

    Removes the unfinished writes of dead processes first.

    Args:
        url: The URL of the store, or of a prefix in it.
        older_than_s: The age of unfinished writes that may be removed, in seconds.
    """
    parts = urlsplit(url)
    if parts.scheme != "file":
        return []
    place = unquote(parts.path)
    while True:
        directory = os.path.join(place, HIDDEN, "tmp")
        if os.path.isdir(directory):
            sweep_temporaries(directory, older_than_ms=default_env().now_ms() - int(older_than_s * 1000))
            return sorted(os.path.join(directory, name) for name in os.listdir(directory))
        above = os.path.dirname(place)
        if above == place:
            return []
        place = above


def is_directory(path: str) -> bool | None:
    """Whether a path is a directory; None when nothing is there, or it cannot be read. One look: others may create it meanwhile."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False if os.path.islink(path) and not os.path.exists(path) else None
