"""The catalog under the conformance suite, on SQLite; and what other programs find in the database."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sql
from objcat_sql_catalog import NAMES

import objcat
from objcat.errors import InvalidInput, PluginFailed
from objcat.testing.catalogs import *  # noqa: F403 - the tests of the suite
from objcat.testing.catalogs import CatalogSubject

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture
def subject(tmp_path: Path) -> CatalogSubject:
    return CatalogSubject("sql", options={"uri": f"sqlite:///{tmp_path / 'names.db'}"})


def test_other_programs_find_the_url_of_a_table(tmp_path: Path, subject: CatalogSubject) -> None:
    lake = objcat.connect(tmp_path / "lake", subject.connect_options())
    table = lake.create_table("City.trips", SCHEMA, key=["id"])
    table.upsert([{"id": 1}])
    with sql.create_engine(subject.options["uri"]).connect() as connection:
        url = connection.execute(sql.select(NAMES.c.url).where(NAMES.c.kind == "table", NAMES.c.name == "City.trips")).scalar_one()
    assert objcat.table_at(url).scan().count() == 1


def test_a_lake_has_one_name_where_it_has_several_urls(tmp_path: Path, subject: CatalogSubject) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "same").symlink_to(tmp_path / "lake")
    options = {**subject.connect_options(), "catalog.lake": "main"}
    objcat.connect(tmp_path / "lake", options).create_table("t", SCHEMA, key=["id"])
    assert objcat.connect(tmp_path / "same", options).tables() == ["t"]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="lacks its option 'uri'"):
        objcat.connect(tmp_path, {"catalog": "sql"})
    with pytest.raises(InvalidInput, match="has no option 'url'"):
        objcat.connect(tmp_path, {"catalog": "sql", "catalog.url": "sqlite://"})
    lake = objcat.connect(tmp_path, {"catalog": "sql", "catalog.uri": f"sqlite:///{tmp_path}/no/such/folder.db"})
    with pytest.raises(PluginFailed, match="unable to open database file"):
        lake.tables()
