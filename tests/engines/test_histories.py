"""Histories hold what their cells promise, and can be repeated."""

from __future__ import annotations

from pathlib import Path

from tests.engines.cells import CELLS
from tests.engines.histories import COMMITS, History
from tests.engines.matrix import MirroredHistory
from tests.engines.rows import compare


def test_a_history_is_drawn_by_its_seed(tmp_path: Path) -> None:
    told = []
    for number, seed in enumerate((1, 1, 2)):
        history = History(CELLS["commit-order"], seed, tmp_path / str(number))
        history.run(8)
        told.append(history.story)
    assert told[0] == told[1] != told[2]


def test_histories_are_long_and_no_slot_changes_after_it(histories: list[MirroredHistory]) -> None:
    """Once for each kind: its other history differs by the mirror alone."""
    for history in [mirrored.history for mirrored in histories if "delta" in mirrored.shown]:
        name = history.cell.name
        assert history.newest >= COMMITS >= 40
        for slot in history.readable():
            found = history.table.scan(as_of=slot).to_arrow()
            assert compare(history.truths[slot], found) is None, f"{name}: slot {slot} changed after it"
        assert name == "cleaned" or history.readable() == sorted(history.truths)
