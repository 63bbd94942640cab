"""How `gs://` is opened: options, credentials, a client that sends each request once, and the meaning of its answers."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fileio.contract import ByteRange, Create, Overwrite, PutMode, Range, Suffix, Update
from fileio.env import default_env
from fileio.errors import BucketNotFound, CredentialsError, FileIOError, InvalidConfig, NotFound, PermissionDenied, Throttled, Unavailable
from fileio.network_errors import UNREADABLE, is_untrusted, why_unreachable
from fileio.options import Secret, check_proxy, hide_in_logs, read_secret, redact
from fileio.response_heads import whole_head_adapter

THROTTLE_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_UPLOAD = "uploadType=multipart"
"""In the URLs of writes of whole objects, whose answer is the object's metadata."""
_SESSION = "upload_id="
"""In the URLs of upload sessions, whose errors have bodies of any form."""
TOKEN_EARLY = timedelta(minutes=4)
"""google-auth renews a token this long before it expires, or a little later."""
TOKEN_READ_EVERY = timedelta(minutes=1)
SESSION_GONE = frozenset({410, 499})
"""What GCS answers, besides 404, for an upload session that expired or was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GCSOptions:
    """Options of `gs://`. Without credentials, the application default credentials are used, and refreshed as they expire.

    Pass at most one of `anonymous`, `credentials_file`, `credentials_json`, `access_token` and `access_token_file`.

    Args:
        project: The project named in requests that need one.
        endpoint: Base URL of another server, such as http://127.0.0.1:4443.
        anonymous: Send no credentials (public buckets, test servers).
        credentials_file: Path of a JSON file with a service account, an authorized user or a workload identity.
        credentials_json: The content of such a file.
        access_token: An OAuth token. It is not refreshed.
        access_token_file: Path of a file with a token. It is read again each minute, and when the store refuses the token. So a newer token
            in the file renews the credentials of open stores.
        impersonate_service_account: E-mail address of a service account to act as, by means of the credentials above.
        encryption_key: A customer-supplied AES-256 key in base64. Every later read needs it.
        kms_key: Resource name of a Cloud KMS key.
        user_project: The project that pays for requests to a requester-pays bucket.
        proxy: URL of an HTTP proxy. It overrides the environment.
        ca_bundle: PEM file of the trusted authorities. It overrides the environment.
        connect_timeout_s: Seconds to connect.
        read_timeout_s: Seconds without a byte from the server.
        max_connections: Open connections; a thread that needs one more waits.
    """

    project: str | None = None
    endpoint: str | None = None
    anonymous: bool = False
    credentials_file: str | None = None
    credentials_json: Secret | None = None
    access_token: Secret | None = None
    access_token_file: str | None = None
    impersonate_service_account: str | None = None
    encryption_key: Secret | None = None
    kms_key: str | None = None
    user_project: str | None = None
    proxy: Secret | None = None
    ca_bundle: str | None = None
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    max_connections: int = 32

    @property
    def secrets(self) -> tuple[Secret | None, ...]:
        """The values that no message may show."""
        return (self.credentials_json, self.access_token, self.encryption_key, self.proxy)


def check_options(bucket: str, options: GCSOptions) -> None:
    """Raises InvalidConfig when the bucket or an option is malformed, or options contradict each other."""
    url = f"gs://{bucket}"
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", bucket):
        raise InvalidConfig(
            f"{url} is not a bucket. A bucket has 3 to 222 lower-case letters, digits, '-', '_' or '.', and no punctuation at its ends."
        )
    kinds = ("anonymous", "credentials_file", "credentials_json", "access_token", "access_token_file")
    given = [name for name in kinds if getattr(options, name)]
    if len(given) > 1:
        raise InvalidConfig(f"The options {' and '.join(map(repr, given))} of {url} contradict each other. Pass one of them.")
    if options.encryption_key is not None and options.kms_key is not None:
        raise InvalidConfig(f"The options 'encryption_key' and 'kms_key' of {url} contradict each other. Pass one of them.")
    if options.endpoint is not None and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#@\s]*)?", options.endpoint):
        raise InvalidConfig(
            f"The option 'endpoint' of {url} must be a URL such as https://host:port without credentials, "
            f"but is {redact(options.endpoint)!r}."
        )
    check_proxy(options.proxy, where=url)
    if min(options.connect_timeout_s, options.read_timeout_s, options.max_connections) <= 0:
        raise InvalidConfig(f"The options 'connect_timeout_s', 'read_timeout_s' and 'max_connections' of {url} must be above 0.")
    if options.ca_bundle is not None and not Path(options.ca_bundle).exists():
        raise InvalidConfig(
            f"The option 'ca_bundle' of {url} names {options.ca_bundle!r}, which does not exist. Pass the path of a PEM file."
        )
    if options.encryption_key is not None and len(customer_key(options) or b"") != 32:
        raise InvalidConfig(f"The option 'encryption_key' of {url} must be 32 bytes in base64.")


def customer_key(options: GCSOptions) -> bytes | None:
    """The bytes of `encryption_key`. Empty when it is not base64."""
    try:
        return None if options.encryption_key is None else base64.b64decode(options.encryption_key.reveal(), validate=True)
    except binascii.Error:
        return b""


def customer_key_headers(key: bytes | None) -> dict[str, str]:
    """The headers of a customer-supplied key."""
    if key is None:
        return {}
    return {
        "X-Goog-Encryption-Algorithm": "AES256",
        "X-Goog-Encryption-Key": to_base64(key),
        "X-Goog-Encryption-Key-Sha256": to_base64(hashlib.sha256(key).digest()),
    }


# ---- the client


def make_client(options: GCSOptions) -> Any:
    """A `google.cloud.storage.Client` whose session raises `Refused`. Looking for default credentials may ask the network.

    Raises CredentialsError, or an error of google-auth.
    """
    import google.cloud.storage

    adapter_class = whole_head_adapter()
    store_session_class, _ = _session_classes()
    credentials, token_request = token_source(options)
    session = store_session_class(options, credentials, token_request)
    adapter = adapter_class(pool_connections=2, pool_maxsize=options.max_connections, pool_block=True, max_retries=0)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    where = None if options.endpoint is None else {"api_endpoint": options.endpoint.rstrip("/")}
    client = google.cloud.storage.Client(project=options.project, credentials=credentials, _http=session, client_options=where)
    # Otherwise the SDK asks for the bucket in its own thread, for traces, and again after a 404. No argument prevents it.
    client._bucket_metadata_cache = None
    hide_in_logs(("google", "urllib3", "requests"), options.secrets)
    return client


@functools.cache
def _session_classes() -> tuple[type[Any], type[Any]]:
    import google.auth.transport.requests
    import requests

    authorized_session: Any = google.auth.transport.requests.AuthorizedSession

    class TokenSession(requests.Session):
        """Options override the environment, which requests alone would prefer."""

        def __init__(self, options: GCSOptions) -> None:
            super().__init__()
            self.chosen = options

        def merge_environment_settings(self, *args: Any, **kwargs: Any) -> Any:
            return _with_chosen(self.chosen, super().merge_environment_settings(*args, **kwargs))

    class StoreSession(authorized_session):  # type: ignore[misc]
        """As TokenSession, but it raises an answer of 400 or above, after google-auth could refresh a token.

        It also raises what is not an answer of this API. Something in between said that, and it does not mean that an object is absent.
        """

        def __init__(self, options: GCSOptions, credentials: Any, token_request: Any) -> None:
            super().__init__(credentials, auth_request=token_request)
            self.chosen = options
            self.hooks["response"] = [_read_if_unauthorized]

        def merge_environment_settings(self, *args: Any, **kwargs: Any) -> Any:
            return _with_chosen(self.chosen, super().merge_environment_settings(*args, **kwargs))

        def request(self, method: str, url: str, **kwargs: Any) -> Any:
            response = super().request(method, url, **kwargs)
            if response.status_code >= 400:
                if _is_foreign(method, url, response):
                    raise requests.exceptions.InvalidJSONError(f"{response.status_code} without what this API says of it")
                raise Refused(response)
            is_told = (method == "GET" and not kwargs.get("stream")) or _UPLOAD in url
            if is_told and not _begins_with(response.content, b"{"):
                raise requests.exceptions.InvalidJSONError(f"{response.status_code} without a JSON object")
            return response

    return StoreSession, TokenSession


def _read_if_unauthorized(response: Any, **_: Any) -> None:
    """Return the connection to the pool: google-auth leaves it open when it cannot renew the token."""
    if response.status_code == 401:
        response.content  # noqa: B018  (reads it)


def _is_foreign(method: str, url: str, response: Any) -> bool:
    """Whether something in between gave an answer of 400 or above that says that there is nothing, or that a write had no effect.

    Errors of the API are JSON. Those of reads of bytes and of upload sessions are any text, but not a page.
    """
    status = response.status_code
    if _SESSION in url and (status == 404 or status in SESSION_GONE):
        return False
    if method in ("POST", "PUT"):
        return status < 500 and status not in (401, 412) and not _begins_with(response.content, b"{")
    return status == 404 and _begins_with(response.content, b"<")


def _begins_with(body: bytes, sign: bytes) -> bool:
    return body.lstrip()[:1] == sign


def _with_chosen(options: GCSOptions, settings: Any) -> Any:
    if options.proxy is not None:
        settings["proxies"] = dict.fromkeys(("http", "https"), options.proxy.reveal())
    if options.ca_bundle is not None:
        settings["verify"] = options.ca_bundle
    return settings


def token_source(options: GCSOptions) -> tuple[Any, Any]:
    """The credentials of google-auth, and what sends their requests. Raises as `make_client`."""
    import google.auth.transport.requests

    _, token_session_class = _session_classes()
    token_session = token_session_class(options)
    token_session.mount("https://", whole_head_adapter()(max_retries=3))  # fetching a token is harmless to repeat
    token_request = google.auth.transport.requests.Request(token_session)
    return _credentials(options, token_request), token_request


def _credentials(options: GCSOptions, token_request: Any) -> Any:
    import google.auth
    import google.auth.credentials
    import google.auth.impersonated_credentials
    import google.cloud.storage
    import google.oauth2.credentials

    untyped: Any = google.auth
    scopes = google.cloud.storage.Client.SCOPE
    if options.anonymous:
        return untyped.credentials.AnonymousCredentials()
    if options.access_token is not None:
        make: Any = google.oauth2.credentials.Credentials
        found = make(token=options.access_token.reveal())
    elif options.access_token_file is not None:
        from_file: Any = google.oauth2.credentials.Credentials
        found = from_file(token=None, refresh_handler=functools.partial(_held_in, options.access_token_file))
    elif options.credentials_json is not None or options.credentials_file is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it warns of content from others; this is the user's own
            found, _ = untyped.load_credentials_from_dict(_credentials_content(options), scopes=scopes, request=token_request)
    else:
        found, _ = untyped.default(scopes=scopes)
    if options.impersonate_service_account is None:
        return found
    return untyped.impersonated_credentials.Credentials(found, options.impersonate_service_account, list(scopes))


def _held_in(path: str, _request: Any, scopes: Any) -> tuple[str, datetime]:  # noqa: ARG001  (google-auth passes it by name)
    """The token in a file, and the time until which it is valid for google-auth, which reads it again `TOKEN_EARLY` before."""
    now = datetime.fromtimestamp(default_env().now_ms() / 1000, UTC).replace(tzinfo=None)
    return read_secret(path, option="access_token_file"), now + TOKEN_EARLY + TOKEN_READ_EVERY


def _credentials_content(options: GCSOptions) -> dict[str, Any]:
    try:
        if options.credentials_json is not None:
            content = json.loads(options.credentials_json.reveal())
        else:
            content = json.loads(Path(options.credentials_file or "").read_text(encoding="utf-8"))
    except OSError as error:
        raise CredentialsError(
            f"The option 'credentials_file' names {options.credentials_file!r}, which cannot be read ({error}). Check the path."
        ) from error
    except ValueError:  # not chained: its text would quote the content
        content = None
    if not isinstance(content, dict):
        name = "credentials_file" if options.credentials_json is None else "credentials_json"
        raise CredentialsError(f"The option {name!r} does not hold the JSON of a credential. Pass the key file of a service account.")
    return content


# ---- answers


class Refused(Exception):
    """An answer of 400 or above. `reason`: the store's own word for it, empty when it has none."""

    def __init__(self, response: Any) -> None:
        self.status: int = 404 if response.status_code in SESSION_GONE else response.status_code
        self.reason = ""
        self.text = response.content.decode("utf-8", "replace")[:300].strip()
        try:
            said = json.loads(response.content)["error"]
            self.text = str(said["message"])
            self.reason = str((said.get("errors") or [{}])[0].get("reason", ""))
        except (ValueError, LookupError, TypeError, AttributeError):
            pass  # not the JSON of GCS: the status alone counts
        super().__init__(f"{self.status} {self.text}")


class ConditionFailed(FileIOError):
    """The store answered 412: the condition does not hold."""


def classify(error: Exception, url: str, key: str | None, options: GCSOptions, bucket_is_missing: Callable[[], bool]) -> FileIOError | None:
    """The error of fileio for an error of the SDK, by status and type. None when it is a bug and not an answer.

    Args:
        error: The error of the SDK.
        url: The URL of the store.
        key: The key of the request; None when it had none.
        options: Their secrets are removed from the message.
        bucket_is_missing: Called after a 404 about a key.
    """
    import google.api_core.exceptions
    import google.auth.exceptions
    import google.cloud.storage.exceptions as sdk
    import requests
    import urllib3.exceptions

    name = url if key is None else f"{url}/{key}"
    if isinstance(error, Refused):
        if error.status == 404:
            if key is None or bucket_is_missing():
                return bucket_not_found(url)
            return NotFound(f"{name} does not exist.")
        return _classify_status(error, name, options)
    text = _shown(error, options)
    if isinstance(error, google.auth.exceptions.TransportError) or getattr(error, "retryable", False):
        return Throttled(f"The service that issues tokens did not answer for {name} ({text}). Nothing was sent. Try again later.")
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        hint = "Pass 'credentials_file', 'credentials_json' or 'access_token', or run gcloud auth application-default login."
        return CredentialsError(f"There are no valid credentials for {name} ({text}). {hint}")
    endpoint = redact(options.endpoint or "https://storage.googleapis.com")
    if is_untrusted(error):
        return InvalidConfig(f"The certificate of {endpoint} for {name} is not trusted. Pass its authority as option 'ca_bundle'.")
    if (why := why_unreachable(error)) is not None:
        return Unavailable(f"The request about {name} cannot reach {endpoint}: {why}. Check option 'endpoint', the proxy and the network.")
    # The SDK raises these two kinds of errors for incomplete answers below 400.
    unusable = (sdk.InvalidResponse, google.api_core.exceptions.GoogleAPICallError)
    broken = (requests.RequestException, urllib3.exceptions.HTTPError, sdk.DataCorruption, OSError)
    if isinstance(error, (*broken, *unusable, *UNREADABLE)):
        return Unavailable(f"There was no valid answer about {name} ({type(error).__name__}: {text}).")
    return None


def bucket_not_found(url: str) -> BucketNotFound:
    """The error for a bucket that does not exist."""
    return BucketNotFound(f"The bucket {url} does not exist. Create it, or correct the URL.")


def _classify_status(refused: Refused, name: str, options: GCSOptions) -> FileIOError:
    text = redact(f"{refused.status} {refused.text}", options.secrets)
    match refused.status:
        case 401:
            return CredentialsError(f"The credentials for {name} are missing, wrong or expired ({text}). Pass others.")
        case 403 if refused.reason not in THROTTLE_REASONS:
            return PermissionDenied(f"The credentials do not allow this request about {name} ({text}). Grant the permission.")
        case 403 | 429:
            return Throttled(f"There were too many requests about {name} ({text}). Try again later.")
        case 412:
            return ConditionFailed(f"The condition of the write to {name} does not hold.")
        case status if status == 408 or status >= 500:
            return Unavailable(f"The server failed on a request about {name} ({text}). Try again later.")
    return FileIOError(f"The store refuses the request about {name} ({text}).")


def _shown(error: Exception, options: GCSOptions) -> str:
    """The text of an error without secrets."""
    return redact(str(error), options.secrets)[:300]


# ---- conversions


def generation_condition(mode: PutMode) -> int | None:
    """The generation that must exist: 0 means that there is no object, None allows any."""
    match mode:
        case Overwrite():
            return None
        case Create():
            return 0
        case Update(version):
            return int(version)


def milliseconds(moment: datetime) -> int:
    """A time in ms since 1970 UTC."""
    return round(moment.timestamp() * 1000)


def range_header(byte_range: ByteRange | None) -> str | None:
    """The header for a range. None: the whole object. Empty: no byte at all, so nothing to ask for."""
    match byte_range:
        case None:
            return None
        case Range(start, None):
            return f"bytes={start}-"
        case Range(start, end):
            return f"bytes={start}-{end - 1}" if end is not None and end > start else ""
        case Suffix(length):
            return f"bytes=-{length}" if length else ""


def bytes_reached(response: Any) -> int:
    """The number of bytes that a session has, from a 308. Without the header it has none."""
    held = re.fullmatch(r"bytes=0-(\d+)", response.headers.get("range", ""))
    return int(held.group(1)) + 1 if held else 0


# ---- checksums


def to_base64(data: bytes) -> str:
    """Standard base64 as text."""
    return base64.b64encode(data).decode()


def crc32c(data: bytes, before: int | None = 0) -> int | None:
    """The checksum of `data`, behind data of checksum `before`. None where it would be slow, or `before` is None."""
    import google_crc32c

    if before is None or google_crc32c.implementation == "python":
        return None
    return int(google_crc32c.extend(before, data))


def crc32c_header(checksum: int | None) -> dict[str, str]:
    """The header with the checksum of what GCS must have received."""
    return {} if checksum is None else {"X-Goog-Hash": f"crc32c={to_base64(checksum.to_bytes(4, 'big'))}"}


def check_crc32c(name: str, data: bytes, hashes: str) -> None:
    """Compare bytes with the checksum in `X-Goog-Hash`, if there is one. Raises Unavailable."""
    told = re.search(r"crc32c=([^,\s]+)", hashes)
    found = crc32c(data) if told else None
    if told and found is not None and to_base64(found.to_bytes(4, "big")) != told.group(1):
        raise Unavailable(f"{name} arrived damaged. Its checksum differs from the store's. Read it again.")
