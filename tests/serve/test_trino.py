"""Trino finds and reads the tables of a lake by the catalog. Its server starts for most of a minute and takes 3 GB."""

from __future__ import annotations

from pathlib import Path

import pytest

import objcat
from objcat.serve.settings import ServerSettings
from tests.serve.clients import run_statements, settings_of_page
from tests.serve.mirrors import MirroredRows, create, create_plain
from tests.serve.serving import serving


@pytest.mark.reason("the server of Trino starts for most of a minute")
def test_trino(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path / "lake")
    for name in ("city.trips", "city.north.drivers", "notes"):
        create(lake, name)
    create_plain(lake, "city.plain")
    trips = MirroredRows(lake, "city.trips")
    trips.append(1, 2, 3)
    trips.delete(3)
    MirroredRows(lake, "city.north.drivers").append(7)
    MirroredRows(lake, "notes").append(8)
    statements = [
        "SHOW SCHEMAS FROM lake",
        "SHOW TABLES FROM lake.city",
        "SELECT id, name FROM lake.city.trips ORDER BY id",
        'SELECT id FROM lake."city.north".drivers',
        "SELECT id FROM lake.default.notes",
        "SELECT table_name FROM lake.information_schema.columns WHERE table_schema = 'city' AND column_name = 'id'",
        "SELECT count(*) FROM lake.city.trips FOR VERSION AS OF BIGINT '2'",
    ]
    refused = [
        "SELECT * FROM lake.city.plain",
        "INSERT INTO lake.city.trips VALUES (9, 'x')",
        "CREATE TABLE lake.city.more (a INTEGER)",
        "CREATE SCHEMA lake.other",
        "DROP TABLE lake.city.trips",
    ]
    with serving(lake, ServerSettings(cache_s=0)) as url:
        page = {name: value for name, value in settings_of_page(1, url).items() if "s3" not in name}
        settings = {**page, "fs.hadoop.enabled": "true"}
        answers = run_statements("trino", tmp_path / "trino", [*statements, *refused], settings=settings)
    assert answers[: len(statements)] == [
        [["city"], ["city.north"], ["default"], ["information_schema"], ["system"]],
        [["plain"], ["trips"]],
        [[1, "row 1"], [2, "row 2"]],
        [[7]],
        [[8]],
        [["trips"]],
        [[3]],
    ]
    missing, *others = answers[len(statements) :]
    assert "does not exist" in missing
    for answer in others:
        assert "Server does not support endpoint" in answer
