"""Deletes objects of a mirror: those that no readable slot names, and all that were written before an erasure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fileio.contract import ObjectMeta
from fileio.errors import NotFound
from objcat.mirror.iceberg.avro import DELETES, decode_avro
from objcat.mirror.iceberg.manifests import Manifest, ManifestReader
from objcat.mirror.iceberg.objects import MirrorObjects, slot_of_pointer, slot_written_for
from objcat.mirror.iceberg.table_metadata import mirrored_slot
from objcat.mirror.iceberg.types import Record


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
    deletes: dict[str, Manifest] = {}
    for uri in sorted(lists):
        for record in _records(objects, uri):
            found.add(objects.path_of(record["manifest_path"]))
            if record["content"] == DELETES:
                deletes[record["manifest_path"]] = Manifest(record)
    return found | {objects.path_of(entry["data_file"]["file_path"]) for entry in _entries(reader, deletes.values())}


def _records(objects: MirrorObjects, uri: str) -> list[Record]:
    try:
        return decode_avro(objects.read(uri))
    except NotFound:
        return []  # An earlier expiry was cut off, or the snapshot is of a slot that was forgotten.


def _entries(reader: ManifestReader, manifests: Iterable[Manifest]) -> Iterable[Record]:
    for manifest in manifests:
        try:
            yield from reader.entries(manifest)
        except NotFound:
            continue
