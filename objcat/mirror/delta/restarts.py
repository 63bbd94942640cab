"""A commit that holds the whole table: how a Delta mirror begins, and how it begins again.

It either removes all files of the version before it, or readers cannot apply it to any version, see `NEEDS_CHECKPOINT`. So no version is
ever read wrongly, whichever process puts the version before it, and when. The actions wait on local disk, so memory does not grow with the
number of files.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from typing import TypeVar

import msgspec
import pyarrow as pa

from fileio.contract import Create, require_written
from objcat.mirror.delta.actions import RESTART, DeltaAdd, DeltaLine, DeltaVector, delta_path, encode_lines, table_id
from objcat.mirror.delta.checkpoints import ROW_GROUP_ROWS, adds_of, array_of
from objcat.mirror.delta.commits import DeltaCommit, add_action, begin_commit, remove_action
from objcat.mirror.delta.features import has_column_mapping, only_with_checkpoint, settings_of, stat_names
from objcat.mirror.delta.state import DeltaState
from objcat.mirror.delta.vectors import VectorFile, union
from objcat.mirror.model import CorruptMirror, MirrorChange, MirroredFile, MirrorFolder
from objcat.mirror.spooled_records import SpooledRecords

T = TypeVar("T")
VECTOR_BYTES_MAX = 16 * 1024 * 1024
"""A file of vectors is put when it is so large. Only one is in memory."""
PART_LINES = 10_000
"""Lines of a commit that are encoded at once."""
RUNS_MAX = 64
"""How often the order of the files may begin again."""
_ADDS = msgspec.json.Decoder(DeltaLine)


class DeltaRestart:
    """One commit with the whole table, and its checkpoint.

    Args:
        folder: The mirror.
        change: With all files, sorted by path, see `MirrorChange.added`.

    Attributes:
        vector_keys: The files of vectors that were put.
    """

    def __init__(self, folder: MirrorFolder, change: MirrorChange) -> None:
        self._folder = folder
        self._change = change
        self._adds = SpooledRecords()
        self._runs = [0]
        self._masked: tuple[str, ...] = ()
        self.vector_keys: list[str] = []

    def store_files(self) -> None:
        """Put the vectors, and keep the actions of all files. Raises what reading the table raises; then nothing is left."""
        try:
            while not self._stored():
                # A masked file showed that the mirror needs column mapping, which gives statistics other names.
                self.discard()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Delete the vectors: nothing names them."""
        self._folder.fileio.delete(self.vector_keys)
        self.vector_keys = []

    def begin(self, *, follows: bool, after_ms: int) -> DeltaCommit:
        """The commit without files. follows: whether it removes those of the version before. after_ms: the time of the newest version."""
        since = self._change.slot
        commit = begin_commit(self._folder, self._change, masked=self._masked, before=None, after_ms=after_ms, since=since)
        if not follows and since > 0:
            protocol = DeltaLine(protocol=only_with_checkpoint(commit.settings.protocol))
            commit.head = [protocol if line.protocol is not None else line for line in commit.head]
        return commit

    def parts(self, commit: DeltaCommit, before: DeltaState | None) -> Iterator[bytes]:
        """The bytes of the commit, some lines at a time. before: the version before. Raises CorruptMirror if that cannot be read."""
        removes = iter(()) if before is None else self._removes(before)
        yield from map(encode_lines, _batches(chain(commit.head, removes), PART_LINES))
        yield from map(b"".join, _batches(self._adds.read(), PART_LINES))

    def adds(self) -> Iterator[DeltaAdd]:
        """All files, sorted by path."""
        ends = [*self._runs[1:], self._adds.bytes]
        last = ""
        for add in heapq.merge(*map(self._run, self._runs, ends), key=lambda add: add.path):
            if add.path == last:
                raise ValueError(f"A restart of the Delta mirror of {self._folder.name} names {add.path} twice.")
            last = add.path
            yield add

    def pieces(self) -> Iterator[pa.Array]:
        """All files as the checkpoint has them, a row group at a time."""
        return map(array_of, _batches(self.adds(), ROW_GROUP_ROWS))

    # ---- how

    def _stored(self) -> bool:
        """Put the vectors and store the actions. False if statistics must have other names."""
        self._adds, self._runs = SpooledRecords(), [0]
        change, folder = self._change, self._folder
        settings = settings_of(change.spec, table=table_id(folder), name=folder.name, masked=self._masked, created_ms=0, before=None)
        maps, columns = has_column_mapping(settings.metadata), stat_names(change.spec, settings.metadata)
        vectors = VectorFile(change.slot, folder.fileio.env)
        last = ""
        for file in change.added:
            path = delta_path(folder, file.path)
            if path <= last:
                self._begin_run()
            vector, last = None, path
            if len(file.masked):
                if not self._masked or ("%" in file.path and not maps):
                    self._masked = (*self._masked, file.path)
                    if "%" in file.path and not maps:
                        return False
                vector, vectors = self._mask(file, vectors)
            self._adds.add(encode_lines([DeltaLine(add=add_action(change, columns, path, file, vector))]))
        self._put(vectors)
        return True

    def _begin_run(self) -> None:
        """What follows is sorted by itself. Files of the lake have other paths in actions than those of the log."""
        self._runs.append(self._adds.bytes)
        if len(self._runs) > RUNS_MAX:
            raise ValueError(f"The files of a restart of the Delta mirror of {self._folder.name} are not sorted by path.")

    def _run(self, begin: int, end: int) -> Iterator[DeltaAdd]:
        for line in self._adds.read(begin, end):
            add = _ADDS.decode(line).add
            assert add is not None
            yield add

    def _mask(self, file: MirroredFile, vectors: VectorFile) -> tuple[DeltaVector, VectorFile]:
        """The vector of a file, and the file of vectors for the next one."""
        if vectors.size > VECTOR_BYTES_MAX:
            self._put(vectors)
            vectors = VectorFile(self._change.slot, self._folder.fileio.env)
        vector, _ = vectors.add(union({}, None, file.masked))
        return vector, vectors

    def _put(self, vectors: VectorFile) -> None:
        if not vectors.is_empty:
            key = f"{self._folder.folder}{vectors.name}"
            self.vector_keys.append(key)
            require_written(self._folder.fileio.put(key, vectors.data, Create()), f"{key!r}")

    def _removes(self, before: DeltaState) -> Iterator[DeltaLine]:
        """The files of the version before, as it has them.

        A file that has no masked rows before and after is left out: one commit may not remove and add it. Adding it changes nothing.
        """
        new = self.adds()
        at = next(new, None)
        last = ""
        for piece in before.pieces():
            for add in adds_of(piece):
                if add.path <= last:
                    raise CorruptMirror(f"Slot {before.slot} of the Delta mirror of {self._folder.name} is not sorted by path. {RESTART}")
                last = add.path
                while at is not None and at.path < add.path:
                    at = next(new, None)
                stays = at is not None and at.path == add.path and at.deletion_vector is None
                if add.deletion_vector is not None or not stays:
                    yield remove_action(self._change, add)


def without_removes(lines: Collection[bytes]) -> list[bytes]:
    """The lines of the commit of a restart without the files that it removes. No reader applies it to another version any more."""
    kept = []
    for line in lines:
        if line.startswith(b'{"protocol":'):
            protocol = _ADDS.decode(line).protocol
            assert protocol is not None
            kept.append(encode_lines([DeltaLine(protocol=only_with_checkpoint(protocol))]))
        elif not line.startswith(b'{"remove":'):
            kept.append(line)
    return kept


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Items in lists of a size."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
