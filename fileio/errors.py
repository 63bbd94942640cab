"""Errors of `fileio`, classed by what the caller can do about them.

    FileIOError                 root
    ├── NotFound                the object does not exist
    │   └── BucketNotFound      the bucket or container does not exist: create it, or mend the URL
    ├── PermissionDenied        the store knows who asks and says no: grant the permission
    ├── CredentialsError        no credentials, or wrong or expired ones: supply others
    ├── Throttled               refused before any effect: ask again later (retried for you, within bounds)
    ├── Unavailable             no answer, or a 5xx: for a write the effect is unknown (retried for you, within bounds)
    ├── StoreFull               no room left, or a quota is reached: free some (nothing was written)
    ├── ObjectChanged           an object is not the one that was opened: open it again
    ├── UploadLost              a multipart upload vanished before it was completed: nothing landed, write again
    ├── NotWritten              a stream was closed, but its object is not (certainly) there: look at `outcome`
    ├── Unsupported             this store lacks the capability that the call needs
    ├── InvalidKey              a key that no store of ours accepts
    └── InvalidConfig           a URL or an option is wrong: the message names the nearest valid one
        ├── StoreUnfit          the store ignores conditions that commits rely on: the message names them
        └── MissingDependency   an SDK is not installed: the message names the extra

The outcome of a conditional write is a value (`Written`, `Conflict`, `Unknown` in `fileio.contract`), never an exception.
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
