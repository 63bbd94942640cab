"""An ingest is killed at random and after commits, in the snapshot and while it streams. Nothing is lost, doubled or torn."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.databases import PostgresServer
from tests.effort import ALL, INTEGRATION, effort
from tests.ingest import load
from tests.ingest.killing import killed_run
from tests.ingest.shop import Shop

KILLS = effort(6, with_all=40)


@pytest.mark.parametrize("seed", [pytest.param(7, marks=INTEGRATION), pytest.param(11, marks=ALL), pytest.param(23, marks=ALL)])
@pytest.mark.timeout(1200)
def test_killed_again_and_again(postgres: PostgresServer, tmp_path: Path, seed: int) -> None:
    found = killed_run(Shop(postgres, tmp_path), load, tmp_path, seed, kills=KILLS)
    print(f"seed {seed}: {found.said()}")
    assert found.problems == []
    # A run in which nothing was at stake shows nothing.
    assert len(found.kills) == KILLS
    assert found.after_commits(in_snapshot=True) >= KILLS // 5, found.said()
    assert found.after_commits(in_snapshot=False) >= KILLS // 5, found.said()
    assert found.slots >= KILLS // 2 and found.transactions > KILLS * 10
