"""A stream of what happens to a table: its offsets are slots, its batches are ranges of them."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamReader

import objcat
from objcat.errors import InvalidInput
from objcat.spark import foreach_batch
from pyspark_objcat import DefaultSource
from tests.spark.test_stream_sink import content

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
HAS_LIMITS = bool(inspect.signature(DataSourceStreamReader.latestOffset).parameters.get("limit"))
"""PySpark 4.1 has no admission control."""


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    """Slots: 1 inserts 1 and 2, 2 updates 2, 3 merges, 4 deletes 1, 5 inserts 3."""
    table = objcat.connect(tmp_path / "lake").create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.upsert([{"id": 1, "value": "a"}, {"id": 2, "value": "a"}])
    table.upsert([{"id": 2, "value": "b"}])
    table.maintenance.compact()
    table.delete([{"id": 1}])
    table.upsert([{"id": 3, "value": "c"}])
    return table


def reader(directory: Path, **options: str) -> Any:
    """What Spark asks for the offsets of a query."""
    source = DefaultSource({"path": f"{directory}/lake/t", "mode": "changes", **options})
    return source.streamReader(source.schema())


class Follower:
    """A query that keeps the rows of each of its batches, and can be run again from its checkpoint."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory

    def __call__(self, **options: Any) -> list[list[tuple[Any, ...]]]:
        batches: list[list[tuple[Any, ...]]] = []
        name = options.pop("checkpoint", "checkpoint")
        into: Callable[[DataFrame, int], None] = options.pop("into", None) or (
            lambda frame, _: batches.append(sorted(tuple(row) for row in frame.drop("_commit_time").collect()))
        )
        source = self._spark.readStream.format("objcat").options(**{"mode": "changes", **options}).load(f"{self._directory}/lake/t")
        writer = source.writeStream.option("checkpointLocation", str(self._directory / name)).trigger(availableNow=True)
        writer.foreachBatch(into).start().awaitTermination()
        return batches


@pytest.fixture
def follow(spark: SparkSession, tmp_path: Path) -> Iterator[Follower]:
    yield Follower(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


EVERYTHING = [
    ("delete", 4, 1, "a"),
    ("insert", 1, 1, "a"),
    ("insert", 1, 2, "a"),
    ("insert", 5, 3, "c"),
    ("update_after", 2, 2, "b"),
    ("update_before", 2, 2, "a"),
]


def test_every_change_comes_once_over_restarts(table: objcat.Table, follow: Follower) -> None:
    assert follow() == [EVERYTHING]
    assert follow() == []
    table.upsert([{"id": 3, "value": "d"}])
    assert follow() == [[("update_after", 6, 3, "d"), ("update_before", 6, 3, "c")]]


def test_modes_and_where_to_begin(table: objcat.Table, follow: Follower) -> None:
    since = table.inspect.history()[1].txn
    assert follow(since=since, mode="net_changes", checkpoint="net") == [
        [("delete", 4, 1, "a"), ("insert", 5, 3, "c"), ("update_after", 2, 2, "b"), ("update_before", 2, 2, "a")]
    ]
    assert follow(since="1", mode="incremental", columns="value,id", where="id > 2", checkpoint="incremental") == [[("c", 3)]]


@pytest.mark.parametrize(("narrow", "wide", "fits", "more"), [(pa.int32(), "bigint", 2, 2**40), (pa.float32(), "double", 0.5, 5e-324)])
def test_a_restore_that_makes_a_column_narrower_again_is_followed_while_the_values_fit(
    tmp_path: Path, narrow: pa.DataType, wide: str, fits: Any, more: Any
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", narrow)])
    table = objcat.connect(tmp_path / "lake").create_table("t", schema, key=["id"], index=objcat.BucketIndex(1))
    table.upsert([{"id": 1, "v": 1}])
    table.alter.widen_column("v", wide)
    table.upsert([{"id": 2, "v": fits}])
    table.restore(to=1)
    table.alter.widen_column("v", wide)
    table.upsert([{"id": 3, "v": more}])
    table.restore(to=1)

    def rows(stream: Any, first: int, last: int) -> list[tuple[Any, ...]]:
        return [(row["_change_type"], row["id"], row["v"]) for row in read_batch(stream, table, first, last)]

    assert rows(reader(tmp_path), 3, 4) == [("delete", 2, fits)]
    with pytest.raises(InvalidInput, match="A RESTORE took a column back"):
        rows(reader(tmp_path), 6, 7)


PLACE = pa.struct([pa.field("lat", pa.float64(), nullable=False), pa.field("long", pa.float64())])
WIDE = pa.schema(
    [
        *SCHEMA,
        pa.field("day", pa.int32()),
        pa.field("many", pa.int32()),
        pa.field("place", PLACE),
        pa.field("never", pa.string(), nullable=False),
    ]
)


def wide_row(key: int, **values: Any) -> dict[str, Any]:
    return {"id": key, "value": "a", "day": 7, "many": 5, "place": {"lat": 1.0, "long": 2.0}, "never": "n", **values}


@pytest.fixture
def wide(tmp_path: Path) -> objcat.Table:
    lake = objcat.connect(tmp_path / "lake")
    table = lake.create_table("t", WIDE, key=["id"], index=objcat.BucketIndex(1), partition_by=["day"], key_scope="partition")
    table.insert([wide_row(1)])
    return table


def read_batch(stream: Any, table: objcat.Table, first: int, last: int) -> list[dict[str, Any]]:
    parts = stream.partitions({"slot": first, "table": table.id}, {"slot": last, "table": table.id})
    return [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]


SWAP = [objcat.RenameColumn("value", "x"), objcat.RenameColumn("never", "value"), objcat.RenameColumn("x", "never")]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([objcat.MoveColumn("place.long", first=True)], "The column 'place' changed"),
        ([objcat.RenameColumn("place.lat", "x")], "The column 'place' changed"),
        ([objcat.AddColumn("place.x", "int")], "The column 'place' changed"),
        ([objcat.DropColumn("value"), objcat.AddColumn("value", "string")], "The column 'value' changed"),
        (SWAP, "The column 'value' changed"),
        ([objcat.DropNotNull("never")], "The column 'never' changed"),
        ([objcat.AddColumn("more", "int")], "The table has a new column, 'more', since the stream was loaded"),
    ],
)
@pytest.mark.parametrize("mode", ["changes", "incremental"])
def test_columns_that_change_under_a_stream_end_it_and_are_told_when_it_is_loaded_again(
    wide: objcat.Table, tmp_path: Path, mode: str, changes: list[Any], says: str
) -> None:
    stream, some = reader(tmp_path, mode=mode), reader(tmp_path, mode=mode, columns="id,day")
    wide.alter.apply(changes)
    wide.upsert([{"id": 2, "day": 8, "value": "b", "never": "n"}], schema_mode="add")
    assert [row["place"] for row in read_batch(stream, wide, -1, 1)] == [{"lat": 1.0, "long": 2.0}]
    with pytest.raises(InvalidInput, match=f"{says}.*Load it again"):
        read_batch(stream, wide, 1, 3)
    assert [(row["id"], row["day"]) for row in read_batch(some, wide, 1, 3)] == [(2, 8)]
    again = read_batch(reader(tmp_path, mode=mode), wide, -1, 3)
    expected = wide.scan().to_arrow().to_pylist()
    assert sorted(({name: row[name] for name in wide.schema.names} for row in again), key=lambda row: row["id"]) == expected


@pytest.mark.parametrize("mode", ["changes", "incremental"])
def test_a_batch_that_ends_before_columns_changed_has_those_of_when_the_stream_was_loaded(
    wide: objcat.Table, tmp_path: Path, mode: str
) -> None:
    wide.alter.set_partitioning([])
    wide.overwrite([wide_row(1), wide_row(2)])
    before = wide.refresh().slot
    wide.alter.apply(
        [objcat.RenameColumn("value", "text"), objcat.MoveColumn("place.long", first=True), objcat.WidenColumn("many", "bigint")]
    )
    wide.alter.apply([objcat.DropColumn("never"), objcat.AddColumn("never", "int")])
    told = read_batch(reader(tmp_path, mode=mode), wide, 2, before)
    names = ["id", "text", "many", "place", "never"]
    rows = [{name: row[name] for name in names} for row in told if row.get("_change_type") != "delete"]
    place = {"long": 2.0, "lat": 1.0}
    assert sorted(rows, key=lambda row: row["id"]) == [{"id": key, "text": "a", "many": 5, "place": place, "never": None} for key in (1, 2)]


def test_a_partition_column_that_was_dropped_later_is_no_hindrance(wide: objcat.Table, tmp_path: Path) -> None:
    wide.upsert([wide_row(1, value="b"), wide_row(1, day=8)])
    before = wide.refresh().slot
    wide.alter.set_partitioning([])
    wide.overwrite([wide_row(1)])
    wide.alter.set_partitioning(["value"])
    wide.alter.drop_column("day")
    wide.alter.add_column("day", "string")
    told = read_batch(reader(tmp_path), wide, 1, before)
    assert [(row["_change_type"], row["value"], row["day"]) for row in told] == [
        ("update_before", "a", None),
        ("update_after", "b", None),
        ("insert", "a", None),
    ]


def test_nulls_that_a_restore_took_away_again_are_no_numbers(wide: objcat.Table, follow: Follower) -> None:
    wide.alter.apply([objcat.DropNotNull("never"), objcat.DropNotNull("place.lat")])
    wide.upsert([wide_row(1, never=None, place={"lat": None, "long": 2.0})])
    wide.restore(to=1)
    told: list[Any] = []

    def keep(frame: DataFrame, _: int) -> None:
        chosen = frame.select("_change_type", F.col("never").isNull(), F.col("place.lat").isNull())
        told.extend(sorted(tuple(row) for row in chosen.collect()))

    follow(since="2", into=keep)
    states = [("update_before", False), ("update_after", True), ("update_before", True), ("update_after", False)]
    assert told == sorted((kind, is_null, is_null) for kind, is_null in states)


@pytest.mark.parametrize("mode", ["changes", "net_changes", "incremental"])
def test_a_read_up_to_a_slot_has_the_columns_of_that_slot(wide: objcat.Table, tmp_path: Path, mode: str) -> None:
    wide.alter.apply(
        [*SWAP, objcat.RenameColumn("place.lat", "x"), objcat.MoveColumn("place.long", first=True), objcat.AddColumn("more", "int")]
    )
    source = DefaultSource({"path": f"{tmp_path}/lake/t", "mode": mode, "until": "1"})
    stream: Any = source.reader(source.schema())
    (row,) = [row for part in stream.partitions() for batch in stream.read(part) for row in batch.to_pylist()]
    assert {name: value for name, value in row.items() if not name.startswith("_")} == wide_row(1)


@pytest.mark.parametrize("mode", ["changes", "net_changes"])
def test_a_row_that_goes_to_a_partition_of_another_partitioning_ends_before_it_begins(tmp_path: Path, mode: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])
    settings: dict[str, Any] = {"key": ["id"], "key_scope": "partition", "index": objcat.BucketIndex(2)}
    table = objcat.connect(tmp_path / "lake").create_table("t", schema, partition_by=["city"], **settings)
    rows = [{"id": number, "city": "ab"[number % 2]} for number in range(6)]
    table.insert(rows)
    table.alter.set_partitioning([])
    table.overwrite(rows)
    table.upsert(rows[:1])
    stream = reader(tmp_path, mode=mode)
    parts = stream.partitions({"slot": 1, "table": table.id}, {"slot": table.snapshot.slot, "table": table.id})
    told = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    copy: dict[int, Any] = {}
    for row in told:
        if row["_change_type"] == "delete":
            copy.pop(row["id"], None)
        elif row["_change_type"] != "update_before":
            copy[row["id"]] = row["city"]
    assert copy == {row["id"]: row["city"] for row in rows}


def test_a_batch_takes_as_many_commits_or_bytes_as_it_may(table: objcat.Table, follow: Follower, tmp_path: Path) -> None:
    if not HAS_LIMITS:
        with pytest.raises(InvalidInput, match=r"The option max_commits needs PySpark 4\.2"):
            reader(tmp_path, max_commits="2")
        return
    assert [sorted({row[1] for row in rows}) for rows in follow(max_commits="2")] == [[1, 2], [4, 5]]
    stream = reader(tmp_path, max_bytes="1")
    ends = [stream.initialOffset()["slot"]]
    while not ends[1:] or ends[-1] != ends[-2]:
        ends.append(stream.latestOffset({"slot": ends[-1], "table": table.id}, stream.getDefaultReadLimit())["slot"])
    assert ends == [-1, 1, 3, 4, 5, 5], "a merge changes nothing, and goes with what is before it"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "snapshot"}, r'Give \.option\("mode", "changes"\)'),
        ({"mode": "chances"}, "did you mean 'changes'"),
        ({"until": "3"}, "A stream has no end"),
        ({"max_commits": "0"}, "The option max_commits is 0|needs PySpark 4"),
        ({"since": "99"}, "Use a slot from 0 to 5"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(table: objcat.Table, tmp_path: Path, options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        reader(tmp_path, **options).initialOffset()


def test_a_slot_that_was_cleaned_is_one_sentence(table: objcat.Table, follow: Follower) -> None:
    follow()
    table.upsert([{"id": 3, "value": "d"}])
    table.maintenance.compact()
    table.upsert([{"id": 3, "value": "e"}])
    table.maintenance.clean(keep_slots=1)
    with pytest.raises(Exception, match=r"The stream cannot go on from slot 5: .* and a new checkpointLocation"):
        follow()


def test_another_table_of_that_name_is_not_followed(table: objcat.Table, follow: Follower, tmp_path: Path) -> None:
    follow()
    lake = objcat.connect(tmp_path / "lake")
    lake.drop_table("t")
    lake.create_table("t", SCHEMA, key=["id"]).upsert([{"id": 1, "value": "a"}])
    with pytest.raises(Exception, match=r"there is now the table .* Begin again with a new checkpointLocation"):
        follow()


def test_a_pipeline_of_two_hops_equals_a_computation_of_all(table: objcat.Table, follow: Follower, spark: SparkSession, tmp_path) -> None:
    """Source, its changes, a copy of it by the format's own sink, and a sum of it: after each round both equal what the source says."""
    chance = random.Random(11)
    lake = objcat.connect(tmp_path / "lake")
    sums_schema = pa.schema([pa.field("value", pa.string(), nullable=False), pa.field("count", pa.int64()), pa.field("keys", pa.int64())])
    sums = lake.create_table("sums", sums_schema, key=["value"], table_type="copy_on_write", index=objcat.BucketIndex(2))
    copy = lake.create_table("copy", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    update = foreach_batch(sums, app_id="sums", delete_when="count = 0")

    def add(frame: DataFrame, batch: int) -> None:
        sign = F.when(F.col("_change_type").isin("insert", "update_after"), 1).otherwise(-1)
        changed = frame.groupBy("value").agg(F.sum(sign).alias("count"), F.sum(sign * F.col("id")).alias("keys"))
        before = sums.scan().to_spark(spark)
        both = changed.unionByName(before.join(changed, "value", "left_semi"))
        update(both.groupBy("value").agg(F.sum("count").alias("count"), F.sum("keys").alias("keys")), batch)

    def copied() -> None:
        source = spark.readStream.format("objcat").option("mode", "net_changes").load(f"{tmp_path}/lake/t")
        changes = source.where("_change_type != 'update_before'").select("id", "value", "_change_type")
        sink = changes.writeStream.format("objcat").option("delete_when", "_change_type = 'delete'")
        sink = sink.option("path", f"{tmp_path}/lake/copy").option("checkpointLocation", f"{tmp_path}/copy checkpoint")
        sink.trigger(availableNow=True).start().awaitTermination()

    for _ in range(2):
        for _ in range(4):
            table.upsert([{"id": chance.randrange(30), "value": chance.choice("abc")} for _ in range(8)])
            table.delete([{"id": chance.randrange(30)} for _ in range(3)])
        table.maintenance.compact()
        follow(into=add)
        copied()
        assert content(copy) == content(table)
        recomputed = table.scan().to_arrow().group_by("value").aggregate([("id", "count"), ("id", "sum")])
        found = sums.scan().to_arrow().to_pylist()
        assert {(row["value"], row["count"], row["keys"]) for row in found} == set(zip(*recomputed.to_pydict().values(), strict=True))
