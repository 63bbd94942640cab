"""`IcebergMirror`: the mirror of one table as Iceberg. Everything else in this package is below it.

A slot is written in three steps. The position file or vectors, the manifests and the manifest list are put beside each other, under random
names. Then `v<slot + 1>.metadata.json` is put if absent, which makes the slot visible. Then the hint points to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from fileio.errors import FileIOError
from objcat.errors import InvalidInput
from objcat.mirror.absent_columns import check_no_absent
from objcat.mirror.adopted_files import check_for_iceberg
from objcat.mirror.forgotten_slots import FORGOTTEN, forget_slots, forgotten_before
from objcat.mirror.iceberg.avro import DATA, DELETES
from objcat.mirror.iceberg.expiry import delete_before, delete_unnamed, oldest_named
from objcat.mirror.iceberg.file_types import check_file_types
from objcat.mirror.iceberg.location import check_location
from objcat.mirror.iceberg.manifests import ManifestReader, listed_manifests
from objcat.mirror.iceberg.masking import Masking, MaskPlan
from objcat.mirror.iceberg.objects import MirrorObjects, Uploads
from objcat.mirror.iceberg.pointers import Pointers
from objcat.mirror.iceberg.positions import PositionFiles
from objcat.mirror.iceberg.slot_writer import MirrorState, SlotWriter
from objcat.mirror.iceberg.table_metadata import current_schema, current_snapshot, encode_document, mirrored_slot, with_schema_id
from objcat.mirror.iceberg.types import DEFAULTS_SINCE, Record, schema_of, with_defaults
from objcat.mirror.iceberg.vectors import VectorFiles
from objcat.mirror.model import (
    CorruptMirror,
    MirrorChange,
    MirroredSlot,
    MirrorFolder,
    MirrorNotRestarted,
    MirrorSlotTaken,
    Positions,
)

FORMAT_VERSION_DEFAULT = 2
FORMAT_VERSIONS = (2, 3)
REMEMBERED_S_MAX = 60.0
"""Seconds for which a process trusts what it remembers. Objects that expire are much older."""


class IcebergMirror:
    """The mirror of one table as Iceberg, see `objcat.mirror.model.MirrorFormat`.

    Args:
        where: the folder of the mirror.
        format_version: 2 masks rows by position deletes, which every reader takes. 3 masks them by deletion vectors. A mirror that exists
            keeps its version until it begins again.
    """

    def __init__(self, where: MirrorFolder, *, format_version: int = FORMAT_VERSION_DEFAULT) -> None:
        if format_version not in FORMAT_VERSIONS:
            raise InvalidInput(f"An Iceberg mirror has format version 2 or 3, not {format_version!r}.")
        self._where = where
        self._version = format_version
        self._objects = MirrorObjects(where)
        self._pointers = Pointers(where, self._objects)
        self._data = ManifestReader(self._objects, "file_path")
        self._document: Record | None = None
        self._state: MirrorState | None = None
        self._maskings: dict[int, Masking] = {}
        self._seen_s = 0.0
        self._broken: Record | None = None

    @property
    def format(self) -> str:
        """`iceberg`."""
        return "iceberg"

    @property
    def has_every_slot(self) -> bool:
        """False: ids of snapshots may leave numbers out."""
        return False

    def newest(self) -> MirroredSlot | None:
        """The newest slot in the store, None if there is no mirror here. Forgets what it remembers if another process has gone on.

        A mirror that was copied here from another place counts as none: its paths lead to that place.

        Raises:
            ForeignMetadata: The metadata was not written by objcat.
            CorruptMirror: It cannot be read. A change that restarts the mirror replaces it.
        """
        if self._document is not None and not self._is_stale():
            known = mirrored_slot(self._document)
            if self._pointers.is_newest(known.slot):
                self._seen()
                return known
        before, self._document = self._document, None
        found = self._pointers.newest()
        if found is None or found != before:
            self._forget()
        if found is not None and found == self._broken:
            raise CorruptMirror(f"What the newest slot of the Iceberg mirror of {self._where.name!r} names cannot be used. Begin it again.")
        self._document, self._broken = found, None
        self._seen()
        return None if found is None else mirrored_slot(found)

    def write(self, change: MirrorChange) -> None:
        """Write a slot after the newest one.

        Raises:
            MirrorSlotTaken: Another process was first.
            MirrorHeld: Iceberg cannot express it.
            CorruptMirror: The mirror does not name what the slot removes.
        """
        check_location(self._objects.location, name=self._where.name)
        if self._document is None or self._is_stale():
            self._look(change)
        newest = None if self._document is None else mirrored_slot(self._document).slot
        broken = -1 if self._broken is None else mirrored_slot(self._broken).slot
        if (newest is not None and newest >= change.slot) or broken > change.slot:
            self._forget()
            raise MirrorSlotTaken(f"Slot {change.slot} has an Iceberg mirror already. Nothing was written.")
        uploads = Uploads(self._where.fileio)
        try:
            state, plan = self._prepare(change, uploads)
            uploads.finish()
            data = encode_document(state.document)
            self._check_still_newest(change, newest)
            replaces = change.restarts and self._broken is not None and mirrored_slot(self._broken).slot == change.slot
            self._pointers.put(change.slot, data, txn=change.txn, restarts=change.restarts, replaces=replaces, uploads=uploads)
        except Exception as error:
            if isinstance(error, CorruptMirror) and not change.restarts:
                # The next round learns from `newest` that the mirror must begin again.
                self._broken = self._document
            self._forget()
            with contextlib.suppress(FileIOError):
                uploads.discard()
            raise
        except BaseException:
            self._forget()
            raise
        self._remember(state, plan)
        if change.restarts:
            self._pointers.remove_later(change.slot)
        if not self._pointers.put_hint(change.slot) and self._pointers.is_dropped(change.slot):
            self._pointers.delete(change.slot)
            self._forget()
            uploads.discard()
            raise MirrorSlotTaken(f"The Iceberg mirror began again after slot {change.slot}. Nothing of this attempt is visible.")

    def masked(self, paths: Sequence[str]) -> Mapping[str, Positions]:
        """All masked rows of live files at the newest slot. Files without any are left out."""
        state = self._loaded()
        if state is None:
            return {}
        return self._masked(state, [self._objects.data_uri(path) for path in paths])

    def live_files(self) -> Mapping[str, int]:
        """Paths of all files that the newest slot names, each with its number of live rows. Reads all metadata of that slot."""
        state = self._loaded()
        if state is None:
            return {}
        masked = {path: len(positions) for path, positions in self._masked(state, None).items()}
        found = {}
        for entry in self._data.all_entries(state.data):
            path = self._objects.path_of(entry["data_file"]["file_path"])
            found[path] = entry["data_file"]["record_count"] - masked.get(path, 0)
        return found

    def expire(self, *, modified_before_ms: int) -> int:
        """See `MirrorFormat.expire`.

        The time must lie before the beginning of every write of a slot that still runs.
        """
        self._forget()
        if self.newest() is None:
            return 0
        assert self._document is not None
        reader = ManifestReader(self._objects, "file_path")
        forgotten = forgotten_before(self._objects.fileio, self._objects.key(FORGOTTEN))
        return delete_unnamed(
            self._objects, reader, self._document, self._pointers, modified_before_ms=modified_before_ms, forgotten=forgotten
        )

    def forget_before(self, slot: int) -> int:
        """Delete all metadata that was written for slots before one, at once. Returns how many objects were deleted.

        Raises:
            MirrorNotRestarted: The newest slot names metadata of earlier slots. Restart the mirror first.
        """
        self._forget()
        newest = self.newest()
        if newest is None:
            return delete_before(self._objects, slot)
        assert self._document is not None
        oldest = oldest_named(self._objects, ManifestReader(self._objects, "file_path"), self._document)
        if oldest < slot:
            raise MirrorNotRestarted(
                f"The Iceberg mirror of {self._where.name!r} still names metadata of slot {oldest}, which is before {slot}. Nothing was "
                "deleted. Restart the mirror, then forget what was before."
            )
        forget_slots(self._objects.fileio, self._objects.key(FORGOTTEN), slot)
        # A process that still follows an earlier slot learns from the hint that the mirror began again.
        self._pointers.require_hint(newest.slot)
        return delete_before(self._objects, slot)

    # ---- how

    def _seen(self) -> None:
        self._seen_s = self._where.fileio.env.monotonic_s()

    def _is_stale(self) -> bool:
        """Whether what is remembered may be so old that the metadata file after it has come and gone."""
        return self._where.fileio.env.monotonic_s() - self._seen_s > REMEMBERED_S_MAX

    def _check_still_newest(self, change: MirrorChange, newest: int | None) -> None:
        """Check that a slot that took long to write still follows the newest one. Otherwise its metadata file could be an old one again."""
        if self._is_stale() and not change.restarts and max(self._pointers.slots(), default=None) != newest:
            raise MirrorSlotTaken(f"Other processes wrote Iceberg mirrors after slot {newest}. Nothing of this attempt is visible.")

    def _look(self, change: MirrorChange) -> None:
        """Find the newest slot. A change that restarts the mirror needs none that can be read."""
        try:
            self.newest()
        except CorruptMirror:
            if not change.restarts:
                raise

    def _forget(self) -> None:
        self._document = None
        self._state = None
        for masking in self._maskings.values():
            masking.forget()

    def _remember(self, state: MirrorState, plan: MaskPlan | None) -> None:
        self._document, self._broken = state.document, None
        self._seen()
        if not state.is_whole:
            return
        self._state = state
        masking = self._masking(int(state.document["format-version"]))
        self._data.remember(state.data)
        masking.reader.remember(state.deletes)
        if plan is not None:
            masking.remember(plan)

    def _loaded(self) -> MirrorState | None:
        """What the newest slot names. Reads its manifest list once."""
        if self._document is None and self.newest() is None:
            return None
        if self._state is None:
            assert self._document is not None
            snapshot = current_snapshot(self._document)
            assert snapshot is not None
            uri = snapshot["manifest-list"]
            try:
                found = listed_manifests(self._objects.read(uri))
            except (ValueError, KeyError, IndexError, EOFError) as error:
                raise CorruptMirror(f"The manifest list {uri} cannot be read ({error}). Make the mirror again from the table.") from error
            data = tuple(manifest for manifest in found if manifest.record["content"] == DATA)
            deletes = tuple(manifest for manifest in found if manifest.record["content"] == DELETES)
            self._state = MirrorState(self._document, data, deletes)
        return self._state

    def _masking(self, version: int) -> Masking:
        """How a format version masks rows."""
        if version not in self._maskings:
            self._maskings[version] = VectorFiles(self._objects) if version >= 3 else PositionFiles(self._objects, self._data)
        return self._maskings[version]

    def _masked(self, state: MirrorState, uris: Sequence[str] | None) -> dict[str, Positions]:
        masking = self._masking(int(state.document["format-version"]))
        return {self._objects.path_of(uri): positions for uri, positions in masking.masked(state.deletes, uris).items()}

    def _before(self, change: MirrorChange) -> MirrorState | None:
        """The mirror before. None if it begins. A slot that changes no file needs no manifest list."""
        if change.restarts:
            for masking in self._maskings.values():
                masking.forget()
            return None
        if change.is_empty and self._state is None and self._document is not None:
            return MirrorState(self._document, is_whole=False)
        found = self._loaded()
        if found is None:
            raise CorruptMirror(f"There is no Iceberg mirror of {self._where.name!r} that slot {change.slot} could follow. Begin it again.")
        return found

    def _prepare(self, change: MirrorChange, uploads: Uploads) -> tuple[MirrorState, MaskPlan | None]:
        """Put everything but the metadata file, which is in the result."""
        before = self._before(change)
        earlier = self._document or self._broken
        was = None if before is None else current_schema(before.document)
        check_for_iceberg(change, self._where.log_store, name=self._where.name)
        schema = schema_of(change.spec, was, slot=change.slot, name=self._where.name)
        if before is None:
            check_file_types(change, schema, None if earlier is None else current_schema(earlier), self._objects, name=self._where.name)
        version = self._version if before is None else int(before.document["format-version"])
        if version < DEFAULTS_SINCE:
            check_no_absent(change, self._objects.fileio, format_name=f"Iceberg {version}", name=self._where.name)
        else:
            schema = with_defaults(schema, change.spec)
        writer = SlotWriter(
            objects=self._objects,
            uploads=uploads,
            change=change,
            before=before,
            earlier=earlier,
            schema=with_schema_id(schema, () if before is None else before.document["schemas"]),
            version=version,
            name=self._where.name,
            data_reader=self._data,
            masking=self._masking(version),
        )
        return writer.write()
