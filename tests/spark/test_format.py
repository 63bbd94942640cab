"""`format("objcat")`: the door for SQL and for whoever has nothing but Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidInput, WriterFenced
from objcat.inspection.doctor import examine
from objcat.spark import versions
from pyspark_objcat import DefaultSource
from tests.spark.files import batch, data_files

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])


def frame(spark: SparkSession, first: int, last: int, value: str) -> DataFrame:
    return spark.range(first, last, 1, 3).selectExpr("id", f"concat('{value}', id) as value")


def rows(found: DataFrame | pa.Table) -> dict[int, str]:
    table = found if isinstance(found, pa.Table) else found.toArrow()
    keys = table["id"].to_pylist()
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, table["value"].to_pylist(), strict=True))


def test_the_first_write_creates_and_the_next_upserts(spark: SparkSession, tmp_path: Path) -> None:
    place = f"{tmp_path}/shop.orders"
    frame(spark, 0, 10, "a").write.format("objcat").mode("append").option("key", "id").option("buckets", "4").save(place)
    frame(spark, 5, 12, "b").write.format("objcat").mode("append").save(place)
    table = objcat.connect(tmp_path).table("shop.orders")
    expected = {i: f"{'a' if i < 5 else 'b'}{i}" for i in range(12)}
    assert rows(table.scan().to_arrow()) == expected
    assert table.spec.index.count == 4 and [column.name for column in table.spec.key_columns] == ["id"]
    assert rows(spark.read.format("objcat").load(place)) == expected
    assert rows(spark.read.format("objcat").option("as_of", "1").load(place)) == {i: f"a{i}" for i in range(10)}
    assert rows(spark.read.format("objcat").option("where", "id >= 10").load(place)) == {10: "b10", 11: "b11"}
    # The tasks wrote log objects; there is nothing else, and nobody is at work any more.
    assert all(path.endswith(".log.parquet") for path in data_files(tmp_path))
    assert len(data_files(tmp_path)) == sum(entry.summary.files for entry in table.inspect.history() if entry.summary)


def test_three_threads_write_one_frame_to_one_table_and_to_tables_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """A thread has its session for Spark once it has made a frame."""
    lake = objcat.connect(tmp_path)
    lake.create_table("all", SCHEMA, key=None)
    shared = frame(spark, 0, 20, "a").cache()

    def write(number: int) -> None:
        spark.createDataFrame([], "x int")
        shared.write.format("objcat").mode("append").save(f"{tmp_path}/all")
        shared.write.format("objcat").mode("append").option("key", "id").save(f"{tmp_path}/own{number}")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    shared.unpersist()
    expected = {i: f"a{i}" for i in range(20)}
    assert sorted(lake.table("all").scan().to_arrow()["id"].to_pylist()) == sorted([*range(20)] * 3)
    assert all(rows(lake.table(f"own{number}").scan().to_arrow()) == expected for number in range(3))


def test_deletes_and_sql(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    table.insert([{"id": i, "value": "x"} for i in range(6)])
    spark.range(0, 3).write.format("objcat").mode("append").option("operation", "delete").save(f"{tmp_path}/t")
    assert sorted(rows(table.scan().to_arrow())) == [3, 4, 5]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW trips USING objcat OPTIONS (path '{tmp_path}/t')")
    spark.sql("INSERT INTO trips VALUES (7, 'seven')")
    assert [tuple(row) for row in spark.sql("SELECT id, value FROM trips WHERE id > 4 ORDER BY id").collect()] == [(5, "x"), (7, "seven")]
    spark.catalog.dropTempView("trips")


def test_a_frame_is_of_the_columns_that_it_was_made_of_and_stays_at_the_slot_of_its_first_action(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", SCHEMA, key=["id"])
    table.insert([{"id": i, "value": "x"} for i in range(3)])
    frame = spark.read.format("objcat").load(f"{tmp_path}/t")
    table.upsert([{"id": 3, "value": "y"}])
    assert len(rows(frame)) == 4
    table.upsert([{"id": 4, "value": "z"}])
    # Each plan of Spark 4.0 has a reader of its own.
    stays = 4 if versions.VERSION >= (4, 1) else 5
    assert frame.count() == frame.select("id").count() == stays and spark.read.format("objcat").load(f"{tmp_path}/t").count() == 5
    others = [spark.read.format("objcat").option("mode", mode).load(f"{tmp_path}/t") for mode in ("snapshot", "incremental")]
    ids = spark.read.format("objcat").option("columns", "id").load(f"{tmp_path}/t")
    past = spark.read.format("objcat").option("as_of", "3").load(f"{tmp_path}/t")
    table.alter.apply([objcat.RenameColumn("value", "old"), objcat.AddColumn("value", "string")])
    for other in others:
        with pytest.raises(PySparkException, match="The column 'value' changed since the frame was made\\. Load it again"):
            other.collect()
    assert ids.count() == 5 and rows(past)[4] == "z"
    again = spark.read.format("objcat").load(f"{tmp_path}/t")
    lake.drop_table("t")
    lake.create_table("t", SCHEMA, key=["id"])
    with pytest.raises(PySparkException, match="another table now than when the frame was made"):
        again.collect()


def test_an_empty_frame_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    frame(spark, 0, 0, "a").write.format("objcat").mode("append").save(f"{tmp_path}/t")
    assert table.refresh().slot == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"There is no table at .*/t\. Create it, or name its key"),
        ({"key": "id", "buckets": "many"}, r"buckets='many' is not a whole number"),
        ({"key": "id", "table_type": "merge_on_raed"}, r"did you mean 'merge_on_read'\?"),
        ({"key": "id", "orderin": "value"}, r"no option 'orderin': did you mean 'ordering'\?"),
        ({"key": "id", "operation": "upsret"}, r"did you mean 'upsert'\?"),
    ],
)
def test_bad_options_are_one_sentence_and_write_nothing(spark: SparkSession, tmp_path: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=said) as raised:
        frame(spark, 0, 3, "a").write.format("objcat").mode("append").options(**options).save(f"{tmp_path}/t")
    assert not data_files(tmp_path)
    # Spark itself says how it came to the format, and where in it: that is one place.
    assert str(raised.value).count('  File "') <= 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"where": "id > 1"}, "The option where is for reads, and a write takes the whole frame"),
        ({"app_id": "job"}, r"The option app_id is for streams, .*objcat\.AppVersion"),
        ({"key": "value"}, r"The table 't' has the key \['id'\], not \['value'\]\. Nothing was written\. Name its key"),
    ],
)
def test_no_option_of_a_write_is_passed_over(spark: SparkSession, tmp_path: Path, options: dict[str, str], said: str) -> None:
    write = frame(spark, 0, 3, "a").write.format("objcat").mode("append").option("key", "id")
    write.save(f"{tmp_path}/t")
    with pytest.raises(Exception, match=said):
        write.options(**options).save(f"{tmp_path}/t")
    assert objcat.connect(tmp_path).table("t").snapshot.slot == 1


def test_a_type_that_tables_do_not_have_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    for said, reason in [("parse_json('1')", "of the type variant, which tables do not have"), ("array()", "elements have no type")]:
        with pytest.raises(Exception, match=reason):
            spark.sql(f"SELECT 1L AS id, {said} AS v").write.format("objcat").mode("append").option("key", "id").save(f"{tmp_path}/t")
    assert objcat.connect(tmp_path).tables() == []


def test_overwrite_is_refused_and_a_bad_row_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    with pytest.raises(Exception, match='no mode "overwrite"'):
        frame(spark, 0, 3, "a").write.format("objcat").mode("overwrite").save(f"{tmp_path}/t")
    with pytest.raises(Exception, match="key column 'id' is null"):
        spark.sql("SELECT cast(null as bigint) id, 'x' value").write.format("objcat").mode("append").save(f"{tmp_path}/t")
    assert table.refresh().slot == 0
    assert not data_files(tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, "key column 'id' is null"), ({"delete_when": "x > 1"}, "x"), ({"operation": "delete"}, "key column 'id' is null")],
)
def test_a_first_write_that_is_refused_leaves_no_table_but_that_of_another(
    spark: SparkSession, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    lake = objcat.connect(tmp_path)
    bad = spark.sql("SELECT cast(null as bigint) id, 'x' value")

    def write() -> None:
        with pytest.raises(Exception, match=said):
            bad.write.format("objcat").mode("append").options(key="id", **settings).save(f"{tmp_path}/t")

    write()
    assert lake.tables() == [] and not data_files(tmp_path)
    lake.create_table("t", SCHEMA, key=["id"])
    write()
    assert lake.tables() == ["t"]


def test_a_wrong_read_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"]).insert([{"id": 1, "value": "a"}])
    read = spark.read.format("objcat")
    for call, said in (
        (lambda: read.load(f"{tmp_path}/tt"), r"There is no table 'tt' in .* \(did you mean 't'"),
        (lambda: read.option("as_of", "9").load(f"{tmp_path}/t"), "has no slot 9. Use a slot from 0 to 1"),
        (lambda: spark.read.format("objcat").load(), r"needs the URL of a table.* objcat\.spark\.views"),
        (lambda: spark.read.format("objcat").schema("id long, valu string").load(f"{tmp_path}/t").count(), "did you mean 'value'"),
    ):
        with pytest.raises(PySparkException, match=said) as raised:
            call()
        assert str(raised.value).count('  File "') <= 2


def test_copy_on_write_is_refused_by_the_name_of_the_right_call(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.create_table("t", SCHEMA, key=["id"], table_type="copy_on_write")
    with pytest.raises(Exception, match=r"Use table\.upsert\(df\), .* objcat\.spark\.foreach_batch"):
        frame(spark, 0, 3, "a").write.format("objcat").mode("append").save(f"{tmp_path}/t")
    settings = {"key": "id", "table_type": "copy_on_write"}
    with pytest.raises(Exception, match=r"Use table\.upsert\(df\)"):
        frame(spark, 0, 3, "a").write.format("objcat").mode("append").options(**settings).save(f"{tmp_path}/new")
    assert lake.tables() == ["t"]
    lake.create_table("located", SCHEMA, key=["id"], index=objcat.SimpleIndex())
    with pytest.raises(InvalidInput, match=r"must be looked up .* Use table\.upsert\(df\)"):
        job(tmp_path, path=f"{tmp_path}/located")
    assert not data_files(tmp_path)


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_rows_without_a_key_are_all_kept(spark: SparkSession, tmp_path: Path, kind: TableType) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=None, partition_by=["truncate(value, 1)"], table_type=kind)
    for letter in "aab":
        frame(spark, 0, 20, letter).write.format("objcat").mode("append").save(f"{tmp_path}/t")
    counts = table.scan().to_arrow().group_by("value").aggregate([("id", "count")])
    assert dict(zip(counts["value"].to_pylist(), counts["id_count"].to_pylist(), strict=True)) == {
        f"{letter}{i}": count for letter, count in (("a", 2), ("b", 1)) for i in range(20)
    }


def test_rows_and_deletes_in_one_frame(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    table.insert([{"id": i, "value": "x"} for i in range(4)])
    mixed = spark.createDataFrame([(0, "new", "u"), (1, None, "d"), (9, "nine", "u")], "id long, value string, op string")
    mixed.write.format("objcat").mode("append").option("delete_when", "op = 'd'").save(f"{tmp_path}/t")
    assert rows(table.scan().to_arrow()) == {0: "new", 2: "x", 3: "x", 9: "nine"}
    assert table.schema.names == ["id", "value"]


def test_what_happened_is_read_in_a_batch_too(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    table.upsert([{"id": 1, "value": "a"}])
    table.upsert([{"id": 1, "value": "b"}, {"id": 2, "value": "b"}])
    table.delete([{"id": 2}])

    def found(mode: str, **options: str) -> list[tuple]:
        changed = spark.read.format("objcat").options(since="1", mode=mode, **options).load(f"{tmp_path}/t")
        return sorted(tuple(row) for row in changed.drop("_commit_time").collect())

    assert found("changes", until="2") == [("insert", 2, 2, "b"), ("update_after", 2, 1, "b"), ("update_before", 2, 1, "a")]
    assert found("net_changes") == [("update_after", 2, 1, "b"), ("update_before", 2, 1, "a")]
    assert found("incremental", columns="value,id") == [("b", 1)]
    with pytest.raises(Exception, match="Changes take no filter"):
        found("changes", where="id = 1")


# What Spark does with a writer, step by step: it is made, its tasks write, and what it gets of their messages is committed or given up.


def job(place: Path, **options: str):
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    schema = StructType([StructField("id", LongType()), StructField("value", StringType())])
    return DefaultSource({"path": f"{place}/t", **options}).writer(schema, overwrite=False)


def test_only_what_is_handed_to_the_commit_counts(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=None)
    writer = job(tmp_path)
    message, _ = (writer.write(iter([batch(0, 10, "a")])) for _ in range(2))
    writer.commit([message, None])
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(10))
    assert len(data_files(tmp_path)) == 2
    table.maintenance.rollback_failed_writes(older_than_s=0)
    assert len(data_files(tmp_path)) == 1
    writer.commit([message])
    assert table.scan().count() == 10


def test_a_job_that_is_given_up_leaves_nothing_and_cannot_come_back(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    writer = job(tmp_path)
    message = writer.write(iter([batch(0, 10, "a")]))
    writer.abort([message, None])
    assert not data_files(tmp_path)
    with pytest.raises(WriterFenced, match="was rolled back at slot 1"):
        writer.commit([message])
    assert table.scan().count() == 0


def test_a_job_that_is_given_up_after_its_commit_stays(tmp_path: Path) -> None:
    """As when the answer to the commit was lost."""
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    writer = job(tmp_path)
    message = writer.write(iter([batch(0, 10, "a")]))
    writer.commit([message])
    writer.abort([message])
    assert table.scan().count() == 10


@pytest.mark.parametrize("operation", ["upsert", "delete", "mixed"])
def test_a_table_that_changes_while_tasks_write_gets_the_rows_as_it_is_then(tmp_path: Path, operation: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.insert([{"id": i, "value": "old"} for i in range(8)])
    options = {"mixed": {"delete_when": "id >= 6"}}.get(operation, {"operation": operation})
    writer = job(tmp_path, **options)
    messages = [writer.write(iter([batch(4, 8, "first")])), writer.write(iter([batch(6, 10, "second")]))]
    table.maintenance.split_buckets()
    table.alter.rename_column("value", "text")
    table.alter.add_column("more", "int")
    writer.commit(messages)
    found = table.scan(columns=["id", "text"]).to_arrow()
    kept = dict.fromkeys(range(4), "old")
    written = {"upsert": {4: "first", 5: "first", **dict.fromkeys(range(6, 10), "second")}, "mixed": {4: "first", 5: "first"}}
    assert dict(zip(*found.to_pydict().values(), strict=True)) == kept | written.get(operation, {})
    assert not findings(table)


def test_rows_without_a_key_are_written_anew_for_other_partitions(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=None)
    writer = job(tmp_path)
    message = writer.write(iter([batch(0, 10, "a")]))
    table.alter.set_partitioning(["truncate(value, 1)"])
    writer.commit([message])
    assert sorted(table.scan(where="value = 'a'").to_arrow()["id"].to_pylist()) == list(range(10))
    assert not findings(table)


def test_a_frame_may_bring_columns(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"])
    with pytest.raises(InvalidBatch, match="has the column 'value'"):
        job(tmp_path)
    writer = job(tmp_path, schema_mode="add")
    writer.commit([writer.write(iter([batch(0, 3, "a")]))])
    assert rows(table.scan().to_arrow()) == dict.fromkeys(range(3), "a")


def findings(table: objcat.Table) -> list:
    """What is wrong with the table, and files that no entry names; an intent may be on its way out still."""
    swept = [one for one in table.maintenance.rollback_failed_writes(older_than_s=0) if one.files]
    return [*swept, *(one for one in examine(table._context.timeline, deep=True).findings if not one.subject.startswith("intents/"))]
