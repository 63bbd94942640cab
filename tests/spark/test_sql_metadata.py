"""Metadata tables of `spark.sql`, and partitions in statements: what `Table.inspect` says, and nothing is written to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import objcat
import objcat.spark
from objcat.errors import TableExists
from objcat.spark.metadata_tables import ICEBERG_NAMES

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("fare", pa.float64())])
KINDS = ("history", "snapshots", "files", "partitions")
INSPECTED: dict[str, Callable[[objcat.Table], pa.Table]] = {
    "history": lambda table: table.inspect.history().to_arrow(),
    "snapshots": lambda table: table.inspect.snapshots(),
    "files": lambda table: table.inspect.files(),
    "partitions": lambda table: table.inspect.partitions(),
}


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[objcat.Lake]:
    """An empty lake, which the session knows as `lake`."""
    lake = objcat.connect(tmp_path)
    found = objcat.spark.views(spark, lake)
    yield lake
    found.close()


def partitioned(lake: objcat.Lake, name: str = "city.trips") -> objcat.Table:
    """A table with base files, log rows, deletes, a null partition and one that is empty again."""
    made = lake.create_table(name, SCHEMA, key=["id"], key_scope="partition", partition_by=["city"], index=objcat.BucketIndex(2))
    made.insert([{"id": i, "city": ("Rome", "Oslo", "a/b", None)[i % 4], "fare": i / 2} for i in range(12)], metadata={"by": "ana"})
    made.maintenance.compact()
    made.upsert([{"id": 0, "city": "Rome", "fare": 9.0}, {"id": 50, "city": "Bari", "fare": 1.0}])
    made.delete("id = 1")
    made.delete_partition("city = 'a/b'")
    return made


def of_spark(spark: SparkSession, name: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.sql(f"SELECT * FROM {name}").collect()]


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with maps as dicts, and times as milliseconds, in any order."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return dict(value)
        return int(value.timestamp() * 1000) if hasattr(value, "timestamp") else value

    return sorted(({name: plain(value) for name, value in row.items()} for row in rows), key=str)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_methods(spark: SparkSession, lake: objcat.Lake, kind: str) -> None:
    tables = {"city.trips": partitioned(lake)}
    tables["city.empty"] = lake.create_table("city.empty", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    tables["city.keyless"] = lake.create_table("city.keyless", SCHEMA, key=None)
    tables["city.keyless"].insert([{"id": 1, "city": None, "fare": None}])
    tables["history"] = lake.create_table("history", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    tables["history"].upsert([{"id": 1, "city": "x", "fare": 1.0}])
    for name, table in tables.items():
        said = INSPECTED[kind](table).to_pylist()
        wanted = [{ICEBERG_NAMES[kind].get(column, column): value for column, value in row.items()} for row in said]
        found = of_spark(spark, f"lake.{name}.{kind}")
        assert comparable(found) == comparable(wanted), name
    assert [row["id"] for row in of_spark(spark, "lake.history")] == [1], "a table of that name is a table"


def test_history_and_snapshots_tell_the_line_of_commits(spark: SparkSession, lake: objcat.Lake) -> None:
    trips = partitioned(lake)
    first, *others = spark.table("lake.city.trips.snapshots").orderBy("snapshot_id").collect()
    assert first.parent_id is None and [row.parent_id for row in others] == [first.snapshot_id, *(row.snapshot_id for row in others[:-1])]
    assert others[0].summary["added-records"] == "12" and others[0].summary["by"] == "ana"
    (newest,) = spark.sql("SELECT max(snapshot_id) AS slot FROM lake.city.trips.snapshots").collect()
    assert newest.slot == trips.refresh().slot
    trips.maintenance.clean(keep_slots=1)
    kept = [row.snapshot_id for row in spark.sql("SELECT snapshot_id FROM lake.city.trips.snapshots ORDER BY 1").collect()]
    assert len(kept) < len(others) and kept[-1] == trips.refresh().slot
    for slot in kept:
        spark.sql(f"SELECT count(*) FROM lake.city.trips VERSION AS OF {slot}").collect()
    assert spark.table("lake.city.trips.history").count() == trips.refresh().slot + 1, "the log has all of them"


@pytest.mark.parametrize("kind", KINDS)
def test_the_past_of_a_metadata_table_is_that_of_its_table(spark: SparkSession, lake: objcat.Lake, kind: str) -> None:
    trips = lake.create_table("city.trips", SCHEMA, key=["id"], key_scope="partition", partition_by=["city"], index=objcat.BucketIndex(1))
    wanted = {}
    for number, city in enumerate(("Rome", "Oslo", "Bari")):
        trips.upsert([{"id": number, "city": city, "fare": 1.0}])
        wanted[trips.snapshot.slot] = comparable(of_spark(spark, f"lake.city.trips.{kind}"))
    for slot, rows in wanted.items():
        assert comparable(of_spark(spark, f"lake.city.trips.{kind} VERSION AS OF {slot}")) == rows
    assert comparable(of_spark(spark, f"lake.city.trips.{kind} TIMESTAMP AS OF current_timestamp()")) == wanted[3]
    for moment, sentence in (
        ("VERSION AS OF 99", r"has no slot 99\. Use a slot from 0 to 3"),
        ("TIMESTAMP AS OF '2020-01-01'", "did not exist at 2020-01-01"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            spark.sql(f"SELECT * FROM lake.city.trips.{kind} {moment}")
    trips.maintenance.compact()
    trips.maintenance.clean(keep_slots=1)
    with pytest.raises(PySparkException, match="SnapshotExpired"):
        spark.sql(f"SELECT * FROM lake.city.trips.{kind} VERSION AS OF 1")


def test_no_table_has_the_name_of_a_metadata_table(spark: SparkSession, lake: objcat.Lake) -> None:
    lake.create_table("city.trips", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    assert spark.catalog.tableExists("lake.city.trips.history") and not spark.catalog.tableExists("lake.city.none.history")
    assert [table.name for table in spark.catalog.listTables("lake.city")] == ["trips"]
    files = spark.sql("SELECT f.file_path FROM lake.city.trips.files f JOIN lake.city.trips.files g ON f.file_path = g.file_path")
    assert files.collect() == []
    with pytest.raises(TableExists):
        lake.create_table("city.trips.files", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql("CREATE TABLE lake.city.trips.files (id INT)")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM lake.city.none.history")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM lake.city.trips.nonsense")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {} SELECT * FROM {}",
        "INSERT OVERWRITE {} SELECT * FROM {}",
        "DELETE FROM {}",
        "UPDATE {} SET file_path = 'x'",
        "MERGE INTO {} t USING {} s ON t.file_path = s.file_path WHEN MATCHED THEN DELETE",
        "TRUNCATE TABLE {}",
        "DROP TABLE {}",
        "ALTER TABLE {} RENAME TO other",
        "ALTER TABLE {} ADD COLUMNS (more INT)",
        "ALTER TABLE {} SET TBLPROPERTIES ('a' = 'b')",
    ],
)
def test_a_metadata_table_is_only_read(spark: SparkSession, lake: objcat.Lake, statement: str) -> None:
    trips = partitioned(lake)
    slot = trips.refresh().slot
    with pytest.raises(PySparkException, match=r"city\.trips\.files is a metadata table, which"):
        spark.sql(statement.replace("{}", "lake.city.trips.files"))
    assert trips.refresh().slot == slot and lake.tables() == ["city.trips"]


def test_partitions_are_shown_and_dropped(spark: SparkSession, lake: objcat.Lake) -> None:
    trips = partitioned(lake)

    def shown(more: str = "") -> list[str]:
        return [row.partition for row in spark.sql(f"SHOW PARTITIONS lake.city.trips {more}").collect()]

    assert shown() == trips.inspect.partitions()["partition"].to_pylist()
    assert shown("PARTITION (city = 'Oslo')") == ["city=Oslo"] and shown("PARTITION (city = 'none')") == []
    spark.sql("INSERT INTO lake.city.trips VALUES (7, 'a/b', 1.0)")
    assert shown("PARTITION (city = 'a/b')") == ["city=a%2Fb"]
    spark.sql("ALTER TABLE lake.city.trips DROP PARTITION (city = 'a/b')")
    spark.sql("TRUNCATE TABLE lake.city.trips PARTITION (city = 'Oslo')")
    spark.sql("ALTER TABLE lake.city.trips DROP IF EXISTS PARTITION (city = 'none')")
    assert shown() == ["city=Bari", "city=Rome", "city=__HIVE_DEFAULT_PARTITION__"]
    slot = trips.refresh().slot
    for statement, sentence in (
        ("ALTER TABLE lake.city.trips DROP PARTITION (city = 'none')", "PARTITIONS_NOT_FOUND"),
        ("ALTER TABLE lake.city.trips ADD PARTITION (city = 'none')", r"ADD PARTITION is not supported: .* Write or delete rows"),
        ("SHOW PARTITIONS lake.city.trips PARTITION (fare = 1)", "fare"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            spark.sql(statement)
    assert trips.refresh().slot == slot


def test_partitions_of_transforms_are_shown_only(spark: SparkSession, lake: objcat.Lake) -> None:
    spark.sql("CREATE TABLE lake.a.t (id INT, at DATE, n INT) PARTITIONED BY (months(at), n)")
    spark.sql("INSERT INTO lake.a.t VALUES (1, DATE '2026-01-05', 3), (2, DATE '2026-02-05', 4)")
    found = [row.partition for row in spark.sql("SHOW PARTITIONS lake.a.t").collect()]
    assert found == lake.table("a.t").inspect.partitions()["partition"].to_pylist() and len(found) == 2
    assert [row.partition for row in spark.sql("SHOW PARTITIONS lake.a.t PARTITION (n = 4)").collect()] == found[1:]
    first = dict(part.split("=") for part in found[0].split("/"))
    said = ", ".join(f"{name} = '{value}'" for name, value in first.items())
    with pytest.raises(PySparkException, match=r"partitioned by month\(at\), n, so PARTITION \(\.\.\.\) names no rows exactly"):
        spark.sql(f"ALTER TABLE lake.a.t DROP PARTITION ({said})")
    spark.sql("CREATE TABLE lake.a.u (id INT)")
    with pytest.raises(AnalysisException, match="PARTITION"):
        spark.sql("SHOW PARTITIONS lake.a.u")
