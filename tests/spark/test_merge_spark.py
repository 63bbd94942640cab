"""Merges and updates by Spark: the same rows and counts as by the local engine, and the same refusals."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.errors import InvalidBatch, InvalidInput, InvalidPredicate, KeyExists
from objcat.spark import dml
from objcat.table.scan import Scan
from tests.effort import ALL, few
from tests.spark.plans import files_read
from tests.spark.sessions import session
from tests.tables.test_merge import KINDS, SCHEMA, TABLES, counts, make, row, values

ENDS = [("merge_on_read", 1), ("copy_on_write", 2), ("merge_on_read", 3), ("copy_on_write", 0)]


@pytest.mark.parametrize(("kind", "number"), ENDS)
def test_both_engines_merge_alike(spark: SparkSession, tmp_path: Path, kind: str, number: int) -> None:
    rows = [{"id": i, "city": "abc"[i % 3], "amount": i * 100, "op": "d" if i % 5 == 0 else "u"} for i in range(10, 30)]
    found, told = [], []
    for engine in ("local", "spark"):
        table = make(tmp_path / engine, table_type=kind, **TABLES[number])
        source: Any = rows if engine == "local" else spark.createDataFrame(pa.Table.from_pylist(rows)).repartition(3)
        result = (
            table.merge(source, source_alias="s", target_alias="t")
            .when_matched_delete(where="s.op = 'd'")
            .when_matched_update({"v": "t.v + s.amount", "share": "t.v / 4"}, where="s.amount > 1200")
            .when_not_matched_insert({"id": "s.id", "city": "s.city", "v": "amount", "at": 9}, where="op <> 'd'")
            .when_not_matched_by_source_delete(where="t.v < 3")
            .when_not_matched_by_source_update({"note": "concat('alone ', v)"}, where="v < 6")
            .execute()
        )
        told.append(counts(result))
        updated = table.update({"v": "v + 1"}, where="v % 2 = 0 and city <> 'a'", spark=None if engine == "local" else spark)
        told.append(counts(updated))
        found.append(table.scan().to_arrow().sort_by([("city", "ascending"), ("id", "ascending")]).to_pylist())
        assert table.update({"v": 1}, where="id = 1000", spark=None if engine == "local" else spark) is None
    assert found[0] == found[1] and told[:2] == told[2:]
    assert told[0] == (8, 9, 5)


@pytest.mark.parametrize(("kind", "number"), ENDS[:3])
def test_inserts_that_look_at_what_is_there(spark: SparkSession, tmp_path: Path, kind: str, number: int) -> None:
    table = make(tmp_path, table_type=kind, **TABLES[number])
    before = values(table)
    rows = [row(i, v=50, at=50) for i in (0, 1, 90, 91)]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA))
    with pytest.raises(KeyExists, match=r"2 rows of the batch have keys that are in the table .*id=[01]\)"):
        table.insert(frame, on_existing="fail")
    assert values(table) == before
    assert counts(table.insert(frame, on_existing="skip")) == (2, 0, 0)
    assert values(table) == {**before, 90: 50, 91: 50}
    assert table.insert(frame, on_existing="skip") is None
    new = spark.createDataFrame(pa.Table.from_pylist([row(95, v=1, at=50)], SCHEMA))
    assert counts(table.insert(new, on_existing="fail")) == (1, 0, 0)


@pytest.mark.parametrize("beside", few([" OR length(s) > 5", "", " AND length(s) < 5"], 1))
@pytest.mark.parametrize(
    "time",
    [
        "at > '2026-01-01 03:00:00'",
        "TIMESTAMP '2026-01-01 03:00:00' < at",
        "at BETWEEN '2026-01-01 04:00:00' AND '2026-01-01 07:00:00Z'",
        "times.zoned > '2026-01-01 03:00:00'",
        "times.at > '2026-01-01 03:00:00'",
    ],
)
def test_a_time_in_the_filter_of_an_update_is_utc_whatever_else_it_says(
    spark: SparkSession, tmp_path: Path, time: str, beside: str
) -> None:
    """Also where a scan cannot filter by the term that it stands in."""
    hours = pa.array([dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC) for hour in (1, 4, 7)])
    times = pa.StructArray.from_arrays([hours, hours.cast(pa.timestamp("us"))], ["zoned", "at"])
    rows = pa.table({"id": [1, 2, 3], "at": hours, "times": times, "s": ["a", "b", "c"], "v": [0, 0, 0]})
    with session(spark, spark__sql__session__timeZone="America/New_York"):
        for engine in ("local", "spark"):
            lake = objcat.connect(tmp_path)
            lake.write(rows, engine, key=["id"], index=objcat.BucketIndex(1))
            table = lake.table(engine)
            table.update({"v": "1"}, where=time + beside, spark=None if engine == "local" else spark)
            assert sorted(table.scan(where="v = 1").to_arrow()["id"].to_pylist()) == [2, 3], engine


def test_a_key_that_the_table_cannot_hold_is_no_other_key(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table(
        "t", pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())]), key=["id"]
    )
    table.insert([{"id": 1, "v": 1}, {"id": 2, "v": 2}, {"id": 3, "v": 3}])
    for said in ("1.5", "'1'", "timestamp '1970-01-01 00:00:01'", "true"):
        with pytest.raises(InvalidBatch, match="Cast it yourself"):
            table.merge(spark.sql(f"SELECT {said} AS id")).when_matched_delete().execute()
    assert table.merge(spark.sql("SELECT NULL AS id")).when_matched_delete().execute() is None
    result = table.merge(spark.sql("SELECT explode(array(1.5D, 2D, double('NaN'))) AS id")).when_matched_delete().execute()
    assert counts(result) == (0, 0, 1) and sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_what_spark_refuses(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = make(tmp_path, table_type=kind, **TABLES[2])
    source = spark.createDataFrame([(7, "b", 1), (7, "b", 2)], "id int, city string, n bigint")
    with pytest.raises(InvalidBatch, match=r"one row \(id=7\)"):
        table.merge(source).when_matched_update({"v": "n"}).execute()
    with pytest.raises(InvalidInput, match="another partition"):
        table.merge(source.limit(1)).when_matched_update({"city": "'z'"}).execute()
    with pytest.raises(InvalidPredicate, match="does not fit"):
        table.merge(source).when_matched_update({"v": "no_such_function(n)"}).execute()
    with pytest.raises(InvalidInput, match="Cast it"):
        table.update({"v": "'x'"}, spark=spark)
    assert table.refresh().slot == 1
    assert counts(table.merge(source).when_matched_update({"v": "n"}, where="n = 2").execute()) == (0, 1, 0)
    assert values(table)[7] == 2


def test_of_several_rows_the_newest_counts(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, key=["id"], ordering="at")
    rows = [row(7, v=1, at=8), row(7, v=2, at=7), row(8, v=3, at=4), row(90, v=4), row(90, v=5, at=6)]
    merge = table.merge(spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA))).when_matched_update().when_not_matched_insert()
    assert counts(merge.execute()) == (1, 1, 0)
    assert values(table)[7] == 1 and values(table)[8] == 8 and values(table)[90] == 5


def test_a_merge_by_spark_is_computed_again(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(tmp_path, key=["id"])
    other = objcat.connect(tmp_path).table("t")
    from objcat.dml import computed_write

    real, done = computed_write.written, list[bool]()

    def disturbed(*args: Any) -> Any:
        if not done:
            done.append(True)
            other.update({"v": "v + 1000"}, where="id in (3, 4)")
        return real(*args)

    monkeypatch.setattr("objcat.table.merge.written", disturbed)
    result = table.merge(spark.createDataFrame([(3,)], "id bigint")).when_matched_update({"v": "v * 2"}).execute()
    assert result is not None and result.attempts == 2
    assert values(table)[3] == 2006 and values(table)[4] == 1004


@pytest.mark.parametrize("moment", ["_reach", "_counts"])
def test_a_source_that_is_another_one_when_spark_loses_it_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    table = make(tmp_path, key=["id"], count=40, index=objcat.BucketIndex(4))
    lost = tmp_path / "lost"

    def some(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = batch.column(0).to_pylist()
            if lost.exists():
                # Of rows of the table that nobody has read; or fewer than were counted.
                keys = [key + 20 for key in keys] if moment == "_reach" else [key for key in keys if key % 2]
            yield pa.RecordBatch.from_pydict({"id": keys, "n": [1] * len(keys)})

    look = getattr(dml, moment)

    def looked(*given: Any) -> Any:
        found = look(*given)
        lost.touch()
        spark.catalog.clearCache()
        return found

    monkeypatch.setattr(dml, moment, looked)
    before, slot = values(table), table.refresh().slot
    source = spark.range(4).mapInArrow(some, "id long, n long")
    with pytest.raises(InvalidBatch, match=r"recomputed different rows\. Nothing was written"):
        table.merge(source).when_matched_update({"v": "v + n"}).when_not_matched_insert(
            {"id": "source.id", "city": "'a'", "at": 9}
        ).execute()
    assert values(table) == before and table.refresh().slot == slot


@pytest.mark.parametrize("kind", KINDS)
def test_spark_replaces_partitions(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = make(tmp_path, table_type=kind, **TABLES[3])
    table.insert_overwrite(spark.createDataFrame(pa.Table.from_pylist([row(100, city="b"), row(101, city="z")], SCHEMA)))
    assert values(table, "city") == {i: "abc"[i % 3] for i in range(20) if i % 3 != 1} | {100: "b", 101: "z"}
    rows = spark.createDataFrame(pa.Table.from_pylist([row(7, city="c")], SCHEMA))
    with pytest.raises(InvalidBatch, match="not in the partitions"):
        table.insert_overwrite(rows, where="city = 'a'")
    table.insert_overwrite(rows, where="city in ('a', 'c')")
    assert values(table, "city") == {7: "c", 100: "b", 101: "z"}
    table.overwrite(rows)
    assert values(table, "city") == {7: "c"}


def test_a_derived_table_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    source = make(tmp_path, key=["id"])
    derived = objcat.connect(tmp_path).create_table("d", SCHEMA, key=["id"], ordering="at")
    derived.apply_changes(source.changes(since=-1, net=True), app_id="job", spark=spark)
    source.delete("id < 5")
    source.update({"v": "v + 100"}, where="id = 7")
    with pytest.raises(InvalidInput, match="net=True"):
        derived.apply_changes(source.changes(since=1), app_id="job", spark=spark)
    derived.apply_changes(source.changes(since=1, net=True), app_id="job", spark=spark)
    assert values(derived) == values(source) and derived.app_version("job") == 3
    assert derived.apply_changes(source.changes(since=3, net=True), app_id="job", spark=spark) is None


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[DataFrame]:
    """The frames by which writes read their tables."""
    frames: list[DataFrame] = []
    to_spark = Scan.to_spark

    def watched(self: Scan, spark: SparkSession) -> DataFrame:
        frames.append(to_spark(self, spark))
        return frames[-1]

    monkeypatch.setattr(Scan, "to_spark", watched)
    return frames


@pytest.mark.parametrize(
    ("settings", "ids", "files"),
    [
        pytest.param({"key": ["id"], "index": objcat.BucketIndex(8)}, [3], 1, marks=ALL),
        ({"key": ["id"], "index": objcat.BucketIndex(8)}, [3, 4, 1000], 3),
        ({"key": ["id"], "index": objcat.BucketIndex(8)}, [None], 0),
        ({"key": ["id"], "index": objcat.BucketIndex(1), "partition_by": ["v"], "key_scope": "partition"}, [17, 18], 2),
        pytest.param({"key": ["city", "id"], "index": objcat.BucketIndex(1), "partition_by": ["city"]}, [3, 6], 1, marks=ALL),
        pytest.param({"key": ["id"], "index": objcat.SimpleIndex(), "partition_by": ["v"], "key_scope": "partition"}, [5], 1, marks=ALL),
    ],
    ids=repr,
)
def test_a_merge_reads_the_files_that_its_source_can_match(
    spark: SparkSession, tmp_path: Path, scanned: list[DataFrame], settings: dict[str, Any], ids: list[int | None], files: int
) -> None:
    table = make(tmp_path, count=40, table_type="copy_on_write", **settings)
    every = table.inspect.stats().groups
    source = spark.createDataFrame([(i, "abc"[(i or 0) % 3], i) for i in ids], "id int, city string, v bigint")
    result = table.merge(source).when_matched_update({"note": "'met'"}).execute()
    matched = {i for i in ids if i is not None and i < 40}
    assert {i for i, note in values(table, "note").items() if note == "met"} == matched
    assert (0 if result is None else result.updated) == len(matched)
    assert files_read(scanned[-1]) == files < every
    gone = table.merge(source.where("id is not null")).when_not_matched_by_source_delete().execute()
    assert files_read(scanned[-1]) == every
    assert counts(gone) == (0, 0, 40 - len(matched)) and set(values(table)) == matched


@ALL
@pytest.mark.parametrize(
    ("data_type", "keys"),
    [
        (pa.string(), ["", "a'b", "c\\d", "e\nf\t", "Zürich", "日本", "😀", "z" * 300]),
        (pa.date32(), [dt.date(1969, 12, 31), dt.date(2026, 1, 1), dt.date(9999, 12, 31)]),
        (pa.int8(), [-128, -1, 0, 127]),
        (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
        (pa.float64(), [-0.5, 0.0, 1e300]),
        (pa.decimal128(20, 3), [Decimal("-1.5"), Decimal("0.001"), Decimal("12345678901234567.999")]),
        (pa.timestamp("us", "UTC"), [dt.datetime(1960, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC)]),
        (pa.bool_(), [True, False]),
    ],
    ids=str,
)
def test_a_merge_finds_keys_of_every_type(spark: SparkSession, tmp_path: Path, data_type: pa.DataType, keys: list[Any]) -> None:
    schema = pa.schema([pa.field("k", data_type, nullable=False), ("v", pa.int64())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["k"], index=objcat.BucketIndex(4))
    for number, key in enumerate(keys):
        table.upsert([{"k": key, "v": number}])
    table.maintenance.compact()
    for chosen in ([keys[0]], keys[1:]):
        source = spark.createDataFrame(pa.table({"k": pa.array(chosen, data_type)}))
        merged = table.merge(source).when_matched_update({"v": "v + 100"}).execute()
        assert counts(merged) == (0, len(chosen), 0)
    assert sorted(table.scan().to_arrow()["v"].to_pylist()) == [100 + number for number in range(len(keys))]


@pytest.mark.parametrize("scope", ["table", "partition"])
def test_a_derived_table_by_spark_loses_no_row_that_one_commit_takes_to_another_partition(
    spark: SparkSession, tmp_path: Path, scope: str
) -> None:
    settings: dict[str, Any] = {"key": ["id", "city"] if scope == "table" else ["id"], "key_scope": scope, "index": objcat.BucketIndex(2)}
    source = objcat.connect(tmp_path).create_table("s", SCHEMA, partition_by=["city"], **settings)
    derived = objcat.connect(tmp_path).create_table("d", SCHEMA, key=["id", "city"])
    source.insert([row(key, city="abc"[key % 3]) for key in range(6)])
    derived.apply_changes(source.changes(since=-1, net=True), app_id="job", spark=spark)
    source.alter.set_partitioning([])
    source.overwrite([row(key, city="abc"[key % 3]) for key in range(1, 7)])
    derived.apply_changes(source.changes(since=1, net=True), app_id="job", spark=spark)
    assert values(derived, "city") == values(source, "city") == {key: "abc"[key % 3] for key in range(1, 7)}


@pytest.mark.parametrize("way", ["ab", "ba"])
def test_a_derived_table_by_spark_with_fewer_key_columns_loses_no_row_that_went_to_another_partition(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    settings: dict[str, Any] = {"key": ["id"], "key_scope": "partition", "index": objcat.BucketIndex(4)}
    source = objcat.connect(tmp_path).create_table("s", SCHEMA, partition_by=["city"], **settings)
    derived = objcat.connect(tmp_path).create_table("d", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    source.insert([row(key, city=way[0]) for key in range(20)])
    derived.apply_changes(source.changes(since=-1, net=True), app_id="job", spark=spark)
    source.delete([{"id": key, "city": way[0]} for key in range(20)])
    source.upsert([row(key, city=way[1]) for key in range(20)])
    derived.apply_changes(source.changes(since=1, net=True), app_id="job", spark=spark)
    assert values(derived, "city") == values(source, "city") == dict.fromkeys(range(20), way[1])


def test_text_of_a_source_with_a_collation_is_text(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("name", pa.string(), nullable=False), ("note", pa.string()), ("tags", pa.list_(pa.string()))])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["name"], index=objcat.BucketIndex(1))
    table.insert([{"name": "a"}, {"name": "B"}])
    source = spark.sql(
        "SELECT name COLLATE UTF8_LCASE AS name, 'new' COLLATE UTF8_LCASE AS note, array('x' COLLATE UTF8_LCASE) AS tags "
        "FROM VALUES ('A'), ('a'), ('b') AS given(name)"
    )
    done = table.merge(source).when_matched_update({"note": "source.note", "tags": "source.tags"}).when_not_matched_insert().execute()
    assert counts(done) == (2, 1, 0)
    wanted = {"A": ("new", ["x"]), "B": (None, None), "a": ("new", ["x"]), "b": ("new", ["x"])}
    assert {row["name"]: (row["note"], row["tags"]) for row in table.scan().to_arrow().to_pylist()} == wanted
