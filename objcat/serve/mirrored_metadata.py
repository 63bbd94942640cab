"""The newest Iceberg metadata of each mirrored table, read from the table's prefix. It writes nothing."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

import msgspec

from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.catalog.names import NameBinding
from objcat.common.bounded_cache import BoundedCache
from objcat.mirror.model import CorruptMirror

VERSION_HINT = "metadata/version-hint.text"
CACHED_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of metadata that a process keeps."""
PROBES_MAX = 8
"""How many versions above the hint are asked for one by one. A hint that is further behind costs a LIST."""

_VERSION = re.compile(r"metadata/v([1-9][0-9]{0,18})\.metadata\.json")

SnapshotsMode = Literal["all", "refs"]


class MetadataHead(msgspec.Struct, frozen=True, kw_only=True):
    """What this server itself reads of Iceberg's metadata; clients read all of it."""

    format_version: int = msgspec.field(name="format-version")
    location: str
    last_updated_ms: int = msgspec.field(name="last-updated-ms")
    current_snapshot_id: int | None = msgspec.field(name="current-snapshot-id", default=None)


@dataclass(frozen=True, slots=True)
class MirroredMetadata:
    """One metadata object, which never changes.

    Attributes:
        version: of the object, which is the slot plus one.
        location: its full URI.
        head: what the server reads of it.
        body: all of it, as JSON.
    """

    version: int
    location: str
    head: MetadataHead
    body: bytes

    @property
    def slot(self) -> int:
        """The slot of the table that it shows."""
        return self.version - 1

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

    Metadata objects are put if absent and never change, so they are cached by their keys. Which one is the newest is asked at each call.

    Args:
        lake: the prefix of the lake.
    """

    def __init__(self, lake: FileIO) -> None:
        self._lake = lake
        self._objects: BoundedCache[MirroredMetadata] = BoundedCache(bytes_max=CACHED_BYTES_MAX)

    def newest(self, binding: NameBinding, *, known: int = 0) -> MirroredMetadata | None:
        """The newest metadata of a table; None if it has no mirror.

        Args:
            binding: of the table.
            known: a version that was the newest before, 0 for none.

        Raises:
            CorruptMirror: the object is not Iceberg metadata.
            FileIOError: the store failed.
        """
        return self._find(mirror_folder(binding), known)

    def _find(self, folder: str, known: int) -> MirroredMetadata | None:
        """Begin at the hint, or at a greater version that was seen before, and go on upwards. A LIST where the hint is of no use."""
        hint = self._hint(folder)
        found = self._read(folder, max(hint, known)) if hint else None
        for _ in range(PROBES_MAX):
            if found is None:
                break
            above = self._read(folder, found.version + 1)
            if above is None:
                return found
            found = above
        version = self._listed(folder)
        return self._read(folder, version) if version else None

    def _hint(self, folder: str) -> int:
        try:
            text = self._lake.read(folder + VERSION_HINT)
        except NotFound:
            return 0
        return int(text) if re.fullmatch(rb"\s*[0-9]{1,18}\s*", text) else 0

    def _listed(self, folder: str) -> int:
        keys = self._lake.list_keys(f"{folder}metadata/v")
        versions = [int(match[1]) for key in keys if (match := _VERSION.fullmatch(key.removeprefix(folder)))]
        return max(versions, default=0)

    def _read(self, folder: str, version: int) -> MirroredMetadata | None:
        key = self._key(folder, version)
        cached = self._objects.get(key)
        if cached is not None:
            return cached
        try:
            body = self._lake.read(key)
        except NotFound:
            return None
        try:
            head = msgspec.json.decode(body, type=MetadataHead)
        except msgspec.DecodeError as error:
            raise CorruptMirror(
                f"{key} in {self._lake.url} is not Iceberg metadata ({error}). The table is not affected. Make its mirror again."
            ) from error
        location = f"{head.location.rstrip('/')}/{key.removeprefix(folder)}"
        found = MirroredMetadata(version, location, head, body)
        self._objects.put(key, found, len(body))
        return found

    @staticmethod
    def _key(folder: str, version: int) -> str:
        return f"{folder}metadata/v{version}.metadata.json"


def mirror_folder(binding: NameBinding) -> str:
    """The folder of a table's mirror below the lake, with a slash at its end."""
    shared = f"mirrors/{binding.table}/" if binding.shared_log else ""
    return f"{binding.prefix}/{shared}"
