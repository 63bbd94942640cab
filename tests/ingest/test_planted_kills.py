"""Bugs that only kills show are planted, and a run of kills finds each: one that cannot fail shows nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devkit.databases import PostgresServer
from tests.effort import ALL, INTEGRATION
from tests.ingest import load
from tests.ingest.killing import killed_run
from tests.ingest.planted_for_kills import KILL_BUGS
from tests.ingest.shop import Shop

QUICKLY_FOUND = "tables apart"
KILLS, KILLS_QUICK = 30, 6


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=INTEGRATION if bug == QUICKLY_FOUND else ALL) for bug in KILL_BUGS])
@pytest.mark.timeout(1200)
def test_a_run_of_kills_finds_a_planted_bug(postgres: PostgresServer, tmp_path: Path, bug: str) -> None:
    kills = KILLS_QUICK if bug == QUICKLY_FOUND else KILLS
    found = killed_run(Shop(postgres, tmp_path), load, tmp_path, 7, kills=kills, bug=bug)
    print(f"{bug}: {found.said()}")
    problems = "\n".join(found.problems)
    assert re.search(KILL_BUGS[bug], problems, re.DOTALL), f"{bug} was not found: {problems or 'no problem'}"
