"""What is counted: requests by kind, bytes, errors, retries, seconds."""

from __future__ import annotations

import pytest

from fileio.contract import Create, NotModified, PreconditionFailed, Range, Update, Version, Written
from fileio.env import SystemEnv
from fileio.errors import NotFound, Throttled
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv, Fault, FaultyBackend, Rule
from fileio.wrappers import PrefixedBackend
from fileio.write_outcomes import RetryPolicy


def test_every_kind_of_request_is_counted_by_name() -> None:
    store = FileIO(MemoryBackend(), env=FakeEnv())
    made = store.put("a", b"12345", Create())
    assert isinstance(made, Written)
    store.put("a", b"123", Update(made.version))
    store.put("b", memoryview(b"1234"))
    store.append("c", bytearray(b"12"), offset=0)
    store.read("a")
    assert isinstance(store.get("a", if_none_match=store.head("a").version), NotModified)
    store.copy("a", "d")
    upload = store.start_upload("e")
    upload.put_part(1, b"1" * 100)
    upload.complete()
    store.start_upload("f").abort()
    list(store.list(page_size=3))
    store.delete(["a", "b"])
    seen = store.metrics.snapshot()
    assert seen.requests == {
        "put_create": 1,
        "put_update": 1,
        "put": 1,
        "append": 1,
        "get": 2,
        "head": 2,
        "copy": 1,
        "upload_start": 2,
        "upload_part": 1,
        "upload_complete": 1,
        "upload_abort": 1,
        "list": 2,
        "delete": 1,
    }
    assert (seen.bytes_written, seen.bytes_read) == (5 + 3 + 4 + 2 + 100, 3)
    assert seen.request_count == 17
    assert seen.retries == 0 and not any(seen.errors.values())


def test_errors_retries_and_unknowns_are_counted() -> None:
    backend = FaultyBackend(
        MemoryBackend(), [Rule(fault=Fault.AFTER, kinds=frozenset({"put"})), Rule(fault=Fault.BEFORE, kinds=frozenset({"get"}), times=2)]
    )
    store = FileIO(backend, env=FakeEnv())
    assert isinstance(store.put("a", b"1", Create()), Written)
    store.read("a")
    with pytest.raises(NotFound):
        store.read("b")
    seen = store.metrics.snapshot()
    assert seen.requests == {"put_create": 2, "head": 1, "get": 4}
    assert {kind: count for kind, count in seen.errors.items() if count} == {"put_create": 1, "get": 3}
    assert seen.retries == 3


def test_what_happened_between_two_snapshots() -> None:
    store = FileIO(MemoryBackend(), env=FakeEnv())
    store.put("a", b"123")
    before = store.metrics.snapshot()
    store.read("a", byte_range=Range(1))
    store.read("a")
    between = store.metrics.snapshot() - before
    assert between.requests == {"get": 2}
    assert (between.bytes_read, between.bytes_written) == (5, 0)
    assert before.requests == {"put": 1}


class Slow(MemoryBackend):
    """Takes two seconds of virtual time for a put."""

    def __init__(self, env: FakeEnv) -> None:
        super().__init__(env=env)
        self.clock = env

    def put(self, key, data, mode, metadata):
        self.clock.advance(2.0)
        return super().put(key, data, mode, metadata)


def test_seconds_are_summed_by_kind() -> None:
    env = FakeEnv()
    store = FileIO(Slow(env), env=env)
    store.put("a", b"")
    store.put("b", b"")
    store.read("a")
    assert store.metrics.snapshot().seconds == {"put": 4.0, "get": 0.0}


def test_counts_are_exact_under_threads() -> None:
    store = FileIO(MemoryBackend(), env=SystemEnv(parallelism=8))
    list(store.env.map(lambda number: store.put(f"k{number}", b"xx"), range(500)))
    seen = store.metrics.snapshot()
    assert (seen.requests, seen.bytes_written) == ({"put": 500}, 1000)


def test_reads_are_retried_within_the_policy_and_then_raise() -> None:
    backend = FaultyBackend(MemoryBackend(), [Rule(fault=Fault.THROTTLE, kinds=frozenset({"head"}), times=99)])
    store = FileIO(backend, env=FakeEnv(), policy=RetryPolicy(attempts_max=4))
    with pytest.raises(Throttled):
        store.head("a")
    assert store.metrics.snapshot().requests == {"head": 4}
    assert store.metrics.snapshot().retries == 3


def test_a_prefix_narrows_every_method() -> None:
    memory = MemoryBackend()
    whole, part = FileIO(memory, env=FakeEnv()), FileIO(PrefixedBackend(memory, "/a/b/"), env=FakeEnv())
    assert part.url == "memory://unnamed/a/b"
    whole.put("a/c", b"")
    whole.put("a/bc", b"")
    part.put("k", b"1", Create())
    part.append("log", b"2", offset=0)
    part.copy("k", "dir/copied")
    upload = part.start_upload("dir/uploaded")
    upload.put_part(1, b"3")
    upload.complete()
    assert list(part.list_keys()) == ["dir/copied", "dir/uploaded", "k", "log"]
    assert list(part.list_keys(start_after="dir/copied")) == ["dir/uploaded", "k", "log"]
    page = next(part.list(delimiter="/"))
    assert ([meta.key for meta in page.objects], list(page.prefixes)) == (["k", "log"], ["dir/"])
    assert part.head("k").key == "k" and whole.head("a/b/k").key == "a/b/k"
    assert [result.key for result in part.delete(["k", "gone"])] == ["k", "gone"]
    assert list(whole.list_keys()) == ["a/b/dir/copied", "a/b/dir/uploaded", "a/b/log", "a/bc", "a/c"]
    assert part.put("k2", b"", Update(Version("0"))) == PreconditionFailed(None)
