"""`configure` of a running session: the lake as a catalog, by arguments or by settings, and what the session's connector is told."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import objcat
import objcat.spark
from fileio.errors import InvalidConfig
from objcat.errors import InvalidInput
from objcat.spark import settings
from objcat.spark.native.relation import NativeRoot
from objcat.spark.views import Views
from tests.plugins.test_catalogs import MemoryNames


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own."""
    session = spark.newSession()
    yield session
    for one in settings.known_lakes(session):
        Views(session, one.name).close()


def filled(place: Path) -> objcat.Lake:
    lake = objcat.connect(place)
    lake.sql("CREATE TABLE a.t (id INT)")
    return lake


def test_a_session_gets_a_lake_under_a_name(session: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path / "one"), filled(tmp_path / "two")
    assert objcat.spark.configure(session, tmp_path / "one") is session
    objcat.spark.configure(session, str(tmp_path / "two"), name="other")
    session.sql("INSERT INTO lake.a.t VALUES (1)")
    session.sql("INSERT INTO other.a.t SELECT id + 1 FROM lake.a.t")
    assert [row.id for row in session.sql("SELECT id FROM other.a.t").collect()] == [2]
    objcat.spark.configure(session, tmp_path / "two")
    assert [row.id for row in session.sql("SELECT id FROM lake.a.t").collect()] == [2], "a lake of this name is replaced"
    Views(session, "lake").close()
    Views(session, "other").close()


def test_a_session_gets_the_lakes_of_its_settings(session: SparkSession, tmp_path: Path) -> None:
    for name in ("lake", "other"):
        filled(tmp_path / name)
        session.conf.set(f"spark.sql.catalog.{name}.url", str(tmp_path / name))
    session.conf.set("spark.sql.catalog.jdbc", "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog")
    session.conf.set("spark.sql.catalog.jdbc.url", "jdbc:h2:mem:none")
    objcat.spark.configure(session)
    session.sql("INSERT INTO lake.a.t VALUES (1)")
    assert session.table("other.a.t").count() == 0
    assert [one.name for one in settings.known_lakes(session)] == ["lake", "other"], "catalogs of others are left alone"
    session.conf.set("spark.sql.catalog.third.url", "s3://bucket/lake")
    session.conf.set("spark.sql.catalog.third.regoin", "eu-west-1")
    with pytest.raises(InvalidConfig, match="did you mean 'region'"):
        objcat.spark.configure(session)
    objcat.spark.configure(session, name="other")
    with pytest.raises(InvalidInput, match=r"no setting spark\.sql\.catalog\.fourth\.url, and no URL is given\. Nothing was done"):
        objcat.spark.configure(session, name="fourth")
    session.conf.unset("spark.sql.catalog.third.url")


def test_names_of_a_lake_are_in_another_catalog(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoints([EntryPoint("memory", f"{MemoryNames.__module__}:MemoryNames", "objcat.catalogs")])
    own = importlib.metadata.entry_points
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **of: found if of == {"group": "objcat.catalogs"} else own(**of))
    url, options = str(tmp_path / "lake"), {"catalog": "memory", "catalog.uri": "none"}
    session.conf.set("spark.sql.catalog.lake.url", url)
    for name, value in options.items():
        session.conf.set(f"spark.sql.catalog.lake.{name}", value)
    objcat.spark.configure(session)
    session.sql("CREATE TABLE lake.a.t TBLPROPERTIES ('key' = 'id') AS SELECT 1 AS id")
    session.sql("MERGE INTO lake.a.t t USING (SELECT 2 AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")
    session.sql("ALTER TABLE lake.a.t RENAME TO u")
    assert [row.id for row in session.sql("SELECT id FROM lake.a.u ORDER BY id").collect()] == [1, 2]
    assert objcat.connect(url, options).tables() == ["a.u"] and objcat.connect(url).tables() == []
    MemoryNames.lakes.clear()


def test_what_a_session_cannot_have_is_refused(spark: SparkSession, session: SparkSession, tmp_path: Path) -> None:
    for work, sentence in (
        (lambda: objcat.spark.configure(session), r"no setting spark\.sql\.catalog\.<name>\.url"),
        (lambda: objcat.spark.configure(session, options={"region": "x"}), "options without a URL"),
        (lambda: objcat.spark.configure(session, tmp_path, jar="x.jar"), "takes no jar"),
        (lambda: objcat.spark.configure(SparkSession.Builder(), tmp_path, name="x"), "and no name"),  # type: ignore[call-overload]
        (lambda: objcat.spark.configure(SparkSession.Builder()), "takes the URL of a store"),  # type: ignore[call-overload]
        (lambda: objcat.spark.configure(object(), tmp_path), "Spark Connect"),
        (lambda: objcat.spark.configure(session, tmp_path, name="two words"), "cannot name a catalog"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            work()


def test_a_connector_is_told_what_it_does_not_know(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "native_root", lambda *_: NativeRoot("s3a://told.bucket"))
    hadoop: Any = session._jsc.hadoopConfiguration()
    prefix = "fs.s3a.bucket.told.bucket."
    hadoop.set(f"{prefix}endpoint", "http://127.0.0.1:2")
    options = {"endpoint": "http://127.0.0.1:1", "access_key": "a", "secret_key": "s"}
    try:
        objcat.spark.configure(session, "s3://told.bucket/lake", options, name="told")
        assert hadoop.get(f"{prefix}endpoint") == "http://127.0.0.1:2", "what is set stays"
        assert (hadoop.get(f"{prefix}access.key"), hadoop.get(f"{prefix}secret.key")) == ("a", "s")
        with pytest.raises(InvalidInput, match=r"'profile' .* no known counterpart"):
            objcat.spark.configure(session, "s3://told.bucket/lake", {"profile": "ana"}, name="other")
        assert "spark.sql.catalog.other" not in dict(session._jsparkSession.sessionState().conf().settings())
    finally:
        for name in ("endpoint", "access.key", "secret.key", "path.style.access", "endpoint.region", "connection.ssl.enabled"):
            hadoop.unset(prefix + name)
        hadoop.unset(f"{prefix}aws.credentials.provider")
        Views(session, "told").close()
