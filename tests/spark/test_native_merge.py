"""Native merge-on-read gives the rows of the local engine, whatever happened to the table, by every plan that there is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.spark.native import merge
from tests.spark.scripts import FILTERS, comparable, history

PLANS = {
    "keys of the log rows broadcast": {},
    "newest keys broadcast": {"PAIRWISE_OBJECTS_MAX": 1},
    "hash joins": {"BROADCAST_BYTES_MAX": 0},
    "sorted joins": {"BROADCAST_BYTES_MAX": 0, "HASHED_ROWS_MAX": 0},
}


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in PLANS[request.param].items():
        monkeypatch.setattr(merge, name, value)
    return str(request.param)


def text_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("seed", range(6))
def test_any_history_reads_the_same(spark: SparkSession, tmp_path: Path, plan: str, seed: int) -> None:
    made = history(tmp_path, seed)
    table = made.table
    scan = table.scan()
    frame = scan.to_spark(spark)
    assert comparable(frame.toArrow()) == comparable(scan.to_arrow()), f"seed {seed}, {made}"
    text = text_of(frame)
    assert "MapInArrow" not in text and "PythonUDF" not in text
    filtered = table.scan(where=FILTERS[seed % len(FILTERS)], columns=["v", "a"])
    assert comparable(filtered.to_spark(spark).toArrow()) == comparable(filtered.to_arrow()), f"seed {seed}, {made}"


@pytest.mark.tier("all")
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_histories_read_the_same(spark: SparkSession, tmp_path: Path, plan: str, seed: int) -> None:
    made = history(tmp_path, seed, steps=(8, 24))
    for as_of in {made.table.refresh().slot, made.table.snapshot.slot * 2 // 3}:
        scan = made.table.scan(as_of=as_of)
        assert comparable(scan.to_spark(spark).toArrow()) == comparable(scan.to_arrow()), f"seed {seed} as of {as_of}, {made}"


SMALL = pa.schema([("k", pa.int64()), ("o", pa.int32()), ("v", pa.string())])


def small(tmp_path: Path, *, base: list[tuple[int, int, str]]) -> objcat.Table:
    table = objcat.connect(tmp_path).create_table("t", SMALL, key=["k"], ordering="o", index=objcat.BucketIndex(1))
    table.insert(batch(base))
    return table


def batch(rows: list[tuple[int, int, str]]) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "o": o, "v": v} for k, o, v in rows], schema=SMALL)


def values(table: objcat.Table, spark: SparkSession) -> dict[int, str]:
    """By key, asserted the same on both engines."""
    scan = table.scan(columns=["k", "v"])
    found = {row["k"]: row["v"] for row in scan.to_spark(spark).toArrow().to_pylist()}
    assert found == {row["k"]: row["v"] for row in scan.to_arrow().to_pylist()}
    return found


def test_in_event_time_the_greater_value_wins_and_of_equal_ones_the_later(spark: SparkSession, tmp_path: Path, plan: str) -> None:
    table = small(tmp_path, base=[(1, 5, "base"), (2, 5, "base"), (3, 5, "base"), (4, 5, "base")])
    table.upsert(batch([(1, 4, "older"), (2, 5, "tie"), (3, 6, "newer"), (5, 1, "new")]))
    assert values(table, spark) == {1: "base", 2: "tie", 3: "newer", 4: "base", 5: "new"}
    table.upsert(batch([(3, 6, "tie again"), (2, 4, "older"), (5, 0, "older")]))
    assert values(table, spark) == {1: "base", 2: "tie", 3: "tie again", 4: "base", 5: "new"}


def test_several_ordering_columns_are_compared_in_order(spark: SparkSession, tmp_path: Path, plan: str) -> None:
    """One value for each row decides, of which a barrier has none."""
    schema = pa.schema([("k", pa.int64()), ("o", pa.int32()), ("p", pa.string()), ("v", pa.string())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["k"], ordering=["o", "p"], index=objcat.BucketIndex(1))

    def some(*rows: tuple[int, int, str, str]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)

    table.insert(some(*((k, 5, "m", "base") for k in range(1, 8))))
    table.upsert(some((1, 5, "a", "older"), (2, 5, "m", "tie"), (3, 5, "é", "newer"), (4, 4, "z", "older"), (5, 6, "a", "newer")))
    table.delete(some((3, 5, "z", ""), (5, 6, "b", "")).select(["k", "o", "p"]))
    table.delete(some((6, 0, "", ""), (7, 0, "", "")).select(["k"]))
    table.upsert(some((5, 6, "a", "late"), (7, 0, "a", "after"), (7, 0, "A", "older"), (2, 5, "l", "older")))
    table.upsert(some((7, 0, "Z", "older"), (8, 1, "a", "new")))
    assert values(table, spark) == {1: "base", 2: "tie", 3: "newer", 4: "base", 7: "after", 8: "new"}
    table.maintenance.compact()
    table.upsert(some((5, 6, "a", "late"), (5, 6, "b", "equal"), (8, 1, "A", "older")))
    assert values(table, spark) == {1: "base", 2: "tie", 3: "newer", 4: "base", 5: "equal", 7: "after", 8: "new"}


def test_a_delete_competes_by_its_value_and_one_without_ends_all_before_it(spark: SparkSession, tmp_path: Path, plan: str) -> None:
    table = small(tmp_path, base=[(k, 5, "base") for k in range(1, 8)])
    table.delete(batch([(1, 4, ""), (2, 5, ""), (3, 6, "")]).select(["k", "o"]))
    table.delete(batch([(4, 0, ""), (5, 0, ""), (6, 0, "")]).select(["k"]))
    assert values(table, spark) == {1: "base", 7: "base"}
    table.upsert(batch([(2, 4, "late"), (3, 7, "newer"), (5, 1, "after"), (6, 9, "after")]))
    assert values(table, spark) == {1: "base", 3: "newer", 5: "after", 6: "after", 7: "base"}
    table.delete(batch([(6, 0, "")]).select(["k"]))
    table.upsert(batch([(6, 2, "again"), (5, 0, "older")]))
    assert values(table, spark) == {1: "base", 3: "newer", 5: "after", 6: "again", 7: "base"}
    # What the compaction keeps of the deletes still counts for rows that come late.
    table.maintenance.compact()
    table.upsert(batch([(2, 4, "late"), (3, 6, "late"), (8, 1, "new")]))
    assert values(table, spark) == {1: "base", 3: "newer", 5: "after", 6: "again", 7: "base", 8: "new"}


def test_keys_may_be_anything(spark: SparkSession, tmp_path: Path, plan: str) -> None:
    """Negative, at the ends of their type, NaN and zeros: packed into one number or not."""
    low, high = -(2**63), 2**63 - 1
    schema = pa.schema([("a", pa.int64()), ("f", pa.float64()), ("v", pa.int32())])
    nan = float("nan")
    table = objcat.connect(tmp_path).create_table("t", schema, key=["a", "f"], index=objcat.BucketIndex(2))
    keys = [(low, 0.0), (high, nan), (-1, 1.5), (0, -0.0), (3, float("inf"))]
    table.insert(pa.Table.from_pylist([{"a": a, "f": f, "v": 1} for a, f in keys], schema=schema))
    again = [(low, -0.0), (high, nan), (0, 0.0), (3, float("-inf"))]
    table.upsert(pa.Table.from_pylist([{"a": a, "f": f, "v": 2} for a, f in again], schema=schema))
    table.upsert(pa.Table.from_pylist([{"a": high, "f": nan, "v": 3}], schema=schema))
    found = {(str(row["a"]), str(row["f"])): row["v"] for row in table.scan().to_spark(spark).toArrow().to_pylist()}
    assert found == {
        (str(low), "0.0"): 2,
        (str(high), "nan"): 3,
        ("-1", "1.5"): 1,
        ("0", "0.0"): 2,
        ("3", "inf"): 1,
        ("3", "-inf"): 2,
    }


@pytest.mark.parametrize("low", [0, -5])
def test_several_whole_numbers_are_one_key(spark: SparkSession, tmp_path: Path, plan: str, low: int) -> None:
    schema = pa.schema([("a", pa.int64()), ("d", pa.date32()), ("n", pa.int16()), ("v", pa.int32())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["a", "d", "n"], index=objcat.BucketIndex(2))

    def grid(v: int) -> pa.Table:
        cells = [{"a": a, "d": d, "n": n, "v": v} for a in range(low, low + 6) for d in (low, 3, 4) for n in (low, 7, 127)]
        return pa.Table.from_pylist(cells[:: v + 1], schema=pa.schema([schema.field("a"), ("d", pa.int32()), *list(schema)[2:]])).cast(
            schema
        )

    table.insert(grid(0))
    table.upsert(grid(1))
    table.upsert(grid(2))
    table.delete(grid(4).select(["a", "d", "n"]))
    scan = table.scan()
    assert comparable(scan.to_spark(spark).toArrow()) == comparable(scan.to_arrow())


def test_a_table_without_base_files_is_its_log_rows(spark: SparkSession, tmp_path: Path, plan: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", SMALL, key=["k"], ordering="o", index=objcat.BucketIndex(2))
    table.upsert(batch([(1, 1, "a"), (2, 1, "a")]))
    table.upsert(batch([(1, 0, "b"), (2, 2, "b")]))
    assert values(table, spark) == {1: "a", 2: "b"}
    table.delete(batch([(1, 9, ""), (2, 9, "")]).select(["k"]))
    assert values(table, spark) == {}
