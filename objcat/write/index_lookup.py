"""Writing where the index is no hash: keys are looked up, those that are new get file groups, and then rows are written as under any
index."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.store import FileIO
from objcat.errors import InvalidBatch, InvalidInput
from objcat.metadata.file_groups import FileGroupMap
from objcat.metadata.files import FileGroup, LogObject, LogSlice
from objcat.metadata.key_index_table import group_id_of
from objcat.metadata.manifest import Manifests, Pruning
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import BloomIndexSpec, MemoryIndexSpec, RecordIndexSpec, SimpleIndexSpec, TableSpec
from objcat.tasks.key_cache import KeyMap
from objcat.tasks.key_index import groups_known, only_groups
from objcat.tasks.key_lookup import BatchKeys, BatchKeysHandle, KeyLocations, LocateTask, matched
from objcat.tasks.model import WriteResult, WriteTask
from objcat.timeline.entry import Digests, FileGroupId, Keys, Txn
from objcat.timeline.side_objects import put_digests
from objcat.write.engine import Engine
from objcat.write.file_sizing import groups_for_new_keys, size_of

READ_GROUPS_MAX, READ_BYTES_MAX, REWRITTEN_BYTES_MAX = 1024, 2 * 1024**3, 256 * 1024**2
"""Of a table, so that all of its keys may be read by the process that writes; or that it may be written anew by it."""
COMPUTED_AGAIN = (
    "the batch gave other rows when it was computed again, as Spark had lost what it kept of it: checkpoint the frame before you write it; "
    "nothing was written"
)
"""What a write is told whose rows are not those that were looked at."""


@dataclass(frozen=True, slots=True)
class LookupContext:
    """Where a batch is written. live: the file groups of all partitions in which its keys may live. earlier: file groups in which the
    transaction has written before. index: what it has written to the record index before, in order. within: the
    partitions to which rows with new keys may go; None: any."""

    fileio: FileIO
    manifests: Manifests
    snapshot: Snapshot
    live: Mapping[FileGroupId, FileGroup]
    earlier: Collection[FileGroupId] = ()
    index: Sequence[LogObject] = ()
    within: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class LookupResult:
    """What an index knows of a batch. group_ids: those that `located` numbers; all of them have a file group."""

    located: KeyLocations
    group_ids: Sequence[FileGroupId]


class KeyIndex(Protocol):
    """How one index finds out where keys live. It is asked once for each batch that is written, and again when a race was lost.

    An index answers exactly: a key that lives somewhere is found, with the file group that it lives in, and no other is. What it keeps of
    its own it has to distrust: `place` says what holds.
    """

    def find(self, place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> LookupResult:
        """Where the keys of a batch live among `place.live`. task: without file groups. Raises InvalidBatch, NullKey and storage errors;
        what was found is released by the caller."""


class SimpleLookup:
    """Reads the keys of all file groups that may hold one of the batch, by the bounds of their files; and by their bloom filters."""

    def find(self, place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> LookupResult:
        """As of `KeyIndex`."""
        with engine.capabilities.lookup.gathered(data, task.spec, task.former_partitions) as gathered:
            candidates = within_bounds(place, gathered.span.pruning)
            if not task.spec.is_global:
                # Equal keys in two partitions are two rows.
                candidates = [group_id for group_id in candidates if group_id.partition in gathered.span.partitions]
            return _read(place, engine, gathered, task, candidates)


def _read(
    place: LookupContext, engine: Engine[Any], gathered: BatchKeysHandle, task: WriteTask, group_ids: Collection[FileGroupId]
) -> LookupResult:
    """Where the keys of a batch live among some file groups with a file group, as its files say."""
    groups = groups_of(place.live, group_ids)
    known = replace(gathered, files=place.manifests.of_files)
    return LookupResult(
        engine.capabilities.lookup.locate(known, LocateTask.of(task, list(groups.values()), is_first=not place.live)), list(groups)
    )


class MemoryLookup:
    """Remembers where keys live, for each handle that writes. Beyond the bound that the table sets it reads keys."""

    def __init__(self) -> None:
        self._simple = SimpleLookup()
        self._maps: WeakKeyDictionary[Manifests, dict[str, KeyMap]] = WeakKeyDictionary()

    def find(self, place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> LookupResult:
        """As of `KeyIndex`. Raises InvalidInput for a batch of Spark's."""
        spec = task.spec
        local = engine.capabilities.local_keys
        if local is None:
            raise InvalidInput(
                "the table has the memory index, which is in the process that writes, where Spark cannot ask it: write rows of this "
                "process (frame.toArrow()), or create such tables with index=objcat.BloomIndex(); nothing was written"
            )
        if spec.is_global:
            # Of a key that moves more has to be known than where it is.
            return self._simple.find(place, engine, data, task)
        maps = self._maps.setdefault(place.manifests, {})
        known = maps.get(spec.table) or maps.setdefault(spec.table, KeyMap())
        with engine.capabilities.lookup.gathered(data, spec, task.former_partitions) as gathered:
            found = known.locate(place.fileio, spec, place.live, local.keys_of(gathered), bytes_max=spec.memory_index_bytes)
            if found is not None:
                groups, group_ids = found
                return LookupResult(local.located_at(gathered, groups), group_ids)
        return self._simple.find(place, engine, data, task)


class RecordLookup:
    """Reads the record index, of which it opens the buckets that the keys of a batch hash to.

    An entry for a file group without a file group is of rows that were taken away whole, and means nothing. One for a file group that was
    taken away and began anew may be wrong in that the key is nowhere: it is then written to that file group, where it is as good as in
    another. Where keys move, and of a batch that is not in this process, the file groups that the index names are read. Of one with more
    keys than are told, all are that bounds leave."""

    def find(self, place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> LookupResult:
        """As of `KeyIndex`."""
        with engine.capabilities.lookup.gathered(data, task.spec, task.former_partitions) as gathered:
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
        """As `groups_known`, of file groups that have a file group."""
        index = place.snapshot.index
        assert index is not None, "a table with the record index has one"
        buckets = np.unique(np.mod(keys.hashes, np.int32(index.spec.index.count))).tolist()
        groups = {group_id: FileGroup(group_id) for group_id in (group_id_of(index.spec, bucket) for bucket in buckets)}
        groups |= {group.group_id: group for group in index.file_groups(place.manifests, group_ids=frozenset(groups))}
        _lay_over(groups, place.index, slot=place.snapshot.slot + 1)
        known, group_ids = groups_known(place.fileio, index.spec, tuple(groups.values()), keys, count=spec.index.count)
        kept = np.array([group_id in place.live for group_id in group_ids], np.bool_)
        return only_groups(known, kept), [group_id for group_id, is_kept in zip(group_ids, kept.tolist(), strict=True) if is_kept]


def _lay_over(groups: dict[FileGroupId, FileGroup], logs: Sequence[LogObject], *, slot: int) -> None:
    """The file groups of an index with what the transaction has written to it before, as if that were committed at `slot`."""
    for log in logs:
        for rows in log.slices:
            group = groups.get(rows.group_id)
            if group is not None:
                groups[rows.group_id] = replace(group, logs=(*group.logs, LogSlice(slot, log, rows.start, rows.end, rows.group_id, slot)))


LOOKUPS: Mapping[type, KeyIndex] = {
    SimpleIndexSpec: SimpleLookup(),
    BloomIndexSpec: SimpleLookup(),
    MemoryIndexSpec: MemoryLookup(),
    RecordIndexSpec: RecordLookup(),
}
"""How keys are found, by what a table keeps of its index."""


def within_bounds(place: LookupContext, where: Pruning | None) -> Sequence[FileGroupId]:
    """The file groups of which the bounds of files do not say that they hold no key of a batch, in order."""
    live = place.live
    if where is None:
        return sorted(live)
    partitions = live.partitions if isinstance(live, FileGroupMap) else {group_id.partition for group_id in live}
    kept = {group.group_id for group in place.snapshot.file_groups(place.manifests, where=where, partitions=partitions)}
    return sorted(group_id for group_id in kept.union(place.earlier) if group_id in live)


def write_with_index_lookup(place: LookupContext, engine: Engine[Any], data: Any, task: WriteTask) -> WriteResult:
    """Write a batch: look its keys up, choose file groups for those that are new, and run the task.

    engine: of the batch; it looks up keys. task: without file groups. Raises what the engine raises.
    """
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
    """Whether looking the keys of a small batch up, and writing it, is little work for this process, whatever the table holds."""
    if isinstance(spec.index, MemoryIndexSpec):
        return False
    if isinstance(spec.index, RecordIndexSpec) and not spec.is_global and not spec.rewrites:
        return True
    live = place.live
    size = live.bytes if isinstance(live, FileGroupMap) else sum(map(size_of, live.values()))
    return len(live) <= READ_GROUPS_MAX and size <= (REWRITTEN_BYTES_MAX if spec.rewrites else READ_BYTES_MAX)


def check_partitions(found: Collection[str], within: frozenset[str]) -> None:
    """Refuse rows of partitions that the batch did not name when it was asked for them: what is in these was not looked at. Raises
    InvalidBatch."""
    if not within.issuperset(found):
        raise InvalidBatch(
            "the batch gave rows of other partitions when it was computed again: cache or checkpoint the frame before you write it; "
            "nothing was written"
        )


def groups_of(live: Mapping[FileGroupId, FileGroup], group_ids: Collection[FileGroupId]) -> dict[FileGroupId, FileGroup]:
    """The file groups of some file groups that have one."""
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
    # What ends a row where its key was is no row of the batch.
    return msgspec.structs.replace(written, rows=written.rows - located.left, moved=located.moved)


def _check_placed(written: WriteResult, located: KeyLocations, touched: Collection[FileGroupId]) -> None:
    """Refuse what was written from other rows than those that were located: a file group that no row was found in was not looked at, and
    would end. Raises InvalidBatch."""
    group_ids = {base.group_id for base in written.bases} | {one.group_id for one in written.rewritten}
    group_ids |= {rows.group_id for log in written.logs for rows in log.slices}
    if not group_ids <= set(touched) or located.rows not in (None, written.rows):
        raise InvalidBatch(COMPUTED_AGAIN)


def keys_of(fileio: FileIO, txn: Txn, written: Sequence[WriteResult]) -> Keys:
    """The keys that were placed, and the others, as an entry names them. Writes a side object for many. Raises storage errors."""
    placed = _distinct(b"".join(result.placed for result in written))
    updated = np.setdiff1d(_distinct(b"".join(result.updated for result in written)), placed, assume_unique=True)
    return Keys(*(put_digests(fileio, txn, found.tobytes()) if len(found) else Digests() for found in (placed, updated)))


def _distinct(digests: bytes) -> npt.NDArray[np.uint64]:
    """The different ones, ascending. (`np.unique` hashes whole numbers, which takes many times as long.)"""
    found: npt.NDArray[np.uint64] = np.sort(np.frombuffer(digests, "<u8"))
    is_first = np.ones(len(found), np.bool_)
    is_first[1:] = found[1:] != found[:-1]
    return found[is_first]
