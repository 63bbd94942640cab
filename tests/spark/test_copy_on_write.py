"""Copy-on-write through Spark: the same rows and counts as through the local engine, native scans, and a redo of what was touched only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, NullKey
from objcat.spark.engine import SparkEngine
from objcat.tasks.model import Operation, WriteResult, WriteTask
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, FileGroupId
from objcat.write.transaction import WriteOperation

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string()), pa.field("version", pa.int64())])


def frame(spark: SparkSession, ids: range, value: str, version: int = 1) -> DataFrame:
    return spark.range(ids.start, ids.stop, 1, 3).selectExpr("id", f"'{value}' value", f"cast({version} as bigint) version")


def create(lake: objcat.Lake, name: str = "t", *, ordering: str | None = None, kind: TableType = "copy_on_write") -> objcat.Table:
    return lake.create_table(name, SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(4), ordering=ordering)


def values(table: objcat.Table) -> dict[int, str]:
    rows = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "a key is there twice"
    return {row["id"]: row["value"] for row in rows}


def test_spark_rewrites_what_local_wrote_and_back(spark: SparkSession, tmp_path: Path) -> None:
    table = create(objcat.connect(tmp_path), ordering="version")
    table.insert(frame(spark, range(100), "spark").toArrow())
    second = table.upsert(frame(spark, range(90, 120), "new", 2))
    assert (second.rows, second.inserted, second.updated, second.deleted) == (30, 20, 10, 0)
    third = table.delete(frame(spark, range(10), "", 3).select("id", "version"))
    assert (third.rows, third.inserted, third.updated, third.deleted) == (10, 0, 0, 10)
    late = table.upsert(frame(spark, range(15), "late", 2))
    assert (late.inserted, late.updated) == (0, 5)
    expected = dict.fromkeys(range(10, 15), "late") | dict.fromkeys(range(15, 90), "spark") | dict.fromkeys(range(90, 120), "new")
    assert values(table) == expected
    assert not table.scan().plan.merged
    through_spark = {row["id"]: row["value"] for row in table.scan().to_spark(spark).collect()}
    assert through_spark == expected
    entries = table.inspect.history()[1:]
    assert {entry.action for entry in entries} == {Action.COMMIT}
    assert [entry.writer.partition(", ")[2] for entry in entries] == ["local"] + [f"spark {spark.version}"] * 3


class Recording(SparkEngine):
    """A Spark engine that notes which buckets it was asked for, and runs something before each answer."""

    def __init__(self, table: objcat.Table, frame: DataFrame, *after: Callable[[], object]) -> None:
        super().__init__(table._context.fileio.describe(), table=table.name)
        self.check(frame, table.spec, Operation.UPSERT)
        self.asked: list[frozenset[FileGroupId] | None] = []
        self._after = list(after)

    def write(self, data: DataFrame, task: WriteTask) -> WriteResult:
        self.asked.append(task.only)
        result = super().write(data, task)
        if self._after:
            self._after.pop(0)()
        return result


def operation(table: objcat.Table, engine: Any, data: DataFrame, kind: Operation = Operation.UPSERT) -> WriteOperation[Any]:
    return WriteOperation(
        timeline=table._context.timeline,
        table=table.id,
        manifests=table._context.manifests,
        committer=Committer(table._context.fileio),
        engine=engine,
        data=data,
        operation=kind,
    )


@pytest.mark.parametrize("kind", ["copy_on_write", "merge_on_read"])
def test_a_redo_computes_only_the_rows_of_the_buckets_that_were_touched(spark: SparkSession, tmp_path: Path, kind: TableType) -> None:
    lake = objcat.connect(tmp_path)
    table = create(lake, kind=kind)
    batch = frame(spark, range(60), "ours")
    other = lake.table("t")
    engine = Recording(table, batch, lambda: other.upsert([{"id": 1000, "value": "theirs", "version": 1}]))
    result, _ = operation(table, engine, batch, Operation.INSERT).run(table._context.timeline.open())
    theirs = other.inspect.history()[1].footprint[table.id]
    (group_id,) = {*theirs.creates, *theirs.replaces, *theirs.appends}
    assert engine.asked == [None, frozenset({group_id})]
    assert (result.attempts, result.rows, result.inserted) == (2, 60, 60)
    table.refresh()
    assert values(table) == dict.fromkeys(range(60), "ours") | {1000: "theirs"}


def test_a_frame_that_changes_between_two_computations_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    table = create(lake)
    folder = tmp_path / "source"
    frame(spark, range(60), "ours").write.parquet(str(folder))
    batch = spark.read.parquet(str(folder))
    other = lake.table("t")

    def change() -> None:
        other.upsert([{"id": key, "value": "theirs", "version": 1} for key in range(20)])
        frame(spark, range(60, 100), "more").write.mode("append").parquet(str(folder))

    class Anew(Recording):
        def write(self, data: DataFrame, task: WriteTask) -> WriteResult:
            return super().write(spark.read.parquet(str(folder)), task)

    with pytest.raises(InvalidBatch, match="Cache or checkpoint the DataFrame"):
        operation(table, Anew(table, batch, change), batch).run(table._context.timeline.open())
    assert set(values(lake.table("t"))) == set(range(20))


def test_a_bad_row_is_refused_with_one_sentence_and_nothing_stays(spark: SparkSession, tmp_path: Path) -> None:
    table = create(objcat.connect(tmp_path))
    table.upsert(frame(spark, range(10), "a"))
    before = set(table._context.fileio.list_keys("data/"))
    bad = frame(spark, range(10), "b").selectExpr("nullif(id, 3) id", "value", "version")
    with pytest.raises(NullKey, match="The key column 'id' is null"):
        table.upsert(bad)
    assert set(table._context.fileio.list_keys("data/")) == before
    assert values(table) == dict.fromkeys(range(10), "a")
