"""All files of a table, with which a mirror begins. They are read a few file groups at a time, and sorted on local disk."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.env import Env
from objcat.metadata.files import Adoption, BaseFile, Bound, FileGroup, LogObject
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import LiveFiles, Snapshot
from objcat.mirror.file_bounds import bounds_by_path
from objcat.mirror.masked_files import NO_ROWS, MaskedFileReader, NeededRows, needed_by, of_table
from objcat.mirror.model import MirroredFile, encoded_path
from objcat.mirror.spooled_records import SpooledRecords

GROUPS_AT_ONCE = 4096
"""File groups whose files are in memory at once. A million of them take 3 GB as Python values."""


class _StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """A `MirroredFile` on disk. masked: the bytes of its positions."""

    path: str
    size: int
    rows: int
    bounds: dict[int, tuple[Any, Any, int]]
    masked: bytes
    nulls_at_most: bool
    adopted: Adoption | None
    bounds_of_group: bool


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_StoredFile)


class WholeTable:
    """All files of a snapshot with all their masked rows, sorted by `encoded_path`, however often they are gone through.

    Memory holds the manifest rows of the table, without bounds, and the files of `GROUPS_AT_ONCE` file groups.

    Args:
        snapshot: of the table.
        manifests: a cache of its manifests.
        reader: finds masked rows.
        env: runs some of the work in threads.
        read_optimized: base files alone.
    """

    def __init__(self, snapshot: Snapshot, manifests: Manifests, reader: MaskedFileReader, env: Env, *, read_optimized: bool) -> None:
        self._snapshot = snapshot
        self._manifests = manifests
        self._reader = reader
        self._env = env
        self._is_read_optimized = read_optimized
        self._records = SpooledRecords()
        self._runs: list[tuple[int, int]] | None = None

    def __iter__(self) -> Iterator[MirroredFile]:
        """Read the table at the first time. Raises CorruptTable, CheckpointCollected, StoreFull, storage errors."""
        if self._runs is None:
            self._records, self._runs = SpooledRecords(), None
            self._runs = [self._store(files) for files in self._parts()]
        yield from heapq.merge(*(self._stored(*run) for run in self._runs), key=lambda file: encoded_path(file.path))

    def _store(self, files: Sequence[MirroredFile]) -> tuple[int, int]:
        """Sort some files, and write them to disk. Returns where they are."""
        begin = self._records.bytes
        for file in sorted(files, key=lambda file: encoded_path(file.path)):
            bounds = {number: (low, high, nulls) for number, (low, high, nulls) in file.bounds.items()}
            said = _StoredFile(
                file.path, file.bytes, file.rows, bounds, file.masked.tobytes(), file.nulls_at_most, file.adopted, file.bounds_of_group
            )
            self._records.add(_ENCODER.encode(said))
        return begin, self._records.bytes

    def _stored(self, begin: int, end: int) -> Iterator[MirroredFile]:
        for record in self._records.read(begin, end):
            said = _DECODER.decode(record)
            masked = np.frombuffer(said.masked, np.int64)
            yield MirroredFile(
                path=said.path,
                bytes=said.size,
                rows=said.rows,
                bounds=said.bounds,
                masked=masked,
                nulls_at_most=said.nulls_at_most,
                adopted=said.adopted,
                bounds_of_group=said.bounds_of_group,
            )

    # ---- reading the table

    def _parts(self) -> Iterator[list[MirroredFile]]:
        """The files, some file groups at a time."""
        live = self._snapshot.live(self._manifests)
        logs = _LogFiles(live)
        for chosen in _chunks(live):
            self._env.give_way()
            groups = live.groups(chosen)
            if self._is_read_optimized:
                groups = [replace(group, logs=()) for group in groups if group.base is not None]
            yield self._files(groups, logs)
        yield logs.complete({}, is_end=True)

    def _files(self, groups: Sequence[FileGroup], logs: _LogFiles) -> list[MirroredFile]:
        """The base files of some file groups, and the log files that no other one needs. logs: what is known of log files so far."""
        spec = self._snapshot.spec
        superseded = self._reader.superseded_by_logs(spec, groups)
        bounds = bounds_by_path(self._snapshot, self._manifests, [group.group_id for group in groups])
        bases: dict[str, list[NeededRows]] = {}
        for group in groups:
            for part in needed_by(group):
                if isinstance(part.file, BaseFile):
                    bases.setdefault(part.path, []).append(part)
                else:
                    own = self._reader.rows.own_positions(spec, group, part.file)
                    logs.add(part.file.object, own, bounds.get(part.path, {}), is_alone=len(needed_by(group)) == 1)
        files = logs.complete(superseded)
        for path, of_path in bases.items():
            masked = self._reader.masked_of(spec, of_path, superseded.get(path, NO_ROWS))
            files.append(of_table(of_path, masked, bounds.get(path, {})))
        return files


@dataclass(slots=True)
class _LogFile:
    """A log file some of whose file groups were read.

    Attributes:
        object: the file.
        counts: by row, whether it counts.
        bounds: as manifests have them.
        left: slices that were not read yet.
        is_alone: no file group that was read has another file.
    """

    object: LogObject
    counts: npt.NDArray[np.bool_]
    bounds: dict[int, Bound]
    left: int
    is_alone: bool = True


class _LogFiles:
    """Log files, whose rows may be of many file groups. Each is complete when all of its slices were read."""

    def __init__(self, live: LiveFiles) -> None:
        self._slices = Counter(live.slices().field("path").to_pylist())
        self._begun: dict[str, _LogFile] = {}

    def add(self, log: LogObject, own: npt.NDArray[np.int64], bounds: dict[int, Bound], *, is_alone: bool) -> None:
        """Add a slice: rows that a file group needs. is_alone: the file group has no other file."""
        known = self._begun.get(log.path)
        if known is None:
            known = self._begun[log.path] = _LogFile(log, np.zeros(log.rows, np.bool_), bounds, self._slices[log.path])
        known.counts[own] = True
        known.left -= 1
        known.is_alone &= is_alone

    def complete(self, superseded: dict[str, npt.NDArray[np.int64]], *, is_end: bool = False) -> list[MirroredFile]:
        """The files that are complete now, or all that are left at the end.

        superseded: rows that do not count, of the slices that were added since the last call.
        """
        for path in self._begun.keys() & superseded.keys():
            self._begun[path].counts[superseded[path]] = False
        files = []
        for path in [path for path, known in self._begun.items() if is_end or not known.left]:
            known = self._begun.pop(path)
            log = known.object
            files.append(
                MirroredFile(
                    path=path,
                    bytes=log.bytes,
                    rows=log.rows,
                    bounds=known.bounds,
                    masked=np.flatnonzero(~known.counts),
                    nulls_at_most=True,
                    bounds_of_group=not known.is_alone,
                )
            )
        return files


def _chunks(live: LiveFiles) -> Iterator[npt.NDArray[np.int64]]:
    """Live file groups in parts, near each other in the manifests. Those that share a base file are in one part."""
    chosen = np.flatnonzero(live.merged.is_live)
    row = live.members.row[live.merged.winner[chosen]]
    paths = live.rows.column("base_path").take(pa.array(row)).combine_chunks()
    codes = paths.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    first = row.copy()
    least = np.full(codes.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, codes[codes >= 0], row[codes >= 0])
    first[codes >= 0] = least[codes[codes >= 0]]
    order = np.lexsort((row, first))
    ordered = codes[order]
    begin = 0
    while begin < len(order):
        end = min(begin + GROUPS_AT_ONCE, len(order))
        while end < len(order) and ordered[end] >= 0 and ordered[end] == ordered[end - 1]:
            end += 1
        yield chosen[order[begin:end]]
        begin = end
