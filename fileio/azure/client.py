"""How `az://` is opened: options, credentials, and a client of azure-storage-blob that sends each request once."""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from fileio.contract import Range
from fileio.errors import InvalidConfig
from fileio.optional import library
from fileio.options import Secret, hide_in_logs, read_secret, redact
from fileio.ranges import size_told
from fileio.response_heads import whole_head_adapter

if TYPE_CHECKING:
    from azure.core.pipeline.transport import RequestsTransport
    from azure.storage.blob import BlobServiceClient, ContainerClient

PUT_BYTES_MAX = 5000 * 1024 * 1024
"""The largest blob that the service accepts in one request."""
_READ_BYTES_MAX = 1 << 50
_MARKS_OF_THE_SERVICE = ("x-ms-request-id", "x-ms-version", "x-ms-error-code")
_ANSWERS_THAT_DECIDE = frozenset({*range(200, 400), 404, 409, 412, 416})
"""Statuses that say what exists, or what was done. For a read, all others are refusals. A refused write may have been forwarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureOptions:
    """Options of `az://`. Pass at most one kind of credentials. Without any, the environment and then `DefaultAzureCredential` are used.

    The environment, in this order: AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN. Without `account` and
    `endpoint`, AZURE_STORAGE_ACCOUNT.

    Args:
        account: Name of the storage account.
        account_key: Its shared key.
        sas_token: A SAS token.
        sas_token_file: Path of a file with a SAS token. Every request reads it, so a newer token renews the credentials of open stores.
        connection_string: Account, endpoint and secret in one text.
        tenant_id: A service principal, with `client_id` and `client_secret`.
        client_id: See `tenant_id`.
        client_secret: See `tenant_id`.
        managed_identity_client_id: A user-assigned managed identity.
        use_default_credential: Use the chain of azure-identity and ignore the environment.
        anonymous: Send no credentials (public containers).
        endpoint: URL of the account, when it is not https://<account>.blob.core.windows.net.
        encryption_scope: The encryption scope of new objects.
        customer_key: Base64 of the 32 bytes under which objects are written and read. Needs https.
        proxy: URL of an HTTP proxy.
        ca_bundle: PEM file of the trusted authorities.
        connect_timeout_s: Seconds to connect, for each request.
        read_timeout_s: Seconds without a byte, for each request.
        max_connections: Connections that stay open. More threads open more.
    """

    account: str | None = None
    account_key: Secret | None = None
    sas_token: Secret | None = None
    sas_token_file: str | None = None
    connection_string: Secret | None = None
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: Secret | None = None
    managed_identity_client_id: str | None = None
    use_default_credential: bool = False
    anonymous: bool = False
    endpoint: str | None = None
    encryption_scope: str | None = None
    customer_key: Secret | None = None
    proxy: Secret | None = None
    ca_bundle: str | None = None
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    max_connections: int = 32

    @property
    def secrets(self) -> tuple[Secret | None, ...]:
        """The values that no message may show."""
        return (self.account_key, self.sas_token, self.connection_string, self.client_secret, self.customer_key, self.proxy)


_CREDENTIALS = (
    "account_key",
    "sas_token",
    "sas_token_file",
    "connection_string",
    "client_secret",
    "managed_identity_client_id",
    "use_default_credential",
    "anonymous",
)


def resolve(options: AzureOptions) -> AzureOptions:
    """The options, with account and credentials from the environment where they are missing."""
    kinds = [name for name in _CREDENTIALS if getattr(options, name)]
    if len(kinds) > 1:
        raise InvalidConfig(f"az:// has credentials of several kinds ({', '.join(kinds)}). Pass one.")
    principal = [bool(value) for value in (options.tenant_id, options.client_id, options.client_secret)]
    if any(principal) and not all(principal):
        raise InvalidConfig(
            "az:// signs in as a service principal with all of tenant_id, client_id and client_secret. Pass all three or none."
        )
    if options.connection_string and (options.account or options.endpoint):
        raise InvalidConfig("az:// finds account and endpoint in the option connection_string. Leave out the options account and endpoint.")
    if options.endpoint and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#@\s]*)?", options.endpoint):
        raise InvalidConfig("az:// needs an endpoint such as 'https://account.blob.core.windows.net', without credentials or query.")
    if not kinds:
        options = _with_environment(options)
    if not (options.account or options.endpoint or options.connection_string):
        options = replace(options, account=os.environ.get("AZURE_STORAGE_ACCOUNT"))
        if not options.account:
            raise InvalidConfig("az:// does not know the storage account. Pass the option account, or set AZURE_STORAGE_ACCOUNT.")
    return options


def _with_environment(options: AzureOptions) -> AzureOptions:
    """The options with the first credentials of the environment. Its connection string must not override an account of the options."""
    string, key, token = (os.environ.get(f"AZURE_STORAGE_{name}") for name in ("CONNECTION_STRING", "KEY", "SAS_TOKEN"))
    if string and not (options.account or options.endpoint):
        return replace(options, connection_string=Secret(string))
    if key:
        return replace(options, account_key=Secret(key))
    return replace(options, sas_token=Secret(token)) if token else options


def credential_of(settings: AzureOptions) -> Any:
    """The credential for the SDK. None: anonymous, or within the connection string."""
    if settings.anonymous or settings.connection_string:
        return None
    if settings.account_key:
        return {"account_name": account_of(settings), "account_key": settings.account_key.reveal()}
    if settings.sas_token:
        return settings.sas_token.reveal().lstrip("?")
    if settings.sas_token_file:
        return _sas_file_class()(settings.sas_token_file)
    library("azure.identity", needed_by="az:// without a key or SAS token needs", extra="azure")
    import azure.identity

    # Without a handler, its warnings go to stderr, over many lines. Our error says what to do.
    logging.getLogger("azure.identity").addHandler(logging.NullHandler())
    if settings.client_secret:
        assert settings.tenant_id is not None and settings.client_id is not None
        return azure.identity.ClientSecretCredential(settings.tenant_id, settings.client_id, settings.client_secret.reveal())
    if settings.managed_identity_client_id:
        return azure.identity.ManagedIdentityCredential(client_id=settings.managed_identity_client_id)
    return azure.identity.DefaultAzureCredential()


@cache
def _sas_file_class() -> type[Any]:
    from azure.core.credentials import AzureSasCredential

    class SasFile(AzureSasCredential):
        """The SAS token in a file. It is read whenever the SDK asks for it."""

        def __init__(self, path: str) -> None:
            super().__init__("")
            self._path = path

        @property
        def signature(self) -> str:
            """The token. Raises CredentialsError when the file holds none."""
            return read_secret(self._path, option="sas_token_file").lstrip("?")

    return SasFile


def _account_of(endpoint: str) -> str:
    """The account in an endpoint: the first label of the host. For emulators on an IP address or localhost, the path."""
    host, _, path = endpoint.split("://", 1)[1].partition("/")
    return path.strip("/") or host.split(".", 1)[0]


def container_client(container: str, settings: AzureOptions, credential: Any) -> ContainerClient:
    """The SDK's client of a container: one request per call, no retries, nothing split. Raises InvalidConfig."""
    from azure.storage.blob import ContainerClient

    transport = _transport(settings)
    common = _common(settings, transport)
    try:
        if settings.connection_string:
            client = ContainerClient.from_connection_string(settings.connection_string.reveal(), container, **common)
        else:
            client = ContainerClient(_endpoint(settings), container, credential=credential, **common)
    except ValueError as error:
        raise InvalidConfig(f"az://{container} cannot be opened ({redact(str(error), settings.secrets)}). Check the options.") from None
    # As above: the SDK reports a body that breaks off on stderr too.
    logging.getLogger("azure").addHandler(logging.NullHandler())
    hide_in_logs(("azure", "msal", "urllib3", "requests"), settings.secrets)
    if settings.customer_key and client.scheme != "https":
        raise InvalidConfig(f"The option customer_key of az://{container} needs an https endpoint. Pass one.")
    _use_proxies(transport, settings, client.primary_endpoint)
    return client


def account_client(settings: AzureOptions, credential: Any) -> BlobServiceClient:
    """The SDK's client of the account, which sends each request once. credential: of azure-identity.

    Its answers are keys, not objects: one of something in between cannot be read as a key, so no marks of the service are asked for.
    """
    from azure.core.pipeline.transport import RequestsTransport
    from azure.storage.blob import BlobServiceClient

    transport = _transport(settings, RequestsTransport)
    client = BlobServiceClient(_endpoint(settings), credential=credential, **_common(settings, transport))
    hide_in_logs(("azure", "msal", "urllib3", "requests"), settings.secrets)
    _use_proxies(transport, settings, client.primary_endpoint)
    return client


def _use_proxies(transport: Any, settings: AzureOptions, endpoint: str) -> None:
    """Take the proxies of the environment, unless an option names one."""
    import requests.utils

    if not settings.proxy:
        transport.session.proxies = requests.utils.get_environ_proxies(endpoint)


def account_of(settings: AzureOptions) -> str:
    """The name of the account that settings without a connection string mean."""
    return settings.account or _account_of(settings.endpoint or "")


def _endpoint(settings: AzureOptions) -> str:
    return (settings.endpoint or f"https://{settings.account}.blob.core.windows.net").rstrip("/")


def _common(settings: AzureOptions, transport: Any) -> dict[str, Any]:
    """What all clients of the SDK have in common."""
    common: dict[str, Any] = {
        "transport": transport,
        "retry_total": 0,  # a retry beneath us would turn our own success into a failed condition
        "retry_to_secondary": False,
        "max_single_put_size": PUT_BYTES_MAX,  # never split a put into blocks
        "max_single_get_size": _READ_BYTES_MAX,  # never split a get into ranges
        "max_chunk_get_size": _READ_BYTES_MAX,
    }
    if settings.proxy:
        common["proxies"] = dict.fromkeys(("http", "https"), settings.proxy.reveal())
    return common


def customer_key_of(settings: AzureOptions) -> dict[str, Any]:
    """What requests add for a customer key. Raises InvalidConfig when the key is malformed."""
    if settings.customer_key is None:
        return {}
    from azure.storage.blob import CustomerProvidedEncryptionKey

    try:
        key = base64.b64decode(settings.customer_key.reveal(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != 32:
        raise InvalidConfig("The option customer_key of az:// must be the base64 of 32 bytes (AES-256).")
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode()
    return {"cpk": CustomerProvidedEncryptionKey(settings.customer_key.reveal(), digest)}


def _transport(settings: AzureOptions, kind: type[RequestsTransport] | None = None) -> RequestsTransport:
    """Connections. The proxies and authorities of the environment are read once. kind: instead of `WholeBodyTransport`."""
    import requests

    session = requests.Session()
    session.trust_env = False
    adapter = whole_head_adapter()(pool_connections=4, pool_maxsize=settings.max_connections, max_retries=0)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return (kind or _transport_class())(
        session=session,
        connection_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        connection_verify=settings.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True,
        connection_data_block_size=_READ_BYTES_MAX,  # read a body in one piece
    )


@cache
def _transport_class() -> type[RequestsTransport]:
    from azure.core.exceptions import ServiceResponseError
    from azure.core.pipeline.transport import RequestsTransport
    from urllib3.exceptions import HTTPError

    class WholeBodyTransport(RequestsTransport):  # type: ignore[misc,unused-ignore]
        """Accepts only complete answers of the service.

        It reads a download within the request. A body that breaks off, or has other bytes than were asked for, is an error. The SDK would
        silently accept it or ask again. A page of something in between has no id, as all answers of the service have. It does not mean
        that an object is absent or written.
        """

        def send(self, request: Any, **kwargs: Any) -> Any:
            answer = super().send(request, **kwargs)
            if not any(name in answer.headers for name in _MARKS_OF_THE_SERVICE):
                answer.internal_response.close()
                error: Any = ServiceResponseError(
                    f"{answer.status_code} by something that is not Azure Blob Storage. Check the endpoint and the network, "
                    "and what is in front of the service."
                )
                if answer.status_code not in _ANSWERS_THAT_DECIDE and request.method in ("GET", "HEAD"):
                    error.status_code = answer.status_code
                raise error
            if kwargs.get("stream"):
                response = answer.internal_response
                try:
                    response._content = response.raw.read(decode_content=response.status_code >= 300)
                except (HTTPError, OSError) as error:
                    response.close()
                    raise ServiceResponseError(f"The answer broke off ({type(error).__name__}).", error=error) from error
                response._content_consumed = True
                asked = request.headers.get("x-ms-range") or request.headers.get("Range")
                if asked and response.status_code < 300:
                    start, _, end = asked.removeprefix("bytes=").partition("-")
                    wanted = Range(int(start), int(end) + 1 if end else None)
                    size_told(request.url.partition("?")[0], response.headers.get("content-range"), wanted, len(response._content))
            return answer

    return WholeBodyTransport
