"""Rows that `spark.sql` and the writers of a DataFrame write to a lake: what the methods of a table write, by the same jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
import objcat.spark
from tests.spark.plans import jobs_of, text_of
from tests.spark.sessions import FILLS_COLUMNS, HAS_CALL, KEEPS_PARAMETERS, session

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("amount", pa.float64())])
ROWS = [{"id": i, "city": ("Rome", "Oslo")[i % 2], "amount": i / 2} for i in range(6)]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[objcat.Lake]:
    """Two tables of the same rows, `shop.orders` and `shop.twins`, in a lake that the session knows as `lake`."""
    lake = objcat.connect(tmp_path)
    for name in ("shop.orders", "shop.twins"):
        lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(2)).insert(ROWS)
    found = objcat.spark.views(spark, lake)
    yield lake
    found.close()


def rows(lake: objcat.Lake, name: str = "shop.orders") -> list[dict[str, Any]]:
    return sorted(lake.table(name).scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def slot(lake: objcat.Lake, name: str = "shop.orders") -> int:
    return lake.table(name).snapshot.slot


def frame(spark: SparkSession, *given: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(given), "id long, city string, amount double")


def test_an_update_computes_its_rows_in_the_job_that_writes_them(spark: SparkSession, lake: objcat.Lake) -> None:
    before = jobs_of(spark, "objcat: compute the rows")
    spark.sql("UPDATE lake.shop.orders SET amount = amount + 1 WHERE city = 'Rome'")
    spark.sql("UPDATE lake.shop.orders SET amount = amount + 1 WHERE city = 'nowhere'")
    assert jobs_of(spark, "objcat: compute the rows") == before
    updated = lake.table("shop.twins").update({"amount": "amount + 1"}, where="city = 'Rome'", spark=spark)
    assert updated is not None and updated.updated
    assert jobs_of(spark, "objcat: compute the rows") > before, "a count is a job of its own"
    assert rows(lake) == rows(lake, "shop.twins")


def test_statements_write_what_the_methods_write(spark: SparkSession, lake: objcat.Lake) -> None:
    twins = lake.table("shop.twins")
    more = frame(spark, (3, "Bergen", 30.0), (9, "Bergen", 90.0))
    spark.sql("INSERT INTO lake.shop.orders VALUES (7, 'x', 1.5)")
    twins.insert([{"id": 7, "city": "x", "amount": 1.5}])
    spark.sql("UPDATE lake.shop.orders AS o SET amount = o.amount + 1 WHERE o.city = 'Rome'")
    twins.update({"amount": "amount + 1"}, where="city = 'Rome'", spark=spark)
    spark.sql("DELETE FROM lake.shop.orders WHERE id = 5")
    twins.delete("id = 5", spark=spark)
    spark.sql(
        "MERGE INTO lake.shop.orders t USING {more} AS s ON t.id = s.id WHEN MATCHED AND s.amount > 100 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET amount = t.amount + s.amount WHEN NOT MATCHED THEN INSERT * "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 0 THEN DELETE WHEN NOT MATCHED BY SOURCE AND t.id = 1 THEN UPDATE SET city = 'alone'",
        more=more,
    )
    twins.merge(more).when_matched_delete(where="source.amount > 100").when_matched_update(
        {"amount": "target.amount + source.amount"}
    ).when_not_matched_insert().when_not_matched_by_source_delete(where="target.id = 0").when_not_matched_by_source_update(
        {"city": "'alone'"}, where="target.id = 1"
    ).execute()
    assert rows(lake) == rows(lake, "shop.twins") and {row["city"] for row in rows(lake)} == {"alone", "Rome", "Oslo", "Bergen", "x"}
    assert slot(lake) == slot(lake, "shop.twins"), "one commit for each"
    actions = [lake.table(name).inspect.history().to_arrow().column("action").to_pylist() for name in ("shop.orders", "shop.twins")]
    assert actions[0] == actions[1]
    spark.sql("TRUNCATE TABLE lake.shop.orders")
    assert not rows(lake)


def test_no_command_writes_before_it_runs(spark: SparkSession, lake: objcat.Lake) -> None:
    lake.create_table("shop.parts", SCHEMA, key=["id", "city"], partition_by=["city"], index=objcat.BucketIndex(1)).insert(ROWS)
    with session(spark, spark__sql__sources__partitionOverwriteMode="dynamic"):
        for statement in (
            "INSERT INTO lake.shop.orders VALUES (100, 'x', 1.0)",
            "INSERT OVERWRITE lake.shop.parts VALUES (100, 'x', 1.0)",
            "DELETE FROM lake.shop.orders WHERE id >= 0",
            "UPDATE lake.shop.orders SET amount = 0",
            "MERGE INTO lake.shop.orders t USING lake.shop.twins s ON t.id = s.id WHEN MATCHED THEN DELETE",
            "TRUNCATE TABLE lake.shop.orders",
            "CREATE TABLE lake.shop.more AS SELECT 1 AS id",
            "DROP TABLE lake.shop.orders",
            "ALTER TABLE lake.shop.orders ADD COLUMNS (more INT)",
            *(["CALL lake.savepoint(table => 'shop.orders', name => 'one')"] if HAS_CALL else []),
        ):
            plan = spark.sql(f"EXPLAIN EXTENDED {statement}").collect()[0].plan
            assert "Physical Plan" in plan and "Error" not in plan, statement
    assert (slot(lake), slot(lake, "shop.parts"), len(lake.tables())) == (1, 1, 3)


def test_a_statement_runs_the_jobs_of_its_method(spark: SparkSession, lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[DataFrame] = []
    merge = objcat.Table.merge

    def kept(table: objcat.Table, source: Any, **named: Any) -> Any:
        sources.append(source)
        return merge(table, source, **named)

    monkeypatch.setattr(objcat.Table, "merge", kept)

    def jobs(group: str, work: Callable[[], Any]) -> int:
        spark.sparkContext.setJobGroup(group, group)
        work()
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))

    def by_method() -> None:
        source = lake.table("shop.twins").scan(where="id < 3").to_spark(spark)
        lake.table("shop.twins").merge(source).when_matched_update({"amount": "source.amount + 1"}).execute(counts=False)

    ran = jobs(
        "statement",
        lambda: spark.sql(
            "MERGE INTO lake.shop.orders t USING (SELECT * FROM lake.shop.orders WHERE id < 3) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET amount = s.amount + 1"
        ),
    )
    assert ran == jobs("method", by_method) > 0
    texts = [text_of(source) for source in sources]
    assert "MapInArrow" not in texts[0] and [text.count("FileScan") for text in texts] == [texts[1].count("FileScan")] * 2
    for statement, method in (
        ("DELETE FROM lake.shop.orders WHERE id = 4", lambda: lake.table("shop.twins").delete("id = 4", spark=spark)),
        (
            "UPDATE lake.shop.orders SET city = 'x' WHERE id = 3",
            lambda: lake.table("shop.twins").update({"city": "'x'"}, where="id = 3", spark=spark, counts=False),
        ),
        ("INSERT INTO lake.shop.orders VALUES (20, 'y', 1.0)", lambda: lake.table("shop.twins").insert(frame(spark, (20, "y", 1.0)))),
    ):
        assert jobs(statement, partial(spark.sql, statement)) == jobs(f"method of {statement}", method), statement
    assert rows(lake) == rows(lake, "shop.twins")


def test_columns_go_by_position_and_by_name(spark: SparkSession, lake: objcat.Lake) -> None:
    lake.table("shop.orders").alter.add_column("note", "string", default="none")
    if FILLS_COLUMNS:
        spark.sql("INSERT INTO lake.shop.orders (amount, id) VALUES (2.5, 101), (3, 102)")
    else:
        with pytest.raises(AnalysisException, match="Cannot find data for the output column `city`"):
            spark.sql("INSERT INTO lake.shop.orders (amount, id) VALUES (2.5, 101), (3, 102)")
        spark.sql("INSERT INTO lake.shop.orders (amount, id, note, city) VALUES (2.5, 101, DEFAULT, NULL), (3, 102, 'none', NULL)")
    spark.sql("INSERT INTO lake.shop.orders BY NAME SELECT 'y' AS city, 103 AS id, 'said' AS note, NULL AS amount")
    spark.sql("INSERT INTO lake.shop.orders VALUES (104, NULL, 1, DEFAULT)")
    assert [tuple(row.values()) for row in rows(lake)[6:]] == [
        (101, None, 2.5, "none"),
        (102, None, 3.0, "none"),
        (103, "y", None, "said"),
        (104, None, 1.0, "none"),
    ]
    before = slot(lake)
    spark.sql("INSERT INTO lake.shop.orders SELECT * FROM lake.shop.orders WHERE id < 0")
    assert slot(lake) == before, "no rows, no commit"
    for statement in ("VALUES (1, 'x')", "VALUES ('word', 'x', 1.0, 'n')", "BY NAME SELECT 1 AS id, 2 AS town"):
        with pytest.raises(AnalysisException):
            spark.sql(f"INSERT INTO lake.shop.orders {statement}")
    assert slot(lake) == before


def test_values_may_have_the_time_of_the_query(spark: SparkSession, lake: objcat.Lake) -> None:
    text = "VALUES (7, date_format(current_timestamp(), 'y') || 'x', 1.0D)"
    spark.sql(f"INSERT INTO lake.shop.orders {text}")
    lake.table("shop.twins").insert(spark.sql(f"SELECT col1 AS id, col2 AS city, col3 AS amount FROM ({text})"))
    assert rows(lake) == rows(lake, "shop.twins") and rows(lake)[6]["city"].endswith("x")


def test_a_table_is_read_and_written_in_one_statement(spark: SparkSession, lake: objcat.Lake) -> None:
    spark.sql(
        "INSERT INTO lake.shop.orders SELECT a.id + 100, b.city, a.amount FROM lake.shop.orders a JOIN lake.shop.orders b ON a.id = b.id"
    )
    assert len(rows(lake)) == 12
    spark.sql("MERGE INTO lake.shop.orders t USING (SELECT max(id) AS id FROM lake.shop.orders) s ON t.id = s.id WHEN MATCHED THEN DELETE")
    spark.sql("INSERT OVERWRITE lake.shop.orders SELECT * FROM lake.shop.orders WHERE id >= 100")
    assert [row["id"] for row in rows(lake)] == [100, 101, 102, 103, 104]
    before = slot(lake)
    with pytest.raises(PySparkException, match=r"writes to lake\.shop\.orders and reads it in a subquery, which is not supported"):
        spark.sql("INSERT INTO lake.shop.orders SELECT 1, 'x', 1.0 WHERE EXISTS (SELECT 1 FROM lake.shop.orders WHERE id = 100)")
    assert slot(lake) == before


def test_overwrites_replace_what_spark_says(spark: SparkSession, lake: objcat.Lake) -> None:
    parts = lake.create_table("shop.parts", SCHEMA, key=["id", "city"], partition_by=["city"], index=objcat.BucketIndex(1))
    parts.insert(ROWS)

    def found() -> list[tuple[int, str]]:
        return [(row["id"], row["city"]) for row in rows(lake, "shop.parts")]

    spark.sql("INSERT OVERWRITE lake.shop.parts PARTITION (city = 'Rome') VALUES (70, 1.0)")
    assert found() == [(1, "Oslo"), (3, "Oslo"), (5, "Oslo"), (70, "Rome")]
    with session(spark, spark__sql__sources__partitionOverwriteMode="dynamic"):
        spark.sql("WITH w AS (SELECT 80 AS id, 'Oslo' AS city, 1.0 AS amount) INSERT OVERWRITE lake.shop.parts SELECT * FROM w")
        assert found() == [(70, "Rome"), (80, "Oslo")]
        spark.sql("INSERT OVERWRITE lake.shop.parts SELECT * FROM lake.shop.parts WHERE false")
    frame(spark, (81, "Oslo", 1.0)).writeTo("lake.shop.parts").overwritePartitions()
    frame(spark, (71, "Rome", 1.0)).writeTo("lake.shop.parts").overwrite(F.col("city") == "Rome")
    assert found() == [(71, "Rome"), (81, "Oslo")]
    spark.sql("INSERT OVERWRITE lake.shop.parts PARTITION (city = 'Rome') SELECT 1, 1.0 WHERE false")
    assert found() == [(81, "Oslo")], "no rows, and the partition is empty"
    spark.sql("INSERT OVERWRITE lake.shop.parts VALUES (90, 'Bergen', 1.0)")
    assert found() == [(90, "Bergen")]
    with pytest.raises(IllegalArgumentException, match="amount"):
        frame(spark, (1, "Bergen", 1.0)).writeTo("lake.shop.parts").overwrite(F.col("amount") > 3)
    spark.sql("INSERT OVERWRITE lake.shop.parts SELECT * FROM lake.shop.twins WHERE false")
    assert found() == []


def test_frames_are_written_by_sparks_own_writers(spark: SparkSession, lake: objcat.Lake) -> None:
    more = frame(spark, (10, "Rome", 1.0), (11, "Oslo", 2.0))
    more.select("amount", "id", "city").writeTo("lake.shop.orders").append()
    more.withColumn("id", F.col("id") + 10).write.insertInto("lake.shop.orders")
    more.withColumn("id", F.col("id") + 20).write.mode("append").saveAsTable("lake.shop.orders")
    assert [row["id"] for row in rows(lake)[6:]] == [10, 11, 20, 21, 30, 31]
    more.write.insertInto("lake.shop.orders", overwrite=True)
    assert [row["id"] for row in rows(lake)] == [10, 11]
    more.writeTo("lake.shop.made").using("objcat").tableProperty("key", "id").tableProperty("notes.by", "ana").create()
    assert lake.table("shop.made").key == ["id"] and lake.table("shop.made").properties == {"notes.by": "ana"}
    more.where("id = 10").writeTo("lake.shop.made").replace()
    assert [row["id"] for row in rows(lake, "shop.made")] == [10] and lake.table("shop.made").key == ["id"], "the table stays"
    more.writeTo("lake.shop.made").createOrReplace()
    more.write.mode("overwrite").saveAsTable("lake.shop.made")
    more.write.mode("ignore").saveAsTable("lake.shop.made")
    more.write.partitionBy("city").saveAsTable("lake.shop.saved")
    assert lake.table("shop.saved").partitioning == ["city"] and len(rows(lake, "shop.saved")) == 2
    for work in (lambda: more.writeTo("lake.shop.made").create(), lambda: more.write.saveAsTable("lake.shop.made")):
        with pytest.raises(AnalysisException, match="already exists"):
            work()
    with pytest.raises(AnalysisException):
        more.writeTo("lake.shop.none").append()
    with pytest.raises(IllegalArgumentException, match="takes no options, but mergeSchema is given"):
        more.writeTo("lake.shop.made").option("mergeSchema", "true").append()
    assert slot(lake, "shop.made") == 4


def test_names_parameters_and_scripts_are_those_of_the_session(spark: SparkSession, lake: objcat.Lake) -> None:
    frame(spark, (3, "view", 2.5)).createOrReplaceTempView("news")
    try:
        spark.sql("USE lake.shop")
        spark.sql("MERGE INTO orders USING news ON orders.id = news.id WHEN MATCHED THEN UPDATE SET orders.city = news.city")
        spark.sql("WITH w AS (SELECT 4L AS id) MERGE INTO shop.orders USING w ON orders.id = w.id WHEN MATCHED THEN DELETE")
        deletes, updates = "DELETE FROM orders WHERE id = :which AND city = 'Oslo'", "UPDATE orders SET city = ? WHERE id = ?"
        if KEEPS_PARAMETERS:
            spark.sql(deletes, args={"which": 5})
            spark.sql(updates, args=["it's", 0])
            spark.sql("BEGIN UPDATE orders SET amount = 77 WHERE id = 1; DELETE FROM orders WHERE id = 2; END")
        else:
            with pytest.raises(IllegalArgumentException, match=r"The parameter :which is not supported in this statement\. Nothing was"):
                spark.sql(deletes, args={"which": 5})
            spark.sql(deletes.replace(":which", "5"))
            spark.sql(updates.replace("?", "'it''s'", 1).replace("?", "0"))
            spark.sql("INSERT INTO orders VALUES (:which, 'Oslo', 77)", args={"which": 1})
            spark.sql("DELETE FROM orders WHERE id = 2")
    finally:
        spark.sql("USE spark_catalog.default")
        spark.catalog.dropTempView("news")
    assert [tuple(row.values()) for row in rows(lake)] == [(0, "it's", 0.0), (1, "Oslo", 77.0), (3, "view", 1.5)]


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("DELETE FROM lake.shop.orders WHERE id IN (SELECT 3)", r"A filter with a subquery is not supported\. Use MERGE INTO"),
        ("UPDATE lake.shop.orders SET id = 3", "'id' is a key column, which identifies the row"),
        (
            "MERGE INTO lake.shop.orders t USING lake.shop.twins s ON t.city = s.city WHEN MATCHED THEN DELETE",
            "key",
        ),
        ("INSERT INTO lake.shop.orders VALUES (NULL, 'x', 1.5)", r"The key column 'id' is null .* Nothing was written"),
        ("INSERT INTO lake.shop.orders SELECT id, city, raise_error('broken row') FROM lake.shop.twins", "broken row"),
    ],
)
def test_errors_are_those_of_the_methods(spark: SparkSession, lake: objcat.Lake, statement: str, sentence: str) -> None:
    with pytest.raises(PySparkException, match=sentence) as caught:
        spark.sql(statement)
    assert "Traceback" not in str(caught.value)
    assert slot(lake) == 1


def test_an_error_that_is_no_mistake_of_the_user_has_its_name(
    spark: SparkSession, lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> Any:
        raise objcat.errors.TableClosed("it was dropped. Open it again.")

    monkeypatch.setattr(objcat.Table, "insert", lost)
    with pytest.raises(PySparkException, match=r"^TableClosed: it was dropped\. Open it again\.$"):
        spark.sql("INSERT INTO lake.shop.orders VALUES (1, 'x', 1.5)")
