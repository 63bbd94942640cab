"""The strategy under the conformance suite, and what it takes first."""

from __future__ import annotations

import pytest
from objcat_oldest_first import OldestFirst

from objcat import CompactionCandidate, FileGroupId
from objcat.testing.compaction import *  # noqa: F403 - the tests of the suite
from objcat.testing.compaction import StrategySubject


@pytest.fixture(params=[{}, {"least_s": "1"}], ids=["all", "those that wait"])
def subject(request: pytest.FixtureRequest) -> StrategySubject:
    return StrategySubject("oldest-first", options=request.param)


def candidate(bucket: int, waiting_s: float) -> CompactionCandidate:
    return CompactionCandidate(
        file_group=FileGroupId("", bucket, 8), log_bytes=1, log_count=1, base_bytes=1, io_bytes=4, waiting_s=waiting_s
    )


def test_what_waited_longest_comes_first() -> None:
    chosen = OldestFirst({"least_s": "5"}).choose([candidate(0, 4), candidate(1, 5), candidate(2, 60)])
    assert [file_group.bucket for file_group in chosen] == [2, 1]
