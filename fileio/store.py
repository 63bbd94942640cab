"""`FileIO`: object storage as this project needs it, over any backend.

One instance is safe for many threads. It is not picklable: send `describe()` to another process and `open()` it there.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

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
    OutcomeUnknown,
    Overwrite,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    Range,
    Update,
    Upload,
    Version,
    Written,
    as_bytes,
    check_key,
    check_key_part,
    check_metadata,
    require_written,
)
from fileio.env import Env, default_env, map_io
from fileio.errors import FileIOError, NotFound, Throttled, Unavailable, Unsupported, UploadLost
from fileio.ranges import coalesce
from fileio.read_stream import ReadStream
from fileio.stream_settings import StreamSettings
from fileio.wrappers import MeteredBackend, Metrics, PrefixedBackend
from fileio.write_outcomes import (
    Absent,
    Contradicted,
    Evidence,
    Foreign,
    RetryPolicy,
    WriteIsOurs,
    evidence_of,
    resolve_write_outcome,
    retry,
    write_metadata,
)
from fileio.write_stream import WriteStream

if TYPE_CHECKING:
    from fileio.registry import StoreDescription

T = TypeVar("T")

DEFAULT_STREAM_SETTINGS = StreamSettings()

CLOCK_READ_S_MAX = 1.0
"""An answer that took longer does not say what time it is: nobody knows at which moment the store looked at its clock."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What the clock of the store and the local one said at one moment, ms since 1970 UTC.

    local_ms: of the moments between request and answer that at which the two differ least. at_s: of the answer, by `Env.monotonic_s`.
    """

    store_ms: int
    local_ms: int
    at_s: float


class FileIO:
    """An opened store: get, put with a condition, append, list, delete, copy, streams.

    Reads and idempotent requests are retried within `policy`; the outcome of every write is settled (see `fileio.write_outcomes`). Errors
    are those of `fileio.errors`.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        env: Env | None = None,
        policy: RetryPolicy | None = None,
        description: StoreDescription | None = None,
    ) -> None:
        self._env = env or default_env()
        self._policy = policy or RetryPolicy()
        self.metrics = Metrics()
        self._bare = backend
        self._backend: Backend = MeteredBackend(backend, self.metrics, self._env)
        self._description = description
        self._clock: ClockReading | None = None

    # ---- what it is

    @property
    def url(self) -> str:
        """Where this store points, without secrets."""
        return self._backend.url

    @property
    def capabilities(self) -> Capabilities:
        """What the backend declares."""
        return self._backend.capabilities

    @property
    def env(self) -> Env:
        return self._env

    def clock(self, *, since_s: float) -> ClockReading | None:
        """What time it is at the store, by the newest answer to a `put` or `get` of this instance that came quickly and says so.

        since_s: answers before this moment of `Env.monotonic_s` do not count. None: there is no such answer, or the store has no clock.
        """
        reading = self._clock
        return None if reading is None or reading.at_s < since_s else reading

    def describe(self) -> StoreDescription:
        """A picklable description that opens the same store in another process. Raises Unsupported for a hand-made store."""
        if self._description is None:
            raise Unsupported(f"{self.url} was not opened from a URL, so another process cannot open it: use fileio.open_store(url)")
        return self._description

    def child(self, prefix: str) -> FileIO:
        """The keys below `prefix` as a store of its own, with its own metrics, over the same connections."""
        check_key(prefix)
        description = None if self._description is None else self._description.child(prefix)
        return FileIO(PrefixedBackend(self._bare, prefix), env=self._env, policy=self._policy, description=description)

    def close(self) -> None:
        """Release connections. The object must not be used afterwards."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FileIO({self.url!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} holds live connections and cannot be pickled: send describe() and open() it there")

    # ---- reading

    def get(self, key: str, *, byte_range: ByteRange | None = None, if_none_match: Version | None = None) -> GetResult | NotModified:
        """The object, or a range of it; NotModified when it still has the version `if_none_match`. Raises NotFound."""
        check_key(key)

        def attempt() -> GetResult | NotModified:
            began_s = self._env.monotonic_s()
            result = self._backend.get(key, byte_range, if_none_match)
            if isinstance(result, GetResult):
                self._read_clock(result.store_time_ms, began_s)
            return result

        return self._retry(attempt)

    def read(self, key: str, *, byte_range: ByteRange | None = None) -> bytes:
        """The bytes of the object, or of a range of it. Raises NotFound."""
        result = self.get(key, byte_range=byte_range)
        assert isinstance(result, GetResult)
        return result.data

    def get_ranges(
        self, key: str, ranges: Sequence[tuple[int, int]], *, gap_bytes: int = 1 << 20, request_bytes: int = 8 << 20
    ) -> list[bytes]:
        """The bytes of several half-open ranges `(start, end)`, in their order, each clipped to the object.

        Ranges nearer to one another than `gap_bytes` share a request; requests larger than `request_bytes` are split; all are sent in
        parallel. The object must not change meanwhile (objects of a table never do).
        """
        check_key(key)
        plan = coalesce(ranges, gap_bytes=gap_bytes, request_bytes=request_bytes)
        fetched = map_io(self._env, lambda r: self.read(key, byte_range=Range(*r)), plan.requests)
        return plan.assemble(fetched)

    def head(self, key: str) -> ObjectMeta:
        """Size, version, time and metadata. Raises NotFound."""
        check_key(key)
        return self._retry(lambda: self._backend.head(key))

    def exists(self, key: str) -> bool:
        """Whether the object is there now."""
        try:
            self.head(key)
        except NotFound:
            return False
        return True

    def list(
        self, prefix: str = "", *, start_after: str | None = None, delimiter: str | None = None, page_size: int = 1000
    ) -> Iterator[ListPage]:
        """Pages of the keys that begin with `prefix` and come after `start_after`, in byte order where `capabilities.list_ordered`.

        With a delimiter, keys below the next delimiter are folded into `ListPage.prefixes`. Each page is one request; what is written or
        deleted meanwhile may or may not be in it. Raises ValueError for a page size below 1.
        """
        check_key_part(prefix)
        check_key_part(start_after or "")
        if page_size < 1:
            raise ValueError(f"a page of {page_size} keys cannot be listed: give a page_size of at least 1")
        return self._pages(prefix, start_after, delimiter, page_size)

    def _pages(self, prefix: str, start_after: str | None, delimiter: str | None, page_size: int) -> Iterator[ListPage]:
        cursor: str | None = None
        while True:
            page = self._list_page(prefix, start_after, delimiter, cursor, page_size)
            yield page
            cursor = page.cursor
            if cursor is None:
                return

    def list_keys(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[str]:
        """The keys of `list`, one by one."""
        for page in self.list(prefix, start_after=start_after):
            for meta in page.objects:
                yield meta.key

    def open_read(self, key: str, *, meta: ObjectMeta | None = None, settings: StreamSettings = DEFAULT_STREAM_SETTINGS) -> ReadStream:
        """A seekable binary file over the object, reading ahead in parallel. Raises NotFound. `meta` saves the HEAD when it is known."""
        return ReadStream(self, meta or self.head(key), settings)

    # ---- writing

    def put(
        self,
        key: str,
        data: Buffer,
        mode: PutMode | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        want_found: bool = False,
    ) -> PutOutcome:
        """Write a whole object in one request, under a condition (default: `Overwrite()`).

        Returns Written, Conflict (certainly not written: somebody else's object is there), or Unknown (nobody can tell).
        data: any bytes-like object; it must not change before the call returns. metadata: extra user metadata, see `check_metadata`.
        want_found: Conflict brings what is there: it is read back by a GET instead of a HEAD.
        Raises only when certainly nothing was written: InvalidConfig for such metadata, Unsupported for more bytes than
        `capabilities.put_bytes_max`, and what the store refuses.
        """
        check_key(key)
        check_metadata(metadata)
        data = as_bytes(data)
        most = self.capabilities.put_bytes_max
        if len(data) > most:
            raise Unsupported(f"{len(data)} bytes for {key!r} are more than one put to {self.url} takes ({most}): use open_write()")
        mode = mode or Overwrite()
        if not isinstance(mode, Overwrite) and not self.capabilities.conditional_put:
            raise Unsupported(f"{self.url} ignores conditions on put, so {key!r} cannot be written under one: use another store")
        write_id = self._env.new_id()
        marks = {**(metadata or {}), **write_metadata(write_id, mode)}

        def attempt() -> PutOutcome:
            began_s = self._env.monotonic_s()
            outcome = self._backend.put(key, data, mode, marks)
            if isinstance(outcome, Written):
                self._read_clock(outcome.store_time_ms, began_s)
            return outcome

        if not want_found:
            return self._settle(key, write_id, mode, attempt, size=len(data))
        found: list[GetResult] = []

        def read_back() -> Evidence:
            try:
                result = self.get(key)
            except NotFound:
                return Absent()
            assert isinstance(result, GetResult)
            found.append(result)
            return _evidence(result.meta, write_id, mode, size=len(data))

        outcome = self._settle_with(read_back, mode, attempt)
        return replace(outcome, found=found[-1]) if isinstance(outcome, PreconditionFailed) and found else outcome

    def append(self, key: str, data: Buffer, *, offset: int) -> PutOutcome:
        """Add bytes to the object whose size is `offset` (0: create it). Conflict when its size is another one.

        A lost response is settled by comparing bytes, so clients that race to append must append bytes that differ (a nonce).
        Raises Unsupported where `capabilities.append` is false: use `open_write`. ValueError for a negative offset.
        """
        check_key(key)
        data = as_bytes(data)
        if offset < 0:
            raise ValueError(f"cannot append to {key!r} at {offset}: the offset is the size that the object has")
        if not self.capabilities.append:
            raise Unsupported(f"{self.url} cannot append to {key!r}: write the object with open_write() instead")

        def read_back() -> Evidence:
            try:
                result = self.get(key, byte_range=Range(offset, offset + len(data)))
            except NotFound:
                return Absent()
            assert isinstance(result, GetResult)
            ours = result.data == bytes(data) and len(data) > 0
            return WriteIsOurs(result.meta.version) if ours else Foreign(result.meta.version, came_instead=len(result.data) > 0)

        mode = Create() if offset == 0 else Update(Version(f"of {offset} bytes"))
        return self._settle_with(read_back, mode, lambda: self._backend.append(key, data, offset))

    def copy(self, source: str, target: str, mode: PutMode | None = None) -> PutOutcome:
        """Copy an object within the store, its user metadata included, without its bytes passing through here. Raises NotFound."""
        check_key(source)
        check_key(target)
        mode = mode or Overwrite()
        if not isinstance(mode, Overwrite) and not self.capabilities.conditional_copy:
            raise Unsupported(f"{self.url} ignores conditions on copy: read {source!r} and put() it to {target!r} under the condition")
        write_id = self._env.new_id()
        marks = {**self.head(source).metadata, **write_metadata(write_id, mode)}
        return self._settle(target, write_id, mode, lambda: self._backend.copy(source, target, mode, marks), size=None)

    def delete(self, keys: Iterable[str]) -> builtins.list[DeleteResult]:
        """Delete objects; a missing one is success. One result a key, in order; an error concerns that key only."""
        listed = [check_key(key) for key in keys]
        size = self.capabilities.delete_batch_max
        batches = [listed[i : i + size] for i in range(0, len(listed), size)]
        return [result for batch in map_io(self._env, self._delete_batch, batches) for result in batch]

    def start_upload(self, key: str, mode: PutMode | None = None, *, metadata: Mapping[str, str] | None = None) -> SettledUpload:
        """A multipart upload whose parts are retried and whose completion is settled. `open_write` is the comfortable way."""
        check_key(key)
        check_metadata(metadata)
        mode = mode or Overwrite()
        if not isinstance(mode, Overwrite) and not self.capabilities.conditional_complete:
            raise Unsupported(f"{self.url} ignores conditions on completing an upload: put() {key!r} in one request")
        write_id = self._env.new_id()
        marks = {**(metadata or {}), **write_metadata(write_id, mode)}
        return SettledUpload(self, key, mode, write_id, self._retry(lambda: self._backend.start_upload(key, mode, marks)))

    def open_write(
        self,
        key: str,
        mode: PutMode | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        settings: StreamSettings = DEFAULT_STREAM_SETTINGS,
    ) -> WriteStream:
        """A binary file to write to; the object appears whole, under the condition, when it is finished, or not at all.

        `finish()` returns the outcome; `close()` raises NotWritten unless it is Written; leaving a `with` block by an exception aborts.
        """
        return WriteStream(self, check_key(key), mode or Overwrite(), check_metadata(metadata), settings)

    # ---- how

    def _read_clock(self, store_ms: int | None, began_s: float) -> None:
        if store_ms is None:
            return
        now_s, now_ms = self._env.monotonic_s(), self._env.now_ms()
        took_s = now_s - began_s
        if took_s <= CLOCK_READ_S_MAX:
            self._clock = ClockReading(store_ms, min(now_ms, max(store_ms, now_ms - int(took_s * 1000))), now_s)

    def _retry(self, call: Callable[[], T]) -> T:
        return retry(call, policy=self._policy, env=self._env, on_retry=self.metrics.record_retry)

    def _settle(
        self,
        key: str,
        write_id: str,
        mode: PutMode,
        attempt: Callable[[], PutOutcome],
        *,
        size: int | None,
        doubt: Exception | None = None,
    ) -> PutOutcome:
        """size: of what is sent, in bytes; None when it is not known."""

        def read_back() -> Evidence:
            try:
                return _evidence(self.head(key), write_id, mode, size=size)
            except NotFound:
                return Absent()

        return self._settle_with(read_back, mode, attempt, doubt=doubt)

    def _settle_with(
        self, read_back: Callable[[], Evidence], mode: PutMode, attempt: Callable[[], PutOutcome], *, doubt: Exception | None = None
    ) -> PutOutcome:
        return resolve_write_outcome(
            attempt, read_back, mode=mode, policy=self._policy, env=self._env, on_retry=self.metrics.record_retry, doubt=doubt
        )

    def _list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        return self._retry(lambda: self._backend.list_page(prefix, start_after, delimiter, cursor, limit))

    def _delete_batch(self, keys: Sequence[str]) -> builtins.list[DeleteResult]:
        """One batch, asking again for the keys that were throttled or unavailable."""
        done: dict[str, DeleteResult] = {}

        def attempt() -> None:
            left = [key for key in keys if key not in done or done[key].error is not None]
            for result in self._backend.delete_batch(left):
                done[result.key] = result
            for result in done.values():
                if isinstance(result.error, (Throttled, Unavailable)):
                    raise result.error

        try:
            self._retry(attempt)
        except FileIOError as error:
            for key in keys:
                done.setdefault(key, DeleteResult(key, error))
        return [done[key] for key in keys]


def _evidence(meta: ObjectMeta, write_id: str, mode: PutMode, *, size: int | None) -> Evidence:
    """`evidence_of`. Raises FileIOError when the object is ours and is not of the size that was sent: what is there is not known."""
    found = evidence_of(meta, write_id, mode)
    if isinstance(found, WriteIsOurs) and size not in (None, meta.size):
        raise FileIOError(f"{meta.key!r} has {meta.size} bytes in the store, but {size} were sent: delete it and write it again")
    return found


class SettledUpload(Upload):
    """A multipart upload of `FileIO`: parts are retried, the completion is settled by its write id."""

    def __init__(self, fileio: FileIO, key: str, mode: PutMode, write_id: str, inner: Upload) -> None:
        self._fileio = fileio
        self._key = key
        self._mode = mode
        self._write_id = write_id
        self._inner = inner
        self._sizes: dict[int, int] = {}
        self._doubt: Exception | None = None

    def put_part(self, number: int, data: Buffer) -> None:
        """Send part `number`, retried within the policy. Raises Unavailable, Throttled or UploadLost when it cannot be sent."""
        content = as_bytes(data)
        self._sizes[number] = len(content)
        self._fileio._retry(lambda: self._inner.put_part(number, content))

    def complete(self) -> PutOutcome:
        """The settled outcome of completing; after Unknown it may be asked for again.

        Raises UploadLost when the store no longer knows the upload and certainly nothing landed.
        """
        refused = False

        def attempt() -> PutOutcome:
            nonlocal refused
            outcome = self._inner.complete()
            refused = isinstance(outcome, PreconditionFailed)
            return outcome

        lost = f"the upload of {self._key!r} is gone and nothing of it landed: write the object again"
        try:
            size = sum(self._sizes.values())
            outcome = self._fileio._settle(self._key, self._write_id, self._mode, attempt, size=size, doubt=self._doubt)
        except Throttled as error:
            if not refused:
                raise
            raise UploadLost(lost) from error
        if refused and isinstance(outcome, OutcomeUnknown) and isinstance(outcome.cause, Contradicted):
            raise UploadLost(lost) from outcome.cause
        if isinstance(outcome, OutcomeUnknown):
            self._doubt = outcome.cause
        return outcome

    def abort(self) -> None:
        """Remove what was sent, retried within the policy. Raises Unavailable when the store does not answer."""
        self._fileio._retry(self._inner.abort)


__all__ = ["FileIO", "SettledUpload", "require_written"]
