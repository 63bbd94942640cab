"""The catalog of lakes on Azure and Google Cloud: what clients read by it from the emulators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.catalog.rest import RestCatalog

import objcat
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from objcat.serve.settings import ServerSettings
from tests.adoption.store_io import StoreIO
from tests.serve.clients import run_statements
from tests.serve.mirrors import MirroredRows, create
from tests.serve.serving import serving

ROWS = [{"id": 1, "name": "row 1"}, {"id": 3, "name": "row 3"}]


def mirrored(handle: ServerHandle) -> objcat.Lake:
    """A lake with a table of a merge, and its mirror."""
    lake = objcat.connect(f"{handle.url}/lake", handle.options)
    create(lake, "city.trips")
    rows = MirroredRows(lake, "city.trips")
    rows.append(1, 2)
    rows.append(3)
    rows.delete(2)
    return lake


def by_pyiceberg(handle: ServerHandle) -> dict[str, Any]:
    """How pyiceberg reaches an emulator."""
    if handle.scheme == "gs":
        return {"gcs.service.host": handle.endpoint, "gcs.oauth2.token": "any", "gcs.oauth2.token-expires-at": "4102444800000"}
    # Its own access to Azure is by adlfs, which is not among the packages of the tests.
    return {"py-io-impl": f"{StoreIO.__module__}.{StoreIO.__name__}"}


@pytest.mark.parametrize("server", ["azurite", "fake-gcs-server"])
def test_pyiceberg(server: ServerName, servers: Callable[[ServerName], ServerHandle], monkeypatch: pytest.MonkeyPatch) -> None:
    handle = servers(server).fresh_bucket()
    lake = mirrored(handle)
    monkeypatch.setattr(StoreIO, "store", lake.fileio, raising=False)
    with serving(lake, ServerSettings(cache_s=0)) as url:
        table = RestCatalog("lake", uri=url, **by_pyiceberg(handle)).load_table("city.trips")
        container = handle.url.removeprefix("az://")
        root = handle.url if handle.scheme == "gs" else f"abfss://{container}@{handle.options['account']}.dfs.core.windows.net"
        assert table.location().startswith(f"{root}/lake/tables/")
        assert sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == ROWS
        assert sorted(pl.scan_iceberg(table, reader_override="pyiceberg").collect().to_dicts(), key=lambda row: row["id"]) == ROWS


def test_duckdb_on_google_cloud(servers: Callable[[ServerName], ServerHandle], tmp_path: Path) -> None:
    """By keys of the store, as its documentation says. On Azure it takes the host of the account from the path, so no emulator."""
    handle = servers("fake-gcs-server").fresh_bucket()
    lake = mirrored(handle)
    host = handle.endpoint.removeprefix("http://")
    with serving(lake, ServerSettings(cache_s=0)) as url:
        (rows,) = run_statements(
            "duckdb",
            tmp_path / "duckdb",
            ["SELECT id, name FROM lake.city.trips ORDER BY id"],
            begin=[
                f"CREATE SECRET store (TYPE gcs, KEY_ID 'any', SECRET 'any', ENDPOINT '{host}', USE_SSL false, URL_STYLE 'path')",
                f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none', ACCESS_DELEGATION_MODE 'none')",
            ],
        )
    assert rows == [[row["id"], row["name"]] for row in ROWS]
