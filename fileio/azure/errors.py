"""What the answers of Azure Blob Storage mean, as the errors and outcomes of fileio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from fileio.errors import (
    BucketNotFound,
    CredentialsError,
    FileIOError,
    InvalidConfig,
    NotFound,
    PermissionDenied,
    StoreFull,
    Throttled,
    Unsupported,
    UploadLost,
)
from fileio.network_errors import UNREADABLE

if TYPE_CHECKING:
    from azure.core.exceptions import AzureError


T = TypeVar("T")


_CREDENTIALS_HINT = "check the key, SAS token or identity, and whether it has expired"


NO_CREDENTIALS_HINT = "give 'account_key', 'sas_token' or 'connection_string', or sign in with az login"


CONDITION_CODES = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet", "AppendPositionConditionNotMet"})


CONTAINER_CODES = frozenset({"ContainerNotFound", "ContainerBeingDeleted", "ContainerBeingDisabled", "ContainerDisabled"})


_DENIED = (PermissionDenied, "grant 'Storage Blob Data Contributor' or a SAS with racwdl, and check key and network rules")


_HELD = (PermissionDenied, "a lease, a snapshot or an immutability policy holds the object: release it first")


_NOT_ACCEPTED = (CredentialsError, f"the credentials are not accepted: {_CREDENTIALS_HINT}")


_OTHER_KEY = (InvalidConfig, "the object is under another encryption key: give as customer_key the one that it was written with")


_ARCHIVED = (Unsupported, "the object is in the archive tier: rehydrate it first")


BY_CODE: Mapping[str, tuple[type[FileIOError], str]] = {
    "AuthenticationFailed": _NOT_ACCEPTED,
    "InvalidAuthenticationInfo": _NOT_ACCEPTED,
    "NoAuthenticationInformation": _NOT_ACCEPTED,
    "ExpiredAuthenticationToken": _NOT_ACCEPTED,
    "KeyBasedAuthenticationNotPermitted": _NOT_ACCEPTED,
    "PublicAccessNotPermitted": _NOT_ACCEPTED,
    "BlobImmutableDueToPolicy": _HELD,
    "LeaseIdMissing": _HELD,
    "SnapshotsPresent": _HELD,
    "BlobUsesCustomerSpecifiedEncryption": _OTHER_KEY,
    "BlobDoesNotUseCustomerSpecifiedEncryption": _OTHER_KEY,
    "BlobCustomerSpecifiedEncryptionMismatch": _OTHER_KEY,
    "InvalidBlockList": (UploadLost, "its blocks are gone, most likely because the key was written meanwhile: write it again"),
    "BlockCountExceedsLimit": (StoreFull, "the object has as many blocks as a blob can have: go on in another one"),
    "InvalidBlobType": (Unsupported, "it is another type of blob: only what append() created can grow, and only put() replaces it"),
    "BlobArchived": _ARCHIVED,
    "BlobBeingRehydrated": _ARCHIVED,
}


BY_STATUS: Mapping[int, tuple[type[FileIOError], str]] = {
    401: _NOT_ACCEPTED,
    403: _DENIED,
    404: (NotFound, ""),
    429: (Throttled, "the store wants it later"),
}


def ask_service(call: Callable[[], T]) -> T:
    """What the SDK answers. Where it, or we, cannot make sense of what the service said, that is an AzureError too."""
    from azure.core.exceptions import AzureError, ServiceResponseError

    try:
        return call()
    except AzureError:
        raise
    except UNREADABLE as error:
        raise ServiceResponseError(f"the answer cannot be read ({type(error).__name__}: {error})", error=error) from error


def error_status(error: AzureError) -> int | None:
    return getattr(error, "status_code", None)


def error_code(error: AzureError) -> str | None:
    code = getattr(error, "error_code", None)
    return None if code is None else str(getattr(code, "value", code))


def is_gone(failure: FileIOError) -> bool:
    """Whether the object, not the container, is what was not found."""
    return isinstance(failure, NotFound) and not isinstance(failure, BucketNotFound)
