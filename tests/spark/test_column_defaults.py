"""Columns that join with a default, through Spark: its own Parquet reader fills them in, and its writes store them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
from devkit.spec_defaults import DEFAULTS
from objcat.common.validation import TableType
from objcat.spark.native.relation import EXISTS_DEFAULT
from tests.spark.sessions import of_widened

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string())])
PLAIN = [(kind, value) for kind, value in DEFAULTS if kind != "binary"]
"""Spark's own reader fills in no bytes; Python workers do."""
NAMES = [f"d{number}" for number in range(len(PLAIN))]


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return table.sort_by("id").to_pylist()


def check(table: objcat.Table, spark: SparkSession, *, native: bool = True, **scan: Any) -> list[dict[str, Any]]:
    """The rows by the local engine and by Spark's own plan, which agree."""
    own = sorted_rows(table.scan(**scan).to_arrow())
    frame = table.scan(**scan).to_spark(spark)
    assert not any(field.metadata for field in frame.schema.fields), "the default leaks into the user's frame"
    assert ("MapInArrow" not in frame._jdf.queryExecution().executedPlan().toString()) == native
    found = frame.toArrow().cast(table.scan(**scan).schema)
    assert sorted_rows(found) == own
    return own


@pytest.mark.parametrize("vectorized", ["true", "false"])
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_every_type(spark: SparkSession, tmp_path: Path, kind: TableType, vectorized: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(2))
    table.insert([{"id": n, "city": f"c{n}"} for n in range(20)])
    table.upsert([{"id": n, "city": "log"} for n in range(3, 9)])
    table.alter.apply([objcat.AddColumn(name, kind, default=value) for name, (kind, value) in zip(NAMES, PLAIN, strict=True)])
    table.alter.add_column("never", "int", default=7, nullable=False)
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
    try:
        found = check(table, spark)
        assert found[0]["d3"] == -5 and found[5]["d3"] == -5
        table.upsert(spark.createDataFrame([(4, "spark"), (30, "spark")], "id long, city string"))
        table.upsert([{"id": 5, "city": "null", **dict.fromkeys(NAMES)}])
        table.delete([{"id": 6}])
        found = check(table, spark)
        assert {row["id"]: row["d3"] for row in found if row["id"] in (4, 5, 30)} == {4: -5, 5: None, 30: -5}
        for name in NAMES:
            assert [row["id"] for row in check(table, spark, where=f"{name} is null")] == [5]
            assert len(check(table, spark, where=f"{name} is not null", columns=["id", name])) == 19
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
    table.maintenance.compact(spark=spark)
    assert sorted_rows(table.scan().to_arrow()) == found
    check(table, spark)


@of_widened
def test_filters_pruning_and_changes_of_the_schema(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    table.insert([{"id": n, "city": f"c{n}"} for n in range(40)])
    table.alter.add_column("n", "int", default=5)
    table.upsert([{"id": 1, "n": 6}, {"id": 41, "n": 7}])
    for where, count in (("n = 5", 39), ("n > 5", 2), ("n <> 5", 2), ("n in (6, 8)", 1), ("n < 5", 0), ("n is null", 0)):
        assert len(check(table, spark, where=where)) == count, where
        assert table.scan().to_spark(spark).where(where).count() == count, where
    table.alter.apply([objcat.RenameColumn("n", "m"), objcat.WidenColumn("m", "bigint"), objcat.AddColumn("n", "int", default=1)])
    assert {(row["m"], row["n"]) for row in check(table, spark)} == {(5, 1), (6, 1), (7, 1)}
    table.alter.drop_column("m")
    check(table, spark)
    assert EXISTS_DEFAULT not in str(table.scan().to_spark(spark).schema.json())


def test_sql_and_computed_writes(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    lake.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')", spark)
    lake.sql("ALTER TABLE t ADD COLUMN n INT DEFAULT 5", spark)
    lake.sql("ALTER TABLE t ADD COLUMN at TIMESTAMP DEFAULT TIMESTAMP '2020-01-01 00:00:00Z'", spark)
    lake.sql("ALTER TABLE t ALTER COLUMN n SET DEFAULT 6", spark)
    lake.sql("INSERT INTO t (id, city) VALUES (3, 'c')", spark)
    lake.sql("UPDATE t SET city = 'five' WHERE n = 5 AND id = 1", spark)
    lake.sql(
        "MERGE INTO t USING (SELECT 2L id, 'm' city UNION ALL SELECT 9L, 'm') s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET city = s.city WHEN NOT MATCHED THEN INSERT (id, city) VALUES (s.id, s.city)"
    )
    found = {row["id"]: (row["city"], row["n"]) for row in check(lake.table("t"), spark)}
    assert found == {1: ("five", 5), 2: ("m", 5), 3: ("c", 6), 9: ("m", 6)}
    assert len({row["at"] for row in lake.table("t").scan().to_arrow().to_pylist()}) == 1
    lake.table("t").upsert_partial(spark.createDataFrame([(1, "p"), (10, "p")], "id long, city string"))
    found = {row["id"]: (row["city"], row["n"]) for row in check(lake.table("t"), spark)}
    assert found[1] == ("p", 5) and found[10] == ("p", 6)


def test_tables_are_created_with_defaults_by_a_statement(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, n INT DEFAULT 5, w STRING NOT NULL DEFAULT 'it''s', b BINARY DEFAULT X'00ff')", spark)
    lake.sql("INSERT INTO t (id) VALUES (1)", spark)
    lake.sql("INSERT INTO t VALUES (2, DEFAULT, DEFAULT, DEFAULT), (3, 7, 'w', NULL)", spark)
    lake.sql("UPDATE t SET n = DEFAULT WHERE id = 3", spark)
    lake.sql(
        "MERGE INTO t USING (SELECT 4L id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, n, w) VALUES (s.id, DEFAULT, DEFAULT)", spark
    )
    default = {"n": 5, "w": "it's", "b": b"\x00\xff"}
    expected: list[dict[str, Any]] = [{"id": one, **default} for one in (1, 2, 3, 4)]
    expected[2] |= {"w": "w", "b": None}
    assert check(lake.table("t"), spark, native=True) == expected


def test_bytes_and_increments(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.insert([{"id": n, "city": "x"} for n in range(4)])
    since = table.refresh().slot
    table.upsert([{"id": 1, "city": "log"}])
    table.alter.apply([objcat.AddColumn("b", "binary", default=b"\x00\xff"), objcat.AddColumn("n", "int", default=5)])
    table.upsert([{"id": 2, "n": 7}])
    assert {row["b"] for row in check(table, spark, native=False)} == {b"\x00\xff"}
    check(table, spark, columns=["id", "n"])
    for columns in (["id", "n"], ["id", "b"]):
        feed = table.incremental(since=since, columns=columns)
        assert sorted_rows(feed.to_spark(spark).toArrow()) == sorted_rows(feed.to_arrow())
        assert feed.to_arrow().num_rows == 2


@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_columns_joined_in_any_place_with_files_of_every_age(spark: SparkSession, tmp_path: Path, vectorized: str) -> None:
    """Spark's reader of single rows confuses columns that a file has with defaults before them."""
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    changes = [
        objcat.AddColumn("a", "int", default=1, first=True),
        objcat.AddColumn("b", "string"),
        objcat.AddColumn("c", "int", default=3, after="a"),
        objcat.AddColumn("d", "boolean", default=True, first=True),
        objcat.AddColumn("e", "int", after="id"),
        objcat.DropColumn("c"),
        objcat.AddColumn("f", "string", default="f", first=True),
    ]
    for number, change in enumerate(changes):
        known = {name: number for name in ("a", "c", "e") if name in table.schema.names}
        table.upsert([{"id": 2 * number, "city": "told", **known}, {"id": 2 * number + 1, "city": "left out"}])
        if number == 3:
            table.maintenance.compact()
        table.alter.apply([change])
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
    try:
        assert len(check(table, spark)) == 2 * len(changes)
        check(table, spark, where="a = 1", columns=["id", "d", "a"])
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
