"""Answers that end anywhere within their heads, at every request of every operation: callers are told the truth, and nothing is half there.

Cut are the answers of real servers, by a proxy that closes the connection in the clean way: Python's `http.client` takes the end of a
connection for the end of a head.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from devkit.fault_proxy import Fault, FaultProxy, conditional_write
from devkit.handle import ServerHandle
from fileio.contract import Create, GetResult, Overwrite, PreconditionFailed, Range, Suffix, Update, Version, Written
from fileio.errors import NotFound, Unavailable
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.write_outcomes import RetryPolicy
from tests.effort import effort, few
from tests.fileio.gcs_sessions import gcs_sessions

FAST = RetryPolicy(attempts_max=4, backoff_ms_first=1, backoff_ms_max=2)
HEAD_BYTES_MAX = 4000
WHOLE = b"0123456789" * 50
OTHER = b"somebody else's"


@dataclass
class Place:
    """A store behind a proxy, and the same without."""

    store: FileIO
    direct: FileIO
    proxy: FaultProxy


@pytest.fixture
def place(request: pytest.FixtureRequest, servers: Callable[[str], ServerHandle]) -> Iterator[Place]:
    with ExitStack() as stack:
        if request.param == "gcs-sessions":
            _, handle = stack.enter_context(gcs_sessions())
        else:
            shared = servers(request.param)
            handle = replace(shared, url=f"{shared.url}/{secrets.token_hex(8)}")
        proxy = stack.enter_context(FaultProxy(handle.endpoint, handle.scheme))
        through = handle.through(proxy.url)
        store = stack.enter_context(open_store(through.url, through.options, policy=FAST))
        direct = stack.enter_context(open_store(handle.url, handle.options, policy=FAST))
        direct.put("warm", b"")
        assert store.read("warm") == b""
        yield Place(store, direct, proxy)


# ---- what is done. Each prepares by itself, does one thing through the proxy, and asserts what must have come of it.

Act = Callable[[], Any]
Check = Callable[[Any], None]


def is_written(place: Place, key: str, data: bytes, **metadata: str) -> Check:
    def check(outcome: Any) -> None:
        assert isinstance(outcome, Written), outcome
        found = place.direct.get(key)
        assert isinstance(found, GetResult) and found.data == data
        assert outcome.version == found.meta.version, "a version that the object does not have"
        assert metadata.items() <= found.meta.metadata.items()

    return check


def is_conflict(place: Place, key: str) -> Check:
    def check(outcome: Any) -> None:
        assert isinstance(outcome, PreconditionFailed), outcome
        assert outcome.current in (None, place.direct.head(key).version)
        assert place.direct.read(key) == OTHER

    return check


def is_(expected: Any) -> Check:
    def check(found: Any) -> None:
        assert found == expected

    return check


def create(place: Place, key: str) -> tuple[Act, Check]:
    return lambda: place.store.put(key, WHOLE, Create(), metadata={"who": "me"}), is_written(place, key, WHOLE, who="me")


def create_what_is_there(place: Place, key: str) -> tuple[Act, Check]:
    place.direct.put(key, OTHER, Create())
    return lambda: place.store.put(key, WHOLE, Create()), is_conflict(place, key)


def update(place: Place, key: str) -> tuple[Act, Check]:
    before = place.direct.put(key, OTHER)
    assert isinstance(before, Written)
    return lambda: place.store.put(key, WHOLE, Update(before.version)), is_written(place, key, WHOLE)


def update_what_changed(place: Place, key: str) -> tuple[Act, Check]:
    before = place.direct.put(key, WHOLE)
    assert isinstance(before, Written)
    assert isinstance(place.direct.put(key, OTHER, Update(before.version)), Written)
    return lambda: place.store.put(key, WHOLE, Update(before.version)), is_conflict(place, key)


def overwrite(place: Place, key: str) -> tuple[Act, Check]:
    place.direct.put(key, OTHER)
    return lambda: place.store.put(key, WHOLE, Overwrite(), metadata={"who": "me"}), is_written(place, key, WHOLE, who="me")


def settle(place: Place, key: str) -> tuple[Act, Check]:
    """The answer to the first attempt is lost; what says whose object it is, is cut."""
    place.proxy.plan(Fault("drop_after", conditional_write))
    return create(place, key)


def whole_object(place: Place, key: str) -> tuple[Act, Check]:
    place.direct.put(key, WHOLE, metadata={"who": "me"})
    expected = place.direct.get(key)
    assert isinstance(expected, GetResult)

    def check(found: Any) -> None:
        assert found.data == WHOLE and found.meta == expected.meta

    return lambda: place.store.get(key), check


def one_range(place: Place, key: str) -> tuple[Act, Check]:
    place.direct.put(key, WHOLE)
    return lambda: place.store.read(key, byte_range=Range(3, 8)), is_(WHOLE[3:8])


def a_suffix(place: Place, key: str) -> tuple[Act, Check]:
    place.direct.put(key, WHOLE)
    return lambda: place.store.read(key, byte_range=Suffix(7)), is_(WHOLE[-7:])


def head(place: Place, key: str) -> tuple[Act, Check]:
    place.direct.put(key, WHOLE, metadata={"who": "me"})
    return lambda: place.store.head(key), is_(place.direct.head(key))


def nothing(place: Place, key: str) -> tuple[Act, Check]:
    def absent() -> bool:
        with pytest.raises(NotFound):
            place.store.read(key)
        return place.store.exists(key)

    return absent, is_(False)


def listing(place: Place, key: str) -> tuple[Act, Check]:
    for name in "abc":
        place.direct.put(f"{key}/{name}", b"")
    return lambda: list(place.store.list(f"{key}/", page_size=2)), is_(list(place.direct.list(f"{key}/", page_size=2)))


def delete(place: Place, key: str) -> tuple[Act, Check]:
    return _delete(place, [key])


def delete_several(place: Place, key: str) -> tuple[Act, Check]:
    return _delete(place, [f"{key}-{name}" for name in "abc"])


def _delete(place: Place, keys: Sequence[str]) -> tuple[Act, Check]:
    for key in keys:
        place.direct.put(key, b"")

    def check(results: Any) -> None:
        assert [(result.key, result.error) for result in results] == [(key, None) for key in keys]
        assert not any(place.direct.exists(key) for key in keys)

    return lambda: place.store.delete(keys), check


def copy(place: Place, key: str) -> tuple[Act, Check]:
    place.direct.put(f"{key}-source", WHOLE)
    return lambda: place.store.copy(f"{key}-source", key, Overwrite()), is_written(place, key, WHOLE)


def append(place: Place, key: str) -> tuple[Act, Check]:
    assert isinstance(place.direct.append(key, WHOLE, offset=0), Written)
    return lambda: place.store.append(key, b"more", offset=len(WHOLE)), is_written(place, key, WHOLE + b"more")


def upload(place: Place, key: str) -> tuple[Act, Check]:
    smallest = max(place.store.capabilities.part_bytes_min, place.store.capabilities.part_bytes_multiple)
    parts = [WHOLE] if smallest > 1 << 20 else [b"1" * smallest, WHOLE]

    def act() -> Any:
        begun = place.store.start_upload(key, Create())
        for number, part in enumerate(parts, 1):
            begun.put_part(number, part)
        return begun.complete()

    return act, is_written(place, key, b"".join(parts))


def upload_given_up(place: Place, key: str) -> tuple[Act, Check]:
    def act() -> bool:
        begun = place.store.start_upload(key, Create())
        begun.put_part(1, WHOLE)
        begun.abort()
        return place.direct.exists(key)

    return act, is_(False)


PLAIN = [
    create,
    create_what_is_there,
    update,
    update_what_changed,
    overwrite,
    settle,
    whole_object,
    one_range,
    a_suffix,
    head,
    nothing,
    listing,
    delete,
    delete_several,
]
PARTS = [upload, upload_given_up]
CASES = {
    # What a server does otherwise than its store is on the page of the store; `gcs-sessions` is a server of uploads alone.
    "versitygw": [*PLAIN, copy, *PARTS],
    "fake-gcs-server": PLAIN,
    "gcsemulator": [create, update, settle, delete, delete_several, append],
    "gcs-sessions": PARTS,
    "azurite": [*PLAIN, copy, append, *PARTS],
    "seaweedfs": [*PLAIN, copy, *PARTS],
}


def offsets(head_bytes: int) -> Sequence[int]:
    """Where an answer is cut: everywhere in its head with `--all`, and a few bytes behind it."""
    last = head_bytes + 2
    wanted = effort(4, with_all=last)
    spread = {last * number // wanted for number in range(wanted)} | {head_bytes - 1, head_bytes - 8}
    return sorted(offset for offset in spread if offset < last)


def undisturbed(place: Place, case: Callable[[Place, str], tuple[Act, Check]]) -> list[int]:
    """How long the heads are of the answers that an operation gets. The store must do it right when nothing is cut."""
    place.proxy.clear()
    act, check = case(place, f"{case.__name__}-whole")
    check(act())
    return [exchange.head_bytes for exchange in place.proxy.exchanges]


@pytest.mark.parametrize(
    ("place", "case"),
    [
        pytest.param(name, case, id=f"{name}-{case.__name__}", marks=stored.marks)
        for stored in few(CASES, 5)
        for name in stored.values
        for case in CASES[str(name)]
    ],
    indirect=["place"],
)
def test_a_head_that_is_cut_is_no_answer(place: Place, case: Callable[[Place, str], tuple[Act, Check]]) -> None:
    heads = undisturbed(place, case)
    assert heads and all(0 < length < HEAD_BYTES_MAX for length in heads)
    cuts = 0
    for nth, length in enumerate(heads, 1):
        for at in offsets(length):
            place.proxy.clear()
            act, check = case(place, f"{case.__name__}-{nth}-{at}")
            place.proxy.plan(Fault("cut_answer", nth=nth, at=at))
            try:
                check(act())
            except BaseException as error:
                error.add_note(f"answer {nth} of {len(heads)} was cut after {at} of {length} bytes of its head")
                raise
            cuts += len([exchange for exchange in place.proxy.exchanges if exchange.fault == "cut_answer"])
    assert cuts >= len(heads)


@pytest.mark.parametrize("place", few(["versitygw", "fake-gcs-server", "azurite"], 3), indirect=True)
def test_when_every_answer_is_cut_nothing_is_claimed(place: Place) -> None:
    """Neither a success nor a conflict; and an error is one of ours."""
    for case in (create, update, overwrite, whole_object, head, listing, delete, delete_several):
        for at in (0, 12, 40, 100):
            place.proxy.clear()
            act, _ = case(place, f"lasting-{case.__name__}-{at}")
            place.proxy.plan(Fault("cut_answer", times=1000, at=at))
            try:
                told = act()
            except Unavailable:
                continue
            finally:
                place.proxy.clear()
            if isinstance(told, list):
                assert told and all(isinstance(result.error, Unavailable) for result in told), told
            else:
                assert type(told).__name__ == "OutcomeUnknown", (case.__name__, at, told)


# ---- what comes before an answer


@contextmanager
def says(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that reads a head and closes the connection after the next of its answers, the last one for ever; and what it read."""
    heard: list[bytes] = []
    numbers = count()

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                request = b""
                while b"\r\n\r\n" not in request and (data := client.recv(65536)):
                    request += data
                heard.append(request)
                client.sendall(answers[min(next(numbers), len(answers) - 1)])
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


EARLY = b'HTTP/1.1 200 OK\r\nETag: "0123456789abcdef"\r\nContent-Length: 0\r\n\r\n'
CONTINUE = b"HTTP/1.1 100 Continue\r\nServer: one\r\n\r\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("answer", [EARLY, CONTINUE], ids=["instead of 100 Continue", "100 Continue"])
def test_a_cut_answer_to_the_head_of_a_large_put_is_none(answer: bytes) -> None:
    """The SDK reads it with code of its own, which waited for ever for the end of a `100 Continue` that was cut."""
    keys = {"access_key": "key", "secret_key": "secret", "region": "us-east-1"}
    body = bytes(2 << 20)
    for at in range(1, len(answer), effort(9, with_all=1)):
        with says(answer[:at]) as (url, heard):
            store = open_store("s3://bucket", {"endpoint": url, **keys}, policy=replace(FAST, attempts_max=1))
            outcome = store.put("k", body, Overwrite())
            store.close()
            assert heard and b"Expect: 100-continue" in heard[0]
        assert type(outcome).__name__ == "OutcomeUnknown", (at, outcome)


def test_a_whole_early_answer_counts() -> None:
    keys = {"access_key": "key", "secret_key": "secret", "region": "us-east-1"}
    with says(EARLY) as (url, _), open_store("s3://bucket", {"endpoint": url, **keys}, policy=FAST) as store:
        assert store.put("k", bytes(2 << 20), Overwrite()) == Written(Version("0123456789abcdef"))


BODY = b'<?xml version="1.0"?><ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>'
CHUNKED = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
COUNTED = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.mark.parametrize("answer", [CHUNKED, COUNTED], ids=["chunked", "counted"])
def test_a_body_that_ends_early_is_asked_for_again(answer: bytes) -> None:
    keys = {"access_key": "key", "secret_key": "secret", "region": "us-east-1"}
    # With the size of the last chunk, 0, all of a body is there.
    last_of_body = len(answer) - (len(b"\r\n\r\n") if answer is CHUNKED else 0)
    for at in range(1, last_of_body, effort(40, with_all=1)):
        with says(answer[:at], answer) as (url, heard), open_store("s3://bucket", {"endpoint": url, **keys}, policy=FAST) as store:
            assert list(store.list_keys()) == []
        assert len(heard) == 2, f"cut after {at} of {len(answer)} bytes"
