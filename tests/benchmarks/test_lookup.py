"""`./dev bench lookup`: how round trips are counted, and that a wrong row makes it fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import lookup_bench, lookup_side
from benchmarks.slow_proxy import Exchange, round_trips


def exchanges(*spans: tuple[float, float]) -> list[Exchange]:
    return [Exchange("GET", "/", began_s, ended_s) for began_s, ended_s in spans]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ((), 0),
        (((0, 1),), 1),
        (((0, 1), (0.2, 1.2), (0.3, 1.3)), 1),
        (((0, 1), (1, 2), (2, 3)), 3),
        (((0, 1), (0, 3), (1, 2), (2, 3)), 3),
        (((5, 6), (0, 9), (3, 4), (1, 2)), 3),
    ],
)
def test_round_trips_are_the_longest_chain_of_requests_after_each_other(spans: tuple[tuple[float, float], ...], expected: int) -> None:
    assert round_trips(exchanges(*spans)) == expected
    assert round_trips(exchanges(*spans[::-1])) == expected


def test_objcat_finds_its_row_within_its_goals_in_round_trips_and_requests(tmp_path: Path) -> None:
    found = lookup_bench.measure(["objcat-local"], tmp_path, commits=12, upserts=2, runs=1, latency_ms=20, say=lambda _: None)
    assert [one.work for one in found] == list(lookup_bench.GOALS)
    assert found[0].count <= 14 and found[1].count <= 14 + 2
    assert 1 <= found[0].trips <= found[0].count


def test_another_row_than_the_expected_one_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_bench, "KEY", lookup_side.KEY + 1)
    with pytest.raises(lookup_bench.WrongRow, match="and not the row"):
        lookup_bench.measure(["objcat-local"], tmp_path, commits=1, upserts=0, runs=1, latency_ms=0, say=lambda _: None)
