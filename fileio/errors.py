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
    """Root of every error that `fileio` raises."""


class NotFound(FileIOError):
    """The object does not exist."""


class BucketNotFound(NotFound):
    """The bucket, container or root directory does not exist."""


class PermissionDenied(FileIOError):
    """The credentials are valid, but do not allow this request."""


class CredentialsError(FileIOError):
    """Credentials are missing, malformed, wrong or expired."""


class Throttled(FileIOError):
    """The store refused the request before any effect and wants it later (429, S3's 409 ConditionalRequestConflict)."""


class Unavailable(FileIOError):
    """No answer, a broken answer, or a server error. Whether a write took effect is not known."""


class StoreFull(FileIOError):
    """The store has no room left, or a quota or size limit is reached. Nothing was written; asking again helps once room is made."""


class ObjectChanged(FileIOError):
    """An object that is read in pieces has another version or size than when it was opened."""


class UploadLost(FileIOError):
    """A multipart upload no longer exists and certainly did not complete: nothing landed."""


class NotWritten(FileIOError):
    """A write that the caller took for granted ended as `Conflict` or `Unknown`; the value is `outcome`."""

    def __init__(self, message: str, outcome: object) -> None:
        super().__init__(message)
        self.outcome = outcome

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.outcome))


class Unsupported(FileIOError):
    """The store does not have the capability that this call needs (see `FileIO.capabilities`)."""


class InvalidKey(FileIOError):
    """The key is empty, absolute, has an empty or dotted segment, holds a NUL, or is longer than 900 bytes."""


class InvalidConfig(FileIOError):
    """A URL, an option or a setting is not valid."""


class StoreUnfit(InvalidConfig):
    """The store accepted a write that a condition forbids, so concurrent commits would be lost. Use another store."""


class MissingDependency(InvalidConfig):
    """The SDK that this scheme needs is not installed."""


def __dir__() -> list[str]:
    return sorted(name for name, value in globals().items() if isinstance(value, type))
