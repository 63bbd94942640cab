"""Deletes objects of a mirror: those that no readable metadata file names, and all that were written before an erasure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TypeVar

from fileio.contract import ObjectMeta
from fileio.env import map_io
from objcat.mirror.iceberg.avro import DELETES, decode_avro
from objcat.mirror.iceberg.manifests import Manifest, ManifestReader, batches
from objcat.mirror.iceberg.objects import MirrorObjects, slot_of_pointer, slot_written_for
from objcat.mirror.iceberg.pointers import Pointers
from objcat.mirror.iceberg.table_metadata import current_snapshot, mirrored_slot, oldest_slot
from objcat.mirror.iceberg.types import Record
from objcat.mirror.model import CorruptMirror

T = TypeVar("T")
_READ_AT_ONCE = 16


def delete_unnamed(
    objects: MirrorObjects, reader: ManifestReader, document: Record, pointers: Pointers, *, modified_before_ms: int, forgotten: int = 0
) -> int:
    """Delete metadata files that are old and that the newest one has no snapshot of, and objects that none of the others names.

    Metadata files go before what they name. So a reader finds all that a metadata file names, or no metadata file.

    Args:
        objects: of the mirror.
        reader: of manifests of deletes.
        document: the newest metadata file.
        pointers: reads other metadata files.
        modified_before_ms: Younger objects stay. A process that writes a slot may be about to name them, or reads a metadata file.
        forgotten: What was written for slots below it goes, however young: an erasure has forgotten them.

    Returns:
        How many objects were deleted.
    """
    listed = list(_listed(objects))
    snapshots = {snapshot["snapshot-id"] - 1 for snapshot in document["snapshots"]}
    newest = mirrored_slot(document).slot
    kept = {
        slot
        for name, meta in listed
        if (slot := slot_of_pointer(name)) is not None
        and (slot >= newest or slot in snapshots or (meta.modified_ms >= modified_before_ms and slot >= forgotten))
    }
    named = _Named(objects, reader, document)
    first = _first_of_recent(document, kept, {slot for slot in kept if slot not in snapshots})
    for slot in sorted(kept):
        # The saved ones, and the oldest of the others. What later ones name is named by that one, or was written after it.
        other = pointers.read(slot)
        if other is not None:
            named.add(other)
        if other is not None and slot >= first:
            first = slot
            break

    def is_due(name: str, meta: ObjectMeta) -> bool:
        slot = slot_of_pointer(name)
        if slot is not None:
            return slot not in kept
        written_for = slot_written_for(name)
        assert written_for is not None
        # Of a slot whose manifest list was read, it is known what belongs to it. Others may be of metadata files that were not read.
        is_known = written_for <= first or written_for in named.slots
        is_old = written_for < forgotten or (meta.modified_ms < modified_before_ms and is_known)
        return is_old and meta.key not in named.keys

    return _delete(objects, listed, is_due)


def _first_of_recent(document: Record, kept: Collection[int], young: Collection[int]) -> int:
    """The oldest metadata file that stays for another reason than a savepoint.

    kept: slots of metadata files that stay. young: those of them that the newest one has no snapshot of.
    """
    parents = {one["snapshot-id"]: one.get("parent-snapshot-id") for one in document["snapshots"]}
    recent, at = set(young), document["current-snapshot-id"]
    while at in parents:
        recent.add(at - 1)
        at = parents[at]
    return min(recent.intersection(kept), default=mirrored_slot(document).slot)


def oldest_named(objects: MirrorObjects, reader: ManifestReader, document: Record) -> int:
    """The oldest slot that an object was written for which a snapshot of a metadata file names, or the oldest slot of a snapshot."""
    prefix = objects.key("")
    named = _Named(objects, reader, document)
    written_for = (slot_written_for(key.removeprefix(prefix)) for key in named.keys)
    return min(*named.slots, *(slot for slot in written_for if slot is not None))


def delete_before(objects: MirrorObjects, slot: int) -> int:
    """Delete all objects that were written for slots before one, whatever names them. Returns how many."""

    def is_due(name: str, _: ObjectMeta) -> bool:
        written_for = slot_written_for(name)
        return written_for is not None and written_for < slot

    # A process that wrote such a slot meanwhile finds that the mirror began again, and deletes what it wrote. If it died, this does.
    return _delete(objects, _listed(objects), is_due) + _delete(objects, _listed(objects), is_due)


def _listed(objects: MirrorObjects) -> Iterator[tuple[str, ObjectMeta]]:
    """All objects of a mirror, by their names below `metadata/`, except the hint."""
    prefix = objects.key("")
    for page in objects.fileio.list(prefix):
        for meta in page.objects:
            name = meta.key.removeprefix(prefix)
            if slot_written_for(name) is not None:
                yield name, meta


def _delete(objects: MirrorObjects, listed: Iterable[tuple[str, ObjectMeta]], is_due: Callable[[str, ObjectMeta], bool]) -> int:
    pointers: list[str] = []
    others: list[str] = []
    for name, meta in listed:
        if is_due(name, meta):
            (others if slot_of_pointer(name) is None else pointers).append(meta.key)
    for keys in (pointers, others):
        for result in objects.fileio.delete(keys):
            if result.error is not None:
                raise result.error
    return len(pointers) + len(others)


class _Named:
    """All objects that snapshots of metadata files name.

    Snapshots of slots that are not readable any more are left out: their data files may be gone.

    Args:
        objects: of the mirror.
        reader: of manifests of deletes.
        newest: the newest metadata file.

    Attributes:
        keys: of the objects.
        slots: of the snapshots.
    """

    def __init__(self, objects: MirrorObjects, reader: ManifestReader, newest: Record) -> None:
        self._objects = objects
        self._reader = reader
        self._oldest = oldest_slot(newest)
        self._saved = {one["snapshot-id"] for one in newest["snapshots"]}
        self._manifests: set[str] = set()
        self.keys: set[str] = set()
        self.slots: set[int] = set()
        snapshot = current_snapshot(newest)
        assert snapshot is not None
        self._add([snapshot], is_needed=True)
        self.add(newest)

    def add(self, document: Record) -> None:
        """Add what another metadata file names."""
        wanted = [one for one in document["snapshots"] if one["snapshot-id"] > self._oldest or one["snapshot-id"] in self._saved]
        self._add(wanted, is_needed=False)

    def _add(self, snapshots: Iterable[Record], *, is_needed: bool) -> None:
        """is_needed: raises CorruptMirror for what is missing. Older snapshots may lack objects."""
        some = list(snapshots)
        self.slots |= {one["snapshot-id"] - 1 for one in some}
        lists = sorted({one["manifest-list"] for one in some if self._objects.path_of(one["manifest-list"]) not in self.keys})
        self.keys |= {self._objects.path_of(uri) for uri in lists}
        records = chain.from_iterable(self._read(partial(_records, self._objects), lists, is_needed=is_needed))
        manifests = {record["manifest_path"]: Manifest(record) for record in records if record["manifest_path"] not in self._manifests}
        self._manifests |= manifests.keys()
        self.keys |= {self._objects.path_of(uri) for uri in manifests}
        deletes = [manifest for manifest in manifests.values() if manifest.record["content"] == DELETES]
        for entries in self._read(self._reader.entries, deletes, is_needed=is_needed):
            self.keys |= {self._objects.path_of(entry["data_file"]["file_path"]) for entry in entries}

    def _read(self, read: Callable[[T], list[Record]], items: Iterable[T], *, is_needed: bool) -> Iterator[list[Record]]:
        """What objects hold, read beside each other."""

        def one(item: T) -> list[Record]:
            try:
                return read(item)
            except CorruptMirror:
                if is_needed:
                    raise
                return []

        for some in batches(items, _READ_AT_ONCE):
            yield from map_io(self._objects.fileio.env, one, some)


def _records(objects: MirrorObjects, uri: str) -> list[Record]:
    try:
        return decode_avro(objects.read(uri))
    except ValueError as error:
        raise CorruptMirror(f"The manifest list {uri} cannot be read ({error}). Make the mirror again from the table.") from error
