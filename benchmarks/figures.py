"""Pure functions from samples to figures: medians, spreads, ratios, verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.peers import SIDES
from benchmarks.works import Goal


@dataclass(slots=True)
class Sample:
    """One measurement of one side.

    Args:
        seconds: Of each commit when a sample is several, else one value.
        files: Written; None for reads. Likewise `bytes`.
        removed: Files removed by a cleaning.
        peak_bytes: Resident, of all its processes.
        cpu_seconds: Of all its processes, also those of reading a batch. On a busy machine it says more than seconds.
        requests: By kind, where they are counted.
    """

    round: int
    seconds: list[float]
    files: int | None = None
    bytes: int | None = None
    removed: int | None = None
    peak_bytes: int = 0
    cpu_seconds: float | None = None
    requests: dict[str, int] | None = None
    exchanges: int | None = None
    called: str | None = None


@dataclass(slots=True)
class WorkResult:
    """All measurements of one work.

    Args:
        lacks: Why a side cannot do it.
        wrong: Wrong rows or answers of a side. A work with an entry has no ratios.
        commits: Whether a sample is a series of commits.
    """

    chain: str
    work: str
    engine: str
    goals: tuple[Goal, ...] = ()
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    commits: bool = False


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, least and greatest of some values."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and its measurement. `met` is None where it could not be measured."""

    goal: str
    found: str
    met: bool | None


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def seconds_of(samples: Sequence[Sample]) -> Spread:
    """The seconds of every commit, over all samples."""
    return spread([second for sample in samples for second in sample.seconds])


def slowest_in_medians(samples: Sequence[Sample]) -> float:
    """The slowest commit as a multiple of the median."""
    all_seconds = seconds_of(samples)
    return all_seconds.high / all_seconds.median


def ratio(these: Sequence[Sample], those: Sequence[Sample]) -> Spread:
    """The time of these by the time of those, sample by sample: the two of a pair ran one after the other, in the same noise."""
    return spread([statistics.median(a.seconds) / statistics.median(b.seconds) for a, b in zip(these, those, strict=False)])


def own_side(result: WorkResult) -> str:
    """The side of objcat."""
    return "objcat" if result.engine == "spark" else "objcat-local"


def sides_of(result: WorkResult) -> list[str]:
    """The measured sides, in one fixed order."""
    return [side for side in SIDES if result.samples.get(side)]


def times_faster(result: WorkResult) -> Mapping[str, Spread]:
    """How many times as fast objcat was, for each side that is not objcat. Empty when a check failed: then no ratio means anything."""
    own = result.samples.get(own_side(result))
    if result.wrong or not own:
        return {}
    return {side: ratio(samples, own) for side, samples in result.samples.items() if SIDES[side].role != "objcat" and samples}


def verdicts(result: WorkResult) -> list[Verdict]:
    """The verdicts on the goals of a work."""
    return [_verdict(result, goal) for goal in result.goals]


def _verdict(result: WorkResult, goal: Goal) -> Verdict:
    text = goal_text(goal)
    own = result.samples.get(goal.of or own_side(result))
    other = result.samples.get(goal.against) if goal.against else None
    faster = ratio(other, own) if own and other else None
    if result.wrong or not own or (goal.against and faster is None):
        return Verdict(text, "", None)
    match goal:
        case Goal(slowest=float() | int() as bound):
            value = slowest_in_medians(own)
            return Verdict(text, f"{value:.1f} medians", value <= bound)
        case Goal(exchanges=int() as bound):
            count = max(sample.exchanges or 0 for sample in own)
            return Verdict(text, str(count), count <= bound)
        case Goal(seconds=float() | int() as bound):
            value = seconds_of(own).median
            return Verdict(text, f"{value:.3f} s", value <= bound)
        case Goal(faster=float() | int() as bound) if faster:
            return Verdict(text, f"{faster.median:.2f}x", faster.median >= bound)
        case Goal(share=float() | int() as bound) if faster:
            return Verdict(text, f"{1 / faster.median:.2f}x", 1 / faster.median <= bound)
    raise AssertionError(f"{goal} has no condition.")


def goal_text(goal: Goal) -> str:
    """A goal as text."""
    if goal.of is not None:
        return f"{goal.of}: {goal_text(replace(goal, of=None))}"
    if goal.slowest is not None:
        return f"slowest <= {goal.slowest:g} medians"
    if goal.exchanges is not None:
        return f"<= {goal.exchanges} exchanges"
    if goal.seconds is not None:
        return f"<= {goal.seconds:g} s"
    return f">= {goal.faster:g}x as fast as {goal.against}" if goal.faster is not None else f"<= {goal.share:g}x of {goal.against}"


def failed(results: Sequence[WorkResult]) -> list[str]:
    """A sentence for each side with wrong rows or answers."""
    return [f"{result.chain}, {result.work}: {side} {why}" for result in results for side, why in result.wrong.items()]


def raw(result: WorkResult) -> dict[str, Any]:
    """Everything, for the JSON file."""
    import dataclasses

    return dataclasses.asdict(result) | {
        "seconds": {side: dataclasses.asdict(seconds_of(samples)) for side, samples in result.samples.items() if samples},
        "times_faster": {side: dataclasses.asdict(value) for side, value in times_faster(result).items()},
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts(result)],
    }
