"""What holds for every test on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from objcat.spark import frames

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark 4.1 leaves the socket of every `collect` to the garbage collector; 4.3 closes it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture
def by_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No frame is so small that it comes to this process: Spark does with it what it does with large ones."""
    monkeypatch.setattr(frames, "ROWS_MAX", 0)
