"""Looking for damage that nobody has met yet: whole data files, some of them at a time, held against the digests of their entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.datafile.verification import why_damaged
from objcat.metadata.file_digest import unpacked
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_state import Tables
from objcat.timeline.log_view import Timeline
from objcat.timeline.reopening import reopening

VERIFIED_BYTES = 16 * 1024**2
"""What a round of upkeep reads of a table for this, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Files that were read whole. files, bytes: how many, how much. damaged: what is wrong with those that are not what was committed.
    unknown: live files of which no digest is known; they are never among `files`."""

    files: int = 0
    bytes: int = 0
    damaged: tuple[str, ...] = ()
    unknown: int = 0


def verify_some(timeline: Timeline[Tables], table: str, *, bytes_max: int, is_late: Callable[[], bool] = lambda: False) -> Verified:
    """Read live files of a table and its index, drawn at random, and compare their digests. Changes nothing.

    bytes_max: no file begins beyond; the last one may exceed it. is_late: asked before each file, whether to end. What a clean deletes
    meanwhile is no damage. Raises TableClosed, storage errors.
    """
    manifests = Manifests(timeline.fileio)

    def current() -> Snapshot:
        return snapshot_of(timeline.open(), table, where=timeline.fileio.url)

    def listed() -> pa.Table:
        snapshot = current()
        return pa.concat_tables([one.live(manifests).files() for one in (snapshot, snapshot.index) if one is not None])

    found = reopening(timeline, listed)
    known = found.filter(found.column("xxh3").is_valid())
    unknown = found.num_rows - known.num_rows
    files = size = 0
    damaged: dict[str, str] = {}
    for path, expected, digest in _drawn(timeline.fileio, known):
        if size >= bytes_max or is_late():
            break
        wrong = _why(timeline.fileio, path, size=expected, digest=digest)
        files, size = files + 1, size + expected
        if wrong is not None:
            damaged[path] = wrong
    if damaged:
        live = reopening(timeline, lambda: current().paths(manifests))
        damaged = {path: wrong for path, wrong in damaged.items() if path in live}
    return Verified(files=files, bytes=size, damaged=tuple(f"{path}: {wrong}" for path, wrong in damaged.items()), unknown=unknown)


def verify_all(
    fileio: FileIO, files: Iterable[tuple[str, int, str | None]], *, on_file: Callable[[int], None]
) -> Iterator[tuple[str, str]]:
    """Of files (path, bytes, digest) those that are not what was committed, and why. One after the other, in pieces.

    on_file: told of each that was read, with its bytes. One that is missing is passed over. Raises storage errors.
    """
    for path, size, digest in files:
        try:
            wrong = why_damaged(fileio, path, size=size, digest=digest)
        except NotFound:
            continue
        on_file(size)
        if wrong is not None:
            yield path, wrong


def _drawn(fileio: FileIO, files: pa.Table) -> Iterator[tuple[str, int, str]]:
    """Files in a random order, each decoded when it is its turn."""
    order = np.arange(files.num_rows)
    for place in range(len(order)):
        other = place + int(fileio.env.random() * (len(order) - place))
        order[place], order[other] = order[other], order[place]
        path, size, digest = (files.column(name)[int(order[place])].as_py() for name in ("path", "bytes", "xxh3"))
        yield path, size, str(unpacked(digest))


def _why(fileio: FileIO, path: str, *, size: int, digest: str) -> str | None:
    """As `why_damaged`, and missing files too. What is wrong is looked at twice: what spoils an answer may not do it again."""
    wrong: str | None = None
    for _ in range(2):
        try:
            wrong = why_damaged(fileio, path, size=size, digest=digest)
        except NotFound:
            wrong = "it is missing"
        if wrong is None:
            break
    return wrong
