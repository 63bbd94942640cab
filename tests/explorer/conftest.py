"""The explorer's cells are run once a session; their bounds and sizes are printed at its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.explorer.run import Explorer
from tests.explorer.story import summary

_explorer = Explorer()


@pytest.fixture(scope="session")
def explorer() -> Explorer:
    """The cells of this session, run when first asked for."""
    return _explorer


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
