"""Rows that a shuffle has mixed, in the order of their frame again."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from objcat.tasks import shuffle_order
from objcat.tasks.shuffle_order import POSITION, in_frame_order


def sent(rng: random.Random, tasks: int, rows_max: int) -> list[list[int]]:
    """Positions of the rows that each task sends."""
    return [
        [(task << 33) + row for row in sorted(rng.sample(range(rows_max * 3), rng.randrange(rows_max)))]
        for task in rng.sample(range(50), tasks)
    ]


def arrived(rng: random.Random, blocks: list[list[int]]) -> Iterator[pa.RecordBatch]:
    """What each task sends by itself in its order, in batches that do not end where it ends, some of them empty."""
    left = [list(block) for block in blocks]
    rows = []
    while any(left):
        block = rng.choice([block for block in left if block])
        count = rng.randint(1, len(block))
        rows += block[:count]
        del block[:count]
    while rows:
        count = rng.choice([0, 1, 7, 300])
        yield pa.RecordBatch.from_pydict({"text": [str(at) for at in rows[:count]], POSITION: pa.array(rows[:count], pa.int64())})
        del rows[:count]


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_rows_come_in_the_order_of_their_frame(monkeypatch: pytest.MonkeyPatch, seed: int, spilled: bool) -> None:
    if spilled:
        monkeypatch.setattr(shuffle_order, "ARRIVED_BYTES_MAX", 2_000)
    rng = random.Random(seed)
    blocks = sent(rng, tasks=rng.randint(1, 9), rows_max=rng.choice([3, 1500]))
    batches = list(in_frame_order(arrived(rng, blocks)))
    found = [text for batch in batches for text in batch.column("text").to_pylist()]
    assert found == [str(at) for block in sorted(blocks, key=lambda block: block[:1]) for at in block]
    assert all(batch.schema.names == ["text"] for batch in batches)
    assert all(batch.num_rows >= 1000 for batch in batches[:-1])


@pytest.mark.parametrize("spilled", [False, True])
def test_rows_that_come_in_no_order_are_sorted(monkeypatch: pytest.MonkeyPatch, spilled: bool) -> None:
    if spilled:
        monkeypatch.setattr(shuffle_order, "ARRIVED_BYTES_MAX", 2_000)
    rng = random.Random(1)
    rows = [(task << 33) + row for task in range(5) for row in range(700)]
    mixed = rng.sample(rows, len(rows))
    found = [text for batch in in_frame_order(arrived(rng, [[at] for at in mixed])) for text in batch.column("text").to_pylist()]
    assert found == list(map(str, rows))
