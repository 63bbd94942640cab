"""What is particular to `az://`: its errors, its options, its silence about secrets, and its writes when answers get lost.

The generic contract is tested by the conformance suite. Azurite is the server; a stub server plays what Azurite cannot: codes that only the
real service sends, options it ignores, answers that break off.
"""

from __future__ import annotations

import base64
import logging
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from devkit.fault_proxy import Fault, FaultProxy, Match
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.azure.backend import open_azure
from fileio.azure.client import AzureOptions
from fileio.contract import (
    Create,
    GetResult,
    OutcomeUnknown,
    Overwrite,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    Range,
    Suffix,
    Update,
    Version,
    Written,
)
from fileio.errors import (
    BucketNotFound,
    CredentialsError,
    FileIOError,
    InvalidConfig,
    MissingDependency,
    PermissionDenied,
    StoreFull,
    Throttled,
    Unavailable,
    Unsupported,
    UploadLost,
)
from fileio.options import Secret
from fileio.registry import describe_store, open_store
from fileio.store import FileIO
from fileio.write_outcomes import RetryPolicy

QUICK = RetryPolicy(attempts_max=4, backoff_ms_first=1, backoff_ms_max=2)
KEY = base64.b64encode(b"k" * 64).decode()
SAS = "sv=2024-11-04&sr=c&sp=racwdl&se=2099-01-01T00%3A00%3A00Z&sig=c2VjcmV0LXNpZ25hdHVyZS1vZi1henVyZQ%3D%3D"
SIGNATURE = "c2VjcmV0LXNpZ25hdHVyZS1vZi1henVyZQ"


@pytest.fixture
def azurite(servers: Callable[[ServerName], ServerHandle]) -> ServerHandle:
    """Azurite, with a container of one's own."""
    return servers("azurite").fresh_bucket()


@pytest.fixture
def az_store(azurite: ServerHandle) -> Iterator[FileIO]:
    with open_store(azurite.url + "/lake", azurite.options, policy=QUICK) as store:
        yield store


@dataclass(frozen=True)
class Faulty:
    """The store of `az_store` seen through the fault proxy."""

    proxy: FaultProxy
    handle: ServerHandle
    store: FileIO


@pytest.fixture
def faulty(azurite: ServerHandle, fault_proxy: Callable[[ServerHandle], tuple[FaultProxy, ServerHandle]]) -> Iterator[Faulty]:
    proxy, through = fault_proxy(azurite)
    with open_store(through.url + "/lake", through.options, policy=QUICK) as store:
        yield Faulty(proxy, through, store)


# ---- a stub server -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A request as the stub got it. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What the stub says. length: a Content-Length that is not the body's own. service: whether it has the mark of the real service."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None
    service: bool = True


WRITTEN_ANSWER = Answer(201, {"ETag": '"0x1"', "Last-Modified": "Sat, 21 Nov 2026 03:00:00 GMT"})


class Stub:
    """An HTTP server on loopback that answers by a function and remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.answer: Callable[[Seen], Answer] = lambda request: WRITTEN_ANSWER
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                request = Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                stub.seen.append(request)
                answer = stub.answer(request)
                self.send_response(answer.status)
                if answer.service:
                    self.send_header("x-ms-request-id", "5d1b4d2a-001e-0000-0000-0123456789ab")
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in answer.headers:
                    self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
                self.end_headers()
                self.wfile.write(answer.body)
                self.close_connection = answer.length is not None

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def refuse(self, status: int, code: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.answer = lambda request: Answer(status, {"x-ms-error-code": code, "Content-Type": "application/xml"}, body)


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    yield server
    server.close()


def _open(stub: Stub, **options: Any) -> FileIO:
    credentials = {} if options.keys() & {"sas_token", "sas_token_file", "anonymous"} else {"account_key": KEY, "account": "acct"}
    return open_store("az://data/lake", {"endpoint": stub.url + "/acct", **credentials, **options}, policy=QUICK)


# ---- errors ------------------------------------------------------------------------------------------------------


def test_a_missing_container_is_named(azurite: ServerHandle) -> None:
    store = open_store("az://no-such-container", azurite.options, policy=QUICK)
    calls: list[Callable[[], object]] = [
        lambda: store.put("a", b"1"),
        lambda: store.put("a", b"1", Update(Version("0x1"))),
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: list(store.list()),
        lambda: store.append("a", b"1", offset=0),
        lambda: store.append("a", b"1", offset=4),
        lambda: store.start_upload("a").put_part(1, b"1"),
        lambda: store.copy("a", "b"),
    ]
    for call in calls:
        with pytest.raises(BucketNotFound, match="no container 'no-such-container'"):
            call()
    for keys in (["a"], ["a", "b"]):
        assert all(isinstance(result.error, BucketNotFound) for result in store.delete(keys))


@pytest.mark.parametrize("credentials", [{"account_key": KEY}, {"sas_token": SAS}, {"anonymous": "true"}], ids=["key", "sas", "anonymous"])
def test_wrong_credentials_are_one_sentence_and_write_nothing(
    azurite: ServerHandle, az_store: FileIO, credentials: Mapping[str, str]
) -> None:
    wrong = open_store(az_store.url, {"endpoint": azurite.options["endpoint"], **credentials}, policy=QUICK)
    for call in (lambda: wrong.put("denied", b"1"), lambda: wrong.head("denied"), lambda: list(wrong.list())):
        # Azurite says AuthorizationFailure to credentials that the real service calls AuthenticationFailed.
        with pytest.raises((PermissionDenied, CredentialsError)) as raised:
            call()
        assert "\n" not in str(raised.value) and "key" in str(raised.value)
        assert KEY not in str(raised.value) and SIGNATURE not in str(raised.value)
    assert not az_store.exists("denied")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AuthenticationFailed", CredentialsError),
        (401, "NoAuthenticationInformation", CredentialsError),
        (401, "InvalidAuthenticationInfo", CredentialsError),
        (409, "PublicAccessNotPermitted", CredentialsError),
        (403, "AuthorizationFailure", PermissionDenied),
        (403, "AuthorizationPermissionMismatch", PermissionDenied),
        (403, "UnauthorizedBlobOverwrite", PermissionDenied),
        (412, "LeaseIdMissing", PermissionDenied),
        (409, "BlobImmutableDueToPolicy", PermissionDenied),
        (409, "ContainerBeingDeleted", BucketNotFound),
        (409, "BlobUsesCustomerSpecifiedEncryption", InvalidConfig),
        (409, "InvalidBlobType", Unsupported),
        (409, "BlockCountExceedsLimit", StoreFull),
        (429, "TooManyRequests", Throttled),
        (400, "InvalidHeaderValue", FileIOError),
    ],
)
def test_answers_are_classed_by_code_and_a_refused_write_is_raised(stub: Stub, status: int, code: str, kind: type[FileIOError]) -> None:
    stub.refuse(status, code)
    store = _open(stub)
    for mode in (Overwrite(), Create(), Update(Version("0x1"))):
        with pytest.raises(kind, match=code) as raised:
            store.put("a", b"1", mode)
        assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("status", "code"), [(500, "InternalError"), (500, "OperationTimedOut"), (503, "ServerBusy"), (502, ""), (408, "")]
)
def test_a_server_error_leaves_a_write_unknown_and_a_read_unavailable(stub: Stub, status: int, code: str) -> None:
    stub.refuse(status, code)
    store = _open(stub)
    outcome = store.put("a", b"1", Create())
    assert isinstance(outcome, OutcomeUnknown) and isinstance(outcome.cause, Unavailable)
    assert [request.method for request in stub.seen].count("PUT") == QUICK.attempts_max
    stub.seen.clear()
    with pytest.raises(Unavailable):
        store.get("a")
    assert len(stub.seen) == QUICK.attempts_max, "every retry is ours: the SDK sends each request once"


def test_no_answer_at_all_is_unknown_for_a_write() -> None:
    store = open_store("az://data", {"endpoint": "http://127.0.0.1:9/acct", "sas_token": SAS}, policy=QUICK)
    outcome = store.put("a", b"1")
    assert isinstance(outcome, OutcomeUnknown)
    assert SIGNATURE not in repr(outcome)


def test_a_body_that_breaks_off_is_retried_visibly(stub: Stub) -> None:
    whole = {"ETag": '"0x1"', "Last-Modified": "Sat, 21 Nov 2026 03:00:00 GMT", "Content-Range": "bytes 0-9/10"}
    answers = [Answer(206, whole, b"01234", length=10), Answer(206, whole, b"0123456789")]
    stub.answer = lambda request: answers[len(stub.seen) - 1]
    store = _open(stub)
    assert store.read("a") == b"0123456789"
    assert len(stub.seen) == 2 and store.metrics.snapshot().retries == 1


def test_an_answer_without_an_etag_is_not_success(stub: Stub) -> None:
    stub.answer = lambda request: Answer(201)
    assert isinstance(_open(stub).put("a", b"1"), OutcomeUnknown)


def test_gone_blocks_are_a_lost_upload_or_a_conflict_to_settle(stub: Stub) -> None:
    stub.refuse(400, "InvalidBlockList")
    backend = open_azure("data", AzureOptions(endpoint=stub.url + "/acct", account_key=Secret(KEY)))
    with pytest.raises(UploadLost, match="Write it again"):
        backend.start_upload("a", Overwrite(), {}).complete()
    for mode in (Create(), Update(Version("0x1"))):
        assert backend.start_upload("a", mode, {}).complete() == PreconditionFailed(None)
    upload = backend.start_upload("a", Overwrite(), {})
    stub.refuse(500, "InternalError")
    assert isinstance(upload.complete(), OutcomeUnknown)
    stub.refuse(400, "InvalidBlockList")
    assert upload.complete() == PreconditionFailed(None), "the first completion may have landed: only a read-back can tell"


# ---- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("container", "options", "message"),
    [
        ("data", {}, "AZURE_STORAGE_ACCOUNT"),
        ("data", {"account": "a", "acount_key": "x"}, "did you mean 'account_key'"),
        ("data", {"account": "a", "account_key": KEY, "sas_token": SAS}, "several kinds \\(account_key, sas_token\\)"),
        ("data", {"account": "a", "client_id": "c"}, "tenant_id, client_id and client_secret"),
        ("data", {"account": "a", "connection_string": "AccountName=a"}, "Leave out"),
        ("data", {"connection_string": "nonsense"}, "cannot be opened"),
        ("data", {"endpoint": "127.0.0.1:10000", "anonymous": "true"}, "needs an endpoint"),
        ("data", {"endpoint": "https://u:p@host", "anonymous": "true"}, "needs an endpoint"),
        ("data", {"account": "a", "anonymous": "true", "customer_key": "c2hvcnQ="}, "32 bytes"),
        ("data", {"endpoint": "http://host", "anonymous": "true", "customer_key": base64.b64encode(b"c" * 32).decode()}, "https"),
        ("data", {"endpoint": "http://host", "use_default_credential": "true"}, "HTTPS"),
        ("Data", {"account": "a", "anonymous": "true"}, "lower-case"),
        ("my--data", {"account": "a", "anonymous": "true"}, "lower-case"),
    ],
)
def test_a_wrong_option_is_refused_at_open(container: str, options: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message) as raised:
        open_store(f"az://{container}", options)
    assert KEY not in str(raised.value) and SIGNATURE not in str(raised.value)


@pytest.mark.parametrize(("module", "package"), [("azure.storage.blob", "azure-storage-blob"), ("azure.identity", "azure-identity")])
def test_a_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch, module: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=f"{package}.*pip install 'objcat\\[azure\\]'"):
        open_store("az://data", {"account": "acct"})


def test_a_shared_key_signs_and_an_anonymous_store_does_not(stub: Stub) -> None:
    _open(stub).put("a", b"1")
    assert stub.seen[-1].headers["authorization"].startswith("SharedKey acct:")
    _open(stub, anonymous="true").put("a", b"1")
    assert "authorization" not in stub.seen[-1].headers and "sig=" not in stub.seen[-1].path


def test_a_sas_token_goes_with_every_request(stub: Stub) -> None:
    for token in (SAS, "?" + SAS):
        _open(stub, sas_token=token).put("a", b"1")
        assert stub.seen[-1].path.count("sig=") == 1 and SIGNATURE in stub.seen[-1].path


def test_a_sas_token_in_a_file_is_read_for_every_request(stub: Stub, tmp_path: Path) -> None:
    held = tmp_path / "token"
    store = _open(stub, sas_token_file=str(held))
    with pytest.raises(CredentialsError, match=r"'sas_token_file' names '.*token', which cannot be read"):
        store.put("a", b"1")
    assert stub.seen == []
    for signature in ("first", "second"):
        held.write_text(f"?sv=2024-01-01&sig={signature}\n")
        assert isinstance(store.put("a", b"1"), Written)
        assert stub.seen[-1].path.endswith(f"?sv=2024-01-01&sig={signature}")


def test_the_encryption_scope_goes_with_every_write(stub: Stub) -> None:
    store = _open(stub, encryption_scope="scope-1")
    store.put("a", b"1")
    store.append("b", b"1", offset=0)
    upload = store.start_upload("c")
    upload.put_part(1, b"1")
    upload.complete()
    writes = [request for request in stub.seen if request.method == "PUT"]
    assert len(writes) == 5
    assert {request.headers.get("x-ms-encryption-scope") for request in writes} == {"scope-1"}


def test_the_proxy_is_asked_instead_of_the_endpoint(stub: Stub) -> None:
    options = {"endpoint": "http://account.invalid", "account": "acct", "account_key": KEY, "proxy": stub.url.replace("//", "//user:word@")}
    store = open_store("az://data", options, policy=QUICK)
    assert isinstance(store.put("a", b"1"), Written)
    assert stub.seen[-1].path.startswith("http://account.invalid/data/a")
    assert "word" not in repr(AzureOptions(proxy=Secret(options["proxy"]))) and "word" not in repr(store)


def test_credentials_of_the_environment_are_used_when_none_are_given(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = {"endpoint": stub.url + "/acct"}
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", SAS)
    open_store("az://data", endpoint).put("a", b"1")
    assert SIGNATURE in stub.seen[-1].path
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    open_store("az://data", endpoint).put("a", b"1")
    assert stub.seen[-1].headers["authorization"].startswith("SharedKey acct:")
    open_store("az://data", {**endpoint, "anonymous": "true"}).put("a", b"1")
    assert "authorization" not in stub.seen[-1].headers
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=other;AccountKey={KEY};BlobEndpoint={stub.url}/other")
    open_store("az://data", {}).put("a", b"1")
    assert stub.seen[-1].path.startswith("/other/data/a")
    open_store("az://data", endpoint).put("a", b"1")
    assert stub.seen[-1].path.startswith("/acct/data/a"), "a connection string of the environment does not replace an endpoint given here"


# ---- secrets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 404, 409, 412, 500])
def test_no_secret_is_shown_or_logged(stub: Stub, caplog: pytest.LogCaptureFixture, status: int) -> None:
    caplog.set_level(logging.DEBUG)
    stub.refuse(status, "AuthenticationFailed" if status == 403 else "SomeCode")
    shown: list[str] = []
    for options in ({"account_key": KEY, "account": "acct"}, {"sas_token": SAS}):
        store = _open(stub, **options)
        described = describe_store("az://data", {"endpoint": stub.url, **options})
        shown += [repr(store), store.url, repr(described), repr(pickle.loads(pickle.dumps(described)))]
        calls: list[Callable[[FileIO], object]] = [
            lambda s: s.put("a", b"1"),
            lambda s: s.get("a"),
            lambda s: list(s.list()),
            lambda s: s.delete(["a", "b"]),
        ]
        for call in calls:
            try:
                shown.append(repr(call(store)))
            except FileIOError:
                shown.append(traceback.format_exc())
    everything = "\n".join([*shown, caplog.text])
    assert caplog.text and stub.seen
    assert KEY not in everything and SIGNATURE not in everything


# ---- the particulars of Azure ------------------------------------------------------------------------------------


def test_a_get_is_never_split(stub: Stub) -> None:
    body = bytes(40 * 1024 * 1024)
    described = {"ETag": '"0x1"', "Last-Modified": "Sat, 21 Nov 2026 03:00:00 GMT", "Content-Range": f"bytes 0-{len(body) - 1}/{len(body)}"}
    stub.answer = lambda request: Answer(206, described, body)
    assert _open(stub).read("big") == body
    assert [request.method for request in stub.seen] == ["GET"]


def test_what_a_get_says_is_what_a_head_says(az_store: FileIO) -> None:
    az_store.put("one", b"0123456789", metadata={"colour": "blue"})
    az_store.put("empty", b"")
    meta = az_store.head("one")
    assert meta.metadata["colour"] == "blue"
    for byte_range in (None, Range(2, 5), Range(8, 99), Range(10, 12), Range(99), Suffix(3), Suffix(99), Suffix(0)):
        result = az_store.get("one", byte_range=byte_range)
        assert isinstance(result, GetResult) and result.meta == meta
        assert result.data == b"0123456789"[result.offset : result.offset + len(result.data)]
        empty = az_store.get("empty", byte_range=byte_range)
        assert isinstance(empty, GetResult) and (empty.data, empty.meta.size) == (b"", 0)


def test_a_suffix_of_an_object_that_changes_meanwhile_is_read_again(stub: Stub) -> None:
    head = {"Last-Modified": "Sat, 21 Nov 2026 03:00:00 GMT", "Content-Length": "10"}
    moved = Answer(412, {"x-ms-error-code": "ConditionNotMet"})
    tail = {"Last-Modified": "Sat, 21 Nov 2026 03:00:00 GMT", "ETag": '"0x2"', "Content-Range": "bytes 8-9/10"}
    answers = [Answer(200, {**head, "ETag": '"0x1"'}), moved, Answer(200, {**head, "ETag": '"0x2"'}), Answer(206, tail, b"89")]
    stub.answer = lambda request: answers[len(stub.seen) - 1]
    assert _open(stub).read("a", byte_range=Suffix(2)) == b"89"
    assert [request.headers.get("if-match") for request in stub.seen] == [None, '"0x1"', None, '"0x2"']


def test_a_put_is_never_split(stub: Stub) -> None:
    body = bytes(65 * 1024 * 1024)
    assert isinstance(_open(stub).put("big", body, Create()), Written)
    assert [(request.method, request.path, len(request.body)) for request in stub.seen] == [("PUT", "/acct/data/lake/big", len(body))]


def test_two_uploads_of_one_key_do_not_mix(az_store: FileIO) -> None:
    first, second = az_store.start_upload("both"), az_store.start_upload("both")
    first.put_part(1, b"1" * 10)
    second.put_part(1, b"2" * 10)
    second.put_part(2, b"2" * 10)
    first.put_part(2, b"1" * 10)
    assert isinstance(first.complete(), Written)
    assert az_store.read("both") == b"1" * 20


def test_an_upload_given_up_leaves_nothing_visible(az_store: FileIO) -> None:
    upload = az_store.start_upload("given-up")
    upload.put_part(1, b"1")
    upload.abort()
    assert not az_store.exists("given-up") and list(az_store.list_keys("given-up")) == []
    assert isinstance(az_store.put("given-up", b"2"), Written)


def test_appending_to_a_whole_object_is_unsupported(az_store: FileIO) -> None:
    az_store.put("whole", b"abc")
    for offset in (0, 3):
        with pytest.raises(Unsupported, match=r"Only an object of append\(\) can grow"):
            az_store.append("whole", b"def", offset=offset)
    assert az_store.read("whole") == b"abc"


def test_appends_need_their_position(az_store: FileIO) -> None:
    assert isinstance(az_store.append("log", b"abc", offset=0), Written)
    assert isinstance(az_store.append("log", b"def", offset=3), Written)
    for offset in (0, 3, 9):
        assert isinstance(az_store.append("log", b"xyz", offset=offset), PreconditionFailed)
    assert isinstance(az_store.append("no-log", b"xyz", offset=9), PreconditionFailed)
    assert az_store.read("log") == b"abcdef" and not az_store.exists("no-log")


def test_a_large_copy_is_made_in_pieces_by_the_store(stub: Stub) -> None:
    size = 600 * 1024 * 1024
    head = Answer(200, {"ETag": '"0x1"', "Last-Modified": "Sat, 21 Nov 2026 03:00:00 GMT", "Content-Length": str(size)})
    stub.answer = lambda request: head if request.method == "HEAD" else WRITTEN_ANSWER
    assert isinstance(_open(stub, sas_token=SAS).copy("a", "b", Create()), Written)
    *pieces, commit = [request for request in stub.seen if request.method == "PUT"]
    ranges = [request.headers["x-ms-source-range"] for request in pieces]
    mib = 1024 * 1024
    assert ranges == [f"bytes=0-{256 * mib - 1}", f"bytes={256 * mib}-{512 * mib - 1}", f"bytes={512 * mib}-{size - 1}"]
    assert all("/data/lake/a?" in request.headers["x-ms-copy-source"] for request in pieces)
    assert "comp=blocklist" in commit.path and commit.headers["if-none-match"] == "*" and "x-ms-meta-writeid" in commit.headers


# ---- lost answers ------------------------------------------------------------------------------------------------

KEY_WRITTEN = "slots/0000000001"
OURS, THEIRS, OLD = b"<ours>", b"<theirs>", b"<old>"


@dataclass(frozen=True)
class Write:
    """A conditional write. request: what the query of its deciding request begins with. present: whether the key holds OLD before."""

    name: str
    request: str
    send: Callable[[FileIO, Version], PutOutcome]
    compete: Callable[[FileIO, Version], PutOutcome]
    present: bool = False
    appends: bool = False

    def decides(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> bool:
        """Whether a request is the one that the write stands or falls with."""
        return method == "PUT" and path.endswith(KEY_WRITTEN) and query == self.request


def _upload(store: FileIO, body: bytes, mode: PutMode) -> PutOutcome:
    upload = store.start_upload(KEY_WRITTEN, mode)
    upload.put_part(2, body[3:])
    upload.put_part(1, body[:3])
    return upload.complete()


def _create(store: FileIO, version: Version) -> PutOutcome:
    return store.put(KEY_WRITTEN, THEIRS, Create())


def _update(store: FileIO, version: Version) -> PutOutcome:
    return store.put(KEY_WRITTEN, THEIRS, Update(version))


WRITES = [
    Write("create", "", lambda s, v: s.put(KEY_WRITTEN, OURS, Create()), _create),
    Write("update", "", lambda s, v: s.put(KEY_WRITTEN, OURS, Update(v)), _update, present=True),
    Write("complete-create", "comp=blocklist", lambda s, v: _upload(s, OURS, Create()), lambda s, v: _upload(s, THEIRS, Create())),
    Write("complete-update", "comp=blocklist", lambda s, v: _upload(s, OURS, Update(v)), _update, present=True),
    Write("copy-create", "", lambda s, v: s.copy("source", KEY_WRITTEN, Create()), _create),
    Write("copy-update", "", lambda s, v: s.copy("source", KEY_WRITTEN, Update(v)), _update, present=True),
    Write(
        "append-first",
        "comp=appendblock",
        lambda s, v: s.append(KEY_WRITTEN, OURS, offset=0),
        lambda s, v: s.append(KEY_WRITTEN, THEIRS, offset=0),
        appends=True,
    ),
    Write(
        "append",
        "comp=appendblock",
        lambda s, v: s.append(KEY_WRITTEN, OURS, offset=len(OLD)),
        lambda s, v: s.append(KEY_WRITTEN, THEIRS, offset=len(OLD)),
        present=True,
        appends=True,
    ),
]


def _prepare(direct: FileIO, write: Write) -> Version:
    """The key as it is before the write; its version."""
    direct.put("source", OURS)
    if not write.present:
        return Version("")
    outcome = direct.append(KEY_WRITTEN, OLD, offset=0) if write.appends else direct.put(KEY_WRITTEN, OLD)
    assert isinstance(outcome, Written)
    return outcome.version


LOST: Mapping[str, Callable[[Match], Fault]] = {
    "dropped": lambda match: Fault("drop_after", match),
    "500": lambda match: Fault("status_after", match, code=500),
    "503": lambda match: Fault("status_after", match, code=503),
}
REPEATED: Mapping[str, Callable[[Match], Fault]] = {**LOST, "duplicated": lambda match: Fault("duplicate", match)}


@pytest.mark.parametrize("fault", REPEATED)
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.name)
def test_a_write_whose_answer_is_lost_is_written_once(az_store: FileIO, faulty: Faulty, write: Write, fault: str) -> None:
    version = _prepare(az_store, write)
    faulty.proxy.plan(REPEATED[fault](write.decides))
    outcome = write.send(faulty.store, version)
    assert not faulty.proxy.pending
    assert isinstance(outcome, Written) and outcome.version == az_store.head(KEY_WRITTEN).version
    assert az_store.read(KEY_WRITTEN) == (OLD + OURS if write.appends and write.present else OURS)


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.name)
def test_a_lost_write_that_a_competitor_beat_is_a_conflict(az_store: FileIO, faulty: Faulty, write: Write, fault: str) -> None:
    version = _prepare(az_store, write)
    competitor: list[PutOutcome] = []

    def decides(method: str, path: str, query: str, headers: Mapping[str, str]) -> bool:
        """The competitor, who does not use the proxy, comes before the request that it holds in its hands."""
        if write.decides(method, path, query, headers):
            competitor.append(write.compete(az_store, version))
            return True
        return False

    faulty.proxy.plan(LOST[fault](decides))
    outcome = write.send(faulty.store, version)
    assert not faulty.proxy.pending and isinstance(competitor[0], Written) and len(competitor) == 1
    assert outcome == PreconditionFailed(competitor[0].version)
    assert az_store.read(KEY_WRITTEN) == (OLD + THEIRS if write.appends and write.present else THEIRS)


@pytest.mark.parametrize("fault", REPEATED)
def test_an_append_blob_whose_creation_is_not_answered_is_written_once(az_store: FileIO, faulty: Faulty, fault: str) -> None:
    faulty.proxy.plan(REPEATED[fault](lambda method, path, query, headers: headers.get("x-ms-blob-type") == "AppendBlob"))
    assert isinstance(faulty.store.append(KEY_WRITTEN, OURS, offset=0), Written)
    assert not faulty.proxy.pending and az_store.read(KEY_WRITTEN) == OURS


def test_an_overwriting_upload_whose_completion_is_not_answered_is_written(az_store: FileIO, faulty: Faulty) -> None:
    az_store.put(KEY_WRITTEN, OLD)
    faulty.proxy.plan(Fault("drop_after", lambda method, path, query, headers: query == "comp=blocklist"))
    assert isinstance(_upload(faulty.store, OURS, Overwrite()), Written)
    assert not faulty.proxy.pending and az_store.read(KEY_WRITTEN) == OURS


@pytest.mark.parametrize("fault", [Fault("drop_before"), Fault("status_before", code=500), Fault("status_before", code=503)])
def test_the_sdk_sends_nothing_twice(faulty: Faulty, fault: Fault) -> None:
    options = AzureOptions(
        endpoint=faulty.handle.endpoint, account=faulty.handle.options["account"], account_key=Secret(faulty.handle.options["account_key"])
    )
    backend = open_azure(faulty.handle.url.removeprefix("az://"), options)
    writes: list[Callable[[], PutOutcome]] = [
        lambda: backend.put("a", OURS, Create(), {}),
        lambda: backend.append("a", OURS, 0),
        lambda: backend.append("a", OURS, 7),
        lambda: backend.start_upload("a", Create(), {}).complete(),
    ]
    reads: list[Callable[[], object]] = [
        lambda: backend.get("a", None, None),
        lambda: backend.head("a"),
        lambda: backend.list_page("", None, None, None, 10),
        lambda: backend.delete_batch(["a"]),
        lambda: backend.delete_batch(["a", "b"]),
        lambda: backend.start_upload("a", Create(), {}).put_part(1, OURS),
    ]
    for write in writes:
        faulty.proxy.clear()
        faulty.proxy.plan(fault)
        assert isinstance(write(), OutcomeUnknown)
        assert len(faulty.proxy.exchanges) == 1
    for read in reads:
        faulty.proxy.clear()
        faulty.proxy.plan(fault)
        with pytest.raises(Unavailable):
            read()
        assert len(faulty.proxy.exchanges) == 1
    backend.close()
