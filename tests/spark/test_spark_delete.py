"""Deletes by a filter that Spark does: file groups of a table without a key are rewritten by its workers."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import objcat
import objcat.table.delete
from objcat.common.validation import TableType
from objcat.errors import InvalidInput, InvalidPredicate
from objcat.tasks.model import WriteResult
from objcat.tasks.regroup_rows import DeleteTask
from tests.spark.sessions import session

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("city", pa.string())])


def filled(place: Path, kind: TableType) -> objcat.Table:
    table = objcat.connect(place).create_table(
        "t", SCHEMA, key=None, partition_by=["city"], table_type=kind, properties={"target_file_bytes": "2000"}
    )
    for step in range(4):
        table.insert([{"id": key, "city": "Rome" if key % 2 else None} for key in range(step * 50, step * 50 + 50)])
    return table


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_rows_without_a_key_are_deleted_by_workers(
    spark: SparkSession, tmp_path: Path, kind: TableType, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path, kind)
    groups = len(table.refresh().file_groups(table._context.manifests))

    def refuse(*_: Any) -> None:
        raise AssertionError("this process rewrites nothing")

    monkeypatch.setattr("objcat.table.delete.rewrite_without", refuse)
    done = table.delete("id in (3, 13, 23, 33, 43, 53) and city = 'Rome'", spark=spark)
    assert done is not None
    assert (done.deleted, done.rows) == (6, 6)
    assert done.files < groups
    expected = [key for key in range(200) if key % 10 != 3 or key > 53]
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == expected
    slot = table.refresh().slot
    assert table.delete("id = 1000", spark=spark) is None
    assert table.delete("id = 3 or city > 'Z'", spark=spark) is None
    assert table.refresh().slot == slot
    done = table.delete(pc.field("id") >= 100, spark=spark)
    assert done is not None and done.deleted == 100
    assert sorted(table.scan().to_spark(spark).toArrow().column("id").to_pylist()) == [key for key in expected if key < 100]
    with pytest.raises(InvalidPredicate):
        table.delete("nothing = 1", spark=spark)


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("key", [["id"], None], ids=str)
def test_what_a_scan_cannot_filter_by_is_computed(spark: SparkSession, tmp_path: Path, kind: TableType, key: Any) -> None:
    index = objcat.BucketIndex(2) if key else None
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=key, table_type=kind, index=index)
    table.insert([{"id": i, "city": ("Rome", "Oslo", None)[i % 3]} for i in range(30)])
    done = table.delete("id < 20 AND lower(city) LIKE 'r%' AND id % 2 = 0", spark=spark)
    gone = set(range(0, 20, 6))
    assert done is not None and (done.deleted, done.rows) == (len(gone), len(gone))
    objcat.connect(tmp_path).sql("DELETE FROM t WHERE t.id < 5 OR reverse(t.city) = 'olsO'", spark)
    gone |= {*range(5), *range(1, 30, 3)}
    table = objcat.connect(tmp_path).table("t")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [i for i in range(30) if i not in gone]
    slot = table.refresh().slot
    assert table.delete("upper(city) = 'PARIS'", spark=spark) is None and table.refresh().slot == slot
    with pytest.raises(InvalidInput):
        table.delete("no_such_function(city) = 'x'", spark=spark)


@pytest.mark.parametrize("zone", ["America/New_York", "-05:00", "UTC-05:30"])
@pytest.mark.parametrize("key", [["id"], None], ids=str)
def test_hours_and_days_are_those_of_the_session_whoever_computes_them(spark: SparkSession, tmp_path: Path, key: Any, zone: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32())])
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", schema, key=key, index=objcat.BucketIndex(1) if key else None)
    table.insert([{"id": hour, "at": dt.datetime(2026, 1, 2, hour, tzinfo=dt.UTC), "day": None} for hour in (1, 4, 6, 9)])
    with session(spark, spark__sql__session__timeZone=zone):
        lake.sql("DELETE FROM t WHERE hour(at) = 1", spark)
        lake.sql("UPDATE t SET day = CAST(at AS DATE), at = at + INTERVAL 1 HOUR WHERE hour(at) < 23", spark)
    found = {row["id"]: (row["at"].hour, row["day"] and row["day"].day) for row in lake.table("t").scan().to_arrow().to_pylist()}
    # Half an hour later in the last of them, 4 is 22:30, and 6 is 0:30.
    assert found == ({1: (2, 1), 4: (4, None), 9: (10, 2)} if "30" not in zone else {1: (2, 1), 4: (5, 1), 6: (7, 2), 9: (10, 2)})


def test_rows_that_are_older_than_the_horizon_by_now_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.date32(), nullable=False), ("v", pa.int64())])
    table = objcat.connect(tmp_path).create_table(
        "t", schema, key=["id"], ordering="at", allowed_lateness="7 days", index=objcat.BucketIndex(2)
    )
    today = dt.datetime.now(dt.UTC).date()
    table.insert([{"id": key, "at": today - dt.timedelta(days=3 * key), "v": key} for key in range(8)])
    done = table.delete("v > 0", spark=spark)
    assert done is not None and (done.deleted, done.rows) == (7, 7)
    table.upsert([{"id": key, "at": today - dt.timedelta(days=4), "v": 10} for key in range(4)])
    for rows in (table.scan().to_arrow(), table.scan().to_spark(spark).toArrow()):
        assert sorted(rows.column("id").to_pylist()) == [0, 2, 3]


def test_a_file_that_was_cleaned_meanwhile_is_planned_again(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(tmp_path, "merge_on_read")
    real = objcat.table.delete.KeyDeleter.rewrite
    done: list[bool] = []

    def disturbed(self: Any, task: DeleteTask) -> WriteResult:
        if not done:
            done.append(True)
            other = objcat.connect(tmp_path).table("t")
            assert other.delete("id < 3") is not None
            other.maintenance.clean(keep_slots=1)
        return real(self, task)

    monkeypatch.setattr(objcat.table.delete.KeyDeleter, "rewrite", disturbed)
    result = table.delete("id < 10", spark=spark)
    assert result is not None and result.deleted == 7 and result.attempts == 2
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == list(range(10, 200))
