"""A short day of a few writers: nothing is lost beside refused requests, every request is counted, and a lost commit is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import pytest

from benchmarks.day_bench import FILE_BYTES, PART_BYTES, Run, Shape, bills
from benchmarks.rated_store import Limits, RatedBackend
from fileio.contract import Buffer, PutMode, PutOutcome, Version, Written
from objcat.timeline.hints import HINT_SLOTS

PUTS_OF_A_FILE = -(-FILE_BYTES // PART_BYTES) + 2
SMALL = Shape(writers=4, tables=6, hours=0.02, herd_every_s=40)


class _Forgetful(RatedBackend):
    """Acknowledges every tenth slot without storing it."""

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        if self.is_counting and "/log/" in key and self.requests["PUT"] % 10 == 0:
            self.admit("PUT", key)
            return Written(Version("none"), None)
        return super().put(key, data, mode, metadata)


def test_nothing_is_lost_where_the_store_refuses_requests() -> None:
    result = Run(Shape(writers=4, tables=6, hours=0.02, herd_every_s=40, limits=Limits(prefix_writes=40))).run()
    assert result.refused["prefix_writes"] > 0
    assert result.commits > 20
    assert (result.lost, result.strange) == (0, 0)


def test_a_run_is_a_function_of_its_seed() -> None:
    first, again = (asdict(Run(SMALL).run()) for _ in range(2))
    assert {**first, "cpu_s": 0} == {**again, "cpu_s": 0}
    assert first["refused"] == {}


def test_a_commit_that_is_acknowledged_and_not_stored_is_found() -> None:
    result = Run(SMALL, _Forgetful).run()
    assert result.lost > 0


def test_every_request_is_counted_and_has_its_price() -> None:
    result = asdict(Run(Shape(writers=1, tables=1, hours=0.004)).run())
    commits, requests = result["commits"], result["requests"]
    assert 3 <= commits <= 14, "without a checkpoint"
    assert result["data_requests"] == {"PUT": PUTS_OF_A_FILE * commits}
    # An intent and a slot for each commit, and a hint for each few slots; the intent is deleted.
    puts = 2 * commits + commits // HINT_SLOTS
    assert (requests["PUT"], requests["DELETE"]) == (PUTS_OF_A_FILE * commits + puts, commits)
    # Each commit looks at its base. Opening asks for the hint, then for the first slot and the next few at once.
    assert requests["GET"] == commits + 1 + 1 + HINT_SLOTS
    day = bills(result)
    scale = 24 / 0.004
    assert day["objcat"]["dollars"] == pytest.approx((puts * 0.005 + requests["GET"] * 0.0004) / 1000 * scale)
    assert day["Iceberg"]["dollars"] == pytest.approx((3 * 0.005 + 2 * 0.0004) / 1000 * commits * scale)
