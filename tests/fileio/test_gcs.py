"""What is particular to `gs://`: its options, its errors, and its writes when answers are lost between the real SDK and a real server."""

from __future__ import annotations

import base64
import http.client
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from devkit.fault_proxy import Fault, FaultKind, FaultProxy
from devkit.handle import ServerHandle
from fileio.contract import (
    Backend,
    Create,
    GetResult,
    NotModified,
    OutcomeUnknown,
    Overwrite,
    PreconditionFailed,
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
    NotFound,
    PermissionDenied,
    Throttled,
    Unavailable,
    Unsupported,
)
from fileio.gcs import backend
from fileio.gcs.backend import open_gcs
from fileio.gcs.client import GCSOptions
from fileio.gcs.resumable import CHUNK_BYTES_MULTIPLE
from fileio.options import Secret, parse_options
from fileio.registry import open_store
from fileio.write_outcomes import RetryPolicy

SECRET = "s3cr3t-of-the-test"


# ---- a server that answers what it is told, and notes what it was asked ---------------------------------------------


@dataclass
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Stub:
    """status, headers, body: the answer to everything."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    asked: list[Asked] = field(default_factory=list)
    endpoint: str = ""

    def says(self, status: int, body: object = None, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.headers = headers or {}
        self.body = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()


@pytest.fixture
def stub() -> Iterator[Stub]:
    answers = Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answers.asked.append(Asked(self.command, self.path, headers, body))
            self.send_response(answers.status)
            for name, value in {**answers.headers, "Content-Length": str(len(answers.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if answers.status != 304:
                self.wfile.write(answers.body)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    answers.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    yield answers
    server.shutdown()
    server.server_close()
    thread.join()


def opened(stub: Stub, **options: Any) -> Backend:
    given = (
        {"anonymous": True, **options}
        if not {"access_token", "access_token_file", "credentials_json", "credentials_file"} & set(options)
        else options
    )
    return open_gcs("bucket", GCSOptions(endpoint=stub.endpoint, **given))


RESOURCE = {"name": "k", "generation": "7", "size": "3", "updated": "2026-01-02T03:04:05.678Z"}


# ---- options ---------------------------------------------------------------------------------------------------------


def test_the_options_reach_the_requests(stub: Stub) -> None:
    stub.says(200, RESOURCE)
    key = bytes(range(32))
    store = opened(stub, access_token=Secret(SECRET), user_project="payer", encryption_key=Secret(base64.b64encode(key).decode()))
    assert store.put("k", b"abc", Create(), {"writeid": "w"}) == Written(Version("7"), 1767323045678)
    assert store.head("k").version == "7"
    stub.says(200, b"abc", {"X-Goog-Generation": "7", "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT", "X-Goog-Meta-Writeid": "w"})
    got = store.get("k", None, None)
    assert isinstance(got, GetResult) and (got.data, got.meta.version, got.meta.metadata) == (b"abc", "7", {"writeid": "w"})
    assert [a.method for a in stub.asked] == ["POST", "GET", "GET"], "one request a call, and none that nobody asked for"
    for asked in stub.asked:
        assert asked.headers["authorization"] == f"Bearer {SECRET}"
        assert asked.headers["x-goog-encryption-key"] == base64.b64encode(key).decode()
        assert "userProject=payer" in asked.target
    assert "ifGenerationMatch=0" in stub.asked[0].target
    assert b'"writeid": "w"' in stub.asked[0].body


def test_the_kms_key_reaches_the_upload(stub: Stub) -> None:
    stub.says(200, RESOURCE)
    opened(stub, kms_key="projects/p/locations/l/keyRings/r/cryptoKeys/c").put("k", b"abc", Overwrite(), {})
    assert "kmsKeyName=projects" in stub.asked[0].target
    assert "ifGenerationMatch" not in stub.asked[0].target


def test_requests_go_through_the_proxy_whatever_the_environment_says(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    stub.says(200, RESOURCE)
    store = open_gcs("bucket", GCSOptions(endpoint="http://store.invalid", anonymous=True, proxy=Secret(stub.endpoint)))
    assert store.head("k").version == "7"
    assert stub.asked[0].target.startswith("http://store.invalid/storage/v1/b/bucket/o/k")


def test_the_read_timeout_is_kept() -> None:
    silent = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            silent.wait(30)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        store = open_gcs("bucket", GCSOptions(endpoint=endpoint, anonymous=True, read_timeout_s=0.05))
        with pytest.raises(Unavailable, match="ReadTimeout"):
            store.head("k")
    finally:
        silent.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"anonymous": True, "access_token": SECRET}, "'anonymous' and 'access_token' of gs://bucket contradict"),
        ({"encryption_key": SECRET}, "'encryption_key' of gs://bucket must be 32 bytes in base64"),
        (
            {"encryption_key": base64.b64encode(bytes(32)).decode(), "kms_key": "k"},
            "'encryption_key' and 'kms_key' of gs://bucket contradict",
        ),
        ({"endpoint": "127.0.0.1:4443"}, "'endpoint' of gs://bucket must be a URL such as https://host:port"),
        ({"max_connections": "0"}, "'max_connections' of gs://bucket must be above 0"),
        ({"ca_bundle": "no-such-file.pem"}, "'no-such-file.pem', which does not exist"),
        ({"endpiont": "x"}, "did you mean 'endpoint'?"),
    ],
)
def test_wrong_options_are_named_when_the_store_is_opened(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        open_gcs("bucket", parse_options(GCSOptions, options, where="gs://bucket"))
    assert expected in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("bucket", ["B", "-bucket", "bucket-", "buc ket", "Bucket"])
def test_a_bucket_that_cannot_be_is_named(bucket: str) -> None:
    with pytest.raises(InvalidConfig, match=f"gs://{bucket}"):
        open_gcs(bucket, GCSOptions())


def test_a_missing_sdk_is_one_sentence_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    with pytest.raises(MissingDependency, match=r"pip install 'objcat\[gcs\]'"):
        open_gcs("bucket", GCSOptions())


# ---- credentials and refusals -----------------------------------------------------------------------------------------


def test_no_credentials_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    with pytest.raises(CredentialsError, match="no valid credentials for gs://bucket"):
        open_gcs("bucket", GCSOptions()).head("k")


@pytest.mark.parametrize(
    "content", [f'{{"private_key": "{SECRET}"', f'["{SECRET}"]', f'{{"type": "service_account", "private_key": "{SECRET}"}}']
)
def test_malformed_credentials_are_named_but_not_quoted(content: str, tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_text(content)
    for options in (GCSOptions(credentials_json=Secret(content)), GCSOptions(credentials_file=str(file))):
        with pytest.raises(CredentialsError) as caught:
            open_gcs("bucket", options).head("k")
        assert SECRET not in f"{caught.value!r} {options!r}"


def test_a_credentials_file_that_is_not_there() -> None:
    with pytest.raises(CredentialsError, match=r"'credentials_file' names 'nowhere.json'"):
        open_gcs("bucket", GCSOptions(credentials_file="nowhere.json")).head("k")


def test_a_refused_token_is_a_credentials_error_without_the_token(stub: Stub) -> None:
    stub.says(401, {"error": {"code": 401, "message": f"Invalid Credentials {SECRET}", "errors": [{"reason": "authError"}]}})
    with pytest.raises(CredentialsError) as caught:
        opened(stub, access_token=Secret(SECRET)).put("k", b"abc", Create(), {})
    assert SECRET not in f"{caught.value!r}"


def test_a_token_in_a_file_is_read_again_when_it_is_refused(stub: Stub, tmp_path: Path) -> None:
    held = tmp_path / "token"
    store = opened(stub, access_token_file=str(held))
    with pytest.raises(CredentialsError, match=r"'access_token_file' names '.*token', which cannot be read"):
        store.put("k", b"abc", Create(), {})
    held.write_text("first\n")
    stub.says(200, RESOURCE)
    written(store.put("k", b"abc", Create(), {}))
    held.write_text("second")
    written(store.put("k", b"abc", Create(), {}))
    stub.says(401, {"error": {"code": 401, "message": "Invalid Credentials", "errors": [{"reason": "authError"}]}})
    with pytest.raises(CredentialsError):
        store.put("k", b"abc", Create(), {})
    said = [asked.headers["authorization"] for asked in stub.asked]
    assert said[:3] == ["Bearer first", "Bearer first", "Bearer first"] and set(said[3:]) == {"Bearer second"}
    held.write_text("")
    with pytest.raises(CredentialsError, match="is empty"):
        opened(stub, access_token_file=str(held)).head("k")


def test_a_store_that_wants_credentials_and_gets_none(stub: Stub) -> None:
    stub.says(401, {"error": {"code": 401, "message": "Anonymous caller does not have access", "errors": [{"reason": "required"}]}})
    with pytest.raises(CredentialsError, match="gs://bucket/k"):
        opened(stub).head("k")


def refused(status: int, reason: str = "") -> tuple[int, dict[str, Any]]:
    return status, {"error": {"code": status, "message": "no", "errors": [{"reason": reason}]}}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refused(403, "forbidden"), PermissionDenied),
        (refused(403, "rateLimitExceeded"), Throttled),
        (refused(429, "rateLimitExceeded"), Throttled),
        (refused(400, "customerEncryptionKeyIsIncorrect"), FileIOError),
    ],
)
def test_a_refused_write_is_raised_since_it_had_no_effect(stub: Stub, answer: tuple[int, object], error: type[FileIOError]) -> None:
    stub.says(*answer)
    with pytest.raises(error) as caught:
        opened(stub).put("k", b"abc", Create(), {})
    assert type(caught.value) is error
    assert len(stub.asked) == 1


def calls(store: Backend) -> dict[str, Callable[[], object]]:
    return {
        "get": lambda: store.get("k", None, None),
        "head": lambda: store.head("k"),
        "list": lambda: store.list_page("", None, None, None, 10),
        "delete": lambda: store.delete_batch(["k"])[0],
        "delete two": lambda: store.delete_batch(["k", "l"])[0],
        "start_upload": lambda: store.start_upload("k", Create(), {}),
        "put": lambda: store.put("k", b"abc", Create(), {}),
        "put large": lambda: store.put("k", bytes(9 << 20), Create(), {}),
        "append": lambda: store.append("k", b"abc", 0),
        "copy": lambda: store.copy("k", "l", Create(), {}),
    }


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
@pytest.mark.parametrize("name", calls(None))  # type: ignore[arg-type]
def test_a_server_error_is_ambiguous_and_no_call_is_sent_twice(stub: Stub, name: str, status: int) -> None:
    stub.says(*refused(status, "backendError"))
    try:
        outcome = calls(opened(stub))[name]()
    except Unavailable as error:
        cause: object = error
        assert name in ("get", "head", "list", "delete two", "start_upload"), "a write must answer Unknown"
    else:
        cause = outcome.cause if isinstance(outcome, OutcomeUnknown) else getattr(outcome, "error", None)
    assert isinstance(cause, Unavailable)
    assert len(stub.asked) == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "text"}', b'{"error": {"message": "m", "errors": null}}'])
def test_a_failed_condition_is_told_by_its_status_whatever_the_body(stub: Stub, body: bytes) -> None:
    stub.says(412, body)
    store = opened(stub)
    assert store.put("k", b"abc", Update(Version("7")), {}) == PreconditionFailed(None)
    assert store.copy("k", "l", Create(), {}) == PreconditionFailed(None)
    upload = store.start_upload("k", Create(), {})
    upload.put_part(1, b"abc")
    assert upload.complete() == PreconditionFailed(None)
    assert len(stub.asked) == 3


def test_an_answer_without_a_generation_is_not_taken_for_a_version(stub: Stub) -> None:
    stub.says(200, {})
    assert isinstance(opened(stub).put("k", b"abc", Create(), {}), OutcomeUnknown)


def test_an_upload_that_begins_without_a_place_to_send_it_to_is_unavailable(stub: Stub) -> None:
    stub.says(200, {})
    with pytest.raises(Unavailable, match="There was no valid answer"):
        opened(stub).start_upload("k", Create(), {})


def test_damaged_bytes_are_noticed(stub: Stub) -> None:
    headers = {"X-Goog-Generation": "7", "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT", "X-Goog-Hash": "crc32c=AAAAAA==,md5=x"}
    stub.says(200, b"abc", headers)
    with pytest.raises(Unavailable, match="arrived damaged"):
        opened(stub).get("k", None, None)


def test_nothing_listens(stub: Stub) -> None:
    store = open_gcs("bucket", GCSOptions(endpoint="http://127.0.0.1:1", anonymous=True))
    assert isinstance(store.put("k", b"abc", Create(), {}), OutcomeUnknown)
    with pytest.raises(Unavailable, match=r"about gs://bucket/k cannot reach http://127\.0\.0\.1:1: it refuses connections\."):
        store.head("k")


def test_append_is_not_declared_where_the_result_would_lose_its_key() -> None:
    store = open_gcs("bucket", GCSOptions(kms_key="k", anonymous=True))
    assert not store.capabilities.append
    with pytest.raises(Unsupported, match="open_write"):
        store.append("k", b"abc", 0)


# ---- real servers -----------------------------------------------------------------------------------------------------


Servers = Callable[[str], ServerHandle]


def backend_on(handle: ServerHandle) -> Iterator[Backend]:
    bucket = handle.fresh_bucket().url.removeprefix("gs://")
    store = open_gcs(bucket, GCSOptions(endpoint=handle.endpoint, anonymous=True))
    yield store
    store.close()


@pytest.fixture
def fake(servers: Servers) -> Iterator[Backend]:
    yield from backend_on(servers("fake-gcs-server"))


@pytest.fixture
def emulator(servers: Servers) -> Iterator[Backend]:
    yield from backend_on(servers("gcsemulator"))


@pytest.fixture(params=["fake-gcs-server", "gcsemulator"])
def either(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    yield from backend_on(servers(request.param))


def written(outcome: object) -> Version:
    assert isinstance(outcome, Written)
    return outcome.version


def whole(store: Backend, key: str) -> bytes:
    got = store.get(key, None, None)
    assert isinstance(got, GetResult)
    return got.data


def test_a_missing_bucket_is_told_from_a_missing_object(servers: Servers, fake: Backend) -> None:
    for name, call in calls(fake).items():
        if name in ("get", "head", "copy"):
            with pytest.raises(NotFound) as caught:
                call()
            assert not isinstance(caught.value, BucketNotFound)
    for name in calls(fake):
        nowhere = open_gcs("no-such-bucket", GCSOptions(endpoint=servers("fake-gcs-server").endpoint, anonymous=True))
        try:
            result = calls(nowhere)[name]()
        except FileIOError as error:
            result = error
        assert isinstance(getattr(result, "error", result), BucketNotFound), name


def test_a_bucket_that_goes_under_an_open_handle_is_missed(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = servers("fake-gcs-server").fresh_bucket()
    bucket = handle.url.removeprefix("gs://")
    store = open_gcs(bucket, GCSOptions(endpoint=handle.endpoint, anonymous=True))
    written(store.put("k", b"abc", Create(), {}))
    store.delete_batch(["k"])
    connection = http.client.HTTPConnection(*handle.address)
    connection.request("DELETE", f"/storage/v1/b/{bucket}")
    assert connection.getresponse().status == 200
    connection.close()
    for name in ("put", "put large", "start_upload"):
        with pytest.raises(BucketNotFound, match=r"Create it, or correct the URL\."):
            calls(store)[name]()
    with pytest.raises(BucketNotFound):
        store.put("k", b"abc", Update(Version("7")), {})
    monkeypatch.setattr(backend, "BUCKET_SEEN_S", 0.0)
    for name in ("get", "head"):
        with pytest.raises(BucketNotFound):
            calls(store)[name]()


def test_conditions_and_versions(either: Backend) -> None:
    first = written(either.put("a/ä b%2F", b"one", Create(), {"writeid": "1"}))
    assert either.put("a/ä b%2F", b"two", Create(), {}) == PreconditionFailed(None)
    second = written(either.put("a/ä b%2F", b"two", Update(first), {"writeid": "2"}))
    assert second != first
    assert either.put("a/ä b%2F", b"three", Update(first), {}) == PreconditionFailed(None)
    assert either.put("missing", b"x", Update(first), {}) == PreconditionFailed(None)
    got = either.get("a/ä b%2F", None, first)
    assert isinstance(got, GetResult)
    assert (got.data, got.meta.version, got.meta.metadata, got.meta.size) == (b"two", second, {"writeid": "2"}, 3)
    assert either.get("a/ä b%2F", None, second) == NotModified()
    assert either.head("a/ä b%2F").metadata == {"writeid": "2"}


@pytest.mark.parametrize(
    ("asked", "data", "offset"),
    [
        (Range(0), b"0123456789", 0),
        (Range(3, 5), b"34", 3),
        (Range(8, 99), b"89", 8),
        (Range(5, 5), b"", 5),
        (Range(10), b"", 10),
        (Range(50, 60), b"", 10),
        (Suffix(3), b"789", 7),
        (Suffix(99), b"0123456789", 0),
        (Suffix(0), b"", 10),
    ],
)
def test_ranges_are_clipped(either: Backend, asked: Range | Suffix, data: bytes, offset: int) -> None:
    either.put("k", b"0123456789", Overwrite(), {})
    got = either.get("k", asked, None)
    assert isinstance(got, GetResult)
    assert (got.data, got.offset, got.meta.size) == (data, offset, 10)


def test_an_upload_in_parts(fake: Backend) -> None:
    parts = [b"a" * CHUNK_BYTES_MULTIPLE, b"b" * (2 * CHUNK_BYTES_MULTIPLE), b"c"]
    upload = fake.start_upload("k", Create(), {"writeid": "u"})
    for number, part in enumerate(parts, start=1):
        upload.put_part(number, bytearray(part))
        upload.put_part(number, memoryview(part))  # a repetition is harmless
    with pytest.raises(NotFound):
        fake.head("k")
    version = written(upload.complete())
    assert whole(fake, "k") == b"".join(parts)
    assert (fake.head("k").version, fake.head("k").metadata) == (version, {"writeid": "u"})
    assert upload.complete() == PreconditionFailed(None), "a session that is forgotten leaves the verdict to the read-back"
    assert written(fake.start_upload("empty", Create(), {}).complete())
    assert whole(fake, "empty") == b""


def test_a_competitor_during_an_upload_wins(fake: Backend) -> None:
    upload = fake.start_upload("k", Create(), {})
    upload.put_part(1, b"ours")
    fake.put("k", b"theirs", Create(), {})
    assert upload.complete() == PreconditionFailed(None)
    late = fake.start_upload("k", Create(), {})
    late.put_part(1, b"ours")
    assert late.complete() == PreconditionFailed(None)
    assert whole(fake, "k") == b"theirs"


def test_parts_that_the_store_cannot_take_are_refused(fake: Backend) -> None:
    upload = fake.start_upload("k", Create(), {})
    upload.put_part(1, b"short")
    with pytest.raises(FileIOError, match="multiple of 256 KiB"):
        upload.put_part(2, b"x")
    with pytest.raises(FileIOError, match=r"one at a time\. Send them in order\."):
        upload.put_part(3, b"x")
    upload.abort()
    upload.abort()
    with pytest.raises(NotFound):
        fake.head("k")


def test_a_large_put_is_conditional_too(fake: Backend) -> None:
    body = bytes(range(256)) * (9 << 12)
    assert written(fake.put("k", body, Create(), {"writeid": "w"}))
    assert fake.put("k", body, Create(), {}) == PreconditionFailed(None)
    assert whole(fake, "k") == body
    assert fake.head("k").metadata == {"writeid": "w"}


def test_append(emulator: Backend) -> None:
    written(emulator.append("log", b"ab", 0))
    written(emulator.append("log", b"cd", 2))
    assert isinstance(emulator.append("log", b"xx", 2), PreconditionFailed)
    assert isinstance(emulator.append("log", b"xx", 0), PreconditionFailed)
    assert emulator.append("none", b"xx", 2) == PreconditionFailed(None)
    assert whole(emulator, "log") == b"abcd"
    assert [meta.key for meta in emulator.list_page("", None, None, None, 100).objects] == ["log"], "a temporary object stayed behind"


def test_of_many_appends_at_one_offset_exactly_one_lands(emulator: Backend) -> None:
    emulator.put("log", b"0", Overwrite(), {"writeid": "kept"})
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda n: emulator.append("log", str(n).encode(), 1), range(1, 9)))
    assert [type(outcome) for outcome in outcomes].count(Written) == 1
    assert all(isinstance(outcome, Written | PreconditionFailed) for outcome in outcomes)
    winner = next(n for n, outcome in enumerate(outcomes, start=1) if isinstance(outcome, Written))
    assert whole(emulator, "log") == b"0" + str(winner).encode()
    assert emulator.head("log").metadata == {"writeid": "kept"}


def test_deletes_in_a_batch_and_one_by_one(either: Backend) -> None:
    keys = [f"k{i:03}" for i in range(30)]
    for key in keys[::2]:
        either.put(key, b"x", Overwrite(), {})
    assert [(result.key, result.error) for result in either.delete_batch(keys)] == [(key, None) for key in keys]
    assert either.list_page("", None, None, None, 100).objects == []


def test_a_copy_has_its_own_metadata(fake: Backend) -> None:
    fake.put("source", b"abc", Overwrite(), {"writeid": "old"})
    assert written(fake.copy("source", "target", Create(), {"writeid": "new"}))
    assert (whole(fake, "target"), fake.head("target").metadata) == (b"abc", {"writeid": "new"})


def test_a_listing_begins_after_the_key_that_is_named(either: Backend) -> None:
    keys = sorted(["a", "b/1", "b/2", "c", "ä", "z"], key=str.encode)
    for key in keys:
        either.put(key, b"x", Overwrite(), {})
    listed, cursor = [], None
    while True:
        page = either.list_page("", "b/1", None, cursor, 2)
        listed += [meta.key for meta in page.objects]
        cursor = page.cursor
        if cursor is None:
            break
    assert listed == keys[2:]
    folded = either.list_page("", None, "/", None, 100)
    assert ([meta.key for meta in folded.objects], list(folded.prefixes)) == ([k for k in keys if "/" not in k], ["b/"])


# ---- lost answers, through the proxy ------------------------------------------------------------------------------------

FAST = RetryPolicy(attempts_max=4, backoff_ms_first=1, backoff_ms_max=2)
FAULTS = ["drop_after", "status_after 500", "status_after 503", "duplicate", "drop_before", "status_before 503"]
"""Kinds of faults of the proxy: after the effect, twice, and before the effect."""
ProxyBefore = Callable[[ServerHandle], tuple[FaultProxy, ServerHandle]]


class Behind:
    """A store that is reached through the fault proxy, and a competitor that is not."""

    def __init__(self, proxy_before: ProxyBefore, server: ServerHandle) -> None:
        direct = server.fresh_bucket()
        self.proxy, through = proxy_before(direct)
        self.store = open_store(f"{through.url}/table", through.options, policy=FAST)
        self.competitor = open_store(f"{direct.url}/table", direct.options, policy=FAST)

    def next(self, fault: str, method: str, part_of_target: str) -> None:
        """Plan a fault for the next such request."""
        kind, _, code = fault.partition(" ")

        def match(asked_method: str, path: str, query: str, _headers: Mapping[str, str]) -> bool:
            return asked_method == method and part_of_target in f"{path}?{query}"

        self.proxy.plan(Fault(cast("FaultKind", kind), match, code=int(code or 503)))


def behind_server(name: str, proxy_before: ProxyBefore, servers: Servers) -> Iterator[Behind]:
    found = Behind(proxy_before, servers(name))
    yield found
    found.store.close()
    found.competitor.close()
    assert not found.proxy.pending, "a fault was planned that met no request"


@pytest.fixture
def behind(fault_proxy: ProxyBefore, servers: Servers) -> Iterator[Behind]:
    yield from behind_server("fake-gcs-server", fault_proxy, servers)


@pytest.fixture
def behind_emulator(fault_proxy: ProxyBefore, servers: Servers) -> Iterator[Behind]:
    yield from behind_server("gcsemulator", fault_proxy, servers)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("update", [False, True])
def test_a_put_whose_answer_is_lost(behind: Behind, fault: str, update: bool) -> None:
    mode = Update(written(behind.competitor.put("k", b"before"))) if update else Create()
    behind.next(fault, "POST", "/upload/")
    outcome = behind.store.put("k", b"ours", mode)
    assert behind.competitor.head("k").version == written(outcome)
    assert behind.competitor.read("k") == b"ours"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("update", [False, True])
def test_a_put_after_a_competitor_is_a_conflict_although_its_answer_is_lost(behind: Behind, fault: str, update: bool) -> None:
    mode = Update(written(behind.competitor.put("k", b"before"))) if update else Create()
    theirs = written(behind.competitor.put("k", b"theirs", mode))
    behind.next(fault, "POST", "/upload/")
    assert behind.store.put("k", b"ours", mode) == PreconditionFailed(theirs)
    assert behind.competitor.read("k") == b"theirs"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("update", [False, True])
def test_an_upload_whose_last_answer_is_lost(behind: Behind, fault: str, update: bool) -> None:
    mode = Update(written(behind.competitor.put("k", b"before"))) if update else Create()
    upload = behind.store.start_upload("k", mode)
    body = [b"a" * CHUNK_BYTES_MULTIPLE, b"b" * 10]
    for number, part in enumerate(body, start=1):
        upload.put_part(number, part)
    behind.next(fault, "PUT", "upload_id=")
    outcome = upload.complete()
    assert behind.competitor.head("k").version == written(outcome)
    assert behind.competitor.read("k") == b"".join(body)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("update", [False, True])
def test_an_upload_after_a_competitor_is_a_conflict_although_its_last_answer_is_lost(behind: Behind, fault: str, update: bool) -> None:
    mode = Update(written(behind.competitor.put("k", b"before"))) if update else Create()
    upload = behind.store.start_upload("k", mode)
    upload.put_part(1, b"ours")
    theirs = written(behind.competitor.put("k", b"theirs", mode))
    behind.next(fault, "PUT", "upload_id=")
    assert upload.complete() == PreconditionFailed(theirs)
    assert behind.competitor.read("k") == b"theirs"


@pytest.mark.parametrize("fault", FAULTS)
def test_an_upload_whose_first_answer_is_lost(behind: Behind, fault: str) -> None:
    behind.next(fault, "POST", "uploadType=resumable")
    upload = behind.store.start_upload("k", Create())
    upload.put_part(1, b"ours")
    assert written(upload.complete())
    assert behind.competitor.read("k") == b"ours"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_copy_whose_answer_is_lost(behind: Behind, fault: str) -> None:
    behind.competitor.put("source", b"ours")
    behind.next(fault, "POST", "/rewriteTo/")
    outcome = behind.store.copy("source", "k", Create())
    assert behind.competitor.head("k").version == written(outcome)
    assert behind.competitor.read("k") == b"ours"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("method", "request_of"), [("POST", "/upload/"), ("GET", "/o/table"), ("POST", "/compose"), ("DELETE", "/o/table")]
)
def test_an_append_whose_answer_is_lost_appends_once(behind_emulator: Behind, fault: str, method: str, request_of: str) -> None:
    at = behind_emulator
    assert written(at.store.append("log", b"one,", offset=0))
    at.next(fault, method, request_of)
    assert written(at.store.append("log", b"two,", offset=4))
    assert at.competitor.read("log") == b"one,two,"


@pytest.mark.parametrize("fault", FAULTS)
def test_an_append_that_creates_and_whose_answer_is_lost(behind_emulator: Behind, fault: str) -> None:
    behind_emulator.next(fault, "POST", "/upload/")
    assert written(behind_emulator.store.append("log", b"one,", offset=0))
    assert behind_emulator.competitor.read("log") == b"one,"


@pytest.mark.parametrize("fault", FAULTS)
def test_an_append_after_a_competitor_is_a_conflict(behind_emulator: Behind, fault: str) -> None:
    at = behind_emulator
    at.competitor.append("log", b"one,", offset=0)
    at.competitor.append("log", b"two,", offset=4)
    at.next(fault, "GET", "/o/table")
    assert isinstance(at.store.append("log", b"TWO,", offset=4), PreconditionFailed)
    assert at.competitor.read("log") == b"one,two,"


@pytest.mark.parametrize("fault", FAULTS)
def test_deletes_and_reads_are_asked_again(behind_emulator: Behind, fault: str) -> None:
    at = behind_emulator
    for key in ("k", "l"):
        at.competitor.put(key, b"abc")
    at.next(fault, "GET", "alt=media")
    assert at.store.read("k") == b"abc"
    at.next(fault, "POST", "/batch/")
    assert [result.error for result in at.store.delete(["k", "l"])] == [None, None]
    at.competitor.put("k", b"abc")
    at.next(fault, "DELETE", "/o/table")
    assert [result.error for result in at.store.delete(["k"])] == [None]
    assert list(at.competitor.list_keys()) == []


@pytest.mark.parametrize("code", [404, 405, 501])
def test_a_server_that_refuses_batches_is_asked_key_by_key(behind_emulator: Behind, code: int) -> None:
    """And asked for a batch once only."""
    at = behind_emulator
    keys = [f"k{number}" for number in range(5)]
    for key in keys:
        at.competitor.put(key, b"abc")
    at.next(f"status_before {code}", "POST", "/batch/")
    assert [(result.key, result.error) for result in at.store.delete([*keys[:2], "missing"])] == [
        (key, None) for key in [*keys[:2], "missing"]
    ]
    assert [result.error for result in at.store.delete(keys[2:])] == [None] * 3
    assert list(at.competitor.list_keys()) == []
    assert sum(exchange.method == "POST" for exchange in at.proxy.exchanges) == 1
    assert sum(exchange.method == "DELETE" for exchange in at.proxy.exchanges) == 6


def test_a_small_write_and_a_read_are_one_request_each(behind: Behind) -> None:
    behind.store.put("k", b"abc", Create())
    behind.store.get("k")
    behind.store.head("k")
    behind.store.delete(["k"])
    assert [exchange.method for exchange in behind.proxy.exchanges] == ["POST", "GET", "GET", "DELETE"]


def test_a_put_that_lands_after_it_was_given_up_changes_nothing(behind: Behind) -> None:
    behind.next("delayed_landing", "POST", "/upload/")
    version = written(behind.store.put("k", b"ours", Create()))
    assert behind.proxy.release() == [412]
    assert (behind.competitor.head("k").version, behind.competitor.read("k")) == (version, b"ours")


def test_a_last_part_that_lands_after_it_was_given_up_changes_nothing(behind: Behind) -> None:
    upload = behind.store.start_upload("k", Create())
    upload.put_part(1, b"ours")
    behind.next("delayed_landing", "PUT", "upload_id=")
    version = written(upload.complete())
    assert behind.proxy.release() == [404]
    assert (behind.competitor.head("k").version, behind.competitor.read("k")) == (version, b"ours")


def test_an_object_of_another_size_than_was_sent_is_not_taken_for_written(behind: Behind) -> None:
    """This server stores twice what arrives twice; the answer that would have told is lost."""
    upload = behind.store.start_upload("k", Create())
    upload.put_part(1, b"a" * CHUNK_BYTES_MULTIPLE)
    behind.next("duplicate", "PUT", "upload_id=")
    upload.put_part(2, b"b")
    behind.next("drop_after", "PUT", "upload_id=")
    outcome = upload.complete()
    assert isinstance(outcome, OutcomeUnknown)
    assert f"has {2 * CHUNK_BYTES_MULTIPLE + 1} bytes in the store, but {CHUNK_BYTES_MULTIPLE + 1} were sent" in str(outcome.cause)


def test_a_middle_part_that_never_arrived_is_sent_again(behind: Behind) -> None:
    upload = behind.store.start_upload("k", Create())
    upload.put_part(1, b"a" * CHUNK_BYTES_MULTIPLE)
    behind.next("drop_before", "PUT", "upload_id=")
    upload.put_part(2, b"b")
    assert written(upload.complete())
    assert behind.competitor.read("k") == b"a" * CHUNK_BYTES_MULTIPLE + b"b"


def test_a_composition_that_lands_after_it_was_given_up_changes_nothing(behind_emulator: Behind) -> None:
    at = behind_emulator
    at.competitor.append("log", b"one,", offset=0)
    at.next("delayed_landing", "POST", "/compose")
    store = open_store(at.store.describe().url, at.store.describe().options, policy=RetryPolicy(attempts_max=1))
    outcome = store.append("log", b"ours", offset=4)
    assert isinstance(outcome, OutcomeUnknown), "nobody can tell"
    assert written(at.competitor.append("log", b"two,", offset=4))
    assert at.proxy.release()[0] >= 400
    assert at.competitor.read("log") == b"one,two,"
    store.close()
