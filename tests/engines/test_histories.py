"""Histories hold what their cells promise, and can be repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.cells import CELLS
from tests.engines.histories import COMMITS, History
from tests.engines.rows import compare


def test_a_history_is_drawn_by_its_seed(tmp_path: Path) -> None:
    told = []
    for number, seed in enumerate((1, 1, 2)):
        history = History(CELLS["commit-order"], seed, tmp_path / str(number))
        history.run(8)
        told.append(history.story)
    assert told[0] == told[1] != told[2]


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_has_a_long_history(name: str, tmp_path: Path) -> None:
    history = History(CELLS[name], 3, tmp_path)
    history.run()
    assert history.newest >= COMMITS >= 40
    for slot in history.readable():
        assert compare(history.truths[slot], history.table.scan(as_of=slot).to_arrow()) is None, f"slot {slot} changed after it"
    if name != "cleaned":
        assert history.readable() == sorted(history.truths)
