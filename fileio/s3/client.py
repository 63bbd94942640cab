"""`S3Client`: one client per bucket, made from options. It sends one request at a time and classifies the answers.

The SDK's own retries are off: a retry beneath us would turn our own success into a failed condition. `fileio.write_outcomes` retries the
requests of every store, and settles a write whose response was lost.
Answers are classified by error code first and by status second, since an error may hide inside a 200.
"""

from __future__ import annotations

import hashlib
import threading
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from fileio.env import on_fork
from fileio.errors import (
    CredentialsError,
    FileIOError,
    InvalidConfig,
    Throttled,
    Unavailable,
)
from fileio.network_errors import is_untrusted
from fileio.options import hide_in_logs, redact
from fileio.s3.errors import CREDENTIAL_ERRORS, REQUEST_ERRORS, Failure, kind_of_failure, led_to_error, load_sdk_errors, raised_in_sdk
from fileio.s3.options import S3Options
from fileio.s3.response_heads import insist_on_whole_heads

EXPECT_CONTINUE_BYTES = 1 << 20
"""Bodies of this size or more wait for the store's `100 Continue`, so that a refusal comes before the body is sent."""


class S3Client:
    """Sends single requests about one bucket. The first request creates the SDK's client, which all threads share."""

    def __init__(self, bucket: str, options: S3Options) -> None:
        self.url = f"s3://{bucket}"
        self.options = options
        self.bucket_seen = False
        """Whether an answer has shown that the bucket exists and that the credentials are valid."""
        self._bucket = bucket
        self._lock = threading.Lock()
        self._client: Any = None
        self._parents: Any = None
        """The client of a parent process. It stays open: closing it would disturb the parent's TLS sessions."""
        on_fork(self)

    def after_fork(self) -> None:
        """The connections are those of the parent. A thread that does not exist here may have held the lock."""
        self._lock = threading.Lock()
        self._client, self._parents = None, self._client

    def send(self, operation: str, what: str, **arguments: Any) -> Any:
        """Send one request. Raises Failure for every error."""
        client = self._client or self._connect(operation, what)
        try:
            response = getattr(client, operation)(Bucket=self._bucket, **arguments)
        except Exception as error:  # noqa: BLE001 - every error of the SDK is classified
            raise self.failure(error, operation, what) from None
        self.bucket_seen = True
        return response

    def body(self, key: str, response: Mapping[str, Any]) -> bytes:
        """All bytes of the answer to a `get_object`. Raises Failure when it breaks off."""
        try:
            data: bytes = response["Body"].read()
        except Exception as error:  # noqa: BLE001 - every error of the SDK is classified
            raise self.failure(error, "get_object", key) from None
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
                    raise self.failure(error, operation, what) from None
        return self._client

    # ---- what an answer means

    def failure(self, error: Exception, operation: str, what: str) -> Failure:
        """What an error of the SDK means. what: the key, or what else the request was about."""
        from botocore.exceptions import ClientError

        if not isinstance(error, ClientError):
            return Failure("", None, self._transport_error(error, operation, what))
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        message = " ".join([str(error.response.get("Error", {}).get("Message", "")), *led_to_error(error.response)])
        if error.operation_name.startswith("AssumeRole"):
            return Failure("", None, self._role_error(error.operation_name, code, status, message))
        if code in ("NoSuchKey", "PreconditionFailed"):
            self.bucket_seen = True
        return Failure(code, status, self.error(code, status, message, operation, what))

    def error(self, code: str, status: int | None, message: str, operation: str, what: str) -> FileIOError:
        """The typed error of an answer, by code, then by status. Only Unavailable leaves the effect of a write open."""
        kind, advice = kind_of_failure(code, status)
        said = redact(" ".join(f"{code} {message}".split()), self.options.secrets)
        answer = f"{operation} of {what!r} in {self.url} failed. The store answered {said or status}"
        return kind(f"{answer}{'' if answer.endswith('.') else '.'}{advice and ' '}{advice}")

    def _role_error(self, operation: str, code: str, status: int, message: str) -> FileIOError:
        kind, _ = kind_of_failure(code, status)
        said = redact(f"{code} {message}", self.options.secrets)
        role = repr(self.options.role_arn) if self.options.role_arn else "of the profile"
        text = f"The role {role} cannot be assumed for {self.url}. {operation} was answered {status} {said}"
        text = text if text.endswith(".") else f"{text}."
        if issubclass(kind, (Throttled, Unavailable)):
            return kind(text)
        return CredentialsError(f"{text} Check options 'role_arn' and 'external_id', and the role's trust policy.")

    def _transport_error(self, error: Exception, operation: str, what: str) -> FileIOError:
        """The typed error of a request without a complete answer."""
        from botocore import exceptions as sdk

        said = redact(" ".join(str(error).split()), self.options.secrets)
        asked = f"{operation} of {what!r} in {self.url}"
        if isinstance(error, load_sdk_errors(CREDENTIAL_ERRORS)) or raised_in_sdk(error, "botocore.credentials"):
            advice = "Pass options 'access_key' and 'secret_key', or 'profile', or correct the default chain."
            return CredentialsError(f"{asked} failed. There are no usable credentials ({said}). {advice}")
        if isinstance(error, sdk.UnseekableStreamError):
            return Throttled(f"{asked} failed. The store redirected the request to another region. Try again.")
        if is_untrusted(error):
            advice = "Pass its authority as option 'ca_bundle'."
            return InvalidConfig(f"{asked} failed. The certificate of {self._endpoint(error)} is not trusted ({said}). {advice}")
        if isinstance(error, load_sdk_errors(REQUEST_ERRORS)):
            return InvalidConfig(f"{asked} failed. The request cannot be built ({said}). Check the bucket's name and the options.")
        if isinstance(error, (sdk.EndpointConnectionError, sdk.ProxyConnectionError, sdk.ConnectTimeoutError)):
            advice = "Check option 'endpoint', the proxy and the network."
            return Unavailable(f"{asked} failed. It cannot reach {self._endpoint(error)} ({said}). {advice}")
        return Unavailable(f"{asked} failed. There was no answer from {self._endpoint(error)} ({type(error).__name__}: {said}).")

    def _endpoint(self, error: Exception) -> str:
        parts = urlsplit(str(getattr(error, "kwargs", {}).get("endpoint_url", "")))
        if parts.hostname:
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        return self.options.endpoint or f"the S3 endpoint of AWS in region {self.options.region or 'by default'}"


# ---- making the client -------------------------------------------------------------------------------------------


def _make_client(options: S3Options) -> Any:
    """The SDK's client for S3. Raises the errors of the SDK."""
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    session = _make_session(options)
    path_style = options.endpoint is not None if options.path_style is None else options.path_style
    config = Config(
        s3={"addressing_style": "path" if path_style else "auto"},
        **_checksums(options),
        # Validation would refuse a memoryview, and only this package builds requests.
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
    """A session. With a role, its credentials are those of the role, renewed through STS before they expire."""
    from botocore.credentials import CredentialResolver, DeferredRefreshableCredentials, create_assume_role_refresher

    session = _new_session(options)
    if options.role_arn is None:
        return session
    sts = _sts(session, options, endpoint=options.sts_endpoint, **_static_credentials(options))
    request = {"RoleArn": options.role_arn, "RoleSessionName": "objcat"}
    if options.external_id is not None:
        request["ExternalId"] = options.external_id
    credentials = DeferredRefreshableCredentials(create_assume_role_refresher(sts, request), "sts-assume-role")
    provider: Any = _Provider(credentials)
    assumed = _new_session(options)
    assumed.register_component("credential_provider", CredentialResolver([provider]))
    return assumed


def sts_client(options: S3Options) -> Any:
    """The SDK's client for STS, with the credentials that requests for objects have. Raises the errors of the SDK.

    It is at the option `sts_endpoint`, else at the endpoint of the store, as servers other than AWS have both at one address.
    """
    own = {} if options.role_arn is not None else _static_credentials(options)
    return _sts(_make_session(options), options, endpoint=options.sts_endpoint or options.endpoint, **own)


def _sts(session: Any, options: S3Options, *, endpoint: str | None, **credentials: Any) -> Any:
    sts = session.create_client(
        "sts",
        region_name=options.region or session.get_config_variable("region") or "us-east-1",
        endpoint_url=endpoint,
        verify=_verify(options),
        config=_transport_config(options),
        **credentials,
    )
    insist_on_whole_heads(sts)
    return sts


def _new_session(options: S3Options) -> Any:
    from botocore.session import Session

    session = Session(profile=options.profile)
    session.register_component("data_loader", _service_models(session.get_config_variable("data_path")))
    return session


@cache
def _service_models(data_path: str | None) -> Any:
    """The SDK's descriptions of services, cached. Reading them takes most of the time to open a store."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


class _Provider:
    """Credentials in the form that a session of the SDK looks for."""

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
    """After a redirect, the SDK asks for the region by a HEAD. If that is redirected too, it would ask again without end."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _add_content_md5(params: dict[str, Any], **_: Any) -> None:
    """Older servers require the MD5 of a batch delete. Newer ones accept both."""
    params["headers"]["Content-MD5"] = b64encode(hashlib.md5(params["body"], usedforsecurity=False).digest()).decode()
