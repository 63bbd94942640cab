"""The storage contract: its values, its capabilities, and the methods that a backend implements.

`Backend` is the class to implement for a new scheme. Each method is one attempt at one request. The retries of an SDK are
switched off for everything that changes the store. `fileio.store.FileIO` calls it, and adds retries, settled outcomes, streams
and coalesced ranges for every backend. `fileio.testing` holds the conformance suite that a backend must pass.

Keys are relative to the opened URL. They are segments joined by `/`, without a leading slash and without empty, `.` or `..`
segments: at most 900 bytes of UTF-8, and 1,024 bytes together with the prefix in the URL.
Never use one key both as an object and as the prefix of another key: several stores cannot hold both.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType, TypeAlias

from fileio.errors import FileIOError, InvalidConfig, InvalidKey, NotWritten

Version = NewType("Version", str)
"""An opaque version of an object. It changes whenever the bytes change. S3 and Azure: the etag without quotes. GCS: the generation.

On S3 it is a hash of the content: the same bytes have the same version again. So every body that is swapped carries a nonce.
"""

Buffer: TypeAlias = bytes | bytearray | memoryview

WRITE_ID = "writeid"
"""Metadata name of the write id, which every write stores. Reading it back settles a lost response."""
WRITE_BASE = "writebase"
"""Metadata name of what a conditional write replaced: `absent`, or the version. It can prove that another write took the place of ours."""

KEY_BYTES_MAX = 900
FULL_KEY_BYTES_MAX = 1024
"""The longest key together with the prefix of the URL that every cloud accepts."""
METADATA_BYTES_MAX = 1536
"""Names and values of user metadata together. S3 accepts 2 KiB, and every write stores its own marks there too."""


# ---- requests -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes from `start` to `end`, without `end`. The range is clipped to the object; past the end of the object it is empty.

    Args:
        start: The first byte.
        end: The byte behind the last one; None reads to the end.

    Raises:
        ValueError: `start` is negative, or `end` is before it.
    """

    start: int
    end: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or (self.end is not None and self.end < self.start):
            raise ValueError(f"{self!r} is not a byte range. It needs 0 <= start <= end.")


@dataclass(frozen=True, slots=True)
class Suffix:
    """The last `length` bytes, or all of a shorter object. Raises ValueError for a negative length."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"{self!r} is not a byte range. It needs a length of 0 or more.")


ByteRange: TypeAlias = Range | Suffix


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Write in any case."""


@dataclass(frozen=True, slots=True)
class Create:
    """Write only when there is no object."""


@dataclass(frozen=True, slots=True)
class Update:
    """Write only when the object still has this version."""

    version: Version


PutMode: TypeAlias = Overwrite | Create | Update


# ---- answers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """The write took effect, exactly once.

    Args:
        version: The version of the object after the write.
        store_time_ms: The store's clock at the response, in ms since 1970 UTC; None where the store has no clock.
    """

    version: Version
    store_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PreconditionFailed:
    """The write did not and will not take effect. Another writer's object is there, or, for `Update`, none is.

    Args:
        current: The version of the object that is there; None when it is not known or there is none.
        found: That object, when the write asked for it.
    """

    current: Version | None = None
    found: GetResult | None = None


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """It is not known whether the write took effect or still will. Treating it as a failure loses data."""

    cause: Exception


PutOutcome: TypeAlias = Written | PreconditionFailed | OutcomeUnknown


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object without its bytes.

    Args:
        key: The key.
        size: The size in bytes.
        version: The version.
        modified_ms: The last modification by the store's clock, in ms since 1970 UTC.
        metadata: User metadata with lower-case names. Listings leave it empty.
    """

    key: str
    size: int
    version: Version
    modified_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GetResult:
    """Bytes of an object.

    Args:
        meta: The object.
        data: The bytes.
        offset: Where `data` begins within the object, in bytes.
        store_time_ms: The store's clock at the response, in ms since 1970 UTC; None where a read does not tell it.
    """

    meta: ObjectMeta
    data: bytes
    offset: int = 0
    store_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NotModified:
    """The object still has the version passed as `if_none_match`."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing.

    Args:
        objects: The objects, without metadata.
        prefixes: Common prefixes below the listed prefix. Each ends with the delimiter.
        cursor: Where the next page begins; None on the last page.
    """

    objects: Sequence[ObjectMeta]
    prefixes: Sequence[str] = ()
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The result for one key. `error` is None when the object is gone or never existed."""

    key: str
    error: FileIOError | None = None


# ---- capabilities and backend -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can do. A backend declares it, and it is checked when the store is opened; no call guesses.

    Args:
        conditional_put: `put` honours `Create` and `Update`.
        conditional_complete: The completion of an upload honours them.
        conditional_copy: `copy` honours them.
        append: The store appends at an expected offset.
        parallel_parts: Parts of an upload may be sent at once and in any order. Otherwise send them one by one, in order.
        list_ordered: Listings are in byte order of the keys.
        store_clock: `Written.store_time_ms` is set.
        content_versions: Equal bytes have equal versions.
        delete_batch_max: The largest number of keys of one `delete_batch`.
        part_bytes_min: The smallest size of every part but the last.
        part_bytes_max: The largest size of a part.
        part_bytes_multiple: Every part but the last is a multiple of this.
        parts_max: The largest number of parts of an upload.
        put_bytes_max: The largest single `put`, in bytes.
    """

    conditional_put: bool = True
    conditional_complete: bool = True
    conditional_copy: bool = True
    append: bool = False
    parallel_parts: bool = True
    list_ordered: bool = True
    store_clock: bool = True
    content_versions: bool = False
    delete_batch_max: int = 1000
    part_bytes_min: int = 5 * 1024 * 1024
    part_bytes_max: int = 5 * 1024**3
    part_bytes_multiple: int = 1
    parts_max: int = 10_000
    put_bytes_max: int = 5 * 1024**3


class Upload(ABC):
    """A multipart upload in progress. Nothing of it is visible before `complete`."""

    @abstractmethod
    def put_part(self, number: int, data: Buffer) -> None:
        """Send one part. Sending a part again with the same bytes is harmless.

        Args:
            number: The number of the part, from 1, without gaps.
            data: The bytes.

        Raises:
            Throttled: The part may be sent again.
            Unavailable: The part may be sent again.
            UploadLost: The upload is gone.
        """

    @abstractmethod
    def complete(self) -> PutOutcome:
        """Make the object visible under the mode of the upload. This is one attempt.

        When the store answers "no such upload", return `PreconditionFailed(None)`: reading the object back then decides whether an earlier
        attempt completed the upload.
        """

    @abstractmethod
    def abort(self) -> None:
        """Remove everything that was sent. Harmless when there is nothing to remove."""


class Backend(ABC):
    """One scheme of storage: single attempts at single requests. Safe for use by many threads at once.

    Every method may raise the errors of `fileio.errors`. For methods that return `PutOutcome`:

    - Raise an error (Throttled, PermissionDenied, CredentialsError, NotFound, ...) only if the write certainly had no effect.
    - Return a time-out, a reset or any 5xx as `OutcomeUnknown(Unavailable(...))`.
    - Return a failed condition as `PreconditionFailed`.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of this backend, without secrets."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the store can do."""

    @abstractmethod
    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """Read an object, or a range of it.

        Args:
            key: The key of the object.
            byte_range: The bytes to read; None reads all.
            if_none_match: The version that the caller already has.

        Returns:
            Bytes, version and metadata of one state of the object, or NotModified when its version is `if_none_match`.

        Raises:
            NotFound: There is no such object.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectMeta:
        """Size, version, time and metadata of an object. Raises NotFound."""

    @abstractmethod
    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Write the whole object in one request.

        Args:
            key: The key of the object.
            data: At most `put_bytes_max` bytes. `len(data)` counts bytes.
            mode: The condition.
            metadata: The user metadata to store with it.
        """

    @abstractmethod
    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        """Add bytes to an object of size `offset`; 0 creates it. Another size is `PreconditionFailed`.

        Raises:
            Unsupported: The capability is not declared.
        """

    @abstractmethod
    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """Start an upload that completes under `mode`. Only `complete` may report a condition that already fails."""

    @abstractmethod
    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """List one page of keys.

        Args:
            prefix: The keys begin with this text.
            start_after: The keys are greater than this text.
            delimiter: Groups keys with this text behind the prefix into common prefixes.
            cursor: The cursor of the previous page; None for the first page.
            limit: The largest number of keys and prefixes in the page.
        """

    @abstractmethod
    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """Delete at most `delete_batch_max` keys; a missing key is a success. One result for each key, in order."""

    @abstractmethod
    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Copy within the store; the bytes do not pass through this process. `metadata` replaces that of the source."""

    @abstractmethod
    def close(self) -> None:
        """Release connections. May be called again."""


def check_key(key: str) -> str:
    """Return the key when every store accepts it. Raises InvalidKey otherwise."""
    if not 0 < _utf8_length(key) <= KEY_BYTES_MAX or "\0" in key:
        raise InvalidKey(f"{key[:80]!r} is not a key. Use 1 to {KEY_BYTES_MAX} bytes of UTF-8 without NUL.")
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise InvalidKey(f"{key[:80]!r} is not a key. No segment between slashes may be empty, '.' or '..'.")
    return key


def check_key_part(text: str) -> str:
    """Return the text when a key can begin with it or sort behind it. Raises InvalidKey otherwise."""
    if not 0 <= _utf8_length(text) <= KEY_BYTES_MAX or "\0" in text:
        raise InvalidKey(f"No key begins with {text[:80]!r}. Keys are at most {KEY_BYTES_MAX} bytes of UTF-8 without NUL.")
    return text


def _utf8_length(text: str) -> int:
    """The length in bytes; -1 when the text holds half of a surrogate pair, which UTF-8 cannot encode."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


_METADATA_NAME = re.compile(r"[a-z][a-z0-9]*")
_METADATA_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")


def check_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the user metadata when every store returns it unchanged. Raises InvalidConfig otherwise.

    Names are lower-case letters and digits and begin with a letter. Values are printable ASCII, not empty, without spaces at the ends.
    """
    given: Mapping[str, Any] = metadata or {}
    for name, value in given.items():
        if not _METADATA_NAME.fullmatch(name) or name in (WRITE_ID, WRITE_BASE):
            raise InvalidConfig(
                f"{name!r} cannot name metadata. Use lower-case letters and digits, a letter first, but not {WRITE_ID!r} or {WRITE_BASE!r}."
            )
        if not isinstance(value, str) or not _METADATA_VALUE.fullmatch(value):
            raise InvalidConfig(
                f"The metadata {name!r} cannot be {value!r:.80}. Stores keep printable ASCII without spaces at its ends. Encode it."
            )
    size = sum(len(name) + len(value) for name, value in given.items())
    if size > METADATA_BYTES_MAX:
        raise InvalidConfig(
            f"The metadata of {size} bytes is too large. Every store keeps {METADATA_BYTES_MAX}. Put the rest into the object."
        )
    return given


def as_bytes(data: Buffer) -> Buffer:
    """The same bytes as a buffer that every SDK accepts and whose `len` counts bytes. Scattered bytes are copied.

    Accepts anything with the buffer protocol, such as a NumPy array. Raises TypeError for anything else.
    """
    if isinstance(data, (bytes, bytearray)):
        return data
    view = memoryview(data)
    if view.nbytes == 0:
        return b""
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    try:
        return view.cast("B")
    except TypeError:
        return view.tobytes()


def require_written(outcome: PutOutcome, what: str) -> Written:
    """Return the outcome when it is Written, and raise an error otherwise.

    Args:
        outcome: The outcome of a write.
        what: The name of what was written, for the message.

    Returns:
        The outcome.

    Raises:
        NotWritten: The outcome is PreconditionFailed or OutcomeUnknown.
    """
    match outcome:
        case Written():
            return outcome
        case PreconditionFailed(current):
            raise NotWritten(f"{what} was not written. Another object (version {current}) is there. Read it, then decide.", outcome)
        case OutcomeUnknown(cause):
            raise NotWritten(
                f"It is not known whether {what} was written ({cause}). Read it back before you write again.", outcome
            ) from cause
