"""Small frames for tables where the index is no hash: they are computed once by Spark, come to this process, and are written here."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
from objcat.errors import InvalidBatch, InvalidInput, NullKey
from objcat.metadata.table_spec import Index
from objcat.spark import frames
from objcat.write import index_lookup
from tests.spark.plans import jobs_of

LOCATED: tuple[Index, ...] = (objcat.SimpleIndex(), objcat.BloomIndex(), objcat.RecordIndex(2))

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a.b ü", pa.string()),
        pa.field("amount", pa.decimal128(15, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.binary()),
        pa.field("ratio", pa.float64()),
        pa.field("few", pa.list_(pa.struct([pa.field("x", pa.int32()), pa.field("t", pa.timestamp("us", "UTC"))]))),
        pa.field("named", pa.map_(pa.string(), pa.int64())),
    ]
)


def values(key: int) -> dict[str, Any]:
    if key % 7 == 0:
        return {"id": key}
    at = datetime(2024, 3, 31, 1, 30, tzinfo=UTC)
    return {
        "id": key,
        "a.b ü": ["", "x", "né\n"][key % 3],
        "amount": Decimal("-12.30") * key,
        "at": at,
        "local": at.replace(tzinfo=None),
        "day": date(1500, 1, key % 28 + 1),
        "raw": bytes([0, key % 256]),
        "ratio": [float("nan"), -0.0, 1.5][key % 3],
        "few": [{"x": key, "t": at}, None],
        "named": [("k", key)],
    }


def frame_of_values(spark: SparkSession, keys: range) -> DataFrame:
    rows = spark.createDataFrame(pa.Table.from_pylist([values(key) for key in keys], SCHEMA))
    return rows.withColumn("local", F.col("local").cast("timestamp_ntz"))


def table_of(tmp_path: Path, index: Index, **more: Any) -> objcat.Table:
    return objcat.connect(str(tmp_path)).create_table("t", SCHEMA, key=["id"], index=index, **more)


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("index", LOCATED, ids=lambda index: type(index).__name__)
def test_values_are_those_that_jobs_would_write(
    spark: SparkSession, tmp_path: Path, index: Index, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (frame_of_values(spark, keys) for keys in (range(40), range(20, 60)))
    found = []
    for name, rows_max in (("here", frames.ROWS_MAX), ("jobs", 0)):
        monkeypatch.setattr(frames, "ROWS_MAX", rows_max)
        table = table_of(tmp_path / name, index, table_type=kind)
        table.upsert(first)
        table.upsert(second.withColumn("ratio", F.lit(2.5)))
        table.delete(second.select("id").where("id < 25"))
        found.append(table.scan().to_arrow().sort_by("id"))
        assert found[-1].num_rows == 55
    assert found[0].drop_columns(["ratio"]).equals(found[1].drop_columns(["ratio"]))
    assert list(map(repr, found[0]["ratio"].to_pylist())) == list(map(repr, found[1]["ratio"].to_pylist()))


def test_a_small_frame_is_computed_once_and_takes_no_job_to_be_written(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path, objcat.SimpleIndex())
    computed = spark.sparkContext.accumulator(0)

    def counted(batches: Any) -> Any:
        for batch in batches:
            computed.add(batch.num_rows)
            yield batch

    kept = spark.sparkContext._jsc.getPersistentRDDs().size()
    before = jobs_of(spark, "objcat: upsert"), jobs_of(spark, "objcat: find the keys")
    table.upsert(spark.range(1000).mapInArrow(counted, "id long").repartition(3))
    table.upsert(spark.range(500, 600).mapInArrow(counted, "id long"))
    assert computed.value == 1100
    assert table.scan().count() == 1000
    assert (jobs_of(spark, "objcat: upsert"), jobs_of(spark, "objcat: find the keys")) == before
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept


def frame_of(spark: SparkSession, rows: int, text: str = "x") -> DataFrame:
    return spark.range(rows).select("id", F.lit(text).alias("a.b ü"))


@pytest.mark.parametrize("what", ["rows", "bytes", "nested bytes", "table"])
def test_what_is_large_stays_with_spark(spark: SparkSession, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path, objcat.SimpleIndex())
    table.upsert(frame_of(spark, 10))
    frame = frame_of(spark, 50, "y" * 100)
    if what == "rows":
        monkeypatch.setattr(frames, "ROWS_MAX", 49)
    elif what == "bytes":
        monkeypatch.setattr(frames, "BYTES_MAX", 5000)
    elif what == "nested bytes":
        frame = spark.range(50).select("id", F.map_from_arrays(F.array(F.lit("z" * 100)), F.array("id")).alias("named"))
        monkeypatch.setattr(frames, "BYTES_MAX", 5000)
    else:
        monkeypatch.setattr(index_lookup, "READ_BYTES_MAX", 10)
    before = jobs_of(spark, "objcat: upsert")
    table.upsert(frame)
    assert jobs_of(spark, "objcat: upsert") > before
    assert table.scan().count() == 50


def test_what_a_write_keeps_is_its_own(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(10).selectExpr("id", "id * 2 as few")
    cached = frame.toDF("name", "other").persist()
    with frames.cached_frame(frame) as one:
        with frames.cached_frame(frame):
            pass
        assert one.rows.storageLevel.useMemory
    assert cached.storageLevel.useMemory
    table = objcat.connect(str(tmp_path)).create_table("t", pa.schema([("name", pa.int64()), ("other", pa.int64())]), key=["name"])
    objcat.spark.foreach_batch(table, app_id="a")(cached, 0)
    assert table.scan().count() == 10
    assert cached.storageLevel.useMemory
    cached.unpersist()


def test_bad_rows_are_refused_in_one_sentence_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path, objcat.BloomIndex())
    table.upsert(frame_of(spark, 5))
    with pytest.raises(NullKey, match="'id' is null"):
        table.upsert(spark.createDataFrame([(None, "x")], "id long, `a.b ü` string"))
    with pytest.raises(InvalidBatch, match="empty"):
        table.upsert(frame_of(spark, 0))
    with pytest.raises(InvalidBatch):
        table.upsert(spark.createDataFrame([("one", "x")], "id string, `a.b ü` string"))
    assert table.refresh().slot == 1 and table.scan().count() == 5


@pytest.mark.usefixtures("by_jobs")
@pytest.mark.parametrize("of_files", [True, False], ids=["files", "computed"])
@pytest.mark.parametrize("index", LOCATED, ids=lambda index: type(index).__name__)
def test_a_first_load_takes_equal_keys_to_one_place(spark: SparkSession, tmp_path: Path, index: Index, of_files: bool) -> None:
    """Without partitions and rows, nothing is looked up, and rows go by the hash of their keys alone. What files hold is not kept first."""
    table = objcat.connect(str(tmp_path)).create_table(
        "t", pa.schema([("k", pa.float64()), ("s", pa.string()), ("v", pa.int64())]), key=["k", "s"], index=index,
        properties={"target_file_bytes": "1024"},
    )  # fmt: skip
    jobs = {"found": "objcat: find the keys", "kept": "objcat: look at the rows", "counted": "objcat: count the rows"}
    before = {name: jobs_of(spark, described) for name, described in jobs.items()}
    keys = F.when(F.col("id") % 100 == 0, F.lit(0.0)).when(F.col("id") % 100 == 1, F.lit(-0.0)).otherwise(F.col("id") % 100 + 0.5)
    frame = spark.range(1000).repartition(4).select(keys.alias("k"), F.lit("né").alias("s"), F.col("id").alias("v"))
    if of_files:
        frame.write.parquet(str(tmp_path / "frame"))
        frame = spark.read.parquet(str(tmp_path / "frame"))
    table.upsert(frame)
    new = {name for name, described in jobs.items() if jobs_of(spark, described) > before[name]}
    assert new == ({"counted"} if of_files else {"kept"})
    rows = table.scan().to_arrow()
    assert rows.num_rows == 99 and len(set(rows["k"].to_pylist())) == 99
    assert table.inspect.stats().groups > 5
    table.upsert(spark.createDataFrame([(-0.0, "né", -1), (2.5, "né", -2)], "k double, s string, v long"))
    again = table.scan().to_arrow()
    assert again.num_rows == 99 and sorted(again["v"].to_pylist())[:2] == [-2, -1]


@pytest.mark.usefixtures("by_jobs")
def test_a_first_load_of_files_refuses_what_others_refuse(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path / "lake", objcat.BloomIndex())
    spark.range(100).selectExpr("if(id = 77, null, id) AS id", "'x' AS `a.b ü`").write.parquet(str(tmp_path / "null"))
    with pytest.raises(NullKey, match="'id' is null"):
        table.bulk_insert(spark.read.parquet(str(tmp_path / "null")))
    with pytest.raises(InvalidBatch, match="empty"):
        table.bulk_insert(spark.read.parquet(str(tmp_path / "null")).where("id < 0"))
    with pytest.raises(InvalidBatch, match="elements have no type\\. Nothing was written\\. Cast it"):
        table.bulk_insert(spark.read.parquet(str(tmp_path / "null")).selectExpr("50 AS id", "array() AS few"))
    memory = objcat.connect(str(tmp_path / "lake")).create_table("m", SCHEMA, key=["id"], index=objcat.MemoryIndex())
    with pytest.raises(InvalidInput, match="memory index"):
        memory.bulk_insert(spark.read.parquet(str(tmp_path / "null")))
    assert table.refresh().slot == 0 and table.scan().count() == 0


@pytest.mark.parametrize("index", [objcat.BucketIndex(2), *LOCATED], ids=lambda index: type(index).__name__)
def test_types_that_arrow_lacks_are_refused_in_one_sentence(spark: SparkSession, tmp_path: Path, index: Index) -> None:
    table = table_of(tmp_path, index)
    with pytest.raises(InvalidBatch, match=r"of a type that Parquet does not hold .*\. Nothing was written\. Cast it"):
        table.upsert(spark.range(3).selectExpr("id", "interval '1-2' year to month as `a.b ü`"))
    table.insert(pa.table({"id": [7]}))
    for column in ("array() as few", "map() as named"):
        frame = spark.range(3).selectExpr("id", column)
        with pytest.raises(InvalidBatch, match="elements have no type\\. Nothing was written\\. Cast it"):
            table.upsert(frame, delete_when="id = 1")
        if isinstance(index, objcat.BucketIndex):
            table.upsert(frame)
        else:
            with pytest.raises(InvalidBatch, match="elements have no type\\. Nothing was written\\. Cast it"):
                table.upsert(frame)
    assert table.scan().count() == (4 if isinstance(index, objcat.BucketIndex) else 1)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("named_struct('a', 1L, 'a', 2L) AS s", "the field 's.a' twice"),
        ("array(named_struct('a', 1L, 'a', 2L)) AS s", "the field 's.element.a' twice"),
        ("2L AS id", "the column 'id' twice"),
    ],
)
def test_a_frame_that_has_one_name_twice_is_refused_before_a_job_runs(spark: SparkSession, tmp_path: Path, column: str, says: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.struct([("a", pa.int64())]))])
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", schema, key=["id"], index=objcat.BucketIndex(1))
    frame = spark.range(3).selectExpr("id", column)
    for write in (
        lambda: table.upsert(frame),
        lambda: table.upsert(frame, schema_mode="add"),
        lambda: table.insert(frame),
        lambda: table.overwrite(frame),
        lambda: table.merge(frame).when_not_matched_insert().execute(),
        lambda: lake.write(frame, "u", key=["id"]),
    ):
        with pytest.raises(InvalidBatch, match=f"The batch has {says}. Nothing was written. Drop or rename one."):
            write()
    assert (table.refresh().slot, lake.tables()) == (0, ["t"])
    table.delete(spark.range(3).selectExpr("id", "1L AS x", "2L AS x"))
