"""The newest Iceberg metadata of each mirrored table, read from the table's prefix. It writes nothing."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from fileio.contract import GetResult, Version
from fileio.env import map_io
from fileio.errors import NotFound
from objcat.common.bounded_cache import BoundedCache
from objcat.mirror.iceberg.location import root_of
from objcat.mirror.iceberg.objects import METADATA, slot_of_pointer
from objcat.mirror.iceberg.table_metadata import read_document
from objcat.mirror.model import MirrorFolder

VERSION_HINT = METADATA + "version-hint.text"
CACHED_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of metadata that a process keeps."""
PROBES_MAX = 8
"""How many versions above the hint are asked for one by one. A hint that is further behind costs a LIST."""

SnapshotsMode = Literal["all", "refs"]


@dataclass(frozen=True, slots=True)
class MirroredMetadata:
    """One metadata object, which never changes.

    Attributes:
        version: of the object, which is the slot plus one.
        table_location: the full URI of the table, without a slash at its end.
        body: all of it, as JSON.
    """

    version: int
    table_location: str
    body: bytes

    @property
    def location(self) -> str:
        """The full URI of the object."""
        return f"{self.table_location}/{METADATA}v{self.version}.metadata.json"

    @property
    def slot(self) -> int:
        """The slot of the table that it shows."""
        return self.version - 1

    def is_at(self, where: MirrorFolder) -> bool:
        """Whether its paths lead to the place where it was read, and not to one that it was copied from."""
        return f"{self.table_location}/" == root_of(where.fileio) + where.folder

    def etag(self, snapshots: SnapshotsMode) -> str:
        """The tag of an answer with this metadata. Every server of the lake gives it the same one."""
        return f'"{hashlib.sha256(f"{snapshots} {self.location}".encode()).hexdigest()[:32]}"'

    def with_snapshots(self, snapshots: SnapshotsMode) -> bytes:
        """The JSON with all snapshots, or with those that branches and tags name. The log of snapshots stays whole for time travel."""
        if snapshots == "all":
            return self.body
        metadata = msgspec.json.decode(self.body)
        named = {ref["snapshot-id"] for ref in metadata.get("refs", {}).values()} | {metadata.get("current-snapshot-id")}
        metadata["snapshots"] = [snapshot for snapshot in metadata.get("snapshots", []) if snapshot["snapshot-id"] in named]
        return msgspec.json.encode(metadata)


class MetadataReader:
    """Finds and reads the newest metadata of tables. Safe for many threads.

    Metadata objects are put if absent, so they are cached by their keys. Which one is the newest, and whether it is still the same object,
    is asked at each call.
    """

    def __init__(self) -> None:
        self._objects: BoundedCache[tuple[MirroredMetadata, Version]] = BoundedCache(bytes_max=CACHED_BYTES_MAX)

    def newest(self, where: MirrorFolder, *, known: int = 0) -> MirroredMetadata | None:
        """The newest metadata of a table; None if it has no mirror. A mirror that was copied from another place counts as none.

        Begins at the hint, or at a greater version that was seen before, and goes on upwards. A LIST where the hint is of no use.

        Args:
            where: the folder of the table's mirror.
            known: a version that was the newest before, 0 for none.

        Raises:
            ForeignMetadata: objcat did not write it.
            CorruptMirror: it cannot be read.
            FileIOError: the store failed.
        """
        found = self._find(where, known)
        return found if found is None or found.is_at(where) else None

    def _find(self, where: MirrorFolder, known: int) -> MirroredMetadata | None:
        hint = _hint(where)
        if hint:
            version = max(hint, known)
            found, above = map_io(where.fileio.env, partial(self._read, where), [version, version + 1])
            for _ in range(PROBES_MAX):
                if found is None:
                    break
                if above is None:
                    return found
                found, above = above, self._read(where, above.version + 1)
        version = _listed(where)
        return self._read(where, version) if version else None

    def _read(self, where: MirrorFolder, version: int) -> MirroredMetadata | None:
        key = f"{where.folder}{METADATA}v{version}.metadata.json"
        place = f"{where.fileio.url}/{key}"
        try:
            cached = self._objects.get(place)
            if cached is not None:
                # An erasure deletes what was mirrored before it. A mirror that was deleted may begin again under the same name.
                known, stored = cached
                if where.fileio.head(key).version == stored:
                    return known
            result = where.fileio.get(key)
        except NotFound:
            return None
        assert isinstance(result, GetResult)
        body = result.data
        location: str = read_document(body, where=place, table=where.table, slot=version - 1)["location"]
        found = MirroredMetadata(version, location.rstrip("/"), body)
        if found.is_at(where):
            # A copied object may be replaced, when the mirror begins again at this place.
            self._objects.put(place, (found, result.meta.version), len(body))
        return found


def _hint(where: MirrorFolder) -> int:
    """The version that the hint names, 0 for none."""
    try:
        text = where.fileio.read(where.folder + VERSION_HINT)
    except NotFound:
        return 0
    return int(text) if re.fullmatch(rb"\s*[0-9]{1,18}\s*", text) else 0


def _listed(where: MirrorFolder) -> int:
    """The greatest version in a listing, 0 for none."""
    prefix = where.folder + METADATA
    slots = (slot_of_pointer(key.removeprefix(prefix)) for key in where.fileio.list_keys(f"{prefix}v"))
    return max((slot + 1 for slot in slots if slot is not None), default=0)
