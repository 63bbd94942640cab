"""SQL over a lake with a Spark session: queries are lazy frames over native reads, and writes go through Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.errors import InvalidSql, SparkJobFailed
from tests.spark.sessions import session
from tests.sql.meanings import AGGREGATED, AGGREGATES, MEANINGS, QUERY, ROWS
from tests.sql.meanings import SCHEMA as MEANT

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("amount", pa.float64())])


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path)
    lake.sql("CREATE NAMESPACE shop")
    table = lake.create_table("shop.orders", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    table.insert([{"id": i, "city": ("Rome", "Oslo {x}")[i % 2], "amount": i / 2} for i in range(40)])
    table.upsert([{"id": 1, "city": None, "amount": 100.0}])
    return lake


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) AS n FROM shop.orders",
        "SELECT o.city, sum(amount) AS total FROM shop.orders o WHERE o.id < 30 GROUP BY o.city",
        "SELECT id FROM shop.orders WHERE city = 'Oslo {x}' AND id < 9",
        (
            "WITH o AS (SELECT * FROM shop.orders) "
            "SELECT a.id, b.amount FROM o a JOIN shop.orders VERSION AS OF 1 b ON a.id = b.id WHERE a.id < 3"
        ),
        "SELECT id FROM shop.orders WHERE id IN (SELECT max(id) FROM shop.orders)",
        "SELECT 1 AS one",
    ],
)
def test_both_engines_answer_alike(spark: SparkSession, lake: objcat.Lake, query: str) -> None:
    found = lake.sql(query, spark)
    assert isinstance(found, DataFrame)

    def rows(table: pa.Table) -> list[tuple[str, ...]]:
        return sorted(tuple(str(value) for value in row.values()) for row in table.to_pylist())

    assert rows(found.toArrow()) == rows(lake.sql(query)) and found.columns == lake.sql(query).column_names


def test_each_part_of_a_path_counts(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    rows = pa.table({"id": [1], "before": [{"rows": {"x": 11}}], "rows": [{"x": 21}], "x": [31]})
    lake.create_table("a.rows", rows.schema, key=["id"], index=objcat.BucketIndex(1)).insert(rows)
    query = "SELECT before.rows.x AS deep, rows.x AS x, a.rows.before.rows.x AS whole, a.rows.rows.x AS inner FROM a.rows"
    found = [row.asDict() for row in lake.sql(f"{query} WHERE before.rows.x = 11", spark).collect()]
    assert found == lake.sql(query).to_pylist() == [{"deep": 11, "x": 31, "whole": 11, "inner": 21}]


def test_a_query_is_lazy_and_pinned(spark: SparkSession, lake: objcat.Lake) -> None:
    before = spark.catalog.listTables()
    found = lake.sql("SELECT max(amount) AS m FROM shop.orders", spark)
    lake.sql("INSERT INTO shop.orders VALUES (100, 'x', 1000.0)")
    assert found.collect()[0].m == 100.0
    assert lake.sql("SELECT max(amount) AS m FROM shop.orders", spark).collect()[0].m == 1000.0
    assert spark.catalog.listTables() == before


def test_statements_write_through_spark(spark: SparkSession, lake: objcat.Lake) -> None:
    told = lake.sql("CREATE TABLE best TBLPROPERTIES ('key' = 'id') AS SELECT id, amount FROM shop.orders WHERE id >= 30", spark)
    assert told.collect()[0].rows == 10
    assert lake.table("best").scan().count() == 10
    lake.sql("INSERT INTO best (amount, id) SELECT amount, id + 100 FROM shop.orders WHERE id < 2", spark)
    lake.sql("INSERT INTO best VALUES (1, 7), (2, NULL)", spark)
    assert lake.sql("INSERT INTO best SELECT * FROM best WHERE id < 0", spark).collect()[0].asDict() == {
        "slot": None,
        "rows": 0,
        "inserted": 0,
        "updated": 0,
        "deleted": 0,
    }
    lake.sql("DELETE FROM best WHERE amount > 18 AND id < 100", spark)
    rows = {row["id"]: row["amount"] for row in lake.table("best").scan().to_arrow().to_pylist()}
    assert rows == {**{i: i / 2 for i in range(30, 37)}, 100: 0.0, 101: 100.0, 1: 7.0, 2: None}
    assert lake.sql("SHOW TABLES", spark).collect()[0]["table"] == "best"


def test_what_spark_refuses_is_one_sentence(spark: SparkSession, lake: objcat.Lake) -> None:
    with pytest.raises(InvalidSql, match="nonsense"):
        lake.sql("SELECT nonsense FROM shop.orders", spark)
    with pytest.raises(InvalidSql, match="INVALID_INLINE_TABLE"):
        lake.sql("SELECT * FROM VALUES (1, 1.6), (2, 'x') AS given", spark)
    with pytest.raises(InvalidSql, match="does not parse"):
        lake.sql("SELECT FROM WHERE", spark)


def test_functions_mean_what_they_mean_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.create_table("t", MEANT, key=["k"], index=objcat.BucketIndex(1)).insert(pa.Table.from_pylist(ROWS, schema=MEANT))
    found = lake.sql(QUERY, spark)
    assert isinstance(found, DataFrame)
    assert {text: column.to_pylist() for text, column in zip(MEANINGS, found.toArrow().columns, strict=True)} == MEANINGS
    (aggregated,) = lake.sql(AGGREGATED, spark).collect()
    assert dict(zip(AGGREGATES, aggregated, strict=True)) == AGGREGATES


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_an_insert_writes_no_other_value_than_was_given(spark: SparkSession, tmp_path: Path, ansi: str) -> None:
    """Without ANSI a cast of Spark's makes null of what does not fit, and something of a number that is too large."""
    lake = objcat.connect(tmp_path)
    nested = pa.struct([("numbers", pa.list_(pa.int32())), ("by_name", pa.map_(pa.string(), pa.int32()))])
    table = lake.create_table(
        "t", pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32()), ("nested", nested)]), key=["id"]
    )
    with session(spark, spark__sql__ansi__enabled=ansi):
        for said in (
            "(id) SELECT 1e30",
            "(id, n) SELECT 1, 3000000000",
            "(id, n) SELECT 1, 'abc'",
            "(id, nested) SELECT 1, named_struct('numbers', array(3000000000), 'by_name', map())",
            "(id, nested) SELECT 1, named_struct('numbers', array(), 'by_name', map('a', 'abc'))",
        ):
            with pytest.raises(SparkJobFailed):
                lake.sql(f"INSERT INTO t {said}", spark)
        with pytest.raises(InvalidSql, match=r"Spark refused the query: .*cannot cast"):
            lake.sql("INSERT INTO t (id, n) SELECT 1, map(1, 2)", spark)
        assert table.refresh().slot == 0
        lake.sql("INSERT INTO t SELECT '1', 2.6, named_struct('these', array('4', null), 'those', map(5, '6', 7, null))", spark)
        lake.sql("INSERT INTO t VALUES (2, null, null)", spark)
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "n": 2, "nested": {"numbers": [4, None], "by_name": [("5", 6), ("7", None)]}},
        {"id": 2, "n": None, "nested": None},
    ]


TIMES = [
    "at = '2026-06-01 00:00:00'",
    "at BETWEEN '2026-06-01 00:00:00' AND TIMESTAMP '2026-06-01 00:30:00'",
    "at IN ('2026-06-01 00:00:00', null)",
    "TIMESTAMP_NTZ '2026-06-01 00:00:00' = at",
    "NOT t.AT < DATE '2026-06-01' AND v < 9",
    "at = '2026-06-01 04:00:00Z'",
]


@pytest.mark.parametrize("where", TIMES)
def test_a_time_in_a_statement_that_writes_is_the_one_that_a_query_finds(spark: SparkSession, tmp_path: Path, where: str) -> None:
    lake = objcat.connect(tmp_path)
    lake.sql("CREATE TABLE t (id BIGINT, at TIMESTAMP, v BIGINT, PRIMARY KEY (id)) CLUSTERED BY (id) INTO 1 BUCKETS")
    with session(spark, spark__sql__session__timeZone="America/New_York"):
        lake.sql("INSERT INTO t VALUES (1, '2026-06-01 00:00:00', 1), (2, '2026-05-31 20:00:00', 2)", spark)
        assert [row.id for row in lake.sql(f"SELECT id FROM t WHERE {where}", spark).collect()] == [1]
        lake.sql(f"UPDATE t SET v = 7 WHERE {where}", spark)
        assert sorted(lake.table("t").scan().to_arrow()["v"].to_pylist()) == [2, 7]
        lake.sql(f"DELETE FROM t WHERE {where}", spark)
    assert lake.table("t").scan().to_arrow()["id"].to_pylist() == [2]


MOMENTS = ["2026-05-31 20:00:00", "2026-06-01 00:00:00"]


@pytest.mark.parametrize("where", ["s.zoned = '2026-06-01 00:00:00'", "t.s.at > '2026-05-31 22:00:00'"])
def test_a_time_within_a_struct_is_the_one_that_a_query_finds(spark: SparkSession, tmp_path: Path, where: str) -> None:
    """With a zone or without one, whatever a column of the same name has."""
    lake = objcat.connect(tmp_path)
    lake.sql("CREATE TABLE t (id BIGINT, at TIMESTAMP, s STRUCT<zoned: TIMESTAMP, at: TIMESTAMP_NTZ>, v BIGINT, PRIMARY KEY (id))")
    rows = [f"({n}, null, named_struct('zoned', TIMESTAMP '{at}', 'at', TIMESTAMP_NTZ '{at}'), {n})" for n, at in enumerate(MOMENTS)]
    with session(spark, spark__sql__session__timeZone="America/New_York"):
        lake.sql(f"INSERT INTO t VALUES {', '.join(rows)}", spark)
        assert [row.id for row in lake.sql(f"SELECT id FROM t WHERE {where}", spark).collect()] == [1]
        lake.sql(f"UPDATE t SET v = 7 WHERE {where}", spark)
    assert sorted(lake.table("t").scan().to_arrow()["v"].to_pylist()) == [0, 7]


def test_a_time_names_the_partition_that_a_query_finds(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.sql("CREATE TABLE t (id BIGINT, at TIMESTAMP) PARTITIONED BY (at)")
    table = lake.table("t")
    with session(spark, spark__sql__session__timeZone="America/New_York"):
        lake.sql("INSERT INTO t VALUES (1, '2026-06-01 00:00:00'), (2, '2026-05-31 20:00:00')", spark)
        lake.sql("INSERT INTO t REPLACE WHERE at = '2026-06-01 00:00:00' VALUES (3, '2026-06-01 00:00:00')", spark)
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [2, 3]
        lake.sql("INSERT OVERWRITE t PARTITION (at = '2026-06-01 00:00:00') SELECT 4", spark)
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [2, 4]
        lake.sql("ALTER TABLE t DROP PARTITION (at = '2026-06-01 00:00:00')", spark)
    assert table.scan().to_arrow()["id"].to_pylist() == [2]


def test_services_tell_a_session_too(spark: SparkSession, lake: objcat.Lake) -> None:
    (report,) = lake.sql("CALL doctor('shop.orders')", spark).collect()
    assert report.healthy is True
    assert lake.sql("CALL stats('shop.orders')", spark).collect()[0].rows_exact in (True, False)
    assert lake.sql("CALL plan_erasure('shop.orders', 'id = -1')", spark).count() == 1
    assert lake.sql("CALL dropped_tables()", spark).columns == ["name", "table", "slot", "at_ms", "is_purged"]
    txn = lake.table("shop.orders").inspect.history()[0].txn
    assert [row.slot for row in lake.sql(f"CALL resolve('shop.orders', '{txn}')", spark).collect()] == [0]
    assert lake.sql("CALL erase('shop.orders', 'id = -1')", spark).count() == 1
