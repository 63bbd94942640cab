"""Real servers for the tests of ingest, with a database or topics of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.databases import MariaDbServer, PostgresServer
from devkit.kafka import KafkaBroker, KafkaConnect, KafkaSecurity
from devkit.schema_registry import SchemaRegistry
from tests.conftest import check_needed
from tests.fileio.certificates import self_signed
from tests.ingest.landing import Landing
from tests.ingest.maria_shop import MariaShop
from tests.ingest.shop import Shop
from tests.ingest.topic_shop import READER, READER_PASSWORD, TopicShop


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


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    """A folder with nothing in it, a configuration that takes its files, and a lake."""
    return Landing(tmp_path)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `server.pem`, the key and the certificate of servers, and `ca.pem`, by which it is checked."""
    folder = tmp_path_factory.mktemp("certificates")
    self_signed(folder / "ca.pem")
    return folder


@pytest.fixture(scope="session")
def broker(certificates: Path) -> Iterator[KafkaBroker]:
    """The broker that tests share. Each uses topics of its own."""
    check_needed("kafka")
    with KafkaBroker(security=KafkaSecurity(certificates / "server.pem", READER, READER_PASSWORD)) as started:
        yield started


@pytest.fixture(scope="session")
def connect(broker: KafkaBroker) -> Iterator[KafkaConnect]:
    """The worker of Kafka Connect that tests share. Each uses connectors of its own."""
    check_needed("kafka")
    with KafkaConnect(broker) as started:
        yield started


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """A schema registry with nothing in it."""
    with SchemaRegistry() as started:
        yield started


@pytest.fixture
def topics(broker: KafkaBroker, tmp_path: Path) -> Iterator[TopicShop]:
    """Topics of one's own, a configuration that follows all of them, and a lake."""
    made = TopicShop(broker, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """The MariaDB that tests share."""
    check_needed("mariadb")
    with MariaDbServer() as server:
        yield server


@pytest.fixture
def maria(mariadb: MariaDbServer, tmp_path: Path) -> Iterator[MariaShop]:
    """A shop in MariaDB."""
    made = MariaShop(mariadb, tmp_path)
    yield made
    made.close()
