"""Mirrors of adopted tables: other engines read adopted files where they are, without the rows that do not count."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

import objcat
from objcat.inspection.doctor import examine
from tests.adoption.foreign import ALL_TYPES, all_types, plain, replace_only_file

ITEMS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "count", IntegerType()),
)


def items(ids: range) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("count", pa.int32())])
    return pa.Table.from_pylist([{"id": n, "name": f"item {n}", "count": n} for n in ids], schema=schema)


def by_iceberg(table: objcat.Table, slot: int) -> list[dict[str, Any]]:
    place = table.url.removeprefix("file://")
    return plain(StaticTable.from_metadata(f"{place}/metadata/v{slot + 1}.metadata.json").scan().to_arrow())


def by_delta(table: objcat.Table, slot: int) -> list[dict[str, Any]]:
    rows = QueryBuilder().register("t", DeltaTable(table.url, version=slot)).execute("SELECT * FROM t").read_all()
    return plain(pa.table(rows))


def held(table: objcat.Table) -> dict[str, str]:
    return {report.format: report.held for report in table.maintenance.mirror()}


def check_each_slot(table: objcat.Table, *formats: Any) -> None:
    """Each mirrored slot has the rows of its scan."""
    assert set(held(table).values()) == {""}
    for slot in range(1, table.snapshot.slot + 1):
        expected = plain(table.scan(as_of=slot).to_arrow())
        for read in formats:
            assert read(table, slot) == expected, (read.__name__, slot)


def test_rows_of_adopted_files_that_were_replaced_are_masked(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    """Names and types differ in the older file, which has field ids: readers find each column by them."""
    foreign = catalog.create_table("db.t", ITEMS)
    foreign.append(items(range(4)))
    with foreign.update_schema() as change:
        change.rename_column("name", "label")
        change.update_column("count", LongType())
        change.add_column("price", DoubleType())
    with foreign.update_schema() as change:
        change.add_column("name", StringType())
    new = foreign.schema().as_arrow()
    foreign.append(pa.table({"id": [4], "label": ["d"], "count": [2**40], "price": [1.5], "name": ["n"]}).cast(new))
    lake.adopt_iceberg(foreign, "t", key=["id"], properties={"mirrors": "iceberg"})
    table = lake.table("t")
    assert held(table) == {"iceberg": ""}
    changed = pa.table({"id": [1, 9], "label": ["new", None], "count": [-1, 9], "price": [0.5, None], "name": ["x", "y"]})
    table.upsert(changed)
    table.delete(pa.table({"id": [2, 4]}))
    table.maintenance.compact()
    table.upsert(changed)
    table.maintenance.cluster(["price"])
    check_each_slot(table, by_iceberg)
    assert examine(table._context.timeline, deep=True).healthy


def test_every_type_by_both_formats(lake: objcat.Lake, tmp_path: Path) -> None:
    """Delta's files have no field ids, so Iceberg's readers find columns by the name mapping."""
    write_deltalake(tmp_path / "old", all_types(range(12)))
    lake.adopt_delta("old", "t", key=["id"], properties={"mirrors": "iceberg,delta"})
    table = lake.table("t")
    assert held(table) == {"iceberg": "", "delta": ""}
    table.upsert(all_types(range(9, 15)))
    table.delete(pa.table({"id": [1, 10]}))
    check_each_slot(table, by_iceberg, by_delta)
    begun = lake.table("t")
    begun.set_properties({"mirrors": "none"})
    begun.set_properties({"mirrors": "iceberg,delta", "mirror_iceberg_version": "2"})
    assert held(begun) == {"iceberg": "", "delta": ""}
    slot = begun.snapshot.slot
    assert by_iceberg(begun, slot) == by_delta(begun, slot) == plain(begun.scan().to_arrow())


def test_a_restore_brings_rows_of_adopted_files_back(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    foreign = catalog.create_table("db.t", ALL_TYPES)
    foreign.append(all_types(range(1, 7)))
    slot = lake.adopt_iceberg(foreign, "t", key=["id"], properties={"mirrors": "iceberg"}).slot
    table = lake.table("t")
    assert held(table) == {"iceberg": ""}
    table.delete(pa.table({"id": [1, 2]}))
    table.restore(to=slot)
    check_each_slot(table, by_iceberg)
    table.delete(pa.table({"id": [3]}))
    check_each_slot(table, by_iceberg)


def test_names_that_only_the_log_knows_hold_a_mirror_until_a_clustering(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    """Delta's readers know no field ids, so a column that was renamed is another one for them."""
    foreign = catalog.create_table("db.t", ITEMS)
    foreign.append(items(range(4)))
    with foreign.update_schema() as change:
        change.rename_column("name", "label")
    lake.adopt_iceberg(foreign, "t", key=["id"], properties={"mirrors": "iceberg,delta"})
    table = lake.table("t")
    said = held(table)
    assert said["iceberg"] == ""
    assert "has the column 'label' under another name" in said["delta"] and "cluster(" in said["delta"]
    table.maintenance.cluster(["count"])
    assert held(table) == {"iceberg": "", "delta": ""}
    assert by_delta(table, table.snapshot.slot) == plain(table.scan().to_arrow())


def test_types_that_a_format_does_not_read_hold_its_mirror(lake: objcat.Lake, tmp_path: Path) -> None:
    """A file of nanoseconds in twelve bytes is read by all; a file with wider integers in a column is known to Iceberg alone."""
    place = tmp_path / "old"
    times = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None]
    data = pa.table(
        {"id": pa.array([1, 2], pa.int64()), "n": pa.array([1, 2], pa.int64()), "at": pa.array(times, pa.timestamp("us", tz="UTC"))}
    )
    write_deltalake(place, data)
    replace_only_file(place, data.set_column(1, "n", data.column("n").cast(pa.int32())), use_deprecated_int96_timestamps=True)
    lake.adopt_delta("old", "t", key=["id"], properties={"mirrors": "iceberg,delta"})
    table = lake.table("t")
    found = held(table)
    assert found["iceberg"] == ""
    assert "has the column 'n' as int32, and not as bigint" in found["delta"]
    assert by_iceberg(table, table.snapshot.slot) == plain(table.scan().to_arrow())


def test_field_ids_that_mean_another_column_hold_an_iceberg_mirror(lake: objcat.Lake, tmp_path: Path) -> None:
    """A table that was converted to Delta keeps the field ids of its files, and readers of Iceberg would believe them."""
    place = tmp_path / "old"
    data = pa.table({"id": pa.array([1, 2], pa.int64()), "a": ["x", "y"], "b": ["v", "w"]})
    write_deltalake(place, data)
    ids = {"id": "1", "a": "3", "b": "2"}
    marked = pa.schema([field.with_metadata({"PARQUET:field_id": ids[field.name]}) for field in data.schema])
    replace_only_file(place, data.cast(marked))
    lake.adopt_delta("old", "t", key=["id"], properties={"mirrors": "iceberg,delta"})
    table = lake.table("t")
    found = held(table)
    assert "do not say which one is 'a'" in found["iceberg"]
    assert found["delta"] == ""
    assert by_delta(table, table.snapshot.slot) == plain(table.scan().to_arrow()) == plain(data)
