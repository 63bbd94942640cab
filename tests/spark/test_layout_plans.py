"""Joins, groups and windows on the bucketed key never shuffle the rows of base files, however many log rows there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import objcat
from objcat.spark.native import merge
from tests.spark.plans import exchanges, shuffled, text_of
from tests.spark.scripts import comparable
from tests.spark.sessions import of_unions, session

ROWS = 200
SCHEMA = pa.schema([("k", pa.int64()), ("line", pa.int32()), ("at", pa.int64()), ("v", pa.float64())])
TEXTS = pa.schema([("k", pa.string()), *list(SCHEMA)[1:]])
APART = 2**40


@pytest.fixture(autouse=True)
def without_broadcasts(spark: SparkSession) -> Iterator[None]:
    with session(spark, spark__sql__autoBroadcastJoinThreshold="-1"):
        yield


def rows(count: int, v: float, key: Callable[[int], object], schema: pa.Schema = SCHEMA, *, at: int = 0) -> pa.Table:
    columns = {"k": [key(i) for i in range(count)], "line": [i % 3 for i in range(count)], "at": [at] * count, "v": [v] * count}
    return pa.table(columns, schema=schema)


TABLES: Mapping[str, tuple[pa.Schema, Mapping[str, object], Callable[[int], object]]] = {
    "keys close together": (SCHEMA, {"key": ["k"]}, lambda i: i),
    "keys far apart": (SCHEMA, {"key": ["k"]}, lambda i: i * APART),
    "text": (TEXTS, {"key": ["k"]}, lambda i: f"Käse {i:>7}"),
    "an ordering column": (SCHEMA, {"key": ["k"], "ordering": "at"}, lambda i: i),
    "a part of the key": (SCHEMA, {"key": ["k", "line"]}, lambda i: i // 3),
}
SHARES = {"a tenth": ROWS // 10, "all of them and more": ROWS + 40}


def made(place: Path, kind: str, name: str, *, logs: int = 0) -> objcat.Table:
    schema, said, key = TABLES[kind]
    table = objcat.connect(place).create_table(name, schema, index=objcat.BucketIndex(4, columns=("k",)), **said)  # type: ignore[call-overload]
    table.insert(rows(ROWS, 1.0, key, schema))
    if logs:
        table.upsert(rows(logs, 2.0, key, schema, at=1))
        table.delete(rows(3, 0.0, key, schema, at=2).select(list(said["key"])))  # type: ignore[call-overload]
    return table


Rows = list[dict[str, object]]
Values = Counter[tuple[object, ...]]
"""How often there is each row, as a tuple."""


def per_key(held: Rows) -> Counter[object]:
    return Counter(row["k"] for row in held)


WORKS: Mapping[str, tuple[Callable[[DataFrame, DataFrame], DataFrame], Callable[[Rows, Rows], Values]]] = {
    "join": (
        lambda one, other: one.join(other.select("k", F.col("v").alias("w")), "k").select("k", "v", "w"),
        lambda one, other: Counter((a["k"], a["v"], b["v"]) for b in other for a in by_key(one).get(b["k"], [])),
    ),
    "semi-join": (
        lambda one, other: other.join(one, "k", "left_semi").select("k", "v"),
        lambda one, other: Counter((row["k"], row["v"]) for row in other if row["k"] in per_key(one)),
    ),
    "group": (
        lambda one, _: one.groupBy("k").agg(F.sum("v"), F.count("*")),
        lambda one, _: Counter((k, sum(row["v"] for row in of), len(of)) for k, of in by_key(one).items()),  # type: ignore[misc]
    ),
    "group by more": (
        lambda one, _: one.groupBy("line", "k").count(),
        lambda one, _: Counter((line, k, n) for (line, k), n in Counter((row["line"], row["k"]) for row in one).items()),
    ),
    "window": (
        lambda one, _: one.select("k", F.sum("v").over(Window.partitionBy("k")).alias("sum")),
        lambda one, _: Counter((row["k"], sum(r["v"] for r in by_key(one)[row["k"]])) for row in one),  # type: ignore[misc]
    ),
    "distinct": (
        lambda one, _: one.select("k").distinct(),
        lambda one, _: Counter((k,) for k in per_key(one)),
    ),
    "join, then group": (
        lambda one, other: one.join(other.select("k"), "k").groupBy("k").count(),
        lambda one, other: Counter((k, n * per_key(other)[k]) for k, n in per_key(one).items() if k in per_key(other)),
    ),
}


def by_key(held: Rows) -> dict[object, Rows]:
    found: dict[object, Rows] = {}
    for row in held:
        found.setdefault(row["k"], []).append(row)
    return found


@of_unions
@pytest.mark.parametrize(("kind", "share"), [*((kind, "a tenth") for kind in TABLES), ("keys close together", "all of them and more")])
def test_base_rows_are_never_shuffled_for_the_key(spark: SparkSession, tmp_path: Path, kind: str, share: str) -> None:
    one = made(tmp_path, kind, "one", logs=SHARES[share])
    other = made(tmp_path, kind, "other")
    frames = one.scan().to_spark(spark), other.scan().to_spark(spark)
    held = one.scan().to_arrow().to_pylist(), other.scan().to_arrow().to_pylist()
    for work, (of_frames, of_rows) in WORKS.items():
        frame = of_frames(*frames)
        assert shuffled(frame) == {"log"} and exchanges(frame) == 1, (work, text_of(frame))
        assert Counter(tuple(row) for row in frame.collect()) == of_rows(*held), work


def test_a_layout_serves_its_own_columns_alone(spark: SparkSession, tmp_path: Path) -> None:
    """What brings rows together by other columns takes neither buckets nor the exchange of the log rows, which would be in vain."""
    table = made(tmp_path, "keys close together", "one", logs=20)
    one = table.scan().to_spark(spark)
    others = {
        "a group": one.groupBy("line").count(),
        "a join": one.join(spark.range(3), F.col("id") == F.col("line")),
        "a computed key": one.groupBy((F.col("k") % 7).alias("k")).count(),
        "a window": one.select(F.sum("v").over(Window.partitionBy("line"))),
        "a group of groups": one.select("line", F.explode(F.array("v", "v")).alias("k")).groupBy("k").count(),
    }
    for name, frame in others.items():
        assert "REPARTITION_BY_NUM" not in text_of(frame) and "Bucketed: true" not in text_of(frame), name
    assert sorted(map(tuple, others["a group"].collect())) == sorted(Counter(table.scan().to_arrow()["line"].to_pylist()).items())
    renamed = one.select(F.col("line").alias("k"), F.col("k").alias("line"))
    assert shuffled(renamed.groupBy("line").count()) == {"log"}
    assert "REPARTITION_BY_NUM" not in text_of(renamed.groupBy("k").count())
    both = one.unionByName(one)
    assert shuffled(both.groupBy("k", "line").count()) <= {"log"} and both.groupBy("k", "line").count().count() == ROWS - 3


def test_many_log_rows_leave_the_layout_too(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are broadcast: the log rows are shuffled to the buckets, and joined there."""
    monkeypatch.setattr(merge, "BROADCAST_BYTES_MAX", 0)
    table = made(tmp_path, "text", "one", logs=20)
    frame = table.scan().to_spark(spark)
    assert shuffled(frame) == shuffled(frame.groupBy("k").count()) == {"log"}, text_of(frame.groupBy("k").count())
    assert comparable(frame.toArrow()) == comparable(table.scan().to_arrow())
