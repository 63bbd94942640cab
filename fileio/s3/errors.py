"""What answers of S3 mean: the errors and outcomes of fileio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from fileio.contract import OutcomeUnknown, Overwrite, PutMode, Update
from fileio.errors import (
    BucketNotFound,
    CredentialsError,
    FileIOError,
    InvalidConfig,
    InvalidKey,
    NotFound,
    PermissionDenied,
    Throttled,
    Unavailable,
    Unsupported,
)


class Failure(Exception):
    """A failed request: the store's code and status, if it gave any, and the error for the caller.

    The error is raised `from None`: texts of the SDK may hold a proxy's password, or what a store repeats. Ours are redacted.
    """

    def __init__(self, code: str, status: int | None, error: FileIOError) -> None:
        super().__init__(str(error))
        self.code = code
        self.status = status
        self.error = error

    @property
    def absent(self) -> bool:
        """Whether the key or the upload does not exist, but the bucket does."""
        return self.code in ABSENT_CODES

    def condition_failed(self, mode: PutMode) -> bool:
        """Whether the store refused the condition of `mode`."""
        if isinstance(mode, Overwrite):
            return False
        return self.code == "PreconditionFailed" or self.status == 412 or (isinstance(mode, Update) and self.code in ("NoSuchKey", "404"))

    @property
    def foreign(self) -> bool:
        """Whether an answer with a body lacks S3's own code. Then it came from something between us and the store."""
        return self.status is not None and self.code in ("", str(self.status))

    def answered(self) -> Failure:
        """The failure of a read whose answers have a body. A 404 from something in between does not mean that the object is absent."""
        return Failure(self.code, self.status, self._unusable()) if self.foreign and self.status == 404 else self

    def as_unknown(self, *, absent: bool = False) -> OutcomeUnknown:
        """The outcome of a write with this answer. Raises the error when the write certainly had no effect.

        Something in between may have forwarded the write, or a repetition of it, before it refused it.

        Args:
            absent: Treat an answer that something is absent in the same way: the write needs nothing but the bucket.
        """
        if isinstance(self.error, Unavailable):
            return OutcomeUnknown(self.error)
        if self.foreign or (absent and self.absent):
            return OutcomeUnknown(self._unusable())
        raise self.error from None

    def _unusable(self) -> Unavailable:
        said = str(self.error)
        return Unavailable(said if said.endswith(_NO_ANSWER) else f"{said} {_NO_ANSWER}")


ABSENT_CODES = frozenset({"NoSuchKey", "NoSuchUpload", "NoSuchVersion", "404"})
_NO_ANSWER = "S3 does not answer such a request in this way. Check option 'endpoint' and what is in front of the store."
_ELSEWHERE = (FileIOError, _NO_ANSWER)
_CREDENTIALS = (CredentialsError, "Check options 'access_key', 'secret_key' and 'session_token', or renew the default credentials.")
_CLOCK = (CredentialsError, "Set this machine's clock.")
_REGION = (InvalidConfig, "Set option 'region' to the bucket's region.")
_DENIED = (PermissionDenied, "Grant these credentials the permission.")
_ABSENT = (NotFound, "")
_LATER = (Throttled, "")
_UNANSWERED = (Unavailable, "")
_KINDS: Mapping[str, tuple[type[FileIOError], str]] = {
    "NoSuchBucket": (BucketNotFound, "Create the bucket, or correct the URL."),
    "NoSuchKey": _ABSENT,
    "AccessDenied": _DENIED,
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "ExpiredTokenException": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "TokenRefreshRequired": _CREDENTIALS,
    "InvalidSecurity": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "XAdminUserNotFound": _CREDENTIALS,
    "RequestTimeTooSkewed": _CLOCK,
    "RequestExpired": _CLOCK,
    "PermanentRedirect": _REGION,
    "TemporaryRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "TooManyRequests": _LATER,
    "TooManyRequestsException": _LATER,
    "Throttling": _LATER,
    "ThrottlingException": _LATER,
    "RequestLimitExceeded": _LATER,
    "ConditionalRequestConflict": _LATER,
    "OperationAborted": _LATER,
    "RequestTimeout": _UNANSWERED,
    "InternalError": _UNANSWERED,
    "ServiceUnavailable": _UNANSWERED,
    "InvalidBucketName": (InvalidConfig, "Correct the bucket in the URL."),
    "KeyTooLongError": (InvalidKey, "Use shorter segments."),
    "NotImplemented": (Unsupported, ""),
    "MethodNotAllowed": (Unsupported, ""),
}
_KINDS_BY_STATUS = {
    301: _REGION,
    302: _ELSEWHERE,
    303: _ELSEWHERE,
    307: _ELSEWHERE,
    308: _ELSEWHERE,
    401: _CREDENTIALS,
    403: _DENIED,
    404: _ABSENT,
    408: _UNANSWERED,
    429: _LATER,
}
CREDENTIAL_ERRORS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "TokenRetrievalError",
    "SSOError",
    "LoginError",
    "RefreshWithMFAUnsupportedError",
    "NoAuthTokenError",
    "InvalidConfigError",
    "ConfigParseError",
)
REQUEST_ERRORS = (
    "ParamValidationError",
    "ValidationError",
    "NoRegionError",
    "InvalidProxiesConfigError",
    "EndpointProviderError",
    "InvalidEndpointConfigurationError",
)


def load_sdk_errors(names: Sequence[str]) -> tuple[type[Exception], ...]:
    """The SDK's exception classes of these names, as far as the installed version has them."""
    from botocore import exceptions

    return tuple(getattr(exceptions, name) for name in names if hasattr(exceptions, name))


def led_to_error(response: Mapping[str, Any]) -> Iterator[str]:
    """Where a redirect leads, without its path, which may hold a token."""
    answer = response.get("ResponseMetadata", {})
    parts = urlsplit(answer.get("HTTPHeaders", {}).get("location", ""))
    if answer.get("HTTPStatusCode", 0) // 100 == 3 and parts.hostname:
        yield f"to {parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def raised_in_sdk(error: Exception, module: str) -> bool:
    """Whether an error comes from this module itself. Some errors have no class of their own, such as that of an expired renewal."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == module


def kind_of_failure(code: str, status: int | None) -> tuple[type[FileIOError], str]:
    """The class of error for an answer, and what to do. `status` is None for one key within a batch."""
    if code in _KINDS:
        return _KINDS[code]
    if status in _KINDS_BY_STATUS:
        return _KINDS_BY_STATUS[status]
    if code == "SlowDown" or (status is not None and status >= 500):
        return _UNANSWERED
    return (FileIOError, "")
