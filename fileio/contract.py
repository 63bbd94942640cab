"""The storage contract: values, capabilities, and what an implementation of a scheme must supply.

A `Backend` is one attempt at one request, with the SDK's own retries switched off for everything that changes the store.
`fileio.store.FileIO` is what callers use: it adds bounded retries, the settling of lost responses, streams, and coalesced ranges, once, for
every backend.

Keys are relative to the opened URL: segments joined by `/`, no leading slash, no empty, `.` or `..` segment, at most 900 bytes of UTF-8
(1,024 together with the prefix in the URL).
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
"""Opaque: changes whenever the object's bytes change (S3 and Azure: the etag without quotes; GCS: the generation).

On S3 it is a hash of the content, so writing the former bytes again brings the former version back: bodies that are swapped carry a nonce.
"""

Buffer: TypeAlias = bytes | bytearray | memoryview

WRITE_ID = "writeid"
"""Metadata key under which every write leaves its own identifier, so that a lost response can be settled by reading back."""
WRITE_BASE = "writebase"
"""Metadata key: what a conditional write replaced (`absent`, or the version), so that a foreign write can be *proved* to have come instead
of ours."""

KEY_BYTES_MAX = 900
FULL_KEY_BYTES_MAX = 1024
"""Of a key together with the prefix of the opened URL: what every cloud takes."""
METADATA_BYTES_MAX = 1536
"""Names and values of the caller's own metadata together: S3 takes 2 KiB, and a write leaves its marks there too."""


# ---- what is asked -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes `start` (included) to `end` (excluded; None: to the end). Clipped to the object; wholly past the end is empty.

    Raises ValueError for a negative start, or an end before the start.
    """

    start: int
    end: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or (self.end is not None and self.end < self.start):
            raise ValueError(f"{self!r} is not a byte range: it needs 0 <= start <= end")


@dataclass(frozen=True, slots=True)
class Suffix:
    """The last `length` bytes (fewer when the object is shorter). Raises ValueError for a negative length."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"{self!r} is not a byte range: it needs a length of 0 or more")


ByteRange: TypeAlias = Range | Suffix


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Write whatever is there."""


@dataclass(frozen=True, slots=True)
class Create:
    """Write only when nothing is there."""


@dataclass(frozen=True, slots=True)
class Update:
    """Write only when what is there still has this version."""

    version: Version


PutMode: TypeAlias = Overwrite | Create | Update


# ---- what is answered --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """The write took effect, exactly once.

    version: of the object now. store_time_ms: the store's own clock at the response (ms since 1970 UTC), None where it has none.
    """

    version: Version
    store_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PreconditionFailed:
    """The write did not and will not take effect: somebody else's object is there (or, for `Update`, nothing is).

    current: the version that is there now, None when not known or absent. found: the object that is there, when the write asked for it.
    """

    current: Version | None = None
    found: GetResult | None = None


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """Nobody can tell (yet) whether the write took, or will take, effect. Treating it as a failure loses data."""

    cause: Exception


PutOutcome: TypeAlias = Written | PreconditionFailed | OutcomeUnknown


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What a store says of an object without its bytes.

    size: bytes. modified_ms: last modification, ms since 1970 UTC, the store's clock. metadata: user metadata with lower-case keys;
    listings leave it empty.
    """

    key: str
    size: int
    version: Version
    modified_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GetResult:
    """Bytes of an object.

    offset: where `data` begins within it. store_time_ms: the store's own clock at the response (ms since 1970 UTC), None where it does not
    tell that with a read.
    """

    meta: ObjectMeta
    data: bytes
    offset: int = 0
    store_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NotModified:
    """The object still has the version given as `if_none_match`."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing. prefixes: common prefixes (ending in the delimiter) below the asked prefix. cursor: None on the last page."""

    objects: Sequence[ObjectMeta]
    prefixes: Sequence[str] = ()
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """error: None when the object is gone (or was never there)."""

    key: str
    error: FileIOError | None = None


# ---- what a store can do -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Declared by a backend and checked at open; nothing is guessed at call time.

    conditional_*: the store honours `Create` and `Update` there. append: `append` at an expected offset.
    parallel_parts: parts of one upload may be sent at the same time and in any order; otherwise one at a time, in order.
    list_ordered: listings come in byte order of the keys. store_clock: `Written.store_time_ms` is set.
    content_versions: equal bytes have equal versions. part_bytes_*: bounds of every part but the last. part_bytes_multiple: each part but
    the last is a multiple of this. parts_max: parts per upload. put_bytes_max: the largest single `put`.
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
    """A multipart upload under way. Nothing of it is visible until `complete`."""

    @abstractmethod
    def put_part(self, number: int, data: Buffer) -> None:
        """Send part `number` (from 1, dense). Repeating a part with the same bytes is harmless.

        Raises Throttled or Unavailable when it may be sent again; UploadLost when the upload is gone.
        """

    @abstractmethod
    def complete(self) -> PutOutcome:
        """Make the object visible under the mode that the upload was started with: one attempt.

        A store's answer "no such upload" is `PreconditionFailed(None)`: the read-back decides whether an earlier attempt had completed it.
        """

    @abstractmethod
    def abort(self) -> None:
        """Remove everything that was sent. Harmless when there is nothing (left) to remove."""


class Backend(ABC):
    """One scheme of storage: single attempts at single requests. Safe for use by many threads at once.

    Every method may raise the typed errors of `fileio.errors`. For methods that answer `PutOutcome`: an error that is *raised* means that
    the write certainly had no effect (Throttled, PermissionDenied, CredentialsError, NotFound, ...); a time-out, a reset or any 5xx is
    returned as `OutcomeUnknown(Unavailable(...))`; a failed condition is `PreconditionFailed`.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Where this backend points, without secrets."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """Bytes, version and metadata of one state of the object; NotModified when its version is `if_none_match`. Raises NotFound."""

    @abstractmethod
    def head(self, key: str) -> ObjectMeta:
        """What there is to say of the object, metadata included. Raises NotFound."""

    @abstractmethod
    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Write the whole object in one request; `len(data)` counts bytes, at most `put_bytes_max`."""

    @abstractmethod
    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        """Add bytes to an object whose size is `offset` (0 creates it); another size is `PreconditionFailed`. Unsupported where not
        declared."""

    @abstractmethod
    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """Begin an upload whose completion is under `mode`. A condition that fails already may be told by `complete` alone."""

    @abstractmethod
    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """Keys that begin with `prefix` and are greater than `start_after` (excluded)."""

    @abstractmethod
    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """Delete at most `delete_batch_max` keys; a missing key is success. One result a key, in order."""

    @abstractmethod
    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Copy within the store, without the bytes passing through here. `metadata` replaces the source's."""

    @abstractmethod
    def close(self) -> None:
        """Release connections. Harmless when repeated."""


def check_key(key: str) -> str:
    """The key itself, when every store accepts it; InvalidKey otherwise."""
    if not 0 < _utf8_length(key) <= KEY_BYTES_MAX or "\0" in key:
        raise InvalidKey(f"{key[:80]!r} is not a key: it must be 1 to {KEY_BYTES_MAX} bytes of UTF-8 without NUL")
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise InvalidKey(f"{key[:80]!r} is not a key: no segment between slashes may be empty, '.' or '..'")
    return key


def check_key_part(text: str) -> str:
    """The text itself, when a key can begin with it or sort behind it; InvalidKey otherwise."""
    if not 0 <= _utf8_length(text) <= KEY_BYTES_MAX or "\0" in text:
        raise InvalidKey(f"no key begins with {text[:80]!r}: keys are at most {KEY_BYTES_MAX} bytes of UTF-8 without NUL")
    return text


def _utf8_length(text: str) -> int:
    """In bytes; -1 when the text holds half of a surrogate pair, which UTF-8 cannot write."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


_METADATA_NAME = re.compile(r"[a-z][a-z0-9]*")
_METADATA_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")


def check_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    """The caller's own metadata itself, when every store brings it back as it was given; InvalidConfig otherwise.

    Names are lower-case letters and digits, a letter first; values are printable ASCII without spaces at their ends, and not empty.
    """
    given: Mapping[str, Any] = metadata or {}
    for name, value in given.items():
        if not _METADATA_NAME.fullmatch(name) or name in (WRITE_ID, WRITE_BASE):
            raise InvalidConfig(
                f"{name!r} cannot name metadata: use lower-case letters and digits, a letter first, but not {WRITE_ID!r} or {WRITE_BASE!r}"
            )
        if not isinstance(value, str) or not _METADATA_VALUE.fullmatch(value):
            raise InvalidConfig(
                f"the metadata {name!r} cannot be {value!r:.80}: stores keep printable ASCII without spaces at its ends; encode what is not"
            )
    size = sum(len(name) + len(value) for name, value in given.items())
    if size > METADATA_BYTES_MAX:
        raise InvalidConfig(f"metadata of {size} bytes is too large: every store keeps {METADATA_BYTES_MAX}; put the rest into the object")
    return given


def as_bytes(data: Buffer) -> Buffer:
    """The same bytes as a buffer that every SDK understands and whose `len` counts them; copied when they are scattered.

    Takes whatever has the buffer protocol, such as a NumPy array. Raises TypeError for anything else.
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
    """The outcome itself when it is Written; otherwise raises NotWritten, which says what happened to `what`."""
    match outcome:
        case Written():
            return outcome
        case PreconditionFailed(current):
            raise NotWritten(f"{what} was not written: another object (version {current}) is there; read it, then decide", outcome)
        case OutcomeUnknown(cause):
            raise NotWritten(f"whether {what} was written is not known ({cause}): read it back before writing again", outcome) from cause
