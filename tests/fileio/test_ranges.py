"""Coalesced ranges: the bytes asked for, in the order asked, in few requests of bounded size."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fileio.errors import NotFound
from fileio.memory import MemoryBackend
from fileio.ranges import coalesce
from fileio.store import FileIO

KEY = "data/object"
CONTENT = random.Random(5).randbytes(1000)
RANGES = st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 300)).map(lambda r: (r[0], r[0] + r[1])), max_size=12)


def _store() -> FileIO:
    store = FileIO(MemoryBackend())
    store.put(KEY, CONTENT)
    return store


@settings(deadline=None)
@given(RANGES, st.integers(0, 100), st.integers(1, 400))
def test_every_range_is_what_a_slice_gives(ranges: list[tuple[int, int]], gap_bytes: int, request_bytes: int) -> None:
    got = _store().get_ranges(KEY, ranges, gap_bytes=gap_bytes, request_bytes=request_bytes)
    assert got == [CONTENT[start:end] for start, end in ranges]


@given(RANGES, st.integers(0, 100), st.integers(1, 400))
def test_requests_are_disjoint_bounded_and_no_more_than_needed(ranges: list[tuple[int, int]], gap_bytes: int, request_bytes: int) -> None:
    requests = coalesce(ranges, gap_bytes=gap_bytes, request_bytes=request_bytes).requests
    assert all(0 < high - low <= request_bytes for low, high in requests)
    assert all(former[1] <= latter[0] for former, latter in itertools.pairwise(requests))
    wanted = {n for start, end in ranges for n in range(start, end)}
    fetched = {n for low, high in requests for n in range(low, high)}
    assert wanted <= fetched
    needless = sorted(fetched - wanted)
    run = 0
    for index, n in enumerate(needless):
        run = run + 1 if index and needless[index - 1] == n - 1 else 1
        assert run <= gap_bytes, "a gap that is too wide was fetched"


def test_neighbours_share_a_request_and_distant_ones_do_not() -> None:
    store = _store()
    before = store.metrics.snapshot()
    assert store.get_ranges(KEY, [(500, 510), (0, 10), (15, 20)], gap_bytes=5) == [CONTENT[500:510], CONTENT[:10], CONTENT[15:20]]
    spent = store.metrics.snapshot() - before
    assert (spent.request_count, spent.bytes_read) == (2, 30)


def test_nothing_asked_is_no_request() -> None:
    store = _store()
    before = store.metrics.snapshot()
    assert store.get_ranges(KEY, []) == []
    assert store.get_ranges(KEY, [(7, 7)]) == [b""]
    assert (store.metrics.snapshot() - before).request_count == 0


@pytest.mark.parametrize("wrong", [(-1, 3), (5, 4)])
def test_what_is_not_a_range_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="byte range"):
        _store().get_ranges(KEY, [wrong])


def test_a_missing_object_is_not_found() -> None:
    with pytest.raises(NotFound):
        _store().get_ranges("data/missing", [(0, 5), (5_000_000, 5_000_010)])
