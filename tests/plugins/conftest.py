"""What the tests of plug-ins share: the examples, installed; and entry points as if packages had them."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from tests.plugins.examples import install


@pytest.fixture(scope="session")
def oldest_first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed compaction strategy of `examples/`."""
    return install("objcat-oldest-first", tmp_path_factory.mktemp("oldest-first"))


@pytest.fixture(scope="session")
def sql_catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed catalog of names of `examples/`."""
    return install("objcat-sql-catalog", tmp_path_factory.mktemp("sql-catalog"))


@pytest.fixture(scope="session")
def sqlite_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed index of `examples/`."""
    return install("objcat-sqlite-index", tmp_path_factory.mktemp("sqlite-index"))


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points that are found. A test adds its own."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: EntryPoints(p for p in points if p.group == group))
    return points
