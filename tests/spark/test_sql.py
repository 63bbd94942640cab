"""SQL over a lake with a Spark session: queries are lazy frames over native reads, and writes go through Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.errors import InvalidSql
from tests.sql.meanings import AGGREGATED, AGGREGATES, MEANINGS, QUERY, ROWS
from tests.sql.meanings import SCHEMA as MEANT

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("amount", pa.float64())])


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path)
    lake.sql("CREATE NAMESPACE shop")
    table = lake.create_table("shop.orders", SCHEMA, key=["id"], index=objcat.Bucket(4))
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
    lake.create_table("a.rows", rows.schema, key=["id"], index=objcat.Bucket(1)).insert(rows)
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
    assert isinstance(told, DataFrame) and told.collect()[0].rows == 10
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
    lake.create_table("t", MEANT, key=["k"], index=objcat.Bucket(1)).insert(pa.Table.from_pylist(ROWS, schema=MEANT))
    found = lake.sql(QUERY, spark)
    assert isinstance(found, DataFrame)
    assert {text: column.to_pylist() for text, column in zip(MEANINGS, found.toArrow().columns, strict=True)} == MEANINGS
    (aggregated,) = lake.sql(AGGREGATED, spark).collect()
    assert dict(zip(AGGREGATES, aggregated, strict=True)) == AGGREGATES
