"""A real PostgreSQL for the tests of ingest, and a database of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.databases import PostgresServer
from tests.conftest import check_needed
from tests.ingest.shop import Shop


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server that tests share.

    A session with `synchronous_commit = on` waits for a standby that never comes: its commits are in the log, and no snapshot sees them.
    """
    check_needed("postgres")
    with PostgresServer(wal_sender_timeout="10s", synchronous_standby_names="nobody", synchronous_commit="local") as server:
        yield server


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    """A database with nothing in it, a configuration that follows all its tables, and a lake."""
    made = Shop(postgres, tmp_path)
    yield made
    made.close()
