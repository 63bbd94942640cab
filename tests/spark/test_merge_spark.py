"""Merges and updates by Spark: the same rows and counts as by the local engine, and the same refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
from objcat.errors import InvalidBatch, InvalidInput, InvalidPredicate
from tests.tables.test_merge import KINDS, SCHEMA, TABLES, counts, make, row, values

ENDS = [("merge_on_read", 1), ("copy_on_write", 2), ("merge_on_read", 3), ("copy_on_write", 0)]


@pytest.mark.parametrize(("kind", "number"), ENDS)
def test_both_engines_merge_alike(spark: SparkSession, tmp_path: Path, kind: str, number: int) -> None:
    rows = [{"id": i, "city": "abc"[i % 3], "amount": i * 100, "op": "d" if i % 5 == 0 else "u"} for i in range(10, 30)]
    found, told = [], []
    for engine in ("local", "spark"):
        table = make(tmp_path / engine, kind=kind, **TABLES[number])
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


@pytest.mark.parametrize("kind", KINDS)
def test_what_spark_refuses(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = make(tmp_path, kind=kind, **TABLES[2])
    source = spark.createDataFrame([(7, "b", 1), (7, "b", 2)], "id int, city string, n bigint")
    with pytest.raises(InvalidBatch, match=r"one row \(id=7\)"):
        table.merge(source).when_matched_update({"v": "n"}).execute()
    with pytest.raises(InvalidInput, match="another partition"):
        table.merge(source.limit(1)).when_matched_update({"city": "'z'"}).execute()
    with pytest.raises(InvalidPredicate, match="does not fit"):
        table.merge(source).when_matched_update({"v": "no_such_function(n)"}).execute()
    with pytest.raises(InvalidInput, match="cast it"):
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
    from objcat.services import compute

    real, done = compute.written, list[bool]()

    def disturbed(*args: Any) -> Any:
        if not done:
            done.append(True)
            other.update({"v": "v + 1000"}, where="id in (3, 4)")
        return real(*args)

    monkeypatch.setattr("objcat.merging.written", disturbed)
    result = table.merge(spark.createDataFrame([(3,)], "id bigint")).when_matched_update({"v": "v * 2"}).execute()
    assert result is not None and result.attempts == 2
    assert values(table)[3] == 2006 and values(table)[4] == 1004


@pytest.mark.parametrize("kind", KINDS)
def test_spark_replaces_partitions(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = make(tmp_path, kind=kind, **TABLES[3])
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
    derived.upsert_from(source.changes(since=-1, net=True), app_id="job", spark=spark)
    source.delete("id < 5")
    source.update({"v": "v + 100"}, where="id = 7")
    with pytest.raises(InvalidInput, match="net=True"):
        derived.upsert_from(source.changes(since=1), app_id="job", spark=spark)
    derived.upsert_from(source.changes(since=1, net=True), app_id="job", spark=spark)
    assert values(derived) == values(source) and derived.applied("job") == 3
    assert derived.upsert_from(source.changes(since=3, net=True), app_id="job", spark=spark) is None
