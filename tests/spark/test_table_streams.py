"""Streams of `writeStream.toTable` into tables of a catalog: every batch is one commit, exactly once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
import objcat.spark

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
ROWS = 10


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[objcat.Lake]:
    """A lake that the session knows as `lake`, with an empty table `t`."""
    lake = objcat.connect(tmp_path / "lake")
    lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    found = objcat.spark.views(spark, lake)
    yield lake
    found.close()


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Two files, each a batch; rows of the second replace half of the first."""
    (tmp_path / "in").mkdir()
    for number in range(2):
        lines = [json.dumps({"id": number * ROWS // 2 + i, "value": f"batch {number}"}) for i in range(ROWS)]
        path = tmp_path / "in" / f"{number}.json"
        path.write_text("\n".join(lines))
        # Spark reads files in the order of their times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return spark.readStream.schema("id long, value string").option("maxFilesPerTrigger", "1").json(str(tmp_path / "in"))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    """Runs a stream until it has read what is there."""

    def run(frame: DataFrame, name: str, mode: str = "append", checkpoint: str = "checkpoint", **options: Any) -> None:
        writer = frame.writeStream.outputMode(mode).trigger(availableNow=True).options(**options)
        writer.option("checkpointLocation", str(tmp_path / checkpoint)).toTable(name).awaitTermination()

    return run


def rows(lake: objcat.Lake, name: str = "t") -> dict[int, str]:
    found = lake.table(name).scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))


EXPECTED = {i: f"batch {i // (ROWS // 2) > 0:d}" for i in range(ROWS * 3 // 2)}


def test_batches_are_commits_and_come_once(lake: objcat.Lake, source: DataFrame, run: Callable[..., None], tmp_path: Path) -> None:
    run(source, "lake.t")
    table = lake.table("t")
    assert rows(lake) == EXPECTED and table.snapshot.slot == 2
    assert table.app_version(str(tmp_path / "checkpoint")) == 1, "the checkpoint names the stream, as it does for the format"
    # The last batch is told as not done, as after a crash before Spark noted it.
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    for crc in (tmp_path / "checkpoint" / "commits").glob(".1.crc"):
        crc.unlink()
    run(source, "lake.t")
    assert rows(lake) == EXPECTED and lake.table("t").snapshot.slot == 2
    run(source, "lake.t", checkpoint="other", app_id="other", operation="delete")
    assert rows(lake) == {} and lake.table("t").app_version("other") == 1


def test_a_stream_creates_its_table(lake: objcat.Lake, source: DataFrame, run: Callable[..., None]) -> None:
    run(source, "lake.made")
    made = lake.table("made")
    assert made.key == [] or made.key is None
    assert made.scan().count() == 2 * ROWS, "without a key all rows are kept"


def test_groups_that_change_replace_those_before(
    spark: SparkSession, lake: objcat.Lake, source: DataFrame, run: Callable[..., None]
) -> None:
    spark.sql("CREATE TABLE lake.counts (value STRING, n BIGINT) TBLPROPERTIES ('key' = 'value')")
    counted = source.withColumn("value", F.substring("value", 1, 5)).groupBy("value").agg(F.count("*").alias("n"))
    run(counted, "lake.counts", "update")
    assert [tuple(row) for row in spark.sql("SELECT value, n FROM lake.counts").collect()] == [("batch", 2 * ROWS)]
    assert lake.table("counts").snapshot.slot == 2
    lake.create_table("bare", SCHEMA, key=None)
    for frame, name, mode, options, sentence in (
        (counted, "lake.counts", "complete", {"operation": "upsert"}, 'The output mode "complete" replaces all rows'),
        (source, "lake.t", "append", {"operation": "overwrite"}, "operation='overwrite' is not known"),
        (source, "lake.bare", "update", {}, "does not support Update mode"),
        (source, "lake.t", "append", {"nonsense": "x"}, "has no option 'nonsense'"),
        (source, "lake.t", "append", {"operation": "merge"}, "operation"),
        (source.withColumn("id", F.lit(None).cast("long")), "lake.t", "append", {}, "The key column 'id' is null"),
    ):
        with pytest.raises(StreamingQueryException, match=sentence):
            run(frame, name, mode, checkpoint=f"{name} {mode} {sentence[:9]}".replace('"', ""), **options)
    assert lake.table("t").snapshot.slot == 0 and lake.table("bare").snapshot.slot == 0
    with pytest.raises(IllegalArgumentException, match=r"t\.history is a metadata table, which is only read"):
        run(source, "lake.t.history", checkpoint="history")


@pytest.mark.parametrize("key", ["value", None])
def test_the_complete_mode_replaces_all_rows(
    spark: SparkSession, lake: objcat.Lake, source: DataFrame, run: Callable[..., None], tmp_path: Path, key: str | None
) -> None:
    schema = pa.schema([pa.field("value", pa.string(), nullable=False), ("n", pa.int64())])
    lake.create_table("counts", schema, key=None if key is None else [key])
    counted = source.groupBy("value").agg(F.count("*").alias("n"))

    def found() -> list[tuple[str, int]]:
        return [tuple(row) for row in spark.sql("SELECT value, n FROM lake.counts ORDER BY value").collect()]

    run(counted, "lake.counts", "complete")
    table = lake.table("counts")
    assert found() == [("batch 0", ROWS), ("batch 1", ROWS)] and table.snapshot.slot == 2
    assert [row.value for row in spark.sql("SELECT value FROM lake.counts VERSION AS OF 1").collect()] == ["batch 0"]
    # The last batch is told as not done, as after a crash before Spark noted it.
    for part in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / part).unlink(missing_ok=True)
    run(counted, "lake.counts", "complete")
    assert len(found()) == 2 and lake.table("counts").snapshot.slot == 2
    run(counted.where("n < 0"), "lake.counts", "complete", checkpoint="none", app_id="other")
    assert found() == []
