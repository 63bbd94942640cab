"""Tells whether two instances of `FileIO` lead to the same objects."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from operator import itemgetter

from fileio.store import FileIO
from fileio.wrappers import PrefixedBackend


def identity_of(fileio: FileIO) -> Hashable:
    """Equal only for instances of this process that lead to the same objects: opened alike, or children of one instance.

    Alike means by the same URL and options, while the environment named the same servers, accounts and profiles.
    """
    known = fileio._description
    if known is not None:
        options = tuple(sorted(known.options.items(), key=itemgetter(0)))
        with suppress(TypeError):
            hash(options)
            return fileio.url, options, known.surroundings
    bare = fileio._bare
    while isinstance(bare, PrefixedBackend):
        bare = bare.inner
    return fileio.url, bare
