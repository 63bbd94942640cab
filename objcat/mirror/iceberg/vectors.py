"""Deletion vectors of format version 3: one Puffin file for each slot with masked rows, with one vector for each data file that it touches.

A data file has one vector at most, with all its masked rows. So a vector is read, united with new rows and written again. When a file comes
again with more live rows, after a restore, all vectors in Puffin files that still hold an old vector of it are written again: pyiceberg
applies every vector in a Puffin file, whatever the manifests name.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from fileio.contract import Range
from fileio.optional import library
from objcat.mirror.iceberg.avro import DELETES
from objcat.mirror.iceberg.manifests import Manifest, ManifestReader, batches
from objcat.mirror.iceberg.masking import MaskPlan, MaskRequest, path_bounds, union_of
from objcat.mirror.iceberg.objects import MirrorObjects, Uploads
from objcat.mirror.iceberg.types import Record
from objcat.mirror.model import CorruptMirror, Positions

VECTORS_MAX = 4000
"""Vectors of a Puffin file."""
VECTOR_ENTRIES_MAX = 1000
"""Entries of a manifest of vectors. A slot writes every manifest again that names a vector which changes, so they are small."""
_MAGIC = b"PFA1"
_VECTOR_MAGIC = bytes.fromhex("d1d33964")
_ROW_POSITION_ID = 2147483645
"""Iceberg's id of the position of a row, which a vector is about."""
_READ_AT_ONCE = 16


def encode_vector(positions: Positions) -> bytes:
    """A blob `deletion-vector-v1`: length, magic, a 64-bit Roaring bitmap in the portable format, and a CRC."""
    bitmap = _pyroaring().BitMap64(positions.astype(np.uint64))
    bitmap.run_optimize()
    inside: bytes = _VECTOR_MAGIC + bitmap.serialize()
    return struct.pack(">I", len(inside)) + inside + struct.pack(">I", zlib.crc32(inside))


def decode_vector(blob: bytes, *, where: str) -> Positions:
    """The rows of a vector. where: for the error. Raises CorruptMirror."""
    inside = blob[4:-4]
    if len(blob) < 12 or blob[:4] != struct.pack(">I", len(inside)) or inside[:4] != _VECTOR_MAGIC:
        raise CorruptMirror(f"{where} is no deletion vector. Make the mirror again from the table.")
    if blob[-4:] != struct.pack(">I", zlib.crc32(inside)):
        raise CorruptMirror(f"{where} is damaged: its checksum does not fit. Make the mirror again from the table.")
    return np.array(_pyroaring().BitMap64.deserialize(inside[4:]).to_array(), dtype=np.int64)


def encode_puffin(vectors: Mapping[str, tuple[bytes, int]]) -> tuple[bytes, dict[str, int]]:
    """A Puffin file of vectors.

    Args:
        vectors: by data file, a blob and the number of its rows.

    Returns:
        Its bytes, and the offset of each blob.
    """
    out = bytearray(_MAGIC)
    blobs = []
    offsets = {}
    for path, (blob, rows) in vectors.items():
        offsets[path] = len(out)
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_ROW_POSITION_ID],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(out),
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(rows)},
            }
        )
        out += blob
    footer = json.dumps({"blobs": blobs}, separators=(",", ":")).encode()
    out += _MAGIC + footer + struct.pack("<iI", len(footer), 0) + _MAGIC
    return bytes(out), offsets


def puffin_paths(data: bytes, *, where: str) -> set[str]:
    """The data files that a Puffin file holds vectors of. where: for the error. Raises CorruptMirror."""
    try:
        (size,) = struct.unpack("<i", data[-12:-8])
        return {blob["properties"]["referenced-data-file"] for blob in json.loads(data[-12 - size : -12])["blobs"]}
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise CorruptMirror(f"{where} is no Puffin file ({error}). Make the mirror again from the table.") from error


def _pyroaring() -> Any:
    return library("pyroaring", needed_by="An Iceberg mirror of format version 3 needs", extra="mirrors")


class VectorFiles:
    """The deletion vectors of a mirror."""

    def __init__(self, objects: MirrorObjects) -> None:
        self._objects = objects
        self.reader = ManifestReader(objects, "referenced_data_file")

    def plan(self, request: MaskRequest, uploads: Uploads) -> MaskPlan:
        """Put the vectors of the data files that a slot touches."""
        fresh = request.added - request.reborn
        old_paths = (request.masked.keys() - fresh) | request.removed | request.reborn if request.deletes else set()
        deletes = self.reader.with_keys(request.deletes, old_paths) if old_paths else request.deletes
        old = self.reader.find(deletes, old_paths) if old_paths else {}
        dropped = {path for path in old if path in request.removed or path in request.reborn}
        vectors: dict[str, Positions] = {}
        for path, positions in request.masked.items():
            entry = None if path in request.reborn else old.get(path)
            before = None if entry is None else self._read(entry["data_file"])
            rows = positions if before is None else union_of((before, positions))
            if before is None or len(rows) > len(before):
                vectors[path] = rows
        if request.reborn:
            deletes = self.reader.with_keys(deletes)
            for entry in self._beside(deletes, request.reborn):
                path = entry["referenced_data_file"]
                if path not in dropped and path not in vectors:
                    vectors[path] = self._read(entry)
        dropped |= vectors.keys()
        return MaskPlan(frozenset(dropped), tuple(self._put_all(request.slot, vectors, uploads)), deletes)

    def begin(self, slot: int, masked: Iterable[tuple[str, Positions]], uploads: Uploads) -> MaskPlan:
        """Put the vectors of a mirror that begins."""
        parts = (self._put_all(slot, dict(some), uploads) for some in batches(masked, VECTORS_MAX))
        return MaskPlan(frozenset(), chain.from_iterable(parts), ())

    def masked(self, deletes: tuple[Manifest, ...], uris: Collection[str] | None) -> dict[str, Positions]:
        """All masked rows of data files, of all if `uris` is None."""
        if uris is None:
            entries: Iterable[Record] = self.reader.all_entries(deletes)
        else:
            entries = self.reader.find(self.reader.with_keys(deletes, uris), frozenset(uris)).values()
        return {entry["data_file"]["referenced_data_file"]: self._read(entry["data_file"]) for entry in entries}

    def remember(self, plan: MaskPlan) -> None:
        """Nothing: vectors are found by their manifests."""

    def forget(self) -> None:
        """Nothing."""

    def _beside(self, deletes: tuple[Manifest, ...], reborn: frozenset[str]) -> Iterator[Record]:
        """Live vectors in Puffin files that also hold a vector of a data file which comes again, as `data_file` records."""
        entries: dict[str, list[Record]] = {}
        for entry in self.reader.all_entries(deletes):
            entries.setdefault(entry["data_file"]["file_path"], []).append(entry["data_file"])
        for uris in batches(sorted(entries), _READ_AT_ONCE):
            for uri, data in zip(uris, self._objects.read_all(uris), strict=True):
                if reborn & puffin_paths(data, where=uri):
                    yield from entries[uri]

    def _read(self, file: Record) -> Positions:
        uri, start, size = file["file_path"], file["content_offset"], file["content_size_in_bytes"]
        return decode_vector(self._objects.read_range(uri, Range(start, start + size)), where=f"Byte {start} of {uri}")

    def _put_all(self, slot: int, vectors: Mapping[str, Positions], uploads: Uploads) -> Iterator[Record]:
        for paths in batches(sorted(vectors), VECTORS_MAX):
            blobs = {path: (encode_vector(vectors[path]), len(vectors[path])) for path in paths}
            data, offsets = encode_puffin(blobs)
            name = self._objects.new_name("dv", slot, "puffin")
            uri = self._objects.uri(name)
            uploads.put(self._objects.key(name), data)
            for path, (blob, rows) in blobs.items():
                self._objects.remember_range(uri, Range(offsets[path], offsets[path] + len(blob)), blob)
                yield {
                    "content": DELETES,
                    "file_path": uri,
                    "file_format": "PUFFIN",
                    "partition": {},
                    "record_count": rows,
                    "file_size_in_bytes": len(data),
                    **path_bounds(path, path),
                    "referenced_data_file": path,
                    "content_offset": offsets[path],
                    "content_size_in_bytes": len(blob),
                }
