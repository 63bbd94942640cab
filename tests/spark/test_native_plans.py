"""The physical plans of native reads: no shuffle of ours on the key, no Python worker, one broadcast for a merge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import objcat
from objcat.datafile.parquet import BASE_ROW_GROUP_ROWS
from objcat.spark import versions
from tests.spark.plans import exchanges, text_of
from tests.spark.scripts import comparable
from tests.spark.sessions import of_unions

ORDERS = pa.schema([("o_key", pa.int64()), ("price", pa.float64())])
KEPT = "tax:double,_objcat_op:tinyint"
LINES = pa.schema([("l_key", pa.int64()), ("line", pa.int32()), ("tax", pa.float64())])


@pytest.fixture(autouse=True)
def without_broadcasts(spark: SparkSession) -> Iterator[None]:
    """These tables are so small that Spark would broadcast one side of every join."""
    before = str(spark.conf.get("spark.sql.autoBroadcastJoinThreshold"))
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    yield
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", before)


APART = 2**40
"""So far are keys apart when a bit for each that may be would be too much."""


def orders(place: Path, *, buckets: int = 4, step: int = 1) -> objcat.Table:
    table = objcat.connect(place).create_table("orders", ORDERS, key=["o_key"], index=objcat.BucketIndex(buckets))
    table.insert(pa.table({"o_key": list(range(0, 1000 * step, step)), "price": [1.0] * 1000}, schema=ORDERS))
    return table


def lines(place: Path) -> objcat.Table:
    table = objcat.connect(place).create_table("lines", LINES, key=["l_key", "line"], index=objcat.BucketIndex(4, columns=("l_key",)))
    table.insert(
        pa.table({"l_key": [i // 3 for i in range(3000)], "line": [i % 3 for i in range(3000)], "tax": [2.0] * 3000}, schema=LINES)
    )
    return table


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.join(right, F.col("o_key") == F.col("l_key"))


@pytest.mark.parametrize("with_logs", [False, True])
def test_work_on_the_key_needs_no_shuffle(spark: SparkSession, tmp_path: Path, with_logs: bool) -> None:
    o, li = orders(tmp_path), lines(tmp_path)
    shuffles = 0
    if with_logs:
        li.upsert(pa.table({"l_key": [1, 2, 3000], "line": [0, 1, 0], "tax": [7.0, 8.0, 9.0]}, schema=LINES))
        li.delete(pa.table({"l_key": [5], "line": [2]}, schema=pa.schema(list(LINES)[:2])))
        shuffles = 1  # of the few log rows
    left, right = o.scan().to_spark(spark), li.scan().to_spark(spark)
    assert exchanges(joined(left, right)) == shuffles
    assert joined(left, right).count() == 3000 - with_logs
    per_key = right.groupBy("l_key").agg(F.sum("tax").alias("sum"))
    assert exchanges(per_key) == shuffles
    assert per_key.where("l_key = 1").first() == (1, 11.0 if with_logs else 6.0)
    assert exchanges(right.groupBy("l_key", "line").count()) == shuffles
    ranked = right.withColumn("rank", F.row_number().over(Window.partitionBy("l_key").orderBy("line")))
    assert exchanges(ranked) == shuffles
    assert ranked.where("rank = 3").count() == 1000 - with_logs
    aggregated = joined(left, right).groupBy("o_key").agg(F.sum("tax").alias("sum"))
    assert exchanges(aggregated) == shuffles
    sums = li.scan(where="l_key < 1000").to_arrow().group_by("l_key").aggregate([("tax", "sum")])
    assert comparable(aggregated.toArrow()) == comparable(sums.rename_columns(["o_key", "sum"]))


def test_a_join_with_another_table_shuffles_that_one_alone(spark: SparkSession, tmp_path: Path) -> None:
    plain = spark.range(500).selectExpr("id", "id * 2 twice")
    frame = orders(tmp_path).scan().to_spark(spark).join(plain, F.col("o_key") == F.col("id"))
    assert exchanges(frame) == 1
    assert "Bucketed: true" in text_of(frame)
    assert frame.count() == 500


def test_files_of_two_bucket_counts_have_no_layout(spark: SparkSession, tmp_path: Path) -> None:
    """Between a split and the compaction of all its file groups, under one of the counts Spark would lose rows of a join."""
    o, li = orders(tmp_path), lines(tmp_path)
    o.maintenance.split_buckets()
    o.maintenance.compact(file_groups=sorted(o.snapshot.live_group_ids(o._context.manifests))[:3])
    left, right = o.scan().to_spark(spark), li.scan().to_spark(spark)
    assert "Bucketed" not in text_of(left)
    assert exchanges(joined(left, right)) >= 1
    assert joined(left, right).count() == 3000
    o.maintenance.compact()
    left = o.scan().to_spark(spark)
    assert left.groupBy("o_key").count().count() == 1000
    assert exchanges(left.groupBy("o_key").count()) == 0


def test_a_merge_is_one_broadcast_and_no_python(spark: SparkSession, tmp_path: Path) -> None:
    o = orders(tmp_path, step=APART)
    for price in (2.0, 3.0):
        o.upsert(pa.table({"o_key": list(range(0, 900 * APART, 2 * APART)), "price": [price] * 450}, schema=ORDERS))
    frame = o.scan().to_spark(spark)
    frame.collect()
    text = text_of(frame)
    final = text.partition("== Initial Plan ==")[0]
    assert final.count("+- BroadcastExchange") == 1
    assert final.count("+- ReusedExchange") == 1
    assert not any(word in text for word in ("MapInArrow", "PythonUDF", "BatchEvalPython", "ArrowEvalPython"))
    assert exchanges(frame) == 0


def test_a_filter_on_the_key_reaches_all_files(spark: SparkSession, tmp_path: Path) -> None:
    o = orders(tmp_path, step=APART)
    o.upsert(pa.table({"o_key": list(range(0, 900 * APART, 2 * APART)), "price": [2.0] * 450}, schema=ORDERS))
    text = text_of(o.scan().to_spark(spark).where(f"o_key = {8 * APART}"))
    scans = [line for line in text.splitlines() if "FileScan parquet" in line]
    assert len(scans) >= 3
    assert all(f"EqualTo(o_key,{8 * APART})" in scan for scan in scans)


def test_a_file_of_one_row_group_is_one_task(spark: SparkSession, tmp_path: Path) -> None:
    """A lookup is one task, and not one that reads and others that find nothing."""

    def tasks(name: str, count: int) -> int:
        table = objcat.connect(tmp_path).create_table(name, pa.schema([("k", pa.int64())]), key=["k"], index=objcat.BucketIndex(1))
        table.insert(pa.table({"k": range(count)}))
        return int(table.scan(where="k = 7").to_spark(spark)._jdf.queryExecution().toRdd().getNumPartitions())

    spark.conf.set("spark.sql.files.maxPartitionBytes", "4096")
    try:
        assert tasks("small", BASE_ROW_GROUP_ROWS) == 1
        assert tasks("large", BASE_ROW_GROUP_ROWS + 1) > 1
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")


def test_only_columns_that_are_needed_are_read(spark: SparkSession, tmp_path: Path) -> None:
    li = lines(tmp_path)
    li.upsert(pa.table({"l_key": [1], "line": [0], "tax": [7.0]}, schema=LINES))
    text = text_of(li.scan().to_spark(spark).agg(F.sum("tax")))
    schemas = [line.rpartition("ReadSchema: ")[2].partition(", Selected")[0] for line in text.splitlines() if "ReadSchema" in line]
    assert set(schemas) <= {
        f"struct<{fields}>" for fields in ("tax:double", "l_key:bigint,line:int", "l_key:bigint,line:int,tax:double", KEPT)
    }
    bases = li.scan(mode="read_optimized").to_spark(spark)
    assert "ReadSchema: struct<tax:double>" in text_of(bases.agg(F.sum("tax")))


def test_groups_without_log_rows_skip_the_merge(spark: SparkSession, tmp_path: Path) -> None:
    o = orders(tmp_path)
    o.upsert(pa.table({"o_key": [1], "price": [2.0]}, schema=ORDERS))
    frame = o.scan().to_spark(spark)
    branches = text_of(frame).partition("== Initial Plan ==")[0]
    assert branches.count("FileScan parquet") >= 3  # the untouched files; the others; rows of the log
    assert max(row.price for row in frame.collect()) == 2.0


@pytest.fixture
def few_logs(tmp_path: Path) -> objcat.Table:
    """So few that they are dealt to the buckets where a layout is used."""
    table = lines(tmp_path)
    table.upsert(pa.table({"l_key": [1, 2, 3000], "line": [0, 1, 0], "tax": [7.0, 8.0, 9.0]}, schema=LINES))
    return table


def test_what_serves_no_layout_is_not_paid_for(spark: SparkSession, few_logs: objcat.Table) -> None:
    rows = few_logs.scan().to_spark(spark)
    small = spark.range(10).selectExpr("id as l_key", "id as more")
    unused = {
        "all rows": rows,
        "a sum": rows.where("tax > 0").agg(F.sum("tax")),
        "some rows": rows.select("tax").limit(5),
        "a broadcast": rows.join(F.broadcast(small), "l_key"),
    }
    for name, frame in unused.items():
        assert "Bucketed" not in text_of(frame) and "REPARTITION_BY_NUM" not in text_of(frame), name
    assert unused["all rows"].count() == 3001
    assert unused["a sum"].first() == (3001 * 2 + 5 + 6 + 7,)
    assert unused["some rows"].count() == 5
    assert unused["a broadcast"].count() == 30


@of_unions
def test_what_serves_a_layout_stays_where_it_may_be_used(spark: SparkSession, few_logs: objcat.Table) -> None:
    rows = few_logs.scan().to_spark(spark)
    per_key = rows.groupBy("l_key").count()
    for frame in (
        per_key,
        per_key.limit(3),
        per_key.join(F.broadcast(spark.range(5)), F.col("id") == F.col("l_key")),
        rows.select("l_key").distinct(),
    ):
        assert text_of(frame).count("REPARTITION_BY_NUM") == 1 and exchanges(frame) == 1
    kept = rows.cache()
    try:
        assert kept.count() == 3001
        assert "REPARTITION_BY_NUM" in text_of(kept)
    finally:
        kept.unpersist()


@pytest.mark.skipif(versions.UNIONS_KEEP_LAYOUT, reason="A union of Spark keeps how its children are distributed since version 4.1")
def test_no_layout_is_made_below_a_union_that_loses_it(spark: SparkSession, few_logs: objcat.Table) -> None:
    per_key = few_logs.scan().to_spark(spark).groupBy("l_key").count()
    assert "REPARTITION_BY_NUM" not in text_of(per_key) and exchanges(per_key) == 1


def test_a_users_own_rules_and_repartitions_stay(spark: SparkSession, few_logs: objcat.Table) -> None:
    rows = few_logs.scan().to_spark(spark)
    few_logs.scan().to_spark(spark)
    rules = spark._jsparkSession.experimental().extraOptimizations()
    names = [rules.apply(i).ruleName() for i in range(rules.size())]
    assert names.count("ObjcatLayout") == 1
    assert rows.repartition(3, "l_key").rdd.getNumPartitions() == 3
    assert sorted(rows.unionByName(rows.where("l_key = 1")).where("l_key = 1").toArrow().column("line").to_pylist()) == [0, 0, 1, 1, 2, 2]


def test_a_users_repartition_of_log_rows_stays(spark: SparkSession, tmp_path: Path) -> None:
    """Of a table without base files, where nothing but log rows is below it."""
    table = objcat.connect(tmp_path).create_table("t", ORDERS, key=["o_key"], index=objcat.BucketIndex(4))
    table.upsert(pa.table({"o_key": list(range(50)), "price": [1.0] * 50}, schema=ORDERS))
    rows = table.scan().to_spark(spark)
    for frame in (rows.repartition(3, "o_key"), rows.union(rows.repartition(3, "o_key"))):
        assert "REPARTITION_BY_NUM" in text_of(frame)


@of_unions
def test_base_files_in_an_order_of_their_own_keep_the_layout(spark: SparkSession, tmp_path: Path) -> None:
    """What is joined is sorted then; before, the table without log rows was not."""
    o, li = orders(tmp_path), lines(tmp_path)
    li.upsert(pa.table({"l_key": [1, 2, 3000], "line": [0, 1, 0], "tax": [7.0, 8.0, 9.0]}, schema=LINES))
    before = joined(o.scan().to_spark(spark), li.scan().to_spark(spark))
    assert shape_of(before) == (1, 1)
    expected = comparable(before.toArrow())
    assert o.maintenance.cluster(by=["price", "o_key"], zorder=True) is not None
    assert li.maintenance.cluster(by=["line", "tax"]) is not None
    li.upsert(pa.table({"l_key": [1, 2, 3000], "line": [0, 1, 0], "tax": [7.0, 8.0, 9.0]}, schema=LINES))
    after = joined(o.scan().to_spark(spark), li.scan().to_spark(spark))
    assert shape_of(after) == (1, 2) and "Bucketed: true" in text_of(after)
    assert comparable(after.toArrow()) == expected
    assert comparable(li.scan().to_spark(spark).toArrow()) == comparable(li.scan().to_arrow())
    few = li.scan(where="tax = 8.0")
    assert comparable(few.to_spark(spark).toArrow()) == comparable(few.to_arrow()) and few.count() == 1


def shape_of(frame: DataFrame) -> tuple[int, int]:
    """Exchanges and sorts of a plan."""
    return exchanges(frame), text_of(frame).partition("== Initial Plan ==")[0].count("Sort [")
