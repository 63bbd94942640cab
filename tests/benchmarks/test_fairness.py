"""The page that says how each side is configured says what the code does."""

from __future__ import annotations

from benchmarks.peers import PEERS, SIDES
from benchmarks.peers.fairness import NOTES, PAGE, written
from devkit.paths import ROOT


def test_the_page_is_what_the_code_that_runs_says():
    page = (ROOT / PAGE).read_text()
    assert written(page) == page, "run ./dev bench notes"


def test_every_side_but_objcat_has_its_notes():
    assert set(NOTES) == {side.name for side in SIDES.values() if side.role != "objcat"}
    assert set(PEERS) <= set(NOTES)
    assert all(notes.why and notes.undone for notes in NOTES.values())
