"""Adopted tables on Spark: it reads adopted files itself, whatever their columns are called, with what they lack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType, NestedField, StringType

import objcat
from objcat.spark.native import adopted
from tests.adoption.foreign import all_types, plain, replace_only_file
from tests.spark.plans import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows(ids: range) -> pa.Table:
    return pa.table({"id": list(ids), "city": [None if n % 4 == 0 else f"Zürich {n % 3}" for n in ids], "fare": [n / 2 for n in ids]})


def read(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows, which Spark reads without Python workers."""
    assert "MapInArrow" not in text_of(frame)
    return plain(frame.toArrow())


def test_spark_reads_and_writes_an_adopted_table(spark: SparkSession, lake: objcat.Lake, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "old", rows(range(20)), partition_by=["city"])
    slot = lake.adopt_delta("old", "t", key=["id"]).slot
    table = lake.table("t")
    assert read(table.scan().to_spark(spark)) == plain(rows(range(20)))
    filtered = table.scan(where="city = 'Zürich 1'")
    assert len(read(filtered.to_spark(spark))) == filtered.count() > 0
    assert len(read(table.scan(where="city is null", columns=["id"]).to_spark(spark))) == 5
    table.upsert(spark.createDataFrame(rows(range(15, 30))))
    table.upsert(spark.createDataFrame(rows(range(100, 140)).set_column(1, "city", pa.array(["Rome"] * 40))))
    now = [*plain(rows(range(30))), *plain(rows(range(100, 140)).set_column(1, "city", pa.array(["Rome"] * 40)))]
    assert read(table.scan().to_spark(spark)) == now
    assert read(table.scan(as_of=slot).to_spark(spark)) == plain(rows(range(20)))
    commits = read(table.scan(columns=["id", "_commit_slot"], where="id < 15").to_spark(spark))
    assert {row["_commit_slot"] for row in commits} == {slot}
    assert len(read(table.incremental(since=slot).to_spark(spark))) == 55
    assert len(read(table.incremental(since=0).to_spark(spark))) == 70
    table.maintenance.compact()
    assert read(table.scan().to_spark(spark)) == now
    assert lake.sql("SELECT count(*) AS n FROM t WHERE city = 'Rome'", spark).toArrow().column("n").to_pylist() == [40]
    loaded = spark.read.format("objcat").load(f"{tmp_path}/t")
    assert loaded.count() == len(now)


def test_files_are_left_out_by_values_that_are_in_the_log_alone(spark: SparkSession, lake: objcat.Lake, tmp_path: Path) -> None:
    """The value comes as a constant of each file, so a filter of Spark's own leaves files out as a partition would."""
    write_deltalake(tmp_path / "old", rows(range(20)), partition_by=["city"])
    lake.adopt_delta("old", "t", key=["id"])
    frame = lake.table("t").scan().to_spark(spark).where("city = 'Zürich 1'")
    assert "_objcat_value_2" in next(line for line in text_of(frame).splitlines() if "PartitionFilters" in line)
    assert len(read(frame)) == lake.table("t").scan(where="city = 'Zürich 1'").count() > 0


def test_values_of_every_type_that_are_in_no_file(spark: SparkSession, lake: objcat.Lake, tmp_path: Path) -> None:
    flat = [name for name in all_types(range(1)).schema.names if name not in ("place", "tags", "counts", "raw", "exact")]
    data = all_types(range(1, 12)).select(flat)
    write_deltalake(tmp_path / "old", data, partition_by=flat[1:])
    lake.adopt_delta("old", "t", key=["id"])
    table = lake.table("t")
    assert plain(table.scan().to_arrow()) == plain(data)
    assert read(table.scan().to_spark(spark)) == plain(data)
    table.upsert(data.slice(0, 1))
    assert read(table.scan().to_spark(spark)) == plain(data)
    for zone in ("America/New_York", "UTC"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        assert table.scan(where="at = '2026-01-01 01:00:00.000001'").to_spark(spark).count() == 1


def test_every_type_in_files(spark: SparkSession, lake: objcat.Lake, tmp_path: Path) -> None:
    """Timestamps of twelve bytes among them, as Spark itself writes them."""
    data = all_types(range(10)).drop_columns(["local"])
    write_deltalake(tmp_path / "old", data)
    replace_only_file(tmp_path / "old", data, use_deprecated_int96_timestamps=True)
    lake.adopt_delta("old", "t", key=["id"])
    table = lake.table("t")
    frame = table.scan().to_spark(spark)
    assert "MapInArrow" not in text_of(frame)
    assert plain(frame.toArrow().cast(table.schema)) == plain(data)
    assert frame.where("at >= TIMESTAMP '2026-01-01 05:00:00 UTC'").count() == table.scan(where="at >= '2026-01-01 05:00:00'").count() > 0


def test_columns_of_other_names_and_types(spark: SparkSession, catalog: SqlCatalog, lake: objcat.Lake) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "name", StringType()),
        NestedField(3, "count", IntegerType()),
        NestedField(4, "ratio", FloatType()),
        NestedField(5, "price", DecimalType(9, 2)),
        NestedField(6, "gone", StringType()),
    )
    foreign = catalog.create_table("db.t", schema)
    first = pa.table(
        {"id": [1, 2], "name": ["a", "b"], "count": [1, None], "ratio": [0.5, 1.5], "price": ["1.25", None], "gone": ["x", "y"]}
    )
    foreign.append(first.cast(foreign.schema().as_arrow()))
    with foreign.update_schema() as change:
        change.rename_column("name", "label")
        change.update_column("count", LongType())
        change.update_column("ratio", DoubleType())
        change.update_column("price", DecimalType(12, 2))
        change.delete_column("gone")
    with foreign.update_schema() as change:
        change.add_column("name", LongType())
        change.add_column("gone", StringType())
    second = {"id": [3], "label": ["c"], "count": [2**40], "ratio": [0.1], "price": ["1234567890.12"], "name": [7], "gone": ["new"]}
    foreign.append(pa.table(second).cast(foreign.schema().as_arrow()))
    lake.adopt_iceberg(foreign, "t", key=["id"])
    table = lake.table("t")
    expected = plain(foreign.scan().to_arrow())
    assert read(table.scan().to_spark(spark)) == expected
    assert read(table.scan(where="label = 'b'", columns=["id", "gone"]).to_spark(spark)) == [{"id": 2, "gone": None}]
    frame = table.scan().to_spark(spark)
    assert frame.where("name = 7").count() == 1
    assert frame.where("name is null and gone is null").count() == 2
    assert frame.where("count > 1000000").count() == 1
    table.upsert(pa.Table.from_pylist([expected[0] | {"gone": "now"}], schema=table.schema))
    assert read(table.scan().to_spark(spark)) == [expected[0] | {"gone": "now"}, *expected[1:]]


def test_an_ordering_column_decides_between_adopted_rows_and_others(spark: SparkSession, catalog: SqlCatalog, lake: objcat.Lake) -> None:
    foreign = catalog.create_table(
        "db.t", Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "at", LongType(), required=True))
    )
    foreign.append(pa.table({"id": list(range(50)), "at": [10] * 50}).cast(foreign.schema().as_arrow()))
    lake.adopt_iceberg(foreign, "t", key=["id"], ordering="at")
    table = lake.table("t")
    table.upsert(pa.table({"id": [1, 2, 60], "at": [9, 11, 1]}).cast(table.schema))
    table.delete(pa.table({"id": [3, 4], "at": [9, 12]}))
    expected = plain(table.scan().to_arrow())
    assert len(expected) == 50
    assert read(table.scan().to_spark(spark)) == expected


def test_rare_layouts_are_left_to_python_workers(
    spark: SparkSession, catalog: SqlCatalog, lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = catalog.create_table("db.t", Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "a", StringType())))
    for number in range(4):
        foreign.append(pa.table({"id": [number], foreign.schema().fields[1].name: [f"v{number}"]}).cast(foreign.schema().as_arrow()))
        with foreign.update_schema() as change:
            change.rename_column(foreign.schema().fields[1].name, f"b{number}")
    lake.adopt_iceberg(foreign, "t", key=["id"])
    table = lake.table("t")
    table.upsert(pa.table({"id": [3, 9], "b3": ["new", "own"]}).cast(table.schema))
    expected = plain(table.scan().to_arrow())
    assert read(table.scan().to_spark(spark)) == expected
    monkeypatch.setattr(adopted, "LAYOUTS_MAX", 2)
    frame = table.scan().to_spark(spark)
    assert "MapInArrow" in text_of(frame) and "FileScan parquet" in text_of(frame)
    assert plain(frame.toArrow()) == expected
