"""Index lookup for tables without hash buckets: finds the file group of each key, then writes the batch.

Under the bucket index, the default, nothing is looked up: the hash of a key says its file group (`by_group` in
`objcat.tasks.write_log_rows`). Here, new keys get file groups by size (`groups_for_new_keys` in `file_sizing`), and then rows are written
as under any index. `LOOKUPS` maps each index to its `KeyIndex`: simple and bloom read candidate file groups, or ask an index of another
package, memory caches keys, record reads its own index table. A lookup is exact: it finds every stored key, and repeats after a conflict.
Nothing here claims a slot.
`TableWriter` calls `write_with_index_lookup`. Begin there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.store import FileIO
from objcat.datafile.bucket_hash import key_digests
from objcat.errors import InvalidBatch, InvalidInput, PluginFailed, PluginMissing
from objcat.metadata.file_groups import FileGroupMap
from objcat.metadata.files import FileGroup, LogObject, LogSlice
from objcat.metadata.key_index_table import group_id_of
from objcat.metadata.manifest import Manifests, Pruning
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import BloomIndexSpec, MemoryIndexSpec, RecordIndexSpec, SimpleIndexSpec, TableSpec
from objcat.tasks.key_cache import KeyMap
from objcat.tasks.key_index import groups_known, only_groups
from objcat.tasks.key_lookup import NOWHERE, BatchKeys, BatchKeysHandle, KeyLocations, LocateTask, known_keys, matched
from objcat.tasks.model import PLACE_COLUMN, WriteResult, WriteTask
from objcat.timeline.entry import Digests, FileGroupId, Keys, Txn
from objcat.timeline.side_objects import put_digests
from objcat.write.engine import Engine
from objcat.write.file_sizing import groups_for_new_keys, size_of
from objcat.write.index_plugin import FoundKeys, KeyFile, NamedIndex, open_index, path_of

logger = logging.getLogger("objcat")

READ_GROUPS_MAX, READ_BYTES_MAX, REWRITTEN_BYTES_MAX = 1024, 2 * 1024**3, 256 * 1024**2
"""Limits of a table whose keys one process may read, or (the last) which it may rewrite."""
LEARNED_ROWS_MAX = 8_000_000
"""Rows whose keys one lookup reads to teach them to an index of another package. It reads file groups with more as it does without."""
COMPUTED_AGAIN = (
    "Spark lost its cached copy of the DataFrame and recomputed different rows. Nothing was written. Call df.checkpoint() before you "
    "write it."
)
"""The error if the written rows are not those that were looked up."""


@dataclass(frozen=True, slots=True)
class LookupContext:
    """What a lookup may read.

    Args:
        live: the file groups of all partitions that may store the keys.
        earlier: file groups in which the transaction has already written.
        index: what it has already written to the record index, in order.
        within: the partitions to which rows with new keys may go. None: any.
    """

    fileio: FileIO
    manifests: Manifests
    snapshot: Snapshot
    live: Mapping[FileGroupId, FileGroup]
    earlier: Collection[FileGroupId] = ()
    index: Sequence[LogObject] = ()
    within: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The result of an index lookup. group_ids: those that `located` numbers. All of them exist."""

    located: KeyLocations
    group_ids: Sequence[FileGroupId]


class KeyIndex(Protocol):
    """How one index looks keys up. Called once per written batch, and again after a conflict.

    An index answers exactly: it finds every stored key with its file group, and no other key. It must not trust its own cache: `place` is
    the
    truth.
    """

    def find(self, place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> LookupResult:
        """The file groups of a batch's keys among `place.live`. The caller releases the result.

        task: without file groups. Raises InvalidBatch, NullKey and storage errors.
        """


class SimpleLookup:
    """Reads the keys of all file groups that may hold one of the batch, by file bounds and bloom filters."""

    def find(self, place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> LookupResult:
        """See `KeyIndex`."""
        with engine.capabilities.lookup.gathered(data, task.spec, task.previous_partitions) as gathered:
            return _read(place, engine, gathered, task, _candidates(place, gathered, task.spec))


def _read(
    place: LookupContext, engine: Engine[Any], gathered: BatchKeysHandle, task: WriteTask, group_ids: Collection[FileGroupId]
) -> LookupResult:
    """The file groups of a batch's keys among some existing file groups, from their files."""
    groups = groups_of(place.live, group_ids)
    known = replace(gathered, files=place.manifests.of_files)
    return LookupResult(
        engine.capabilities.lookup.locate(known, LocateTask.of(task, list(groups.values()), is_first=not place.live)), list(groups)
    )


class MemoryLookup:
    """Caches the file groups of keys, for each handle that writes. Beyond the table's limit it reads keys."""

    def __init__(self) -> None:
        self._simple = SimpleLookup()
        self._maps: WeakKeyDictionary[Manifests, dict[str, KeyMap]] = WeakKeyDictionary()

    def find(self, place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> LookupResult:
        """See `KeyIndex`. Raises InvalidInput for a Spark batch."""
        spec = task.spec
        local = engine.capabilities.local_keys
        if local is None:
            raise InvalidInput(
                "The table has the memory index, which is in the process that writes, and Spark cannot read it. Nothing was written. "
                "Write rows of this process (frame.toArrow()), or create such tables with index=objcat.BloomIndex()."
            )
        if spec.is_global:
            # For a key that moves, the file group alone is not enough.
            return self._simple.find(place, engine, data, task)
        maps = self._maps.setdefault(place.manifests, {})
        known = maps.get(spec.table) or maps.setdefault(spec.table, KeyMap())
        with engine.capabilities.lookup.gathered(data, spec, task.previous_partitions) as gathered:
            found = known.locate(place.fileio, spec, place.live, local.keys_of(gathered), bytes_max=spec.memory_index_bytes)
            if found is not None:
                groups, group_ids = found
                return LookupResult(local.located_at(gathered, groups), group_ids)
        return self._simple.find(place, engine, data, task)


class RecordLookup:
    """Reads those buckets of the record index to which the keys of a batch hash.

    An entry of a missing file group is of rows that were removed whole, and is ignored. An entry of a file group that was removed and
    created
    again may be wrong: the key is stored nowhere. It is then written to that file group, which is as good as another. If keys move, or the
    batch is outside this process, the file groups that the index names are read. With too many keys to collect, all that bounds allow are
    read.
    """

    def find(self, place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> LookupResult:
        """See `KeyIndex`."""
        with engine.capabilities.lookup.gathered(data, task.spec, task.previous_partitions) as gathered:
            can = engine.capabilities
            if can.local_keys is not None:
                return self._find(place, engine, gathered, can.local_keys.keys_of(gathered), task)
            keys = None if can.collectable_keys is None else can.collectable_keys.keys_told(gathered)
            if keys is None:
                return _read(place, engine, gathered, task, within_bounds(place, gathered.span.pruning))
            return self._find(place, engine, gathered, keys, task)

    def _find(self, place: LookupContext, engine: Engine[Any], gathered: BatchKeysHandle, keys: BatchKeys, task: WriteTask) -> LookupResult:
        known, group_ids = self._known(place, keys, task.spec)
        local = engine.capabilities.local_keys
        if task.spec.is_global or local is None:
            return _read(place, engine, gathered, task, group_ids)
        return LookupResult(local.located_at(gathered, matched(known, [group_id.partition for group_id in group_ids], keys)), group_ids)

    def _known(self, place: LookupContext, keys: BatchKeys, spec: TableSpec) -> tuple[pa.Table, list[FileGroupId]]:
        """Like `groups_known`, for existing file groups."""
        index = place.snapshot.index
        assert index is not None, "the table has no record index"
        buckets = np.unique(np.mod(keys.hashes, np.int32(index.spec.index.count))).tolist()
        groups = {group_id: FileGroup(group_id) for group_id in (group_id_of(index.spec, bucket) for bucket in buckets)}
        groups |= {group.group_id: group for group in index.file_groups(place.manifests, group_ids=frozenset(groups))}
        _lay_over(groups, place.index, slot=place.snapshot.slot + 1)
        known, group_ids = groups_known(place.fileio, index.spec, tuple(groups.values()), keys, count=spec.index.count)
        kept = np.array([group_id in place.live for group_id in group_ids], np.bool_)
        return only_groups(known, kept), [group_id for group_id, is_kept in zip(group_ids, kept.tolist(), strict=True) if is_kept]


def _lay_over(groups: dict[FileGroupId, FileGroup], logs: Sequence[LogObject], *, slot: int) -> None:
    """Add what the transaction has already written to the index, as if that were committed at `slot`."""
    for log in logs:
        for rows in log.slices:
            group = groups.get(rows.group_id)
            if group is not None:
                groups[rows.group_id] = replace(group, logs=(*group.logs, LogSlice(slot, log, rows.start, rows.end, rows.group_id, slot)))


class PluginLookup:
    """Asks the index of another package, if the table names one, and reads what it does not know.

    Without the package, after a failure of it, and where the keys stay on workers, files are read as by `SimpleLookup`.
    """

    def find(self, place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> LookupResult:
        """See `KeyIndex`."""
        with engine.capabilities.lookup.gathered(data, task.spec, task.previous_partitions) as gathered:
            try:
                index = open_index(task.spec.properties)
                found = None if index is None else self._find(place, engine, gathered, task, index)
            except (PluginMissing, PluginFailed) as error:
                logger.warning("%s: keys are looked up in the files of the table. %s", place.fileio.url, error)
                found = None
            return found or _read(place, engine, gathered, task, _candidates(place, gathered, task.spec))

    def _find(
        self, place: LookupContext, engine: Engine[Any], gathered: BatchKeysHandle, task: WriteTask, index: NamedIndex
    ) -> LookupResult | None:
        """None when the keys are not in this process."""
        local, collectable = engine.capabilities.local_keys, engine.capabilities.collectable_keys
        keys = local.keys_of(gathered) if local is not None else None if collectable is None else collectable.keys_told(gathered)
        if keys is None:
            return None
        group_ids = _candidates(place, gathered, task.spec)
        pieces = [piece for group in groups_of(place.live, group_ids).values() for piece in _pieces(group)]
        hits, unread = _hits(place.fileio, task.spec, index, keys, pieces)
        if local is None or task.spec.is_global or unread:
            return _read(place, engine, gathered, task, _touched(pieces, hits, unread))
        numbers = {group_id: number for number, group_id in enumerate(group_ids)}
        groups = np.array([numbers[piece.group_id] for piece in pieces], np.int64)
        codes = {text: code for code, text in enumerate(keys.texts)}
        partitions = np.array([codes[piece.group_id.partition] for piece in pieces], np.int64)
        own = partitions[hits.files] == keys.partition[hits.keys] if pieces else np.zeros(0, np.bool_)
        located = np.full(keys.rows.num_rows, NOWHERE, np.int64)
        located[hits.keys[own]] = groups[hits.files[own]]
        if bool((located[hits.keys[own]] != groups[hits.files[own]]).any()):
            # A key is in one file group of its partition, so two have keys of the same digest. The files say which has this one.
            return _read(place, engine, gathered, task, _touched(pieces, hits, unread))
        return LookupResult(local.located_at(gathered, located), group_ids)


def _touched(pieces: Sequence[FileGroup], hits: FoundKeys, unread: Sequence[FileGroup]) -> Sequence[FileGroupId]:
    """The file groups that may hold a key by what an index answered, sorted."""
    return sorted({pieces[number].group_id for number in hits.files.tolist()} | {piece.group_id for piece in unread})


def _candidates(place: LookupContext, gathered: BatchKeysHandle, spec: TableSpec) -> Sequence[FileGroupId]:
    """File groups that may hold a key of the batch, judged by file bounds and partitions, sorted."""
    candidates = within_bounds(place, gathered.span.pruning)
    if spec.is_global:
        return candidates
    # Equal keys in two partitions are two rows.
    return [group_id for group_id in candidates if group_id.partition in gathered.span.partitions]


def _pieces(group: FileGroup) -> Iterator[FileGroup]:
    """A file group for each of its files, with that file alone."""
    if group.base is not None:
        yield replace(group, logs=())
    for part in group.logs:
        yield replace(group, base=None, logs=(part,))


def _file_of(spec: TableSpec, piece: FileGroup) -> KeyFile:
    if piece.base is not None:
        return KeyFile(path_of(spec, piece.base.path))
    (part,) = piece.logs
    return KeyFile(path_of(spec, part.object.path), part.start, part.end)


def _rows_of(piece: FileGroup) -> int:
    return piece.base.rows if piece.base is not None else sum(part.rows for part in piece.logs)


def _hits(
    fileio: FileIO, spec: TableSpec, index: NamedIndex, keys: BatchKeys, pieces: Sequence[FileGroup]
) -> tuple[FoundKeys, list[FileGroup]]:
    """Which keys are in which pieces, and the pieces that were not asked. Teaches the index up to `LEARNED_ROWS_MAX` rows.

    Raises PluginFailed, CorruptTable and storage errors.
    """
    files = [_file_of(spec, piece) for piece in pieces]
    digests = key_digests(keys.rows.columns)
    found = index.find(digests, files)
    numbers = {file: number for number, file in enumerate(files)}
    unknown = sorted({numbers[file] for file in found.unknown})
    held = ~np.isin(found.files, unknown)
    hits = [(found.keys[held], found.files[held])]
    learned = np.cumsum([_rows_of(pieces[number]) for number in unknown]) <= LEARNED_ROWS_MAX
    learning = [number for number, is_learned in zip(unknown, learned.tolist(), strict=True) if is_learned]
    left = [number for number, is_learned in zip(unknown, learned.tolist(), strict=True) if not is_learned]
    for number, own in _digests_of(fileio, spec, [pieces[number] for number in learning]):
        index.add(files[learning[number]], own)
        here = np.flatnonzero(np.isin(digests, own))
        hits.append((here, np.full(len(here), learning[number], np.int64)))
    both = FoundKeys(np.concatenate([one for one, _ in hits]), np.concatenate([one for _, one in hits]), ())
    return both, [pieces[number] for number in left]


def _digests_of(fileio: FileIO, spec: TableSpec, pieces: Sequence[FileGroup]) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
    """By number, the digests of the keys of some pieces, ascending, each once. Holds those of `LEARNED_ROWS_MAX` rows."""
    found: dict[int, list[npt.NDArray[np.uint64]]] = {number: [] for number in range(len(pieces))}
    for rows in known_keys(fileio, LocateTask(spec, tuple(pieces))) if pieces else ():
        at = rows.column(PLACE_COLUMN).to_numpy()
        digests = key_digests(rows.drop_columns([PLACE_COLUMN]).columns)
        for number in np.unique(at).tolist():
            found[number].append(digests[at == number])
    for number, parts in found.items():
        yield number, _distinct(b"".join(part.tobytes() for part in parts))


LOOKUPS: Mapping[type, KeyIndex] = {
    SimpleIndexSpec: PluginLookup(),
    BloomIndexSpec: PluginLookup(),
    MemoryIndexSpec: MemoryLookup(),
    RecordIndexSpec: RecordLookup(),
}
"""The lookup of each kind of index."""


def within_bounds(place: LookupContext, where: Pruning | None) -> Sequence[FileGroupId]:
    """File groups that may hold a key of the batch, judged by file bounds, sorted."""
    live = place.live
    if where is None:
        return sorted(live)
    partitions = live.partitions if isinstance(live, FileGroupMap) else {group_id.partition for group_id in live}
    kept = {group.group_id for group in place.snapshot.file_groups(place.manifests, where=where, partitions=partitions)}
    return sorted(group_id for group_id in kept.union(place.earlier) if group_id in live)


def write_with_index_lookup(place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> WriteResult:
    """Look up the keys of a batch, choose file groups for new keys, and write it. Raises what the engine raises."""
    cache = engine.capabilities.batch_cache
    first = None if cache is None or place.live else cache.first(data, task.spec)
    if first is not None:
        return _write(place, engine, LookupResult(first, ()), task)
    kept = nullcontext((engine, data)) if cache is None else cache.kept(data, place.fileio, here=_is_little(place, task.spec))
    with kept as (locator, batch):
        found = LOOKUPS[type(task.spec.index)].find(place, locator, batch, task)
        try:
            return _write(place, locator, found, task)
        finally:
            found.located.release()


def _is_little(place: LookupContext, spec: TableSpec) -> bool:
    """Whether the lookup and write of a small batch are little work for this process, whatever the table holds."""
    if isinstance(spec.index, MemoryIndexSpec):
        return False
    if isinstance(spec.index, RecordIndexSpec) and not spec.is_global and not spec.rewrites:
        return True
    live = place.live
    size = live.bytes if isinstance(live, FileGroupMap) else sum(map(size_of, live.values()))
    return len(live) <= READ_GROUPS_MAX and size <= (REWRITTEN_BYTES_MAX if spec.rewrites else READ_BYTES_MAX)


def check_partitions(found: Collection[str], within: frozenset[str]) -> None:
    """Refuse rows of partitions that the batch did not name at first, because those were not read. Raises InvalidBatch."""
    if not within.issuperset(found):
        raise InvalidBatch(
            "The batch gave rows of other partitions when it was computed again. Nothing was written. Cache or checkpoint the "
            "DataFrame before you write it."
        )


def groups_of(live: Mapping[FileGroupId, FileGroup], group_ids: Collection[FileGroupId]) -> dict[FileGroupId, FileGroup]:
    """The file groups of some file group ids."""
    return live.of(group_ids) if isinstance(live, FileGroupMap) else {group_id: live[group_id] for group_id in group_ids}


def _write(place: LookupContext, engine: Engine[Any], found: LookupResult, task: WriteTask) -> WriteResult:
    live, located, group_ids = place.live, found.located, found.group_ids
    if place.within is not None:
        check_partitions(located.new, place.within)
    targets = groups_for_new_keys(task.spec, located.new, live, lambda: int(place.fileio.env.new_id(), 16))
    numbers = {group_id: number for number, group_id in enumerate(group_ids)}
    numbered = {
        partition: tuple(numbers.setdefault(group_id, len(numbers)) for group_id in chosen) for partition, chosen in targets.items()
    }
    touched = {group_ids[number] for number in located.found} | {group_id for chosen in targets.values() for group_id in chosen}
    there = {group_id for group_id in touched if group_id in live}
    groups = groups_of(live, there) if task.spec.rewrites else {}
    written = engine.capabilities.lookup.write_placed(
        located, numbered, replace(task, group_ids=tuple(numbers), live_group_ids=frozenset(there), groups=groups)
    )
    _check_placed(written, located, touched)
    # The delete of a key in its previous file group is not a row of the batch.
    return msgspec.structs.replace(written, rows=written.rows - located.left, moved=located.moved)


def _check_placed(written: WriteResult, located: KeyLocations, touched: Collection[FileGroupId]) -> None:
    """Refuse files made from other rows than those looked up. A file group in which no key was found was not read, and would be lost.

    Raises InvalidBatch.
    """
    group_ids = {base.group_id for base in written.bases} | {one.group_id for one in written.rewritten}
    group_ids |= {rows.group_id for log in written.logs for rows in log.slices}
    if not group_ids <= set(touched) or located.rows not in (None, written.rows):
        raise InvalidBatch(COMPUTED_AGAIN)


def keys_of(fileio: FileIO, txn: Txn, written: Sequence[WriteResult], *, kept: bytes = b"") -> Keys:
    """The digests of inserted and moved keys, and of the other keys, for an entry. Many go to a side object. Raises storage errors.

    kept: digests of keys whose rows stay as they are, on which the write depends.
    """
    placed = _distinct(b"".join(result.placed for result in written))
    updated = np.setdiff1d(_distinct(b"".join([*(result.updated for result in written), kept])), placed, assume_unique=True)
    return Keys(*(put_digests(fileio, txn, found.tobytes()) if len(found) else Digests() for found in (placed, updated)))


def _distinct(digests: bytes) -> npt.NDArray[np.uint64]:
    """The distinct digests, ascending. (`np.unique` hashes integers, which is many times slower.)"""
    found: npt.NDArray[np.uint64] = np.sort(np.frombuffer(digests, "<u8"))
    is_first = np.ones(len(found), np.bool_)
    is_first[1:] = found[1:] != found[:-1]
    return found[is_first]
