"""Merges whose counts nobody asks for: Spark computes rows once, and does not read a table whose rows the source replaces as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
import objcat.spark
from objcat.errors import InvalidBatch, NullKey
from objcat.spark import dml

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string(), nullable=False), ("n", pa.int64()), ("at", pa.int64())]
)
ROWS = [{"id": n, "city": ("Rome", "Zürich")[n % 2], "n": n, "at": 5} for n in range(20)]
GIVEN = [(3, "Zürich", 300, 9), (4, "Rome", 400, 5), (6, "Rome", 600, 1), (99, "Oslo", 990, None), (100, "Oslo", None, 7)]
KINDS: dict[str, dict[str, Any]] = {
    "merge-on-read": {"key": ["id"]},
    "copy-on-write": {"key": ["id"], "table_type": "copy_on_write"},
    "event time": {"key": ["id"], "ordering": "at"},
    "partitioned": {"key": ["id"], "partition_by": ["city"], "key_scope": "partition"},
    "partitioned by key": {"key": ["city", "id"], "partition_by": ["city"]},
    "located": {"key": ["id"], "index": objcat.SimpleIndex()},
}
READS = {"located"}
"""Here the place of a row says nobody but the table, so it is read all the same."""


def given(spark: SparkSession, rows: list[tuple[Any, ...]] = GIVEN) -> DataFrame:
    return spark.createDataFrame(rows, "id long, city string, n long, at long").coalesce(2)


def merging(table: objcat.Table, source: DataFrame) -> Any:
    return table.merge(source).when_matched_update().when_not_matched_insert()


def rows_of(table: objcat.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the table was read")

    monkeypatch.setattr(dml, "evaluate_on_spark", fail)


@pytest.mark.parametrize("kind", KINDS)
def test_same_rows_as_with_counts(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    lake = objcat.connect(tmp_path)
    tables = []
    settings = {"index": objcat.BucketIndex(2), **KINDS[kind]}
    source = [row for row in GIVEN if row[3] is not None or kind != "event time"]
    for name in ("counted", "not_counted"):
        table = lake.create_table(name, SCHEMA, **settings)
        table.insert(ROWS)
        table.upsert([{"id": 3, "city": "Zürich", "n": 3, "at": 6}])
        tables.append(table)
    first, second = tables
    wanted = merging(first, given(spark, source)).execute()
    assert (wanted.inserted, wanted.updated) == (len(source) - 3, 2 if kind == "event time" else 3)
    if kind not in READS:
        request.getfixturevalue("unread")
    found = merging(second, given(spark, source)).execute(counts=False)
    assert rows_of(second) == rows_of(first)
    if kind not in READS | {"copy-on-write"}:
        assert found.inserted is found.updated is None


@pytest.mark.parametrize("is_large", [False, True], ids=["few rows", "many rows"])
@pytest.mark.parametrize("kind", ["merge-on-read", "copy-on-write", "partitioned"])
def test_two_rows_of_one_key_are_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread: None, kind: str, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(dml, "is_worth_a_shuffle", lambda *_: True)
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, **{"index": objcat.BucketIndex(2), **KINDS[kind]})
    table.insert(ROWS)
    twice = given(spark).union(given(spark, [(4, "Rome", 1, 1)]))
    with pytest.raises(InvalidBatch, match=r"Several rows of the source match the one row \(.*id=4"):
        merging(table, twice).execute(counts=False)
    with pytest.raises(NullKey):
        merging(table, given(spark, [(None, "Rome", 1, 1), (None, "Rome", 2, 2)])).execute(counts=False)
    assert merging(table, given(spark).where("id < 0")).execute(counts=False) is None
    assert rows_of(table) == ROWS and table.refresh().slot == 1
    # In two partitions a key is two rows, where the table says so.
    if kind == "partitioned":
        merging(table, given(spark).union(given(spark, [(4, "Oslo", 1, 1)]))).execute(counts=False)
        assert {row["city"] for row in rows_of(table) if row["id"] == 4} == {"Rome", "Oslo"}


def test_of_two_rows_the_newest_counts_by_event_time(spark: SparkSession, tmp_path: Path, unread: None) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], ordering="at", index=objcat.BucketIndex(2))
    table.insert(ROWS)
    merging(table, given(spark, [(4, "Rome", 1, 8), (4, "Rome", 2, 9), (4, "Rome", 3, 7)])).execute(counts=False)
    assert rows_of(table)[4]["n"] == 2


@pytest.mark.parametrize(
    "clauses",
    [
        lambda merge: merge.when_matched_update(where="source.n > 0").when_not_matched_insert(),
        lambda merge: merge.when_matched_update({"n": "target.n + 1"}).when_not_matched_insert(),
        lambda merge: merge.when_matched_update({"n": "source.n"}).when_not_matched_insert(),
        lambda merge: merge.when_matched_update().when_not_matched_insert().when_not_matched_by_source_delete(),
        lambda merge: merge.when_matched_update(),
    ],
    ids=["condition", "of the table", "other columns stay", "third clause", "no insert"],
)
def test_the_table_is_read_where_its_rows_count(spark: SparkSession, tmp_path: Path, unread: None, clauses: Callable[[Any], Any]) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.insert(ROWS)
    with pytest.raises(AssertionError, match="the table was read"):
        clauses(table.merge(given(spark))).execute(counts=False)
    with pytest.raises(AssertionError, match="the table was read"):
        merging(table, given(spark)).execute()
    with pytest.raises(AssertionError, match="the table was read"):
        merging(table, given(spark).drop("n")).execute(counts=False)


CLAUSES: dict[str, Callable[[Any], Any]] = {
    "update and insert": lambda merge: merge.when_matched_update(
        {"n": "source.n + target.n"}, where="source.n > 300"
    ).when_not_matched_insert(),
    "delete": lambda merge: merge.when_matched_delete(where="source.n > 300").when_matched_update({"n": "1"}).when_not_matched_insert(),
    "by source": lambda merge: (
        merge.when_matched_update().when_not_matched_by_source_delete(where="target.id = 7").when_not_matched_by_source_update({"n": "0"})
    ),
    "nothing": lambda merge: merge.when_matched_update(where="source.n > 100000"),
}


@pytest.mark.parametrize("clauses", CLAUSES)
@pytest.mark.parametrize("kind", KINDS)
def test_merges_of_clauses_write_the_same_rows(spark: SparkSession, tmp_path: Path, kind: str, clauses: str) -> None:
    lake = objcat.connect(tmp_path)
    source = [row for row in GIVEN if row[3] is not None or kind != "event time"]
    tables = [lake.create_table(name, SCHEMA, **{"index": objcat.BucketIndex(2), **KINDS[kind]}) for name in ("counted", "not_counted")]
    for table in tables:
        table.insert(ROWS)
        table.upsert([{"id": 3, "city": "Zürich", "n": 3, "at": 6}])
    counted, found = [
        CLAUSES[clauses](table.merge(given(spark, source))).execute(counts=counts)
        for table, counts in zip(tables, (True, False), strict=True)
    ]
    assert rows_of(tables[1]) == rows_of(tables[0])
    assert (found is None) == (counted is None) == (clauses == "nothing")


@pytest.mark.parametrize("is_large", [False, True], ids=["few rows", "many rows"])
@pytest.mark.parametrize("kind", ["merge-on-read", "copy-on-write"])
def test_two_rows_of_one_key_are_refused_where_a_clause_takes_both(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(dml, "is_worth_a_shuffle", lambda *_: True)
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, **{"index": objcat.BucketIndex(2), **KINDS[kind]})
    table.insert(ROWS)
    twice = given(spark).union(given(spark, [(4, "Rome", 1, 1)]))
    with pytest.raises(InvalidBatch, match=r"Several rows of the source match the one row \(.*id=4"):
        table.merge(twice).when_matched_update({"n": "source.n"}).execute(counts=False)
    assert rows_of(table) == ROWS
    table.merge(twice).when_matched_update({"n": "source.n"}, where="source.n > 1").execute(counts=False)
    assert rows_of(table)[4]["n"] == 400


def test_a_column_that_another_commit_adds_keeps_its_values(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge was planned before the column was there, and its rows do not have it."""
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.insert(ROWS)
    own = dml.replace_on_spark

    def beaten(*args: Any, **named: Any) -> Any:
        found = own(*args, **named)
        other = lake.table("t")
        other.alter.add_column("note", pa.string())
        other.update({"note": "'kept'"}, where="id = 4")
        return found

    monkeypatch.setattr(dml, "replace_on_spark", beaten)
    result = merging(table, given(spark)).execute(counts=False)
    assert result.attempts == 2
    found = rows_of(table)
    assert (found[4]["n"], found[4]["note"], found[3]["n"], found[-1]["id"]) == (400, "kept", 300, 100)


def test_spark_sql_does_not_count(spark: SparkSession, tmp_path: Path, unread: None) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("shop.t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.insert(ROWS)
    given(spark).createOrReplaceTempView("given")
    found = objcat.spark.views(spark, lake)
    spark.sql("MERGE INTO lake.shop.t t USING given s ON s.id = t.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")
    found.close()
    assert [row["n"] for row in rows_of(table) if row["id"] in (3, 4, 6, 99)] == [300, 400, 600, 990]
