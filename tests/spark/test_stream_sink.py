"""A streaming query into a table: every batch exactly once, by the format and by `objcat.spark.foreach_batch`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import LongType, StringType, StructField, StructType

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidInput, StreamRewound
from objcat.spark import foreach_batch
from tests.spark.files import batch, data_files
from tests.spark.sessions import of_the_format

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
ROWS = 10


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    return objcat.connect(tmp_path / "lake").create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))


@pytest.fixture
def arrivals(tmp_path: Path) -> Callable[[int], None]:
    """`arrivals(n)`: file n of the source, whose rows are of the batch of that number."""
    (tmp_path / "in").mkdir()

    def arrive(number: int) -> None:
        lines = [json.dumps({"id": number * ROWS // 2 + i, "value": f"batch {number}"}) for i in range(ROWS)]
        path = tmp_path / "in" / f"{number:03d}.json"
        path.write_text("\n".join(lines))
        # Spark reads files in the order of their times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    return arrive


@pytest.fixture
def source(spark: SparkSession, arrivals: Callable[[int], None], tmp_path: Path) -> DataFrame:
    return spark.readStream.schema("id long, value string").option("maxFilesPerTrigger", "1").json(str(tmp_path / "in"))


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Runs a query until it has read what is there."""

    def run(writer: DataStreamWriter, **options: str) -> None:
        options = {"checkpointLocation": str(tmp_path / "checkpoint"), **options}
        query = writer.trigger(availableNow=True).options(**options).start()
        query.awaitTermination()

    yield run
    for query in spark.streams.active:
        query.stop()


def into(source: DataFrame, table: objcat.Table, **options: str) -> DataStreamWriter:
    place = Path(table._context.fileio.url.removeprefix("file://")).parent.parent / "t"
    return source.writeStream.format("objcat").option("path", str(place)).options(**options)


def content(table: objcat.Table) -> dict[int, str]:
    found = table.scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))


def expected(batches: int) -> dict[int, str]:
    return {number * ROWS // 2 + i: f"batch {number}" for number in range(batches) for i in range(ROWS)}


def versions(table: objcat.Table) -> list[dict[str, int]]:
    return [entry.apps[table.id] for entry in table.inspect.history() if entry.apps]


@of_the_format
def test_each_batch_is_one_commit_and_a_restart_goes_on(
    source: DataFrame, table: objcat.Table, arrivals: Callable[[int], None], run: Callable[..., None], tmp_path: Path
) -> None:
    for number in range(2):
        arrivals(number)
    run(into(source, table))
    arrivals(2)
    run(into(source, table))
    run(into(source, table))
    assert content(table) == expected(3)
    assert versions(table) == [{str(tmp_path / "checkpoint"): number} for number in range(3)]
    while list(table._context.fileio.list_keys("intents/")):  # they go off the critical path
        pass


@of_the_format
def test_a_batch_that_spark_brings_again_is_not_written_again(
    source: DataFrame, table: objcat.Table, arrivals: Callable[[int], None], run: Callable[..., None], tmp_path: Path
) -> None:
    arrivals(0)
    run(into(source, table))
    before = data_files(tmp_path)
    # As if Spark had died between the commit of the table and its own.
    for path in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        path.unlink()
    arrivals(1)
    run(into(source, table))
    assert content(table) == expected(2)
    assert [list(version.values()) for version in versions(table)] == [[0], [1]]
    assert before < data_files(tmp_path)
    # The intent of a slow commit is deleted in the background, and may still be there.
    rolled_back = [one for one in table.maintenance.rollback_failed_writes(older_than_s=0) if one.files]
    assert not rolled_back, "what the second try wrote is still there"


@of_the_format
def test_a_stream_needs_a_name(spark: SparkSession, source: DataFrame, table: objcat.Table, arrivals, run, tmp_path: Path) -> None:
    arrivals(0)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "elsewhere"))
    try:
        with pytest.raises(Exception, match=r'needs a name, .* \.option\("checkpointLocation", "\.\.\."\), or \.option\("app_id"'):
            into(source, table).trigger(availableNow=True).start().awaitTermination()
        assert table.refresh().slot == 0
        into(source, table, app_id="meters").trigger(availableNow=True).queryName("named").start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert versions(table) == [{"meters": 0}]


@of_the_format
def test_a_new_checkpoint_under_an_old_name_is_refused_and_not_lost(
    source: DataFrame, table: objcat.Table, arrivals, run, tmp_path
) -> None:
    arrivals(0)
    run(into(source, table, app_id="meters"))
    arrivals(1)
    with pytest.raises(Exception, match="has batch 0 of 'meters' from another streaming query"):
        run(into(source, table, app_id="meters"), checkpointLocation=str(tmp_path / "another"))
    assert content(table) == expected(1)
    run(into(source, table, app_id="meters 2"), checkpointLocation=str(tmp_path / "another"))
    assert content(table) == expected(2)


@of_the_format
def test_output_modes(spark: SparkSession, source: DataFrame, arrivals, run, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("value", pa.string(), nullable=False), pa.field("count", pa.int64())])
    table = objcat.connect(tmp_path / "lake").create_table("t", schema, key=["value"])
    for number in range(2):
        arrivals(number)
    counts = source.selectExpr("id % 2 = 0 as even").groupBy("even").count().selectExpr("cast(even as string) as value", "count")
    with pytest.raises(Exception, match='no output mode "complete"'):
        run(into(counts, table).outputMode("complete"), checkpointLocation=str(tmp_path / "complete"))
    with pytest.raises(Exception, match="does not support Update mode"):
        run(into(counts, table).outputMode("update"), checkpointLocation=str(tmp_path / "update"))
    assert table.refresh().slot == 0
    write = foreach_batch(table, app_id="counts")
    run(counts.writeStream.foreachBatch(write).outputMode("update"))
    arrivals(2)
    run(counts.writeStream.foreachBatch(write).outputMode("update"))
    assert dict(zip(*table.scan().to_arrow().to_pydict().values(), strict=True)) == {"true": 15, "false": 15}


@of_the_format
def test_deletes_and_rows_without_a_key(source: DataFrame, table: objcat.Table, arrivals, run, tmp_path: Path) -> None:
    arrivals(0)
    run(into(source, table, delete_when="id < 5"))
    assert sorted(content(table)) == [5, 6, 7, 8, 9]
    log = objcat.connect(tmp_path / "lake").create_table("log", SCHEMA, key=None)
    arrivals(1)
    writer = source.writeStream.format("objcat").option("path", f"{tmp_path}/lake/log")
    run(writer, checkpointLocation=str(tmp_path / "log checkpoint"))
    assert sorted(log.scan().to_arrow()["id"].to_pylist()) == sorted([*range(10), *range(5, 15)])


@of_the_format
def test_a_batch_that_fails_leaves_nothing(source: DataFrame, table: objcat.Table, arrivals, run, tmp_path: Path) -> None:
    arrivals(0)
    bad = source.selectExpr("if(id = 7, null, id) as id", "value").repartition(2)
    with pytest.raises(Exception, match="The key column 'id' is null"):
        run(into(bad, table))
    assert table.refresh().slot == 0
    assert not data_files(tmp_path)
    run(into(source, table))
    assert content(table) == expected(1)


# Step by step, as Spark calls a sink: the writer that commits is never the one that wrote.


def writer(place: Path, **options: str):
    schema = StructType([StructField("id", LongType()), StructField("value", StringType())])
    from pyspark_objcat import DefaultSource

    return DefaultSource({"path": f"{place}/lake/t", "app_id": "app", **options}).streamWriter(schema, overwrite=False)


@of_the_format
def test_of_two_tries_of_a_batch_one_counts(table: objcat.Table, tmp_path: Path) -> None:
    first, second = (writer(tmp_path).write(iter([batch(0, 10, name)])) for name in ("first", "second"))
    writer(tmp_path).commit([second], 0)
    writer(tmp_path).commit([first], 0)
    assert set(content(table).values()) == {"second"}
    assert len(data_files(tmp_path)) == 1


@of_the_format
def test_a_batch_that_is_given_up_is_removed(table: objcat.Table, tmp_path: Path) -> None:
    message = writer(tmp_path).write(iter([batch(0, 10, "a")]))
    writer(tmp_path).abort([None, message], 0)
    assert not data_files(tmp_path)
    writer(tmp_path).commit([writer(tmp_path).write(iter([batch(0, 10, "b")]))], 0)
    assert set(content(table).values()) == {"b"}


@of_the_format
def test_a_stream_whose_batches_a_restore_took_back_is_told_so(table: objcat.Table, tmp_path: Path) -> None:
    for number in range(2):
        writer(tmp_path).commit([writer(tmp_path).write(iter([batch(0, 10, f"batch {number}")]))], number)
    slot = table.restore(to=1).slot
    message = writer(tmp_path).write(iter([batch(0, 10, "batch 2")]))
    with pytest.raises(StreamRewound, match=f"resumed_after={slot}"):
        writer(tmp_path).commit([message], 2)
    assert len(data_files(tmp_path)) == 2
    resumed = writer(tmp_path, resumed_after=str(slot))
    resumed.commit([writer(tmp_path).write(iter([batch(0, 10, "batch 2")]))], 2)
    assert set(content(table).values()) == {"batch 2"}


# foreachBatch


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_foreach_batch_writes_any_table(source: DataFrame, arrivals, run, tmp_path: Path, kind: TableType) -> None:
    table = objcat.connect(tmp_path / "lake").create_table("any", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(2))
    for number in range(2):
        arrivals(number)
    run(source.writeStream.foreachBatch(foreach_batch(table, app_id="app", delete_when="id = 3")))
    assert content(table) == {key: value for key, value in expected(2).items() if key != 3}
    assert [list(version.values()) for version in versions(table)] == [[0], [1]]


def test_foreach_batch_counts_a_batch_once(spark: SparkSession, table: objcat.Table) -> None:
    def frame(value: str) -> DataFrame:
        return spark.range(5).selectExpr("id", f"'{value}' as value")

    write = foreach_batch(table, app_id="app", operation="insert")
    write(frame("a").limit(0), 0)
    write(frame("a"), 1)
    write(frame("b"), 1)
    write(frame("b"), 0)
    assert set(content(table).values()) == {"a"}
    foreach_batch(table, app_id="app", operation="delete")(frame("c"), 2)
    assert not content(table)


def test_foreach_batch_refuses_a_new_checkpoint_under_an_old_name(source: DataFrame, table: objcat.Table, arrivals, run, tmp_path) -> None:
    arrivals(0)
    run(source.writeStream.foreachBatch(foreach_batch(table, app_id="app")))
    with pytest.raises(Exception, match="from another streaming query"):
        run(source.writeStream.foreachBatch(foreach_batch(table, app_id="app")), checkpointLocation=str(tmp_path / "another"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"app_id": ""}, "app_id is empty"),
        ({"app_id": "a", "operation": "upsret"}, "did you mean 'upsert'"),
        ({"app_id": "a", "operation": "insert", "delete_when": "id = 1"}, "delete_when is for upserts"),
    ],
)
def test_foreach_batch_says_what_does_not_fit(table: objcat.Table, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        foreach_batch(table, **settings)
