"""Random queries over random histories: after each refresh, a derived table is what its query gives at the slots that the refresh names."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from tests.derived.histories import Sources, check_equal, drawn_query
from tests.effort import seeds

QUERIES = 5
ROUNDS = 6


@pytest.mark.parametrize("seed", seeds(3, integration=12, with_all=200))
def test_a_refresh_gives_what_the_query_gives(seed: int) -> None:
    drawn = random.Random(seed)
    lake = objcat.Lake(FileIO(MemoryBackend()))
    sources = Sources(drawn, lake)
    queries = {}
    for number in range(QUERIES):
        name = f"derived.d{number}"
        queries[name] = drawn_query(drawn)
        lake.create_derived(name, queries[name].text, key=queries[name].key)
        check_equal(lake, name, queries[name], lake.refresh_derived(name))
    for _ in range(ROUNDS):
        for _ in range(drawn.randrange(1, 5)):
            sources.change()
        for name, query in queries.items():
            # Some refreshes are late, and catch up.
            if drawn.random() < 0.8:
                check_equal(lake, name, query, lake.refresh_derived(name))
    for name, query in queries.items():
        check_equal(lake, name, query, lake.refresh_derived(name))


def test_the_drawn_queries_are_followed_in_every_way() -> None:
    """The generator does not draw by chance what is computed as a whole only."""
    ways: Counter[str] = Counter()
    lake = objcat.Lake(FileIO(MemoryBackend()))
    drawn = random.Random(1)
    sources = Sources(drawn, lake)
    for number in range(30):
        query = drawn_query(drawn)
        lake.create_derived(f"d{number}", query.text, key=query.key)
    for _ in range(10):
        sources.change()
    for number in range(30):
        ways[lake.refresh_derived(f"d{number}").way or "nothing"] += 1
    assert ways["rows"] >= 5 and ways["groups"] >= 5 and ways["whole"] >= 1
