"""Ratios of pairs of samples that were taken one after the other, so that other work on the machine meets both sides alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.figures import Spread

CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> Spread:
    """The median of at least one value, and an interval that holds the true median with `CONFIDENCE`, whatever the distribution is.

    Its ends are two of the values, by the binomial distribution of how many lie below the true median. With fewer than six values there is
    no such interval: then it has all of them.
    """
    ordered, count = sorted(values), len(values)
    outside, below = 0.0, 0
    while below < (count - 1) // 2:
        outside += math.comb(count, below) / 2**count
        if outside > (1 - CONFIDENCE) / 2:
            break
        below += 1
    rank = max(below - 1, 0)
    return Spread(statistics.median(ordered), ordered[rank], ordered[count - 1 - rank])


def paired_ratio(these: Sequence[float], those: Sequence[float]) -> Spread:
    """The median ratio of these to those, pair by pair, with its interval."""
    return median_interval([one / other for one, other in zip(these, those, strict=True)])


def in_turns(sides: Mapping[str, Callable[[], Mapping[str, float]]], turn: int) -> dict[str, Mapping[str, float]]:
    """One sample of each of two sides. Which side is first alternates with the turn."""
    names = list(sides)
    taken = {name: sides[name]() for name in (names if turn % 2 else names[::-1])}
    return {name: taken[name] for name in names}


def compared(pairs: Sequence[Mapping[str, Mapping[str, float]]], this: str, other: str) -> dict[str, float]:
    """The medians of both sides, and the ratios of this to the other, by figure. Ratios end in `low` and `high` of their interval."""
    found: dict[str, float] = {}
    for figure in pairs[0][this]:
        mine, others = ([pair[side][figure] for pair in pairs] for side in (this, other))
        ratio = paired_ratio(mine, others)
        found |= {
            f"{this} {figure}": statistics.median(mine),
            f"{other} {figure}": statistics.median(others),
            f"ratio of {figure}": ratio.median,
            f"ratio of {figure}, low": ratio.low,
            f"ratio of {figure}, high": ratio.high,
        }
    return found
