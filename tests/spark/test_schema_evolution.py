"""Tables whose schema has changed, through Spark: files of every age give the rows that the local engine gives, filters and all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidInput
from objcat.metadata.schema import StructType
from tests.spark.sessions import of_widened

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("a", pa.string()),
        ("b", pa.string()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.decimal128(5, 2)),
        ("place", pa.struct([("x", pa.int32()), ("y", pa.int32()), ("inner", pa.struct([("k", pa.string())]))])),
        ("stops", pa.list_(pa.struct([("at", pa.int32()), ("name", pa.string())]))),
        ("tags", pa.map_(pa.string(), pa.struct([("w", pa.float32())]))),
    ]
)
LAYOUTS = ["both", "copy_on_write"]


def rows(ids: Sequence[int]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": i,
                "a": f"a{i}",
                "b": f"b{i}",
                "tiny": i,
                "small": -i,
                "n": i,
                "big": i,
                "f": i + 0.5,
                "d": Decimal(i) / 4,
                "place": None if i % 5 == 4 else {"x": i, "y": -i, "inner": {"k": f"k{i}"} if i % 2 else None},
                "stops": [{"at": i, "name": "s"}, None],
                "tags": [("t", {"w": i + 0.5})],
            }
            for i in ids
        ],
        schema=SCHEMA,
    )


def create(where: Path, layout: str) -> objcat.Table:
    """A table with rows 0 to 19: in base files alone, or some of them in log rows too."""
    kind: TableType = "copy_on_write" if layout == "copy_on_write" else "merge_on_read"
    table = objcat.connect(where).create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(2))
    table.insert(rows(range(20)))
    if layout == "both":
        table.upsert(rows(range(5)))
    return table


def both(table: objcat.Table, spark: SparkSession, **scan: Any) -> list[dict[str, Any]]:
    """The rows of a scan, asserted equal on both engines."""
    local = table.scan(**scan).to_arrow()
    through_spark = table.scan(**scan).to_spark(spark).toArrow()
    assert through_spark.column_names == local.column_names
    found = sorted(local.to_pylist(), key=repr)
    assert sorted(through_spark.cast(local.schema).to_pylist(), key=repr) == found
    return found


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting of the user's session, for a while."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:  # An older version does not have it.
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def ids(table: objcat.Table, spark: SparkSession, where: str) -> list[int]:
    return sorted(row["id"] for row in both(table, spark, where=where, columns=["id"]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_swapped_and_returning_names_mean_the_right_columns_in_filters_and_results(
    spark: SparkSession, tmp_path: Path, layout: str
) -> None:
    table = create(tmp_path, layout)
    rename = objcat.RenameColumn
    table.alter.apply([rename("a", "c"), rename("b", "a"), rename("c", "b"), objcat.DropColumn("n"), objcat.AddColumn("n", "int")])
    assert ids(table, spark, "a = 'b3'") == [3]
    assert ids(table, spark, "a = 'a3'") == []
    assert ids(table, spark, "b = 'a3' and a > 'b'") == [3]
    assert ids(table, spark, "n = 3") == []
    assert ids(table, spark, "n is null") == list(range(20))
    table.upsert(spark.sql("select 3L id, 'x' a, 'b3' b, 3 n"))
    assert ids(table, spark, "n = 3") == [3]
    assert ids(table, spark, "a = 'b3'") == []
    assert ids(table, spark, "b = 'b3' or a = 'b4'") == [3, 4]
    assert both(table, spark, columns=["b", "n"], where="id in (2, 3)") == [{"b": "a2", "n": None}, {"b": "b3", "n": 3}]
    assert {row["a"] for row in both(table, spark, as_of=1)} == {f"a{i}" for i in range(20)}
    table.maintenance.compact()
    assert ids(table, spark, "b = 'b3' or a = 'b4'") == [3, 4]
    assert len(both(table, spark)) == 20


@of_widened
@pytest.mark.parametrize("layout", LAYOUTS)
def test_narrower_types_of_old_files_are_read_as_the_wider_ones(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    table = create(tmp_path, layout)
    wider = {
        "tiny": "int",
        "small": "double",
        "n": "bigint",
        "big": "decimal(22,2)",
        "f": "double",
        "d": "decimal(30,2)",
        "place.x": "bigint",
        "place.y": "decimal(12,2)",
        "stops.element.at": "double",
        "tags.value.w": "double",
    }
    table.alter.apply([objcat.WidenColumn(path, data_type) for path, data_type in wider.items()])
    table.upsert(spark.sql("select 100L id, 5000000000L n, 100000 tiny, cast(1e12 as decimal(22,2)) big, cast(1e20 as decimal(30,2)) d"))
    assert len(both(table, spark)) == 21
    assert ids(table, spark, "n > 3000000000") == [100]
    assert ids(table, spark, "n < 3000000000 and n > 17") == [18, 19]
    assert ids(table, spark, "n = 1") == [1]
    assert ids(table, spark, "tiny > 18") == [19, 100]
    assert ids(table, spark, "small <= -18") == [18, 19]
    assert ids(table, spark, "big >= 19") == [19, 100]
    assert ids(table, spark, "big = 3") == [3]
    assert ids(table, spark, "f > 18.25") == [18, 19]
    assert ids(table, spark, "f = 0.5") == [0]
    assert ids(table, spark, "d = 1.25") == [5]
    assert ids(table, spark, "d > 4.5") == [19, 100]
    assert ids(table, spark, "n in (1, 5000000000)") == [1, 100]
    table.maintenance.compact()
    assert ids(table, spark, "n > 3000000000 or d = 1.25") == [5, 100]
    assert len(both(table, spark)) == 21


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nested_fields_that_were_renamed_added_dropped_or_swapped(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    table = create(tmp_path, layout)
    rename, add, drop = objcat.RenameColumn, objcat.AddColumn, objcat.DropColumn
    table.alter.apply(
        [
            rename("place.x", "t"),
            rename("place.y", "x"),
            rename("place.t", "y"),
            rename("place.inner.k", "key"),
            add("place.inner.more", "int", first=True),
            rename("stops.element.name", "label"),
            drop("stops.element.at"),
            add("stops.element.at", "string"),
            rename("tags.value.w", "weight"),
            add("tags.value.w", "string"),
        ]
    )
    table.upsert(
        spark.sql(
            "select 3L id, named_struct('inner', named_struct('key', 'new', 'more', 1), 'x', 7, 'y', 8) place, "
            "array(named_struct('label', 'l', 'at', 'now')) stops, map('q', named_struct('weight', cast(1 as float), 'w', 'heavy')) tags"
        )
    )
    found = {row["id"]: row for row in both(table, spark)}
    assert found[1]["place"] == {"y": 1, "x": -1, "inner": {"more": None, "key": "k1"}}
    assert found[2]["place"] == {"y": 2, "x": -2, "inner": None}
    assert found[4]["place"] is None
    assert found[3]["place"] == {"y": 8, "x": 7, "inner": {"more": 1, "key": "new"}}
    assert found[3]["stops"] == [{"label": "l", "at": "now"}]
    assert found[1]["stops"] == [{"label": "s", "at": None}, None]
    assert found[1]["tags"] == [("t", {"weight": 1.5, "w": None})]
    assert ids(table, spark, "place.x = -7") == [7]
    assert ids(table, spark, "place.y = 8 or place.inner.key in ('new', 'k1')") == [1, 3, 8]
    assert ids(table, spark, "place.inner.more is null and id < 4") == [0, 1, 2]
    frame = table.scan().to_spark(spark)
    assert [row.id for row in frame.where("place.x = -7").collect()] == [7]
    assert sorted(row.id for row in frame.where("place.y = 8").collect()) == [3, 8]
    assert [row[0] for row in frame.where("id = 1").select("place.inner.key").collect()] == ["k1"]
    table.maintenance.compact()
    assert {row["id"]: row for row in both(table, spark)} == found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_struct_none_of_whose_fields_an_old_file_has_is_null_where_it_was(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    table = create(tmp_path, layout)
    table.alter.apply([objcat.AddColumn("place.new", "int"), *(objcat.DropColumn(f"place.{name}") for name in ("x", "y", "inner"))])
    for legacy in ("false", "true"):
        with setting(spark, "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing", legacy):
            found = {row["id"]: row["place"] for row in both(table, spark)}
            assert found == {i: None if i % 5 == 4 else {"new": None} for i in range(20)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_struct_is_not_null_where_a_query_needs_a_field_that_joined_it(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    table = create(tmp_path, layout)
    table.alter.add_column("place.new", "int")
    place = table.snapshot.spec.table_schema.column("place").type
    assert isinstance(place, StructType)
    in_files = next(field.physical for field in place.fields if field.name == "new")
    # Under the name that it has in files, Spark reads the field alone.
    for name in ("new", in_files):
        if name != "new":
            table.alter.rename_column("place.new", name)
        assert ids(table, spark, f"place is not null and place.{name} is null") == [i for i in range(20) if i % 5 < 4]
        found = table.scan().to_spark(spark).where(f"place IS NOT NULL AND place.{name} IS NULL").select(f"place.{name}")
        assert [tuple(row) for row in found.collect()] == [(None,)] * 16


@of_widened
@pytest.mark.parametrize("name", ["spark.sql.parquet.enableVectorizedReader", "spark.sql.parquet.enableNestedColumnVectorizedReader"])
def test_wider_and_added_columns_are_read_row_by_row_too(spark: SparkSession, tmp_path: Path, name: str) -> None:
    table = create(tmp_path, "both")
    table.alter.apply(
        [
            *(
                objcat.WidenColumn(path, wide)
                for path, wide in {"n": "bigint", "small": "double", "d": "decimal(38,2)", "f": "double"}.items()
            ),
            objcat.WidenColumn("place.x", "decimal(20,2)"),
            objcat.RenameColumn("place.y", "z"),
            objcat.AddColumn("place.y", "string"),
            objcat.AddColumn("tip", "int"),
        ]
    )
    with setting(spark, name, "false"):
        assert len(both(table, spark)) == 20
        assert ids(table, spark, "n > 17 and tip is null and d > 4.5") == [19]


def frame(spark: SparkSession, text: str) -> DataFrame:
    return spark.sql(f"select {text}").repartition(1)


@of_widened
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", ["upsert", "insert"])
def test_a_frame_adds_and_widens_in_its_own_commit(spark: SparkSession, tmp_path: Path, layout: str, operation: str) -> None:
    table = create(tmp_path, layout)
    new = "50L id, 5000000000L n, named_struct('x', 1, 'z', timestamp'2026-01-01') place, array(1, 2) more, cast('n' as string) note"
    with pytest.raises(InvalidBatch, match="'more', which the table does not"):
        getattr(table, operation)(frame(spark, new))
    with pytest.raises(InvalidBatch, match="does not cast without loss"):
        getattr(table, operation)(frame(spark, new), schema_mode="add")
    with pytest.raises(InvalidInput, match="its type is unknown"):
        getattr(table, operation)(frame(spark, "50L id, null nothing"), schema_mode="widen")
    slot = table.refresh().slot
    getattr(table, operation)(frame(spark, new), schema_mode="widen")
    assert table.refresh().slot == slot + 1
    assert table.schema.names == [*SCHEMA.names, "more", "note"]
    assert table.schema.field("n").type == pa.int64()
    assert table.schema.field("place").type.field("z").type == pa.timestamp("us", "UTC")
    found = {row["id"]: row for row in both(table, spark)}
    assert (found[50]["n"], found[50]["more"], found[50]["note"]) == (5_000_000_000, [1, 2], "n")
    assert (found[1]["n"], found[1]["more"], found[1]["place"]["z"]) == (1, None, None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nulls_that_are_allowed_later(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    """Base files say of their columns that they are never null, and later ones beside them do not."""
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    columns = {"id": pa.int64(), "city": pa.string(), "place": inner, "stops": pa.list_(pa.field("element", pa.int32(), nullable=False))}
    schema = pa.schema([pa.field(name, data_type, nullable=False) for name, data_type in columns.items()])
    kind: TableType = "copy_on_write" if layout == "copy_on_write" else "merge_on_read"
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id"], table_type=kind, index=objcat.BucketIndex(2))
    table.insert([{"id": i, "city": "Rome", "place": {"x": i}, "stops": [i]} for i in range(10)])
    table.maintenance.compact()
    table.alter.apply([objcat.DropNotNull(path) for path in ("city", "place", "place.x", "stops", "stops.element")])
    text = "SELECT {}L id, cast(null as string) city, {} place, {} stops"
    table.upsert(spark.sql(text.format(3, "cast(null as struct<x: int>)", "cast(null as array<int>)")))
    table.upsert(spark.sql(text.format(11, "named_struct('x', cast(null as int))", "array(cast(null as int))")))
    found = {row["id"]: row for row in both(table, spark)}
    assert (found[3]["place"], found[3]["stops"]) == (None, None) and (found[11]["place"], found[11]["stops"]) == ({"x": None}, [None])
    assert found[4] == {"id": 4, "city": "Rome", "place": {"x": 4}, "stops": [4]}
    for where, ids in (
        ("city is null", [3, 11]),
        ("place is null", [3]),
        (pc.field("place", "x").is_null(), [3, 11]),
        ("city is not null and id < 5", [0, 1, 2, 4]),
    ):
        assert sorted(row["id"] for row in both(table, spark, where=where)) == ids
