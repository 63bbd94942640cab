"""How hard tests try: less by default than with `--all`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

ALL_VARIABLE = "OBJCAT_TEST_ALL"
"""Set by tests/conftest.py when `--all` is given: modules are read after that."""


def effort(by_default: int, *, with_all: int) -> int:
    """A number of examples, steps or rounds."""
    return with_all if os.environ.get(ALL_VARIABLE) else by_default


def few(values: Iterable[Any], by_default: int) -> list[ParameterSet]:
    """Parameters of a test of which all but the first ones wait for `--all`."""
    return [pytest.param(value, marks=[] if number < by_default else [pytest.mark.slow]) for number, value in enumerate(values)]
