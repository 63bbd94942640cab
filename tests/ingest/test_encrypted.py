"""Connections by TLS, with users and passwords from the environment: what works, and what a wrong password or certificate says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devkit.databases import DatabaseUser, MariaDbServer
from devkit.paths import ROOT
from fileio.env import default_env
from fileio.errors import InvalidConfig
from objcat.errors import IngestStopped, SourceAway, SourceUnfit
from objcat.ingest.config import IngestConfig, parse_config
from objcat.ingest.handover import IngestState
from objcat.ingest.runner import Ingest
from objcat.ingest.sources import open_source
from tests.fileio.certificates import client_certificate, self_signed
from tests.ingest.maria_shop import MariaShop
from tests.ingest.shop import Shop
from tests.ingest.topic_shop import READER, READER_PASSWORD, TopicShop, json_source

WRONG = "not-the-password"
ANSWER_S_MAX = 15.0
"""Within so many seconds a connection that is wrong is said to be."""


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates that no server's is checked by."""
    path = tmp_path_factory.mktemp("other") / "ca.pem"
    self_signed(path)
    return path


@pytest.fixture(scope="module")
def client(certificates: Path) -> tuple[Path, Path]:
    """The certificate of a client that the servers know, and its key."""
    return client_certificate(certificates / "ca.pem", "mutual")


@contextmanager
def readable(certificates: Path, *users: str) -> Iterator[Path]:
    """The key and the certificate of a server, in a file that its user alone may read."""
    owner = DatabaseUser.find(*users)
    folder = Path(tempfile.mkdtemp(prefix="objcat-tls-"))
    try:
        folder.chmod(0o755)
        path = folder / "server.pem"
        path.write_bytes((certificates / "server.pem").read_bytes())
        path.chmod(0o600)
        os.chown(path, owner.uid, owner.gid)
        yield path
    finally:
        shutil.rmtree(folder)


def config_of(shop: Shop, **environment: str) -> IngestConfig:
    text = tomllib.loads(shop.config_path.read_text())
    return parse_config(text, path=str(shop.config_path), environment={**shop.environment, **environment})


def once(shop: Shop, **environment: str) -> IngestState:
    return Ingest(config_of(shop, **environment), shop.lake, open_source, env=default_env()).once()


def refusal(kind: type[Exception], shop: Shop, **environment: str) -> str:
    """What an ingest says that is refused in time. No password is in it."""
    began_s = time.monotonic()
    with pytest.raises(kind) as refused:
        once(shop, **environment)
    assert time.monotonic() - began_s < ANSWER_S_MAX
    said = str(refused.value)
    assert not any(secret in said for secret in (READER_PASSWORD, WRONG))
    return said


# ---- Kafka


def secure(
    topics: TopicShop, protocol: str, ca: Path, *, mechanism: str = "SCRAM-SHA-512", client: tuple[Path, Path] | None = None
) -> None:
    """Let the ingest connect by a listener of the broker."""
    options: dict[str, Any] = {"security.protocol": protocol, "ssl.ca.location": str(ca)}
    if client is not None:
        options |= {"ssl.certificate.location": str(client[0]), "ssl.key.location": str(client[1])}
    if protocol == "SASL_SSL":
        options |= {"sasl.mechanism": mechanism, "sasl.username": READER, "sasl.password": "${KAFKA_PASSWORD}"}
    said = "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in options.items())
    topics.configure(source=f"connect_s = 3\n{json_source()}\n[source.options]\n{said}")


@pytest.mark.parametrize(("protocol", "mechanism"), [("SSL", ""), ("SASL_SSL", "SCRAM-SHA-512"), ("SASL_SSL", "PLAIN")])
def test_a_broker_by_tls(topics: TopicShop, certificates: Path, protocol: str, mechanism: str) -> None:
    topics.make("items")
    topics.put("items", [{"id": 1, "n": 1, "text": "a"}])
    secure(topics, protocol, certificates / "ca.pem", mechanism=mechanism)
    secrets = {"BROKER": topics.broker.secure_connection(protocol), "KAFKA_PASSWORD": READER_PASSWORD}
    once(topics, **secrets)
    topics.put("items", [{"id": 2, "n": 2, "text": "b"}])
    once(topics, **secrets)
    assert topics.differences("items") == []
    shown = repr(config_of(topics, **secrets))
    assert READER_PASSWORD not in shown and topics.broker.secure_connection(protocol) not in shown


def test_a_broker_that_wants_a_certificate_of_its_clients(topics: TopicShop, certificates: Path, client: tuple[Path, Path]) -> None:
    topics.make("items")
    topics.put("items", [{"id": 1, "n": 1, "text": "a"}])
    there = {"BROKER": topics.broker.secure_connection("MUTUAL")}
    secure(topics, "SSL", certificates / "ca.pem")
    assert "certificate" in refusal(IngestStopped, topics, **there)
    secure(topics, "SSL", certificates / "ca.pem", client=client)
    once(topics, **there)
    topics.put("items", [{"id": 2, "n": 2, "text": "b"}])
    once(topics, **there)
    assert topics.differences("items") == []
    secure(topics, "SSL", certificates / "ca.pem", client=(client[0], client[1].with_name("none.key")))
    assert "ssl.key.location" in refusal(InvalidConfig, topics, **there)


def test_a_wrong_password_of_a_broker(topics: TopicShop, certificates: Path) -> None:
    topics.make("items")
    for mechanism in ("SCRAM-SHA-512", "PLAIN"):
        secure(topics, "SASL_SSL", certificates / "ca.pem", mechanism=mechanism)
        said = refusal(SourceUnfit, topics, BROKER=topics.broker.secure_connection("SASL_SSL"), KAFKA_PASSWORD=WRONG)
        assert "uthentication" in said and "Correct [source.options]" in said, said
    secrets = {"BROKER": topics.broker.secure_connection("SASL_SSL"), "KAFKA_PASSWORD": WRONG, "MASK_SECRET": "keyed"}
    for name in ("check", "once"):
        called = [sys.executable, "-m", "objcat.cli", "ingest", name, str(topics.config_path)]
        done = subprocess.run(called, cwd=ROOT, env={**os.environ, **secrets}, capture_output=True, text=True, check=False)
        shown = done.stdout + done.stderr
        assert done.returncode and "Correct [source.options]" in " ".join(shown.split()) and WRONG not in shown and "Traceback" not in shown


def test_a_wrong_certificate_of_a_broker(topics: TopicShop, other_ca: Path) -> None:
    topics.make("items")
    secure(topics, "SASL_SSL", other_ca)
    secrets = {"BROKER": topics.broker.secure_connection("SASL_SSL"), "KAFKA_PASSWORD": READER_PASSWORD}
    said = refusal(SourceUnfit, topics, **secrets)
    assert "certificate" in said and '"ssl.ca.location" in [source.options]' in said, said
    secure(topics, "SASL_SSL", other_ca.with_name("none.pem"))
    assert "ssl.ca.location" in refusal(InvalidConfig, topics, **secrets)


def test_a_listener_of_another_protocol(topics: TopicShop, certificates: Path) -> None:
    """A client without TLS at a port with it, and the other way around."""
    topics.make("items")
    topics.configure(source=f"connect_s = 3\n{json_source()}")
    assert "brokers of 'shop' were away" in refusal(SourceAway, topics, BROKER=topics.broker.secure_connection("SSL"))
    secure(topics, "SSL", certificates / "ca.pem")
    assert "SSL" in refusal(SourceAway, topics, BROKER=topics.broker.connection())


# ---- PostgreSQL


@pytest.fixture
def encrypted_shop(shop: Shop, certificates: Path) -> Iterator[Shop]:
    """A database whose server takes TLS too."""
    with readable(certificates, "postgres") as pem:
        for name, value in (("ssl_cert_file", pem), ("ssl_key_file", pem), ("ssl_ca_file", pem), ("ssl", "on")):
            shop.sql(f"alter system set {name} = '{value}'")
        shop.sql("select pg_reload_conf()")
        _wait_for(shop, "on")
        yield shop
        for name in ("ssl", "ssl_cert_file", "ssl_key_file", "ssl_ca_file"):
            shop.sql(f"alter system reset {name}")
        shop.sql("select pg_reload_conf()")
        _wait_for(shop, "off")


def _wait_for(shop: Shop, state: str) -> None:
    for _ in range(200):
        if shop.sql("show ssl") == [(state,)]:
            return
        shop.sql("select pg_sleep(0.05)")
    raise AssertionError(f"the server does not turn TLS {state}")


def by_tls(shop: Shop, ca: Path) -> dict[str, str]:
    return {"SHOP": f"{shop.environment['SHOP']} sslmode=verify-full sslrootcert={ca}"}


def test_postgres_by_tls(encrypted_shop: Shop, certificates: Path, other_ca: Path) -> None:
    shop = encrypted_shop
    shop.sql("create table items(id int primary key, n int); insert into items values (1, 1)")
    once(shop, **by_tls(shop, certificates / "ca.pem"))
    shop.sql("update items set n = 2; insert into items values (2, 2)")
    once(shop, **by_tls(shop, certificates / "ca.pem"))
    assert shop.differences("items") == []
    said = refusal(SourceAway, shop, **by_tls(shop, other_ca))
    assert "certificate verify failed" in said and "sslrootcert, sslcert) of `connection` in [source]" in said, said
    assert "does not exist" in refusal(SourceAway, shop, **by_tls(shop, other_ca.with_name("none.pem")))


@pytest.fixture
def mutual_user(encrypted_shop: Shop) -> Iterator[str]:
    """A user of PostgreSQL who connects by a certificate of that name alone."""
    shop, name = encrypted_shop, "mutual"
    rules = Path(shop.sql("show hba_file")[0][0])
    before = rules.read_text()
    rules.write_text(f"hostssl all {name} 127.0.0.1/32 cert\nhost all {name} 127.0.0.1/32 reject\n{before}")
    shop.sql(f"create role {name} superuser replication login; select pg_reload_conf()")
    yield name
    rules.write_text(before)
    shop.sql("select pg_reload_conf()")
    shop.sql(f"reassign owned by {name} to objcat; drop owned by {name}; drop role {name}")


def test_postgres_by_a_certificate_of_the_client(
    encrypted_shop: Shop, mutual_user: str, certificates: Path, client: tuple[Path, Path]
) -> None:
    shop = encrypted_shop
    shop.sql("create table items(id int primary key, n int); insert into items values (1, 1)")
    checked = by_tls(shop, certificates / "ca.pem")["SHOP"].replace("user=objcat", f"user={mutual_user}")
    assert "certificate" in refusal(SourceAway, shop, SHOP=checked)
    there = {"SHOP": f"{checked} sslcert={client[0]} sslkey={client[1]}"}
    once(shop, **there)
    shop.sql("update items set n = 2; insert into items values (2, 2)")
    once(shop, **there)
    assert shop.differences("items") == []
    other = there["SHOP"].replace(str(client[1]), str(client[1].with_name("none.key")))
    assert "none.key" in refusal(SourceAway, shop, SHOP=other)


def test_postgres_without_tls(shop: Shop, certificates: Path) -> None:
    assert "does not support SSL" in refusal(SourceAway, shop, **by_tls(shop, certificates / "ca.pem"))


# ---- MariaDB


@pytest.fixture(scope="module")
def encrypted_maria(certificates: Path) -> Iterator[MariaDbServer]:
    with readable(certificates, "mysql") as pem, MariaDbServer(ssl_cert=str(pem), ssl_key=str(pem), ssl_ca=str(pem)) as server:
        yield server


def with_ca(shop: Shop, ca: Path | str, *, certificate: Path | None = None, key: Path | None = None) -> None:
    shop.configure()
    given = {"tls_ca": ca, "tls_certificate": certificate, "tls_key": key}
    said = "".join(f'{name} = "{path}"\n' for name, path in given.items() if path is not None)
    shop.config_path.write_text(shop.config_path.read_text().replace("server_id =", f"{said}server_id ="))


def test_mariadb_by_tls(encrypted_maria: MariaDbServer, tmp_path: Path, certificates: Path, other_ca: Path) -> None:
    shop = MariaShop(encrypted_maria, tmp_path)
    try:
        shop.sql(f"create user reader@'127.0.0.1' identified by '{READER_PASSWORD}' require ssl; grant all on *.* to reader@'127.0.0.1'")
        shop.sql("create table items(id int primary key, n int); insert into items values (1, 1)")
        there = {"SHOP": f"mysql://reader:{READER_PASSWORD}@127.0.0.1:{encrypted_maria.port}"}
        once(shop, **there)  # A server that has TLS is spoken to by it, and not checked.
        with_ca(shop, certificates / "ca.pem")
        once(shop, **there)
        shop.sql("update items set n = 2; insert into items values (2, 2)")
        once(shop, **there)
        assert shop.differences("items") == []
        wrong = {"SHOP": f"mysql://reader:{WRONG}@127.0.0.1:{encrypted_maria.port}"}
        assert "Correct `connection` in [source]" in refusal(SourceUnfit, shop, **wrong)
        with_ca(shop, other_ca)
        assert "CERTIFICATE_VERIFY_FAILED" in (said := refusal(SourceUnfit, shop, **there)) and "Let tls_ca in [source]" in said
        with_ca(shop, other_ca.with_name("none.pem"))
        assert "tls_ca of [source]" in refusal(InvalidConfig, shop, **there)
    finally:
        shop.close()


def test_mariadb_by_a_certificate_of_the_client(
    encrypted_maria: MariaDbServer, tmp_path: Path, certificates: Path, client: tuple[Path, Path]
) -> None:
    shop, ca = MariaShop(encrypted_maria, tmp_path), certificates / "ca.pem"
    try:
        shop.sql("create user mutual@'127.0.0.1' require x509; grant all on *.* to mutual@'127.0.0.1'")
        shop.sql("create table items(id int primary key, n int); insert into items values (1, 1)")
        there = {"SHOP": f"mysql://mutual@127.0.0.1:{encrypted_maria.port}"}
        with_ca(shop, ca)
        assert "tls_certificate where the user needs one" in refusal(SourceUnfit, shop, **there)
        with_ca(shop, ca, certificate=client[0], key=client[1])
        once(shop, **there)
        shop.sql("update items set n = 2; insert into items values (2, 2)")
        once(shop, **there)
        assert shop.differences("items") == []
        both = tmp_path / "both.pem"
        both.write_bytes(client[0].read_bytes() + client[1].read_bytes())
        with_ca(shop, ca, certificate=both)
        once(shop, **there)
        with_ca(shop, ca, certificate=client[0])
        assert "tls_certificate and tls_key of [source]" in refusal(InvalidConfig, shop, **there)
        with_ca(shop, ca, key=client[1])
        assert "tls_key without tls_certificate" in refusal(InvalidConfig, shop, **there)
    finally:
        shop.close()


def test_mariadb_without_tls(maria: MariaShop, certificates: Path) -> None:
    with_ca(maria, certificates / "ca.pem")
    assert "Let tls_ca in [source]" in refusal(IngestStopped, maria)
