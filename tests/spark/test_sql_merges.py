"""Merges of `df.mergeInto(...)`, and those that change the schema: what `Table.merge` writes, as one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
import objcat.spark
from objcat.spark import versions

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("amount", pa.float64())])
SCHEMA_TEXT = "id long, city string, amount double"
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


def check_twins(lake: objcat.Lake) -> None:
    assert rows(lake) == rows(lake, "shop.twins")
    orders, twins = lake.table("shop.orders"), lake.table("shop.twins")
    assert orders.snapshot.slot == twins.snapshot.slot, "one commit for each"
    assert orders.schema == twins.schema


def test_frames_merge_what_the_method_merges(spark: SparkSession, lake: objcat.Lake) -> None:
    # An int meets a bigint: the cast that Spark adds hides no key.
    more = spark.createDataFrame([(3, "Bergen", 30.0), (9, "q'`", 90.0), (4, "Bari", 1.0)], "id int, city string, amount double")
    twins = lake.table("shop.twins")
    more.alias("s").mergeInto(
        "lake.shop.orders", F.col("orders.id") == F.col("s.id")
    ).whenMatched().updateAll().whenNotMatched().insertAll().merge()
    twins.merge(more.withColumn("id", F.col("id").cast("long"))).when_matched_update().when_not_matched_insert().execute()
    check_twins(lake)
    source = more.withColumn("id", F.col("id").cast("long"))
    amount, merging = F.col("s.amount"), source.alias("s").mergeInto("lake.shop.orders", F.expr("lake.shop.orders.id = s.id"))
    merging = merging.whenMatched(amount > 80).delete()
    merging = merging.whenMatched().update({"city": F.upper(F.concat(F.col("s.city"), F.lit("'`"))), "amount": F.expr("orders.amount + 1")})
    merging = merging.whenNotMatchedBySource(F.expr("orders.id = 0")).delete()
    merging.whenNotMatchedBySource(F.expr("orders.id = 1")).update({"city": F.lit("alone")}).merge()
    twins.merge(source).when_matched_delete(where="source.amount > 80").when_matched_update(
        {"city": "upper(concat(source.city, '''`'))", "amount": "target.amount + 1"}
    ).when_not_matched_by_source_delete(where="target.id = 0").when_not_matched_by_source_update(
        {"city": "'alone'"}, where="target.id = 1"
    ).execute()
    check_twins(lake)
    new = spark.createDataFrame([(20, "x", 1.0), (21, "y", 2.0)], SCHEMA_TEXT)
    new.alias("n").mergeInto("lake.shop.orders", F.expr("orders.id = n.id")).whenNotMatched(F.expr("n.id = 20")).insert(
        {"id": F.col("n.id"), "city": F.lit("new")}
    ).merge()
    twins.merge(new).when_not_matched_insert({"id": "source.id", "city": "'new'"}, where="source.id = 20").execute()
    check_twins(lake)
    assert [row["city"] for row in rows(lake)] == ["alone", "Rome", "BERGEN'`", "BARI'`", "Oslo", "new"]


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (
            lambda merging: merging.whenMatched().update({"city": F.udf(lambda text: text)(F.col("s.city"))}),
            "a function of a program or a lambda",
        ),
        (
            lambda merging: merging.whenMatched().update(
                {"amount": F.aggregate(F.array("s.amount"), F.lit(0.0), lambda sum_, one: sum_ + one)}
            ),
            "a function of a program or a lambda",
        ),
        (lambda merging: merging.whenMatched().update({"id": F.lit(7)}), "'id' is a key column, which identifies the row"),
    ],
)
def test_what_has_no_text_is_refused(spark: SparkSession, lake: objcat.Lake, act: Callable[[Any], Any], sentence: str) -> None:
    more = spark.createDataFrame([(3, "Bergen", 30.0)], SCHEMA_TEXT)
    with pytest.raises(PySparkException, match=sentence):
        act(more.alias("s").mergeInto("lake.shop.orders", F.expr("orders.id = s.id"))).merge()
    with pytest.raises(PySparkException, match="rows are matched by the key of the table"):
        more.alias("s").mergeInto("lake.shop.orders", F.expr("orders.city = s.city")).whenMatched().delete().merge()
    assert lake.table("shop.orders").snapshot.slot == 1


def evolve(more: DataFrame, table: objcat.Table) -> None:
    table.merge(more, schema_mode="add").when_matched_update().when_not_matched_insert().execute()


def test_a_source_brings_columns(spark: SparkSession, lake: objcat.Lake) -> None:
    twins = lake.table("shop.twins")
    more = spark.createDataFrame([(3, 1.0, "three"), (9, 2.0, "nine")], "id long, amount double, note string")
    with pytest.raises(AnalysisException):
        spark.sql("MERGE INTO lake.shop.orders t USING {more} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET note = s.note", more=more)
    whole = more.selectExpr("id", "'here' AS city", "amount", "note")
    spark.sql(
        "MERGE WITH SCHEMA EVOLUTION INTO lake.shop.orders t USING {whole} s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        whole=whole,
    )
    evolve(whole, twins)
    check_twins(lake)
    assert [(row["id"], row["note"]) for row in rows(lake) if row["note"]] == [(3, "three"), (9, "nine")]
    again = whole.withColumn("more", F.struct(F.lit(1).alias("x")))
    again.alias("s").mergeInto("lake.shop.orders", F.expr("orders.id = s.id")).withSchemaEvolution().whenMatched().updateAll().merge()
    twins.merge(again, schema_mode="add").when_matched_update().execute()
    check_twins(lake)
    assert rows(lake)[3]["more"] == {"x": 1} and rows(lake)[0]["more"] is None
    spark.sql("MERGE WITH SCHEMA EVOLUTION INTO lake.shop.orders t USING {more} s ON t.id = s.id WHEN MATCHED THEN DELETE", more=more)
    assert len(rows(lake)) == 5 and lake.table("shop.orders").schema.names == ["id", "city", "amount", "note", "more"]


@pytest.mark.skipif(versions.VERSION < (4, 1), reason="Spark asks a table for columns that a clause names since version 4.1")
def test_a_clause_names_a_column_that_the_table_lacks(spark: SparkSession, lake: objcat.Lake) -> None:
    twins = lake.table("shop.twins")
    more = spark.createDataFrame([(3, 1.0, "three"), (9, 2.0, "nine")], "id long, amount double, note string")
    statement = (
        "MERGE WITH SCHEMA EVOLUTION INTO lake.shop.orders t USING {more} s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET note = s.note, city = upper(t.city) "
        "WHEN NOT MATCHED THEN INSERT (id, city, note) VALUES (s.id, 'here', s.note)"
    )
    assert "Error" not in spark.sql(f"EXPLAIN {statement}", more=more).collect()[0].plan
    check_twins(lake)
    spark.sql(statement, more=more)
    twins.merge(more, schema_mode="add").when_matched_update({"note": "source.note", "city": "upper(target.city)"}).when_not_matched_insert(
        {"id": "source.id", "city": "'here'", "note": "source.note"}
    ).execute()
    check_twins(lake)
    assert [(row["id"], row["note"]) for row in rows(lake) if row["note"]] == [(3, "three"), (9, "nine")]
    wider = more.selectExpr("CAST(id AS INT) AS id", "note AS remark")
    merging = wider.alias("s").mergeInto("lake.shop.orders", F.expr("orders.id = s.id")).withSchemaEvolution()
    merging.whenMatched().update({"remark": F.col("s.remark")}).merge()
    twins.merge(wider, schema_mode="add").when_matched_update({"remark": "source.remark"}).execute()
    check_twins(lake)
    assert rows(lake)[3]["remark"] == "three" and lake.table("shop.orders").schema.field("id").type == pa.int64()
    slot = lake.table("shop.orders").snapshot.slot
    with pytest.raises(AnalysisException, match="other"):
        spark.sql(
            "MERGE WITH SCHEMA EVOLUTION INTO lake.shop.orders t USING {more} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET other = s.note",
            more=more,
        )
    assert lake.table("shop.orders").snapshot.slot == slot


@pytest.mark.skipif(versions.VERSION < (4, 3), reason="Spark has INSERT WITH SCHEMA EVOLUTION since version 4.3")
def test_an_insert_brings_columns(spark: SparkSession, lake: objcat.Lake) -> None:
    spark.sql("EXPLAIN INSERT WITH SCHEMA EVOLUTION INTO lake.shop.orders BY NAME SELECT 20L AS id, 'new' AS note")
    check_twins(lake)
    spark.sql("INSERT WITH SCHEMA EVOLUTION INTO lake.shop.orders BY NAME SELECT 20L AS id, 'Bari' AS city, 'new' AS note")
    lake.table("shop.twins").insert([{"id": 20, "city": "Bari", "amount": None, "note": "new"}], schema_mode="add")
    check_twins(lake)
    with pytest.raises(AnalysisException):
        spark.sql("INSERT INTO lake.shop.orders BY NAME SELECT 21L AS id, 'other' AS other")
