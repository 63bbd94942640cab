"""Histories at random: deltalake and the mirror itself read at every version the rows of that slot, whichever process wrote it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fileio.registry import open_store
from tests.effort import seeds
from tests.mirror.delta.synthetic import History, read_by_deltalake


def history(path: Path, folder: str = "") -> History:
    return History(open_store(path.as_uri()), folder)


@pytest.mark.parametrize("seed", seeds(1, integration=10, with_all=50))
def test_every_version_has_the_rows_of_its_slot(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table = history(tmp_path, rng.choice(["", "mirrors/5f0c1d2e3a4b/"]))
    mirror = table.mirror()
    mirror.write(table.begin())
    for _ in range(40):
        if rng.random() < 0.2:
            mirror = table.mirror()
        change = table.draw(rng)
        before = mirror.newest()
        assert before is not None and before.slot == change.slot - 1
        mirror.write(change)
        for one in (mirror, table.mirror()):
            newest = one.newest()
            assert newest is not None and (newest.slot, newest.txn) == (change.slot, change.txn)
            assert one.live_files() == {path: len(stored.live) for path, stored in table.files.items()}
            masked = one.masked(list(table.every))
            assert {path: set(rows.tolist()) for path, rows in masked.items()} == {
                path: stored.masked for path, stored in table.files.items() if stored.masked
            }
    for slot, rows in table.rows_at.items():
        assert read_by_deltalake(table.url, slot) == rows, slot
    assert read_by_deltalake(table.url) == table.rows_at[table.slot]
