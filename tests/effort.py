"""How hard tests try. `tests/tiers.toml` says which tests run when; this is for what one test does, and for parameters that wait."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

ALL_VARIABLE = "OBJCAT_TEST_ALL"
"""Set by tests/conftest.py when `--all` is given: modules are read after that."""
SEED_VARIABLE = "OBJCAT_TEST_SEED"
"""The seed of a run with `--all`, which the head of the run prints."""
INTEGRATION = pytest.mark.tier("integration")
ALL = pytest.mark.tier("all")


def effort(by_default: int, *, with_all: int) -> int:
    """A number of examples, steps or rounds."""
    return with_all if os.environ.get(ALL_VARIABLE) else by_default


def few(values: Iterable[Any], by_default: int, *, integration: int = 0) -> list[ParameterSet]:
    """Parameters of a test: so many run by default, so many with `--integration`, and the rest with `--all`."""

    def marks(number: int) -> list[pytest.MarkDecorator]:
        if number < by_default:
            return []
        return [INTEGRATION if number < integration else ALL]

    return [pytest.param(value, marks=marks(number)) for number, value in enumerate(values)]


def seeds(by_default: int, *, integration: int = 0, with_all: int) -> list[ParameterSet]:
    """Seeds of a test: from 0 on, so that a run repeats; with `--all` the rest is drawn, and every run has others."""
    repeated = max(by_default, integration)
    drawn = random.Random(os.environ.get(SEED_VARIABLE))
    fresh = [drawn.randrange(1_000, 1 << 31) for _ in range(with_all - repeated)] if os.environ.get(ALL_VARIABLE) else []
    return few([*range(repeated), *fresh], by_default, integration=integration)
