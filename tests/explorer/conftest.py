"""The explorer's cells are run once a session; their bounds and sizes are printed at its end."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from devkit.runs import SHARED_VARIABLE
from tests.explorer.cells import CELLS
from tests.explorer.engine import Cell
from tests.explorer.run import Explorer
from tests.explorer.story import summary

_explorer = Explorer()


@pytest.fixture(scope="session")
def explorer(request: pytest.FixtureRequest) -> Iterator[Explorer]:
    """The cells of this session. When there are many, two processes explore them, unless another run of tests has the second core."""
    wanted: dict[str, Cell] = {}
    for item in request.session.items:
        named = getattr(item, "callspec", None)
        if named is not None and isinstance(named.params.get("cell"), Cell):
            wanted[named.params["cell"].name] = named.params["cell"]
        elif item.name == "test_every_fault_fired_at_every_call_site":
            wanted |= {cell.name: cell for cell in CELLS if not cell.slow}
    if len(wanted) > 10 and not os.environ.get(SHARED_VARIABLE):
        _explorer.begin(list(wanted.values()))
    yield _explorer
    _explorer.close()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the code warns of in thousands of schedules is not worth reading."""
    logger = logging.getLogger("objcat")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _explorer.results:
        return
    terminalreporter.section("explorer: every schedule within these bounds")
    for result in _explorer.results.values():
        terminalreporter.write_line(summary(result))
    coverage = _explorer.universe.coverage
    states = sum(result.states for result in _explorer.results.values())
    terminalreporter.write_line(f"{len(_explorer.results)} cells, {states} states; faults x call sites fired: {len(coverage.fired)}")
