"""A reader of Iceberg of the tests' own. It shares no code with the writer, and follows Iceberg's specification, not a library.

It reads tables with plain columns whose names never changed.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from typing import Any
from urllib.parse import unquote

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from fileio.store import FileIO

PATH_ID, POSITION_ID = 2147483546, 2147483545


class Decoder:
    """Reads one metadata file."""

    def __init__(self, store: FileIO, key: str) -> None:
        self._store = store
        self._root = unquote(store.url).rstrip("/") + "/"
        self.document: dict[str, Any] = json.loads(store.read(key))

    def snapshot(self, snapshot_id: int) -> dict[str, Any]:
        return next(one for one in self.document["snapshots"] if one["snapshot-id"] == snapshot_id)

    def rows(self, snapshot_id: int) -> pa.Table:
        """The rows of a snapshot, with the columns of its schema."""
        snapshot = self.snapshot(snapshot_id)
        schema = next(one for one in self.document["schemas"] if one["schema-id"] == snapshot["schema-id"])
        data, deletes = self.live_entries(snapshot, 0), self.live_entries(snapshot, 1)
        names = [entry["data_file"]["file_path"] for entry in data]
        assert len(set(names)) == len(names), "a data file is named twice"
        if self.document["format-version"] >= 3:
            self.check_row_ids(snapshot, data)
        masked = self.masked(data, deletes)
        parts = []
        for entry in data:
            file = entry["data_file"]
            raw = self.read(file["file_path"])
            assert len(raw) == file["file_size_in_bytes"]
            table = pq.read_table(io.BytesIO(raw), columns=[field["name"] for field in schema["fields"]])
            assert table.num_rows == file["record_count"]
            gone = masked.get(file["file_path"], set())
            assert all(0 <= at < table.num_rows for at in gone)
            parts.append(table.filter(pa.array([at not in gone for at in range(table.num_rows)], pa.bool_())))
        return pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})

    def check_row_ids(self, snapshot: dict[str, Any], data: list[dict[str, Any]]) -> None:
        """Every row has an id that no other row has, below the next one."""
        spans = sorted((entry["data_file"]["first_row_id"], entry["data_file"]["record_count"]) for entry in data)
        ends = [start + count for start, count in spans]
        assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False))
        assert not ends or ends[-1] <= snapshot["first-row-id"] + snapshot["added-rows"] <= self.document["next-row-id"]
        new = [entry["data_file"]["first_row_id"] for entry in data if entry["sequence_number"] == snapshot["sequence-number"]]
        assert all(start >= snapshot["first-row-id"] for start in new)

    def read(self, uri: str) -> bytes:
        assert uri.startswith(self._root), uri
        return self._store.read(uri.removeprefix(self._root))

    def avro(self, uri: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
        reader: Any = fastavro.reader(io.BytesIO(self.read(uri)))
        return list(reader), dict(reader.metadata)

    def manifests(self, snapshot: dict[str, Any]) -> list[dict[str, Any]]:
        found, metadata = self.avro(snapshot["manifest-list"])
        assert metadata["format-version"] == str(self.document["format-version"])
        assert int(metadata["sequence-number"]) <= snapshot["sequence-number"]
        return found

    def live_entries(self, snapshot: dict[str, Any], content: int) -> list[dict[str, Any]]:
        """Entries with everything that they inherit. Counts and row ids of manifests are checked on the way."""
        found = []
        for manifest in self.manifests(snapshot):
            if manifest["content"] != content:
                continue
            assert len(self.read(manifest["manifest_path"])) == manifest["manifest_length"]
            entries, metadata = self.avro(manifest["manifest_path"])
            assert metadata["content"] == ("deletes" if content else "data")
            assert {"schema", "schema-id", "partition-spec", "partition-spec-id"} <= set(metadata)
            check_counts(manifest, entries)
            following = manifest.get("first_row_id")
            for entry in entries:
                if entry["status"] == 2:
                    continue
                entry["sequence_number"] = manifest["sequence_number"] if entry["sequence_number"] is None else entry["sequence_number"]
                assert manifest["min_sequence_number"] <= entry["sequence_number"] <= manifest["sequence_number"]
                file = entry["data_file"]
                if following is not None and content == 0 and file["first_row_id"] is None:
                    file["first_row_id"] = following
                    following += file["record_count"]
                found.append(entry)
        return found

    def masked(self, data: list[dict[str, Any]], deletes: list[dict[str, Any]]) -> dict[str, set[int]]:
        """The rows that are deleted, by data file."""
        sequences = {entry["data_file"]["file_path"]: entry["sequence_number"] for entry in data}
        found: dict[str, set[int]] = {}
        vectors = set()
        for entry in deletes:
            file = entry["data_file"]
            bounds = [{one["key"]: one["value"] for one in file[name]}[PATH_ID].decode() for name in ("lower_bounds", "upper_bounds")]
            if file["file_format"] == "PUFFIN":
                path = file["referenced_data_file"]
                assert bounds == [path, path] and path not in vectors, "two vectors of one data file"
                vectors.add(path)
                assert path in sequences and entry["sequence_number"] >= sequences[path]
                rows = self.vector(file)
                assert len(rows) == file["record_count"]
                found[path] = rows
                continue
            pairs = self.positions(file)
            paths = {path for path, _ in pairs}
            assert bounds == [min(paths), max(paths)]
            assert file["referenced_data_file"] == (bounds[0] if len(paths) == 1 else None)
            for path, at in pairs:
                if path in sequences and sequences[path] <= entry["sequence_number"]:
                    found.setdefault(path, set()).add(at)
                # pyiceberg ignores sequence numbers here, so nothing may depend on them.
                assert path not in sequences or sequences[path] <= entry["sequence_number"]
        return found

    def positions(self, file: dict[str, Any]) -> list[tuple[str, int]]:
        table = pq.read_table(io.BytesIO(self.read(file["file_path"])))
        ids = [int(field.metadata[b"PARQUET:field_id"]) for field in table.schema]
        assert table.schema.names == ["file_path", "pos"] and ids == [PATH_ID, POSITION_ID]
        assert not any(field.nullable for field in table.schema)
        pairs = list(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))
        assert pairs == sorted(set(pairs)) and len(pairs) == file["record_count"] > 0
        return pairs

    def vector(self, file: dict[str, Any]) -> set[int]:
        """A deletion vector, also as the footer of its Puffin file describes it."""
        whole = self.read(file["file_path"])
        assert len(whole) == file["file_size_in_bytes"]
        blob = whole[file["content_offset"] :][: file["content_size_in_bytes"]]
        described = [one for one in puffin_blobs(whole) if one["offset"] == file["content_offset"]]
        assert len(described) == 1
        one = described[0]
        assert (one["type"], one["length"], one["fields"]) == ("deletion-vector-v1", len(blob), [2147483645])
        assert (one["snapshot-id"], one["sequence-number"]) == (-1, -1) and "compression-codec" not in one
        assert one["properties"]["referenced-data-file"] == file["referenced_data_file"]
        assert one["properties"]["cardinality"] == str(file["record_count"])
        return vector_rows(blob)


def check_counts(manifest: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    for status, word in ((1, "added"), (0, "existing"), (2, "deleted")):
        some = [entry for entry in entries if entry["status"] == status]
        assert manifest[f"{word}_files_count"] == len(some)
        assert manifest[f"{word}_rows_count"] == sum(entry["data_file"]["record_count"] for entry in some)
    assert all(entry["snapshot_id"] is not None for entry in entries)
    assert all(entry["sequence_number"] is not None for entry in entries if entry["status"] != 1)


def puffin_blobs(whole: bytes) -> list[dict[str, Any]]:
    assert whole[:4] == whole[-4:] == b"PFA1"
    size, flags = struct.unpack("<iI", whole[-12:-4])
    assert flags == 0 and whole[-16 - size :][:4] == b"PFA1"
    blobs: list[dict[str, Any]] = json.loads(whole[-12 - size : -12])["blobs"]
    return blobs


def vector_rows(blob: bytes) -> set[int]:
    """The rows of a blob `deletion-vector-v1`."""
    (length,) = struct.unpack(">I", blob[:4])
    inside = blob[4 : 4 + length]
    assert inside[:4] == bytes.fromhex("d1d33964")
    assert struct.unpack(">I", blob[4 + length :]) == (zlib.crc32(inside),)
    (count,) = struct.unpack("<Q", inside[4:12])
    at, found = 12, set()
    for _ in range(count):
        (high,) = struct.unpack("<I", inside[at : at + 4])
        rows, at = roaring_rows(inside, at + 4)
        found |= {(high << 32) + row for row in rows}
    assert at == len(inside)
    return found


def roaring_rows(data: bytes, at: int) -> tuple[set[int], int]:
    """A 32-bit Roaring bitmap in the portable format."""
    start = at
    (cookie,) = struct.unpack("<I", data[at : at + 4])
    at += 4
    if cookie & 0xFFFF == 12347:
        count = (cookie >> 16) + 1
        flags = data[at : at + (count + 7) // 8]
        at += len(flags)
    else:
        assert cookie == 12346
        (count,) = struct.unpack("<I", data[at : at + 4])
        at, flags = at + 4, bytes((count + 7) // 8)
    keys = [struct.unpack("<HH", data[at + 4 * one : at + 4 * one + 4]) for one in range(count)]
    at += 4 * count
    if cookie == 12346 or count >= 4:
        at += 4 * count  # Offsets of the containers, which follow each other.
    found: set[int] = set()
    for number, (high, less) in enumerate(keys):
        if flags[number // 8] >> (number % 8) & 1:
            (runs,) = struct.unpack("<H", data[at : at + 2])
            pairs = struct.unpack(f"<{2 * runs}H", data[at + 2 : at + 2 + 4 * runs])
            lows = [low for one in range(runs) for low in range(pairs[2 * one], pairs[2 * one] + pairs[2 * one + 1] + 1)]
            at += 2 + 4 * runs
        elif less + 1 <= 4096:
            lows = list(struct.unpack(f"<{less + 1}H", data[at : at + 2 * (less + 1)]))
            at += 2 * (less + 1)
        else:
            bits = int.from_bytes(data[at : at + 8192], "little")
            lows = [low for low in range(65536) if bits >> low & 1]
            at += 8192
        assert len(lows) == less + 1
        found |= {(high << 16) + low for low in lows}
    assert at > start
    return found, at
