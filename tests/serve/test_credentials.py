"""Credentials of the store for clients that ask for them: what is given to whom, and what reads with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyiceberg.catalog.rest import RestCatalog

import objcat
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.delegation import DelegatedCredentials
from fileio.errors import InvalidConfig, PermissionDenied, Unsupported
from fileio.memory import MemoryBackend
from fileio.options import Secret
from fileio.registry import open_store
from fileio.store import FileIO
from objcat.errors import InvalidInput
from objcat.serve import delegation
from objcat.serve.app import create_app
from objcat.serve.settings import ServerSettings
from tests.fileio.iam_store import READERS
from tests.serve.http import AppClient
from tests.serve.mirrors import MirroredRows, create, create_plain
from tests.serve.serving import serving

ASKS = {"X-Iceberg-Access-Delegation": "vended-credentials,remote-signing"}
ROLE = "arn:aws:iam::123456789012:role/readers"
ENDS_MS = 4_000_000_000_000
TRIPS = "/v1/namespaces/city/tables/trips"


class Delegations:
    """Stands for the store's delegation, and remembers what was asked."""

    def __init__(self, options: dict[str, Any], ends_ms: int = ENDS_MS) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._options, self._ends_ms = options, ends_ms

    def __call__(self, store: Any, prefixes: Sequence[str], *, lifetime_s: int, role: str | None) -> DelegatedCredentials:
        self.asked.append((*prefixes, str(lifetime_s), str(role)))
        return DelegatedCredentials(options=self._options, expires_ms=self._ends_ms)


OF_S3 = {"access_key": "AKIA", "secret_key": Secret("hidden-secret"), "session_token": Secret("hidden-token")}


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path)
    create(lake, "city.trips")
    return lake


def app_of(lake: objcat.Lake, **settings: Any) -> AppClient:
    return AppClient(create_app(lake.fileio, ServerSettings(cache_s=0, credentials_s=900, **settings)))


def test_they_are_given_where_they_are_asked_for(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Delegations(OF_S3)
    monkeypatch.setattr(delegation, "delegate_reading", asked)
    monkeypatch.setattr(delegation, "scheme_of", lambda _: ("s3", None))
    client = app_of(lake, credentials_role=ROLE)
    prefix = lake._context.binding_of("city.trips").binding.prefix
    plain = client.get(TRIPS).json()
    assert plain["config"] == {} and "storage-credentials" not in plain
    assert asked.asked == []
    answer = client.get(TRIPS, headers=ASKS)
    (found,) = answer.json()["storage-credentials"]
    assert found["prefix"] == f"{lake.fileio.url}/{prefix}/"
    assert (
        found["config"]
        == answer.json()["config"]
        == {
            "s3.access-key-id": "AKIA",
            "s3.secret-access-key": "hidden-secret",
            "s3.session-token": "hidden-token",
            "s3.session-token-expires-at-ms": str(ENDS_MS),
        }
    )
    assert answer.headers["Cache-Control"] == "no-store" and "ETag" not in answer.headers
    assert asked.asked == [(prefix, "900", ROLE)]
    again = client.get(f"{TRIPS}/credentials")
    assert again.json() == {"storage-credentials": [found]}
    assert len(asked.asked) == 1, "they are used until half of their time is over"
    assert "hidden" not in client.get("/metrics").text


def test_a_client_that_has_the_newest_table_gets_new_credentials_all_the_same(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation, "delegate_reading", Delegations(OF_S3))
    monkeypatch.setattr(delegation, "scheme_of", lambda _: ("s3", None))
    client = app_of(lake)
    etag = client.get(TRIPS).headers["ETag"]
    assert client.get(TRIPS, headers={"If-None-Match": etag}).status_code == 304
    assert client.get(TRIPS, headers={"If-None-Match": etag, **ASKS}).status_code == 200


def test_credentials_whose_time_is_half_over_are_asked_for_again(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Delegations(OF_S3, ends_ms=lake.fileio.env.now_ms() - 1)
    monkeypatch.setattr(delegation, "delegate_reading", asked)
    monkeypatch.setattr(delegation, "scheme_of", lambda _: ("s3", None))
    client = app_of(lake)
    for _ in range(3):
        client.get(TRIPS, headers=ASKS)
    assert len(asked.asked) == 3


def test_off_by_default(lake: objcat.Lake) -> None:
    client = AppClient(create_app(lake.fileio, ServerSettings(cache_s=0)))
    assert client.get(TRIPS, headers=ASKS).json()["config"] == {}
    refused = client.get(f"{TRIPS}/credentials")
    assert (refused.status_code, refused.json()["error"]["type"]) == (406, "UnsupportedOperationException")
    assert not any("credentials" in endpoint for endpoint in client.get("/v1/config").json()["endpoints"])
    given = app_of(lake).get("/v1/config").json()["endpoints"]
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials" in given


def test_without_the_token_nothing_is_given(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Delegations(OF_S3)
    monkeypatch.setattr(delegation, "delegate_reading", asked)
    client = app_of(lake, tokens=(Secret("the-token-of-this-test"),))
    assert client.get(TRIPS, headers=ASKS).status_code == client.get(f"{TRIPS}/credentials").status_code == 401
    assert asked.asked == []


def test_a_refusal_of_the_store_is_told_in_the_log_alone(
    lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: Any, **__: Any) -> DelegatedCredentials:
        raise PermissionDenied("STS refused the role of the operator")

    monkeypatch.setattr(delegation, "delegate_reading", refuses)
    answer = app_of(lake).get(TRIPS, headers=ASKS)
    assert answer.status_code == 500 and "operator" not in answer.text
    assert "STS refused the role of the operator" in caplog.text


def test_each_format_of_a_client() -> None:
    token = DelegatedCredentials(options={"access_token": Secret("t")}, expires_ms=7)
    assert delegation.properties_of("gs", token) == {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": "7"}
    sas = DelegatedCredentials(options={"account": "shop", "sas_token": Secret("sv=1")}, expires_ms=7)
    assert delegation.properties_of("az", sas) == {
        "adls.sas-token.shop.dfs.core.windows.net": "sv=1",
        "adls.sas-token-expires-at-ms.shop.dfs.core.windows.net": "7",
    }


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Choose 900 to 43200"):
        ServerSettings(credentials_s=60)
    with pytest.raises(InvalidInput, match="none are given out"):
        ServerSettings(credentials_role=ROLE)
    settings = ServerSettings(credentials_s=900)
    with pytest.raises(Unsupported, match="was not opened from a URL"):
        create_app(FileIO(MemoryBackend("x")), settings)
    lake = open_store("s3://bucket/lake", {"region": "x"})
    with pytest.raises(InvalidConfig, match="would not read its mirror"):
        create_app(lake, settings, others=open_store("s3://bucket/side", {"region": "x"}))
    assert create_app(lake, settings, others=open_store("s3://bucket/lake/_mirrors", {"region": "x"})) is not None
    azure = open_store("az://box/lake", {"account": "a"})
    with pytest.raises(InvalidConfig, match="for one folder"):
        create_app(azure, settings, others=open_store("az://box/lake/_mirrors", {"account": "a"}))


def test_a_mirror_apart_is_read_by_the_same_credentials(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    create_plain(lake, "city.plain").upsert([{"id": 1, "name": "a"}])
    asked = Delegations(OF_S3)
    monkeypatch.setattr(delegation, "delegate_reading", asked)
    monkeypatch.setattr(delegation, "scheme_of", lambda _: ("s3", None))
    side = lake.fileio.child("_mirrors")
    app = AppClient(create_app(lake.fileio, ServerSettings(cache_s=0, credentials_s=900), others=side))
    binding = lake._context.binding_of("city.plain").binding
    found = app.get("/v1/namespaces/city/tables/plain", headers=ASKS).json()["storage-credentials"]
    assert [one["prefix"].removeprefix(lake.fileio.url) for one in found] == [f"/{binding.prefix}/", f"/_mirrors/{binding.table}/"]
    assert asked.asked == [(binding.prefix, f"_mirrors/{binding.table}", "900", "None")]


def test_a_client_reads_one_table_and_no_other(iam_store: ServerHandle) -> None:
    """The store enforces what it was asked for: with the credentials of one table, another one cannot be read."""
    handle = iam_store
    lake = objcat.connect(f"{handle.url}/lake", handle.options)
    for name in ("city.trips", "city.other"):
        create(lake, name)
        MirroredRows(lake, name).append(1, 2)
    with serving(lake, ServerSettings(cache_s=0, credentials_s=900, credentials_role=READERS)) as url:
        catalog = RestCatalog("lake", uri=url)
        trips, other = (catalog.load_table(name) for name in ("city.trips", "city.other"))
        assert trips.scan().to_arrow().column("id").to_pylist() == other.scan().to_arrow().column("id").to_pylist() == [1, 2]
        assert trips.io.new_input(trips.metadata_location).exists()
        with pytest.raises(OSError, match="ACCESS_DENIED"):
            trips.io.new_input(other.current_snapshot().manifest_list).open()
        plain = RestCatalog("lake", uri=url, **{"header.X-Iceberg-Access-Delegation": "none"}).load_table("city.trips")
        assert "s3.session-token" not in plain.io.properties


@pytest.mark.parametrize("role", [ROLE, None])
def test_a_client_reads_with_credentials_of_sts(servers: Callable[[ServerName], ServerHandle], role: str | None) -> None:
    """moto answers as STS does, and does not hold anybody to a policy; what the policy says is tested beside `fileio`."""
    handle = servers("moto").fresh_bucket()
    lake = objcat.connect(f"{handle.url}/lake", handle.options)
    create(lake, "city.trips")
    MirroredRows(lake, "city.trips").append(1, 2)
    settings = ServerSettings(cache_s=0, credentials_s=900, credentials_role=role)
    with serving(lake, settings) as url:
        catalog = RestCatalog("lake", uri=url)
        table = catalog.load_table("city.trips")
        assert table.io.properties["s3.session-token"]
        assert table.io.properties["s3.access-key-id"] not in (handle.options["access_key"], "")
        assert table.scan().to_arrow().column("id").to_pylist() == [1, 2]
        answer = httpx.get(f"{url}{TRIPS}/credentials").json()
    (found,) = answer["storage-credentials"]
    assert found["config"]["s3.access-key-id"] == table.io.properties["s3.access-key-id"]
    assert handle.options["secret_key"] not in json.dumps(answer)
