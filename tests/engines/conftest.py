"""The engines that read mirrors, each a process that starts when it is first asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
