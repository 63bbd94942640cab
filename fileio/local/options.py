"""Options of a local file system, and what of it can be known before it is opened."""

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
"""After these, link and rename have certainly done nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options of `file:` stores.

    fsync: force every write to the disk before it is acknowledged. Without it a write survives the death of the process, but not a power
    cut. attributes: keep metadata in extended attributes where the filesystem has them; False: always in sidecar files.
    lock_timeout_s: how long a write waits for other writers of the same directory before it gives up without effect.
    """

    fsync: bool = True
    attributes: bool = True
    lock_timeout_s: float = 10.0


def temporaries_of(url: str, *, older_than_s: float) -> list[str]:
    """The paths of what is being written below a store of files, as yet under no key; none for other stores.

    What processes left that are dead and have written nothing for so long is removed before. url: of the store, or of a prefix in it.
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
    """None when nothing is there, or nobody may look. By one look at a time: another process may make it meanwhile."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False if os.path.islink(path) and not os.path.exists(path) else None
