"""The engines that read mirrors, each a process that starts when it is first asked."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.effort import ALL_VARIABLE, SEED_VARIABLE
from tests.engines.cells import CELLS, CHIEF
from tests.engines.matrix import MirroredHistory, write_histories
from tests.engines.process import Engines, running_engines
from tests.engines.written import WrittenTable, written_tables


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    """Engines by name."""
    with running_engines() as running:
        yield running


@pytest.fixture(scope="session")
def written(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> dict[str, WrittenTable]:
    """Tables that Spark wrote, by kind."""
    return written_tables(engines, tmp_path_factory.mktemp("written"))


@pytest.fixture(scope="session")
def histories(tmp_path_factory: pytest.TempPathFactory) -> list[MirroredHistory]:
    """The chief kinds of histories, with each kind of mirror; with `--all` every kind, of a seed that is drawn."""
    is_all = os.environ.get(ALL_VARIABLE)
    seed = random.Random(os.environ[SEED_VARIABLE]).randrange(1 << 31) if is_all else 1
    return list(write_histories(seed, tmp_path_factory.mktemp("histories"), CELLS if is_all else CHIEF))
