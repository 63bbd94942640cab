"""Ratios of pairs, and the interval of their median."""

from __future__ import annotations

import random
import statistics
from functools import partial

from benchmarks.figures import Spread
from benchmarks.paired import compared, in_turns, median_interval


def test_few_values_have_no_narrower_interval_than_all_of_them():
    assert median_interval([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert median_interval([7.0]) == Spread(7.0, 7.0, 7.0)


def test_the_ends_of_an_interval_are_those_of_the_binomial_distribution():
    # Tables have the 2nd and the 9th of ten values, and the 40th and the 61st of a hundred.
    found = median_interval([float(number) for number in range(1, 11)])
    assert (found.low, found.high) == (2.0, 9.0)
    found = median_interval([float(number) for number in range(1, 101)])
    assert (found.low, found.high) == (40.0, 61.0)


def test_an_interval_holds_the_true_median_as_often_as_it_says():
    draw = random.Random(7)
    held = 0
    for _ in range(400):
        found = median_interval([draw.lognormvariate(0, 1) for _ in range(25)])
        held += found.low <= 1.0 <= found.high
    assert held / 400 >= 0.93


def test_one_slow_pair_moves_nothing():
    pairs = [{"mine": {"s": 2.0 * slow}, "other": {"s": 1.0 * slow}} for slow in (1, 1, 1, 50, 1, 1, 1, 1)]
    pairs.append({"mine": {"s": 90.0}, "other": {"s": 1.0}})
    found = compared(pairs, "mine", "other")
    assert (found["ratio of s"], found["ratio of s, low"], found["ratio of s, high"]) == (2.0, 2.0, 2.0)
    assert found["mine s"] == statistics.median(pair["mine"]["s"] for pair in pairs)


def test_the_side_that_is_first_alternates():
    order: list[str] = []

    def sample(name: str) -> dict[str, float]:
        order.append(name)
        return {"s": 1.0}

    sides = {name: partial(sample, name) for name in ("a", "b")}
    for turn in range(3):
        assert list(in_turns(sides, turn)) == ["a", "b"]
    assert order == ["b", "a", "a", "b", "b", "a"]
