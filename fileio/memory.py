"""`memory://name`: stores within this process, for tests and experiments.

One lock makes every request atomic, so the store is linearizable: its answers are exactly those of the contract in `fileio.contract`.
It has all capabilities. A part of an upload may be as small as one byte, so that tests of streams are cheap.
"""

from __future__ import annotations

import hashlib
import os
import threading
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fileio.contract import (
    Backend,
    Buffer,
    ByteRange,
    Capabilities,
    Create,
    DeleteResult,
    GetResult,
    ListPage,
    NotModified,
    ObjectMeta,
    Overwrite,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    Range,
    Suffix,
    Update,
    Upload,
    Version,
    Written,
)
from fileio.env import Env, default_env, on_fork
from fileio.errors import BucketNotFound, InvalidConfig, NotFound, Unsupported, UploadLost

MEMORY_CAPABILITIES = Capabilities(append=True, store_clock=False, part_bytes_min=1)


def _this_process() -> str:
    """A name that no other process has. Pids repeat between containers, and a fork copies the identifier."""
    return f"{os.getpid()}-{_PROCESS_ID}"


_PROCESS_ID = default_env().new_id()


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Options of `memory:`. There are none to set.

    Args:
        owner: The process that holds the store. A description carries it, so that another process gets an error and not an empty store.
    """

    owner: str = field(default_factory=_this_process, metadata={"carried": True})


@dataclass(frozen=True, slots=True)
class _Object:
    """The object under one key. `data` is immutable, except that an append may lengthen it under the lock."""

    data: bytes | bytearray
    version: Version
    modified_ms: int
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Landed:
    """One state of a key. `data` is None when the object was deleted."""

    version: Version | None
    data: bytes | None
    metadata: Mapping[str, str]


class MemoryBackend(Backend):
    """An object store in memory.

    Args:
        name: The name in the URL.
        content_versions: Versions are hashes of the bytes, as on S3. Otherwise every write has a new version, as on GCS and Azure.
        capabilities: What to declare. As on such stores, a condition that is not declared is ignored, and an append is refused.
        keep_history: Remember every state of every key, for `history`.
        env: The clock.
    """

    def __init__(
        self,
        name: str = "unnamed",
        *,
        content_versions: bool = False,
        capabilities: Capabilities | None = None,
        keep_history: bool = False,
        env: Env | None = None,
    ) -> None:
        base = capabilities or MEMORY_CAPABILITIES
        self._capabilities = replace(base, content_versions=content_versions)
        self._name = name
        self._env = env or default_env()
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._keys: list[str] = []
        self._uploads: dict[int, _MemoryUpload] = {}
        self._counter = 0
        self._dropped = False
        self._history: defaultdict[str, list[Landed]] | None = defaultdict(list) if keep_history else None
        on_fork(self)

    def after_fork(self) -> None:
        """The child has its own copy. A thread that does not exist there may have held the lock."""
        self._lock = threading.Lock()

    # ---- what the store is

    @property
    def url(self) -> str:
        """`memory://` and the name."""
        return f"memory://{self._name}"

    @property
    def capabilities(self) -> Capabilities:
        """As declared."""
        return self._capabilities

    @property
    def uploads_in_progress(self) -> list[str]:
        """The keys of uploads that are neither completed nor aborted."""
        with self._lock:
            return sorted(upload.key for upload in self._uploads.values())

    def history(self, key: str) -> list[Landed]:
        """Every state of a key, oldest first. Needs `keep_history`."""
        with self._lock:
            assert self._history is not None, "this MemoryBackend was made without keep_history"
            return list(self._history[key])

    def drop(self) -> None:
        """Remove the store and everything in it. Later calls raise BucketNotFound."""
        with self._lock:
            self._dropped = True
            self._objects.clear()
            self._keys.clear()
            self._uploads.clear()

    # ---- the contract

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """A copy of the bytes."""
        with self._lock:
            found = self._find(key)
            if found.version == if_none_match:
                return NotModified()
            start, end = _bounds(byte_range, len(found.data))
            return GetResult(_meta(key, found), bytes(found.data[start:end]), start)

    def head(self, key: str) -> ObjectMeta:
        """Metadata included."""
        with self._lock:
            return _meta(key, self._find(key))

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Copies the bytes."""
        copied = bytes(data)
        with self._lock:
            return self._write(key, copied, mode if self._capabilities.conditional_put else Overwrite(), metadata)

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        """Lengthens the bytes in place."""
        if not self._capabilities.append:
            raise Unsupported(f"{self.url} cannot append to {key!r}. Write the whole object instead.")
        with self._lock:
            self._check_open()
            found = self._objects.get(key)
            if (0 if found is None else len(found.data)) != offset:
                return PreconditionFailed(None if found is None else found.version)
            whole = bytearray() if found is None else found.data if isinstance(found.data, bytearray) else bytearray(found.data)
            whole += data
            return self._land(key, whole, {} if found is None else found.metadata)

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """Parts stay apart from the objects until `complete`."""
        with self._lock:
            self._check_open()
            self._counter += 1
            upload = _MemoryUpload(self, self._counter, key, mode if self._capabilities.conditional_complete else Overwrite(), metadata)
            self._uploads[self._counter] = upload
            return upload

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """The cursor is the last key, or the last common prefix, of the previous page."""
        objects: list[ObjectMeta] = []
        prefixes: list[str] = []
        with self._lock:
            self._check_open()
            index = bisect_left(self._keys, prefix)
            if start_after is not None:
                index = max(index, bisect_right(self._keys, start_after))
            if cursor is not None:
                index = max(index, self._after(cursor, delimiter))
            last = ""
            while index < len(self._keys) and self._keys[index].startswith(prefix):
                if len(objects) + len(prefixes) >= limit:
                    return ListPage(objects, prefixes, last)
                last = key = self._keys[index]
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                if delimiter and cut >= 0:
                    last = key[: cut + len(delimiter)]
                    prefixes.append(last)
                    index = self._after(last, delimiter)
                else:
                    objects.append(_meta(key, self._objects[key], with_metadata=False))
                    index += 1
            return ListPage(objects, prefixes, None)

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """All keys under one lock."""
        assert len(keys) <= self._capabilities.delete_batch_max, f"{len(keys)} keys are more than delete_batch_max"
        with self._lock:
            self._check_open()
            for key in keys:
                if self._objects.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
                    if self._history is not None:
                        self._history[key].append(Landed(None, None, {}))
        return [DeleteResult(key) for key in keys]

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Under one lock."""
        with self._lock:
            copied = bytes(self._find(source).data)
            return self._write(target, copied, mode if self._capabilities.conditional_copy else Overwrite(), metadata)

    def close(self) -> None:
        """Does nothing: the store exists until it is dropped or the process ends."""

    # ---- under the lock

    def _check_open(self) -> None:
        if self._dropped:
            raise BucketNotFound(f"{self.url} was dropped. Open it again to begin with an empty store.")

    def _find(self, key: str) -> _Object:
        self._check_open()
        found = self._objects.get(key)
        if found is None:
            raise NotFound(f"There is no object {key!r} in {self.url}.")
        return found

    def _write(self, key: str, data: bytes, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        self._check_open()
        found = self._objects.get(key)
        current = None if found is None else found.version
        match mode:
            case Create() if found is not None:
                return PreconditionFailed(current)
            case Update(version) if version != current:
                return PreconditionFailed(current)
        return self._land(key, data, dict(metadata))

    def _land(self, key: str, data: bytes | bytearray, metadata: Mapping[str, str]) -> Written:
        self._counter += 1
        version = Version(hashlib.sha256(data).hexdigest()[:32] if self._capabilities.content_versions else str(self._counter))
        now_ms = self._env.now_ms()
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = _Object(data, version, now_ms, metadata)
        if self._history is not None:
            self._history[key].append(Landed(version, bytes(data), metadata))
        return Written(version, now_ms if self._capabilities.store_clock else None)

    def _after(self, cursor: str, delimiter: str | None) -> int:
        """The index of the first key behind `cursor`: behind all keys below it when it is a common prefix."""
        if delimiter and cursor.endswith(delimiter):
            index = bisect_left(self._keys, cursor)
            return bisect_left(self._keys, True, lo=index, key=lambda key: not key.startswith(cursor))
        return bisect_right(self._keys, cursor)


class _MemoryUpload(Upload):
    def __init__(self, store: MemoryBackend, number: int, key: str, mode: PutMode, metadata: Mapping[str, str]) -> None:
        self._store = store
        self._number = number
        self.key = key
        self._mode = mode
        self._metadata = dict(metadata)
        self._parts: dict[int, bytes] = {}

    def put_part(self, number: int, data: Buffer) -> None:
        copied = bytes(data)
        with self._store._lock:
            self._store._check_open()
            if self._number not in self._store._uploads:
                raise UploadLost(f"The upload of {self.key!r} to {self._store.url} was completed or aborted. Write the object again.")
            self._parts[number] = copied

    def complete(self) -> PutOutcome:
        with self._store._lock:
            self._store._check_open()
            if self._number not in self._store._uploads:
                return PreconditionFailed(None)
            numbers = sorted(self._parts)
            assert numbers == list(range(1, len(numbers) + 1)) and numbers, f"parts {numbers} of {self.key!r} are not dense from 1"
            outcome = self._store._write(self.key, b"".join(self._parts[n] for n in numbers), self._mode, self._metadata)
            if isinstance(outcome, Written):
                del self._store._uploads[self._number]
            return outcome

    def abort(self) -> None:
        with self._store._lock:
            self._store._uploads.pop(self._number, None)


# ---- named stores ------------------------------------------------------------------------------------------------


_stores: dict[str, MemoryBackend] = {}
_stores_lock = threading.Lock()


def open_memory(name: str, options: MemoryOptions) -> Backend:
    """The store of that name in this process; the first call creates it. Raises InvalidConfig in other processes."""
    if options.owner != _this_process():
        raise InvalidConfig(
            f"memory://{name} is in another process and cannot be opened here."
            " Use file:, s3:, gs: or az: to share a store between processes."
        )
    with _stores_lock:
        if name not in _stores:
            _stores[name] = MemoryBackend(name)
        return _stores[name]


def drop_memory(name: str) -> None:
    """Remove the store `memory://name` and everything in it. Harmless when there is none. Later calls raise BucketNotFound."""
    with _stores_lock:
        store = _stores.pop(name, None)
    if store is not None:
        store.drop()


# ---- conversions -------------------------------------------------------------------------------------------------


def _bounds(byte_range: ByteRange | None, size: int) -> tuple[int, int]:
    match byte_range:
        case None:
            return 0, size
        case Range(start, end):
            return min(start, size), size if end is None else min(end, size)
        case Suffix(length):
            return max(0, size - length), size


def _meta(key: str, found: _Object, *, with_metadata: bool = True) -> ObjectMeta:
    return ObjectMeta(key, len(found.data), found.version, found.modified_ms, dict(found.metadata) if with_metadata else {})


__all__ = ["MEMORY_CAPABILITIES", "Landed", "MemoryBackend", "MemoryOptions", "drop_memory", "open_memory"]
