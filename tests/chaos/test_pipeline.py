"""Derived tables equal what is computed anew from their source, whoever was killed, ran twice or lost answers of the store.

`CHAOS_SEED=...` chooses again what the seed that a run prints has chosen.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

import objcat
from devkit.handle import ServerHandle
from objcat.common.validation import TableType
from objcat.inspection.doctor import examine
from tests.chaos.journal import Journal, Tail, read_journals
from tests.chaos.operations import Step
from tests.chaos.pipeline import (
    CHANGES,
    COPY,
    TABLES,
    TOTALS,
    Stage,
    Work,
    add_up,
    copy,
    create_tables,
    recomputed,
    roll_back,
    run_stage,
)
from tests.chaos.supervisor import END_S_MAX, Happened, LocalProcess, Place, Plan, Process, Supervisor, places_of, where
from tests.chaos.worker import perform

WORKS: tuple[Work, ...] = ("feeds", "feeds", "copies", "copies", "sums", "sums")
"""What the processes do: everything twice."""
SHORT = Plan(local=len(WORKS), commits=40, kills=6, lost=10, unknown=0, fenced=0, seconds_max=400)
LONG = Plan(local=len(WORKS), commits=1000, kills=100, lost=300, unknown=5, fenced=1, seconds_max=900)
HOPS_MIN, OVERTAKEN_MIN = 3, 1
"""Commits to each derived table, and derivers that found that their twin had been first, without which a run shows nothing."""


@dataclass(slots=True)
class Derived(Happened):
    """hops: commits to the derived table that has the fewest. overtaken: derivers that found that their twin had been first."""

    hops: int = 0
    overtaken: int = 0

    def enough(self, plan: Plan) -> bool:
        return Happened.enough(self, plan) and self.hops >= HOPS_MIN and self.overtaken >= OVERTAKEN_MIN


class Pipeline(Supervisor):
    """A run of the pipeline: `happened` is a `Derived`."""

    def begin(self, place: Place) -> Process:
        seconds_max = self.plan.seconds_max + END_S_MAX
        work = WORKS[place.number]
        stage = Stage(place.url, place.options, place.name, self.seed, str(self.directory), work, seconds_max)
        return LocalProcess(stage.name, run_stage, stage)

    def _count(self, tail: Tail) -> None:
        Supervisor._count(self, tail)
        assert isinstance(self.happened, Derived)
        commits = Counter[Work]()
        for place in self.places:
            commits[WORKS[place.number]] += sum(tail.commits_of[f"p{place.number}-{life}"] for life in range(1, place.lives + 1))
        self.happened.hops = min(commits["copies"], commits["sums"])
        self.happened.overtaken = tail.errors["CommitConflict"] + tail.errors["AlreadyApplied"]


class Impatience:
    """Rolls back all that is under way in any table of the pipeline."""

    def __init__(self, tables: Mapping[str, objcat.Table], directory: Path) -> None:
        self._tables = tables
        self._journal = Journal(directory / "operator.journal")
        self._count = 0

    def roll_back(self) -> None:
        self._count += 1
        perform(self._journal, "operator", f"operator.{self._count}", "roll back", Step({}, lambda: roll_back(self._tables)))


def run(
    store: ServerHandle | Path, plan: Plan, kinds: Mapping[str, TableType], directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or secrets.randbits(32))
    told = f"a pipeline on {'file' if isinstance(store, Path) else store.name}, {dict(kinds)}, CHAOS_SEED={seed}"
    print(told)
    lake = objcat.connect(*where(store))
    create_tables(lake, kinds)
    tables = {name: lake.table(name) for name in TABLES}
    directory.mkdir()
    with ExitStack() as stack:
        places = list(places_of(store, plan, stack.enter_context))
        happened = Pipeline(plan, seed, directory, places, Impatience(tables, directory), Derived()).run()
    for table in tables.values():
        table.maintenance.rollback_failed_writes(older_than_s=0)
    # Whoever derives once more, undisturbed, brings what is missing.
    if (step := copy(tables[CHANGES], tables[COPY], net=True)) is not None:
        step.run()
    if (step := add_up(tables[COPY], tables[TOTALS])) is not None:
        step.run()
    attempts = read_journals(directory)
    outcomes = Counter(f"{attempt.operation}: {attempt.outcome or 'killed'}" for attempt in attempts)
    with capsys.disabled():
        print(f"\n{told}: {happened}; {dict(sorted(outcomes.items()))}")
    broke = [attempt.said["error"] for attempt in attempts if attempt.outcome == "broke"]
    assert not broke, "\n".join([told, *broke])
    check(tables)
    assert happened.enough(plan), f"too little happened for the run to mean anything: {happened} of {plan}"


def check(tables: Mapping[str, objcat.Table]) -> None:
    """The derived tables are what is computed anew from the source; and the log says how they came to be."""
    rows, copied = ({(row["db"], row["id"]): row for row in tables[name].scan().to_arrow().to_pylist()} for name in (CHANGES, COPY))
    assert copied == rows
    assert {row["city"]: (row["total"], row["n"]) for row in tables[TOTALS].scan().to_arrow().to_pylist()} == recomputed(
        list(rows.values())
    )
    for name, app in ((COPY, "copy"), (TOTALS, "sums")):
        derived = [
            (int(entry.metadata["since"]), int(entry.metadata["until"])) for entry in tables[name].inspect.history() if entry.metadata
        ]
        assert len(derived) >= HOPS_MIN, f"{name} was derived {len(derived)} times"
        assert derived[0][0] == -1 and tables[name].app_version(app) == derived[-1][1]
        for (_, until), (since, later) in pairwise(derived):
            # All changes in their order may be written again; what is net, or added up, may not.
            assert since <= until < later and (name == COPY or since == until), derived
    for table in tables.values():
        # A delete that was lost, or is under way, may leave an intent behind: no illness.
        report = examine(table._context.timeline, deep=True)
        assert report.healthy, report.findings


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("store", "kinds"),
    [("versitygw", {COPY: "copy_on_write"})],
    ids=str,
)
def test_a_pipeline_of_two_hops(
    servers: Callable[[str], ServerHandle], store: str, kinds: Mapping[str, TableType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(servers(store).fresh_bucket(), SHORT, kinds, tmp_path / "run", capsys)


@pytest.mark.tier("all")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("store", "kinds"),
    [
        ("versitygw", {}),
        ("fake-gcs-server", {CHANGES: "copy_on_write", TOTALS: "copy_on_write"}),
        ("azurite", {COPY: "copy_on_write"}),
    ],
    ids=str,
)
def test_a_long_pipeline(
    servers: Callable[[str], ServerHandle], store: str, kinds: Mapping[str, TableType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(servers(store).fresh_bucket(), LONG, kinds, tmp_path / "run", capsys)
