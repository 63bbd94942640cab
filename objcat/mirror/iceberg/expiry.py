"""Deletes objects of a mirror: those that no readable slot names, and all that were written before an erasure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fileio.contract import ObjectMeta
from objcat.mirror.iceberg.avro import DELETES, decode_avro
from objcat.mirror.iceberg.manifests import Manifest, ManifestReader
from objcat.mirror.iceberg.objects import MirrorObjects, slot_of_pointer, slot_written_for
from objcat.mirror.iceberg.table_metadata import current_snapshot, mirrored_slot
from objcat.mirror.iceberg.types import Record
from objcat.mirror.model import CorruptMirror


def delete_unnamed(objects: MirrorObjects, reader: ManifestReader, document: Record, *, modified_before_ms: int) -> int:
    """Delete objects that no snapshot of the newest metadata file names. Returns how many.

    Metadata files go before what they name. So a reader finds all that a metadata file names, or no metadata file.

    Args:
        objects: of the mirror.
        reader: of manifests of deletes.
        document: the newest metadata file.
        modified_before_ms: Younger objects stay. A process that writes a slot may be about to name them.
    """
    slots = {snapshot["snapshot-id"] - 1 for snapshot in document["snapshots"]}
    newest = mirrored_slot(document).slot
    named = _named(objects, reader, document)

    def is_due(name: str, meta: ObjectMeta) -> bool:
        if meta.modified_ms >= modified_before_ms:
            return False
        slot = slot_of_pointer(name)
        return meta.key not in named if slot is None else slot < newest and slot not in slots

    return _delete(objects, is_due)


def oldest_named(objects: MirrorObjects, reader: ManifestReader, document: Record) -> int:
    """The oldest slot that an object was written for which a snapshot of a metadata file names, or the oldest slot of a snapshot."""
    prefix = objects.key("")
    written_for = (slot_written_for(key.removeprefix(prefix)) for key in _named(objects, reader, document))
    slots: list[int] = [snapshot["snapshot-id"] - 1 for snapshot in document["snapshots"]]
    return min(*slots, *(slot for slot in written_for if slot is not None))


def delete_before(objects: MirrorObjects, slot: int) -> int:
    """Delete all objects that were written for slots before one, whatever names them. Returns how many."""

    def is_due(name: str, _: ObjectMeta) -> bool:
        written_for = slot_written_for(name)
        return written_for is not None and written_for < slot

    # A process that wrote such a slot meanwhile finds that the mirror began again, and deletes what it wrote. If it died, this does.
    return _delete(objects, is_due) + _delete(objects, is_due)


def _delete(objects: MirrorObjects, is_due: Callable[[str, ObjectMeta], bool]) -> int:
    prefix = objects.key("")
    pointers: list[str] = []
    others: list[str] = []
    for page in objects.fileio.list(prefix):
        for meta in page.objects:
            name = meta.key.removeprefix(prefix)
            if slot_written_for(name) is not None and is_due(name, meta):
                (others if slot_of_pointer(name) is None else pointers).append(meta.key)
    for keys in (pointers, others):
        for result in objects.fileio.delete(keys):
            if result.error is not None:
                raise result.error
    return len(pointers) + len(others)


def _named(objects: MirrorObjects, reader: ManifestReader, document: Record) -> set[str]:
    """The keys of all objects that the snapshots of a metadata file name."""
    lists = {snapshot["manifest-list"] for snapshot in document["snapshots"]}
    found = {objects.path_of(uri) for uri in lists}
    newest = current_snapshot(document)
    assert newest is not None
    manifests: dict[str, Manifest] = {}
    needed: set[str] = set()
    for uri in sorted(lists):
        is_newest = uri == newest["manifest-list"]
        for record in _readable(partial(_records, objects, uri), is_needed=is_newest):
            manifests[record["manifest_path"]] = Manifest(record)
            if is_newest:
                needed.add(record["manifest_path"])
    found |= {objects.path_of(uri) for uri in manifests}
    for uri, manifest in manifests.items():
        if manifest.record["content"] == DELETES:
            entries = _readable(partial(reader.entries, manifest), is_needed=uri in needed)
            found |= {objects.path_of(entry["data_file"]["file_path"]) for entry in entries}
    return found


def _records(objects: MirrorObjects, uri: str) -> list[Record]:
    try:
        return decode_avro(objects.read(uri))
    except ValueError as error:
        raise CorruptMirror(f"The manifest list {uri} cannot be read ({error}). Make the mirror again from the table.") from error


def _readable(read: Callable[[], list[Record]], *, is_needed: bool) -> list[Record]:
    """What an object of a snapshot holds. Older snapshots may lack objects, so only the newest one must have all."""
    try:
        return read()
    except CorruptMirror:
        if is_needed:
            raise
        return []
