"""What tests of adoption share: an empty catalog of Iceberg, and an empty lake beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import objcat
from tests.adoption.foreign import iceberg_catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = iceberg_catalog(tmp_path)
    yield made
    made.close()


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    return objcat.connect(tmp_path)
