"""Every schedule and every fault within the bounds of each cell: no property is ever broken, no cell has shrunk, no fault is left out."""

from __future__ import annotations

import pytest

from tests.explorer.cells import CELLS
from tests.explorer.engine import Cell
from tests.explorer.run import Explorer
from tests.explorer.story import tell


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name, marks=[pytest.mark.tier("all")] if cell.slow else []) for cell in CELLS])
def test_no_schedule_breaks_a_property(explorer: Explorer, cell: Cell) -> None:
    result = explorer.explore(cell)
    assert result.counterexample is None, tell(result.counterexample)
    assert result.states >= cell.states_min, f"{cell.name} has shrunk to {result.states} states"
    assert result.steps > 0, "no step was compared with a second run"


@pytest.mark.timeout(1800)
def test_every_fault_fired_at_every_call_site(explorer: Explorer) -> None:
    for cell in CELLS:
        if not cell.slow:
            explorer.explore(cell)
    coverage = explorer.universe.coverage
    assert len(coverage.possible) > 100
    assert not coverage.missed, f"never fired: {sorted((site, fault.name) for site, fault in coverage.missed)}"


def test_cells_have_names_of_their_own() -> None:
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names)
    assert all(len({actor.number for actor in cell.actors}) == len(cell.actors) for cell in CELLS)
