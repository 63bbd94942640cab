"""Position deletes of format version 2: one Parquet file for each slot with masked rows, sorted by (file, position).

A position file may name rows that others name too, and files that are no longer live. It must never name a row that counts. So when a file
comes again with more live rows, after a restore, all position files that name it are written again: pyiceberg applies a position file to
whatever it names, whatever the sequence numbers say.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from objcat.mirror.iceberg.avro import DELETES
from objcat.mirror.iceberg.manifests import Manifest, ManifestReader, contains, key_of, keys_of
from objcat.mirror.iceberg.masking import PATH_ID, MaskPlan, MaskRequest, PositionFile, path_bounds, union_of
from objcat.mirror.iceberg.objects import MirrorObjects, Uploads
from objcat.mirror.iceberg.types import Record
from objcat.mirror.model import CorruptMirror, Positions

POSITION_FILES_MAX = 64
"""Live position files of a table. More are merged."""
ROWS_MAX = 4_000_000
"""Rows of a position file, unless one data file has more masked rows."""
_ROW_GROUP_ROWS = 250_000
_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


def encode_positions(masked: Mapping[str, Positions]) -> Iterator[tuple[list[str], int, bytes]]:
    """Position files for masked rows, each as the data files that it names, its rows and its bytes."""
    paths = sorted(path for path, positions in masked.items() if len(positions))
    while paths:
        rows = count = 0
        while count < len(paths) and (not count or rows + len(masked[paths[count]]) <= ROWS_MAX):
            rows += len(masked[paths[count]])
            count += 1
        some, paths = paths[:count], paths[count:]
        codes = np.repeat(np.arange(count, dtype=np.int32), [len(masked[path]) for path in some])
        column = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(some)).cast(pa.string())
        table = pa.table([column, pa.array(np.concatenate([masked[path] for path in some]))], schema=_SCHEMA)
        out = io.BytesIO()
        pq.write_table(table, out, compression="zstd", store_schema=False, use_dictionary=["file_path"], row_group_size=_ROW_GROUP_ROWS)
        yield some, rows, out.getvalue()


def decode_positions(data: bytes) -> Iterator[tuple[str, Positions]]:
    """The rows of a position file, by data file. A data file may come more than once."""
    table = pq.read_table(io.BytesIO(data), read_dictionary=["file_path"], columns=["file_path", "pos"])
    for batch in table.to_batches():
        codes = np.asarray(batch.column("file_path").indices)
        positions = np.asarray(batch.column("pos"))
        names = batch.column("file_path").dictionary
        if not len(codes):
            continue
        starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, end in pairwise(starts):
            yield names[int(codes[start])].as_py(), positions[start:end]


class PositionFiles:
    """The live position files of a mirror.

    Args:
        objects: of the mirror.
        data_reader: of manifests of data files.
    """

    def __init__(self, objects: MirrorObjects, data_reader: ManifestReader) -> None:
        self._objects = objects
        self._data_reader = data_reader
        self._known: Mapping[str, PositionFile] = {}
        self.reader = ManifestReader(objects, "file_path")

    def plan(self, request: MaskRequest, uploads: Uploads) -> MaskPlan:
        """Put the position file of a slot. Others that must go, or are merged, go into it."""
        gone = keys_of(request.removed)
        known = {
            uri: PositionFile(file.rows, file.named, file.live[~contains(gone, file.live)] if len(gone) else file.live)
            for uri, file in self._known.items()
        }
        dropped = {uri for uri, file in known.items() if not len(file.live)}
        merged: set[str] = set()
        if request.reborn:
            known = self._all_known(request.deletes, known)
            again = keys_of(request.reborn)
            merged = {uri for uri, file in known.items() if uri not in dropped and contains(file.named, again).any()}
        count = sum(manifest.live_count for manifest in request.deletes) - len(dropped | merged) + bool(request.masked)
        if count > POSITION_FILES_MAX:
            known = self._all_known(request.deletes, known)
            left = sorted((file.rows, uri) for uri, file in known.items() if uri not in dropped)
            merged.update(uri for _, uri in left[: max(POSITION_FILES_MAX // 2, count - POSITION_FILES_MAX // 2)])
        masked = self._merge(request, sorted(merged)) if merged else dict(request.masked)
        dropped |= merged
        kept = {uri: file for uri, file in known.items() if uri not in dropped}
        written = tuple(self._put_all(request.slot, masked, uploads, kept))
        return MaskPlan(frozenset(dropped), written, request.deletes, kept)

    def begin(self, slot: int, masked: Iterable[tuple[str, Positions]], uploads: Uploads) -> MaskPlan:
        """Put the position files of a mirror that begins."""
        known: dict[str, PositionFile] = {}
        return MaskPlan(frozenset(), self._begun(slot, masked, uploads, known), (), known)

    def _begun(
        self, slot: int, masked: Iterable[tuple[str, Positions]], uploads: Uploads, known: dict[str, PositionFile]
    ) -> Iterator[Record]:
        held: dict[str, Positions] = {}
        rows = 0
        for path, positions in masked:
            if held and rows + len(positions) > ROWS_MAX:
                yield from self._put_all(slot, held, uploads, known)
                held, rows = {}, 0
            held[path] = positions
            rows += len(positions)
        yield from self._put_all(slot, held, uploads, known)

    def _put_all(self, slot: int, masked: Mapping[str, Positions], uploads: Uploads, known: dict[str, PositionFile]) -> Iterator[Record]:
        """Put position files for masked rows. known: they are added to it."""
        for paths, rows, data in encode_positions(masked):
            uri = self._put(slot, data, uploads)
            names = keys_of(paths)
            known[uri] = PositionFile(rows, names, names)
            yield _file_record(uri, paths, rows, len(data))

    def masked(self, deletes: tuple[Manifest, ...], uris: Collection[str] | None) -> dict[str, Positions]:
        """All masked rows of data files, of all if `uris` is None."""
        self._known = self._all_known(deletes, dict(self._known))
        wanted = None if uris is None else frozenset(uris)
        keys = None if wanted is None else keys_of(wanted)
        found: dict[str, list[Positions]] = {}
        for uri in [uri for uri, file in self._known.items() if keys is None or contains(file.named, keys).any()]:
            for path, positions in self._read(uri):
                if wanted is None or path in wanted:
                    found.setdefault(path, []).append(positions)
        return {path: union_of(parts) for path, parts in found.items()}

    def remember(self, plan: MaskPlan) -> None:
        """Remember the position files of a slot."""
        self._known = plan.known

    def forget(self) -> None:
        """Forget all of them."""
        self._known = {}

    def _merge(self, request: MaskRequest, uris: list[str]) -> dict[str, Positions]:
        """The masked rows of a slot with those of other position files, without data files that are not live."""
        found = {path: [positions] for path, positions in request.masked.items()}
        others: dict[str, list[Positions]] = {}
        self._objects.read_all(uris)
        for uri in uris:
            for path, positions in self._read(uri):
                if path not in request.reborn:
                    others.setdefault(path, []).append(positions)
        live = np.zeros(len(others), dtype=np.bool_)
        keys = np.fromiter(map(key_of, others), dtype=np.uint64, count=len(others))
        for manifest in self._data_reader.with_keys(request.data, others):
            if manifest.keys is not None:
                live |= contains(manifest.keys, keys)
        for (path, parts), is_live in zip(others.items(), live.tolist(), strict=True):
            if is_live:
                found.setdefault(path, []).extend(parts)
        return {path: union_of(parts) for path, parts in found.items()}

    def _all_known(self, deletes: Iterable[Manifest], known: dict[str, PositionFile]) -> dict[str, PositionFile]:
        """What is known of every live position file. Reads those that are not known."""
        manifests = list(deletes)
        if sum(manifest.live_count for manifest in manifests) == len(known):
            return known
        records = [entry["data_file"] for entry in self.reader.all_entries(manifests)]
        unread = [record["file_path"] for record in records if record["file_path"] not in known]
        self._objects.read_all(unread)
        for record in records:
            uri = record["file_path"]
            if uri not in known:
                names = keys_of({path for path, _ in self._read(uri)})
                known[uri] = PositionFile(record["record_count"], names, names)
        return known

    def _read(self, uri: str) -> Iterator[tuple[str, Positions]]:
        try:
            yield from decode_positions(self._objects.read(uri))
        except (pa.ArrowException, OSError, KeyError) as error:
            raise CorruptMirror(f"The position file {uri} cannot be read ({error}). Make the mirror again from the table.") from error

    def _put(self, slot: int, data: bytes, uploads: Uploads) -> str:
        name = self._objects.new_name("pos", slot, "parquet")
        uploads.put(self._objects.key(name), data)
        uri = self._objects.uri(name)
        self._objects.remember(uri, data)
        return uri


def _file_record(uri: str, paths: list[str], rows: int, size: int) -> Record:
    return {
        "content": DELETES,
        "file_path": uri,
        "file_format": "PARQUET",
        "partition": {},
        "record_count": rows,
        "file_size_in_bytes": size,
        **path_bounds(paths[0], paths[-1]),
        "referenced_data_file": paths[0] if len(paths) == 1 else None,
    }
