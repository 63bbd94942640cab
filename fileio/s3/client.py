"""The one client of `fileio.s3.backend`: how it is made from options, one request at a time, and what the store's answers mean.

The SDK's own retries are off: a retry beneath us would turn our own success into a failed condition (see `fileio.write_outcomes`). Answers
are classed by their error code first and by their status second, since an error may hide inside a 200.
"""

from __future__ import annotations

import hashlib
import re
import threading
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from fileio.contract import OutcomeUnknown, Overwrite, PutMode, Update
from fileio.env import on_fork
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
from fileio.network_errors import is_untrusted
from fileio.options import Secret, hide_in_logs, nearest, redact
from fileio.s3.response_heads import insist_on_whole_heads

SSE_KINDS = ("AES256", "aws:kms", "aws:kms:dsse")
CHECKSUM_KINDS = ("when_required", "when_supported")
EXPECT_CONTINUE_BYTES = 1 << 20
"""Bodies from this size on wait for the store's `100 Continue`, so that a refusal comes before the body is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Options of `s3://`. What is not given comes from the SDK's default chain (environment, profile, web identity, instance role).

    endpoint: URL of a server other than AWS. region: of the bucket. access_key, secret_key, session_token: static credentials.
    profile: of the shared configuration files. role_arn: assumed through STS with the other credentials and renewed before it expires;
    external_id: what its trust policy asks for; sts_endpoint: URL of an STS other than AWS. path_style: the bucket in the path, not in the
    host name (default: when an endpoint is given). anonymous: requests are not signed.

    sse: server-side encryption of what is written, `AES256`, `aws:kms` or `aws:kms:dsse`; sse_kms_key_id: its key. sse_customer_key:
    32 bytes in base64, sent with every read and write (SSE-C).

    proxy: URL of an HTTP proxy, which may hold a user and a password. ca_bundle: path of a PEM file to trust. verify_tls: False accepts
    any certificate. connect_timeout_s, read_timeout_s: seconds until a silent store is `Unavailable`. max_connections: kept for reuse.

    express: the bucket is a directory bucket (names that end in `--x-s3` always are): it appends, and lists in no order.
    conditional_copy: the store honours conditions on the target of a copy (default: when no endpoint is given, that is on AWS).
    request_checksum: `when_required`, or `when_supported` for a CRC of every body, sent or read; several servers refuse it.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: Secret | None = None
    session_token: Secret | None = None
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    sts_endpoint: str | None = None
    path_style: bool | None = None
    anonymous: bool = False
    sse: str | None = None
    sse_kms_key_id: str | None = None
    sse_customer_key: Secret | None = None
    proxy: Secret | None = None
    ca_bundle: str | None = None
    verify_tls: bool = True
    express: bool = False
    conditional_copy: bool | None = None
    request_checksum: str = "when_required"
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    max_connections: int = 32

    def __post_init__(self) -> None:
        """Raises InvalidConfig that names the option at fault."""
        for name, value in (("endpoint", self.endpoint), ("sts_endpoint", self.sts_endpoint)):
            if value is not None and not re.match(r"https?://[^/@\s]+/?$", value):
                raise InvalidConfig(
                    f"option {name!r} is {redact(value)!r}: give a URL such as https://host:port, without path or credentials"
                )
        for name, value, valid in (("sse", self.sse, SSE_KINDS), ("request_checksum", self.request_checksum, CHECKSUM_KINDS)):
            if value is not None and value not in valid:
                raise InvalidConfig(f"option {name!r} cannot be {value!r}: {nearest(value, valid)}")
        if (self.access_key is None) != (self.secret_key is None):
            raise InvalidConfig("options 'access_key' and 'secret_key' belong together: give both, or neither for the default chain")
        if self.session_token is not None and self.access_key is None:
            raise InvalidConfig("option 'session_token' needs 'access_key' and 'secret_key' beside it")
        if self.anonymous and (self.access_key or self.profile or self.role_arn):
            raise InvalidConfig("option 'anonymous' excludes credentials: drop it, or 'access_key', 'profile' and 'role_arn'")
        if self.external_id is not None and self.role_arn is None:
            raise InvalidConfig("option 'external_id' needs 'role_arn' beside it")
        if self.sse_kms_key_id is not None and self.sse not in SSE_KINDS[1:]:
            raise InvalidConfig("option 'sse_kms_key_id' needs option 'sse' to be 'aws:kms' or 'aws:kms:dsse'")
        if self.sse_customer_key is not None:
            if self.sse is not None:
                raise InvalidConfig("options 'sse' and 'sse_customer_key' exclude each other: the store's key, or yours")
            customer_key(self.sse_customer_key)
        if min(self.connect_timeout_s, self.read_timeout_s, self.max_connections) <= 0:
            raise InvalidConfig("options 'connect_timeout_s', 'read_timeout_s' and 'max_connections' must be greater than 0")

    @property
    def secrets(self) -> tuple[Secret | None, ...]:
        """What no message may show."""
        return (self.secret_key, self.session_token, self.sse_customer_key, self.proxy)


class S3Client:
    """Sends single requests about one bucket. The SDK's client is made at the first one, once, and shared by all threads."""

    def __init__(self, bucket: str, options: S3Options) -> None:
        self.url = f"s3://{bucket}"
        self.options = options
        self.bucket_seen = False
        """Whether an answer has shown that the bucket exists and that the credentials are good."""
        self._bucket = bucket
        self._lock = threading.Lock()
        self._client: Any = None
        self._parents: Any = None
        """A client that a fork brought along: kept, since closing its connections would disturb the parent's TLS sessions."""
        on_fork(self)

    def after_fork(self) -> None:
        """The connections are the parent's, and a thread that is not here may have held the lock."""
        self._lock = threading.Lock()
        self._client, self._parents = None, self._client

    def send(self, operation: str, what: str, **arguments: Any) -> Any:
        """One request. Raises Failure, whatever went wrong."""
        client = self._client or self._connect(operation, what)
        try:
            response = getattr(client, operation)(Bucket=self._bucket, **arguments)
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises is classed
            raise self._failure(error, operation, what) from None
        self.bucket_seen = True
        return response

    def body(self, key: str, response: Mapping[str, Any]) -> bytes:
        """All bytes of the answer to a `get_object`. Raises Failure when it breaks off."""
        try:
            data: bytes = response["Body"].read()
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises is classed
            raise self._failure(error, "get_object", key) from None
        return data

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _connect(self, operation: str, what: str) -> Any:
        with self._lock:
            if self._client is None:
                try:
                    self._client = _make_client(self.options)
                except Exception as error:  # noqa: BLE001 - the same
                    raise self._failure(error, operation, what) from None
        return self._client

    # ---- what an answer means

    def _failure(self, error: Exception, operation: str, what: str) -> Failure:
        from botocore.exceptions import ClientError

        if not isinstance(error, ClientError):
            return Failure("", None, self._transport_error(error, operation, what))
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        message = " ".join([str(error.response.get("Error", {}).get("Message", "")), *_led_to(error.response)])
        if error.operation_name.startswith("AssumeRole"):
            return Failure("", None, self._role_error(error.operation_name, code, status, message))
        if code in ("NoSuchKey", "PreconditionFailed"):
            self.bucket_seen = True
        return Failure(code, status, self.error(code, status, message, operation, what))

    def error(self, code: str, status: int | None, message: str, operation: str, what: str) -> FileIOError:
        """The typed error of an answer: by code, then by status. Only the `Unavailable` ones leave the effect of a write open."""
        kind, advice = _kind_of(code, status)
        said = redact(" ".join(f"{code} {message}".split()), self.options.secrets)
        return kind(f"{operation} of {what!r} in {self.url}: the store answered {said or status}{advice}")

    def _role_error(self, operation: str, code: str, status: int, message: str) -> FileIOError:
        kind, _ = _kind_of(code, status)
        said = redact(f"{code} {message}", self.options.secrets)
        role = repr(self.options.role_arn) if self.options.role_arn else "of the profile"
        text = f"the role {role} cannot be assumed for {self.url}: {operation} was answered {status} {said}"
        if issubclass(kind, (Throttled, Unavailable)):
            return kind(text)
        return CredentialsError(f"{text}: check options 'role_arn' and 'external_id', and the role's trust policy")

    def _transport_error(self, error: Exception, operation: str, what: str) -> FileIOError:
        """The typed error of a request that got no (whole) answer."""
        from botocore import exceptions as sdk

        said = redact(" ".join(str(error).split()), self.options.secrets)
        asked = f"{operation} of {what!r} in {self.url}"
        if isinstance(error, _sdk_errors(_CREDENTIAL_ERRORS)) or _raised_in(error, "botocore.credentials"):
            advice = "give options 'access_key' and 'secret_key', or 'profile', or mend the default chain"
            return CredentialsError(f"{asked}: no usable credentials ({said}): {advice}")
        if isinstance(error, sdk.UnseekableStreamError):
            return Throttled(f"{asked}: the store sent the request to another region: ask again there")
        if is_untrusted(error):
            advice = "give its authority as option 'ca_bundle'"
            return InvalidConfig(f"{asked}: the certificate of {self._endpoint(error)} is not trusted ({said}): {advice}")
        if isinstance(error, _sdk_errors(_REQUEST_ERRORS)):
            return InvalidConfig(f"{asked}: the request cannot be built ({said}): check the bucket's name and the options")
        if isinstance(error, (sdk.EndpointConnectionError, sdk.ProxyConnectionError, sdk.ConnectTimeoutError)):
            advice = "check option 'endpoint', the proxy and the network"
            return Unavailable(f"{asked}: cannot reach {self._endpoint(error)} ({said}): {advice}")
        return Unavailable(f"{asked}: no answer from {self._endpoint(error)} ({type(error).__name__}: {said})")

    def _endpoint(self, error: Exception) -> str:
        parts = urlsplit(str(getattr(error, "kwargs", {}).get("endpoint_url", "")))
        if parts.hostname:
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        return self.options.endpoint or f"the S3 endpoint of AWS in region {self.options.region or 'by default'}"


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


# ---- what codes mean ---------------------------------------------------------------------------------------------

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
_CREDENTIAL_ERRORS = (
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
_REQUEST_ERRORS = (
    "ParamValidationError",
    "ValidationError",
    "NoRegionError",
    "InvalidProxiesConfigError",
    "EndpointProviderError",
    "InvalidEndpointConfigurationError",
)


def _sdk_errors(names: Sequence[str]) -> tuple[type[Exception], ...]:
    """The SDK's exception classes of these names, as far as the installed version has them."""
    from botocore import exceptions

    return tuple(getattr(exceptions, name) for name in names if hasattr(exceptions, name))


def _led_to(response: Mapping[str, Any]) -> Iterator[str]:
    """Where a redirect leads, without its path, which may hold a token."""
    answer = response.get("ResponseMetadata", {})
    parts = urlsplit(answer.get("HTTPHeaders", {}).get("location", ""))
    if answer.get("HTTPStatusCode", 0) // 100 == 3 and parts.hostname:
        yield f"to {parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _raised_in(error: Exception, module: str) -> bool:
    """Whether an error comes from this module itself: some have no class of their own, such as that of credentials which are renewed by
    expired ones."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == module


def _kind_of(code: str, status: int | None) -> tuple[type[FileIOError], str]:
    """The class of error and the advice for an answer; status None: of one key within a batch."""
    if code in _KINDS:
        return _KINDS[code]
    if status in _KINDS_BY_STATUS:
        return _KINDS_BY_STATUS[status]
    if code == "SlowDown" or (status is not None and status >= 500):
        return _UNANSWERED
    return (FileIOError, "")


# ---- making the client -------------------------------------------------------------------------------------------


def _make_client(options: S3Options) -> Any:
    """The SDK's client for S3. Raises what the SDK raises."""
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    session = _make_session(options)
    path_style = options.endpoint is not None if options.path_style is None else options.path_style
    config = Config(
        s3={"addressing_style": "path" if path_style else "auto"},
        **_checksums(options),
        # What is sent is built here alone, and validation would refuse a memoryview.
        parameter_validation=False,
        **({"signature_version": UNSIGNED} if options.anonymous else {}),
    ).merge(_transport_config(options))
    client = boto3.Session(botocore_session=session).client(
        "s3",
        region_name=options.region or session.get_config_variable("region") or (None if options.endpoint is None else "us-east-1"),
        endpoint_url=options.endpoint,
        verify=_verify(options),
        config=config,
        **({} if options.role_arn is not None else _static_credentials(options)),
    )
    insist_on_whole_heads(client)
    client.meta.events.register("before-call.s3", _expect_continue)
    client.meta.events.register("before-call.s3.HeadBucket", _ask_for_a_region_once)
    hide_in_logs(("botocore", "boto3", "urllib3"), options.secrets)
    if options.endpoint is not None:
        client.meta.events.register("before-call.s3.DeleteObjects", _add_content_md5)
    return client


def _make_session(options: S3Options) -> Any:
    """A session whose credentials are those of the role, when there is one, renewed through STS before they expire."""
    from botocore.credentials import CredentialResolver, DeferredRefreshableCredentials, create_assume_role_refresher

    session = _new_session(options)
    if options.role_arn is None:
        return session
    sts = session.create_client(
        "sts",
        region_name=options.region or session.get_config_variable("region") or "us-east-1",
        endpoint_url=options.sts_endpoint,
        verify=_verify(options),
        config=_transport_config(options),
        **_static_credentials(options),
    )
    insist_on_whole_heads(sts)
    request = {"RoleArn": options.role_arn, "RoleSessionName": "objcat"}
    if options.external_id is not None:
        request["ExternalId"] = options.external_id
    credentials = DeferredRefreshableCredentials(create_assume_role_refresher(sts, request), "sts-assume-role")
    provider: Any = _Provider(credentials)
    assumed = _new_session(options)
    assumed.register_component("credential_provider", CredentialResolver([provider]))
    return assumed


def _new_session(options: S3Options) -> Any:
    from botocore.session import Session

    session = Session(profile=options.profile)
    session.register_component("data_loader", _service_models(session.get_config_variable("data_path")))
    return session


@cache
def _service_models(data_path: str | None) -> Any:
    """The SDK's descriptions of services: reading them takes longer than all else that opening a store does."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


class _Provider:
    """Credentials in the shape in which a session of the SDK looks for them."""

    METHOD = CANONICAL_NAME = "objcat-assume-role"

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def load(self) -> Any:
        return self._credentials


def _transport_config(options: S3Options) -> Any:
    from botocore.config import Config

    proxy = None if options.proxy is None else options.proxy.reveal()
    return Config(
        retries={"total_max_attempts": 1},
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.max_connections,
        proxies=None if proxy is None else {"http": proxy, "https": proxy},
        tcp_keepalive=True,
    )


def _checksums(options: S3Options) -> dict[str, Any]:
    return {"request_checksum_calculation": options.request_checksum, "response_checksum_validation": options.request_checksum}


def _verify(options: S3Options) -> bool | str | None:
    return False if not options.verify_tls else options.ca_bundle


def _static_credentials(options: S3Options) -> dict[str, Any]:
    if options.access_key is None or options.secret_key is None:
        return {}
    token = None if options.session_token is None else options.session_token.reveal()
    return {"aws_access_key_id": options.access_key, "aws_secret_access_key": options.secret_key.reveal(), "aws_session_token": token}


def _expect_continue(params: dict[str, Any], **_: Any) -> None:
    body = params.get("body")
    if isinstance(body, (bytes, bytearray, memoryview)) and len(body) >= EXPECT_CONTINUE_BYTES:
        params["headers"]["Expect"] = "100-continue"


def _ask_for_a_region_once(context: dict[str, Any], **_: Any) -> None:
    """A redirect makes the SDK ask with a HEAD for the bucket's region. Were that redirected too, it would ask again, without end."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _add_content_md5(params: dict[str, Any], **_: Any) -> None:
    """Servers older than the SDK's checksums insist on the MD5 of a batch delete; newer ones take both."""
    params["headers"]["Content-MD5"] = b64encode(hashlib.md5(params["body"], usedforsecurity=False).digest()).decode()


def customer_key(key: Secret) -> bytes:
    """The 32 bytes of an SSE-C key. Raises InvalidConfig when it is none."""
    try:
        raw = b64decode(key.reveal(), validate=True)
    except (BinasciiError, ValueError):
        raw = b""
    if len(raw) != 32:
        raise InvalidConfig("option 'sse_customer_key' must be 32 bytes in base64, such as `openssl rand -base64 32` prints")
    return raw
