"""Looks for unnoticed damage: reads whole data files, a few at a time, and compares them with their digests."""

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
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.reopening import reopening

VERIFIED_BYTES = 16 * 1024**2
"""Bytes that one maintenance run reads of a table, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Files that were read in full.

    Attributes:
        files: their number.
        bytes: their bytes.
        damaged: what is wrong with files that are not as committed.
        unknown: number of live files without a known digest. They are not among `files`.
    """

    files: int = 0
    bytes: int = 0
    damaged: tuple[str, ...] = ()
    unknown: int = 0


def verify_some(
    timeline: Timeline[Tables],
    table: str,
    *,
    bytes_max: int,
    view: LogView[Tables] | None = None,
    is_late: Callable[[], bool] = lambda: False,
) -> Verified:
    """Read live files of a table and its index, drawn at random, and compare their digests. Changes nothing.

    Files that a clean deletes meanwhile are not damage. Raises TableClosed and storage errors.

    Args:
        bytes_max: no file is started beyond it. The last one may exceed it.
        view: where to begin; a new one when None.
        is_late: called before each file. True ends the run.
    """
    manifests = Manifests(timeline.fileio)

    def current() -> Snapshot:
        """The current snapshot."""
        nonlocal view
        view = timeline.open() if view is None else timeline.refresh(view)
        return snapshot_of(view, table, where=timeline.fileio.url)

    def forget() -> None:
        """Open the log again: the checkpoint of the view was deleted, or is damaged."""
        nonlocal view
        view = None

    def listed() -> pa.Table:
        """The files of the table and its index."""
        snapshot = current()
        return pa.concat_tables([one.live(manifests).files() for one in (snapshot, snapshot.index) if one is not None])

    found = reopening(timeline, listed, forget)
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
        live = reopening(timeline, lambda: current().paths(manifests), forget)
        damaged = {path: wrong for path, wrong in damaged.items() if path in live}
    return Verified(files=files, bytes=size, damaged=tuple(f"{path}: {wrong}" for path, wrong in damaged.items()), unknown=unknown)


def verify_all(
    fileio: FileIO, files: Iterable[tuple[str, int, str | None]], *, on_file: Callable[[int], None]
) -> Iterator[tuple[str, str]]:
    """Those files (path, bytes, digest) that are not as committed, and why.

    Reads one after the other, in pieces. Missing files are skipped. on_file: called with the bytes of each file after it was read. Raises
    storage errors.
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
    """Files in random order, each decoded on its turn."""
    order = np.arange(files.num_rows)
    for place in range(len(order)):
        other = place + int(fileio.env.random() * (len(order) - place))
        order[place], order[other] = order[other], order[place]
        path, size, digest = (files.column(name)[int(order[place])].as_py() for name in ("path", "bytes", "xxh3"))
        yield path, size, str(unpacked(digest))


def _why(fileio: FileIO, path: str, *, size: int, digest: str) -> str | None:
    """Like `why_damaged`, for missing files too. Damage is checked twice, since what spoiled an answer may not do it again."""
    wrong: str | None = None
    for _ in range(2):
        try:
            wrong = why_damaged(fileio, path, size=size, digest=digest)
        except NotFound:
            wrong = "it is missing"
        if wrong is None:
            break
    return wrong
