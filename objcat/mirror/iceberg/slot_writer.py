"""One slot of a mirror: all objects but the metadata file, and what is remembered afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from objcat.mirror.iceberg.avro import DATA, DELETES, encode_avro, list_schema
from objcat.mirror.iceberg.bounds import metrics_of
from objcat.mirror.iceberg.manifests import (
    ENTRIES_MAX,
    Manifest,
    ManifestReader,
    ManifestWriter,
    Revision,
    Tally,
    contains,
    encode_ends,
    keys_of,
)
from objcat.mirror.iceberg.masking import Masking, MaskPlan, MaskRequest
from objcat.mirror.iceberg.objects import MirrorObjects, Uploads
from objcat.mirror.iceberg.table_metadata import SnapshotFacts, current_snapshot, next_document
from objcat.mirror.iceberg.types import Record, primitives_of
from objcat.mirror.iceberg.vectors import VECTOR_ENTRIES_MAX
from objcat.mirror.model import CorruptMirror, MirrorChange, MirroredFile


@dataclass(frozen=True, slots=True)
class MirrorState:
    """What is remembered of the newest slot of a mirror.

    Attributes:
        document: its metadata file.
        data: manifests of data files.
        deletes: manifests of position files or vectors.
        is_whole: whether the manifest list was read.
    """

    document: Record
    data: tuple[Manifest, ...] = ()
    deletes: tuple[Manifest, ...] = ()
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class SlotWriter:
    """Writes one slot.

    Attributes:
        objects: of the mirror.
        uploads: where new objects go.
        change: what the slot changes.
        before: the mirror before. None: it begins.
        earlier: the metadata file before, also if the mirror begins again.
        schema: of the table, with its `schema-id`.
        version: of the format.
        name: of the table.
        data_reader: of manifests of data files.
        masking: how rows are masked.
    """

    objects: MirrorObjects
    uploads: Uploads
    change: MirrorChange
    before: MirrorState | None
    earlier: Record | None
    schema: Record
    version: int
    name: str
    data_reader: ManifestReader
    masking: Masking

    def write(self) -> tuple[MirrorState, MaskPlan | None]:
        """Put the objects of the slot. The metadata file is in the result. With it is what the slot masks, if it changes files."""
        if self.before is not None and self.change.is_empty:
            snapshot = current_snapshot(self.before.document)
            assert snapshot is not None
            document = self._document(self._facts(snapshot["manifest-list"]))
            return MirrorState(document, self.before.data, self.before.deletes, is_whole=self.before.is_whole), None
        data = self._revised_data()
        first_row_id = 0 if self.earlier is None else int(self.earlier.get("next-row-id", 0))
        new_row_ids = self._assign_row_ids(data.manifests, first_row_id) if self.version >= 3 else 0
        plan = self._masked(data.manifests)
        deletes = self._writer(self.masking.reader, DELETES).revise(
            plan.deletes, removed=plan.dropped, added=plan.written, must_exist=self.version < 3
        )
        uri = self._put_list((*data.manifests, *deletes.manifests), first_row_id)
        facts = self._facts(uri, data, deletes, first_row_id, new_row_ids)
        return MirrorState(self._document(facts), data.manifests, deletes.manifests), plan

    def _document(self, facts: SnapshotFacts) -> Record:
        return next_document(self.earlier, self.change, facts, version=self.version, location=self.objects.location, name=self.name)

    def _facts(
        self, uri: str, data: Revision | None = None, deletes: Revision | None = None, first_row_id: int | None = None, new_row_ids: int = 0
    ) -> SnapshotFacts:
        nothing = Revision((), Tally(), Tally())
        data, deletes = data or nothing, deletes or nothing
        if first_row_id is None:
            first_row_id = 0 if self.earlier is None else int(self.earlier.get("next-row-id", 0))
        return SnapshotFacts(
            manifest_list=uri,
            schema=self.schema,
            data_added=data.added,
            data_removed=data.removed,
            deletes_added=deletes.added,
            deletes_removed=deletes.removed,
            first_row_id=first_row_id,
            new_row_ids=new_row_ids,
        )

    def _writer(self, reader: ManifestReader, content: int) -> ManifestWriter:
        most = VECTOR_ENTRIES_MAX if content == DELETES and self.version >= 3 else ENTRIES_MAX
        return ManifestWriter(reader, self.objects, self.uploads, content, self.schema, self.version, self.change.slot, most)

    def _revised_data(self) -> Revision:
        manifests = () if self.before is None else self.before.data
        removed = frozenset() if self.before is None else self._uris(self.change.removed)
        reborn = self._reborn()
        if reborn:
            manifests = self.data_reader.with_keys(manifests, reborn - removed)
            self._check_not_live(manifests, reborn - removed)
        types = primitives_of(self.schema)
        added = (self._record(file, types) for file in self.change.added)
        return self._writer(self.data_reader, DATA).revise(manifests, removed=removed, added=added, must_exist=True)

    def _check_not_live(self, manifests: tuple[Manifest, ...], uris: frozenset[str]) -> None:
        """Check that no file would be named twice, which would double its rows."""
        keys = keys_of(uris)
        if any(manifest.keys is not None and contains(manifest.keys, keys).any() for manifest in manifests):
            raise CorruptMirror(
                f"The Iceberg mirror of {self.name!r} names a file already that slot {self.change.slot} adds. Nothing was written. "
                "Make the mirror again from the table."
            )

    def _masked(self, data: tuple[Manifest, ...]) -> MaskPlan:
        if self.before is None:
            masked_files = (file for file in self.change.added if len(file.masked))
            return self.masking.begin(
                self.change.slot, ((self.objects.data_uri(file.path), file.masked) for file in masked_files), self.uploads
            )
        masked = {
            self.objects.data_uri(file.path): file.masked for file in chain(self.change.added, self.change.masked) if len(file.masked)
        }
        request = MaskRequest(
            slot=self.change.slot,
            masked=masked,
            removed=self._uris(self.change.removed),
            added=self._uris(file.path for file in self.change.added),
            reborn=self._reborn(),
            data=data,
            deletes=self.before.deletes,
        )
        return self.masking.plan(request, self.uploads)

    def _reborn(self) -> frozenset[str]:
        """Added files that the mirror may have named before. A file that its own transaction adds was never named."""
        if self.before is None:
            return frozenset()
        return self._uris(file.path for file in self.change.added if self.change.txn not in file.path)

    def _uris(self, paths: Iterable[str]) -> frozenset[str]:
        return frozenset(map(self.objects.data_uri, paths))

    def _record(self, file: MirroredFile, types: Mapping[int, str]) -> Record:
        return {
            "content": DATA,
            "file_path": self.objects.data_uri(file.path),
            "file_format": "PARQUET",
            "partition": {},
            "record_count": file.rows,
            "file_size_in_bytes": file.bytes,
            **metrics_of(file, types),
        }

    def _assign_row_ids(self, manifests: tuple[Manifest, ...], first: int) -> int:
        """Give new manifests of data files their first row ids. Returns how many row ids are new."""
        following = first
        for manifest in manifests:
            if manifest.record.get("first_row_id") is None:
                manifest.record["first_row_id"] = following
                following += manifest.record["added_rows_count"] + manifest.record["existing_rows_count"]
        return following - first

    def _put_list(self, manifests: tuple[Manifest, ...], first_row_id: int) -> str:
        parent = None if self.before is None else current_snapshot(self.before.document)
        metadata = {
            "snapshot-id": str(self.change.slot + 1),
            "parent-snapshot-id": "null" if parent is None else str(parent["snapshot-id"]),
            "sequence-number": str(self.change.slot + 1),
            "format-version": str(self.version),
        }
        if self.version >= 3:
            metadata["first-row-id"] = str(first_row_id)
        records = [manifest.record for manifest in manifests]
        metadata |= encode_ends(manifests)
        data = encode_avro(list_schema(self.version), records, metadata, sync=self.objects.fileio.env.new_id())
        name = self.objects.new_name("snap", self.change.slot, "avro")
        self.uploads.put(self.objects.key(name), data)
        return self.objects.uri(name)
