"""Keys that are whole numbers close together: a set of bits takes out the base rows that log rows replace, and no join does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
from objcat.spark.native import snapshot
from objcat.table import stale_rows
from tests.spark.plans import files_read, text_of
from tests.spark.scripts import comparable
from tests.spark.sessions import session

ROWS = pa.schema([("k", pa.int64()), ("v", pa.string())])


def rows(keys: Sequence[int], v: str, schema: pa.Schema = ROWS) -> pa.Table:
    return pa.table({"k": keys, "v": [v] * len(keys)}, schema=schema)


def table_of(place: Path, keys: Sequence[int], *, schema: pa.Schema = ROWS, **options: Any) -> objcat.Table:
    table = objcat.connect(place).create_table("t", schema, key=["k"], index=objcat.BucketIndex(2), **options)
    table.insert(rows(keys, "base", schema))
    return table


def agrees(table: objcat.Table, spark: SparkSession) -> bool:
    scan = table.scan()
    return comparable(scan.to_spark(spark).toArrow()) == comparable(scan.to_arrow())


def joins(frame: DataFrame) -> int:
    return text_of(frame).count("HashJoin") + text_of(frame).count("SortMergeJoin")


@contextmanager
def counted(spark: SparkSession, group: str) -> Iterator[None]:
    """The jobs of the block have a group of their own."""
    context = spark.sparkContext
    context.setJobGroup(group, "counted")
    try:
        yield
    finally:
        context.setJobGroup("others", "")


def jobs_of(spark: SparkSession, group: str, work: Callable[[], object]) -> int:
    """How many jobs some work runs. group: as of `records_read`."""
    with counted(spark, group):
        work()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def records_read(spark: SparkSession, group: str, work: Callable[[], object]) -> int:
    """How many rows the scans of all jobs of some work decoded. group: a name for its jobs that no other work has."""
    with counted(spark, group):
        work()
    context = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()
    store = context._jsc.sc().statusStore()
    stages = {
        stage
        for job in context.statusTracker().getJobIdsForGroup(group)
        for stage in context.statusTracker().getJobInfo(job).stageIds  # type: ignore[union-attr]
    }
    return sum(int(store.lastStageAttempt(stage).inputRecords()) for stage in stages)


EDGES = [0, 1, 62, 63, 64, 65, 127, 128, 4095, 4096, 100_000]


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()])
@pytest.mark.parametrize("origin", [0, -4096, 7, 1_000_000_000])
def test_rows_that_log_rows_replace_are_left_out_without_a_join(
    spark: SparkSession, tmp_path: Path, origin: int, kind: pa.DataType
) -> None:
    schema = pa.schema([("k", kind), ("v", pa.string())])
    table = table_of(tmp_path, [origin + k for k in EDGES], schema=schema)
    table.upsert(rows([origin + k for k in EDGES[::2]], "log", schema))
    frame = table.scan().to_spark(spark)
    assert joins(frame) == 0
    found = {row.k: row.v for row in frame.collect()}
    assert found == {origin + k: "log" if k in EDGES[::2] else "base" for k in EDGES}


def test_log_rows_may_have_keys_that_no_base_row_has(spark: SparkSession, tmp_path: Path) -> None:
    """Below, between and above those of the base files, and deletes of keys that are nowhere."""
    table = table_of(tmp_path, range(1000, 2000, 3))
    table.upsert(rows([-5, 0, 999, 1000, 1001, 1999, 2000, 9999], "log"))
    table.delete(rows([-70, 1003, 1004, 5000], "").select(["k"]))
    frame = table.scan().to_spark(spark)
    assert joins(frame) == 0
    assert agrees(table, spark)


def test_of_log_rows_with_one_key_the_last_counts(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path, range(100))
    for turn in range(4):
        table.upsert(rows(range(turn, 100, turn + 2), str(turn)))
    table.delete(rows(range(0, 100, 7), "").select(["k"]))
    table.upsert(rows([7, 200], "last"))
    assert joins(table.scan().to_spark(spark)) == 0
    assert agrees(table, spark)


def test_log_rows_of_many_objects_and_far_keys_are_not_compared_by_a_join(spark: SparkSession, tmp_path: Path) -> None:
    """A bit for each key that a base row may have is little, and so is one for each log row."""
    keys = range(0, 8_000_000, 40_000)
    table = objcat.connect(tmp_path).create_table("t", ROWS, key=["k"], index=objcat.BucketIndex(64))
    table.insert(rows(keys, "base"))
    for turn in range(70):
        table.upsert(rows([keys[4 * turn % len(keys)]], str(turn)))
    assert joins(table.scan().to_spark(spark)) == 0
    assert agrees(table, spark)


def test_a_set_of_bits_that_is_large_is_sent_without_what_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    count, step = 4_350_000, 31
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["k"], index=objcat.BucketIndex(2))
    expected = np.zeros(count, np.int64)

    def write(numbers: np.ndarray, v: int) -> None:
        table.upsert(pa.table({"k": numbers * step, "v": np.full(len(numbers), v)}, schema=schema))
        expected[numbers] = v

    write(np.arange(count), 1)
    table.maintenance.compact()
    write(np.arange(0, count, 7), 2)
    write(np.concatenate([np.arange(5_000), np.arange(count - 5_000, count), np.arange(1_000_000, 1_100_000, 3)]), 4)
    frame = table.scan().to_spark(spark)
    assert joins(frame) == 0
    assert "bit_count" in text_of(frame)
    found = {row.v: (row["count(1)"], row["sum(k)"]) for row in frame.groupBy("v").agg(F.count("*"), F.sum("k")).collect()}
    assert found == {v: (int((expected == v).sum()), int(np.flatnonzero(expected == v).sum()) * step) for v in (1, 2, 4)}


def test_keys_that_were_read_serve_other_queries_of_the_same_log(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path, range(200))
    slots = [table.upsert(rows(range(turn, 200, turn + 3), str(turn))).slot for turn in range(4)]

    def opened() -> int:
        """How many times a log object was opened, by anyone in this JVM."""
        return int(spark._jvm.org.apache.hadoop.fs.FileSystem.getGlobalStorageStatistics().get("file").getLong("bytesRead"))  # type: ignore[union-attr]

    def read_by(work: Callable[[], object]) -> int:
        before = opened()
        work()
        return opened() - before

    first, second = (read_by(lambda: table.scan(columns=["v"]).to_spark(spark).collect()) for _ in range(2))
    assert second < first
    for slot in (*slots, *reversed(slots)):
        scan = table.scan(as_of=slot)
        assert comparable(scan.to_spark(spark).toArrow()) == comparable(scan.to_arrow())
    table.maintenance.compact()
    table.upsert(rows([1, 2], "later"))
    assert agrees(table, spark)


def test_plans_are_compared_without_a_look_at_the_words(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path, range(2000))
    table.upsert(rows(range(0, 2000, 50), "log"))

    def words() -> Any:
        """The row that a query carries."""
        return table.scan().to_spark(spark)._jdf.queryExecution().optimizedPlan().subqueriesAll().head().data().head()

    first, second = words(), words()
    assert first.hashCode() == spark._jvm.java.lang.System.identityHashCode(first)  # type: ignore[union-attr]
    assert first.equals(second), "the same log rows are said by the same row, which Spark knows again"
    assert first.getArray(0).numElements() == 31
    twice = table.scan().to_spark(spark)
    assert twice.alias("a").join(twice.alias("b"), F.col("a.k") == F.col("b.k")).where("a.v = 'log'").count() == 40


def test_a_date_is_a_whole_number(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.date32()), ("v", pa.string())])

    def some(days: range, v: str) -> pa.Table:
        return pa.table({"k": pa.array(days, pa.int32()).cast(pa.date32()), "v": [v] * len(days)}, schema=schema)

    table = objcat.connect(tmp_path).create_table("t", schema, key=["k"], index=objcat.BucketIndex(2))
    table.insert(some(range(-500, 500), "base"))
    for turn in range(10):
        table.upsert(some(range(-500, 600, 3 + turn), str(turn)))
    assert joins(table.scan().to_spark(spark)) == 0
    assert agrees(table, spark)
    assert [row.v for row in table.scan(where="k = date '1970-01-01'").to_spark(spark).collect()] == table.scan(
        where="k = date '1970-01-01'"
    ).to_arrow()["v"].to_pylist()


def test_log_rows_of_no_common_key_are_not_compared(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path, range(100))
    table.upsert(rows(range(50), "low"))
    table.upsert(rows(range(50, 80), "high"))
    assert joins(table.scan().to_spark(spark)) == 0
    assert agrees(table, spark)


def test_several_columns_and_partitions_are_one_number(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.int16()), ("p", pa.string()), ("v", pa.string())])

    def grid(v: str, step: int) -> pa.Table:
        cells = [(a, b, p) for a in range(-3, 9) for b in (0, 5, 100) for p in ("x", "y", "ü")][::step]
        return pa.table(
            {"a": [c[0] for c in cells], "b": [c[1] for c in cells], "p": [c[2] for c in cells], "v": [v] * len(cells)}, schema=schema
        )

    table = objcat.connect(tmp_path).create_table(
        "t", schema, key=["a", "b"], partition_by=["p"], key_scope="partition", index=objcat.BucketIndex(2)
    )
    table.insert(grid("base", 1))
    table.upsert(grid("log", 3))
    assert joins(table.scan().to_spark(spark)) == 0
    assert agrees(table, spark)
    table.maintenance.split_buckets(partition="p=x")
    table.upsert(grid("again", 4))
    assert agrees(table, spark)


@pytest.mark.parametrize(
    "said",
    [
        {"spark__sql__ansi__enabled": "false"},
        {"spark__sql__codegen__wholeStage": "false", "spark__sql__codegen__factoryMode": "NO_CODEGEN"},
    ],
    ids=["not ANSI", "interpreted"],
)
def test_however_spark_evaluates_it(spark: SparkSession, tmp_path: Path, said: dict[str, str]) -> None:
    table = table_of(tmp_path, range(300))
    table.upsert(rows(range(0, 300, 7), "log"))
    table.upsert(rows(range(0, 300, 11), "later"))
    with session(spark, **said):
        assert agrees(table, spark)


def test_a_frame_may_be_kept_joined_with_itself_and_asked_again(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path, range(200))
    table.upsert(rows(range(0, 200, 5), "log"))
    frame = table.scan().to_spark(spark)
    assert frame.count() == frame.count() == 200
    twice = frame.alias("a").join(frame.alias("b"), F.col("a.k") == F.col("b.k")).where("a.v = b.v")
    assert twice.count() == 200
    kept = frame.cache()
    try:
        assert kept.where("v = 'log'").count() == 40
    finally:
        kept.unpersist()
    assert len(text_of(frame)) < 20_000, "a plan does not show the keys"


@pytest.mark.parametrize(
    "condition",
    ["a.later <> b.id AND b.id = a.id", "NOT a.flag AND b.id = a.id", "a.flag AND b.id = a.id", "a.none IS NULL AND b.id = a.id"],
)
def test_anti_joins_of_users_are_left_alone(spark: SparkSession, tmp_path: Path, condition: str) -> None:
    """The rule sees every query of a session that has read such a table once, also over frames that are none of ours."""
    table = table_of(tmp_path, range(100))
    table.upsert(rows([1, 2], "log"))
    assert table.scan().to_spark(spark).count() == 100
    left = spark.range(10).selectExpr("id", "id + 1 AS later", "id % 2 = 0 AS flag", "nullif(id, id) AS none").alias("a")
    found = left.join(spark.range(5).alias("b"), F.expr(condition), "left_anti").orderBy("id").collect()
    matched = {"a.flag": (0, 2, 4), "NOT": (1, 3)}.get(condition.partition(" ")[0], range(5))
    assert [row.id for row in found] == [number for number in range(10) if number not in matched]


def test_of_the_log_only_the_keys_that_a_filter_can_mean_are_read(spark: SparkSession, tmp_path: Path) -> None:
    count = 200_000
    table = objcat.connect(tmp_path).create_table("t", ROWS, key=["k"], index=objcat.BucketIndex(1))
    table.insert(rows(range(count), "base"))
    table.upsert(rows(range(0, count, 2), "log"))
    frame = table.scan().to_spark(spark)
    whole = records_read(spark, "bits of all", lambda: frame.agg(F.max("v")).collect())
    one = records_read(spark, "bits of one", lambda: frame.where("k = 777").collect())
    assert whole == count + count // 2, "the driver reads the keys of a small log by itself"
    assert one < whole / 4, "pages, of base files and of the log"
    assert [tuple(row) for row in frame.where("k in (776, 777)").orderBy("k").collect()] == [(776, "log"), (777, "base")]


@pytest.mark.parametrize("filtered", [True, False], ids=["a filter of segments", "a join with segments"])
def test_a_lookup_is_planned_without_a_job(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filtered: bool) -> None:
    """Of each log object just the rows of one bucket count; few such segments are a filter, by which the driver reads the keys itself."""
    if not filtered:
        monkeypatch.setattr(snapshot, "SEGMENTS_FILTERED_MAX", 0)
    table = objcat.connect(tmp_path).create_table("t", ROWS, key=["k"], index=objcat.BucketIndex(4))
    table.insert(rows(range(400), "base"))
    for turn in range(3):
        table.upsert(rows(range(turn, 420, 3 + turn), str(turn)))
    table.delete(rows(range(0, 400, 7), "").select(["k"]))
    jobs = 0
    for number, where in enumerate(["k = 1", "k = 3", "k = 7", "k = 12", "k = 415", "k IN (1, 3, 5, 7, 9, 12, 21, 415)"]):
        scan = table.scan(where=where)
        frame = scan.to_spark(spark)
        jobs += jobs_of(spark, f"lookup {filtered} {number}", frame._jdf.queryExecution().executedPlan)
        assert joins(frame) == (0 if filtered else 1), where
        assert comparable(frame.toArrow()) == comparable(scan.to_arrow()), where
    assert (jobs == 0) == filtered


@pytest.mark.parametrize(
    ("keys", "more", "objects"),
    [
        ("k = 12", "", 1),
        ("k = 20", "", 6),
        ("k = 50", "", 0),
        ("k IN (11, 14, 70)", "", 2),
        ("k BETWEEN 13 AND 19", " AND v <> 'base'", 3),
        ("k = 13", " AND v = '3'", 1),
        ("k >= 0", " AND v = '3'", 6),
    ],
)
def test_of_the_log_a_scan_reads_the_objects_that_hold_a_key_of_its_filter(
    spark: SparkSession, tmp_path: Path, keys: str, more: str, objects: int
) -> None:
    table = table_of(tmp_path / "logs", range(100))
    base = table_of(tmp_path / "base", range(100))
    for turn in range(6):
        table.upsert(rows([0, 10 + turn, 20, 99], str(turn)))
    where = keys + more
    frame = table.scan().to_spark(spark).where(where)
    assert files_read(frame) - files_read(base.scan().to_spark(spark).where(keys)) == objects
    assert comparable(frame.toArrow()) == comparable(table.scan(where=where).to_arrow())


def test_a_filter_that_has_to_be_asked_for_first_goes_to_a_job(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path, range(100))
    table.upsert(rows(range(0, 100, 2), "log"))
    table.scan().to_spark(spark).createOrReplaceTempView("asked")
    found = spark.sql("SELECT * FROM asked WHERE k >= (SELECT max(id) - 3 FROM range(100))").collect()
    assert sorted((row.k, row.v) for row in found) == [(96, "log"), (97, "base"), (98, "log"), (99, "base")]


def test_few_keys_are_named_in_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    """And no subquery holds them, nor any where the log has none that passes."""
    table = table_of(tmp_path, range(2_000))
    table.upsert(rows(range(0, 2_000, 50), "log"))
    frame = table.scan().to_spark(spark)
    for where, subquery, named in [("k = 77", False, False), ("k BETWEEN 90 AND 160", False, True), ("k < 1900", True, False)]:
        text = text_of(frame.where(where))
        assert ("Subquery" in text, "coalesce(" in text and " IN (" in text) == (subquery, named), where
        found = {row.k: row.v for row in frame.where(where).collect()}
        low, high = {"k = 77": (77, 78), "k BETWEEN 90 AND 160": (90, 161), "k < 1900": (0, 1900)}[where]
        assert found == {k: "base" if k % 50 else "log" for k in range(low, high)}


def test_the_keys_of_many_log_objects_are_read_by_a_job(spark: SparkSession, tmp_path: Path) -> None:
    """More than the driver would read by itself."""
    objects = 130
    table = table_of(tmp_path, range(objects))
    for turn in range(objects):
        table.upsert(rows([turn], str(turn)))
    frame = table.scan().to_spark(spark)
    read = records_read(spark, "bits of many", lambda: frame.agg(F.max("v")).collect())
    assert read == objects + 2 * objects
    assert joins(frame) == 0
    assert {row.k: row.v for row in frame.collect()} == {turn: str(turn) for turn in range(objects)}


def test_a_log_object_that_is_gone_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path, range(10))
    table.upsert(rows([1, 2], "log"))
    frame = table.scan().to_spark(spark)
    (path,) = {log.object.path for group in table.scan().plan.merged for log in group.logs}
    (gone,) = tmp_path.rglob(path.rpartition("/")[2])
    gone.unlink()
    with pytest.raises(Exception, match=re.escape(gone.name)):
        frame.collect()


@pytest.mark.parametrize(("step", "ordering"), [(2**40, None), (1, "o")], ids=["keys far apart", "by event time"])
def test_elsewhere_a_join_does_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, ordering: str | None
) -> None:
    # Of few rows in doubt the driver knows which are stale, and the plan is that of commit order.
    monkeypatch.setattr(stale_rows, "DOUBTFUL_MAX", 0)
    schema = pa.schema([("k", pa.int64()), ("o", pa.int32()), ("v", pa.string())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["k"], ordering=ordering, index=objcat.BucketIndex(2))
    keys = [k * step for k in range(100)]
    table.insert(pa.table({"k": keys, "o": [5] * 100, "v": ["base"] * 100}, schema=schema))
    table.upsert(pa.table({"k": keys[::3], "o": [k % 9 for k in range(34)], "v": ["log"] * 34}, schema=schema))
    assert joins(table.scan().to_spark(spark)) >= 1
    assert agrees(table, spark)


@pytest.mark.parametrize(
    ("kinds", "ordering"),
    [
        ([pa.string()], None),
        ([pa.int64(), pa.decimal128(21, 2)], None),
        ([pa.int64()], "o"),
    ],
    ids=["text", "two columns", "event time"],
)
def test_before_a_join_stands_a_set_of_hashes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[pa.DataType], ordering: str | None
) -> None:
    """Of as many base rows as are worth it: those whose key hashes to none of the log are not looked for."""
    monkeypatch.setattr(stale_rows, "DOUBTFUL_MAX", 0)
    count, step = 2**18 + 500, 2**33 if ordering is None else 1
    names = [f"k{i}" for i in range(len(kinds))]
    schema = pa.schema([*zip(names, kinds, strict=True), ("o", pa.int32()), ("v", pa.string())])

    def some(numbers: range, event: int, v: str) -> pa.Table:
        keys = [
            pa.array([number * step // (i + 1) % 10**7 if i else number * step for number in numbers], pa.int64())
            for i in range(len(kinds))
        ]
        columns = [pc.cast(key, kind) for key, kind in zip(keys, kinds, strict=True)]
        events = [event + number % 3 for number in numbers]
        return pa.table([*columns, pa.array(events, pa.int32()), [v] * len(numbers)], schema=schema)

    table = objcat.connect(tmp_path).create_table("t", schema, key=names, ordering=ordering, index=objcat.BucketIndex(2))
    table.insert(some(range(count), 5, "base"))
    table.upsert(some(range(0, count + 100, 41), 4, "log"))
    table.delete(some(range(0, count, 1009), 6, "").select(names if ordering is None else [*names, "o"]))
    table.upsert(some(range(0, count, 53), 6, "later"))
    frame = table.scan().to_spark(spark)
    assert "_objcat_place" in text_of(frame)
    found = frame.groupBy("v").agg(F.count("*"), F.sum("o"), F.min(names[0]), F.max(names[0])).collect()
    scanned = table.scan().to_arrow().group_by("v").aggregate([("o", "count"), ("o", "sum"), (names[0], "min"), (names[0], "max")])
    assert {tuple(row) for row in found} == {tuple(row.values()) for row in scanned.to_pylist()}
    table.upsert(some(range(count // 3), 7, "many"))
    assert "_objcat_place" not in text_of(table.scan().to_spark(spark)), "so many log rows are looked for at once"
