"""What was found of each planted bug is printed at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

found: list[str] = []
"""One line a bug: the property that broke, and the length of the shortest schedule that breaks it."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the code warns of in thousands of schedules is not worth reading."""
    logger = logging.getLogger("objcat")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if found:
        terminalreporter.section("planted bugs, found")
        for line in found:
            terminalreporter.write_line(line)
