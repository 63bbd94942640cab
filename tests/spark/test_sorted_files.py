"""Files that lie in the order of the key are not sorted again for a merge join or a window; all others are."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import objcat
from objcat.spark.native.janino import compiled
from tests.spark.plans import exchanges, text_of
from tests.spark.sessions import session

ROWS = 400
KEYS: Mapping[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "bigint": (pa.int64(), lambda i: (i - ROWS) * 2**40),
    "text": (pa.string(), lambda i: ("", "Z", "z", "ä", "\U0001f600", "￿")[i % 6] + str(i)),
    "binary": (pa.binary(), lambda i: bytes([i % 256, 255 - i % 256, i // 256])),
    "decimal": (pa.decimal128(30, 2), lambda i: Decimal(i - 200) * 10**15 / 4),
    "date": (pa.date32(), lambda i: dt.date(1960, 1, 1) + dt.timedelta(days=37 * i)),
    "timestamp": (pa.timestamp("us", "UTC"), lambda i: dt.datetime(1960, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=901 * i)),
}


@pytest.fixture(autouse=True)
def without_broadcasts(spark: SparkSession) -> Iterator[None]:
    with session(spark, spark__sql__autoBroadcastJoinThreshold="-1", spark__sql__session__timeZone="UTC"):
        yield


def table_of(
    place: Path, name: str, kind: str = "bigint", *, step: int = 1, more: bool = False, kept: Mapping[str, Any] | None = None
) -> objcat.Table:
    """Rows that come in any order. more: each key twice, with another column in the key."""
    data_type, key = KEYS[kind]
    schema = pa.schema([("k", data_type), ("n", pa.int32()), ("v", pa.int64())])
    columns = objcat.BucketIndex(3, columns=("k",))
    table = objcat.connect(place).create_table(name, schema, key=["k", "n"] if more else ["k"], index=columns, **(kept or {}))
    rows = [{"k": key(i), "n": n, "v": i} for i in range(0, ROWS, step) for n in range(2 if more else 1)]
    random.Random(7).shuffle(rows)
    table.insert(pa.Table.from_pylist(rows, schema=schema))
    return table


def sorts(frame: DataFrame) -> tuple[int, int]:
    """Sorts in a plan before it runs: those that do something, and those that have nothing to do."""
    words = [line.lstrip(" :+-*()0123456789").split(" ")[0] for line in text_of(frame).splitlines()]
    return words.count("Sort"), words.count("AlreadySorted")


def joined(one: DataFrame, other: DataFrame, how: str = "inner") -> DataFrame:
    return one.join(other.select("k", F.col("v").alias("w")), "k", how).select("v", "w")


def found(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


@pytest.mark.parametrize("kind", KEYS)
def test_a_join_of_sorted_files_sorts_nothing(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    one, other = (table_of(tmp_path, name, kind, step=step).scan().to_spark(spark) for name, step in (("one", 1), ("other", 3)))
    frame = joined(one, other, "left")
    assert sorts(frame) == (0, 2) and exchanges(frame) == 0, text_of(frame)
    assert found(frame) == Counter((i, None if i % 3 else i) for i in range(ROWS))


def test_every_way_to_run_it_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """Executors are sent a plain sort in the place of ours, where a plan travels with the task. There are ways without generated code."""
    one, other = table_of(tmp_path, "one", step=2), table_of(tmp_path, "other", more=True)
    expected: Counter[int] = Counter()
    for i in range(ROWS):
        expected[i % 7] += 2 if i < 100 or i % 2 == 0 else 0
    for settings in (
        {},
        {"spark__sql__adaptive__enabled": "false"},
        {"spark__sql__codegen__wholeStage": "false"},
        {"spark__sql__sources__bucketing__enabled": "false"},
        {"spark__sql__parquet__enableVectorizedReader": "false"},
    ):
        with session(spark, **settings):
            left, right = one.scan().to_spark(spark), other.scan().to_spark(spark)
            frame = joined(left, right, "right").where("w < 100 or v is not null").groupBy((F.col("w") % 7).alias("r")).count().orderBy("r")
            assert [tuple(row) for row in frame.collect()] == sorted(expected.items()), settings
            assert (sorts(joined(left, right)) == (0, 2)) == ("spark__sql__sources__bucketing__enabled" not in settings), settings
            thrice = joined(left, right).join(left.select(F.col("v").alias("x")), F.col("x") == F.col("w"))
            assert thrice.count() == ROWS, settings


def test_a_window_over_the_key_sorts_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rows = table_of(tmp_path, "one", more=True).scan().to_spark(spark)
    numbered = rows.select("v", "n", F.row_number().over(Window.partitionBy("k").orderBy("n")).alias("at"))
    assert sorts(numbered) == (0, 1) and exchanges(numbered) == 0
    assert found(numbered) == Counter((i, n, n + 1) for i in range(ROWS) for n in range(2))
    backwards = rows.select("v", "n", F.row_number().over(Window.partitionBy("k").orderBy(F.desc("n"))).alias("at"))
    assert sorts(backwards) == (1, 0)
    assert found(backwards) == Counter((i, n, 2 - n) for i in range(ROWS) for n in range(2))


def test_what_is_not_sorted_for_sure_is_sorted(spark: SparkSession, tmp_path: Path) -> None:
    other = table_of(tmp_path, "other", step=3)
    with_logs, clustered, split = (table_of(tmp_path, name) for name in ("with_logs", "clustered", "split"))
    with_logs.upsert([{"k": KEYS["bigint"][1](5), "n": 0, "v": 5}])
    assert clustered.maintenance.cluster(by=["v"]) is not None
    split.maintenance.split_buckets()
    split.maintenance.compact(file_groups=sorted(split.snapshot.live_group_ids(split._context.manifests))[:1])
    by_parts = table_of(tmp_path, "by_parts", kept={"partition_by": ["truncate(v, 100)"], "key_scope": "partition"})
    for table in (with_logs, clustered, by_parts, split):
        frame = joined(other.scan().to_spark(spark), table.scan().to_spark(spark), "right")
        assert sorts(frame)[0] >= 1, table.name
        assert found(frame) == Counter((None if i % 3 else i, i) for i in range(ROWS)), table.name
    clustered.maintenance.compact()
    assert sorts(joined(other.scan().to_spark(spark), clustered.scan().to_spark(spark)))[0] >= 1


def test_more_buckets_on_the_other_side_leave_that_side_in_order(spark: SparkSession, tmp_path: Path) -> None:
    few = objcat.connect(tmp_path).create_table(
        "few", pa.schema([("k", pa.int64()), ("v", pa.int64())]), key=["k"], index=objcat.BucketIndex(2)
    )
    few.insert(pa.table({"k": [KEYS["bigint"][1](i) for i in range(0, ROWS, 5)], "v": range(0, ROWS, 5)}))
    more = table_of(tmp_path, "more")
    frame = joined(few.scan().to_spark(spark), more.scan().to_spark(spark))
    assert sorts(frame) == (1, 1) and exchanges(frame) == 1, text_of(frame)
    assert found(frame) == Counter((i, i) for i in range(0, ROWS, 5))


def test_a_sort_that_finds_other_rows_below_sorts_them(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever puts other rows below it than it was planned for: it looks when it runs."""
    table_of(tmp_path, "one").scan().to_spark(spark)
    rules = compiled(spark, "ObjcatOrder", "Rules", target=8)
    made = rules.getClass().getClassLoader().loadClass("ObjcatOrder$AlreadySorted").getConstructors()[0]
    rows = spark.range(50, 0, -1, 1)
    jvm: Any = spark._jvm
    wanted = rows.sortWithinPartitions("id")._jdf.queryExecution().sparkPlan().sortOrder()
    given = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 4)  # type: ignore[union-attr]
    for number, value in enumerate((wanted, False, rows._jdf.queryExecution().executedPlan(), 0)):
        given[number] = value
    plan = made.newInstance(given)
    assert plan.nodeName() == "Sort"
    assert [row.getLong(0) for row in plan.executeCollect()] == list(range(1, 51))
