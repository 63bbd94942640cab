"""`gs://bucket/prefix`: Google Cloud Storage through google-cloud-storage (JSON API).

The version of an object is its generation, which changes with every write. Conditions are `ifGenerationMatch` (0: there is no object).
The store honours them on uploads, compositions and rewrites. Every request is sent once (`retry=None` everywhere). Our session raises
answers of 400 and above before the SDK interprets them, so that `fileio.gcs.client` classifies all of them, by status.

An upload in parts goes into a resumable session, one chunk after another. It is invisible until its last byte, retains the condition of
its start, and expires by itself. The two parallel ways lose something: XML multipart uploads take no condition on completion. Temporary
objects with a composition appear in listings, remain after a crash, and cannot be deleted from buckets under retention.

An append stores the bytes as a temporary object `<key>.append-<id>`. It replaces the object by a composition of itself and that one,
under the generation that it saw, and deletes the temporary object. GCS allows about one such write per second and key.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote

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
    Update,
    Upload,
    Version,
    Written,
)
from fileio.env import default_env, on_fork
from fileio.errors import BucketNotFound, FileIOError, NotFound, Throttled, Unavailable, Unsupported
from fileio.gcs.client import (
    ConditionFailed,
    GCSOptions,
    Refused,
    bucket_not_found,
    check_crc32c,
    check_options,
    classify,
    customer_key,
    customer_key_headers,
    generation_condition,
    make_client,
    milliseconds,
    range_header,
)
from fileio.gcs.resumable import CHUNK_BYTES_MULTIPLE, CONTENT_TYPE, ResumableUpload
from fileio.optional import library
from fileio.ranges import bounds, size_told

T = TypeVar("T")

ONE_REQUEST_BYTES_MAX = 8 * 1024 * 1024
"""Larger objects use a resumable session, as in the SDK."""

BUCKET_SEEN_S = 60.0
"""How long after an answer the bucket counts as existing when an object is missing. After that, one listing asks."""

NO_BATCHES = frozenset({404, 405, 501})
"""What a server without batches answers. A missing bucket is reported for each key."""

_LIST_FIELDS = "items(name,size,generation,updated),prefixes,nextPageToken"


def open_gcs(bucket: str, options: GCSOptions) -> Backend:
    """The whole bucket as a backend. Sends no request. Raises MissingDependency, or InvalidConfig."""
    library("google.cloud.storage", needed_by="gs:// needs", extra="gcs")
    check_options(bucket, options)
    return GCSBackend(bucket, options)


class GCSBackend(Backend):
    """One bucket. Safe for many threads, which share one session with `max_connections` connections."""

    def __init__(self, bucket: str, options: GCSOptions) -> None:
        self._bucket_name = bucket
        self._options = options
        self._timeout = (options.connect_timeout_s, options.read_timeout_s)
        self._key = customer_key(options)
        self._key_headers: Mapping[str, str] = customer_key_headers(self._key)
        self._lock = threading.Lock()
        self._client_or_none: Any = None
        self._parents: Any = None
        """The client of a parent process. It stays open: closing it would disturb the parent's TLS sessions."""
        self._bucket_seen_s: float | None = None
        """When an answer last showed that the bucket exists."""
        self._has_batch = True
        # The SDK cannot set the customer key or the KMS key of a composition.
        self._capabilities = Capabilities(
            append=options.encryption_key is None and options.kms_key is None,
            parallel_parts=False,
            delete_batch_max=100,
            part_bytes_min=CHUNK_BYTES_MULTIPLE,
            part_bytes_multiple=CHUNK_BYTES_MULTIPLE,
            parts_max=1_000_000,
        )
        on_fork(self)

    def after_fork(self) -> None:
        """The connections are those of the parent. A thread that does not exist here may have held the lock."""
        self._lock = threading.Lock()
        self._client_or_none, self._parents = None, self._client_or_none

    @property
    def url(self) -> str:
        """`gs://` and the bucket."""
        return f"gs://{self._bucket_name}"

    @property
    def capabilities(self) -> Capabilities:
        """Parts come in order, in multiples of 256 KiB. No appends with a customer key or a KMS key."""
        return self._capabilities

    # ---- reading

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """One media request, whose headers have the metadata."""
        return self._read(key, lambda: self._get(key, byte_range, if_none_match))

    def _get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """One media request. It does not go through the SDK, which drops the headers with the metadata."""
        wanted = range_header(byte_range)
        if wanted == "":
            return self._nothing_of(key, byte_range, if_none_match)
        condition = "" if if_none_match is None else f"&ifGenerationNotMatch={if_none_match}"
        url = f"{self._api}/download/storage/v1/b/{self._bucket_name}/o/{quote(key, safe='')}?alt=media{self._billing}{condition}"
        headers = {"Accept-Encoding": "gzip", **self._key_headers, **({"Range": wanted} if wanted else {})}
        try:
            with self._session.request("GET", url, headers=headers, stream=True, timeout=self._timeout) as response:
                if response.status_code == 304 and if_none_match is not None:
                    return NotModified()
                data: bytes = response.raw.read(decode_content=False)
        except Refused as refused:
            if refused.status == 416:
                return self._nothing_of(key, byte_range, if_none_match)
            raise
        if response.status_code not in (200, 206):
            raise Unavailable(
                f"{response.status_code} is not an answer to a read of {self.url}/{key}. Check option 'endpoint' and the network."
            )
        size = len(data)
        if response.status_code == 206:
            size = size_told(f"{self.url}/{key}", response.headers.get("content-range"), byte_range, len(data))
        meta = self._meta_of_download(key, response, size)
        if meta.size != size:
            raise Unavailable(f"{self.url}/{key} has {meta.size} bytes, but the answer has {size}. Read it again.")
        if meta.version == if_none_match:
            return NotModified()
        offset, end = bounds(byte_range, meta.size)
        sent = response.headers.get("date")
        sent_ms = None if sent is None else int(parsedate_to_datetime(sent).timestamp() * 1000)
        if response.status_code == 206:
            return GetResult(meta, data, offset, sent_ms)
        check_crc32c(f"{self.url}/{key}", data, response.headers.get("x-goog-hash", ""))
        return GetResult(meta, data[offset:end] if byte_range else data, offset, sent_ms)

    def _nothing_of(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """The answer to a range that holds no byte of the object."""
        meta = self._head(key)
        if meta.version == if_none_match:
            return NotModified()
        offset, end = bounds(byte_range, meta.size)
        if offset < end:
            raise Unavailable(f"{self.url}/{key} grew while it was read. Read it again.")
        return GetResult(meta, b"", offset)

    def _meta_of_download(self, key: str, response: Any, size: int) -> ObjectMeta:
        headers = response.headers
        generation, modified = headers.get("x-goog-generation"), headers.get("last-modified")
        if generation is None or modified is None:
            meta = self._head(key)  # a server that does not send what GCS sends
            if generation is not None and meta.version != generation:
                raise Unavailable(f"{self.url}/{key} changed while it was read. Read it again.")
            return meta
        metadata = {name[12:].lower(): value for name, value in headers.items() if name.lower().startswith("x-goog-meta-")}
        return ObjectMeta(key, size, Version(generation), int(parsedate_to_datetime(modified).timestamp() * 1000), metadata)

    def head(self, key: str) -> ObjectMeta:
        """`objects.get`."""
        return self._read(key, lambda: self._head(key))

    def _head(self, key: str) -> ObjectMeta:
        blob = self._blob(key)
        blob.reload(timeout=self._timeout, retry=None)
        if blob.generation is None or blob.updated is None:
            raise Unavailable(f"The store's answer does not have the generation of {key!r}. Check option 'endpoint' and the network.")
        metadata = {name.lower(): value for name, value in (blob.metadata or {}).items()}
        return ObjectMeta(key, blob.size or 0, Version(str(blob.generation)), milliseconds(blob.updated), metadata)

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """`objects.list`. Its start offset includes the key, which is dropped here."""

        def ask() -> ListPage:
            found = self._client.list_blobs(
                self._bucket,
                prefix=prefix,
                start_offset=start_after,
                delimiter=delimiter,
                page_token=cursor,
                page_size=limit,
                fields=_LIST_FIELDS,
                timeout=self._timeout,
                retry=None,
            )
            blobs = next(found.pages, ())
            objects = [
                ObjectMeta(blob.name, blob.size or 0, Version(str(blob.generation)), milliseconds(blob.updated))
                for blob in blobs
                if start_after is None or blob.name > start_after  # the offset of GCS is included
            ]
            return ListPage(objects, sorted(found.prefixes), found.next_page_token)

        return self._read(None, ask)

    # ---- writing

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """A multipart upload in one request. Above 8 MiB, a resumable session."""
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if size > ONE_REQUEST_BYTES_MAX:
            return self._put_large(key, data, mode, metadata)
        body, condition = io.BytesIO(data), generation_condition(mode)

        def send() -> PutOutcome:
            blob = self._blob(key, metadata)
            blob.upload_from_file(
                body,
                size=size,
                content_type=CONTENT_TYPE,
                if_generation_match=condition,
                timeout=self._timeout,
                retry=None,
            )
            return _written(blob)

        return self._write(key, mode, send)

    def _put_large(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        try:
            upload = self.start_upload(key, mode, metadata)
        except Unavailable as error:
            return OutcomeUnknown(error)
        upload.put_part(1, data)
        return upload.complete()

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        """A temporary object and a composition; see above."""
        if not self._capabilities.append:
            raise Unsupported(
                f"{self.url} cannot append to {key!r} under 'encryption_key' or 'kms_key'. Write the object with open_write()."
            )
        if offset == 0:
            created = self.put(key, data, Create(), {})
            if not isinstance(created, PreconditionFailed):
                return created
        try:
            present = self.head(key)
        except BucketNotFound:
            raise
        except NotFound:
            return PreconditionFailed(None)
        except Unavailable as error:
            raise Throttled(f"The size of {self.url}/{key} is not known ({error}). Nothing was appended. Try again.") from error
        if present.size != offset:
            return PreconditionFailed(present.version)
        return self._compose(key, data, present)

    def _compose(self, key: str, data: Buffer, present: ObjectMeta) -> PutOutcome:
        """Replace `present` by itself and `data`. The name of the temporary object is unique, and the request has its generation."""
        extra_key = f"{key}.append-{default_env().new_id()}"
        try:
            match self.put(extra_key, data, Create(), {}):
                case Written(version):
                    extra_version = version
                case PreconditionFailed():
                    raise Throttled(f"Nothing was appended to {self.url}/{key}. {extra_key!r} is in the way. Append again.")
                case OutcomeUnknown(cause):
                    raise Throttled(
                        f"Nothing was appended to {self.url}/{key}. Its new bytes were not stored ({cause}). Append again."
                    ) from cause

            def send() -> PutOutcome:
                target = self._blob(key, present.metadata)
                target.content_type = CONTENT_TYPE
                target.compose(
                    [self._bucket.blob(key), self._bucket.blob(extra_key)],
                    if_generation_match=int(present.version),
                    if_source_generation_match=[present.version, extra_version],
                    timeout=self._timeout,
                    retry=None,
                )
                return _written(target)

            return self._write(key, Update(present.version), send)
        finally:
            self._delete_one(extra_key)

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """A resumable session under the condition. `complete` reports a condition that already fails."""
        condition = generation_condition(mode)

        def start() -> str:
            session_url: str = self._blob(key, metadata).create_resumable_upload_session(
                content_type=CONTENT_TYPE, if_generation_match=condition, timeout=self._timeout, checksum=None, retry=None
            )
            return session_url

        try:
            return ResumableUpload(self, key, self._read(key, start))
        except ConditionFailed:
            return ResumableUpload(self, key, None)
        except NotFound as error:
            self._check_bucket(error)
            raise

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """`objects.rewrite`, as often as the store asks for."""
        condition = generation_condition(mode)

        def send() -> PutOutcome:
            blob = self._blob(target, metadata)
            blob.content_type = CONTENT_TYPE
            token = None
            while True:
                token, _, _ = blob.rewrite(
                    self._blob(source), token=token, if_generation_match=condition, timeout=self._timeout, retry=None
                )
                if token is None:
                    return _written(blob)

        return self._write(source, Overwrite(), send)

    # ---- deleting

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """One batch request, or one request per key where the server has no batches."""
        if len(keys) > 1 and self._has_batch:
            results = self._translated(None, lambda: self._delete_together(keys))
            if results is not None:
                return results
            self._has_batch = False
        return [DeleteResult(key, self._delete_one(key)) for key in keys]

    def _delete_together(self, keys: Sequence[str]) -> list[DeleteResult] | None:
        """One batch request. None: this server has no batches."""
        batch = self._client.batch(raise_exception=False)
        try:
            with batch:
                for key in keys:
                    self._bucket.blob(key).delete(timeout=self._timeout, retry=None)
        except ValueError:
            return None  # the answer had no parts
        except Refused as refused:
            if refused.status not in NO_BATCHES:
                raise
            return None
        answers = batch._responses
        if len(answers) != len(keys):
            return None
        return [
            DeleteResult(key, None if answer.status_code < 300 else self._deletion_error(key, Refused(answer)))
            for key, answer in zip(keys, answers, strict=True)
        ]

    def _delete_one(self, key: str) -> FileIOError | None:
        try:
            self._bucket.blob(key).delete(timeout=self._timeout, retry=None)
        except Exception as error:  # noqa: BLE001 - classified, and raised when it is a bug
            return self._deletion_error(key, error)
        return None

    def _deletion_error(self, key: str, error: Exception) -> FileIOError | None:
        classed = classify(error, self.url, key, self._options, self._bucket_is_missing)
        if classed is None:
            raise error
        return None if isinstance(classed, NotFound) and not isinstance(classed, BucketNotFound) else classed

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            client, self._client_or_none = self._client_or_none, None
        if client is not None:
            client.close()

    # ---- the SDK

    @property
    def _client(self) -> Any:
        """The SDK's client, created on first use: creating it looks for credentials, which may ask the network."""
        if self._client_or_none is None:
            with self._lock:
                if self._client_or_none is None:
                    self._client_or_none = self._translated(None, lambda: make_client(self._options))
        return self._client_or_none

    @property
    def _session(self) -> Any:
        return self._client._http

    @property
    def _api(self) -> str:
        return str(self._client.api_endpoint).rstrip("/")

    @property
    def _billing(self) -> str:
        return f"&userProject={quote(self._options.user_project, safe='')}" if self._options.user_project else ""

    @property
    def _bucket(self) -> Any:
        return self._client.bucket(self._bucket_name, user_project=self._options.user_project)

    def _blob(self, key: str, metadata: Mapping[str, str] | None = None) -> Any:
        blob = self._bucket.blob(key, encryption_key=self._key, kms_key_name=self._options.kms_key)
        if metadata:
            blob.metadata = dict(metadata)
        return blob

    # ---- answers and errors

    def _translated(self, key: str | None, call: Callable[[], T]) -> T:
        """The result of the call. Errors of the SDK become errors of fileio."""
        try:
            return call()
        except FileIOError:
            raise
        except Exception as error:
            classed = classify(error, self.url, key, self._options, self._bucket_is_missing)
            if classed is None:
                raise
            raise classed from None  # texts of the SDK may hold an upload id or a proxy's password; ours are redacted

    def _read(self, key: str | None, call: Callable[[], T]) -> T:
        result = self._translated(key, call)
        self._bucket_seen_s = default_env().monotonic_s()
        return result

    def _write(self, key: str, mode: PutMode, call: Callable[[], PutOutcome]) -> PutOutcome:
        try:
            return self._read(key, call)
        except ConditionFailed:
            return PreconditionFailed(None)
        except Unavailable as error:
            return OutcomeUnknown(error)
        except NotFound as error:
            self._check_bucket(error)
            if isinstance(mode, Update):
                return PreconditionFailed(None)
            if isinstance(mode, Create):
                # A create needs only the bucket. Something in between gave this answer, and may have forwarded the write before.
                return OutcomeUnknown(
                    Unavailable(f"{error} This answer to a write of it is not from the store. Check what is in front of the store.")
                )
            raise

    def _check_bucket(self, missing: NotFound) -> None:
        """Raises BucketNotFound when a write was answered 404 because of the bucket: most writes need nothing else."""
        self._bucket_seen_s = None
        if isinstance(missing, BucketNotFound) or self._bucket_is_missing():
            raise bucket_not_found(self.url) from missing

    def _bucket_is_missing(self) -> bool:
        """One listing tells a missing bucket from a missing object, unless the bucket has answered recently."""
        if self._bucket_seen_s is not None and default_env().monotonic_s() - self._bucket_seen_s < BUCKET_SEEN_S:
            return False
        url = f"{self._api}/storage/v1/b/{self._bucket_name}/o?maxResults=1&fields=kind{self._billing}"
        try:
            self._session.request("GET", url, timeout=self._timeout)
        except Refused as refused:
            return refused.status == 404
        except Exception as error:
            if classify(error, self.url, None, self._options, lambda: False) is None:
                raise
            return False
        self._bucket_seen_s = default_env().monotonic_s()
        return False


def _written(blob: Any) -> PutOutcome:
    if blob.generation is None or blob.updated is None:
        return OutcomeUnknown(Unavailable(f"The store's answer does not have the generation of {blob.name!r}."))
    return Written(Version(str(blob.generation)), milliseconds(blob.updated))


__all__ = ["GCSBackend", "GCSOptions", "ResumableUpload", "open_gcs"]
