"""Event-time order on Spark: base files are compared only with log rows that may lose, and not at all where changes come in order."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.planning.event_time import UNKNOWN
from objcat.spark.native import merge, snapshot
from objcat.table import stale_rows, verified_files
from tests.effort import few
from tests.spark.plans import text_of
from tests.spark.scripts import comparable

TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "n": (pa.int32(), lambda n: n),
    "day": (pa.date32(), lambda n: dt.date(1969, 12, 1) + dt.timedelta(n)),
    "at": (pa.timestamp("us", tz="UTC"), lambda n: dt.datetime(1969, 12, 31, 23, 59, 59, 999_950, dt.UTC) + dt.timedelta(microseconds=n)),
    "local": (pa.timestamp("us"), lambda n: dt.datetime(1969, 12, 31, 23, 59, 59, 999_950) + dt.timedelta(microseconds=n)),
    "text": (pa.string(), lambda n: f"{n:03d}'é" * 15),
    "digits": (pa.decimal128(20, 3), lambda n: Decimal(n - 50) / 1000),
    "real": (pa.float64(), lambda n: n / 4),
}
ORDERINGS = [("n",), ("at",), ("day", "n"), ("local",), ("text",), ("digits",), ("real",), ("day",), ("at", "text"), ("n", "real")]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("v", pa.int64()),
        *(pa.field(name, data_type) for name, (data_type, _) in TYPES.items()),
    ]
)


def batch(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def of(clock: int, keys: Iterable[int], ordering: Sequence[str] = ("n",), second: int = 0) -> pa.Table:
    values = {name: TYPES[name][1](second if at else clock) for at, name in enumerate(ordering)}
    return batch({"k": k, "name": str(k % 7), "v": clock * 1000 + k, **values} for k in keys)


def table_of(place: Path, ordering: Sequence[str] | None = ("n",), **options: Any) -> objcat.Table:
    made: dict[str, Any] = {"key": ["k"], "index": objcat.BucketIndex(2), **options}
    return objcat.connect(place).create_table("t", SCHEMA, ordering=None if ordering is None else list(ordering), **made)


def agrees(table: objcat.Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch | None = None, **scan: Any) -> None:
    """Spark gives the rows of the local engine, and those of plans that know no stale row, and nothing of the order."""
    expected = comparable(table.scan(**scan).to_arrow())
    assert comparable(table.scan(**scan).to_spark(spark).toArrow()) == expected
    if monkeypatch is not None:
        for name, answer in {"stale_rows": None, "log_order": UNKNOWN}.items():
            with monkeypatch.context() as patch:
                patch.setattr(verified_files, name, lambda *_, answer=answer: answer)
                assert comparable(table.scan(**scan).to_spark(spark).toArrow()) == expected


def joins(frame: DataFrame) -> int:
    return text_of(frame).count("HashJoin") + text_of(frame).count("SortMergeJoin")


def base_scans(frame: DataFrame) -> list[list[str]]:
    """Of each scan of base files, broadcast ones too, the columns that it reads."""
    return [list(node.requiredSchema().fieldNames()) for node in _scans(frame._jdf.queryExecution().executedPlan())]


def _scans(plan: Any) -> Iterator[Any]:
    kind = plan.getClass().getSimpleName()
    if kind == "AdaptiveSparkPlanExec":
        plan = plan.initialPlan()
    if kind == "FileSourceScanExec" and str(plan.relation().location().toString()).endswith(" base"):
        yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _scans(children.apply(number))


def test_changes_in_order_take_the_plan_of_commit_order(spark: SparkSession, tmp_path: Path) -> None:
    tables = [table_of(tmp_path / str(at), ordering) for at, ordering in enumerate([("n",), None])]
    plans = []
    for table in tables:
        table.insert(of(10, range(3000)))
        table.upsert(of(10, range(0, 3000, 7)))
        table.upsert(of(11, range(0, 3000, 11)))
        table.delete(of(12, [22, 5000]).select(["k", "n"]))
        table.upsert(of(12, [33, 4000]))
        agrees(table, spark)
        plans.append(table.scan(columns=["k", "v"]).to_spark(spark))
    assert [joins(plan) for plan in plans] == [0, 0]
    assert base_scans(plans[0]) == base_scans(plans[1]) == [["k", "v"]]
    assert len(text_of(plans[0]).splitlines()) == len(text_of(plans[1]).splitlines())


def test_a_compaction_and_its_deletes_leave_changes_in_order(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.insert(of(10, range(300)))
    table.delete(of(11, [5, 6]).select(["k", "n"]))
    table.upsert(of(12, range(40)))
    table.delete(of(12, [7, 8]).select(["k", "n"]))
    table.maintenance.compact()
    table.upsert(of(12, range(0, 300, 9)))
    assert joins(table.scan().to_spark(spark)) == 0
    agrees(table, spark)


def test_log_rows_out_of_order_among_themselves_need_no_ordering_value_of_base_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(tmp_path)
    table.insert(of(10, range(300)))
    table.upsert(of(14, range(0, 300, 7)))
    table.upsert(of(12, range(0, 300, 11)))
    table.delete(batch([{"k": 22, "name": ""}]).select(["k"]))
    table.upsert(of(11, [22, 33]))
    frame = table.scan(columns=["k", "v"]).to_spark(spark)
    assert base_scans(frame) == [["k", "v"]]
    agrees(table, spark, monkeypatch)
    monkeypatch.setattr(merge, "BROADCAST_BYTES_MAX", 0)
    assert "FullOuter" not in text_of(table.scan().to_spark(spark))
    agrees(table, spark, monkeypatch)


def test_without_stale_rows_the_others_are_in_commit_order(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path)
    table.insert(of(10, range(0, 3000, 2)))
    table.insert(of(20, range(1, 3000, 2)))
    table.maintenance.compact()
    table.upsert(pa.concat_tables([of(21, range(0, 3000, 7)), of(20, [1, 3]), of(15, [2, 4, 5]), of(9, [6, 9, 7000])]))
    # Below rows of the base file, of the log object before, and of none.
    table.upsert(pa.concat_tables([of(22, range(0, 3000, 11)), of(19, [5, 7, 13, 8000]), of(20, [14, 21, 6])]))
    table.delete(of(3, [2, 15, 28]).select(["k", "n"]))
    table.delete(batch([{"k": k, "name": ""} for k in (16, 17, 35)]).select(["k"]))
    table.upsert(of(2, [16, 17, 18, 9000]))
    frame = table.scan(columns=["k", "v"]).to_spark(spark)
    assert joins(frame) == 0 and base_scans(frame) == [["k", "v"]]
    agrees(table, spark, monkeypatch)
    agrees(table, spark, monkeypatch, where="v > 15000 and v < 20500")
    with monkeypatch.context() as patch:
        # It was read before, and files never change.
        patch.setattr(stale_rows, "picked_row_groups", None)
        assert joins(table.scan(columns=["k", "v"]).to_spark(spark)) == 0
    table.maintenance.split_buckets(count=8)
    assert joins(table.scan(columns=["k", "v"]).to_spark(spark)) == 0
    agrees(table, spark, monkeypatch)


@pytest.mark.parametrize("limit", ["DOUBTFUL_MAX", "LOG_ROWS_MAX", "BASE_ROWS_MAX", "STALE_MAX"])
def test_what_is_too_much_for_the_driver_is_compared_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    table = table_of(tmp_path)
    table.insert(of(10, range(300)))
    table.upsert(pa.concat_tables([of(11, range(0, 300, 7)), of(9, [1, 2])]))
    monkeypatch.setattr(stale_rows, limit, 1)
    assert joins(table.scan(columns=["k", "v"]).to_spark(spark)) > 0
    agrees(table, spark)


def test_only_keys_in_doubt_are_compared(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "GATED_ROWS_MIN", 1)
    monkeypatch.setattr(stale_rows, "LOG_ROWS_MAX", 0)
    table = table_of(tmp_path)
    table.insert(of(10, range(0, 3000, 2)))
    table.insert(of(20, range(1, 3000, 2)))
    table.maintenance.compact()
    # In one object: rows that win, tie and lose, and a barrier with a late row after it.
    rows = [of(21, range(0, 3000, 7)), of(20, [1, 3]), of(15, [2, 4, 5]), of(9, [6, 9, 7000])]
    table.upsert(pa.concat_tables(rows))
    frame = table.scan(columns=["k", "v"]).to_spark(spark)
    assert base_scans(frame) == [["k", "v", "n"], ["k", "n"]]
    agrees(table, spark, monkeypatch)
    table.delete(batch([{"k": k, "name": ""} for k in (11, 12)]).select(["k"]))
    table.upsert(of(3, [11, 8000]))
    agrees(table, spark, monkeypatch)
    agrees(table, spark, monkeypatch, where="k in (2, 5, 6, 7, 9, 11, 7000)")
    agrees(table, spark, monkeypatch, where="v > 15000 and v < 20500")


@pytest.mark.parametrize("ordering", few(ORDERINGS, 3, integration=len(ORDERINGS)), ids="-".join)
@pytest.mark.parametrize("late", ["never", "seldom", "always"])
@pytest.mark.parametrize("broadcast", few([True, False], 1, integration=2), ids=["broadcast", "shuffled"])
def test_any_history_reads_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordering: tuple[str, ...], late: str, broadcast: bool
) -> None:
    if not broadcast:
        monkeypatch.setattr(merge, "BROADCAST_BYTES_MAX", 0)
    # However few rows there are, what is not in the keys of log rows does not enter a join.
    monkeypatch.setattr(snapshot, "GATED_ROWS_MIN", 1)
    draw = random.Random(f"{ordering} {late} {broadcast}")
    kinds: list[dict[str, Any]] = [{}, {"key": ["k", "name"]}, {"key": ["name", "k"], "index": objcat.BucketIndex(1)}]
    for turn, options in enumerate(kinds):
        table = table_of(tmp_path / str(turn), ordering, **options)
        table.insert(of(5, range(40), ordering, draw.randrange(3)))
        clock = 5
        for _ in range(draw.randrange(2, 9)):
            clock += draw.randrange(2)
            operation = draw.choice(["upsert"] * 5 + ["delete", "barrier", "compact", "split"])
            keys = draw.sample(range(50), draw.randrange(1, 20))
            back = [{"never": 0, "seldom": 2 * (draw.random() < 0.1), "always": draw.randrange(9)}[late] for _ in keys]
            rows = pa.concat_tables([of(clock - by, [k], ordering, draw.randrange(3)) for k, by in zip(keys, back, strict=True)])
            if operation == "compact":
                table.maintenance.compact()
            elif operation == "split":
                table.maintenance.split_buckets(count=4)
            elif operation == "barrier":
                table.delete(rows.select(["k", "name"]))
            else:
                getattr(table, operation)(rows)
        agrees(table, spark, monkeypatch)
        agrees(table, spark, monkeypatch, where="k < 20 or v > 7000", columns=["v", "name"])
