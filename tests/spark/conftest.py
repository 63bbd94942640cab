"""What holds for every test on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from objcat.spark import frames, versions

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark 4.1 leaves the socket of every `collect` to the garbage collector; 4.3 closes it. PySpark 3.5 uses a deprecated library."""
    ignored = ["unclosed <socket:ResourceWarning", "Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"]
    if versions.VERSION < (4, 0):
        ignored.append("distutils Version classes are deprecated:DeprecationWarning")
    for item in items:
        if HERE in item.path.parents:
            for text in ignored:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{text}"))


@pytest.fixture(autouse=True, scope="session")
def of_spark_4() -> Iterator[None]:
    """Tests use what PySpark has for Arrow since version 4. On an older one it is what objcat itself uses there."""
    if versions.VERSION >= (4, 0):
        yield
        return
    create: Any = SparkSession.createDataFrame

    def made(session: SparkSession, data: Any, *args: Any, **options: Any) -> DataFrame:
        if not isinstance(data, pa.Table):
            return create(session, data, *args, **options)
        return versions.from_arrow(session, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataFrame, "toArrow", versions.to_arrow, raising=False)
        patch.setattr(SparkSession, "createDataFrame", made)
        yield


@pytest.fixture
def by_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No frame is so small that it comes to this process: Spark does with it what it does with large ones."""
    monkeypatch.setattr(frames, "ROWS_MAX", 0)
