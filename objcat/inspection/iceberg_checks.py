"""Checks of what an Iceberg mirror holds: metadata files, manifest lists, manifests, position files and deletion vectors."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fileio.errors import NotFound
from objcat.inspection.findings import Finding
from objcat.inspection.mirror_slots import DAMAGE, MirrorUnderCheck
from objcat.mirror.iceberg.avro import DATA, DELETED, decode_avro
from objcat.mirror.iceberg.objects import MirrorObjects, pointer_name, slot_of_pointer
from objcat.mirror.iceberg.pointers import HINT
from objcat.mirror.iceberg.positions import decode_positions
from objcat.mirror.iceberg.table_metadata import TXN, current_snapshot, read_document
from objcat.mirror.iceberg.types import Record
from objcat.mirror.iceberg.vectors import decode_vector

_PUFFIN = b"PFA1"
_Inside: TypeAlias = int | Mapping[str, tuple[int, int, int]]
"""The rows of a position file; or of a Puffin file, by data file, where its vector begins, its bytes and its rows."""


def check_iceberg(mirror: MirrorUnderCheck) -> list[Finding]:
    """What is wrong with the metadata of the readable slots of a mirror. Raises storage errors.

    Masked positions are decoded, and not compared with the table.
    """
    check = _IcebergCheck(mirror)
    check.run()
    return check.findings


class _IcebergCheck:
    """Each object is read once, whatever number of snapshots name it."""

    def __init__(self, mirror: MirrorUnderCheck) -> None:
        self.findings: list[Finding] = []
        self._mirror = mirror
        self._fileio = mirror.folder.fileio
        self._objects = MirrorObjects(mirror.folder)
        prefix = self._objects.key("")
        self._names = {key.removeprefix(prefix) for key in self._fileio.list_keys(prefix)}
        self._seen: set[str] = set()
        self._inside: dict[str, _Inside | None] = {}

    def run(self) -> None:
        """Look at everything."""
        slots = {slot for name in self._names if (slot := slot_of_pointer(name)) is not None}
        found = {slot: self._document(slot) for slot in sorted(slots & self._mirror.txns.keys())}
        documents = {slot: document for slot, document in found.items() if document is not None}
        if documents:
            newest = max(documents)
            self._look_for_slots(documents[newest])
            self._check_snapshots(documents[newest]["snapshots"])
            if newest == self._mirror.newest:
                self._check_newest(documents[newest])
        for document in documents.values():
            snapshot = current_snapshot(document)
            self._check_snapshots([] if snapshot is None else [snapshot])
        self._check_hint()

    def _broken(self, key: str, says: str, error: BaseException | None = None) -> None:
        self.findings.append(self._mirror.broken(key, says, error))

    def _document(self, slot: int) -> Record | None:
        """The metadata file of a slot. None if it is damaged, gone, or was copied here from another place."""
        key = self._objects.key(pointer_name(slot))
        try:
            document = read_document(self._fileio.read(key), where=key, table=self._mirror.folder.table, slot=slot)
        except NotFound:
            return None
        except DAMAGE as error:
            self._broken(key, f"is not the metadata of slot {slot}: {error}", error)
            return None
        if document["location"] != self._objects.location:
            return None
        self.findings += self._mirror.check_txn(key, slot, document["properties"].get(TXN))
        return document

    def _look_for_slots(self, newest: Record) -> None:
        """Snapshots of readable slots have metadata files: readers by path want them."""
        for snapshot in newest["snapshots"]:
            slot = snapshot["snapshot-id"] - 1
            if slot in self._mirror.txns and pointer_name(slot) not in self._names:
                self._broken(self._objects.key(pointer_name(slot)), f"is missing: the metadata file of slot {slot}")

    def _check_hint(self) -> None:
        """Engines that read a table by its path begin with the hint."""
        if HINT in self._names:
            key = self._objects.key(HINT)
            said = self._fileio.read(key).strip()
            if not said.isdigit() or pointer_name(int(said) - 1) not in self._names:
                self._broken(key, f"says {said[:40]!r}, which is no metadata file of the mirror")

    # ---- what snapshots name

    def _check_snapshots(self, snapshots: Sequence[Record]) -> None:
        for snapshot in snapshots:
            slot = snapshot["snapshot-id"] - 1
            if slot in self._mirror.txns and snapshot["manifest-list"] not in self._seen:
                self._seen.add(snapshot["manifest-list"])
                self._check_list(snapshot["manifest-list"], f"slot {slot}")

    def _check_list(self, uri: str, named_by: str) -> None:
        """A manifest list, and all that it names."""
        for record in self._records(uri, named_by) or ():
            path = record["manifest_path"]
            if path in self._seen:
                continue
            self._seen.add(path)
            entries = self._records(path, named_by, size=record["manifest_length"])
            if entries is None:
                continue
            live = [entry["data_file"] for entry in entries if entry["status"] != DELETED]
            said = record["added_files_count"] + record["existing_files_count"]
            if said != len(live):
                self._broken(self._objects.path_of(path), f"has {len(live)} live entries, and {uri} says {said}")
            if record["content"] != DATA:
                self._check_deletes(live, named_by)

    def _records(self, uri: str, named_by: str, *, size: int | None = None) -> list[Record] | None:
        """The records of an Avro file. None if it is missing or damaged."""
        data = self._bytes(uri, named_by, size=size)
        try:
            return None if data is None else decode_avro(data)
        except DAMAGE as error:
            self._broken(self._objects.path_of(uri), f"cannot be read ({error}), and {named_by} names it")
            return None

    def _bytes(self, uri: str, named_by: str, *, size: int | None = None) -> bytes | None:
        """The bytes of an object. None if it is missing, or has another size."""
        key = self._objects.path_of(uri)
        try:
            found = self._fileio.read(key)
        except NotFound:
            self._broken(key, f"is missing, and {named_by} names it")
            return None
        if size is not None and size != len(found):
            self._broken(key, f"has {len(found)} bytes, and {named_by} names it with {size}")
            return None
        return found

    # ---- deletes

    def _check_deletes(self, files: Sequence[Record], named_by: str) -> None:
        """Position files, and vectors in Puffin files."""
        for file in files:
            uri = file["file_path"]
            if uri not in self._inside:
                self._inside[uri] = self._look_inside(file, named_by)
            inside = self._inside[uri]
            wrong = None if inside is None else _contradiction(inside, file)
            if wrong is not None:
                self._broken(self._objects.path_of(uri), f"{wrong}, and {named_by} names it")

    def _look_inside(self, file: Record, named_by: str) -> _Inside | None:
        """What a position file or a Puffin file holds. None if it cannot be read."""
        data = self._bytes(file["file_path"], named_by, size=file["file_size_in_bytes"])
        try:
            return None if data is None else _vectors_in(data) if file["file_format"] == "PUFFIN" else _rows_in(data)
        except DAMAGE as error:
            self._broken(self._objects.path_of(file["file_path"]), f"cannot be read ({error}), and {named_by} names it")
            return None

    # ---- the newest slot

    def _check_newest(self, document: Record) -> None:
        """Counts and sizes of data files, and the totals, which engines plan by and some answer from."""
        snapshot = current_snapshot(document)
        if snapshot is None or self._mirror.files is None:
            return
        totals = {"total-data-files": 0, "total-records": 0}
        try:
            for manifest in decode_avro(self._fileio.read(self._objects.path_of(snapshot["manifest-list"]))):
                said_by = self._objects.path_of(manifest["manifest_path"])
                for entry in decode_avro(self._fileio.read(said_by)) if manifest["content"] == DATA else ():
                    file = entry["data_file"]
                    if entry["status"] != DELETED:
                        totals["total-data-files"] += 1
                        totals["total-records"] += file["record_count"]
                        path, rows, size = self._objects.path_of(file["file_path"]), file["record_count"], file["file_size_in_bytes"]
                        self.findings += self._mirror.check_file(path, rows=rows, size=size, said_by=said_by)
        except (NotFound, *DAMAGE):
            return  # That has been found already.
        for name, count in totals.items():
            said = snapshot["summary"].get(name)
            if said != str(count):
                key = self._objects.key(pointer_name(self._mirror.newest))
                self._broken(key, f"says {name} {said}, and its manifests have {count}")


def _contradiction(inside: _Inside, file: Record) -> str | None:
    """What an entry says otherwise than the file that it names."""
    if isinstance(inside, int):
        return None if inside == file["record_count"] else f"has {inside} rows, and its entry says {file['record_count']}"
    said = (file["content_offset"], file["content_size_in_bytes"], file["record_count"])
    path = file["referenced_data_file"]
    return None if inside.get(path) == said else f"has no vector of {path} as its entry says"


def _rows_in(data: bytes) -> int:
    """The rows of a position file. Raises what decoders raise."""
    return sum(len(positions) for _, positions in decode_positions(data))


def _vectors_in(data: bytes) -> dict[str, tuple[int, int, int]]:
    """The vectors of a Puffin file. Raises what decoders raise."""
    if data[:4] != _PUFFIN or data[-4:] != _PUFFIN:
        raise ValueError("it is no whole Puffin file")
    (size,) = struct.unpack("<i", data[-12:-8])
    found = {}
    for blob in json.loads(data[-12 - size : -12])["blobs"]:
        begin, length, said = blob["offset"], blob["length"], blob["properties"]["cardinality"]
        rows = decode_vector(data[begin : begin + length], where=f"Byte {begin}")
        if str(len(rows)) != said:
            raise ValueError(f"the vector at byte {begin} has {len(rows)} rows, and the footer says {said}")
        found[blob["properties"]["referenced-data-file"]] = begin, length, len(rows)
    return found
