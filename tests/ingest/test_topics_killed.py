"""An ingest of topics is killed at random and after commits. Every committed record is there once, and none that was given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.kafka import KafkaBroker
from tests.effort import ALL, INTEGRATION, effort
from tests.ingest.topic_killing import killed_topics
from tests.ingest.topic_shop import TopicShop

KILLS = effort(8, with_all=40)


@pytest.mark.parametrize("seed", [pytest.param(7, marks=INTEGRATION), pytest.param(11, marks=ALL), pytest.param(23, marks=ALL)])
@pytest.mark.timeout(1200)
def test_killed_again_and_again(broker: KafkaBroker, tmp_path: Path, seed: int) -> None:
    found = killed_topics(TopicShop(broker, tmp_path), tmp_path, seed, kills=KILLS)
    print(f"seed {seed}: {found.said()}")
    assert found.problems == []
    # A run in which nothing was at stake shows nothing.
    assert len(found.kills) == KILLS
    assert found.after_commits(in_snapshot=False) >= KILLS // 3, found.said()
    assert found.transactions > KILLS * 10
