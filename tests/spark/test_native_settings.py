"""Settings of the user's session that would change what files say change nothing in native reads; a file that is gone is an error."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import objcat
from tests.spark.scripts import comparable

SETTINGS: list[dict[str, str]] = [
    {"parquet.fieldId.read.enabled": "true"},
    {"parquet.fieldId.read.enabled": "true", "parquet.fieldId.read.ignoreMissing": "true"},
    {"session.timeZone": "America/New_York"},
    {"session.timeZone": "Asia/Kolkata", "timestampType": "TIMESTAMP_NTZ"},
    {"ansi.enabled": "false"},
    {"caseSensitive": "true"},
    {"files.ignoreMissingFiles": "true", "files.ignoreCorruptFiles": "true"},
    {"adaptive.enabled": "false"},
    {"parquet.datetimeRebaseModeInRead": "LEGACY", "parquet.int96RebaseModeInRead": "LEGACY"},
    {"parquet.datetimeRebaseModeInRead": "EXCEPTION", "parquet.int96RebaseModeInRead": "EXCEPTION"},
    {"parquet.enableVectorizedReader": "false"},
    {"parquet.enableVectorizedReader": "false", "parquet.recordLevelFilter.enabled": "true"},
    {"parquet.enableNestedColumnVectorizedReader": "false"},
    {"parquet.filterPushdown": "false"},
    {"parquet.mergeSchema": "true"},
    {"parquet.binaryAsString": "true", "parquet.inferTimestampNTZ.enabled": "false", "parquet.int96AsTimestamp": "false"},
    {"legacy.parquet.nanosAsLong": "true"},
    {"legacy.parquet.returnNullStructIfAllFieldsMissing": "true"},
    {"optimizer.nestedSchemaPruning.enabled": "false"},
    {"optimizer.nestedPredicatePushdown.supportedFileSources": ""},
    {"sources.bucketing.enabled": "false"},
    {"sources.bucketing.autoBucketedScan.enabled": "false"},
    {"legacy.bucketedTableScan.outputOrdering": "true"},
    {"codegen.wholeStage": "false"},
    {"codegen.maxFields": "1"},
    {"exchange.reuse": "false"},
    {"files.maxPartitionBytes": "1000"},
    {"autoBroadcastJoinThreshold": "-1", "join.preferSortMergeJoin": "true"},
    {"optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ColumnPruning"},
]
RARE = (
    "legacy.parquet.returnNullStructIfAllFieldsMissing",
    "optimizer.nestedPredicatePushdown.supportedFileSources",
    "sources.bucketing.enabled",
    "sources.bucketing.autoBucketedScan.enabled",
    "codegen.wholeStage",
    "codegen.maxFields",
    "exchange.reuse",
    "files.maxPartitionBytes",
    "parquet.mergeSchema",
    "parquet.enableNestedColumnVectorizedReader",
)
"""Settings of how a plan runs rather than of what values mean: they wait for `--all`."""
SCHEMA = pa.schema(
    [
        pa.field("Id", pa.int64(), nullable=False),
        ("a", pa.string()),
        ("b", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("bin", pa.binary()),
        ("place", pa.struct([("x", pa.float64()), ("y", pa.int32())])),
    ]
)
WHERES = [
    None,
    "a = 'b3' or b is null",
    "x > 5 or n = 3",
    "day < '1500-01-01'",
    "at >= '1001-01-01 00:00:00' and local < '1001-01-09'",
    "Id in (3, 4, 300)",
    "not x = 3",
]


def rows(ids: range, tag: str) -> list[dict[str, object]]:
    old = dt.datetime(1001, 1, 1)
    return [
        {
            "Id": i,
            "a": f"a{i}",
            "b": f"b{i}{tag}" if i % 7 else None,
            "n": i,
            "x": [float("nan"), -0.0, None, float(i)][i % 4],
            "day": old.date() + dt.timedelta(days=i * 7000),
            "at": (old + dt.timedelta(days=i)).replace(tzinfo=dt.UTC),
            "local": old + dt.timedelta(days=i),
            "bin": bytes([200, i]),
            "place": None if i % 5 == 0 else {"x": float("nan"), "y": i},
        }
        for i in ids
    ]


KINDS = ("merge_on_read", "event time", "copy_on_write")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, objcat.Table]:
    return {kind: made_of(kind, tmp_path_factory.mktemp("lake")) for kind in KINDS}


def made_of(kind: str, place: Path) -> objcat.Table:
    """With swapped names, a name that came back, fields of all ages, files of both bucket counts, and log rows of which some are merged."""
    made = objcat.connect(place).create_table(
        "t",
        SCHEMA,
        key=["Id"],
        ordering="n" if kind == "event time" else None,
        table_type="copy_on_write" if kind == "copy_on_write" else "merge_on_read",
        index=objcat.BucketIndex(2),
    )
    made.insert(pa.Table.from_pylist(rows(range(40), ""), schema=SCHEMA))
    made.upsert(pa.Table.from_pylist(rows(range(20, 50), "+"), schema=SCHEMA))
    made.maintenance.split_buckets()
    made.maintenance.compact(file_groups=sorted(made.refresh().live_group_ids(made._context.manifests))[1:3])
    rename = objcat.RenameColumn
    made.alter.apply(
        [
            rename("a", "c"),
            rename("b", "a"),
            rename("c", "b"),
            objcat.DropColumn("n") if kind != "event time" else rename("n", "m"),
        ]
    )
    made.alter.apply([objcat.AddColumn("n", "int"), rename("place.x", "z"), rename("place.y", "x"), objcat.AddColumn("place.y", "bigint")])
    newer = made.schema
    changed = [{"Id": i, "a": f"b{i}", "n": i, "x": 9.0, "place": {"z": 1.0, "x": 2, "y": 2**40}, "m": 100} for i in (3, 4, 45, 60)]
    made.upsert(pa.Table.from_pylist([{name: row.get(name) for name in newer.names} for row in changed], schema=newer))
    made.delete(pa.table({"Id": pa.array([5, 6], pa.int64())}))
    return made


@pytest.fixture(
    params=[pytest.param(one, marks=[pytest.mark.tier("all")] if one.keys() & set(RARE) else []) for one in SETTINGS],
    ids=lambda given: " ".join(f"{name}={value}" for name, value in given.items()),
)
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    names = {f"spark.sql.{name}": value for name, value in request.param.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    try:
        for name, value in names.items():
            spark.conf.set(name, value)
        yield spark
    finally:
        for name, was in before.items():
            spark.conf.unset(name) if was is None else spark.conf.set(name, was)


def setting_of(request: pytest.FixtureRequest) -> int:
    number: int = SETTINGS.index(request.node.callspec.params["session"])
    return number


def test_no_setting_changes_a_row(session: SparkSession, tables: dict[str, objcat.Table], request: pytest.FixtureRequest) -> None:
    number = setting_of(request)
    check(tables[KINDS[number % len(KINDS)]], session, [None, WHERES[1 + number % (len(WHERES) - 1)]])


@pytest.mark.tier("all")
@pytest.mark.parametrize("kind", KINDS)
def test_no_setting_changes_a_row_of_any_table(session: SparkSession, tables: dict[str, objcat.Table], kind: str) -> None:
    check(tables[kind], session, WHERES)


def check(table: objcat.Table, session: SparkSession, wheres: Sequence[str | None]) -> None:
    for where in wheres:
        scan = table.scan(where=where)
        assert comparable(scan.to_spark(session).toArrow().cast(scan.schema)) == comparable(scan.to_arrow()), where


def test_a_setting_that_comes_after_the_frame_changes_no_row_either(spark: SparkSession, tables: dict[str, objcat.Table]) -> None:
    scan = tables["merge_on_read"].scan(where="x > 5 or n = 3")
    frame = scan.to_spark(spark)
    spark.conf.set("spark.sql.caseSensitive", "true")
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    try:
        assert comparable(frame.toArrow().cast(scan.schema)) == comparable(scan.to_arrow())
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
        spark.conf.unset("spark.sql.parquet.fieldId.read.enabled")


def test_reading_leaves_the_settings_of_the_session_alone(spark: SparkSession, tables: dict[str, objcat.Table]) -> None:
    before = dict(spark.conf.getAll)
    tables["merge_on_read"].scan().to_spark(spark).count()
    assert dict(spark.conf.getAll) == before


@pytest.mark.parametrize("damage", ["gone", "garbage"])
def test_a_file_that_is_gone_or_garbage_is_an_error_whatever_the_session_ignores(spark: SparkSession, tmp_path: Path, damage: str) -> None:
    schema = pa.schema([("id", pa.int64())])
    made = objcat.connect(tmp_path).create_table("t", schema, key=["id"], index=objcat.BucketIndex(2))
    made.insert(pa.table({"id": list(range(100))}, schema=schema))
    frame = made.scan().to_spark(spark)
    victim = min(tmp_path.glob("tables/*/data/**/*_00000.parquet"))
    size = victim.stat().st_size
    victim.unlink()
    if damage == "garbage":
        victim.write_bytes(b"x" * size)
    names = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    try:
        for name in names:
            spark.conf.set(name, "true")
        with pytest.raises((PySparkException, Py4JJavaError), match="FAILED_READ_FILE"):
            frame.collect()
        with pytest.raises((PySparkException, Py4JJavaError), match="FAILED_READ_FILE"):
            made.scan().to_spark(spark).collect()
    finally:
        for name in names:
            spark.conf.unset(name)


def test_a_log_object_of_some_mebibytes_is_read_by_all_cores_unless_the_session_says_what_a_file_costs(
    spark: SparkSession, tmp_path: Path
) -> None:
    count = 300_000
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])
    made = objcat.connect(tmp_path).create_table("t", schema, key=["id"], index=objcat.BucketIndex(2))
    noise = random.Random(7)
    made.upsert(pa.table({"id": range(count), "value": [noise.getrandbits(63) for _ in range(count)]}, schema=schema))
    (path,) = tmp_path.glob("tables/*/data/**/*.log.parquet")
    assert 2 * 1024**2 < path.stat().st_size < 4 * 1024**2

    def shares() -> list[int]:
        rows = made.incremental(since=0).to_spark(spark).groupBy(F.spark_partition_id()).count().collect()
        assert sum(row["count"] for row in rows) == count
        return [row["count"] for row in rows]

    assert max(shares()) < 0.8 * count
    spark.conf.set("spark.sql.files.openCostInBytes", str(16 * 1024**2))
    try:
        assert shares() == [count]
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")
