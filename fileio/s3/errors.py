"""What the answers of S3 mean, as the errors and outcomes of fileio."""

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
    """What became of a request: the store's code and status, when it gave any, and the typed error for the caller.

    The error is raised `from None`: texts of the SDK can hold a proxy's password or what a store repeats, ours are redacted.
    """

    def __init__(self, code: str, status: int | None, error: FileIOError) -> None:
        super().__init__(str(error))
        self.code = code
        self.status = status
        self.error = error

    @property
    def absent(self) -> bool:
        """The key (or the upload) is not there, but the bucket is."""
        return self.code in ABSENT_CODES

    def condition_failed(self, mode: PutMode) -> bool:
        """Whether the condition of `mode` is what the store refused."""
        if isinstance(mode, Overwrite):
            return False
        return self.code == "PreconditionFailed" or self.status == 412 or (isinstance(mode, Update) and self.code in ("NoSuchKey", "404"))

    @property
    def foreign(self) -> bool:
        """Whether an answer that has a body lacks S3's own code: then something else on the way gave it."""
        return self.status is not None and self.code in ("", str(self.status))

    def answered(self) -> Failure:
        """The same, of a read whose answers have a body: an object is not absent because something else on the way says 404."""
        return Failure(self.code, self.status, self._unusable()) if self.foreign and self.status == 404 else self

    def as_unknown(self, *, absent: bool = False) -> OutcomeUnknown:
        """The outcome of a write that got this answer; raises when it certainly had no effect.

        What is on the way may have sent the write on before it refused it, or a repetition of it. absent: so is it with an answer that
        something is absent, to a write that needs nothing but the bucket.
        """
        if isinstance(self.error, Unavailable):
            return OutcomeUnknown(self.error)
        if self.foreign or (absent and self.absent):
            return OutcomeUnknown(self._unusable())
        raise self.error from None

    def _unusable(self) -> Unavailable:
        said = str(self.error)
        return Unavailable(said if said.endswith(_NO_ANSWER) else said + _NO_ANSWER)


ABSENT_CODES = frozenset({"NoSuchKey", "NoSuchUpload", "NoSuchVersion", "404"})


_NO_ANSWER = ": that is no answer of S3 to such a request: check option 'endpoint' and what stands before the store"


_ELSEWHERE = (FileIOError, _NO_ANSWER)


_CREDENTIALS = (CredentialsError, ": check options 'access_key', 'secret_key' and 'session_token', or renew what the default chain gives")


_CLOCK = (CredentialsError, ": set this machine's clock")


_REGION = (InvalidConfig, ": set option 'region' to the bucket's region")


_DENIED = (PermissionDenied, ": grant these credentials the permission")


_ABSENT = (NotFound, "")


_LATER = (Throttled, "")


_UNANSWERED = (Unavailable, "")


_KINDS: Mapping[str, tuple[type[FileIOError], str]] = {
    "NoSuchBucket": (BucketNotFound, ": create the bucket, or mend the URL"),
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
    "InvalidBucketName": (InvalidConfig, ": mend the bucket in the URL"),
    "KeyTooLongError": (InvalidKey, ": use shorter segments"),
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
    """Whether an error comes from this module itself: some have no class of their own, such as that of credentials which are renewed by
    expired ones."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == module


def kind_of_failure(code: str, status: int | None) -> tuple[type[FileIOError], str]:
    """The class of error and the advice for an answer; status None: of one key within a batch."""
    if code in _KINDS:
        return _KINDS[code]
    if status in _KINDS_BY_STATUS:
        return _KINDS_BY_STATUS[status]
    if code == "SlowDown" or (status is not None and status >= 500):
        return _UNANSWERED
    return (FileIOError, "")
