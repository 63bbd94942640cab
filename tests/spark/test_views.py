"""A lake as a catalog of a Spark session: what `spark.sql` sees of it, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession

import objcat
import objcat.spark
from objcat.errors import InvalidInput
from objcat.spark.native import scan
from tests.spark.plans import text_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("amount", pa.float64())])


class Asked:
    """A lake that knows which tables were opened."""

    def __init__(self, lake: objcat.Lake) -> None:
        self._lake = lake
        self.opened: list[str] = []

    def table(self, name: str) -> objcat.Table:
        self.opened.append(name)
        return self._lake.table(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path)
    orders = lake.create_table("shop.orders", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    orders.insert([{"id": i, "city": ("Rome", "Oslo")[i % 2], "amount": i / 2} for i in range(20)])
    orders.upsert([{"id": 1, "city": None, "amount": 100.0}])
    lake.create_table("cities", SCHEMA, key=["id"], index=objcat.BucketIndex(1)).insert([{"id": 1, "city": "Rome", "amount": 0.0}])
    return lake


@pytest.fixture
def asked(spark: SparkSession, lake: objcat.Lake) -> Iterator[Asked]:
    """The lake, which the session knows as `lake`."""
    asked = Asked(lake)
    found = objcat.spark.views(spark, asked)
    yield asked
    found.close()


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


def test_every_query_sees_the_newest_slots_and_a_frame_its_own(spark: SparkSession, asked: Asked, lake: objcat.Lake) -> None:
    spark.sql("CREATE TEMPORARY VIEW of_the_user AS SELECT count(*) AS n, max(amount) AS most FROM lake.shop.orders")
    try:
        before = spark.sql("SELECT count(*), max(amount) FROM lake.shop.orders")
        assert rows(spark, "SELECT * FROM of_the_user") == [(20, 100.0)]
        lake.table("shop.orders").upsert([{"id": 1000, "city": "Bergen", "amount": 1000.0}])
        assert rows(spark, "SELECT count(*), max(amount) FROM lake.shop.orders") == [(21, 1000.0)]
        assert rows(spark, "SELECT * FROM of_the_user") == [(21, 1000.0)]
        assert [tuple(row) for row in before.collect()] == [(20, 100.0)]
    finally:
        spark.catalog.dropTempView("of_the_user")


def test_a_plan_is_made_once_for_a_slot_and_the_settings_of_a_session(
    spark: SparkSession, asked: Asked, lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(*given: Any, plan: Any = scan.scan_dataframe, **named: Any) -> Any:
        made.append(given)
        return plan(*given, **named)

    monkeypatch.setattr(scan, "scan_dataframe", counted)
    query = "SELECT count(*), max(a.amount) FROM lake.shop.orders a JOIN lake.shop.orders b ON a.id = b.id"
    assert [rows(spark, query) for _ in range(3)] == [[(20, 100.0)]] * 3
    assert len(made) == 1
    lake.table("shop.orders").upsert([{"id": 1000, "city": "Bergen", "amount": 1000.0}])
    assert [rows(spark, query) for _ in range(2)] == [[(21, 1000.0)]] * 2
    assert len(made) == 2
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        assert rows(spark, query) == [(21, 1000.0)]
        assert len(made) == 3, "a plan may depend on the settings"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before or "200")
    assert rows(spark, "SELECT count(*) FROM lake.shop.orders VERSION AS OF 2") == [(20,)]


def test_tables_come_and_go_and_change(spark: SparkSession, asked: Asked, lake: objcat.Lake) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM lake.shop.later")
    later = lake.create_table("shop.later", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    later.insert([{"id": 7, "city": "Rome", "amount": None}])
    assert rows(spark, "SELECT * FROM lake.shop.later") == [(7, "Rome", None)]
    later.alter.rename_column("city", "town")
    later.alter.add_column("tip", "int", first=True)
    assert spark.table("lake.shop.later").columns == ["tip", "id", "town", "amount"]
    assert rows(spark, "SELECT town, tip FROM lake.shop.later WHERE town = 'Rome'") == [("Rome", None)]
    lake.drop_table("shop.later")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM lake.shop.later")


def test_a_query_sees_one_slot_of_a_table_and_asks_for_it_once(spark: SparkSession, asked: Asked) -> None:
    frame = spark.sql("SELECT a.id FROM lake.shop.orders a JOIN lake.shop.orders b ON a.id = b.id WHERE a.id = 3")
    assert asked.opened == ["shop.orders"]
    assert "MapInArrow" not in text_of(frame) and "EqualTo(id,3)" in text_of(frame), "read by Spark itself, and filters go down"
    assert [row.id for row in frame.collect()] == [3]
    one, other = spark.table("lake.shop.orders"), spark.table("lake.shop.orders")
    assert one.join(other, one.id == other.id).where(one.id < 3).count() == 3
    query = "SELECT o.id FROM lake.shop.orders o, lake.cities c WHERE o.id = c.id AND c.city IN (SELECT city FROM lake.shop.orders)"
    assert rows(spark, query) == [(1,)]


def test_queries_leave_no_threads(spark: SparkSession, asked: Asked) -> None:
    spark.sql("SELECT * FROM lake.cities")
    before = threading.active_count()
    for _ in range(30):
        spark.sql("SELECT * FROM lake.cities")
    assert threading.active_count() < before + 10, "a thread for each query"
    assert len(asked.opened) == 31


def test_namespaces_are_databases(spark: SparkSession, asked: Asked, lake: objcat.Lake) -> None:
    lake.create_table("shop.old.orders", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    assert rows(spark, "SHOW NAMESPACES IN lake") == [("shop",)]
    assert rows(spark, "SHOW NAMESPACES IN lake.shop") == [("shop.old",)]
    assert [row[1] for row in rows(spark, "SHOW TABLES IN lake")] == ["cities"]
    assert [row[1] for row in rows(spark, "SHOW TABLES IN lake.shop")] == ["orders"]
    assert rows(spark, "SELECT count(*) FROM lake.shop.old.orders") == [(0,)]
    assert [row[:2] for row in rows(spark, "DESCRIBE lake.shop.orders")] == [("id", "bigint"), ("city", "string"), ("amount", "double")]
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
        spark.sql("SHOW TABLES IN lake.nowhere").collect()
    try:
        spark.sql("USE lake")
        assert rows(spark, "SELECT city FROM cities") == [("Rome",)]
        spark.sql("USE lake.shop")
        assert rows(spark, "SELECT orders.city, shop.orders.id FROM orders WHERE id = 1") == [(None, 1)]
        assert spark.catalog.tableExists("orders") and not spark.catalog.tableExists("cities")
        assert spark.catalog.currentDatabase() == "shop"
    finally:
        spark.sql("USE spark_catalog.default")


def test_the_past_is_read_by_slot_and_by_time(spark: SparkSession, asked: Asked) -> None:
    assert rows(spark, "SELECT city FROM lake.shop.orders VERSION AS OF 1 WHERE id = 1") == [("Oslo",)]
    both = "SELECT n.city, b.city FROM lake.shop.orders n JOIN lake.shop.orders VERSION AS OF 1 b ON n.id = b.id WHERE n.id = 1"
    assert rows(spark, both) == [(None, "Oslo")]
    assert rows(spark, "SELECT count(*) FROM lake.shop.orders TIMESTAMP AS OF current_timestamp()") == [(20,)]
    for moment, sentence in (
        ("VERSION AS OF 99", "has no slot 99. Use a slot from 0 to 2"),
        ("VERSION AS OF 'main'", "VERSION AS OF 'main' is no slot. Write a whole number"),
        ("TIMESTAMP AS OF '2020-01-01'", "did not exist at 2020-01-01"),
    ):
        with pytest.raises(IllegalArgumentException, match=sentence):
            spark.sql(f"SELECT * FROM lake.shop.orders {moment}")


def test_what_is_not_supported_is_refused_and_nothing_is_done(spark: SparkSession, asked: Asked, lake: objcat.Lake) -> None:
    for statement in (
        "SHOW PARTITIONS lake.shop.orders",
        "CREATE VIEW lake.shop.view AS SELECT 1 AS one",
    ):
        with pytest.raises(PySparkException):
            spark.sql(statement)
    assert lake.tables() == ["cities", "shop.orders"] and lake.table("shop.orders").refresh().slot == 2


def test_what_goes_wrong_is_said_in_one_sentence(spark: SparkSession, asked: Asked, lake: objcat.Lake) -> None:
    table = lake.table("cities")
    table.upsert([{"id": 2, "city": "x", "amount": 1.0}])
    table.maintenance.compact()
    table.maintenance.clean(keep_slots=1)
    with pytest.raises(Exception, match=r"SnapshotExpired: .*cities") as caught:
        spark.sql("SELECT * FROM lake.cities VERSION AS OF 1").collect()
    assert "Traceback" not in str(caught.value)


def test_a_catalog_is_of_one_session_until_it_is_closed(spark: SparkSession, lake: objcat.Lake, tmp_path: Path) -> None:
    found = objcat.spark.views(spark, lake, catalog="mine")
    assert rows(spark, "SELECT count(*) FROM mine.shop.orders") == [(20,)]
    other = objcat.connect(tmp_path / "other")
    other.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    found = objcat.spark.views(spark, other, catalog="mine")
    assert rows(spark, "SELECT count(*) FROM mine.t") == [(0,)]
    session = spark.newSession()
    with pytest.raises(AnalysisException):
        session.sql("SELECT * FROM mine.t")
    spark.sql("USE mine")
    found.close()
    assert spark.catalog.currentCatalog() == "spark_catalog"
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM mine.t")
    again = objcat.spark.views(session, other, catalog="mine")
    assert rows(session, "SELECT count(*) FROM mine.t") == [(0,)]
    again.close()


def test_names_that_spark_has_already_are_refused(spark: SparkSession, lake: objcat.Lake) -> None:
    for name in ("spark_catalog", "system", "two words", "a.b", ""):
        with pytest.raises(InvalidInput, match="cannot name a catalog in Spark"):
            objcat.spark.views(spark, lake, catalog=name)
    spark.conf.set("spark.sql.catalog.iceberg", "org.example.Catalog")
    try:
        with pytest.raises(InvalidInput, match="The session has another catalog 'iceberg'"):
            objcat.spark.views(spark, lake, catalog="iceberg")
    finally:
        spark.conf.unset("spark.sql.catalog.iceberg")
    with pytest.raises(InvalidInput, match=r"Spark Connect.*Use lake.sql\(text, spark\)"):
        objcat.spark.views(object(), lake)  # type: ignore[arg-type]


def test_a_session_that_was_stopped_is_one_sentence(tmp_path: Path) -> None:
    stopped: Any = SimpleNamespace(createDataFrame=None, _sc=SimpleNamespace(_jsc=None), _jvm=None)
    with pytest.raises(InvalidInput, match=r"spark is a stopped session\. Nothing was done\. Give one that runs"):
        objcat.spark.views(stopped, objcat.connect(tmp_path))
