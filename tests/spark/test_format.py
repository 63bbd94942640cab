"""`format("objcat")`: the door for SQL and for whoever has nothing but Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])


def frame(spark: SparkSession, first: int, last: int, value: str) -> DataFrame:
    return spark.range(first, last, 1, 3).selectExpr("id", f"concat('{value}', id) as value")


def rows(found: DataFrame | pa.Table) -> dict[int, str]:
    table = found if isinstance(found, pa.Table) else found.toArrow()
    keys = table["id"].to_pylist()
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, table["value"].to_pylist(), strict=True))


def data_files(place: Path) -> set[str]:
    # os.walk passes over directories that a writer takes away meanwhile; Path.rglob raises
    return {
        os.path.join(directory, name)
        for directory, _, names in os.walk(place)
        for name in names
        if name.endswith(".parquet") and "/data/" in directory + "/"
    }


def test_the_first_write_creates_and_the_next_upserts(spark: SparkSession, tmp_path: Path) -> None:
    place = f"{tmp_path}/shop.orders"
    frame(spark, 0, 10, "a").write.format("objcat").mode("append").option("key", "id").option("buckets", "4").save(place)
    frame(spark, 5, 12, "b").write.format("objcat").mode("append").save(place)
    table = objcat.connect(tmp_path).table("shop.orders")
    expected = {i: f"{'a' if i < 5 else 'b'}{i}" for i in range(12)}
    assert rows(table.scan().to_arrow()) == expected
    assert table.spec.index.count == 4 and [column.name for column in table.spec.key_columns] == ["id"]
    assert rows(spark.read.format("objcat").load(place)) == expected
    assert rows(spark.read.format("objcat").option("as_of", "1").load(place)) == {i: f"a{i}" for i in range(10)}
    assert rows(spark.read.format("objcat").option("where", "id >= 10").load(place)) == {10: "b10", 11: "b11"}
    assert not [path for path in data_files(tmp_path) if "staged" in path]


def test_deletes_and_sql(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], kind="copy_on_write")
    table.insert([{"id": i, "value": "x"} for i in range(6)])
    spark.range(0, 3).write.format("objcat").mode("append").option("operation", "delete").save(f"{tmp_path}/t")
    assert sorted(rows(table.scan().to_arrow())) == [3, 4, 5]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW trips USING objcat OPTIONS (path '{tmp_path}/t')")
    spark.sql("INSERT INTO trips VALUES (7, 'seven')")
    assert [tuple(row) for row in spark.sql("SELECT id, value FROM trips WHERE id > 4 ORDER BY id").collect()] == [(5, "x"), (7, "seven")]


def test_an_empty_frame_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    frame(spark, 0, 0, "a").write.format("objcat").mode("append").save(f"{tmp_path}/t")
    assert table.refresh().slot == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"there is no table at .*/t: create it, or say of which key"),
        ({"key": "id", "buckets": "many"}, r"buckets='many' is not a whole number"),
        ({"key": "id", "kind": "merge_on_raed"}, r"did you mean 'merge_on_read'\?"),
        ({"key": "id", "orderin": "value"}, r"no option 'orderin': did you mean 'ordering'\?"),
        ({"key": "id", "operation": "upsret"}, r"did you mean 'upsert'\?"),
    ],
)
def test_bad_options_are_one_sentence_and_write_nothing(spark: SparkSession, tmp_path: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=said):
        frame(spark, 0, 3, "a").write.format("objcat").mode("append").options(**options).save(f"{tmp_path}/t")
    assert not data_files(tmp_path)


def test_overwrite_is_refused_and_a_bad_row_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    with pytest.raises(Exception, match='no mode "overwrite"'):
        frame(spark, 0, 3, "a").write.format("objcat").mode("overwrite").save(f"{tmp_path}/t")
    with pytest.raises(Exception, match="key column 'id' is null"):
        spark.sql("SELECT cast(null as bigint) id, 'x' value").write.format("objcat").mode("append").save(f"{tmp_path}/t")
    assert table.refresh().slot == 0
    assert not data_files(tmp_path)
