"""What time it is at the store, as answers tell it in passing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from fileio.contract import Buffer, ByteRange, Create, GetResult, NotModified, PutMode, PutOutcome, Version, Written
from fileio.memory import MEMORY_CAPABILITIES, MemoryBackend
from fileio.store import FileIO
from fileio.store_clock import CLOCK_READ_S_MAX, ClockReading
from fileio.testing import FakeEnv, Fault, FaultyBackend, Rule

AHEAD_MS = 3_600_000


class Clocked(MemoryBackend):
    """A store whose clock is ahead by `ahead_ms`, whose requests take `takes_s`, and which tells the time with reads too."""

    def __init__(self, here: FakeEnv, *, store_clock: bool = True) -> None:
        self.here = here
        self.takes_s = 0.0
        self.ahead_ms = AHEAD_MS
        super().__init__("clocked", env=here, capabilities=replace(MEMORY_CAPABILITIES, store_clock=store_clock))

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        self.here.advance(self.takes_s)
        outcome = super().put(key, data, mode, metadata)
        if isinstance(outcome, Written) and outcome.store_time_ms is not None:
            return replace(outcome, store_time_ms=outcome.store_time_ms + self.ahead_ms)
        return outcome

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        self.here.advance(self.takes_s)
        result = super().get(key, byte_range, if_none_match)
        if isinstance(result, GetResult) and self.capabilities.store_clock:
            return replace(result, store_time_ms=self.here.now_ms() + self.ahead_ms)
        return result


def test_every_answer_to_a_put_tells_the_time_and_the_newest_counts() -> None:
    env = FakeEnv()
    store = FileIO(Clocked(env), env=env)
    assert store.clock(since_s=0) is None
    for _ in range(2):
        env.advance(10)
        store.put("key", b"")
        assert store.clock(since_s=0) == ClockReading(env.now_ms() + AHEAD_MS, env.now_ms(), env.monotonic_s())
    assert store.clock(since_s=env.monotonic_s()) is not None
    assert store.clock(since_s=env.monotonic_s() + 0.001) is None
    assert store.child("other").clock(since_s=0) is None


@pytest.mark.parametrize(("ahead_ms", "differ_ms"), [(0, 0), (-400, 0), (-600, -200), (-7_000, -6_600), (100, 100)])
def test_the_clocks_differ_by_no_more_than_the_time_that_the_request_took_leaves_open(ahead_ms: int, differ_ms: int) -> None:
    env = FakeEnv()
    backend = Clocked(env)
    backend.takes_s, backend.ahead_ms = 0.4, ahead_ms
    store = FileIO(backend, env=env)
    store.put("key", b"")
    reading = store.clock(since_s=0)
    assert reading is not None and reading.store_ms - reading.local_ms == differ_ms


def test_streams_tell_it_too() -> None:
    env = FakeEnv()
    store = FileIO(Clocked(env), env=env)
    with store.open_write("key") as out:
        out.write(b"bytes")
    assert store.clock(since_s=0) is not None


@pytest.mark.parametrize("ask", ["put", "get"])
@pytest.mark.parametrize(("takes_s", "tells"), [(CLOCK_READ_S_MAX, True), (CLOCK_READ_S_MAX + 0.1, False)])
def test_an_answer_tells_it_unless_it_took_long(takes_s: float, tells: bool, ask: str) -> None:
    env = FakeEnv()
    backend = Clocked(env)
    FileIO(backend, env=env).put("key", b"")
    backend.takes_s = takes_s
    store = FileIO(backend, env=env)
    store.put("key", b"") if ask == "put" else store.read("key")
    expected = ClockReading(env.now_ms() + AHEAD_MS, env.now_ms(), env.monotonic_s())
    assert store.clock(since_s=0) == (expected if tells else None)


def test_a_write_that_is_found_by_reading_back_tells_nothing() -> None:
    """Nobody knows when it landed."""
    env = FakeEnv()
    store = FileIO(FaultyBackend(Clocked(env), [Rule(fault=Fault.AFTER, kinds=frozenset({"put"}))]), env=env)
    assert isinstance(store.put("key", b"", Create()), Written)
    assert store.clock(since_s=0) is None


def test_a_refused_write_and_a_store_without_a_clock_tell_nothing() -> None:
    env = FakeEnv()
    backend = Clocked(env)
    FileIO(backend, env=env).put("key", b"")
    store = FileIO(backend, env=env)
    store.put("key", b"", Create())
    assert store.clock(since_s=0) is None
    bare = FileIO(Clocked(env, store_clock=False), env=env)
    bare.put("key", b"")
    bare.read("key")
    assert bare.clock(since_s=0) is None
