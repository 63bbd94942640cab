"""Tables without mirrors are readable by mirrors that the server writes apart from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import objcat
from fileio.errors import InvalidConfig
from fileio.registry import open_store
from fileio.store import FileIO
from objcat.lake.context import LakeContext
from objcat.serve.app import create_app
from objcat.serve.settings import ServerSettings
from objcat.serve.side_mirrors import SideMirrors
from tests.adoption.foreign import plain
from tests.serve.http import AppClient
from tests.serve.mirrors import MirroredRows, contents, create, create_plain
from tests.serve.serving import serving

FRESH = ServerSettings(cache_s=0)


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path / "lake")
    create_plain(lake, "city.plain").upsert([{"id": number, "name": f"row {number}"} for number in range(5)])
    lake.table("city.plain").delete([{"id": 1}])
    return lake


@pytest.fixture
def side(tmp_path: Path) -> Iterator[FileIO]:
    with open_store(tmp_path / "side") as store:
        yield store


def below(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_each_load_shows_the_newest_slot_and_writes_nothing_among_the_tables(lake: objcat.Lake, side: FileIO, tmp_path: Path) -> None:
    table = lake.table("city.plain")
    with serving(lake, FRESH, others=side) as url:
        catalog = RestCatalog("lake", uri=url)
        found = catalog.load_table("city.plain")
        for number in range(3):
            before = contents(lake)
            found = catalog.load_table("city.plain")
            assert plain(found.scan().to_arrow()) == plain(table.scan().to_arrow())
            assert found.metadata.current_snapshot_id == table.snapshot.slot + 1
            assert contents(lake) == before
            table.upsert([{"id": 2, "name": f"again {number}"}, {"id": 100 + number, "name": None}])
        old = found.metadata.snapshots[0].snapshot_id
        assert plain(found.scan(snapshot_id=old).to_arrow()) == plain(table.scan(as_of=old - 1).to_arrow())
        assert found.location() == f"file://{tmp_path}/side/{table.id}"


def test_tables_with_a_mirror_of_their_own_are_not_mirrored_again(lake: objcat.Lake, side: FileIO, tmp_path: Path) -> None:
    create(lake, "city.own")
    MirroredRows(lake, "city.own").append(1)
    with serving(lake, FRESH, others=side) as url:
        found = RestCatalog("lake", uri=url).load_table("city.own")
    assert found.location() == lake.table("city.own").url
    assert not below(tmp_path / "side")


def test_a_table_gets_a_mirror_of_its_own_and_loses_it(lake: objcat.Lake, side: FileIO) -> None:
    table = lake.table("city.plain")
    with serving(lake, FRESH, others=side) as url:
        catalog = RestCatalog("lake", uri=url)
        apart = catalog.load_table("city.plain").location()
        table.set_properties({"mirrors": "iceberg"})
        table.maintenance.mirror()
        assert catalog.load_table("city.plain").location() == table.url
        table.set_properties({"mirrors": "none"})
        table.upsert([{"id": 9, "name": "new"}])
        found = catalog.load_table("city.plain")
        assert found.location() == apart
        assert plain(found.scan().to_arrow()) == plain(table.scan().to_arrow())


def test_two_servers_share_them(lake: objcat.Lake, side: FileIO) -> None:
    table = lake.table("city.plain")
    with serving(lake, FRESH, others=side) as one, serving(lake, FRESH, others=side) as other:
        catalogs = [RestCatalog("lake", uri=url) for url in (one, other)]
        for number in range(4):
            table.upsert([{"id": number, "name": f"step {number}"}])
            found = [catalog.load_table("city.plain") for catalog in (*catalogs, *reversed(catalogs))]
            assert len({one.metadata_location for one in found}) == 1
            assert all(plain(one.scan().to_arrow()) == plain(table.scan().to_arrow()) for one in found)


def test_tables_that_share_a_log(lake: objcat.Lake, side: FileIO) -> None:
    for name in ("bank.a", "bank.b"):
        create_plain(lake, name, shared_log="bank").upsert([{"id": 1, "name": name}])
    with serving(lake, FRESH, others=side) as url:
        catalog = RestCatalog("lake", uri=url)
        for name in ("bank.a", "bank.b", "bank.a"):
            assert catalog.load_table(name).scan().to_arrow().column("name").to_pylist() == [name]


def test_what_is_deleted_there_is_made_again(lake: objcat.Lake, side: FileIO) -> None:
    table = lake.table("city.plain")
    with serving(lake, FRESH, others=side) as url:
        catalog = RestCatalog("lake", uri=url)
        catalog.load_table("city.plain")
        side.delete(list(side.list_keys()))
        table.upsert([{"id": 9, "name": "new"}])
        assert plain(catalog.load_table("city.plain").scan().to_arrow()) == plain(table.scan().to_arrow())


def test_a_mirror_that_takes_too_long_is_to_be_asked_for_again(lake: objcat.Lake, side: FileIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise objcat.errors.ObjcatError("the store is full")

    monkeypatch.setattr(SideMirrors, "catch_up", fails)
    client = AppClient(create_app(lake.fileio, FRESH, others=side))
    answer = client.get("/v1/namespaces/city/tables/plain")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "makes it at the first load" in answer.json()["error"]["message"]
    assert "objcat_serve_mirror_failures_total 1" in client.get("/metrics").text
    monkeypatch.undo()
    answer = client.get("/v1/namespaces/city/tables/plain")
    assert answer.status_code == 200
    assert answer.json()["metadata"]["properties"]["objcat.slot"] == "2"


def test_an_adopted_table(tmp_path: Path, side: FileIO) -> None:
    from deltalake import write_deltalake

    lake = objcat.connect(tmp_path / "lake")
    write_deltalake(tmp_path / "lake" / "old", pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
    lake.adopt_delta("old", "t", key=["id"])
    lake.table("t").upsert([{"id": 2, "name": "new"}])
    with serving(lake, FRESH, others=side) as url:
        found = RestCatalog("lake", uri=url).load_table("default.t").scan().to_arrow()
    assert plain(found) == [{"id": 1, "name": "a"}, {"id": 2, "name": "new"}, {"id": 3, "name": "c"}]


@pytest.mark.parametrize("place", ["", "/tables", "/tables/t-1", "/_catalog"])
def test_a_place_among_the_objects_of_the_lake_is_refused(tmp_path: Path, place: str) -> None:
    lake = LakeContext(open_store(tmp_path))
    with pytest.raises(InvalidConfig, match="among the objects of the lake"):
        SideMirrors(lake, open_store(f"{tmp_path}{place}"))
    assert SideMirrors(lake, open_store(f"{tmp_path}/_mirrors")) is not None
