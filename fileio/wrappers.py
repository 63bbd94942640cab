"""Backends around another backend: `MeteredBackend` counts requests, `PrefixedBackend` shows the keys below a prefix."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fileio.contract import (
    FULL_KEY_BYTES_MAX,
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
    OutcomeUnknown,
    PutMode,
    PutOutcome,
    Update,
    Upload,
    Version,
)
from fileio.env import Env, on_fork
from fileio.errors import FileIOError, InvalidKey
from fileio.options import quote_path

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Counts since the store was opened.

    Args:
        requests: Requests by kind: get, head, put, put_create, put_update, append, upload_start, upload_part, upload_complete,
            upload_abort, list, delete, copy.
        errors: Requests that raised or answered OutcomeUnknown, by kind.
        retries: Attempts beyond the first, of all kinds.
        bytes_read: Bytes of objects read.
        bytes_written: Bytes of objects written.
        seconds: Total latency by kind, failures included.
    """

    requests: Mapping[str, int]
    errors: Mapping[str, int]
    retries: int
    bytes_read: int
    bytes_written: int
    seconds: Mapping[str, float]

    def __sub__(self, earlier: MetricsSnapshot) -> MetricsSnapshot:
        """What happened between `earlier` and this snapshot."""
        return MetricsSnapshot(
            requests={k: n - earlier.requests.get(k, 0) for k, n in self.requests.items() if n != earlier.requests.get(k, 0)},
            errors={k: n - earlier.errors.get(k, 0) for k, n in self.errors.items() if n != earlier.errors.get(k, 0)},
            retries=self.retries - earlier.retries,
            bytes_read=self.bytes_read - earlier.bytes_read,
            bytes_written=self.bytes_written - earlier.bytes_written,
            seconds={k: s - earlier.seconds.get(k, 0.0) for k, s in self.seconds.items() if s != earlier.seconds.get(k, 0.0)},
        )

    @property
    def request_count(self) -> int:
        """The number of requests of all kinds."""
        return sum(self.requests.values())


class Metrics:
    """Counters of one opened store. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._retries = 0
        self._bytes_read = 0
        self._bytes_written = 0
        on_fork(self)

    def after_fork(self) -> None:
        """Replace the lock: a thread that does not exist in the child may have held it."""
        self._lock = threading.Lock()

    def snapshot(self) -> MetricsSnapshot:
        """An immutable copy of the counters."""
        with self._lock:
            return MetricsSnapshot(
                dict(self._requests), dict(self._errors), self._retries, self._bytes_read, self._bytes_written, dict(self._seconds)
            )

    def record(self, kind: str, seconds: float, *, failed: bool, bytes_read: int = 0, bytes_written: int = 0) -> None:
        """Count one request of a kind, which took so many seconds."""
        with self._lock:
            self._requests[kind] += 1
            self._seconds[kind] += seconds  # type: ignore[assignment]
            self._errors[kind] += failed
            self._bytes_read += bytes_read
            self._bytes_written += bytes_written

    def record_retry(self) -> None:
        """Count one attempt beyond the first."""
        with self._lock:
            self._retries += 1


class MeteredBackend(Backend):
    """Counts requests, bytes, errors and seconds of another backend."""

    def __init__(self, inner: Backend, metrics: Metrics, env: Env) -> None:
        self._inner = inner
        self._metrics = metrics
        self._env = env

    @property
    def url(self) -> str:
        """The URL of the inner backend."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the inner backend."""
        return self._inner.capabilities

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """Counted as `get`."""
        return self._measure("get", lambda: self._inner.get(key, byte_range, if_none_match))

    def head(self, key: str) -> ObjectMeta:
        """Counted as `head`."""
        return self._measure("head", lambda: self._inner.head(key))

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Counted as `put`, `put_create` or `put_update`, by the mode."""
        kind = "put_create" if isinstance(mode, Create) else "put_update" if isinstance(mode, Update) else "put"
        return self._measure(kind, lambda: self._inner.put(key, data, mode, metadata), bytes_written=_size(data))

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        """Counted as `append`."""
        return self._measure("append", lambda: self._inner.append(key, data, offset), bytes_written=_size(data))

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """Counted as `upload_start`. Its requests are counted too."""
        return _MeteredUpload(self._measure("upload_start", lambda: self._inner.start_upload(key, mode, metadata)), self)

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """Counted as `list`."""
        return self._measure("list", lambda: self._inner.list_page(prefix, start_after, delimiter, cursor, limit))

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """Counted as `delete`, once for the batch."""
        return self._measure("delete", lambda: self._inner.delete_batch(keys))

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Counted as `copy`."""
        return self._measure("copy", lambda: self._inner.copy(source, target, mode, metadata))

    def close(self) -> None:
        """Close the inner backend."""
        self._inner.close()

    def _measure(self, kind: str, call: Callable[[], T], *, bytes_written: int = 0) -> T:
        began_s = self._env.monotonic_s()
        failed = True
        bytes_read = 0
        try:
            result = call()
            failed = isinstance(result, OutcomeUnknown)
            bytes_read = len(result.data) if isinstance(result, GetResult) else 0
            return result
        finally:
            self._metrics.record(kind, self._env.monotonic_s() - began_s, failed=failed, bytes_read=bytes_read, bytes_written=bytes_written)


class _MeteredUpload(Upload):
    def __init__(self, inner: Upload, meter: MeteredBackend) -> None:
        self._inner = inner
        self._meter = meter

    def put_part(self, number: int, data: Buffer) -> None:
        self._meter._measure("upload_part", lambda: self._inner.put_part(number, data), bytes_written=_size(data))

    def complete(self) -> PutOutcome:
        return self._meter._measure("upload_complete", self._inner.complete)

    def abort(self) -> None:
        self._meter._measure("upload_abort", self._inner.abort)


class PrefixedBackend(Backend):
    """The keys of another backend that begin with `<prefix>/`, without this prefix.

    Raises InvalidKey for keys that are too long together with the prefix.

    Args:
        inner: The other backend.
        prefix: Of the keys.
        outer: A key `<outer>/<key>` is the key of the other backend itself. Lists do not show such keys. None: there are none.
    """

    def __init__(self, inner: Backend, prefix: str, outer: str | None = None) -> None:
        self.inner = inner
        self._prefix = prefix.strip("/") + "/"
        self._outer = None if outer is None else outer.strip("/") + "/"
        self._url = inner.url.rstrip("/") + "/" + quote_path(self._prefix.rstrip("/"))

    @property
    def outer_url(self) -> str | None:
        """The URL of the inner backend, if some keys are its own. Else None."""
        return None if self._outer is None else self.inner.url

    @property
    def url(self) -> str:
        """The URL of the inner backend, with the prefix."""
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the inner backend."""
        return self.inner.capabilities

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """Read the object below the prefix."""
        result = self.inner.get(self._whole(key), byte_range, if_none_match)
        return result if isinstance(result, NotModified) else replace(result, meta=replace(result.meta, key=key))

    def head(self, key: str) -> ObjectMeta:
        """Look at the object below the prefix."""
        return replace(self.inner.head(self._whole(key)), key=key)

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Write the object below the prefix."""
        return self.inner.put(self._whole(key), data, mode, metadata)

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        """Append to the object below the prefix."""
        return self.inner.append(self._whole(key), data, offset)

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """Start an upload of the object below the prefix."""
        return self.inner.start_upload(self._whole(key), mode, metadata)

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """List below the prefix. Keys and common prefixes come without it."""
        after = None if start_after is None else self._prefix + start_after
        page = self.inner.list_page(self._prefix + prefix, after, delimiter, cursor, limit)
        cut = len(self._prefix)
        return ListPage([self._inside(meta) for meta in page.objects], [p[cut:] for p in page.prefixes], page.cursor)

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """Delete below the prefix. A key that is too long is an error of that key only."""
        refused: dict[str, FileIOError] = {}
        for key in keys:
            try:
                self._whole(key)
            except InvalidKey as error:
                refused[key] = error
        sent = [key for key in keys if key not in refused]
        results = iter(self.inner.delete_batch([self._whole(key) for key in sent]) if sent else ())
        return [DeleteResult(key, refused[key]) if key in refused else replace(next(results), key=key) for key in keys]

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Copy below the prefix."""
        return self.inner.copy(self._whole(source), self._whole(target), mode, metadata)

    def close(self) -> None:
        """Close the inner backend."""
        self.inner.close()

    def _whole(self, key: str) -> str:
        whole = key[len(self._outer) :] if self._outer is not None and key.startswith(self._outer) else self._prefix + key
        if 4 * len(whole) > FULL_KEY_BYTES_MAX and (size := len(whole.encode())) > FULL_KEY_BYTES_MAX:
            raise InvalidKey(
                f"The key {key[:80]!r} is too long. It has {size} bytes together with the prefix {self._prefix[:80]!r}, but at most"
                f" {FULL_KEY_BYTES_MAX} are possible. Use a shorter prefix or key."
            )
        return whole

    def _inside(self, meta: ObjectMeta) -> ObjectMeta:
        return replace(meta, key=meta.key[len(self._prefix) :])


def _size(data: Buffer) -> int:
    return data.nbytes if isinstance(data, memoryview) else len(data)
