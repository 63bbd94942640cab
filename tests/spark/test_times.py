"""Times mean the same in every session: a filter's literal without a zone is UTC, whatever the session's zone is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
from objcat.errors import InvalidBatch

TIMES = [pa.field("at", pa.timestamp("us", tz="UTC")), pa.field("local", pa.timestamp("us")), pa.field("day", pa.date32())]
SCHEMA = pa.schema([pa.field("id", pa.int64()), *TIMES, pa.field("within", pa.struct(TIMES))])


@pytest.fixture(params=["America/New_York", "Asia/Kolkata"])
def elsewhere(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(
    "where",
    [
        "at >= '2020-01-01 00:00:00'",
        "at between '2020-01-01 02:00:00' and timestamp '2020-01-01 03:00:00'",
        "at in ('2020-01-01 02:00:00', null)",
        "'2020-01-01 02:00:00' = at",
        "local = '2020-01-01 02:00:00' and day = date '2020-01-01'",
        "not day < '2020-01-01'",
        "within.at >= '2020-01-01 00:00:00'",
        "within.local = '2020-01-01 02:00:00' and within.day in ('2020-01-01')",
    ],
)
def test_a_time_in_a_filter_is_utc_on_both_engines(elsewhere: SparkSession, tmp_path: Path, where: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    two = dt.datetime(2020, 1, 1, 2)
    times = [
        {"at": two.replace(tzinfo=dt.UTC), "local": two, "day": dt.date(2020, 1, 1)},
        {"at": dt.datetime(2019, 12, 31, 23, tzinfo=dt.UTC), "local": dt.datetime(2019, 12, 31), "day": dt.date(2019, 12, 31)},
    ]
    table.insert([{"id": 1 + number, **row, "within": row} for number, row in enumerate(times)])
    scan = table.scan(where=where, columns=["id"])
    assert scan.to_arrow().column("id").to_pylist() == [1]
    assert [row.id for row in scan.to_spark(elsewhere).collect()] == [1]


@pytest.mark.parametrize("key", ["id", "date_add(date'1970-01-01', cast(id as int))", "cast(id as string)", "timestamp_ntz'2020-01-01'"])
def test_a_key_whose_cast_would_be_a_guess_is_refused_and_the_table_lives(spark: SparkSession, tmp_path: Path, key: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", pa.schema([("at", pa.timestamp("us", tz="UTC"))]), key=["at"])
    with pytest.raises(InvalidBatch, match="Cast it yourself"):
        table.insert(spark.range(200).selectExpr(f"{key} as at"))
    assert objcat.connect(tmp_path).table("t").scan().to_arrow().num_rows == 0
