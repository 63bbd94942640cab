"""An in-memory cache of a writer: the file group of each key, read once from immutable files.

It stores 64-bit digests of keys. If a new key has the digest of an existing one, it goes to the file group of the other. That is as good
as any file group, since rows in it are distinguished by their keys.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.env import on_fork
from fileio.store import FileIO
from objcat.datafile.bucket_hash import key_digests
from objcat.metadata.files import FileGroup
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.key_lookup import NOWHERE, BatchKeys, Ints, LocateTask, known_keys
from objcat.tasks.model import PLACE_COLUMN
from objcat.timeline.entry import FileGroupId

ENTRY_BYTES = 12
"""Memory per key: its digest, and the number of its file group."""
ADDED_MIN = 4096
"""Entries that may wait outside a small sorted array."""

HASHED_ROWS = 128 * 1024
"""Keys that are hashed together when file groups are read."""

_Digests = npt.NDArray[np.uint64]
_Slice = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _KnownKeys:
    """What was read of a file group. number: of the file group, as long as it only grows."""

    number: int
    base: str | None
    logs: frozenset[_Slice]


@dataclass(slots=True)
class _CachedEntries:
    """Sorted digests, and the numbers of the file groups of the keys."""

    digests: _Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    numbers: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @classmethod
    def of(cls, digests: _Digests, numbers: npt.NDArray[np.int32]) -> _CachedEntries:
        """Sort the entries and remove duplicates."""
        order = np.lexsort((numbers, digests))
        digests, numbers = digests[order], numbers[order]
        # A key may have rows in the base file and in log files.
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (digests[1:] != digests[:-1]) | (numbers[1:] != numbers[:-1])
        return cls(digests[is_new], numbers[is_new])


class KeyMap:
    """The cached keys of a table. Thread-safe: lookups take turns.

    The content is never trusted by itself. Every lookup first updates it to the live files, compared by path.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        on_fork(self)
        self._clear()

    def after_fork(self) -> None:
        """Start empty with a new lock in a forked process."""
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._main = _CachedEntries()
        self._added: list[_CachedEntries] = []
        self._group_ids: list[FileGroupId | None] = []
        self._known: dict[FileGroupId, _KnownKeys] = {}

    @property
    def keys(self) -> int:
        """Number of entries."""
        return len(self._main.digests) + sum(len(entries.digests) for entries in self._added)

    @property
    def bytes(self) -> int:
        """Memory of the entries."""
        return ENTRY_BYTES * self.keys

    def locate(
        self, fileio: FileIO, spec: TableSpec, live: Mapping[FileGroupId, FileGroup], keys: BatchKeys, *, bytes_max: int
    ) -> tuple[Ints, Sequence[FileGroupId]] | None:
        """For every key of a batch, the number of its file group in the returned list, or `NOWHERE`.

        Reads the keys of new file groups, and of those written since. Returns None if the cache would exceed `bytes_max`, and then empties
        it.
        Raises CorruptTable and storage errors.

        live: all file groups of the partitions of the batch.
        """
        with self._lock:
            if not self._follow(fileio, spec, live, bytes_max):
                self._clear()
                return None
            partitions = pa.DictionaryArray.from_arrays(pa.array(keys.partition), pa.array(keys.texts, pa.string()))
            numbers = self._find(key_digests([partitions, *keys.rows.columns]))
            # The cache may know more partitions than the lookup needs, and an overwrite may empty some.
            found = {
                number: group_id for number in np.unique(numbers[numbers >= 0]).tolist() if (group_id := self._group_ids[number]) in live
            }
            # The last entry is for `NOWHERE`.
            places = np.full(len(self._group_ids) + 1, NOWHERE, np.int64)
        places[list(found)] = np.arange(len(found))
        return places[numbers], [group_id for group_id in found.values() if group_id is not None]

    # ---- how

    def _follow(self, fileio: FileIO, spec: TableSpec, live: Mapping[FileGroupId, FileGroup], bytes_max: int) -> bool:
        """Read new files, and drop file groups that are gone. False if that exceeds the limit."""
        partitions = {group_id.partition for group_id in live}
        for group_id in [group_id for group_id in self._known if group_id.partition in partitions and group_id not in live]:
            self._forget(group_id)
        unread: list[FileGroup] = []
        now: dict[FileGroupId, _KnownKeys] = {}
        for group_id, group in live.items():
            base = None if group.base is None else group.base.path
            logs = frozenset((part.object.path, part.start, part.end) for part in group.logs)
            known = self._known.get(group_id)
            if known is not None and known.base == base and known.logs <= logs:
                if known.logs == logs:
                    continue
                new = tuple(part for part in group.logs if (part.object.path, part.start, part.end) not in known.logs)
                unread.append(replace(group, base=None, logs=new))
                now[group_id] = _KnownKeys(known.number, base, logs)
            else:
                self._forget(group_id)
                unread.append(group)
                now[group_id] = _KnownKeys(len(self._group_ids), base, logs)
                self._group_ids.append(group_id)
        rows = sum((group.base.rows if group.base is not None else 0) + sum(part.rows for part in group.logs) for group in unread)
        if ENTRY_BYTES * (self.keys + rows) > bytes_max:
            return False
        if unread:
            self._read(fileio, spec, unread, [now[group.group_id].number for group in unread])
            self._known.update(now)
        if sum(len(entries.digests) for entries in self._added) > max(ADDED_MIN, len(self._main.digests) // 8):
            self._merge()
        return True

    def _forget(self, group_id: FileGroupId) -> None:
        known = self._known.pop(group_id, None)
        if known is not None:
            self._group_ids[known.number] = None

    def _read(self, fileio: FileIO, spec: TableSpec, groups: Sequence[FileGroup], numbers: Sequence[int]) -> None:
        group_ids = pa.array([group.group_id.partition for group in groups], pa.string())
        held: list[pa.Table] = []
        read: list[tuple[_Digests, npt.NDArray[np.int32]]] = []

        def digest() -> None:
            """Hash the keys of several file groups together, since file groups may be small and many."""
            rows = pa.concat_tables(held)
            at = rows.column(PLACE_COLUMN).combine_chunks()
            partitions = pa.DictionaryArray.from_arrays(at, group_ids)
            read.append(
                (key_digests([partitions, *rows.drop_columns([PLACE_COLUMN]).columns]), np.array(numbers, np.int32)[np.asarray(at)])
            )
            held.clear()

        count = 0
        for rows in known_keys(fileio, LocateTask(spec, tuple(groups))):
            held.append(rows)
            count += rows.num_rows
            if count >= HASHED_ROWS:
                digest()
                count = 0
        if held:
            digest()
        if read:
            self._added.append(_CachedEntries.of(np.concatenate([one for one, _ in read]), np.concatenate([one for _, one in read])))

    def _merge(self) -> None:
        """Merge all entries into one array, without dropped file groups, and number the others again."""
        digests = np.concatenate([entries.digests for entries in (self._main, *self._added)])
        numbers = np.concatenate([entries.numbers for entries in (self._main, *self._added)])
        alive = np.array([group_id is not None for group_id in self._group_ids], np.bool_)
        kept = alive[numbers]
        renumbered = (np.cumsum(alive) - 1).astype(np.int32)
        self._main, self._added = _CachedEntries.of(digests[kept], renumbered[numbers[kept]]), []
        self._group_ids = [group_id for group_id in self._group_ids if group_id is not None]
        self._known = {group_id: replace(known, number=int(renumbered[known.number])) for group_id, known in self._known.items()}

    def _find(self, digests: _Digests) -> Ints:
        alive = np.array([group_id is not None for group_id in self._group_ids], np.bool_)
        result = np.full(len(digests), NOWHERE, np.int64)
        for entries in (self._main, *self._added):
            at, end = (np.searchsorted(entries.digests, digests, side) for side in ("left", "right"))
            while len(rows := np.flatnonzero(at < end)):
                numbers = entries.numbers[at[rows]]
                result[rows[alive[numbers]]] = numbers[alive[numbers]]
                at[rows] += 1
        return result
