"""Bugs of those who read topics are planted, and a run of kills finds each: a test that cannot fail shows nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.kafka import KafkaBroker
from tests.ingest.planted_topics import PLANTS
from tests.ingest.topic_killing import killed_topics
from tests.ingest.topic_shop import TopicShop

KILLS = 12


@pytest.mark.parametrize("bug", [*PLANTS, "position apart"])
@pytest.mark.timeout(1200)
def test_a_planted_bug_is_found(broker: KafkaBroker, tmp_path: Path, bug: str) -> None:
    found = killed_topics(TopicShop(broker, tmp_path), tmp_path, 5, kills=KILLS, bug=bug)
    print(f"{bug}: {found.said()}: {found.problems[:2]}")
    assert found.problems != []
    # Rows are lost or doubled: no process that stops for another reason counts.
    assert any("in the lake" in problem or "at the source" in problem for problem in found.problems), found.problems
