"""What is particular to `s3://`: options and secrets, what goes over the wire, what answers mean, credentials.

The server here is `Canned`: on loopback, it records what the real SDK sends, and answers what real servers answer too seldom to wait for.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import pickle
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fileio.contract import (
    Backend,
    Create,
    GetResult,
    OutcomeUnknown,
    Overwrite,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    Range,
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
    UploadLost,
)
from fileio.options import Secret
from fileio.registry import describe_store, open_store
from fileio.s3.backend import open_s3
from fileio.s3.options import S3Options
from fileio.write_outcomes import RetryPolicy
from tests.fileio.certificates import self_signed

SECRET = "very-secret-key-material"
TOKEN = "very-secret-session-token"
CUSTOMER_KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
ETAG = "0123456789abcdef0123456789abcdef"
ONE_ATTEMPT = RetryPolicy(attempts_max=1)
QUICK = RetryPolicy(backoff_ms_first=1, backoff_ms_max=5)


# ---- a server that answers as told -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    cut_bytes: int = 0
    """How many bytes more than it sends the answer promises."""


Handler = Callable[[Request], Answer]


class Canned:
    """Records every request and answers it with `handler`."""

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        self.handler = handler
        self.requests: list[Request] = []
        canned = self

        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                canned.requests.append(request)
                answer = canned.handler(request)
                self.send_response(answer.status)
                for name, value in answer.headers:
                    self.send_header(name, value)
                if "Transfer-Encoding" not in dict(answer.headers):
                    self.send_header("Content-Length", str(len(answer.body) + answer.cut_bytes))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)
                self.close_connection = answer.cut_bytes > 0

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.endpoint = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def options(self, **others: Any) -> dict[str, Any]:
        return {"endpoint": self.endpoint, "region": "us-east-1", "access_key": "key", "secret_key": Secret(SECRET), **others}

    def backend(self, **others: Any) -> Backend:
        return open_s3("bucket", S3Options(**self.options(**others)))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine's proxies, profiles and credentials."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


StartCanned = Callable[[Handler], Canned]


@pytest.fixture
def start_canned() -> Iterator[StartCanned]:
    started: list[Canned] = []

    def start(handler: Handler) -> Canned:
        started.append(Canned(handler))
        return started[-1]

    yield start
    for canned in started:
        canned.close()


OBJECT_HEADERS = (("ETag", f'"{ETAG}"'), ("Last-Modified", "Sat, 21 Nov 2026 02:55:29 GMT"))
OK = Answer(headers=OBJECT_HEADERS)


def error(status: int, code: str, message: str = "injected") -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())


def well(request: Request) -> Answer:
    """What a store that finds nothing to refuse answers."""
    if request.method == "POST" and "uploads" in request.path:
        return Answer(body=b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
    if request.method == "POST" and "uploadId" in request.path:
        return Answer(body=f'<CompleteMultipartUploadResult><ETag>"{ETAG}-1"</ETag></CompleteMultipartUploadResult>'.encode())
    if "x-amz-copy-source" in request.headers:
        return Answer(body=f'<CopyObjectResult><ETag>"{ETAG}"</ETag></CopyObjectResult>'.encode())
    return OK


# ---- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"endpont": "http://127.0.0.1"}, "endpoint"),
        ({"endpoint": "127.0.0.1:9000"}, "endpoint"),
        ({"endpoint": f"http://key:{SECRET}@127.0.0.1:9000"}, "endpoint"),
        ({"access_key": "key"}, "secret_key"),
        ({"session_token": TOKEN}, "access_key"),
        ({"anonymous": "true", "profile": "p"}, "anonymous"),
        ({"external_id": "x"}, "role_arn"),
        ({"sse": "aws-kms"}, "aws:kms"),
        ({"sse": "AES256", "sse_kms_key_id": "k"}, "aws:kms"),
        ({"sse_customer_key": SECRET}, "sse_customer_key"),
        ({"sse_customer_key": CUSTOMER_KEY, "sse": "AES256"}, "sse_customer_key"),
        ({"request_checksum": "always"}, "when_required"),
        ({"max_connections": "0"}, "max_connections"),
        ({"ca_bundle": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
    ],
)
def test_wrong_options_are_refused_at_open_by_name(options: dict[str, str], names: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        open_store("s3://bucket/prefix", options)
    assert names in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingDependency, match=r"pip install 'objcat\[s3\]'"):
        open_store("s3://bucket", {})


def test_opening_sends_nothing(start_canned: StartCanned) -> None:
    canned = start_canned(well)
    open_store("s3://bucket/prefix", canned.options())
    assert canned.requests == []


# ---- secrets -----------------------------------------------------------------------------------------------------


def test_secrets_never_show(start_canned: StartCanned, caplog: pytest.LogCaptureFixture) -> None:
    """Not in a repr, not in an error that quotes them, not in what the SDK logs."""
    answer = f"your token {TOKEN} and key {SECRET} and {CUSTOMER_KEY} are bad"
    canned = start_canned(lambda _: error(403, "AccessDenied", answer))
    given = canned.options(session_token=TOKEN, sse_customer_key=CUSTOMER_KEY)
    description = pickle.loads(pickle.dumps(describe_store("s3://bucket/prefix", given)))
    assert description.options["secret_key"].reveal() == SECRET
    shown = [repr(description), repr(given["secret_key"]), repr(S3Options(access_key="key", secret_key=Secret(SECRET)))]
    with caplog.at_level(logging.DEBUG):
        store = description.open(policy=ONE_ATTEMPT)
        shown.append(repr(store))
        calls: list[Callable[[], object]] = [lambda: store.read("key"), lambda: store.put("key", b"x", Create()), lambda: store.head("key")]
        for call in calls:
            with pytest.raises(PermissionDenied) as caught:
                call()
            shown.append(str(caught.value))
    assert len(canned.requests) >= 3
    assert canned.requests[0].headers["x-amz-security-token"] == TOKEN
    assert "AccessDenied" in shown[-1]
    assert any(record.name == "botocore.endpoint" for record in caplog.records)
    for text in [*shown, caplog.text]:
        for secret in (SECRET, TOKEN, CUSTOMER_KEY):
            assert secret not in text


# ---- what answers mean -------------------------------------------------------------------------------------------


def write_put(backend: Backend, mode: PutMode) -> PutOutcome:
    return backend.put("key", b"body", mode, {"writeid": "1"})


def write_copy(backend: Backend, mode: PutMode) -> PutOutcome:
    return backend.copy("source", "key", mode, {"writeid": "1"})


def write_complete(backend: Backend, mode: PutMode) -> PutOutcome:
    upload = backend.start_upload("key", mode, {"writeid": "1"})
    upload.put_part(1, b"body")
    return upload.complete()


WRITES = {"put": write_put, "copy": write_copy, "complete": write_complete}
UPDATE = Update(Version(ETAG))


def is_final_request(request: Request) -> bool:
    """The request that makes the object visible, not those that prepare it."""
    return (request.method == "PUT" and "uploadId" not in request.path) or (request.method == "POST" and "uploadId" in request.path)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("answer", "mode", "expected"),
    [
        (error(412, "PreconditionFailed"), Create(), PreconditionFailed(None)),
        (error(412, "PreconditionFailed"), UPDATE, PreconditionFailed(None)),
        (error(404, "NoSuchKey"), UPDATE, PreconditionFailed(None)),
        (error(404, "NoSuchBucket"), UPDATE, BucketNotFound),
        (error(404, "NoSuchBucket"), Create(), BucketNotFound),
        (error(404, "NoSuchBucket"), Overwrite(), BucketNotFound),
        (error(409, "OperationAborted"), Create(), Throttled),
        (error(429, "TooManyRequests"), Create(), Throttled),
        (error(429, "Whatever"), UPDATE, Throttled),
        (error(503, "SlowDown"), Create(), OutcomeUnknown),
        (error(500, "InternalError"), Create(), OutcomeUnknown),
        (error(502, "BadGateway"), UPDATE, OutcomeUnknown),
        (Answer(503), Create(), OutcomeUnknown),
        (Answer(504, b"<html>gateway</html>"), Overwrite(), OutcomeUnknown),
        (error(400, "RequestTimeout"), Create(), OutcomeUnknown),
        (error(200, "InternalError"), Create(), OutcomeUnknown),
        (error(200, "SlowDown"), UPDATE, OutcomeUnknown),
        (Answer(200), Create(), OutcomeUnknown),
        (Answer(200, b"<html>not a store</html>"), Create(), OutcomeUnknown),
        (Answer(200, b"", (), cut_bytes=50), Create(), OutcomeUnknown),
        (error(403, "AccessDenied"), Create(), PermissionDenied),
        (error(403, "InvalidAccessKeyId"), Create(), CredentialsError),
        (error(403, "SignatureDoesNotMatch"), Create(), CredentialsError),
        (error(400, "ExpiredToken"), Create(), CredentialsError),
        (error(400, "InvalidToken"), UPDATE, CredentialsError),
        (error(403, "RequestTimeTooSkewed"), Create(), CredentialsError),
        (error(501, "NotImplemented"), Create(), Unsupported),
        (error(400, "AuthorizationHeaderMalformed"), Create(), InvalidConfig),
        (error(400, "EntityTooLarge"), Create(), FileIOError),
    ],
    ids=lambda value: (value.body or b"no body").decode()[:40] if isinstance(value, Answer) else None,
)
def test_what_a_write_makes_of_an_answer(
    start_canned: StartCanned, write: str, answer: Answer, mode: PutMode, expected: type[OutcomeUnknown | FileIOError] | PutOutcome
) -> None:
    canned = start_canned(lambda request: answer if is_final_request(request) else well(request))
    backend = canned.backend()
    if isinstance(expected, type) and issubclass(expected, FileIOError):
        with pytest.raises(expected) as caught:
            WRITES[write](backend, mode)
        assert type(caught.value) is expected
        assert "key" in str(caught.value)
        assert not isinstance(caught.value, Unavailable)
    elif expected is OutcomeUnknown:
        outcome = WRITES[write](backend, mode)
        assert isinstance(outcome, OutcomeUnknown)
        assert isinstance(outcome.cause, Unavailable)
    else:
        assert WRITES[write](backend, mode) == expected
    assert sum(map(is_final_request, canned.requests)) == 1, "the SDK must not retry"


def test_a_conditional_conflict_is_retried_for_a_put_and_ends_an_upload(start_canned: StartCanned) -> None:
    conflict = error(409, "ConditionalRequestConflict")
    canned = start_canned(lambda request: conflict if is_final_request(request) else well(request))
    for write in (write_put, write_copy):
        with pytest.raises(Throttled):
            write(canned.backend(), Create())
    with pytest.raises(UploadLost):
        write_complete(canned.backend(), Create())


def test_an_upload_that_is_gone(start_canned: StartCanned) -> None:
    """Completing it says nothing about an earlier attempt; sending a part of it cannot help any more; removing it is done."""
    gone = error(404, "NoSuchUpload")
    canned = start_canned(lambda request: gone if "uploadId" in request.path and request.method != "PUT" else well(request))
    assert write_complete(canned.backend(), Create()) == PreconditionFailed(None)
    canned.backend().start_upload("key", Create(), {}).abort()
    canned.handler = lambda request: gone if "uploadId" in request.path else well(request)
    with pytest.raises(UploadLost):
        canned.backend().start_upload("key", Create(), {}).put_part(1, b"x")


def test_a_copy_under_a_condition_tells_a_missing_source_from_a_missing_target(start_canned: StartCanned) -> None:
    absent = error(404, "NoSuchKey")
    canned = start_canned(lambda request: absent if request.method == "PUT" else Answer(404 if "source" in request.path else 200))
    with pytest.raises(NotFound, match="source"):
        write_copy(canned.backend(), UPDATE)
    canned.handler = lambda request: absent if request.method == "PUT" else OK
    assert write_copy(canned.backend(), UPDATE) == PreconditionFailed(None)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error(404, "NoSuchKey"), NotFound),
        (error(404, "NoSuchBucket"), BucketNotFound),
        (error(403, "AccessDenied"), PermissionDenied),
        (error(403, "InvalidAccessKeyId"), CredentialsError),
        (error(404, "XAdminUserNotFound"), CredentialsError),
        (error(400, "ExpiredToken"), CredentialsError),
        (error(429, "TooManyRequests"), Throttled),
        (error(503, "SlowDown"), Unavailable),
        (error(500, "InternalError"), Unavailable),
    ],
    ids=lambda value: value.body.decode()[:40] if isinstance(value, Answer) else None,
)
def test_what_reads_make_of_an_answer(start_canned: StartCanned, answer: Answer, expected: type[FileIOError]) -> None:
    """A HEAD, whose answer has no body, finds the same error as a GET."""
    canned = start_canned(lambda _: answer)
    calls: tuple[Callable[[Backend], object], ...] = (
        lambda b: b.get("key", None, None),
        lambda b: b.head("key"),
        lambda b: b.list_page("", None, None, None, 10),
        lambda b: b.delete_batch(["key"]),
        lambda b: b.start_upload("key", Create(), {}),
    )
    for call in calls:
        with pytest.raises(expected) as caught:
            call(canned.backend())
        assert type(caught.value) is expected


def test_a_head_of_a_missing_key_asks_once_when_the_bucket_is_known(start_canned: StartCanned) -> None:
    canned = start_canned(lambda request: OK if "there" in request.path else Answer(404))
    backend = canned.backend()
    backend.head("there")
    with pytest.raises(NotFound):
        backend.head("absent")
    assert [request.method for request in canned.requests] == ["HEAD", "HEAD"]


def test_a_head_without_a_size_is_unavailable(start_canned: StartCanned) -> None:
    canned = start_canned(lambda _: Answer(200, b"", (*OBJECT_HEADERS, ("Transfer-Encoding", "chunked"))))
    with pytest.raises(Unavailable, match="has no size"):
        canned.backend().head("key")


def test_a_body_that_breaks_off_is_unavailable(start_canned: StartCanned) -> None:
    canned = start_canned(lambda _: Answer(200, b"only this", OBJECT_HEADERS, cut_bytes=100))
    with pytest.raises(Unavailable):
        canned.backend().get("key", None, None)


def test_a_store_that_stays_silent_is_unavailable(start_canned: StartCanned) -> None:
    done = threading.Event()

    def silent(_: Request) -> Answer:
        done.wait()
        return OK

    canned = start_canned(silent)
    backend = canned.backend(read_timeout_s=0.2)
    outcome = write_put(backend, Create())
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        backend.get("key", None, None)
    done.set()
    assert isinstance(outcome, OutcomeUnknown)
    assert isinstance(outcome.cause, Unavailable)
    assert len(canned.requests) == 2


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid:9000"])
def test_an_endpoint_that_cannot_be_reached_is_named(endpoint: str) -> None:
    backend = open_s3("bucket", S3Options(endpoint=endpoint, access_key="key", secret_key=Secret(SECRET)))
    with pytest.raises(Unavailable, match=endpoint):
        backend.get("key", None, None)
    assert isinstance(write_put(backend, Create()), OutcomeUnknown)


def test_errors_of_a_batch_delete_concern_their_key_only(start_canned: StartCanned) -> None:
    body = b"""<DeleteResult><Error><Key>b</Key><Code>AccessDenied</Code></Error><Error><Key>c</Key><Code>InternalError</Code></Error>
        <Error><Key>d</Key><Code>NoSuchKey</Code></Error></DeleteResult>"""
    canned = start_canned(lambda _: Answer(200, body))
    results = canned.backend().delete_batch(["a", "b", "c", "d"])
    assert [(result.key, type(result.error)) for result in results] == [
        ("a", type(None)),
        ("b", PermissionDenied),
        ("c", Unavailable),
        ("d", type(None)),
    ]
    assert "content-md5" in canned.requests[0].headers


# ---- what is sent ------------------------------------------------------------------------------------------------


def test_conditions_and_marks_go_over_the_wire(start_canned: StartCanned) -> None:
    canned = start_canned(well)
    for mode, header, value in ((Create(), "if-none-match", "*"), (UPDATE, "if-match", f'"{ETAG}"')):
        for name, write in WRITES.items():
            canned.requests.clear()
            assert isinstance(write(canned.backend(), mode), Written)
            final = next(filter(is_final_request, canned.requests))
            assert final.headers[header] == value
            first = canned.requests[0]
            assert first.headers["x-amz-meta-writeid"] == "1"
            if name == "copy":
                assert first.headers["x-amz-metadata-directive"] == "REPLACE"
            if name == "complete":
                assert header not in first.headers
    canned.requests.clear()
    write_put(canned.backend(), Overwrite())
    assert not {"if-match", "if-none-match"} & set(canned.requests[0].headers)


@pytest.mark.parametrize("checksum", ["when_required", "when_supported"])
def test_every_kind_of_buffer_arrives_whole(start_canned: StartCanned, checksum: str) -> None:
    canned = start_canned(well)
    backend = canned.backend(request_checksum=checksum)
    text = b"0123456789" * 200_000
    for data in (text, bytearray(text), memoryview(b"x" + text)[1:], memoryview(bytes(2 * len(text)))[::2], b""):
        canned.requests.clear()
        assert isinstance(backend.put("key", data, Create(), {}), Written)
        assert canned.requests[0].body == bytes(data)
        assert ("x-amz-checksum-crc32" in canned.requests[0].headers) == (checksum == "when_supported")


def test_encryption_by_the_store_is_asked_for_on_every_write(start_canned: StartCanned) -> None:
    canned = start_canned(well)
    for write in WRITES.values():
        canned.requests.clear()
        write(canned.backend(sse="aws:kms", sse_kms_key_id="key-7"), Create())
        headers = canned.requests[0].headers
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-7"


def test_the_customers_key_goes_with_every_read_and_write(start_canned: StartCanned) -> None:
    canned = start_canned(well)
    backend = canned.backend(sse_customer_key=Secret(CUSTOMER_KEY))
    for write in WRITES.values():
        write(backend, Create())
    backend.get("key", None, None)
    backend.get("key", Range(3, 3), None)
    backend.head("key")
    assert len(canned.requests) == 8
    for request in canned.requests:
        assert request.headers["x-amz-server-side-encryption-customer-algorithm"] == "AES256"
        assert request.headers["x-amz-server-side-encryption-customer-key"] == CUSTOMER_KEY
        assert "x-amz-server-side-encryption-customer-key-md5" in request.headers
    copy = next(request for request in canned.requests if "x-amz-copy-source" in request.headers)
    assert copy.headers["x-amz-copy-source-server-side-encryption-customer-key"] == CUSTOMER_KEY


def test_anonymous_requests_are_not_signed(start_canned: StartCanned) -> None:
    canned = start_canned(well)
    backend = canned.backend(anonymous=True, access_key=None, secret_key=None)
    assert isinstance(write_put(backend, Create()), Written)
    assert "authorization" not in canned.requests[0].headers
    write_put(canned.backend(), Create())
    assert "Credential=key/" in canned.requests[1].headers["authorization"]


def test_requests_go_through_the_proxy(start_canned: StartCanned) -> None:
    canned = start_canned(well)
    proxy = Secret(canned.endpoint.replace("://", f"://user:{SECRET}@"))
    backend = canned.backend(endpoint="http://store.invalid:9000", proxy=proxy)
    assert isinstance(write_put(backend, Create()), Written)
    assert canned.requests[0].path == "http://store.invalid:9000/bucket/key"
    assert canned.requests[0].headers["proxy-authorization"].startswith("Basic ")
    dead = canned.backend(endpoint="http://store.invalid:9000", proxy=Secret(f"http://user:{SECRET}@127.0.0.1:9"))
    with pytest.raises(Unavailable) as caught:
        dead.head("key")
    assert SECRET not in str(caught.value)


def test_a_private_authority_is_trusted_only_when_named(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    canned = Canned(well, tls=self_signed(bundle))
    try:
        with pytest.raises(InvalidConfig, match="ca_bundle"):
            write_put(canned.backend(), Create())
        assert canned.requests == []
        assert isinstance(write_put(canned.backend(ca_bundle=str(bundle)), Create()), Written)
        with pytest.warns(Warning, match="Unverified HTTPS"):
            assert isinstance(write_put(canned.backend(verify_tls=False), Create()), Written)
    finally:
        canned.close()


def test_an_sdk_that_drops_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    monkeypatch.setattr(boto3, "__version__", "1.40.76")
    with pytest.raises(MissingDependency, match=r"1\.41 or newer, but 1\.40\.76 is installed\. Run pip install --upgrade"):
        open_s3("bucket", S3Options(region="r"))
    monkeypatch.setattr(boto3, "__version__", "2.0")
    open_s3("bucket", S3Options(region="r")).close()


# ---- credentials -------------------------------------------------------------------------------------------------


def test_a_bucket_in_another_region_is_found_by_one_request_more(start_canned: StartCanned) -> None:
    """The redirect of the object does not name the region; that of the bucket does, and need not be followed."""

    def elsewhere(request: Request) -> Answer:
        if "/eu-west-1/s3/" in request.headers["authorization"]:
            return OK
        if request.method == "HEAD":
            return Answer(301, headers=(("x-amz-bucket-region", "eu-west-1"),))
        return error(301, "PermanentRedirect")

    canned = start_canned(elsewhere)
    backend = canned.backend()
    assert isinstance(backend.get("k", None, None), GetResult)
    assert [request.method for request in canned.requests] == ["GET", "HEAD", "GET"]
    assert isinstance(backend.get("k", None, None), GetResult)
    assert len(canned.requests) == 4, "the region is known now"


def test_no_credentials_and_no_such_profile(start_canned: StartCanned, tmp_path: Path) -> None:
    canned = start_canned(well)
    for others in ({}, {"profile": "no-such-profile"}):
        with pytest.raises(CredentialsError, match="access_key"):
            write_put(canned.backend(access_key=None, secret_key=None, **others), Create())
    assert canned.requests == []
    (tmp_path / "credentials").write_text(f"[team]\naws_access_key_id = from-profile\naws_secret_access_key = {SECRET}\n")
    assert isinstance(write_put(canned.backend(access_key=None, secret_key=None, profile="team"), Create()), Written)
    assert "Credential=from-profile/" in canned.requests[0].headers["authorization"]


def test_a_role_is_assumed_and_renewed(start_canned: StartCanned, caplog: pytest.LogCaptureFixture) -> None:
    """The STS gives credentials that are about to expire, so every request renews them."""
    assumed: list[bytes] = []

    def sts(request: Request) -> Answer:
        assumed.append(request.body)
        expiry = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
        credentials = f"""<AccessKeyId>ASIA{len(assumed)}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>
            <SessionToken>{TOKEN}{len(assumed)}</SessionToken><Expiration>{expiry:%Y-%m-%dT%H:%M:%SZ}</Expiration>"""
        body = f"<AssumeRoleResponse><AssumeRoleResult><Credentials>{credentials}</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        return Answer(200, body.encode())

    canned = start_canned(well)
    role = {"role_arn": "arn:aws:iam::123456789012:role/writer", "external_id": "tenant-7", "sts_endpoint": start_canned(sts).endpoint}
    backend = canned.backend(secret_key=Secret("of-the-caller"), **role)
    with caplog.at_level(logging.DEBUG):
        for _ in range(2):
            assert isinstance(write_put(backend, Create()), Written)
    assert b"role%2Fwriter" in assumed[0]
    assert b"ExternalId=tenant-7" in assumed[0]
    tokens = [request.headers["x-amz-security-token"] for request in canned.requests]
    assert len(set(tokens)) == 2
    assert all(token.startswith(TOKEN) for token in tokens)
    assert "Credential=ASIA" in canned.requests[0].headers["authorization"]
    assert SECRET not in caplog.text


def test_credentials_of_a_process_are_renewed_under_an_open_store(start_canned: StartCanned, tmp_path: Path) -> None:
    """What a profile's `credential_process` prints: here a file that somebody else keeps fresh."""
    held = tmp_path / "held.json"

    def hold(name: str, minutes: int) -> None:
        expiry = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)
        keys = {"AccessKeyId": name, "SecretAccessKey": SECRET, "SessionToken": TOKEN}
        held.write_text(json.dumps({"Version": 1, **keys, "Expiration": expiry.isoformat()}))

    (tmp_path / "credentials").write_text(f"[team]\ncredential_process = cat {held}\n")
    canned = start_canned(well)
    backend = canned.backend(access_key=None, secret_key=None, profile="team")
    for name in ("first", "second"):
        hold(name, 1)
        assert isinstance(write_put(backend, Create()), Written)
        assert f"Credential={name}/" in canned.requests[-1].headers["authorization"]
    hold("late", -1)
    with pytest.raises(CredentialsError, match="expired"):
        write_put(backend, Create())
    assert len(canned.requests) == 2
    hold("third", 1)
    assert isinstance(write_put(backend, Create()), Written)


def test_a_role_that_cannot_be_assumed_is_a_credentials_error(start_canned: StartCanned) -> None:
    denied = b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>"
    sts = start_canned(lambda _: Answer(403, denied))
    canned = start_canned(well)
    with pytest.raises(CredentialsError, match="role/writer"):
        write_put(canned.backend(role_arn="arn:aws:iam::123456789012:role/writer", sts_endpoint=sts.endpoint), Create())
    assert canned.requests == []


# ---- directory buckets -------------------------------------------------------------------------------------------


class _Appendable:
    """The part of a directory bucket that appends, on one object; the answers numbered in `lost` do not arrive."""

    def __init__(self, lost: set[int]) -> None:
        self.data = bytearray()
        self.puts = 0
        self.lost = lost

    def __call__(self, request: Request) -> Answer:
        if request.method != "PUT":
            return Answer(200, bytes(self.data), OBJECT_HEADERS) if self.data else Answer(404)
        self.puts += 1
        if int(request.headers["x-amz-write-offset-bytes"]) != len(self.data):
            answer = error(400, "InvalidWriteOffset")
        else:
            self.data += request.body
            answer = OK
        return error(503, "SlowDown") if self.puts in self.lost else answer


def test_append_where_the_bucket_is_a_directory(start_canned: StartCanned) -> None:
    bucket = _Appendable(lost={2})
    canned = start_canned(bucket)
    store = open_store("s3://bucket", canned.options(express=True), policy=QUICK)
    assert store.capabilities.append
    assert not store.capabilities.list_ordered
    assert isinstance(store.append("log", b"one", offset=0), Written)
    assert isinstance(store.append("log", b"two", offset=3), Written), "the answer was lost, the bytes were not"
    assert isinstance(store.append("log", b"bad", offset=3), PreconditionFailed)
    assert bucket.data == b"onetwo"
    bucket.lost = {bucket.puts + 1}
    assert isinstance(store.append("log", b"bad", offset=3), PreconditionFailed), "a competitor was first, and our answer was lost"
    assert bucket.data == b"onetwo"
    with pytest.raises(Unsupported, match="express"):
        canned.backend().append("log", b"x", 0)


def test_listing_a_directory_bucket_asks_for_whole_segments_and_drops_the_rest(start_canned: StartCanned) -> None:
    def contents(key: str) -> str:
        return f"<Contents><Key>{key}</Key><Size>1</Size><ETag>{ETAG}</ETag><LastModified>2026-11-21T02:55:29Z</LastModified></Contents>"

    body = "<ListBucketResult>" + "".join(map(contents, ("log/3", "log/1", "data/x", "log/2"))) + "</ListBucketResult>"
    canned = start_canned(lambda _: Answer(200, body.encode()))
    page = canned.backend(express=True).list_page("log/", "log/1", None, None, 10)
    assert [meta.key for meta in page.objects] == ["log/3", "log/2"]
    canned.backend(express=True).list_page("log/00", "log/001", None, None, 10)
    assert "prefix=log%2F&" in canned.requests[1].path + "&"
    assert "start-after" not in canned.requests[1].path
