"""What answers of Azure Blob Storage mean: the errors and outcomes of fileio."""

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

_CREDENTIALS_HINT = "Check the key, SAS token or identity, and whether it has expired."
NO_CREDENTIALS_HINT = "Pass 'account_key', 'sas_token' or 'connection_string', or sign in with az login."
CONDITION_CODES = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet", "AppendPositionConditionNotMet"})
CONTAINER_CODES = frozenset({"ContainerNotFound", "ContainerBeingDeleted", "ContainerBeingDisabled", "ContainerDisabled"})
_DENIED = (PermissionDenied, "Grant 'Storage Blob Data Contributor' or a SAS with racwdl, and check key and network rules.")
_HELD = (PermissionDenied, "A lease, a snapshot or an immutability policy holds the object. Release it first.")
_NOT_ACCEPTED = (CredentialsError, f"The credentials are not accepted. {_CREDENTIALS_HINT}")
_OTHER_KEY = (InvalidConfig, "The object has another encryption key. Pass the key that it was written with as customer_key.")
_ARCHIVED = (Unsupported, "The object is in the archive tier. Rehydrate it first.")

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
    "InvalidBlockList": (UploadLost, "Its blocks are gone, most likely because the key was written meanwhile. Write it again."),
    "BlockCountExceedsLimit": (StoreFull, "The object has as many blocks as a blob can have. Continue in another one."),
    "InvalidBlobType": (Unsupported, "It is another type of blob. Only an object of append() can grow. Use put() to replace it."),
    "BlobArchived": _ARCHIVED,
    "BlobBeingRehydrated": _ARCHIVED,
}
BY_STATUS: Mapping[int, tuple[type[FileIOError], str]] = {
    401: _NOT_ACCEPTED,
    403: _DENIED,
    404: (NotFound, ""),
    429: (Throttled, "Try again later."),
}


def ask_service(call: Callable[[], T]) -> T:
    """The SDK's answer to a call. An answer that the SDK or this package cannot read is an AzureError too."""
    from azure.core.exceptions import AzureError, ServiceResponseError

    try:
        return call()
    except AzureError:
        raise
    except UNREADABLE as error:
        raise ServiceResponseError(f"The answer cannot be read ({type(error).__name__}: {error}).", error=error) from error


def error_status(error: AzureError) -> int | None:
    """The HTTP status of an error; None when it has none."""
    return getattr(error, "status_code", None)


def error_code(error: AzureError) -> str | None:
    """The error code of the service; None when there is none."""
    code = getattr(error, "error_code", None)
    return None if code is None else str(getattr(code, "value", code))


def is_gone(failure: FileIOError) -> bool:
    """Whether the object was not found, and not the container."""
    return isinstance(failure, NotFound) and not isinstance(failure, BucketNotFound)
