"""`s3://` on real servers: refusals, odd keys, parts in parallel, and writes whose answers get lost on the way through the fault proxy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from devkit.fault_proxy import Fault, FaultKind, FaultProxy, Match
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.contract import Create, GetResult, PreconditionFailed, PutMode, PutOutcome, Range, Update, Version, Written
from fileio.env import default_env
from fileio.errors import BucketNotFound, CredentialsError, FileIOError, NotFound, PermissionDenied, UploadLost
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.write_outcomes import RetryPolicy

SERVERS: list[ServerName] = ["versitygw", "seaweedfs"]
QUICK = RetryPolicy(attempts_max=5, backoff_ms_first=1, backoff_ms_max=5)
PART_BYTES = 5 << 20


def options_of(server: ServerHandle, **others: Any) -> dict[str, Any]:
    return {**server.options, **others}


def fresh(server: ServerHandle, **others: Any) -> FileIO:
    """An empty prefix of the server's bucket."""
    return open_store(f"{server.url}/s3-{default_env().new_id()}", options_of(server, **others), policy=QUICK)


Start = Callable[[ServerName], ServerHandle]
Wrap = Callable[[ServerHandle], tuple[FaultProxy, ServerHandle]]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, servers: Start) -> ServerHandle:
    return servers(request.param)


@pytest.fixture
def store(server: ServerHandle) -> FileIO:
    return fresh(server)


def version_of(outcome: PutOutcome) -> Version:
    assert isinstance(outcome, Written), outcome
    return outcome.version


# ---- refusals ----------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[FileIO], object]] = {
    "get": lambda store: store.read("key"),
    "head": lambda store: store.head("key"),
    "create": lambda store: store.put("key", b"x", Create()),
    "update": lambda store: store.put("key", b"x", Update(Version("0" * 32))),
    "upload": lambda store: store.start_upload("key", Create()),
    "list": lambda store: list(store.list()),
    "delete": lambda store: _raise(store.delete(["key"])[0].error),
}


def _raise(error: FileIOError | None) -> None:
    if error is not None:
        raise error


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"access_key": "nobody"}, CredentialsError),
        ({"secret_key": "not-the-secret"}, CredentialsError),
        ({"session_token": "not-a-token"}, CredentialsError),
        ({"access_key": None, "secret_key": None, "anonymous": True}, PermissionDenied),
    ],
    ids=["key", "secret", "token", "anonymous"],
)
def test_who_may_not_is_told_why_and_writes_nothing(
    server: ServerHandle, call: str, wrong: dict[str, Any], expected: type[FileIOError]
) -> None:
    with pytest.raises(expected) as caught:
        CALLS[call](fresh(server, **wrong))
    assert type(caught.value) is expected
    assert "not-the-secret" not in str(caught.value)
    assert "not-a-token" not in str(caught.value)


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_bucket_is_told_from_a_missing_key(servers: Start, call: str) -> None:
    store = open_store("s3://no-such-bucket/prefix", options_of(servers("versitygw")), policy=QUICK)
    with pytest.raises(BucketNotFound, match="no-such-bucket"):
        CALLS[call](store)


def test_readers_of_seaweedfs_notice_a_missing_bucket_although_writers_do_not(servers: Start) -> None:
    store = open_store("s3://no-such-bucket-yet/prefix", options_of(servers("seaweedfs")), policy=QUICK)
    for call in ("get", "head", "list", "delete"):
        with pytest.raises(BucketNotFound, match="no-such-bucket-yet"):
            CALLS[call](store)


def test_a_missing_key_is_not_found(store: FileIO) -> None:
    for call in ("get", "head"):
        with pytest.raises(NotFound) as caught:
            CALLS[call](store)
        assert type(caught.value) is NotFound
    assert store.put("key", b"x", Update(Version("0" * 32))) == PreconditionFailed(None)
    assert not store.exists("key")


# ---- what servers handle differently -----------------------------------------------------------------------------


def test_odd_keys_come_back_as_they_were(store: FileIO) -> None:
    keys = ["a b", "a+b&c=d%20", "a%", "a\nb<c", "a\rb", "a'\"*~", "é" * 100, "日本/ü"]
    for key in keys:
        version_of(store.put(key, key.encode()))
    assert list(store.list_keys()) == sorted(keys, key=str.encode)
    for key in keys:
        assert store.read(key) == key.encode()
        version_of(store.copy(key, f"copy/{key}"))
    assert all(result.error is None for result in store.delete([*keys, "\x01control", "absent"]))
    assert list(store.list_keys()) == sorted((f"copy/{key}" for key in keys), key=str.encode)


def test_ranges_of_an_empty_object_are_empty(store: FileIO) -> None:
    store.put("empty", b"")
    for byte_range in (None, Range(0), Range(0, 5), Range(3, 5)):
        result = store.get("empty", byte_range=byte_range)
        assert isinstance(result, GetResult)
        assert (result.data, result.offset, result.meta.size) == (b"", 0, 0)


@pytest.mark.parametrize("checksum", ["when_required", "when_supported"])
def test_parts_sent_by_many_threads_make_one_object(server: ServerHandle, checksum: str) -> None:
    store = fresh(server, request_checksum=checksum)
    parts = [bytes([number]) * PART_BYTES for number in range(4)] + [b"the end"]
    upload = store.start_upload("big", Create())
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(upload.put_part, range(5, 0, -1), reversed(parts)))
    version = version_of(upload.complete())
    assert store.head("big").version == version
    assert store.read("big") == b"".join(parts)
    store.start_upload("other", Create()).abort()
    assert not store.exists("other")


def test_a_role_of_moto_signs_the_requests(servers: Start) -> None:
    moto = servers("moto")
    role = {"role_arn": "arn:aws:iam::123456789012:role/writer", "sts_endpoint": moto.endpoint}
    store = fresh(moto, **role)
    version_of(store.put("key", b"by the role", Create()))
    assert store.read("key") == b"by the role"


# ---- answers that get lost ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """One conditional write of BODY to `key`, and the request that makes it visible.

    begin: does what comes before (uploads parts) and returns the final step.
    """

    begin: Callable[[FileIO, PutMode], Callable[[], PutOutcome]]
    method: str
    target: str
    update: bool
    servers: tuple[ServerName, ...] = tuple(SERVERS)


BODY = b"our bytes"


def begin_put(store: FileIO, mode: PutMode) -> Callable[[], PutOutcome]:
    return lambda: store.put("key", BODY, mode)


def begin_upload(store: FileIO, mode: PutMode) -> Callable[[], PutOutcome]:
    upload = store.start_upload("key", mode)
    upload.put_part(1, BODY)
    return upload.complete


def begin_copy(store: FileIO, mode: PutMode) -> Callable[[], PutOutcome]:
    version_of(store.put("source", BODY))
    return lambda: store.copy("source", "key", mode)


OPERATIONS = {
    "create": Operation(begin_put, "PUT", "/key", update=False),
    "update": Operation(begin_put, "PUT", "/key", update=True),
    "complete_create": Operation(begin_upload, "POST", "uploadId=", update=False),
    "complete_update": Operation(begin_upload, "POST", "uploadId=", update=True),
    "copy_create": Operation(begin_copy, "PUT", "/key", update=False, servers=("seaweedfs",)),
    "copy_update": Operation(begin_copy, "PUT", "/key", update=True, servers=("seaweedfs",)),
}
CASES = [(name, operation) for operation, of in OPERATIONS.items() for name in of.servers]


@dataclass(frozen=True, slots=True)
class Loss:
    """How the answer to a request that took its effect is lost."""

    kind: FaultKind
    code: int = 0

    def of(self, match: Match) -> Fault:
        return Fault(self.kind, match, code=self.code)


LOSSES = {
    "dropped": Loss("drop_after"),
    "500": Loss("status_after", 500),
    "503": Loss("status_after", 503),
    "duplicate": Loss("duplicate"),
}


def request_of(expected_method: str, part: str = "") -> Match:
    """Requests of this method whose path or query has this part."""
    return lambda method, path, query, _headers: method == expected_method and part in f"{path}?{query}"


class Behind:
    """A store that is reached through the fault proxy, a competitor that is not, and one operation about to be sent."""

    def __init__(self, server: ServerHandle, wrap: Wrap, operation: Operation) -> None:
        self.proxy, through = wrap(server)
        self.competitor = fresh(server, conditional_copy=True)
        self.store = open_store(self.competitor.url, options_of(through, conditional_copy=True), policy=QUICK)
        self.mode: PutMode = Update(version_of(self.competitor.put("key", b"before"))) if operation.update else Create()
        self.match = request_of(operation.method, operation.target)
        self._operation = operation

    def run(self, fault: Fault, *, first: Callable[[], object] = lambda: None) -> PutOutcome:
        """The outcome of the operation, whose final request meets the fault; `first` happens just before that request."""
        final = self._operation.begin(self.store, self.mode)
        first()
        self.proxy.plan(fault)
        outcome = final()
        assert not self.proxy.pending
        return outcome

    @property
    def final_statuses(self) -> list[int | None]:
        """What the server answered to each request that could make the object visible."""
        return [e.upstream_status for e in self.proxy.exchanges if self.match(e.method, e.path, e.query, {}) and "source" not in e.path]


@pytest.fixture
def behind(servers: Start, fault_proxy: Wrap) -> MakeBehind:
    return lambda server_name, operation: Behind(servers(server_name), fault_proxy, OPERATIONS[operation])


MakeBehind = Callable[[ServerName, str], Behind]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("server_name", "operation"), CASES)
def test_a_write_whose_answer_is_lost_is_written(behind: MakeBehind, server_name: ServerName, operation: str, loss: str) -> None:
    one = behind(server_name, operation)
    version = version_of(one.run(LOSSES[loss].of(one.match)))
    assert one.competitor.head("key").version == version
    assert one.competitor.read("key") == BODY


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("server_name", "operation"), CASES)
def test_a_competitor_who_came_first_is_a_conflict_although_our_answer_is_lost(
    behind: MakeBehind, server_name: ServerName, operation: str, loss: str
) -> None:
    one = behind(server_name, operation)
    outcome = one.run(LOSSES[loss].of(one.match), first=lambda: version_of(one.competitor.put("key", b"theirs", one.mode)))
    assert outcome == PreconditionFailed(one.competitor.head("key").version)
    assert one.competitor.read("key") == b"theirs"


@pytest.mark.parametrize(("server_name", "operation"), CASES)
def test_a_conditional_conflict_is_asked_again(behind: MakeBehind, server_name: ServerName, operation: str) -> None:
    """S3's 409: nothing landed. A put or copy is sent again; an upload has to be made anew."""
    one = behind(server_name, operation)
    conflict = Fault("status_before", one.match, code=409)
    if operation.startswith("complete"):
        with pytest.raises(UploadLost):
            one.run(conflict)
        version_of(OPERATIONS[operation].begin(one.store, one.mode)())
    else:
        version_of(one.run(conflict))
    assert not one.proxy.pending
    assert one.final_statuses == [None, 200]
    assert one.competitor.read("key") == BODY


@pytest.mark.parametrize("operation", ["create", "update"])
@pytest.mark.parametrize("server_name", SERVERS)
def test_a_write_that_lands_late_changes_nothing_more(behind: MakeBehind, server_name: ServerName, operation: str) -> None:
    one = behind(server_name, operation)
    version = version_of(one.run(Fault("delayed_landing", one.match)))
    assert one.proxy.release() == [412]
    assert one.competitor.head("key").version == version
    assert one.competitor.read("key") == BODY


@pytest.mark.parametrize("loss", LOSSES)
def test_a_delete_whose_answer_is_lost_is_done(server: ServerHandle, fault_proxy: Wrap, loss: str) -> None:
    competitor = fresh(server)
    proxy, through = fault_proxy(server)
    store = open_store(competitor.url, options_of(through), policy=QUICK)
    for key in ("a", "b", "kept"):
        version_of(competitor.put(key, b"x"))
    proxy.plan(LOSSES[loss].of(request_of("POST", "delete")))
    assert [(result.key, result.error) for result in store.delete(["a", "b"])] == [("a", None), ("b", None)]
    assert not proxy.pending
    assert list(competitor.list_keys()) == ["kept"]


@pytest.mark.parametrize("loss", ["dropped", "500", "503"])
def test_reads_are_asked_again(server: ServerHandle, fault_proxy: Wrap, loss: str) -> None:
    competitor = fresh(server)
    proxy, through = fault_proxy(server)
    store = open_store(competitor.url, options_of(through), policy=QUICK)
    version_of(competitor.put("key", BODY))
    calls: list[tuple[str, Callable[[], bool]]] = [
        ("GET", lambda: store.read("key") == BODY),
        ("HEAD", lambda: store.exists("key")),
        ("GET", lambda: list(store.list_keys()) == ["key"]),
    ]
    for method, call in calls:
        proxy.plan(LOSSES[loss].of(request_of(method)))
        assert call()
        assert not proxy.pending
    assert store.metrics.snapshot().retries == 3
