"""Upserts of frames where the index is no hash: Spark joins their keys with those of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
from objcat.common.validation import TableType
from objcat.datafile.bloom_lookup import Probe
from objcat.errors import CorruptTable, InvalidBatch, InvalidInput, NullKey
from objcat.spark import engine, index_lookup, routing
from objcat.spark.index_lookup import LookupJoin
from objcat.tasks.key_lookup import BatchKeys
from objcat.tasks.shuffle_order import POSITION
from objcat.write import file_sizing
from objcat.write import index_lookup as group_lookup
from tests.tables.scrambling import with_keys_scrambled

pytestmark = pytest.mark.usefixtures("by_jobs")

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("a.b", pa.string()), pa.field("v", pa.float64())])


@pytest.fixture(params=[("merge_on_read", objcat.SimpleIndex()), ("copy_on_write", objcat.BloomIndex())], ids=["simple", "bloom"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> objcat.Table:
    kind, index = request.param
    return objcat.connect(str(tmp_path)).create_table(
        "t",
        SCHEMA,
        key=["id", "a.b"],
        partition_by=["a.b"],
        table_type=kind,
        index=index,
        properties={"target_file_bytes": "4096"},
    )


def test_a_frame_that_differs_each_time_is_computed_once(spark: SparkSession, table: objcat.Table) -> None:
    table.insert([{"id": key, "a.b": part, "v": -1.0} for key in range(300) for part in "xy"])
    assert len(table.refresh().file_groups(table._context.manifests)) > 2
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()
    some = spark.range(400).select(
        (F.rand() * 600).cast("long").alias("id"), F.when(F.rand() < 0.5, "x").otherwise("z").alias("a.b"), F.rand().alias("v")
    )
    table.upsert(some)
    rows = table.scan().to_arrow().to_pylist()
    assert len({(row["id"], row["a.b"]) for row in rows}) == len(rows)
    assert sum(row["v"] == -1.0 and row["a.b"] == "y" for row in rows) == 300
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept
    found = table.scan().to_spark(spark)
    assert found.count() == len(rows) and found.select("id", "`a.b`").distinct().count() == len(rows)


def test_rows_that_nobody_has_located_end_no_file_group(
    spark: SparkSession, table: objcat.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.set_properties({"target_file_bytes": "1024"})
    for first in range(3):
        table.insert([{"id": key, "a.b": "x", "v": 0.0} for key in range(first, 300, 3)])
    lost = tmp_path / "lost"

    def some(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            # When it is computed again, a row is there whose file group was left alone.
            keys = [key for key in batch.column(0).to_pylist() if key % 3 != 2 or (key == 2 and lost.exists())]
            yield pa.RecordBatch.from_pydict({"id": keys, "a.b": ["x"] * len(keys), "v": [1.0] * len(keys)})

    def groups_for(*given: Any) -> Any:
        lost.touch()
        spark.catalog.clearCache()
        return file_sizing.groups_for_new_keys(*given)

    monkeypatch.setattr(group_lookup, "groups_for_new_keys", groups_for)
    with pytest.raises(InvalidBatch, match=r"recomputed different rows\. Nothing was written"):
        table.upsert(spark.range(100).mapInArrow(some, "id long, `a.b` string, v double"))
    rows = table.scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == list(range(300)) and set(rows["v"].to_pylist()) == {0.0}


@pytest.mark.parametrize(
    "index", [objcat.BucketIndex(2), objcat.RecordIndex(2), objcat.BloomIndex()], ids=lambda index: type(index).__name__
)
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_the_last_row_of_a_key_counts_whatever_arrives_first(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TableType, index: objcat.BucketIndex | objcat.RecordIndex
) -> None:
    """On executors that fetch from one another what a later task sent often comes first."""

    def mixed(frame: DataFrame) -> DataFrame:
        return frame.sortWithinPartitions(F.shiftright(POSITION, 33).desc(), POSITION)

    monkeypatch.setattr(engine, "by_group", lambda *given, **named: mixed(routing.by_group(*given, **named)))
    monkeypatch.setattr(engine, "placed_frame", lambda *given: mixed(index_lookup.placed_frame(*given)))
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], table_type=kind, index=index)
    for write, said in ((table.insert, 0), (table.upsert, 1000)):
        if isinstance(index, objcat.BucketIndex) and write == table.upsert and kind == "merge_on_read":
            continue
        write(spark.range(0, 400, 1, 8).selectExpr("id % 50 as id", "'x' as `a.b`", f"cast(id + {said} as double) as v"))
        found = {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
        assert found == {key: float(350 + key + said) for key in range(50)}


def test_a_row_without_a_key_is_refused_in_one_sentence(spark: SparkSession, table: objcat.Table) -> None:
    table.insert([{"id": 1, "a.b": "x", "v": 0.0}])
    with pytest.raises(NullKey, match="'id' is null"):
        table.upsert(spark.createDataFrame([(None, "x", 1.0)], "id long, `a.b` string, v double"))
    table.delete(spark.createDataFrame([(1, "x"), (2, "x")], "id long, `a.b` string"))
    assert table.scan().count() == 0


def test_files_that_cannot_hold_a_key_are_not_read(spark: SparkSession, table: objcat.Table) -> None:
    table.set_properties({"target_file_bytes": "1024"})
    for first in (0, 1000, 2000):
        table.insert([{"id": first + key, "a.b": part, "v": 0.0} for key in range(100) for part in "xy"])
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()
    hidden: dict[str, bytes] = {}
    for group in table.refresh().file_groups(table._context.manifests):
        assert group.base is not None
        data = table._context.fileio.read(group.base.path)
        row = pq.read_table(pa.BufferReader(data)).slice(0, 1).to_pylist()[0]
        if not (1000 <= row["id"] < 2000 and row["a.b"] == "x"):
            hidden[group.base.path] = data
    assert len(hidden) >= 5
    table._context.fileio.delete(hidden)
    table.upsert(spark.range(1010, 1090).selectExpr("id", "'x' as `a.b`", "1.0d as v"))
    with pytest.raises(CorruptTable, match="is missing in"):
        table.upsert(spark.createDataFrame([(1010, "x", 2.0), (2010, "x", 2.0)], "id long, `a.b` string, v double"))
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()
    for path, data in hidden.items():
        table._context.fileio.put(path, data)
    rows = table.scan().to_arrow().to_pylist()
    assert len(rows) == 600 and {row["id"] for row in rows if row["v"] == 1.0 and row["a.b"] == "x"} == set(range(1010, 1090))
    assert sum(row["v"] for row in rows) == 80
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept


@pytest.mark.usefixtures("no_hints")
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_keys_are_read_only_where_a_bloom_filter_knows_one(
    spark: SparkSession, tmp_path: Path, kind: TableType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that no file is read by mistake.
    monkeypatch.setattr("objcat.datafile.bloom.FALSE_POSITIVES", 1e-7)
    table = objcat.connect(str(tmp_path)).create_table(
        "b",
        pa.schema([pa.field("id", pa.int64()), pa.field("s", pa.string()), pa.field("v", pa.float64())]),
        key=["id", "s"],
        table_type=kind,
        index=objcat.BloomIndex(),
        properties={"target_file_bytes": "4096"},
    )
    # Every file holds keys between all others.
    for part in range(3):
        table.insert([{"id": key, "s": str(key), "v": 0.0} for key in range(part, 300, 3)])
    with with_keys_scrambled(table, without=7) as scrambled:
        assert scrambled
        table = objcat.connect(str(tmp_path)).table("b")
        table.upsert(spark.createDataFrame([(7, "7", 1.0)], "id long, s string, v double"))
        with pytest.raises(CorruptTable, match="cannot be read as Parquet"):
            table.upsert(spark.range(20, 30).selectExpr("id", "cast(id as string) as s", "1.0d as v"))
    table = objcat.connect(str(tmp_path)).table("b")
    table.upsert(spark.range(20, 30).selectExpr("id", "cast(id as string) as s", "2.0d as v"))
    table.upsert(spark.range(28, 31).selectExpr("id", "cast(id as string) as s", "3.0d as v"))
    found = {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
    changed = {7: 1.0, **dict.fromkeys(range(20, 28), 2.0), **dict.fromkeys(range(28, 31), 3.0)}
    assert found == {key: changed.get(key, 0.0) for key in range(300)} and table.scan().count() == 300


def test_a_frame_is_refused_where_the_writer_remembers_keys(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(str(tmp_path)).create_table("m", SCHEMA, key=["id"], index=objcat.MemoryIndex())
    with pytest.raises(InvalidInput, match="The table has the memory index"):
        table.upsert(spark.createDataFrame([(1, "x", 1.0)], "id long, `a.b` string, v double"))
    table.upsert([{"id": 1, "a.b": "x", "v": 1.0}])
    assert table.scan().to_spark(spark).count() == 1


def test_keys_that_nobody_has_looked_for_are_refused(table: objcat.Table) -> None:
    spec = table.spec

    def keys(*numbers: int, part: str = "x") -> BatchKeys:
        rows = pa.table({"id": pa.array(numbers, pa.int64()), "a.b": [part] * len(numbers)})
        return BatchKeys.of(spec, iter([rows]), frozenset())

    given = keys(*range(0, 100, 2))
    looked_for = LookupJoin.of(given.span(spec), Probe.of(spec, given.rows) if spec.filtered else None)
    looked_for.check(keys(2, 98), spec)
    for other in (keys(2, 1000), keys(2, part="y"), keys(2, -1)):
        with pytest.raises(InvalidBatch, match=r"recomputed different rows\. Nothing was written"):
            looked_for.check(other, spec)
    if spec.filtered:
        # Within the range of all, but filters were not asked.
        with pytest.raises(InvalidBatch, match="recomputed different rows"):
            looked_for.check(keys(2, 3), spec)
