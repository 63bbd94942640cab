"""`FileIO`: an opened object store, with one contract over every backend. `StoreDescription` opens it again in another process.

`FileIO` adds to a `Backend` what callers need: limited retries, settled outcomes of writes, streams, coalesced ranges and
metrics. Begin with `fileio.open_store`. `objcat` reaches every store through this class.

- A write answers `Written`, `PreconditionFailed` or `OutcomeUnknown`. If it raises, nothing was written.
- One instance is safe for many threads. It cannot be pickled: send `describe()` to another process and `open()` it there.

See `fileio.contract` for what a backend supplies, and `fileio.write_outcomes` for how lost responses are settled.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, Self, TypeVar

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
    Update,
    Version,
    Written,
    as_bytes,
    check_key,
    check_key_part,
    check_metadata,
)
from fileio.env import Env, default_env, map_io
from fileio.errors import NotFound, Unsupported
from fileio.options import quote_path, redact, surroundings, unquote_path
from fileio.ranges import coalesce
from fileio.read_back import ReadBack, appended_evidence, head_evidence
from fileio.read_stream import ReadStream
from fileio.schemes import open_backend
from fileio.settled_upload import SettledUpload
from fileio.store_clock import ClockReading, StoreClock
from fileio.stream_settings import StreamSettings
from fileio.wrappers import MeteredBackend, Metrics, PrefixedBackend
from fileio.write_outcomes import Evidence, RetryPolicy, delete_settled, resolve_write_outcome, retry, write_metadata
from fileio.write_stream import WriteStream

T = TypeVar("T")

DEFAULT_STREAM_SETTINGS = StreamSettings()


class FileIO:
    """An opened store: get, conditional put, append, list, delete, copy and streams. `open_store` makes one.

    Reads and idempotent requests are retried within `policy`. The outcome of every write is settled (see `fileio.write_outcomes`).
    Every method may raise the errors of `fileio.errors`.
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
        self._clock = StoreClock(self._env)

    # ---- what it is

    @property
    def url(self) -> str:
        """The URL of this store, without secrets."""
        return self._backend.url

    @property
    def capabilities(self) -> Capabilities:
        """What the backend declares that the store can do."""
        return self._backend.capabilities

    @property
    def env(self) -> Env:
        """Clock, randomness and threads of this store."""
        return self._env

    def clock(self, *, since_s: float) -> ClockReading | None:
        """The time at the store, by the newest quick answer to a `put` or `get` of this instance.

        Args:
            since_s: Answers before this moment of `Env.monotonic_s` do not count.

        Returns:
            The reading, or None when no such answer told the time.
        """
        return self._clock.since(since_s)

    def describe(self) -> StoreDescription:
        """A picklable description that opens the same store in another process. Raises Unsupported for a hand-made store."""
        if self._description is None:
            raise Unsupported(f"{self.url} was not opened from a URL, so another process cannot open it. Use fileio.open_store(url).")
        return self._description

    def child(self, prefix: str, *, outer: str | None = None) -> FileIO:
        """The keys below `prefix` as a store with its own metrics, over the same connections. Raises InvalidKey.

        There, the key `<outer>/<key>` is the key of this store, unless `outer` is None.
        """
        check_key(prefix)
        description = None if self._description is None else self._description.child(prefix, outer=outer)
        return FileIO(PrefixedBackend(self._bare, prefix, outer), env=self._env, policy=self._policy, description=description)

    @property
    def outer_url(self) -> str | None:
        """The URL of the store to which some keys lead, see `child`. None: there are no such keys."""
        return self._bare.outer_url if isinstance(self._bare, PrefixedBackend) else None

    def close(self) -> None:
        """Release the connections. Do not use the object afterwards."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FileIO({self.url!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} holds live connections and cannot be pickled. Send describe() and open() it there.")

    # ---- reading

    def get(self, key: str, *, byte_range: ByteRange | None = None, if_none_match: Version | None = None) -> GetResult | NotModified:
        """Read an object, or a range of it.

        Args:
            key: The key of the object.
            byte_range: The bytes to read; None reads all.
            if_none_match: The version that the caller already has.

        Returns:
            Bytes and metadata of one state of the object, or NotModified when it still has the version `if_none_match`.

        Raises:
            NotFound: There is no such object.
        """
        check_key(key)

        def attempt() -> GetResult | NotModified:
            began_s = self._env.monotonic_s()
            result = self._backend.get(key, byte_range, if_none_match)
            if isinstance(result, GetResult):
                self._clock.note(result.store_time_ms, began_s)
            return result

        return self._retry(attempt)

    def read(self, key: str, *, byte_range: ByteRange | None = None) -> bytes:
        """The bytes of an object, or of a range of it. Raises NotFound."""
        result = self.get(key, byte_range=byte_range)
        assert isinstance(result, GetResult)
        return result.data

    def get_ranges(
        self, key: str, ranges: Sequence[tuple[int, int]], *, gap_bytes: int = 1 << 20, request_bytes: int = 8 << 20
    ) -> list[bytes]:
        """Read several ranges of an object in parallel. The object must not change meanwhile; objects of a table never do.

        Args:
            key: The key of the object.
            ranges: Half-open ranges `(start, end)` in bytes. Each is clipped to the object.
            gap_bytes: Ranges nearer to each other than this share a request.
            request_bytes: Requests larger than this are split.

        Returns:
            The bytes of every range, in the order of `ranges`.

        Raises:
            NotFound: There is no such object.
            ValueError: A range is not valid.
        """
        check_key(key)
        plan = coalesce(ranges, gap_bytes=gap_bytes, request_bytes=request_bytes)
        fetched = map_io(self._env, lambda r: self.read(key, byte_range=Range(*r)), plan.requests)
        return plan.assemble(fetched)

    def head(self, key: str) -> ObjectMeta:
        """Size, version, time and metadata of an object. Raises NotFound."""
        check_key(key)
        return self._retry(lambda: self._backend.head(key))

    def exists(self, key: str) -> bool:
        """Whether the object exists now."""
        try:
            self.head(key)
        except NotFound:
            return False
        return True

    def list(
        self, prefix: str = "", *, start_after: str | None = None, delimiter: str | None = None, page_size: int = 1000
    ) -> Iterator[ListPage]:
        """List keys page by page. Each page is one request; it may or may not show what is written or deleted meanwhile.

        Args:
            prefix: The keys begin with this text.
            start_after: The keys are greater than this text.
            delimiter: Groups keys with this text behind the prefix into `ListPage.prefixes`.
            page_size: The largest number of keys in a page.

        Yields:
            Pages, in byte order of the keys where `capabilities.list_ordered`.

        Raises:
            ValueError: `page_size` is below 1.
        """
        check_key_part(prefix)
        check_key_part(start_after or "")
        if page_size < 1:
            raise ValueError(f"A page of {page_size} keys cannot be listed. Pass a page_size of at least 1.")
        return self._pages(prefix, start_after, delimiter, page_size)

    def _pages(self, prefix: str, start_after: str | None, delimiter: str | None, page_size: int) -> Iterator[ListPage]:
        cursor: str | None = None
        while True:
            page = self._retry(partial(self._backend.list_page, prefix, start_after, delimiter, cursor, page_size))
            yield page
            cursor = page.cursor
            if cursor is None:
                return

    def list_keys(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[str]:
        """The keys that begin with `prefix` and are greater than `start_after`, one by one."""
        for page in self.list(prefix, start_after=start_after):
            for meta in page.objects:
                yield meta.key

    def open_read(self, key: str, *, meta: ObjectMeta | None = None, settings: StreamSettings = DEFAULT_STREAM_SETTINGS) -> ReadStream:
        """Open an object as a seekable binary file that reads ahead in parallel.

        Args:
            key: The key of the object.
            meta: The metadata, when the caller has it. It saves the HEAD request.
            settings: Part size and read-ahead.

        Returns:
            The open file.

        Raises:
            NotFound: There is no such object.
        """
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
        """Write a whole object in one request, under a condition.

        Args:
            key: The key of the object.
            data: Any bytes-like object. It must not change before the call returns.
            mode: The condition. The default is `Overwrite()`.
            metadata: User metadata (see `fileio.contract.check_metadata`).
            want_found: Read the object that is in the way by a GET instead of a HEAD, and return it in `PreconditionFailed.found`.

        Returns:
            Written, PreconditionFailed (nothing was written; the object of another writer is there), or OutcomeUnknown.

        Raises:
            InvalidConfig: The metadata is not valid. As with every error, nothing was written.
            Unsupported: The bytes exceed `capabilities.put_bytes_max`, or the store ignores conditions.
        """
        check_key(key)
        check_metadata(metadata)
        data = as_bytes(data)
        most = self.capabilities.put_bytes_max
        if len(data) > most:
            raise Unsupported(f"{len(data)} bytes for {key!r} are more than one put to {self.url} takes ({most}). Use open_write().")
        mode = mode or Overwrite()
        if not isinstance(mode, Overwrite) and not self.capabilities.conditional_put:
            raise Unsupported(f"{self.url} ignores conditions on put, so {key!r} cannot be written under one. Use another store.")
        write_id = self._env.new_id()
        marks = {**(metadata or {}), **write_metadata(write_id, mode)}

        def attempt() -> PutOutcome:
            began_s = self._env.monotonic_s()
            outcome = self._backend.put(key, data, mode, marks)
            if isinstance(outcome, Written):
                self._clock.note(outcome.store_time_ms, began_s)
            return outcome

        if not want_found:
            return self._settle(key, write_id, mode, attempt, size=len(data))
        read_back = ReadBack(lambda: self.get(key), write_id, mode, size=len(data))
        outcome = self._settle_with(read_back, mode, attempt)
        return replace(outcome, found=read_back.found) if isinstance(outcome, PreconditionFailed) else outcome

    def append(self, key: str, data: Buffer, *, offset: int) -> PutOutcome:
        """Add bytes to an object of a known size.

        A lost response is settled by comparing bytes. So clients that race must append different bytes, for example with a nonce.

        Args:
            key: The key of the object.
            data: Any bytes-like object.
            offset: The size of the object in bytes; 0 creates it.

        Returns:
            Written, PreconditionFailed when the object has another size, or OutcomeUnknown.

        Raises:
            Unsupported: `capabilities.append` is false. Use `open_write`.
            ValueError: `offset` is negative.
        """
        check_key(key)
        data = as_bytes(data)
        if offset < 0:
            raise ValueError(f"Cannot append to {key!r} at {offset}. Pass the current size of the object as offset.")
        if not self.capabilities.append:
            raise Unsupported(f"{self.url} cannot append to {key!r}. Write the object with open_write() instead.")
        mode = Create() if offset == 0 else Update(Version(f"of {offset} bytes"))
        place = Range(offset, offset + len(data))
        return self._settle_with(
            lambda: appended_evidence(lambda: self.get(key, byte_range=place), data), mode, lambda: self._backend.append(key, data, offset)
        )

    def copy(self, source: str, target: str, mode: PutMode | None = None) -> PutOutcome:
        """Copy an object with its user metadata within the store. The bytes do not pass through this process.

        Args:
            source: The key of the object to copy.
            target: The key of the copy.
            mode: The condition on the target. The default is `Overwrite()`.

        Returns:
            The settled outcome.

        Raises:
            NotFound: There is no source.
            Unsupported: The store ignores conditions on copies.
        """
        check_key(source)
        check_key(target)
        mode = mode or Overwrite()
        if not isinstance(mode, Overwrite) and not self.capabilities.conditional_copy:
            raise Unsupported(f"{self.url} ignores conditions on copy. Read {source!r} and put() it to {target!r} under the condition.")
        write_id = self._env.new_id()
        marks = {**self.head(source).metadata, **write_metadata(write_id, mode)}
        return self._settle(target, write_id, mode, lambda: self._backend.copy(source, target, mode, marks), size=None)

    def delete(self, keys: Iterable[str]) -> builtins.list[DeleteResult]:
        """Delete objects. A missing object counts as deleted.

        Args:
            keys: The keys of the objects.

        Returns:
            One result for each key, in order. An error concerns its key only.
        """
        listed = [check_key(key) for key in keys]
        size = self.capabilities.delete_batch_max
        batches = [listed[i : i + size] for i in range(0, len(listed), size)]
        done = map_io(self._env, lambda batch: delete_settled(self._backend.delete_batch, batch, self._retry), batches)
        return [result for batch in done for result in batch]

    def start_upload(self, key: str, mode: PutMode | None = None, *, metadata: Mapping[str, str] | None = None) -> SettledUpload:
        """Start a multipart upload with retried parts and a settled completion. `open_write` is easier to use.

        Arguments and errors are as in `open_write`. Raises Unsupported when the store ignores conditions on the completion.
        """
        check_key(key)
        check_metadata(metadata)
        mode = mode or Overwrite()
        if not isinstance(mode, Overwrite) and not self.capabilities.conditional_complete:
            raise Unsupported(f"{self.url} ignores conditions on completing an upload. Use put() to write {key!r} in one request.")
        write_id = self._env.new_id()
        marks = {**(metadata or {}), **write_metadata(write_id, mode)}
        inner = self._retry(lambda: self._backend.start_upload(key, mode, marks))
        return SettledUpload(key, inner, retry=self._retry, settle=partial(self._settle, key, write_id, mode))

    def open_write(
        self,
        key: str,
        mode: PutMode | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        settings: StreamSettings = DEFAULT_STREAM_SETTINGS,
    ) -> WriteStream:
        """Open a binary file for writing. When it is finished, the whole object appears under the condition; before, nothing does.

        `finish()` returns the outcome. `close()` raises NotWritten unless it is Written. An exception in a `with` block aborts.

        Args:
            key: The key of the object.
            mode: The condition. The default is `Overwrite()`.
            metadata: User metadata (see `fileio.contract.check_metadata`).
            settings: Part size, parallelism and spilling.

        Returns:
            The open file.

        Raises:
            InvalidConfig: The metadata is not valid.
        """
        return WriteStream(self, check_key(key), mode or Overwrite(), check_metadata(metadata), settings)

    # ---- how

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
        """Settle one write by HEAD. `size`: the bytes sent, None when not known. `doubt`: see `resolve_write_outcome`."""
        return self._settle_with(lambda: head_evidence(lambda: self.head(key), write_id, mode, size=size), mode, attempt, doubt=doubt)

    def _settle_with(
        self, read_back: Callable[[], Evidence], mode: PutMode, attempt: Callable[[], PutOutcome], *, doubt: Exception | None = None
    ) -> PutOutcome:
        return resolve_write_outcome(
            attempt, read_back, mode=mode, policy=self._policy, env=self._env, on_retry=self.metrics.record_retry, doubt=doubt
        )


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """A store as two plain values. It can be pickled, and opens the store in another process too.

    Pickling carries secrets, but no credentials of a default chain: each process looks up its own.

    Args:
        url: The URL without credentials. Its path is percent-encoded.
        options: The options of the scheme. Secrets are wrapped in `Secret`, which never shows them.
        outer: See `FileIO.child`. None: the store is no child, or a child without such keys.
        outer_url: The URL of the store that `outer` leads to.
        surroundings: Of the environment, what the same URL and options depend on.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    outer: str | None = None
    outer_url: str | None = None
    surroundings: tuple[str | None, ...] = field(default_factory=surroundings, compare=False)

    def __repr__(self) -> str:
        return redact(f"StoreDescription(url={self.url!r}, options={dict(self.options)!r})")

    def open(self, *, env: Env | None = None, policy: RetryPolicy | None = None) -> FileIO:
        """Open the store. Sends no request. Arguments and errors are as in `open_store`."""
        if self.outer is None or self.outer_url is None:
            return FileIO(open_backend(self.url, self.options), env=env, policy=policy, description=self)
        prefix = unquote_path(self.url[len(self.outer_url.rstrip("/")) + 1 :])
        backend = PrefixedBackend(open_backend(self.outer_url, self.options), prefix, self.outer)
        return FileIO(backend, env=env, policy=policy, description=self)

    def child(self, prefix: str, *, outer: str | None = None) -> StoreDescription:
        """The description of the keys below `prefix`. outer: as in `FileIO.child`. Raises InvalidKey."""
        check_key(prefix)
        url = self.url.rstrip("/") + "/" + quote_path(prefix)
        return StoreDescription(url, self.options, outer, None if outer is None else self.url, self.surroundings)


__all__ = ["FileIO", "StoreDescription"]
