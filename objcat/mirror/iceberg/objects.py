"""The objects of a mirror: their names, uploads that run beside each other, and reads that are remembered."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from fileio.contract import Create, OutcomeUnknown, PreconditionFailed, Range, require_written
from fileio.env import map_io
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.common.bounded_cache import BoundedCache
from objcat.metadata.files import OUTER
from objcat.mirror.adopted_files import is_of_lake, key_in_lake
from objcat.mirror.iceberg.location import root_of
from objcat.mirror.model import CorruptMirror, MirrorFolder

CACHE_BYTES_MAX = 64 * 1024**2
"""Bytes of objects that a mirror remembers."""
UPLOADS_MAX = 16
"""Uploads of a mirror at once. It limits the memory for objects that are on their way."""

METADATA = "metadata/"
_POINTER = re.compile(r"^v([1-9][0-9]{0,18})\.metadata\.json$")
_NAMED = re.compile(r"^(?:snap|m0|m1|pos|dv)-([0-9]{1,18})-[0-9a-f]{16}\.(?:avro|parquet|puffin)$")


def pointer_name(slot: int) -> str:
    """The name of the metadata file of a slot, below `metadata/`."""
    return f"v{slot + 1}.metadata.json"


def slot_of_pointer(name: str) -> int | None:
    """The slot that a name is the metadata file of. None for any other name."""
    found = _POINTER.match(name)
    return None if found is None else int(found[1]) - 1


def slot_written_for(name: str) -> int | None:
    """The slot that an object of a mirror was written for, by its name below `metadata/`. None for any other name."""
    found = _NAMED.match(name)
    return slot_of_pointer(name) if found is None else int(found[1])


class MirrorObjects:
    """Reads and names objects of one mirror. What never changes is remembered, up to a limit.

    where: the folder of the mirror.
    """

    def __init__(self, where: MirrorFolder) -> None:
        self.fileio: FileIO = where.fileio
        self.log_store = where.log_store
        self._folder = where.folder
        # URIs with a slash at their end: of the mirror's store, of the log's prefix, and of the lake.
        self._root = root_of(where.fileio)
        self._of_log = root_of(where.log_store)
        lake = where.log_store.outer_url
        self._of_lake = None if lake is None else root_of(where.log_store, lake)
        self._cache: BoundedCache[bytes] = BoundedCache(bytes_max=CACHE_BYTES_MAX)

    @property
    def location(self) -> str:
        """The URI of the table, without a slash at its end."""
        return (self._root + self._folder).rstrip("/")

    def key(self, name: str) -> str:
        """The key of an object of the mirror."""
        return self._folder + METADATA + name

    def uri(self, name: str) -> str:
        """The URI of an object of the mirror."""
        return self._root + self.key(name)

    def data_uri(self, path: str) -> str:
        """The URI of a data file. path: relative to the log's prefix."""
        if is_of_lake(path) and self._of_lake is not None:
            return self._of_lake + key_in_lake(path)
        return self._of_log + path

    def path_of(self, uri: str) -> str:
        """The inverse of `data_uri`. The same for objects of the mirror: their key."""
        if uri.startswith(self._root + self.key("")):
            return uri.removeprefix(self._root)
        if uri.startswith(self._of_log):
            return uri.removeprefix(self._of_log)
        if self._of_lake is not None and uri.startswith(self._of_lake):
            return f"{OUTER}/{uri.removeprefix(self._of_lake)}"
        return uri

    def new_name(self, kind: str, slot: int, ending: str) -> str:
        """A name that nobody else uses."""
        return f"{kind}-{slot}-{self.fileio.env.new_id()}.{ending}"

    def read(self, uri: str) -> bytes:
        """The bytes of an object that the mirror names. Raises CorruptMirror if it is missing."""
        found = self._cache.get(uri)
        if found is None:
            found = self._read(uri)
            self.remember(uri, found)
        return found

    def read_all(self, uris: Sequence[str]) -> list[bytes]:
        """The bytes of several objects, read beside each other."""
        return map_io(self.fileio.env, self.read, uris)

    def read_range(self, uri: str, place: Range) -> bytes:
        """Some bytes of an object that the mirror names. Raises CorruptMirror if it is missing."""
        found = self._cache.get(_place_of(uri, place))
        if found is None:
            found = self._read(uri, place)
            self.remember_range(uri, place, found)
        return found

    def _read(self, uri: str, place: Range | None = None) -> bytes:
        try:
            return self.fileio.read(self.path_of(uri), byte_range=place)
        except NotFound as error:
            raise CorruptMirror(f"The mirror names {uri}, which is missing. Make the mirror again from the table.") from error

    def remember_range(self, uri: str, place: Range, data: bytes) -> None:
        """Spare the next read of these bytes."""
        self._cache.put(_place_of(uri, place), data, len(data))

    def remember(self, uri: str, data: bytes) -> None:
        """Spare the next read."""
        self._cache.put(uri, data, len(data))


def _place_of(uri: str, place: Range) -> str:
    return f"{uri}#{place.start}-{place.end}"


class Uploads:
    """Puts of new objects that run beside each other. Each has a name that nobody else uses.

    Call `finish` before anything names the objects, or `discard` if nothing ever will.
    """

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio
        self._running: deque[Future[None]] = deque()
        self._keys: list[str] = []

    @property
    def count(self) -> int:
        """How many objects there are."""
        return len(self._keys)

    def put(self, key: str, data: bytes) -> None:
        """Begin to put an object. Waits while too many are on their way."""
        while len(self._running) >= UPLOADS_MAX:
            self._running.popleft().result()
        self._keys.append(key)
        self._running.append(self._fileio.env.submit_io(partial(self._put, key, data)))

    def finish(self) -> None:
        """Wait for all objects. Raises the first error."""
        while self._running:
            self._running.popleft().result()

    def keep(self) -> None:
        """Never delete the objects: something may name them."""
        self._keys.clear()

    def discard(self) -> None:
        """Wait, and delete all objects that were put. An object that cannot be deleted stays until the mirror is cleaned."""
        for future in self._running:
            future.exception()
        self._running.clear()
        self._fileio.delete(self._keys)

    def _put(self, key: str, data: bytes) -> None:
        outcome = self._fileio.put(key, data, Create())
        if isinstance(outcome, OutcomeUnknown):
            outcome = self._fileio.put(key, data, Create())
            if isinstance(outcome, PreconditionFailed):
                return  # Nobody else uses the name, so the first attempt took effect.
        if isinstance(outcome, OutcomeUnknown):
            raise outcome.cause
        require_written(outcome, key)
