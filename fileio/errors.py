"""Errors of `fileio`, grouped by what the caller can do about them.

    FileIOError                 the root of all
    ├── NotFound                the object does not exist.
    │   └── BucketNotFound      the bucket or container does not exist.
    ├── PermissionDenied        the credentials are valid, but do not allow the request.
    ├── CredentialsError        credentials are missing, wrong or expired.
    ├── Throttled               the store refused the request before any effect.
    ├── Unavailable             the store gave no answer, or a 5xx. The effect of a write is unknown.
    ├── StoreFull               no room is left, or a quota is reached. Nothing was written.
    ├── ObjectChanged           an object is not the one that was opened.
    ├── UploadLost              a multipart upload vanished before it completed. Nothing was written.
    ├── NotWritten              a write did not certainly happen. Look at `outcome`.
    ├── Unsupported             the store lacks the capability that the call needs.
    ├── InvalidKey              no store accepts this key.
    └── InvalidConfig           a URL or an option is wrong.
        ├── StoreUnfit          the store ignores conditions that commits need.
        └── MissingDependency   a library is not installed.

The outcome of a conditional write is a value, never an exception: `Written`, `PreconditionFailed` or `OutcomeUnknown`.
No message ever holds a secret: backends pass text of an SDK through `fileio.options.redact` first.
"""

from __future__ import annotations


class FileIOError(Exception):
    """The root of all errors that `fileio` raises."""


class NotFound(FileIOError):
    """The object does not exist.

    What to do: Check the key.
    """


class BucketNotFound(NotFound):
    """The bucket, container or root directory does not exist.

    What to do: Create it, or correct the URL.
    """


class PermissionDenied(FileIOError):
    """The credentials are valid, but do not allow this request.

    What to do: Grant the permission that the message names.
    """


class CredentialsError(FileIOError):
    """Credentials are missing, malformed, wrong or expired.

    What to do: Supply valid credentials.
    """


class Throttled(FileIOError):
    """The store refused the request before any effect: status 429, or 409 `ConditionalRequestConflict` of S3. Retries are exhausted.

    What to do: Try again later.
    """


class Unavailable(FileIOError):
    """The store gave no answer, a broken answer or a server error, and retries are exhausted. The effect of a write is unknown.

    What to do: Try again later.
    """


class StoreFull(FileIOError):
    """The store has no room left, or a quota or size limit is reached. Nothing was written.

    What to do: Free space, or raise the quota, and try again.
    """


class ObjectChanged(FileIOError):
    """An object that is read in pieces has another version or size than when it was opened.

    What to do: Open the object again.
    """


class UploadLost(FileIOError):
    """A multipart upload no longer exists, and certainly did not complete. Nothing was written.

    What to do: Write again.
    """


class NotWritten(FileIOError):
    """A write ended as `PreconditionFailed` or `OutcomeUnknown` where the caller needed `Written`. The value is `outcome`.

    What to do: Look at `outcome`: only the first one means that nothing was written.

    Attributes:
        outcome: how the write ended.
    """

    def __init__(self, message: str, outcome: object) -> None:
        super().__init__(message)
        self.outcome = outcome

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.outcome))


class Unsupported(FileIOError):
    """The store lacks the capability that this call needs.

    What to do: Check `FileIO.capabilities` first, or use another store.
    """


class InvalidKey(FileIOError):
    """The key is empty or absolute, has an empty or dotted segment, holds a NUL, or is longer than 900 bytes.

    What to do: Choose another key.
    """


class InvalidConfig(FileIOError):
    """A URL, an option or a setting is not valid.

    What to do: Use the nearest valid name that the message shows.
    """


class StoreUnfit(InvalidConfig):
    """The store accepted a write that a condition forbids, so concurrent commits would be lost.

    What to do: Use another store. `objcat store-check` shows what a store does.
    """


class MissingDependency(InvalidConfig):
    """A library that this call needs is not installed.

    What to do: Install the extra that the message names.
    """


def __dir__() -> list[str]:
    return sorted(name for name, value in globals().items() if isinstance(value, type))
