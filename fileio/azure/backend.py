"""`az://container/prefix`: Azure Blob Storage through azure-storage-blob. Block blobs, and append blobs for `append`.

Every method sends one request, with these exceptions. A `Suffix` read asks for the size first. A read of nothing (an empty object, a
range past the end) takes a second request, because the store answers 416. An append at offset 0 creates the append blob and then adds
to it. A copy asks for the size of its source, and is sent in pieces above 256 MiB.

An upload is a list of uncommitted blocks under the key. Azure has one such list per key, so block names carry the write id: two uploads
of one key cannot mix. No request removes uncommitted blocks. They stay invisible until the next write to the key, or a week, drops them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from fileio.azure.client import PUT_BYTES_MAX, AzureOptions, container_client, credential_of, customer_key_of, resolve
from fileio.azure.errors import (
    BY_CODE,
    BY_STATUS,
    CONDITION_CODES,
    CONTAINER_CODES,
    NO_CREDENTIALS_HINT,
    ask_service,
    error_code,
    error_status,
    is_gone,
)
from fileio.azure.upload import AzureUpload
from fileio.contract import (
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
    Suffix,
    Update,
    Upload,
    Version,
    Written,
)
from fileio.env import default_env, is_ending, on_fork
from fileio.errors import (
    BucketNotFound,
    CredentialsError,
    FileIOError,
    InvalidConfig,
    NotFound,
    Throttled,
    Unavailable,
    Unsupported,
)
from fileio.network_errors import is_untrusted, why_unreachable
from fileio.optional import library
from fileio.options import check_proxy, redact

if TYPE_CHECKING:
    from azure.core.exceptions import AzureError
    from azure.storage.blob import BlobClient, BlobProperties


_MIB = 1024 * 1024
_APPEND_BYTES_MAX = 100 * _MIB
_COPY_BYTES_MAX = 256 * _MIB
_SAS_MINUTES = 60
_STORAGE_SCOPE = "https://storage.azure.com/.default"

AZURE_CAPABILITIES = Capabilities(
    append=True, delete_batch_max=256, part_bytes_min=1, part_bytes_max=4000 * _MIB, parts_max=50_000, put_bytes_max=PUT_BYTES_MAX
)


def open_azure(container: str, options: AzureOptions) -> Backend:
    """The backend over a whole container. Sends no request.

    Raises:
        InvalidConfig: The container or an option is wrong.
        MissingDependency: azure-storage-blob is not installed.
    """
    if not re.fullmatch(r"\$root|\$web|(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", container):
        raise InvalidConfig(f"{container!r} cannot be a container. Azure allows 3 to 63 lower-case letters, digits and single hyphens.")
    library("azure.storage.blob", needed_by="az:// needs", extra="azure")
    check_proxy(options.proxy, where=f"az://{container}")
    return AzureBackend(container, resolve(options))


class AzureBackend(Backend):
    """One container. `settings` are options after `resolve`."""

    def __init__(self, container: str, settings: AzureOptions) -> None:
        from azure.core import MatchConditions

        self._container = container
        self._settings = settings
        self._url = f"az://{container}"
        self._credential = credential_of(settings)
        self._client = container_client(container, settings, self._credential)
        self._parents: Any = None
        """The client of a parent process. It stays open: closing it would disturb the parent's TLS sessions."""
        self._missing: Mapping[str, Any] = {"match_condition": MatchConditions.IfMissing}
        self._unchanged = MatchConditions.IfNotModified
        self._changed = MatchConditions.IfModified
        self._reading: dict[str, Any] = customer_key_of(settings)
        self._writing: dict[str, Any] = dict(self._reading)
        if settings.encryption_scope:
            self._writing["encryption_scope"] = settings.encryption_scope
        on_fork(self)

    def after_fork(self) -> None:
        """The connections, and the locks within the credential, are those of the parent."""
        self._parents = (self._client, self._credential)
        self._credential = credential_of(self._settings)
        self._client = container_client(self._container, self._settings, self._credential)

    @property
    def url(self) -> str:
        """`az://` and the container."""
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """The same for every container."""
        return AZURE_CAPABILITIES

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # ---- reading

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """`Get Blob`."""
        if isinstance(byte_range, Suffix):
            return self._get_suffix(key, byte_range.length, if_none_match)
        start = 0 if byte_range is None else byte_range.start
        end = None if byte_range is None else byte_range.end
        if end is not None and end <= start:
            return self._get_nothing(key, start, end, if_none_match)
        condition = {} if if_none_match is None else {"etag": f'"{if_none_match}"', "match_condition": self._changed}
        return self._download(key, start, None if end is None else end - start, condition, if_none_match)

    def _download(
        self, key: str, start: int, length: int | None, condition: Mapping[str, Any], if_none_match: Version | None
    ) -> GetResult | NotModified:
        from azure.core.exceptions import AzureError

        sent: list[str] = []

        def hear(answer: Any) -> None:
            sent.append(answer.http_response.headers.get("date", ""))

        def ask() -> GetResult:
            # Always pass an offset. Otherwise the SDK answers 416 (an empty object) by a second GET, perhaps of a newer object.
            download = self._blob(key).download_blob(start, length, raw_response_hook=hear, **self._reading, **condition)
            data = next(download.chunks(), b"")
            properties = download.properties
            size = int(properties.content_range.rpartition("/")[2])  # type: ignore[union-attr]
            sent_ms = _ms(parsedate_to_datetime(sent[-1])) if sent and sent[-1] else None
            return GetResult(_meta(key, properties, size), data, min(start, size), sent_ms)

        try:
            return ask_service(ask)
        except AzureError as error:
            status = getattr(error, "status_code", None)
            if status == 304 and if_none_match is not None:
                return NotModified()
            if status == 416:
                return self._get_nothing(key, start, None if length is None else start + length, if_none_match)
            if status == 412:
                raise Unavailable(f"{self._url}/{key} changed while its last bytes were read. Read it again.") from None
            raise self._failure(error, "read", key) from None

    def _get_nothing(self, key: str, start: int, end: int | None, if_none_match: Version | None) -> GetResult | NotModified:
        """The answer to a range that holds no byte of the object."""
        meta = self.head(key)
        if meta.version == if_none_match:
            return NotModified()
        if start < meta.size and (end is None or start < end):
            raise Unavailable(f"{self._url}/{key} grew while it was read. Read it again.")
        return GetResult(meta, b"", min(start, meta.size))

    def _get_suffix(self, key: str, length: int, if_none_match: Version | None) -> GetResult | NotModified:
        """Azure has no suffix ranges. The size comes first, and a condition ensures that it still holds."""
        meta = self.head(key)
        if meta.version == if_none_match:
            return NotModified()
        wanted = min(length, meta.size)
        if wanted == 0:
            return GetResult(meta, b"", meta.size)
        condition = {"etag": f'"{meta.version}"', "match_condition": self._unchanged}
        return self._download(key, meta.size - wanted, wanted, condition, None)

    def head(self, key: str) -> ObjectMeta:
        """`Get Blob Properties`."""
        from azure.core.exceptions import AzureError

        def ask() -> ObjectMeta:
            properties = self._blob(key).get_blob_properties(**self._reading)
            return _meta(key, properties, properties.size)

        try:
            return ask_service(ask)
        except AzureError as error:
            raise self._failure(error, "look at", key) from None

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """`List Blobs`. The store's `startFrom` includes its key, and a store may ignore it, so extra keys are dropped here.

        So a page can be empty and still have a cursor.
        """
        from azure.core.exceptions import AzureError
        from azure.storage.blob import BlobPrefix

        if start_after is not None and start_after > prefix and not start_after.startswith(prefix):
            return ListPage([])
        asked: dict[str, Any] = {"name_starts_with": prefix or None, "results_per_page": min(limit, 5000)}
        if start_after is not None and start_after > prefix:
            asked["start_from"] = _start_from(prefix, start_after, delimiter)
        after = start_after or ""

        def ask() -> ListPage:
            items = self._client.walk_blobs(delimiter=delimiter, **asked) if delimiter else self._client.list_blobs(**asked)
            pages: Any = items.by_page(continuation_token=cursor)
            page = list(next(pages, ()))
            objects = [_meta(item.name, item, item.size) for item in page if not isinstance(item, BlobPrefix) and item.name > after]
            prefixes = [item.name for item in page if isinstance(item, BlobPrefix) and (item.name > after or after.startswith(item.name))]
            return ListPage(objects, prefixes, pages.continuation_token or None)

        try:
            return ask_service(ask)
        except AzureError as error:
            raise self._failure(error, "list", prefix) from None

    # ---- writing

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """`Put Blob`, a block blob."""
        body = bytes(data)
        if len(body) > PUT_BYTES_MAX:
            raise Unsupported(
                f"{len(body)} bytes for {self._url}/{key} are more than one put can carry ({PUT_BYTES_MAX}). Use open_write()."
            )
        conditions = self._conditions(mode)
        return self._mutate(
            "write",
            key,
            mode,
            lambda: self._blob(key).upload_blob(
                body, length=len(body), overwrite=True, metadata=dict(metadata), **conditions, **self._writing
            ),
        )

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        """`Append Block` under a position; at offset 0, `Put Blob` first."""
        if len(data) > _APPEND_BYTES_MAX:
            raise Unsupported(f"Cannot append {len(data)} bytes to {self._url}/{key} at once. Append at most {_APPEND_BYTES_MAX}.")
        blob = self._blob(key)
        if offset == 0:
            created = self._mutate("create", key, Create(), lambda: blob.create_append_blob(**self._missing, **self._writing))
            if isinstance(created, OutcomeUnknown) or (isinstance(created, Written) and not data):
                return created
        # Every append has the position as its condition. So a request that is repeated after a lost response cannot add bytes twice.
        if not data:
            try:
                meta = self.head(key)
            except Unavailable as error:
                raise Throttled(f"The size of {self._url}/{key} is not known ({error}). Nothing was appended. Try again.") from error
            return Written(meta.version) if meta.size == offset else PreconditionFailed(meta.version)
        body = bytes(data)
        return self._mutate(
            "append to",
            key,
            Update(Version(str(offset))),  # the position takes the place of a version
            lambda: blob.append_block(body, length=len(body), appendpos_condition=offset, **self._writing),
        )

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """Sends nothing: blocks need no start."""
        return AzureUpload(self, key, mode, metadata)

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """`Copy Blob From URL`; above 256 MiB, `Put Block From URL` for each piece."""
        if self._settings.customer_key is not None:
            raise Unsupported(f"{self._url} cannot copy {source!r} under a customer key. Read it and put() it to {target!r}.")
        try:
            size = self.head(source).size
        except Unavailable as error:
            raise Throttled(
                f"The size of the source of {self._url}/{target} is not known ({error}). Nothing was written. Try again."
            ) from error
        url, authorization = self._readable(source)
        proof: dict[str, Any] = {} if authorization is None else {"source_authorization": authorization}
        if size > _COPY_BYTES_MAX:
            upload = AzureUpload(self, target, mode, metadata)
            for number, start in enumerate(range(0, size, _COPY_BYTES_MAX), 1):
                upload.copy_part(number, url, start, min(_COPY_BYTES_MAX, size - start), proof)
            return upload.complete()
        conditions = self._conditions(mode)
        scope: dict[str, Any] = {} if self._settings.encryption_scope is None else {"encryption_scope": self._settings.encryption_scope}
        return self._mutate(
            f"copy {source!r} to",
            target,
            mode,
            lambda: self._blob(target).start_copy_from_url(url, dict(metadata), requires_sync=True, **proof, **conditions, **scope),
        )

    def _readable(self, source: str) -> tuple[str, str | None]:
        """A URL from which the service itself may read the source, and the authorization to send with it."""
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        url: str = self._blob(source).url  # it holds the SAS if the store was opened with one
        key = getattr(self._client.credential, "account_key", None)
        if key is not None:
            expiry = datetime.fromtimestamp(default_env().now_ms() / 1000, UTC) + timedelta(minutes=_SAS_MINUTES)
            permission = BlobSasPermissions(read=True)
            account = str(self._client.account_name)
            sas = generate_blob_sas(account, self._container, source, account_key=key, permission=permission, expiry=expiry)
            return f"{url}?{sas}", None
        if self._settings.sas_token_file:
            return f"{url}?{self._credential.signature}", None
        if self._credential is not None and hasattr(self._credential, "get_token"):
            return url, f"Bearer {self._credential.get_token(_STORAGE_SCOPE).token}"
        return url, None

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """`Blob Batch`; for one key, `Delete Blob`."""
        from azure.core.exceptions import AzureError

        try:
            if len(keys) == 1:
                ask_service(lambda: self._blob(keys[0]).delete_blob())
                return [DeleteResult(keys[0])]
            answers = ask_service(lambda: list(self._client.delete_blobs(*keys, raise_on_any_failure=False)))
        except AzureError as error:
            failure = self._failure(error, "delete", keys[0] if len(keys) == 1 else f"{len(keys)} objects")
            if len(keys) == 1 and is_gone(failure):
                return [DeleteResult(keys[0])]
            raise failure from None
        except RuntimeError as error:
            if not is_ending(error):
                raise
            # The SDK uses threads for a batch.
            return [result for key in keys for result in self.delete_batch([key])]
        results: list[DeleteResult] = []
        for key, answer in zip(keys, answers, strict=True):
            status = answer.status_code
            refused = None if status < 300 else self._classify(status, answer.headers.get("x-ms-error-code"), "delete", key, "")
            results.append(DeleteResult(key, None if refused is None or is_gone(refused) else refused))
        return results

    # ---- how

    def _blob(self, key: str) -> BlobClient:
        return self._client.get_blob_client(key)

    def _conditions(self, mode: PutMode) -> Mapping[str, Any]:
        match mode:
            case Overwrite():
                return {}
            case Create():
                return self._missing
            case Update(version):
                return {"etag": f'"{version}"', "match_condition": self._unchanged}

    def _mutate(self, what: str, key: str, mode: PutMode, call: Callable[[], Mapping[str, Any]]) -> PutOutcome:
        """One attempt of a write. A failed condition is PreconditionFailed, an unusable answer is OutcomeUnknown. Raises without effect."""
        from azure.core.exceptions import AzureError

        try:
            answer = ask_service(call)
        except AzureError as error:
            status, code = error_status(error), error_code(error)
            if not isinstance(mode, Overwrite) and (code in CONDITION_CODES or (code is None and status in (409, 412))):
                return PreconditionFailed(None)
            failure = self._failure(error, what, key)
            if isinstance(failure, Unavailable):
                return OutcomeUnknown(failure)
            if isinstance(mode, Update) and is_gone(failure):
                return PreconditionFailed(None)
            if isinstance(mode, Create) and is_gone(failure):
                # A create needs only the container. Something in between gave this answer, and may have forwarded the write before.
                return OutcomeUnknown(
                    Unavailable(f"{failure} This answer to a write of it is not from the service. Check what is in front of it.")
                )
            raise failure from None
        etag = answer.get("etag")
        if etag is None:
            return OutcomeUnknown(
                Unavailable(f"The answer of {self._url} to {what} {key!r} has no etag. Check that the endpoint is Azure Blob Storage.")
            )
        return Written(_version(etag), _ms(answer.get("date")))

    def _failure(self, error: AzureError, what: str, key: str) -> FileIOError:
        """The typed error for an error of the SDK. It is raised `from None`: texts of the SDK may hold signatures; ours are redacted."""
        from azure.core.exceptions import ClientAuthenticationError

        status = error_status(error)
        text = redact(f"{type(error).__name__}: {error.message}".split("\n", 1)[0], self._settings.secrets)
        if status is None and isinstance(error, ClientAuthenticationError):
            return CredentialsError(
                f"Cannot {what} {key!r} in {self._url}. There are no usable credentials ({text}). {NO_CREDENTIALS_HINT}"
            )
        if status is None and is_untrusted(error):
            advice = "Pass its authority as option 'ca_bundle'."
            return InvalidConfig(f"The certificate of {self._client.primary_hostname} for {self._url} is not trusted. {advice}")
        if status is None and (why := why_unreachable(error)) is not None:
            advice = "Check the account or option 'endpoint', the proxy and the network."
            host = self._client.primary_hostname
            return Unavailable(f"Cannot {what} {key!r} in {self._url}. The request cannot reach {host}: {why}. {advice}")
        return self._classify(status, error_code(error), what, key, text)

    def _classify(self, status: int | None, code: str | None, what: str, key: str, text: str) -> FileIOError:
        where = f"Cannot {what} {key!r} in {self._url}."
        said = f"{status} {code or 'without a code'}"
        if status is None or status < 300 or status >= 500 or status == 408:
            return Unavailable(
                f"{where} There was no usable answer ({said if status else text}). Try again. If the error persists, check the endpoint."
            )
        if code in CONTAINER_CODES:
            host = self._client.primary_hostname
            return BucketNotFound(f"There is no container {self._container!r} at {host} ({said}). Create it or correct the URL.")
        kind, hint = BY_CODE.get(code or "") or BY_STATUS.get(status) or (FileIOError, text or "Look the code up in the vendor's list.")
        if kind is NotFound:
            return NotFound(f"There is no object {key!r} in {self._url} ({said}).")
        return kind(f"{where} The store refused it ({said}). {hint}")


# ---- conversions ------------------------------------------------------------------------------------------------


def _version(etag: str) -> Version:
    return Version(etag.strip('"'))


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def _meta(key: str, properties: BlobProperties, size: int) -> ObjectMeta:
    metadata = {name.lower(): value for name, value in (properties.metadata or {}).items()}
    return ObjectMeta(key, size, _version(properties.etag), _ms(properties.last_modified) or 0, metadata)


def _start_from(prefix: str, start_after: str, delimiter: str | None) -> str:
    """Where a listing starts. With a delimiter, the store starts at names of the listed level only."""
    return start_after if not delimiter else prefix + start_after[len(prefix) :].split(delimiter, 1)[0]


__all__ = ["AZURE_CAPABILITIES", "AzureBackend", "AzureOptions", "open_azure"]
