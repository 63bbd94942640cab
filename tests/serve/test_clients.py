"""pyiceberg and raw sockets against a server of uvicorn on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError, UnauthorizedError

import objcat
from fileio.options import Secret
from objcat.maintenance.auto_mirror import AutoMirror
from objcat.mirror.model import CorruptMirror
from objcat.serve.settings import ServerSettings
from objcat.table.maintenance import TableMaintenance
from tests.effort import effort
from tests.serve.clients import blocks_of_page
from tests.serve.mirrors import MirroredRows, contents, create, lake_with
from tests.serve.serving import serving


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path / "lake")
    for name in ("city.trips", "city.north.drivers", "notes"):
        create(lake, name)
    return lake


def ids_of(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


def test_pyiceberg_finds_and_reads_every_table(lake: objcat.Lake) -> None:
    trips = MirroredRows(lake, "city.trips")
    trips.append(1, 2)
    trips.append(3)
    MirroredRows(lake, "city.north.drivers").append(7)
    MirroredRows(lake, "notes").append(8, 9)
    with serving(lake) as url:
        catalog = RestCatalog("lake", uri=url)
        assert catalog.list_namespaces() == [("city",), ("default",)]
        assert catalog.list_namespaces("city") == [("city", "north")]
        assert catalog.list_tables("city") == [("city", "trips")]
        assert catalog.list_views("city") == []
        assert catalog.namespace_exists(("city", "north"))
        assert catalog.table_exists("city.trips")
        assert not catalog.table_exists("city.none")
        table = catalog.load_table("city.trips")
        assert ids_of(table.scan().to_arrow()) == [1, 2, 3]
        assert ids_of(table.scan(snapshot_id=trips.snapshot_id - 1).to_arrow()) == [1, 2]
        assert ids_of(catalog.load_table(("city", "north", "drivers")).scan().to_arrow()) == [7]
        assert ids_of(catalog.load_table("default.notes").scan(row_filter="id > 8").to_arrow()) == [9]
        trips.append(4)
        trips.delete(1)
        assert ids_of(table.refresh().scan().to_arrow()) == [2, 3, 4]
        with pytest.raises(NoSuchTableError):
            catalog.load_table("city.none")


def test_pyiceberg_pages(lake: objcat.Lake) -> None:
    for number in range(5):
        create(lake, f"many.t{number}")
    with serving(lake) as url:
        catalog = RestCatalog("lake", uri=url, **{"rest-page-size": "2"})
        assert [name for _, name in catalog.list_tables("many")] == [f"t{number}" for number in range(5)]
        assert catalog.list_namespaces() == [("city",), ("default",), ("many",)]


def test_pyiceberg_commits_nothing(lake: objcat.Lake) -> None:
    """It puts data files and manifests beside the table before it learns that it may not commit. Nothing names them."""
    MirroredRows(lake, "city.trips").append(1)
    before = contents(lake)
    with serving(lake) as url:
        catalog = RestCatalog("lake", uri=url)
        table = catalog.load_table("city.trips")
        for change in (
            lambda: catalog.create_namespace("x"),
            lambda: catalog.drop_table("city.trips"),
            lambda: catalog.rename_table("city.trips", "city.t"),
            lambda: table.append(table.scan().to_arrow()),
            lambda: table.update_schema().add_column("more", table.schema().fields[0].field_type).commit(),
        ):
            with pytest.raises(NotImplementedError, match="does not support"):
                change()
    after = contents(lake)
    assert {key: after[key] for key in before} == before
    assert not [key for key in after if key not in before and key.endswith((".json", ".text"))]


def test_pyiceberg_with_a_token(lake: objcat.Lake) -> None:
    MirroredRows(lake, "city.trips").append(1)
    with serving(lake, ServerSettings(cache_s=0, tokens=(Secret("the-token-of-this-test"),))) as url:
        assert ids_of(RestCatalog("lake", uri=url, token="the-token-of-this-test").load_table("city.trips").scan().to_arrow()) == [1]
        with pytest.raises(UnauthorizedError, match="bearer token"):
            RestCatalog("lake", uri=url, token="another")


def test_two_servers_answer_as_one(lake: objcat.Lake) -> None:
    """A client behind a balancer alternates: pages go on, tags hold, and no slot is lost."""
    trips = MirroredRows(lake, "city.trips")
    for number in range(5):
        create(lake, f"many.t{number}")
    path = "/v1/namespaces/city/tables/trips"
    with serving(lake) as first, serving(lake) as second, httpx.Client() as client:
        token, names = "", []
        for url in (first, second, first):
            body = client.get(f"{url}/v1/namespaces/many/tables", params={"pageToken": token, "pageSize": 2}).json()
            names += [table["name"] for table in body["identifiers"]]
            token = body["next-page-token"]
        assert names == [f"t{number}" for number in range(5)]
        assert token is None
        etag = ""
        for number, (url, other) in enumerate([(first, second), (second, first)] * 3):
            trips.append(number)
            answer = client.get(url + path, headers={"If-None-Match": etag})
            assert answer.status_code == 200
            assert answer.json()["metadata"]["current-snapshot-id"] == trips.snapshot_id
            etag = answer.headers["etag"]
            assert client.get(other + path, headers={"If-None-Match": etag}).status_code == 304


def test_what_the_page_shows_runs(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    trips = MirroredRows(lake, "city.trips")
    trips.append(1, 3)
    trips.append(1, 2)
    trips.delete(3)
    with serving(lake) as url:
        block = blocks_of_page("python", url)[1]
        assert "RestCatalog" in block
        values: dict[str, Any] = {}
        exec(block, values)
    assert ids_of(values["rows"]) == [1, 2]
    assert sorted(values["frame"]["id"]) == [1, 2]


def test_after_an_erasure_nothing_from_before_is_served(lake: objcat.Lake) -> None:
    trips = MirroredRows(lake, "city.trips")
    trips.append(1, 2)
    with serving(lake) as url:
        catalog = RestCatalog("lake", uri=url)
        before = catalog.load_table("city.trips")
        assert ids_of(before.scan().to_arrow()) == [1, 2]
        erased = trips.table.erase("id = 1")
        after = catalog.load_table("city.trips")
        assert ids_of(after.scan().to_arrow()) == [2]
        assert min(snapshot.snapshot_id for snapshot in after.metadata.snapshots) > erased.readable_from
        assert before.metadata.snapshot_by_id(before.metadata.current_snapshot_id) not in after.metadata.snapshots


def test_with_mirror_a_client_never_lags(lake: objcat.Lake) -> None:
    """The writers of this table do not mirror it; the server does, before each answer."""
    table = lake.table("city.trips")
    with serving(lake, ServerSettings(cache_s=0, mirrors=True)) as url:
        catalog = RestCatalog("lake", uri=url)
        for number in range(4):
            with mock.patch.object(AutoMirror, "after"):
                table.upsert([{"id": number, "name": "x"}])
            assert ids_of(catalog.load_table("city.trips").scan().to_arrow()) == list(range(number + 1))
        metrics = httpx.get(f"{url}/metrics").text
    assert 'objcat_serve_mirror_lag_slots{table="city.trips"} 0' in metrics
    assert "objcat_serve_mirror_failures_total 0" in metrics


def test_a_mirror_that_fails_or_is_slow_leaves_the_last_slot(lake: objcat.Lake, caplog: pytest.LogCaptureFixture) -> None:
    table = lake.table("city.trips")
    slow = threading.Event()
    with mock.patch.object(AutoMirror, "after"):
        table.upsert([{"id": 1, "name": "x"}])
    with serving(lake, ServerSettings(cache_s=0, mirrors=True, mirror_s=0.05)) as url:
        catalog = RestCatalog("lake", uri=url)
        for failing in (mock.Mock(side_effect=CorruptMirror("planted")), mock.Mock(side_effect=lambda: slow.wait(60))):
            with mock.patch.object(TableMaintenance, "mirror", failing):
                assert ids_of(catalog.load_table("city.trips").scan().to_arrow()) == []
        metrics = httpx.get(f"{url}/metrics").text
        slow.set()
    assert "planted" in caplog.text
    assert 'objcat_serve_mirror_lag_slots{table="city.trips"} 1' in metrics
    assert "objcat_serve_mirror_failures_total 1" in metrics


def test_beside_a_writer_clients_of_two_servers_read_whole_slots(lake: objcat.Lake) -> None:
    """Each commit adds one row, so the snapshot of slot n has n rows. No server ever goes back."""
    table = lake.table("city.trips")
    rows = effort(20, with_all=200)

    def write() -> None:
        for number in range(rows):
            table.upsert([{"id": number, "name": "x"}])

    writer = threading.Thread(target=write)
    settings = ServerSettings(cache_s=0.05, mirrors=True)
    with serving(lake, settings) as first, serving(lake, settings) as second:
        catalogs = [RestCatalog("lake", uri=url) for url in (first, second)]
        newest = [0, 0]
        writer.start()
        while min(newest) < rows:
            for number, catalog in enumerate(catalogs):
                found = catalog.load_table("city.trips")
                slot = found.metadata.current_snapshot_id - 1
                assert ids_of(found.scan().to_arrow()) == list(range(slot))
                assert slot >= newest[number]
                newest[number] = slot
        writer.join()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GET /v1/config HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 1_000_000 + b"\r\n\r\n", b"HTTP/1.1 4"),
        (b"\x16\x03\x01\x02\x00nonsense\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /v1/config HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET http://elsewhere/v1/config HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"HTTP/1.1 404"),
        (b"GET /v1/../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"HTTP/1.1 404"),
        (b"BREW /v1/namespaces HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"HTTP/1.1 403"),
    ],
)
def test_raw_requests_end_in_an_answer(sent: bytes, answer: bytes) -> None:
    with serving(lake_with()) as url, socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        received = connection.recv(65536)
    assert received.startswith(answer), received
    assert b"Traceback" not in received


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    limited = ServerSettings(body_s=0.1)
    with serving(lake_with(), limited) as url, socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30) as client:
        client.sendall(b"POST /v1/namespaces HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        received = client.recv(65536)
    assert received.startswith(b"HTTP/1.1 408"), received
