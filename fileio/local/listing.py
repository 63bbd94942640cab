"""Listings of a directory tree in byte order of its keys. The walk goes only as far as the caller reads."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from fileio.contract import FULL_KEY_BYTES_MAX

HIDDEN = ".objcat"
"""The directory of unfinished writes and sidecars in every root. It is never listed, and no segment of a key may have this name."""


def items(root: str, prefix: str, start_after: str, delimiter: str | None, cursor: str | None) -> Iterator[tuple[str, bool]]:
    """Keys (False) and common prefixes (True) in byte order.

    Args:
        root: The directory of the store.
        prefix: The keys begin with this text.
        start_after: The keys are greater than this text.
        delimiter: Groups keys into common prefixes; None does not.
        cursor: The items are behind this one (see `cursor_of`).
    """
    last = cursor[1:] if cursor else ""
    done = last if cursor and cursor[0] == "p" else None
    after = max(start_after, last)
    base = prefix[: prefix.rfind("/") + 1]
    return _by_directory(root, base, prefix, after, done) if delimiter == "/" else _by_key(root, base, prefix, after, done, delimiter)


def cursor_of(key: str, *, is_prefix: bool) -> str:
    """The cursor of a listing that continues behind this key or common prefix."""
    return ("p" if is_prefix else "k") + key


def _by_key(root: str, base: str, prefix: str, after: str, done: str | None, delimiter: str | None) -> Iterator[tuple[str, bool]]:
    for key in _keys(root, base, prefix, after):
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        if delimiter is None or end < 0:
            yield key, False
        elif key[: end + len(delimiter)] != done:
            done = key[: end + len(delimiter)]
            yield done, True


def _by_directory(root: str, base: str, prefix: str, after: str, done: str | None) -> Iterator[tuple[str, bool]]:
    """As `_by_key`, for a slash as delimiter. A directory is opened only to see whether it holds a wanted key."""
    for name in _names(root, base):
        key = base + name
        if not key.startswith(prefix) or key == done:
            continue
        if not name.endswith("/"):
            if key > after:
                yield key, False
        elif (key > after or after.startswith(key)) and next(_keys(root, key, prefix, after), None) is not None:
            yield key, True


def _keys(root: str, base: str, prefix: str, after: str) -> Iterator[str]:
    """Keys below the directory `base` in byte order. Directories that cannot hold a wanted key are not opened."""
    for name in _names(root, base):
        key = base + name
        if not name.endswith("/"):
            if key > after and key.startswith(prefix):
                yield key
        elif (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
            yield from _keys(root, key, prefix, after)


def _names(root: str, base: str) -> list[str]:
    """Names in the directory `base`, in byte order of the keys that begin with them. Directories end with a slash, and sort with it."""
    if base and any(segment in ("", ".", "..", HIDDEN) for segment in base[:-1].split("/")):
        return []
    names = []
    try:
        with os.scandir(os.path.join(root, base)) as entries:
            for entry in entries:
                if entry.name == HIDDEN or not _is_key(base + entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    names.append(entry.name + "/")
                elif _is_file(entry):
                    names.append(entry.name)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return []
    # Code points sort as UTF-8 bytes do.
    return sorted(names)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a file, also through a link. False for a link that leads nowhere or in a circle."""
    try:
        return entry.is_file()
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR):
            return False
        raise


def _is_key(path: str) -> bool:
    """False for names that are not UTF-8, and for paths that are too long. Other tools put them there; no key can name them."""
    try:
        return len(path.encode()) <= FULL_KEY_BYTES_MAX
    except UnicodeEncodeError:
        return False


__all__ = ["HIDDEN", "cursor_of", "items"]
