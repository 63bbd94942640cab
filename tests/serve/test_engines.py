"""DuckDB and Spark find and read the tables of a lake by the catalog, with the lines of the page, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

import objcat
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.options import Secret
from objcat.serve.settings import ServerSettings
from tests.serve.clients import blocks_of_page, run_statements, settings_of_page
from tests.serve.mirrors import MirroredRows, contents, create, create_plain
from tests.serve.serving import serving


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path / "lake")
    for name in ("city.trips", "city.north.drivers", "notes"):
        create(lake, name)
    create_plain(lake, "city.plain")
    trips = MirroredRows(lake, "city.trips")
    trips.append(1, 2)
    trips.append(3, 4)
    trips.delete(4)
    MirroredRows(lake, "city.north.drivers").append(7)
    MirroredRows(lake, "notes").append(8)
    return lake


def check_unchanged(lake: objcat.Lake, before: dict[str, bytes]) -> None:
    """What was there is as it was, and nothing new can be taken for a commit."""
    after = contents(lake)
    assert {key: after[key] for key in before} == before
    assert not [key for key in after if key not in before and key.endswith((".json", ".text"))]


def test_duckdb(lake: objcat.Lake, tmp_path: Path) -> None:
    before = contents(lake)
    with serving(lake) as url:
        attach, count = blocks_of_page("sql", url)[0].strip().splitlines()
        rows = run_statements(
            "duckdb",
            tmp_path / "duckdb",
            [
                count,
                "SELECT id, name FROM lake.city.trips ORDER BY id",
                'SELECT id FROM lake."city.north".drivers',
                'SELECT id FROM lake."default".notes',
                "SELECT count(*) FROM lake.city.TRIPS",
                "SELECT schema, name FROM (SHOW ALL TABLES) WHERE database = 'lake' ORDER BY ALL",
            ],
            begin=[attach],
        )
        refused = run_statements(
            "duckdb",
            tmp_path / "duckdb",
            [
                "INSERT INTO lake.city.trips VALUES (9, 'x')",
                "CREATE TABLE lake.city.more (a INTEGER)",
                "CREATE SCHEMA lake.other",
                "DROP TABLE lake.city.trips",
            ],
            begin=[attach],
        )
        (missing,) = run_statements("duckdb", tmp_path / "duckdb", ["SELECT * FROM lake.city.plain"], begin=[attach])
    assert rows == [
        [[3]],
        [[1, "row 1"], [2, "row 2"], [3, "row 3"]],
        [[7]],
        [[8]],
        [[3]],
        [["city", "TRIPS"], ["city", "plain"], ["city.north", "drivers"], ["default", "notes"]],
    ]
    assert "does not exist" in missing
    for answer in refused:
        assert "read-only view of tables that objcat writes" in answer
    check_unchanged(lake, before)


def test_duckdb_with_a_token(lake: objcat.Lake, tmp_path: Path) -> None:
    attach = "ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{url}', SECRET s)"
    with serving(lake, ServerSettings(cache_s=0, tokens=(Secret("the-token-of-this-test"),))) as url:
        (rows,) = run_statements(
            "duckdb",
            tmp_path / "duckdb",
            ["SELECT count(*) FROM lake.city.trips"],
            begin=["CREATE SECRET s (TYPE iceberg, TOKEN 'the-token-of-this-test')", attach.format(url=url)],
        )
        _, refused = run_statements(
            "duckdb",
            tmp_path / "duckdb",
            ["CREATE SECRET s (TYPE iceberg, TOKEN 'another-token')", attach.format(url=url)],
        )
    assert rows == [[3]]
    assert "401" in refused or "Unauthorized" in refused


def test_spark(lake: objcat.Lake, tmp_path: Path) -> None:
    before = contents(lake)
    tokens = (Secret("the-token-of-this-test"),)
    with serving(lake, ServerSettings(cache_s=0, tokens=tokens)) as url:
        settings = {**settings_of_page(0, url), "spark.sql.catalog.lake.token": "the-token-of-this-test"}
        statements = [
            "SHOW NAMESPACES IN lake",
            "SHOW NAMESPACES IN lake.city",
            "SHOW TABLES IN lake.city",
            "SELECT id, name FROM lake.city.trips ORDER BY id",
            "SELECT id FROM lake.city.north.drivers",
            "SELECT id FROM lake.default.notes",
            "SELECT count(*) FROM lake.city.trips VERSION AS OF 3",
            "SELECT max(snapshot_id) FROM lake.city.trips.snapshots",
        ]
        refused = [
            "SELECT * FROM lake.city.plain",
            "INSERT INTO lake.city.trips VALUES (9, 'x')",
            "CREATE TABLE lake.city.more (a INT)",
            "CREATE NAMESPACE lake.other",
            "DROP TABLE lake.city.trips",
            "ALTER TABLE lake.city.trips ADD COLUMN more INT",
            "CALL lake.system.remove_orphan_files(table => 'city.trips', older_than => TIMESTAMP '2020-01-01 00:00:00')",
        ]
        answers = run_statements("spark", tmp_path / "spark", [*statements, *refused], settings=settings)
    assert answers[: len(statements)] == [
        [["city"], ["default"]],
        [["city.north"]],
        [["city", "plain", False], ["city", "trips", False]],
        [[1, "row 1"], [2, "row 2"], [3, "row 3"]],
        [[7]],
        [[8]],
        [[4]],
        [[4]],
    ]
    missing, *others = answers[len(statements) :]
    assert "TABLE_OR_VIEW_NOT_FOUND" in missing
    *others, orphans = others
    for answer in others:
        assert "Server does not support endpoint" in answer
    assert "GC is disabled" in orphans, "it would delete the log of objcat, which no Iceberg metadata names"
    check_unchanged(lake, before)


def test_a_bucket(servers: Callable[[ServerName], ServerHandle], tmp_path: Path) -> None:
    """Clients learn endpoint, region and path style from the catalog, and bring credentials of their own."""
    handle = servers("versitygw").fresh_bucket()
    lake = objcat.connect(f"{handle.url}/lake", handle.options)
    create(lake, "city.trips")
    MirroredRows(lake, "city.trips").append(1, 2)
    keys = {"s3.access-key-id": handle.options["access_key"], "s3.secret-access-key": handle.options["secret_key"]}
    secret = (
        f"CREATE SECRET (TYPE s3, KEY_ID '{handle.options['access_key']}', SECRET '{handle.options['secret_key']}', "
        f"REGION '{handle.options['region']}', ENDPOINT '{handle.endpoint.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
    )
    with serving(lake) as url:
        catalog = RestCatalog("lake", uri=url, **keys)
        assert catalog.properties["s3.endpoint"] == handle.endpoint
        assert sorted(catalog.load_table("city.trips").scan().to_arrow()["id"].to_pylist()) == [1, 2]
        attach, count = blocks_of_page("sql", url)[0].strip().splitlines()
        (rows,) = run_statements("duckdb", tmp_path / "duckdb", [count], begin=[secret, attach])
    assert rows == [[2]]
