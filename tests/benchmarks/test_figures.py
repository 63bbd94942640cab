"""Medians, ratios, verdicts; and that nothing is told of a work whose check failed."""

from __future__ import annotations

import pytest

from benchmarks.figures import Sample, WorkResult, failed, ratio, slowest_in_medians, times_faster, verdicts
from benchmarks.works import Goal


def samples(*seconds: float | list[float]) -> list[Sample]:
    return [Sample(number, one if isinstance(one, list) else [one]) for number, one in enumerate(seconds)]


def upsert(**sides: list[Sample]) -> WorkResult:
    goals = (Goal("iceberg", faster=4), Goal("plain", share=1.2), Goal(seconds=0.25))
    return WorkResult("orders", "upsert", "spark", goals, samples=dict(sides))


def test_a_ratio_is_of_pairs_and_not_of_medians():
    slow_then_fast, fast_then_slow = samples(8.0, 2.0, 4.0), samples(4.0, 1.0, 1.0)
    found = ratio(slow_then_fast, fast_then_slow)
    assert (found.median, found.low, found.high) == (2.0, 2.0, 4.0)


def test_of_commits_in_turn_the_median_of_each_series_counts():
    assert ratio(samples([1.0, 2.0, 30.0]), samples([0.5, 0.5, 9.0])).median == 4.0
    assert slowest_in_medians(samples([1.0, 2.0], [2.0, 7.0])) == 3.5


def test_goals_are_met_or_missed_by_the_median():
    result = upsert(objcat=samples(0.2, 0.2), iceberg=samples(0.8, 1.0), plain=samples(0.1, 0.1))
    assert [(verdict.found, verdict.met) for verdict in verdicts(result)] == [("4.50x", True), ("2.00x", False), ("0.200 s", True)]


def test_a_goal_against_a_side_that_was_not_there_is_neither_met_nor_missed():
    assert [verdict.met for verdict in verdicts(upsert(objcat=samples(0.3)))] == [None, None, False]


def test_what_failed_its_check_has_no_ratio_and_meets_no_goal():
    result = upsert(objcat=samples(0.1), iceberg=samples(1.0), plain=samples(0.1))
    assert times_faster(result)
    result.wrong["iceberg"] = "has 7 instead of 8"
    assert times_faster(result) == {}
    assert [verdict.met for verdict in verdicts(result)] == [None, None, None]
    assert failed([result]) == ["orders, upsert: iceberg has 7 instead of 8"]


@pytest.mark.parametrize(("seconds", "met"), [([1.0, 1.0, 2.9], True), ([1.0, 1.0, 3.1], False)])
def test_the_slowest_commit_is_held_to_medians(seconds, met):
    result = WorkResult("small commits", "in turn", "local", (Goal(slowest=3),), samples={"objcat-local": samples(seconds)})
    assert [verdict.met for verdict in verdicts(result)] == [met]
