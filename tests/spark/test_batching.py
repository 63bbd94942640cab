"""Workers that write get their rows in batches bounded by rows, and by bytes where rows are wide or the session has a say in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
from objcat.spark import batches as batching
from objcat.spark.batches import BATCH_ROWS, ROW_BYTES_MAX, in_batches_of_rows

ROWS = 9_000
MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.fixture(autouse=True)
def _rows_are_many_and_no_table_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_tables_of_wide_rows", set())
    monkeypatch.setattr(batching, "_BYTES_MIN", 0)


def frame_of(spark: SparkSession, *, widest: int = 10) -> DataFrame:
    """One partition, one row of which has a text of so many bytes."""
    text = F.when(F.col("id") == ROWS - 1, F.lit("é" * (widest // 2))).otherwise("a")
    return spark.range(0, ROWS, 1, 1).select(F.col("id").alias("0"), text.alias("1"), F.lit(None).cast("binary").alias("2"))


def batches_of(data: DataFrame, *, table: str = "t") -> list[list[int]]:
    """The sizes of the batches that workers saw, of each try."""
    tries: list[list[int]] = []

    def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": pa.array([batch.num_rows], pa.int64())})

    def job(rows: DataFrame) -> int:
        tries.append([])
        tries[-1] = [row["rows"] for row in rows.mapInArrow(sizes, "rows long").collect()]
        return sum(tries[-1])

    assert in_batches_of_rows(data, table, job) == ROWS
    return tries


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Where bytes bound them, batches are so small that nobody takes one for the other."""
    spark.sparkContext.setLocalProperty(MAX_BYTES, str(16 * 1024))
    yield
    spark.sparkContext.setLocalProperty(MAX_BYTES, None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_batches")
def test_rows_bound_a_batch_and_bytes_do_not(spark: SparkSession) -> None:
    (found,) = batches_of(frame_of(spark, widest=ROW_BYTES_MAX))
    assert found == [BATCH_ROWS] * 4 + [ROWS - 4 * BATCH_ROWS]
    assert spark.sparkContext.getLocalProperty(MAX_BYTES) == str(16 * 1024), "the thread has its own properties again"


@pytest.mark.usefixtures("small_batches")
def test_a_wide_row_brings_the_bound_of_bytes_back(spark: SparkSession) -> None:
    frame = frame_of(spark, widest=ROW_BYTES_MAX + 2)
    first, second = batches_of(frame)
    assert first == []
    assert len(second) > 5, "bytes bound these"
    (again,) = batches_of(frame)
    assert again == second, "the table is known to have such rows"
    assert [len(tried) for tried in batches_of(frame, table="another")] == [0, len(second)]


@pytest.mark.usefixtures("small_batches")
def test_bytes_bound_batches_where_nobody_can_say_how_wide_rows_are(spark: SparkSession) -> None:
    nested = frame_of(spark).withColumn("3", F.array(F.lit(1)))
    (found,) = batches_of(nested)
    assert len(found) > 5


@pytest.mark.usefixtures("small_batches")
def test_batches_of_other_functions_stay_what_they_were(spark: SparkSession) -> None:
    same = F.udf(lambda value: value, "long")
    (found,) = batches_of(frame_of(spark).withColumn("0", same("0")))
    assert len(found) > 5


def test_settings_of_the_session_hold(spark: SparkSession) -> None:
    by_number, by_bytes = spark.newSession(), spark.newSession()
    by_number.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "3000")
    by_bytes.conf.set(MAX_BYTES, str(16 * 1024))
    assert batches_of(frame_of(by_number)) == [[3000] * 3]
    (found,) = batches_of(frame_of(by_bytes))
    assert len(found) > 5


def test_another_error_of_a_job_is_not_tried_again(spark: SparkSession) -> None:
    failing = spark.range(3).select(F.raise_error(F.lit("no such thing")).cast("string").alias("0"))
    tries = []

    def job(rows: DataFrame) -> None:
        tries.append(rows)
        rows.collect()

    with pytest.raises(Exception, match="no such thing"):
        in_batches_of_rows(failing, "t", job)
    assert len(tries) == 1


@pytest.mark.usefixtures("by_jobs")
@pytest.mark.parametrize("index", [objcat.BucketIndex(2), objcat.BloomIndex()], ids=lambda index: type(index).__name__)
def test_rows_are_written_once_when_one_is_wide(spark: SparkSession, tmp_path: Path, index: objcat.BucketIndex) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
    table = objcat.connect(str(tmp_path)).create_table("t", schema, key=["id"], index=index)
    frame = spark.range(0, 500, 1, 3).select(
        "id", F.when(F.col("id") == 499, F.repeat(F.lit("ü"), ROW_BYTES_MAX)).otherwise("a").alias("text")
    )
    table.bulk_insert(frame)
    table.upsert(frame.where("id >= 400"))
    found = table.scan().to_arrow().sort_by("id")
    assert found.column("id").to_pylist() == list(range(500))
    assert found.column("text").to_pylist() == ["a"] * 499 + ["ü" * ROW_BYTES_MAX]
    assert batching._tables_of_wide_rows == {table.id}
    assert [entry.action.value for entry in table.inspect.history()][1:] == ["DELTA_COMMIT"] * 2


@pytest.mark.usefixtures("small_batches")
def test_few_rows_are_not_worth_a_look(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_BYTES_MIN", 1024**2)
    (found,) = batches_of(frame_of(spark))
    assert len(found) > 5
