"""Tables through Spark: the same rows as the local engine, native scans of base files, errors in one sentence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
from devkit.handle import ServerHandle
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, NullKey, SparkJobFailed
from objcat.spark import versions

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("city", pa.string()),
        pa.field("fare", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("place", pa.struct([pa.field("x", pa.float64()), pa.field("name", pa.string())])),
    ]
)


def trips(spark: SparkSession, ids: range, fare: str) -> DataFrame:
    return spark.range(ids.start, ids.stop, 1, 3).selectExpr(
        "id",
        "concat('c', id % 3) city",
        f"cast({fare} as decimal(10,2)) fare",
        "timestamp_seconds(1767225600 + id) at",
        "to_timestamp_ntz('2026-01-01 00:00:00') local",
        "array('a', cast(null as string)) tags",
        "named_struct('x', cast(id as double), 'name', 'n') place",
    )


def both(table: objcat.Table, spark: SparkSession, **scan: Any) -> list[tuple[Any, ...]]:
    """The rows of a scan, asserted equal on both engines."""
    local = table.scan(**scan).to_arrow()
    through_spark = table.scan(**scan).to_spark(spark).toArrow()
    assert through_spark.column_names == local.column_names
    rows = sorted(tuple(map(repr, r.values())) for r in local.to_pylist())
    assert rows == sorted(tuple(map(repr, r.values())) for r in through_spark.cast(local.schema).to_pylist())
    return rows


def test_a_table_is_created_with_the_schema_of_a_frame(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    rows = trips(spark, range(20), "1.50")
    table = lake.create_table("t", rows.schema, key=["id"], index=objcat.BucketIndex(2))
    assert table.schema.types == lake.create_table("same", rows.toArrow().schema, key=["id"], index=objcat.BucketIndex(2)).schema.types
    assert not table.schema.field("fare").nullable, "as the frame says"
    table.insert(rows)
    assert len(both(table, spark)) == 20
    for broken, says in [
        (spark.sql("SELECT 1 id, array() tags"), "The schema has a list or a map whose elements have no type"),
        (spark.sql("SELECT 1 id, 2 id"), "the column 'id' twice"),
        (spark.sql("SELECT 1 id, INTERVAL '1' YEAR span"), "The schema has a column of a type that Parquet does not hold"),
    ]:
        with pytest.raises(InvalidBatch, match=says):
            lake.create_table("broken", broken.schema, key=["id"])
    assert lake.tables() == ["same", "t"]


def test_a_table_that_is_made_from_rows_takes_nulls_later(spark: SparkSession, tmp_path: Path) -> None:
    """Spark says of a literal that it is never null, and of the table that is made from it no peer keeps that."""
    lake = objcat.connect(tmp_path)
    text = "SELECT {0}L id, {1} city, named_struct('x', {1}) place, array({1}) tags, map('k', {1}) more"
    first, second = (spark.sql(text.format(number, value)) for number, value in [(1, "'Oslo'"), (2, "cast(null as string)")])
    lake.write(first, "written", key=["id"])
    lake.sql("CREATE TABLE selected TBLPROPERTIES ('key' = 'id') AS " + text.format(1, "'Oslo'"), spark)
    names = ["written", "selected"]
    if versions.HAS_PYTHON_SOURCES:
        first.write.format("objcat").mode("append").option("key", "id").save(f"{tmp_path}/formatted")
        names.append("formatted")
    for name in names:
        table = lake.table(name)
        table.upsert(second)
        assert sorted((row["id"], row["city"]) for row in table.scan().to_arrow().to_pylist()) == [(1, "Oslo"), (2, None)]
        with pytest.raises(NullKey):
            table.upsert(second.selectExpr("cast(null as bigint) id", "city", "place", "tags", "more"))


def test_spark_and_local_write_one_table_and_read_the_same(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table(
        "t", SCHEMA, key=["id", "city"], ordering="at", index=objcat.BucketIndex(4, columns=("id",))
    )
    table.insert(trips(spark, range(200), "1.50"))
    table.upsert(trips(spark, range(150, 300), "2.25"))
    table.upsert(trips(spark, range(10), "3.75").toArrow())
    table.delete(trips(spark, range(20, 30), "0").select("id", "city"))
    rows = both(table, spark)
    assert len(rows) == 290
    fares = {r["id"]: r["fare"] for r in table.scan().to_arrow().to_pylist()}
    assert (fares[5], fares[100], fares[299]) == (Decimal("3.75"), Decimal("1.50"), Decimal("2.25"))
    assert len(both(table, spark, as_of=1)) == 200
    assert both(table, spark, where="id between 148 and 151 and city <> 'c0'", columns=["fare", "id"]) == [
        ("Decimal('1.50')", "148"),
        ("Decimal('1.50')", "149"),
        ("Decimal('2.25')", "151"),
    ]


def test_groups_without_log_rows_are_scanned_by_spark_itself(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    table.insert(trips(spark, range(100), "1.50"))
    plan = table.scan(where="fare > 1").to_spark(spark)._jdf.queryExecution().executedPlan().toString()
    assert "FileScan parquet" in plan
    assert "MapInArrow" not in plan
    assert "PushedFilters: [IsNotNull(fare), GreaterThan(fare," in plan
    assert len(both(table, spark, where="fare > 1")) == 100


def test_a_table_that_is_only_partly_merged_is_read_by_spark_alone(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(8))
    table.insert(trips(spark, range(100), "1.50"))
    table.upsert(trips(spark, range(1), "9.00"))
    plan = table.scan().to_spark(spark)._jdf.queryExecution().executedPlan().toString()
    assert "FileScan parquet" in plan
    assert "MapInArrow" not in plan and "Python" not in plan
    assert len(both(table, spark)) == 100


@pytest.mark.parametrize(
    ("kind", "ordering", "where"),
    [
        ("merge_on_read", None, "id < 70 and fare > 1"),
        ("merge_on_read", "at", None),
        ("copy_on_write", None, pc.field("place", "x") < 70),
    ],
)
def test_rows_say_from_which_file_and_commit_they_are(
    spark: SparkSession, tmp_path: Path, kind: TableType, ordering: str | None, where: str | pc.Expression | None
) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", SCHEMA, key=["id"], table_type=kind, ordering=ordering, index=objcat.BucketIndex(2))
    table.insert(trips(spark, range(60), "1.50"))
    table.upsert(trips(spark, range(40, 80), "2.25").toArrow())
    table.delete([{"id": 3}])
    if kind == "merge_on_read":
        table.maintenance.compact(file_groups=sorted(table.refresh().live_group_ids(table._context.manifests))[:1])
    table.upsert(trips(spark, range(5), "3.75"))
    columns = ["_commit_slot", "id", "_file", "_commit_time"]
    slots = {int(id_): int(slot) for slot, id_, *_ in both(table, spark, columns=columns, where=where)}
    newest = table.refresh().slot
    assert (slots[0], slots[20], slots[60], slots[3]) == (newest, 1, 2, newest)
    assert len(slots) == (80 if where is None else 70)


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_log_rows_are_written_without_a_look_at_what_they_replace(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.insert(trips(spark, range(100), "1.50"))
    table.upsert(trips(spark, range(10), "2.25"))
    names = {path.rpartition("/")[2] for path in table.inspect.files().column("path").to_pylist()}
    files = [file for file in tmp_path.rglob("*.parquet") if file.name in names]
    assert len(files) >= 3
    for file in files:
        file.rename(file.with_suffix(".away"))
    given = (lambda frame: frame.toArrow()) if engine == "local" else (lambda frame: frame)
    table.upsert(given(trips(spark, range(5, 15), "3.75")))
    table.delete(given(trips(spark, range(90, 95), "0").select("id")))
    mixed = trips(spark, range(14, 20), "4.00").withColumn("op", F.when(F.col("id") == 14, "d").otherwise("u"))
    table.upsert(given(mixed), delete_when="op = 'd'")
    table.insert(given(trips(spark, range(100, 110), "5.00")))
    for file in files:
        file.with_suffix(".away").rename(file)
    fares = {row["id"]: str(row["fare"]) for row in table.scan().to_arrow().to_pylist()}
    assert len(both(table, spark)) == len(fares) == 104
    assert [fares.get(key) for key in (0, 5, 14, 15, 20, 92, 105)] == ["2.25", "3.75", None, "4.00", "1.50", None, "5.00"]


def test_an_empty_table_reads_as_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    assert both(table, spark) == []


def test_a_key_that_is_twice_in_a_frame_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], ordering="at", index=objcat.BucketIndex(2))
    later = trips(spark, range(50), "2.00").withColumn("at", F.lit(dt.datetime(2027, 1, 1, tzinfo=dt.UTC)))
    table.insert(trips(spark, range(50), "1.00").union(later))
    table.upsert(trips(spark, range(50), "3.00").union(later.withColumn("fare", F.lit("4.00").cast("decimal(10,2)"))))
    assert {r["fare"] for r in table.scan().to_arrow().to_pylist()} == {Decimal("4.00")}
    assert len(both(table, spark)) == 50


@pytest.mark.parametrize(
    ("break_frame", "error", "says"),
    [
        (lambda df: df.withColumn("id", F.lit(None).cast("bigint")), NullKey, "'id' is null"),
        (lambda df: df.drop("id"), InvalidBatch, "lacks the column 'id'"),
        (lambda df: df.where("id < 0"), InvalidBatch, "is empty"),
        (lambda df: df.withColumnRenamed("city", "citi"), InvalidBatch, "did you mean 'city'"),
        (lambda df: df.withColumn("id", F.lit("x")), InvalidBatch, "Cast it yourself"),
    ],
)
@pytest.mark.parametrize("operation", ["upsert", "insert"])
def test_a_frame_that_does_not_fit_is_one_sentence_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path, operation: str, break_frame: Callable[[DataFrame], DataFrame], error: type[Exception], says: str
) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    before = set(table._context.fileio.list_keys())
    with pytest.raises(error, match=says):
        getattr(table, operation)(break_frame(trips(spark, range(10), "1.00")))
    assert set(table._context.fileio.list_keys()) == before


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (lambda spark: spark.readStream.format("rate").load().selectExpr("value AS id"), "A streaming frame is not .*writeStream"),
        (lambda spark: spark.sql("SELECT 1L AS id, make_interval(1) AS v"), "type that Parquet does not hold"),
        (lambda spark: spark.sql("SELECT 1L AS id, array() AS v"), "elements have no type"),
        (lambda spark: spark.sql("SELECT 1L AS id, parse_json('1') AS v"), "'v' of the type variant, which tables do not have"),
        (lambda spark: spark.sql("SELECT 1L AS id, map(1, array(named_struct('x', parse_json('1')))) AS v"), "'v' of the type variant"),
        (lambda spark: 5, "int is not a batch of rows"),
        (lambda spark: spark.range(1).id, "Column is not a batch of rows\\. Give a Spark DataFrame"),
    ],
)
def test_what_is_no_batch_makes_no_table(spark: SparkSession, tmp_path: Path, batch: Callable[[SparkSession], object], says: str) -> None:
    lake = objcat.connect(tmp_path)
    with pytest.raises(InvalidBatch, match=says):
        lake.write(batch(spark), "t", key=["id"])
    assert list(lake.tables()) == []


def test_a_frame_whose_rows_are_refused_leaves_no_table(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    frame = spark.range(3).selectExpr("nullif(id, 1) AS id")
    with pytest.raises(NullKey, match="key column 'id' is null"):
        lake.write(frame, "t", key=["id"])
    with pytest.raises(NullKey, match="key column 'id' is null"):
        lake.sql("CREATE TABLE t TBLPROPERTIES ('key' = 'id') AS SELECT nullif(1, 1) AS id", spark)
    failing = spark.range(3).selectExpr("id", "raise_error('no') AS v")
    with pytest.raises(SparkJobFailed):
        lake.write(failing, "t", key=["id"])
    assert lake.tables() == []
    lake.write(spark.range(3), "t", key=["id"])
    assert lake.table("t").scan().count() == 3


@pytest.mark.parametrize("operation", ["upsert", "insert", "delete", "insert_overwrite"])
def test_a_streaming_frame_is_refused_by_every_write(spark: SparkSession, tmp_path: Path, operation: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    frame = spark.readStream.format("rate").load().selectExpr("value AS id")
    with pytest.raises(InvalidBatch, match="A streaming frame is not a batch"):
        getattr(table, operation)(frame)


@pytest.mark.parametrize("server", ["versitygw", "fake-gcs-server", "azurite"])
def test_spark_writes_and_reads_a_server_through_fileio(spark: SparkSession, servers: Callable[[str], ServerHandle], server: str) -> None:
    store = servers(server).fresh_bucket()
    table = objcat.connect(f"{store.url}/lake", dict(store.options)).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    table.insert(trips(spark, range(50), "1.50"))
    table.upsert(trips(spark, range(40, 60), "2.25"))
    assert len(both(table, spark)) == 60


def test_log_files_are_as_large_as_the_table_says(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    counts = []
    for number, properties in enumerate([{}, {"target_log_bytes": "50000"}]):
        table = lake.create_table(f"t{number}", SCHEMA, key=["id"], index=objcat.BucketIndex(2), properties=properties)
        table.upsert(trips(spark, range(6_000), "id").coalesce(1))
        counts.append(table.inspect.stats().log_objects)
        assert table.scan().count() == 6_000
    assert counts[0] == 1 and counts[1] > 4
