"""Compaction, clustering and maintenance inside a Spark application: the executors do the work, and the rows are those of this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import fileio.env
import objcat
from fileio.env import SystemEnv, done_at_once
from objcat.errors import CorruptTable
from objcat.inspection.doctor import examine
from objcat.maintenance.workers import LocalWorkers
from objcat.spark import foreach_batch
from objcat.timeline.entry import Action
from tests.spark.sessions import of_the_format
from tests.spark.test_spark_jobs import descriptions

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
FRAME = "id long, v long"
WRITES = 4
"""The next look of a writer comes in the fourth slot at the latest."""
R = TypeVar("R")


class Inline(SystemEnv):
    """Tasks, maintenance too, are done before whoever submits them goes on."""

    def submit(self, function: Callable[[], R], *, idle: bool = False) -> Future[R]:
        return done_at_once(function)


def content(table: objcat.Table) -> Counter[tuple[Any, ...]]:
    report = examine(table._context.timeline, deep=True)
    assert report.healthy, report.findings
    return Counter(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


def filled(place: Path, *, index: Any, ordering: str | None = None) -> objcat.Table:
    """Base files, log rows that replace some of theirs, and deletes."""
    table = objcat.connect(place).create_table("t", SCHEMA, key=["id"], index=index, ordering=ordering)
    table.insert([{"id": key, "v": 0} for key in range(200)])
    for step in range(1, 4):
        table.upsert([{"id": key, "v": step} for key in range(step * 10, step * 40)])
    table.delete([{"id": key, "v": 9} for key in range(5)])
    return table


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this process does no work of a service")

    monkeypatch.setattr(LocalWorkers, "run", refuse)


@pytest.mark.parametrize(
    ("index", "ordering"),
    [(objcat.BucketIndex(6), "v"), (objcat.RecordIndex(2), None)],
    ids=["buckets with deletes that stay", "record index"],
)
def test_executors_compact_as_this_process_does(
    spark: SparkSession, tmp_path: Path, index: Any, ordering: str | None, request: pytest.FixtureRequest
) -> None:
    here, there = (filled(tmp_path / name, index=index, ordering=ordering) for name in ("here", "there"))
    expected = content(here)
    one = here.maintenance.compact()
    request.getfixturevalue("elsewhere")
    two = there.maintenance.compact(spark=spark)
    assert one is not None and two is not None
    assert "objcat: compact t" in descriptions(spark)
    assert (two.rows, len(two.file_groups)) == (one.rows, len(one.file_groups))
    assert content(there) == content(here) == expected
    for table in (here, there):
        # What comes late is still kept out by the deletes that stayed.
        table.upsert([{"id": key, "v": 7} for key in range(8)])
    assert content(there) == content(here) != expected


@pytest.mark.usefixtures("elsewhere")
def test_plans_rounds_and_statements_go_to_executors(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else a round that the write begins may still be at it when the next is asked for, and that one leaves the work to it.
    monkeypatch.setattr(fileio.env, "_default", Inline())
    table = filled(tmp_path, index=objcat.BucketIndex(3))
    expected = content(table)
    plan = table.maintenance.schedule_compaction()
    assert plan is not None
    (executed,) = table.maintenance.execute_scheduled(spark=spark)
    assert executed.result is not None and executed.result.file_groups == plan.file_groups
    table.set_properties({"compact_after_commits": "1"})
    table.upsert([{"id": 7, "v": 77}])
    lake = objcat.connect(tmp_path)
    (done,) = lake.maintain(spark=spark)
    assert [step.service for step in done.did] == ["compact"] and not done.left
    table.upsert([{"id": 8, "v": 77}])
    assert lake.sql("CALL compact('t')", spark).collect()[0].rows > 0
    expected = Counter({row: count for row, count in expected.items() if row[0] not in (7, 8)})
    assert content(table) == expected + Counter({(7, 77): 1, (8, 77): 1})


@pytest.mark.parametrize("by", [[], ["v"], ["v", "id"]], ids=["joined", "sorted", "z-order"])
def test_executors_cluster_as_this_process_does(spark: SparkSession, tmp_path: Path, by: list[str], request: pytest.FixtureRequest) -> None:
    tables = []
    for name in ("here", "there"):
        table = objcat.connect(tmp_path / name).create_table(
            "t", SCHEMA, key=None, partition_by=["truncate(id, 1000)"], properties={"target_file_bytes": "4000"}
        )
        for part in range(6):
            table.bulk_insert([{"id": 1000 * (key % 2) + key, "v": key * 7919 % 1000} for key in range(part * 100, part * 100 + 100)])
        tables.append(table)
    here, there = tables
    expected = content(here)
    one = here.maintenance.cluster(by=by, zorder=len(by) > 1)
    request.getfixturevalue("elsewhere")
    two = there.maintenance.cluster(by=by, zorder=len(by) > 1, spark=spark)
    assert one is not None and two is not None
    assert (two.groups_before, two.groups, two.rows) == (one.groups_before, one.groups, one.rows)
    assert content(there) == content(here) == expected
    found = [len(table.scan(where="v < 100").plan.groups) for table in (here, there)]
    assert found[0] == found[1] and (by != ["v"] or found[0] < two.groups)


@pytest.mark.parametrize("index", [objcat.BucketIndex(2), objcat.RecordIndex(2)], ids=["bucket", "record"])
def test_executors_cluster_tables_with_a_key(spark: SparkSession, tmp_path: Path, index: Any, request: pytest.FixtureRequest) -> None:
    """And what Spark and this process write and read on top of files in another order is the same."""
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=index, properties={"target_file_bytes": "4000"})
    for part in range(4):
        table.upsert([{"id": key, "v": key * 7919 % 1000} for key in range(part, 400, 4)])
    expected = content(table)
    request.getfixturevalue("elsewhere")
    done = table.maintenance.cluster(by=["v"], spark=spark)
    assert done is not None and done.rows == 400 and content(table) == expected
    table.upsert(spark.createDataFrame([(7, 77), (400, 77)], "id bigint, v bigint"))
    table.upsert([{"id": 8, "v": 77}])
    expected = Counter({row: count for row, count in expected.items() if row[0] not in (7, 8)})
    expected += Counter({(key, 77): 1 for key in (7, 8, 400)})
    for _ in range(2):
        assert content(table) == expected == Counter(map(tuple, table.scan().to_spark(spark).select("id", "v").collect()))
        assert table.scan(where="v = 77").to_spark(spark).count() == sum(row[1] == 77 for row in expected)
        table.maintenance.compact(spark=spark)


def test_what_a_worker_meets_is_said_in_its_own_words(spark: SparkSession, tmp_path: Path) -> None:
    table = filled(tmp_path, index=objcat.BucketIndex(3))
    slot = table.refresh().slot
    lost = next(tmp_path.glob("tables/*/data/**/*.log.parquet"))
    lost.unlink()
    before = set(tmp_path.glob("tables/*/data/**/*.parquet"))
    with pytest.raises(CorruptTable, match=lost.name):
        table.maintenance.compact(spark=spark)
    assert table.refresh().slot == slot
    assert set(tmp_path.glob("tables/*/data/**/*.parquet")) == before


# ---- maintenance after writes


def looked_after(place: Path) -> objcat.Table:
    properties = {"compact_after_commits": "2"}
    return objcat.connect(place, env=Inline()).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2), properties=properties)


def compactions(table: objcat.Table) -> int:
    return sum(entry.action is Action.COMPACTION for entry in table._context.timeline.log.read_after(-1))


def batch_of(spark: SparkSession, number: int) -> Any:
    return spark.createDataFrame([(number % 5, number), (100 + number, number)], FRAME)


def written(numbers: range) -> Counter[tuple[int, int]]:
    return Counter(({number % 5: number for number in numbers} | {100 + number: number for number in numbers}).items())


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("how", ["stream", "transaction", pytest.param("merge", marks=pytest.mark.tier("all"))])
def test_what_spark_writes_spark_compacts(spark: SparkSession, tmp_path: Path, how: str) -> None:
    table = looked_after(tmp_path)
    write = foreach_batch(table, app_id="s")
    lake = objcat.connect(tmp_path, env=Inline())
    numbers = range(WRITES)
    for number in numbers:
        frame = batch_of(spark, number)
        if how == "stream":
            write(frame, number)
        elif how == "merge":
            assert table.merge(frame, on="target.id = source.id").when_matched_update().when_not_matched_insert().execute()
        else:
            with lake.transaction() as transaction:
                transaction["t"].upsert(frame)
    assert compactions(table) >= 1
    assert "objcat: compact t" in descriptions(spark)
    assert content(table) == written(numbers)


@of_the_format
def test_what_the_format_writes_is_looked_after_by_the_process_that_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fileio.env, "_default", Inline())
    table = looked_after(tmp_path)
    schema = from_arrow_schema(SCHEMA)
    numbers = range(WRITES)
    from pyspark_objcat import DefaultSource

    for number in numbers:
        rows = pa.table({"id": [number % 5, 100 + number], "v": [number, number]}, schema=SCHEMA)
        if number % 2:
            writer: Any = DefaultSource({"path": f"{tmp_path}/t"}).writer(schema, overwrite=False)
            writer.commit([writer.write(iter(rows.to_batches()))])
        else:
            writer = DefaultSource({"path": f"{tmp_path}/t", "app_id": "s"}).streamWriter(schema, overwrite=False)
            writer.commit([writer.write(iter(rows.to_batches()))], number)
    assert compactions(table) >= 1
    assert content(table) == written(numbers)


def test_a_table_moves_on_executors(spark: SparkSession, tmp_path: Path) -> None:
    """Log rows, deletes and partitions are merged by them, from files of the log that the table leaves."""
    lake = objcat.connect(tmp_path)
    lake.create_table("other", SCHEMA, key=["id"], shared_log="shop")
    table = lake.create_table("t", SCHEMA, key=["id"], ordering="v", index=objcat.BucketIndex(4))
    table.upsert([{"id": key, "v": 1} for key in range(200)])
    table.upsert([{"id": key, "v": 2} for key in range(50)])
    table.delete([{"id": 7, "v": 3}])
    before = table.scan().to_arrow().sort_by("id")
    moved = lake.move_to_shared_log("t", shared_log="shop", spark=spark)
    assert moved.url == lake.table("other").url
    assert moved.scan().to_arrow().sort_by("id") == before
    moved.upsert([{"id": 7, "v": 2}])
    assert moved.scan(where="id = 7").count() == 0
    assert examine(moved._context.timeline, deep=True).findings == []
