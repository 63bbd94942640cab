"""Partitions on Spark: rows of a file group meet in one task under every setting of a session, and lie where the local engine puts them."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

import objcat
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch
from objcat.inspection.doctor import examine
from objcat.metadata import manifest
from objcat.timeline.checkpoint import SPACING_SLOTS
from tests.spark.sessions import session

UTC = dt.UTC
CITIES = ("Rome", "東京/a", "", None, "Zürich=%", "😀" * 60)
KINDS = pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("small", pa.int8()),
        ("x", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
    ]
)
PARTITIONINGS = [
    ("city",),
    ("hour(t)",),
    ("day(t)", "truncate(city, 1)"),
    ("month(t)",),
    ("year(t)",),
    ("t",),
    ("hour(local)",),
    ("day(local)",),
    ("month(local)", "flag"),
    ("year(local)",),
    ("local",),
    ("day(day)",),
    ("month(day)",),
    ("year(day)", "truncate(id, 7)"),
    ("truncate(small, 10)",),
    ("truncate(id, 4000000000000000000)",),
    ("x",),
    ("price", "raw"),
]


def rows(count: int = 240) -> list[dict[str, Any]]:
    start = dt.datetime(1969, 12, 31, 22, 59, 59, 999_999)
    steps = [dt.timedelta(0), dt.timedelta(microseconds=1), dt.timedelta(minutes=31), dt.timedelta(days=40), dt.timedelta(days=-70_000)]
    found = []
    for i in range(count):
        moment = None if i % 17 == 0 else start + steps[i % 5] * (1 + i % 3)
        found.append(
            {
                "id": (i - 120) * (1 if i % 2 else 2**55),
                "city": CITIES[i % len(CITIES)],
                "t": None if moment is None else moment.replace(tzinfo=UTC),
                "local": moment,
                "day": None if moment is None else moment.date(),
                "small": None if i % 13 == 0 else i % 256 - 128,
                "x": [0.0, -0.0, float("nan"), None, 1.5, float("-inf")][i % 6],
                "price": [Decimal("0.10"), Decimal("-3.00"), None][i % 3],
                "raw": [b"", b"\x00\xff", None, b"a" * 300][i % 4],
                "flag": [True, False, None][i % 3],
            }
        )
    return found


def frame(spark: SparkSession, batch: list[dict[str, Any]]) -> DataFrame:
    """A frame of several partitions in which no two neighbours meet, whatever zone the session is in."""
    return spark.createDataFrame(pa.Table.from_pylist(batch, SCHEMA), from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)).repartition(3)


def group_ids(table: objcat.Table) -> set[Any]:
    return set(table.refresh().live_group_ids(table._context.manifests))


def told(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr([row["id"], row["city"], row["t"], row["x"], row["flag"]]) for row in found)


@pytest.mark.parametrize("by", PARTITIONINGS, ids=" ".join)
def test_rows_of_a_group_meet_and_lie_where_the_local_engine_puts_them(spark: SparkSession, tmp_path: Path, by: tuple[str, ...]) -> None:
    lake = objcat.connect(tmp_path)
    given: dict[str, Any] = {"key": ["id"], "partition_by": by, "key_scope": "partition", "index": objcat.BucketIndex(2)}
    here, there = (lake.create_table(name, SCHEMA, **given) for name in ("here", "there"))
    batch = rows()
    data = frame(spark, batch)
    here.insert(pa.Table.from_pylist(batch, SCHEMA))
    zones = {
        "spark__sql__session__timeZone": "Asia/Kolkata",
        "spark__sql__adaptive__enabled": "false",
        "spark__sql__shuffle__partitions": "7",
    }
    with session(spark, **zones):
        there.insert(data)
    assert group_ids(there) == group_ids(here)
    assert told(there.scan().to_arrow().to_pylist()) == told(here.scan().to_arrow().to_pylist())
    assert len(there.scan().to_arrow()) == len(batch)


@KINDS
@pytest.mark.parametrize(
    "settings",
    [
        {"spark__sql__session__timeZone": "America/St_Johns"},
        {"spark__sql__ansi__enabled": "true"},
        {"spark__sql__ansi__enabled": "false"},
        {"spark__sql__timestampType": "TIMESTAMP_NTZ", "spark__sql__session__timeZone": "Asia/Kolkata"},
        {"spark__sql__caseSensitive": "true"},
    ],
    ids=lambda settings: " ".join(f"{name.rpartition('__')[2]}={value}" for name, value in settings.items()),
)
def test_no_setting_of_a_session_parts_a_group(spark: SparkSession, tmp_path: Path, kind: TableType, settings: dict[str, str]) -> None:
    lake = objcat.connect(tmp_path)
    by = ["hour(t)", "truncate(id, 4000000000000000000)", "day(local)"]
    table = lake.create_table(
        "t", SCHEMA, key=["id", "t"], partition_by=by, key_scope="partition", table_type=kind, index=objcat.BucketIndex(2)
    )
    batch = [{**row, "t": row["t"] or dt.datetime(2026, 1, 1, tzinfo=UTC)} for row in rows()]
    data = frame(spark, batch)
    with session(spark, spark__sql__adaptive__enabled="false", spark__sql__shuffle__partitions="5", **settings):
        table.insert(data)
        table.upsert(data.limit(60))
        table.delete(data.where(F.col("flag")))
        through_spark = table.scan(columns=["id", "flag"]).to_spark(spark).collect()
    left = Counter(row["id"] for row in batch if not row["flag"])
    assert Counter(row["id"] for row in table.scan().to_arrow().to_pylist()) == left
    assert Counter(row["id"] for row in through_spark) == left
    assert examine(table._context.timeline, deep=True).healthy


@KINDS
def test_equal_keys_of_two_partitions_are_two_rows_on_spark_too(spark: SparkSession, tmp_path: Path, kind: TableType) -> None:
    table = objcat.connect(tmp_path).create_table(
        "t", SCHEMA, key=["id"], partition_by=["city"], key_scope="partition", table_type=kind, index=objcat.BucketIndex(2)
    )
    both = [{**row, "city": city} for row in rows(20) for city in ("Rome", "Oslo")]
    table.insert(frame(spark, both))
    table.upsert(frame(spark, [{**row, "flag": None, "city": "Oslo"} for row in rows(10)]))
    table.delete(spark.createDataFrame([(row["id"], "Rome") for row in rows(4)], "id long, city string"))
    found = table.scan(columns=["id", "city", "flag"]).to_spark(spark).collect()
    expected = Counter({(row["id"], "Oslo"): 1 for row in rows(20)}) + Counter({(row["id"], "Rome"): 1 for row in rows(20)[4:]})
    assert Counter((row["id"], row["city"]) for row in found) == expected
    nulled = {row["id"] for row in rows(10)} | {row["id"] for row in rows(20) if row["flag"] is None}
    assert {row["id"] for row in found if row["city"] == "Oslo" and row["flag"] is None} == nulled
    assert told(table.scan().to_arrow().to_pylist()).total() == 36


@KINDS
def test_another_partitioning_under_frames(spark: SparkSession, tmp_path: Path, kind: TableType) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", SCHEMA, key=["id", "city"], partition_by=["city"], table_type=kind, index=objcat.BucketIndex(2))
    batch = [{**row, "city": row["city"] or "none"} for row in rows(60)]
    table.insert(frame(spark, batch[:20]))
    table.alter.set_partitioning(["city", "truncate(id, 4000000000000000000)"])
    more = [{**row, "city": city, "flag": None} for row, city in zip(batch, itertools.cycle(["none", "Bonn", "Zürich=%"]))]
    with session(spark, spark__sql__adaptive__enabled="false"):
        table.insert(frame(spark, more))
        table.upsert(frame(spark, more[:30]))
    expected = {(row["id"], row["city"]) for row in (*batch[:20], *more)}
    found = [(row["id"], row["city"]) for row in table.scan().to_spark(spark).collect()]
    assert Counter(found) == Counter(dict.fromkeys(expected, 1))
    assert Counter((row["id"], row["city"]) for row in table.scan().to_arrow().to_pylist()) == Counter(found)
    assert {partition.count("/") for partition in table.snapshot.live_partitions(table._context.manifests)} == {0, 1}
    assert examine(table._context.timeline, deep=True).healthy


@KINDS
def test_a_redo_writes_the_groups_that_another_commit_touched(spark: SparkSession, tmp_path: Path, kind: TableType) -> None:
    from objcat.spark.engine import SparkEngine
    from objcat.tasks.model import Operation, WriteResult, WriteTask
    from objcat.timeline.commit import Committer
    from objcat.write.transaction import WriteOperation

    lake = objcat.connect(tmp_path)
    table = lake.create_table(
        "t", SCHEMA, key=["id"], partition_by=["city"], key_scope="partition", table_type=kind, index=objcat.BucketIndex(2)
    )
    other = lake.table("t")
    theirs = {**rows(1)[0], "city": "Rome", "id": 10**6}

    class Raced(SparkEngine):
        def __init__(self) -> None:
            super().__init__(table._context.fileio.describe(), table=table.name)
            self.asked: list[Any] = []

        def write(self, data: DataFrame, task: WriteTask) -> WriteResult:
            self.asked.append(task.only)
            result = super().write(data, task)
            if len(self.asked) == 1:
                other.upsert([theirs])
            return result

    engine = Raced()
    operation = WriteOperation(
        timeline=table._context.timeline,
        table=table.id,
        manifests=table._context.manifests,
        committer=Committer(table._context.fileio),
        engine=engine,
        data=frame(spark, rows(120)),
        operation=Operation.INSERT,
    )
    result, _ = operation.run(table._context.timeline.open())
    footprint = other.inspect.history()[1].footprint[table.id]
    (group_id,) = {*footprint.creates, *footprint.replaces, *footprint.appends}
    assert engine.asked == [None, frozenset({group_id})]
    assert (result.attempts, result.rows) == (2, 120)
    assert table.scan().to_arrow().num_rows == 121


@KINDS
def test_a_table_without_a_key_takes_frames(spark: SparkSession, tmp_path: Path, kind: TableType) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", SCHEMA, key=None, partition_by=["city"], table_type=kind)
    for _ in range(3):
        result = table.insert(frame(spark, rows(60)))
        assert (result.rows, result.inserted) == (60, 60)
    expected = Counter(row["id"] for _ in range(3) for row in rows(60))
    assert Counter(row["id"] for row in table.scan().to_spark(spark).collect()) == expected
    assert Counter(row["id"] for row in table.scan().to_arrow().to_pylist()) == expected
    assert table.scan(where="city = 'Rome'").to_spark(spark).count() == 30
    table.maintenance.compact()
    assert Counter(row["id"] for row in table.scan().to_spark(spark).collect()) == expected
    assert examine(table._context.timeline, deep=True).healthy


def test_a_partition_column_of_another_type_is_refused_with_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], partition_by=["hour(t)"], key_scope="partition")
    with pytest.raises(InvalidBatch, match="'t' is"):
        table.insert(spark.createDataFrame([(1, "x")], "id long, t string"))
    with pytest.raises(InvalidBatch, match="lacks the column 't'"):
        table.insert(spark.createDataFrame([(1,)], "id long"))
    assert list(table._context.fileio.list_keys("data/")) == []


@pytest.mark.parametrize(
    ("kind", "index", "verb"),
    [
        ("merge_on_read", objcat.BucketIndex(1), "insert"),
        ("copy_on_write", objcat.BucketIndex(1), "upsert"),
        ("merge_on_read", objcat.SimpleIndex(), "upsert"),
    ],
)
def test_a_frame_of_one_partition_reads_the_manifests_of_that_one(
    spark: SparkSession, tmp_path: Path, kind: TableType, index: Any, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("objcat.metadata.manifest_levels.SHARD_ITEMS", 8)
    lake = objcat.connect(tmp_path)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("v", pa.int64())])
    made = lake.create_table("t", schema, key=["id"], partition_by=["city"], key_scope="partition", table_type=kind, index=index)
    made.insert([{"id": key, "city": f"city {key:02}", "v": 0} for key in range(60)])
    for _ in range(SPACING_SLOTS):
        made.upsert([{"id": 0, "city": "city 00", "v": 0}])
    made._context.timeline.publish(made._context.timeline.open())
    read: list[str] = []
    get_shard = manifest.get_shard

    def noted(fileio: FileIO, ref: manifest.ShardRef) -> manifest.Shard:
        read.append(ref.path)
        return get_shard(fileio, ref)

    monkeypatch.setattr(manifest, "get_shard", noted)

    def written(bytes_max: int, frame: DataFrame) -> int:
        """How many manifests a new handle reads that writes a frame."""
        monkeypatch.setattr("objcat.write.table_writer.MANIFEST_BYTES_MAX", bytes_max)
        table = objcat.connect(tmp_path).table("t")
        assert len(table.snapshot.table.manifest) >= 6
        read.clear()
        getattr(table, verb)(frame)
        return len(read)

    rows = [(key, "city 30", 1) for key in (30, 100) if (verb, key) != ("insert", 30)]
    assert written(1 << 40, spark.createDataFrame(rows, "id long, city string, v long")) >= 6
    rows = [(key, "city 40", 2) for key in (40, 101) if (verb, key) != ("insert", 40)]
    # A partition may begin at the end of one manifest and go on in the next.
    assert 1 <= written(0, spark.createDataFrame(rows, "id long, city string, v long")) <= 2
    found = {row["id"]: row["v"] for row in lake.table("t").scan().to_arrow().to_pylist()}
    updated = {} if verb == "insert" else {30: 1, 40: 2}
    assert found == dict.fromkeys(range(60), 0) | {100: 1, 101: 2} | updated
    assert examine(made._context.timeline, deep=True).healthy

    monkeypatch.setattr("objcat.spark.engine.SparkEngine.partitions_named", lambda *_: frozenset(["city=city%2050"]))
    with pytest.raises(InvalidBatch, match="rows of other partitions when it was computed again"):
        written(0, spark.createDataFrame([(102, "city 41", 3)], "id long, city string, v long"))
    assert lake.table("t").scan().count() == 62
