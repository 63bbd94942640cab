"""Adoption from object stores: the lake's own options reach the readers of the other formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import objcat
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from tests.adoption.foreign import plain
from tests.adoption.store_io import StoreIO

ROWS = pa.table({"id": list(range(6)), "city": ["Oslo", "Zürich", None, "a/b", "Oslo", "東京"]})


def is_adopted(lake: objcat.Lake, name: str) -> None:
    table = lake.table(name)
    assert plain(table.scan().to_arrow()) == plain(ROWS)
    table.upsert(pa.table({"id": [2, 9], "city": ["Rome", "Bern"]}))
    table.maintenance.compact()
    table.maintenance.clean(keep_slots=1)
    assert [row["city"] for row in plain(table.scan().to_arrow())] == ["Oslo", "Zürich", "Rome", "a/b", "Oslo", "東京", "Bern"]


@pytest.mark.parametrize("server", ["versitygw", "azurite", "fake-gcs-server"])
def test_delta(server: ServerName, servers: Callable[[ServerName], ServerHandle], tmp_path: Path) -> None:
    write_deltalake(tmp_path, ROWS, partition_by=["city"])
    handle = servers(server)
    lake = objcat.connect(f"{handle.url}/adopted-{server}-delta", handle.options)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            lake.fileio.put(f"old/{path.relative_to(tmp_path).as_posix()}", path.read_bytes())
    assert lake.adopt_delta(f"{lake.fileio.url}/old", "t", key=["id"]).files_named == 5
    is_adopted(lake, "t")


def test_iceberg_as_pyiceberg_writes_it_to_s3(servers: Callable[[ServerName], ServerHandle], tmp_path: Path) -> None:
    handle = servers("versitygw")
    place = f"{handle.url}/adopted-iceberg"
    lake = objcat.connect(place, handle.options)
    settings = {
        "s3.endpoint": handle.endpoint,
        "s3.access-key-id": handle.options["access_key"],
        "s3.secret-access-key": handle.options["secret_key"],
        "s3.region": handle.options.get("region", "us-east-1"),
    }
    catalog = SqlCatalog("tests", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"{place}/warehouse", **settings)
    catalog.create_namespace("db")
    foreign = catalog.create_table("db.t", ROWS.schema)
    foreign.append(ROWS)
    assert lake.adopt_iceberg(foreign, "t", key=["id"]).files_named == 1
    assert lake.adopt_iceberg(f"{place}/warehouse/db/t", "again", key=["id"]).rows == 6
    is_adopted(lake, "t")
    catalog.close()


@pytest.mark.parametrize("server", ["azurite", "fake-gcs-server"])
def test_iceberg(
    server: ServerName, servers: Callable[[ServerName], ServerHandle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locations as engines write them: on Azure with the account in the host name."""
    handle = servers(server)
    lake = objcat.connect(f"{handle.url}/adopted-{server}-iceberg", handle.options)
    place = lake.fileio.url
    if handle.scheme == "az":
        container, _, path = place.removeprefix("az://").partition("/")
        place = f"abfss://{container}@{handle.options['account']}.dfs.core.windows.net/{path}"
    monkeypatch.setattr(StoreIO, "store", lake.fileio, raising=False)
    settings = {"py-io-impl": f"{StoreIO.__module__}.{StoreIO.__name__}"}
    catalog = SqlCatalog("tests", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"{place}/warehouse", **settings)
    catalog.create_namespace("db")
    foreign = catalog.create_table("db.t", ROWS.schema)
    foreign.append(ROWS)
    assert foreign.metadata_location.startswith(f"{place}/")
    result = lake.adopt_iceberg(f"{place}/warehouse/db/t", "t", key=["id"], properties={"mirrors": "iceberg"})
    assert (result.files_named, result.rows) == (1, 6)
    (report,) = lake.table("t").maintenance.mirror()
    assert report.held == ""
    (file,) = lake.table("t").inspect.files().column("path").to_pylist()[:1]
    assert file.startswith("_lake/warehouse/db/t/data/")
    is_adopted(lake, "t")
    catalog.close()
