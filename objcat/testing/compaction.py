"""The conformance suite of compaction strategies. Import everything, and define a fixture `subject`:

    from objcat.testing.compaction import *
    from objcat.testing.compaction import StrategySubject

    @pytest.fixture
    def subject() -> StrategySubject:
        return StrategySubject("oldest-first", options={"longest_s": "60"})

The strategy must be installed, since it is found by its entry point. `objcat.maintenance.compaction_plugin` has the contract.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from fileio.env import default_env
from objcat.lake.lake import connect
from objcat.maintenance.compact import CompactionPlan, plan_compaction
from objcat.maintenance.compaction_plugin import CompactionCandidate, choose_by_plugin
from objcat.maintenance.compaction_strategy import CompactionStrategy, io_bytes, log_count
from objcat.metadata.files import FileGroup
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import COMPACT_AFTER_COMMITS, COMPACT_PLAN_ONLY, COMPACT_STRATEGY
from objcat.metadata.table_spec import BucketIndex
from objcat.table.table import Table
from objcat.timeline.entry import FileGroupId

SEEDS = range(4)
LOG_COUNTS_MIN = (1, 2, 3)
IO_BYTES_MAX = (1, 20_000, 60_000, 10**9)
SCHEMA = pa.schema([pa.field("day", pa.int64(), nullable=False), pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


@dataclass(frozen=True, slots=True)
class StrategySubject:
    """A compaction strategy to test.

    Args:
        name: of its entry point.
        options: what a table would say by properties `compact_strategy.<option>`.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    def properties(self) -> dict[str, str]:
        """The properties of a table that has these options."""
        return {f"{COMPACT_STRATEGY}.{option}": value for option, value in self.options.items()}


def random_table(subject: StrategySubject, seed: int, **properties: str) -> Table:
    """A table with partitions, buckets, writes, deletes and a compaction that are drawn by a seed."""
    rng = random.Random(seed)
    lake = connect(f"memory://{default_env().new_id()}")
    table = lake.create_table(
        "t",
        SCHEMA,
        key=["day", "id"],
        partition_by=["day"],
        index=BucketIndex(rng.randint(1, 3)),
        properties={**subject.properties(), "auto_clean": "false", **properties},
    )
    days = rng.randint(1, 4)
    for number in range(rng.randint(2, 8)):
        rows = [
            {"day": rng.randrange(days), "id": rng.randrange(200), "text": f"{number} " * rng.randint(0, 40)}
            for _ in range(rng.randint(1, 120))
        ]
        unique = {(row["day"], row["id"]): row for row in rows}
        table.upsert(list(unique.values()))
        if rng.random() < 0.3:
            table.delete([{"day": row["day"], "id": row["id"]} for row in rows[:3]])
        if rng.random() < 0.2:
            table.maintenance.compact(strategy=CompactionStrategy(partitions_newest=1))
    return table


def unmerged_groups(table: Table) -> list[FileGroup]:
    """The file groups with something to merge."""
    return list(table.snapshot.file_groups(Manifests(table._context.fileio), unmerged=True))


def planned(table: Table, strategy: CompactionStrategy) -> CompactionPlan | None:
    """What a compaction would take, by a view of its own."""
    timeline = table._context.timeline
    return plan_compaction(timeline.open(), table.id, Manifests(timeline.fileio), strategy=strategy)


def all_rows(table: Table) -> list[dict[str, Any]]:
    """The rows of the table, sorted by key."""
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: (row["day"], row["id"]))


def invented_candidates(seed: int) -> list[CompactionCandidate]:
    """Candidates of any size, also such as hardly any table has."""
    rng = random.Random(seed)
    partitions = ["", "day=2026-01-31", "day=", "a=1/b=%2F", "day=-1"]
    found = []
    for bucket in range(rng.randint(1, 30)):
        log_bytes, base_bytes = rng.choice([0, 1, 10**4, 10**12]), rng.choice([0, 1, 10**6, 10**13])
        found.append(
            CompactionCandidate(
                file_group=FileGroupId(rng.choice(partitions), bucket, 32),
                log_bytes=log_bytes,
                log_count=rng.choice([0, 1, 5, 10**4]),
                base_bytes=base_bytes,
                io_bytes=2 * (log_bytes + base_bytes),
                waiting_s=rng.choice([0.0, 0.5, 3600.0, 1e9]),
            )
        )
    return sorted(found, key=lambda candidate: candidate.file_group)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_is_the_same_again_and_names_groups_that_exist(subject: StrategySubject, seed: int) -> None:
    table = random_table(subject, seed)
    strategy = CompactionStrategy(plugin=subject.name)
    first, again = planned(table, strategy), planned(table, strategy)
    assert first == again, f"two plans of slot {table.snapshot.slot} differ: {first} and {again}"
    chosen = () if first is None else first.file_groups
    assert set(chosen) <= {group.group_id for group in unmerged_groups(table)}
    assert list(chosen) == sorted(set(chosen))


@pytest.mark.parametrize("seed", SEEDS)
def test_any_candidates_are_answered_and_the_same_way_again(subject: StrategySubject, seed: int) -> None:
    candidates = invented_candidates(seed)
    first = choose_by_plugin(subject.name, subject.properties(), candidates)
    assert choose_by_plugin(subject.name, subject.properties(), candidates) == first, "two choices among the same candidates differ"
    assert choose_by_plugin(subject.name, subject.properties(), []) == [], "something was chosen where there is nothing to choose"


@pytest.mark.parametrize("seed", SEEDS)
def test_compactions_change_no_row_and_end(subject: StrategySubject, seed: int) -> None:
    table = random_table(subject, seed)
    before, left = all_rows(table), {group.group_id for group in unmerged_groups(table)}
    while (done := table.maintenance.compact(strategy=CompactionStrategy(plugin=subject.name))) is not None:
        assert set(done.file_groups) <= left, f"{set(done.file_groups) - left} were compacted though nothing was left to merge in them"
        left.difference_update(done.file_groups)
        assert all_rows(table) == before, "a compaction changed rows"
    assert {group.group_id for group in unmerged_groups(table)} == left
    assert all_rows(table) == before


@pytest.mark.parametrize("io_bytes_max", IO_BYTES_MAX)
def test_a_limit_of_bytes_is_kept(subject: StrategySubject, io_bytes_max: int) -> None:
    table = random_table(subject, io_bytes_max)
    sizes = {group.group_id: io_bytes(group) for group in unmerged_groups(table)}
    plan = planned(table, CompactionStrategy(plugin=subject.name, io_bytes_max=io_bytes_max))
    chosen = () if plan is None else plan.file_groups
    assert len(chosen) <= 1 or sum(sizes[group_id] for group_id in chosen) <= io_bytes_max


@pytest.mark.parametrize("log_count_min", LOG_COUNTS_MIN)
def test_conditions_of_the_caller_hold(subject: StrategySubject, log_count_min: int) -> None:
    table = random_table(subject, log_count_min)
    fitting = {group.group_id for group in unmerged_groups(table) if log_count(group) >= log_count_min}
    plan = planned(table, CompactionStrategy(plugin=subject.name, log_count_min=log_count_min))
    assert plan is None or set(plan.file_groups) <= fitting


@pytest.mark.parametrize("seed", SEEDS)
def test_a_round_of_maintenance_follows_the_property(subject: StrategySubject, seed: int) -> None:
    table = random_table(subject, seed, **{COMPACT_STRATEGY: subject.name, COMPACT_AFTER_COMMITS: "1", COMPACT_PLAN_ONLY: "true"})
    before = all_rows(table)
    expected = planned(table, CompactionStrategy(plugin=subject.name))
    report = table.maintenance.run(verify_bytes_max=0)
    assert [step.why for step in report.steps if step.failed] == []
    assert all_rows(table) == before
    if expected is not None:
        assert {step.service for step in report.did} & {"compact", "execute"}, "the strategy chose groups, and a round compacted none"


__all__ = [
    "StrategySubject",
    "test_a_limit_of_bytes_is_kept",
    "test_a_plan_is_the_same_again_and_names_groups_that_exist",
    "test_a_round_of_maintenance_follows_the_property",
    "test_any_candidates_are_answered_and_the_same_way_again",
    "test_compactions_change_no_row_and_end",
    "test_conditions_of_the_caller_hold",
]
