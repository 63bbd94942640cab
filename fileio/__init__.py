"""Object storage with conditional writes: one small contract over S3, Google Cloud Storage, Azure Blob Storage, local files and memory.

    from fileio import Create, OutcomeUnknown, PreconditionFailed, Written, open_store

    store = open_store("s3://lake/prefix", {"region": "eu-central-1"})
    match store.put("slot/1", b"...", Create()):
        case Written(version): ...             # exactly once, also when a response was lost
        case PreconditionFailed(current): ...  # certainly not: the object of another writer is there
        case OutcomeUnknown(cause): ...        # not known yet

Every public name is here. Three modules stand apart: `fileio.arrow` (a `pyarrow.fs.FileSystem` over any store), `fileio.check` (a check
of what a bucket honours and ignores) and `fileio.testing` (the conformance suite and a store that injects faults). A third party
registers a scheme by an entry point of the group `objcat.fileio` (see `fileio.schemes`). SDKs are imported on first use of their scheme.
"""

from __future__ import annotations

from fileio.contract import (
    KEY_BYTES_MAX,
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
    Suffix,
    Update,
    Upload,
    Version,
    Written,
    require_written,
)
from fileio.env import Env, SystemEnv, default_env
from fileio.errors import (
    BucketNotFound,
    CredentialsError,
    FileIOError,
    InvalidConfig,
    InvalidKey,
    MissingDependency,
    NotFound,
    NotWritten,
    ObjectChanged,
    PermissionDenied,
    StoreFull,
    StoreUnfit,
    Throttled,
    Unavailable,
    Unsupported,
    UploadLost,
)
from fileio.options import Secret
from fileio.read_stream import ReadStream
from fileio.registry import describe_store, open_store
from fileio.store import FileIO, StoreDescription
from fileio.stream_settings import StreamSettings
from fileio.wrappers import MetricsSnapshot
from fileio.write_outcomes import RetryPolicy
from fileio.write_stream import WriteStream

__all__ = [
    "KEY_BYTES_MAX",
    "Backend",
    "BucketNotFound",
    "Buffer",
    "ByteRange",
    "Capabilities",
    "Create",
    "CredentialsError",
    "DeleteResult",
    "Env",
    "FileIO",
    "FileIOError",
    "GetResult",
    "InvalidConfig",
    "InvalidKey",
    "ListPage",
    "MetricsSnapshot",
    "MissingDependency",
    "NotFound",
    "NotModified",
    "NotWritten",
    "ObjectChanged",
    "ObjectMeta",
    "OutcomeUnknown",
    "Overwrite",
    "PermissionDenied",
    "PreconditionFailed",
    "PutMode",
    "PutOutcome",
    "Range",
    "ReadStream",
    "RetryPolicy",
    "Secret",
    "StoreDescription",
    "StoreFull",
    "StoreUnfit",
    "StreamSettings",
    "Suffix",
    "SystemEnv",
    "Throttled",
    "Unavailable",
    "Unsupported",
    "Update",
    "Upload",
    "UploadLost",
    "Version",
    "WriteStream",
    "Written",
    "default_env",
    "describe_store",
    "open_store",
    "require_written",
]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
