"""Tables of pyiceberg become tables of objcat: the same rows before and after writes, and nothing of the foreign table changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan
from pyiceberg.transforms import BucketTransform, DayTransform, HourTransform, IdentityTransform, MonthTransform, TruncateTransform
from pyiceberg.types import DateType, DoubleType, IntegerType, LongType, NestedField, StringType, StructType, TimestamptzType, UUIDType

import objcat
from objcat.adoption import adopt, keys
from objcat.errors import ForeignTableChanged, InvalidInput, InvalidSchema, TableExists
from objcat.inspection.doctor import examine
from objcat.metadata.table_spec import Index
from tests.adoption.foreign import ALL_TYPES, all_types, plain
from tests.tables.published import until_published

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "city", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "fare", DoubleType()),
)
CITIES = ["Oslo", "Zürich", "a/b c=%", None, "__HIVE_DEFAULT_PARTITION__", "東京"]


def trips(ids: range) -> pa.Table:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("city", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("fare", pa.float64()),
        ]
    )
    rows = [
        {
            "id": number,
            "city": CITIES[number % len(CITIES)],
            "at": None if number % 11 == 0 else dt.datetime(1969, 11, 30, tzinfo=dt.UTC) + dt.timedelta(hours=7 * number),
            "day": dt.date(2026, 1, 1) + dt.timedelta(days=number),
            "fare": number / 2,
        }
        for number in ids
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def files_below(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in (root / "warehouse").rglob("*") if path.is_file()}


def test_all_types_are_adopted_and_written_on(catalog: SqlCatalog, lake: objcat.Lake, tmp_path: Path) -> None:
    foreign = catalog.create_table("db.types", ALL_TYPES)
    foreign.append(all_types(range(20)))
    foreign.append(all_types(range(20, 30)))
    before = files_below(tmp_path)
    result = lake.adopt_iceberg(foreign, "types", key=["id"])
    assert (result.format, result.files_named, result.files_rewritten, result.rows) == ("Iceberg v2", 2, {}, 30)
    table = lake.table("types")
    expected = plain(all_types(range(30)))
    assert plain(table.scan().to_arrow()) == expected
    assert [column.id for column in table.spec.table_schema.columns] == [field.field_id for field in foreign.schema().fields]
    adopted = table.snapshot.slot
    table.upsert(all_types(range(25, 35)))
    table.delete(pa.table({"id": [1, 2, 30]}))
    now = [row for row in plain(all_types(range(35))) if row["id"] not in (1, 2, 30)]
    assert plain(table.scan().to_arrow()) == now
    table.maintenance.compact()
    assert plain(table.scan().to_arrow()) == now
    assert plain(table.scan(as_of=adopted).to_arrow()) == expected
    assert table.scan(where="name = 'Zürich 5 ☃'").count() == 1
    assert files_below(tmp_path) == before


def test_names_and_types_that_changed_are_read_in_every_file(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "amount", IntegerType()),
        NestedField(3, "note", StringType()),
        NestedField(4, "gone", StringType()),
    )
    foreign = catalog.create_table("db.changed", schema)
    old = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.int32()), ("note", pa.string()), ("gone", pa.string())])
    foreign.append(pa.table([[1, 2], [10, None], ["a", "b"], ["x", "y"]], schema=old))
    with foreign.update_schema() as change:
        change.update_column("amount", LongType())
        change.rename_column("note", "remark")
        change.delete_column("gone")
        change.add_column("more", DoubleType())
    with foreign.update_schema() as change:
        change.add_column("gone", LongType())
        change.add_column("note", StringType())
        change.move_first("more")
    new = foreign.schema().as_arrow()
    foreign.append(pa.table({"more": [1.5], "id": [3], "amount": [2**40], "remark": ["c"], "gone": [7], "note": ["n"]}).cast(new))
    assert lake.adopt_iceberg(foreign, "changed", key=["id"]).files_rewritten == {}
    table = lake.table("changed")
    expected = plain(foreign.scan().to_arrow())
    assert expected[0] == {"more": None, "id": 1, "amount": 10, "remark": "a", "gone": None, "note": None}
    assert plain(table.scan().to_arrow()) == expected
    assert table.scan(where="remark = 'b'", columns=["id"]).to_arrow().column("id").to_pylist() == [2]
    assert table.scan(where="note = 'a' or gone = 0").count() == 0
    table.alter.add_column("gone_4", pa.string())
    table.upsert(pa.table({"more": [2.5], "id": [1], "amount": [11], "remark": ["d"], "gone": [8], "note": ["o"], "gone_4": ["new"]}))
    found = plain(table.scan().to_arrow())
    assert found[0] == {"more": 2.5, "id": 1, "amount": 11, "remark": "d", "gone": 8, "note": "o", "gone_4": "new"}
    assert found[1:] == [row | {"gone_4": None} for row in expected[1:]]


def test_files_without_field_ids_are_read_by_the_name_mapping(catalog: SqlCatalog, lake: objcat.Lake, tmp_path: Path) -> None:
    foreign = catalog.create_table("db.added", SCHEMA)
    pq.write_table(trips(range(6)), tmp_path / "added.parquet")
    foreign.add_files([f"file://{tmp_path}/added.parquet"])
    with foreign.update_schema() as change:
        change.rename_column("fare", "price")
    assert lake.adopt_iceberg(foreign, "added", key=["id"]).files_named == 1
    expected = plain(trips(range(6)).rename_columns(["id", "city", "at", "day", "price"]))
    assert plain(lake.table("added").scan().to_arrow()) == expected
    assert lake.table("added").scan(columns=["price"], where="price > 2").count() == 1
    with foreign.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(InvalidInput, match="no field ids, and the table has no"):
        lake.adopt_iceberg(foreign, "again", key=["id"])


def test_fields_of_structs_that_were_renamed_are_written_again(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    place = StructType(NestedField(3, "town", StringType()), NestedField(4, "zip", IntegerType()))
    foreign = catalog.create_table("db.nested", Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "place", place)))
    foreign.append(pa.table({"id": [1, 2], "place": [{"town": "Oslo", "zip": 1}, None]}).cast(foreign.schema().as_arrow()))
    with foreign.update_schema() as change:
        change.rename_column("place.town", "city")
    foreign.append(pa.table({"id": [3], "place": [{"city": "Rome", "zip": None}]}).cast(foreign.schema().as_arrow()))
    result = lake.adopt_iceberg(foreign, "nested", key=["id"])
    assert (result.files_named, result.files_rewritten) == (1, {"fields of its structs have other names": 1})
    assert plain(lake.table("nested").scan().to_arrow()) == plain(foreign.scan().to_arrow())


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ([(2, IdentityTransform())], ["city"]),
        ([(2, IdentityTransform()), (4, MonthTransform())], ["city", "month(day)"]),
        ([(3, HourTransform()), (1, TruncateTransform(10))], ["hour(at)", "truncate(id, 10)"]),
        ([(2, TruncateTransform(2)), (3, DayTransform())], ["truncate(city, 2)", "day(at)"]),
        ([(1, BucketTransform(4)), (2, IdentityTransform())], ["city"]),
    ],
    ids=str,
)
def test_partitions_are_those_of_the_foreign_table(catalog: SqlCatalog, lake: objcat.Lake, fields: Any, asked: list[str]) -> None:
    spec = PartitionSpec(*(PartitionField(source, 1000 + at, kind, f"p{at}") for at, (source, kind) in enumerate(fields)))
    foreign = catalog.create_table("db.parts", SCHEMA, partition_spec=spec)
    foreign.append(trips(range(12)))
    result = lake.adopt_iceberg(foreign, "parts", key=["id"])
    assert result.files_rewritten == {}
    assert len(result.left_out) == len(fields) - len(asked)
    table = lake.table("parts")
    assert table.partitioning == asked
    assert plain(table.scan().to_arrow()) == plain(trips(range(12)))
    assert plain(table.scan(where="city = 'Zürich'").to_arrow()) == [row for row in plain(trips(range(12))) if row["city"] == "Zürich"]
    table.upsert(trips(range(6, 18)))
    assert plain(table.scan().to_arrow()) == plain(trips(range(18)))
    assert examine(table._context.timeline, deep=True).healthy


def test_fields_of_all_partition_specs_are_kept(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "city"))
    foreign = catalog.create_table("db.evolved", SCHEMA, partition_spec=spec)
    foreign.append(trips(range(6)))
    with foreign.update_spec() as change:
        change.add_field("day", MonthTransform(), "month")
    foreign.append(trips(range(6, 9)))
    result = lake.adopt_iceberg(foreign, "evolved", key=["id"])
    assert (result.left_out, result.files_rewritten) == (("month: month",), {})
    table = lake.table("evolved")
    assert table.partitioning == ["city"]
    assert plain(table.scan().to_arrow()) == plain(trips(range(9)))
    assert examine(table._context.timeline, deep=True).healthy


@pytest.mark.parametrize("index", [objcat.SimpleIndex(), objcat.BloomIndex(), objcat.MemoryIndex(), objcat.RecordIndex(4)], ids=str)
@pytest.mark.parametrize("table_type", ["merge_on_read", "copy_on_write"])
def test_every_index_finds_the_keys_of_adopted_files(catalog: SqlCatalog, lake: objcat.Lake, index: Index, table_type: Any) -> None:
    foreign = catalog.create_table("db.t", SCHEMA, partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "city")))
    foreign.append(trips(range(30)))
    lake.adopt_iceberg(foreign, "t", key=["id"], index=index, table_type=table_type, ordering="day")
    table = lake.table("t")
    table.upsert(trips(range(20, 40)))
    table.delete(pa.table({"id": [5]}))
    moved = trips(range(1, 2)).set_column(1, "city", pa.array(["Rome"]))
    table.upsert(moved)
    expected = [row for row in plain(trips(range(40))) if row["id"] not in (1, 5)]
    expected.insert(1, plain(moved)[0])
    assert plain(table.scan().to_arrow()) == expected
    table.maintenance.compact()
    assert plain(table.scan().to_arrow()) == expected
    assert examine(table._context.timeline, deep=True).healthy


def test_without_a_key_every_row_stays_and_files_are_clustered(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    foreign = catalog.create_table("db.events", SCHEMA)
    foreign.append(trips(range(10)))
    foreign.append(trips(range(10)))
    lake.adopt_iceberg(foreign, "events", key=None)
    table = lake.table("events")
    table.insert(trips(range(5)))
    assert table.scan().count() == 25
    table.maintenance.cluster(["fare"])
    assert plain(table.scan().to_arrow()) == sorted(
        plain(pa.concat_tables([trips(range(10))] * 2 + [trips(range(5))])), key=lambda r: r["id"]
    )


def test_adopted_files_are_known_after_a_checkpoint(catalog: SqlCatalog, lake: objcat.Lake, tmp_path: Path) -> None:
    foreign = catalog.create_table("db.long", SCHEMA, partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "city")))
    foreign.append(trips(range(12)))
    lake.adopt_iceberg(foreign, "long", key=["id"])
    table = lake.table("long")
    for number in range(34):
        table.upsert(trips(range(100 + number, 101 + number)))
    until_published(table)
    again = objcat.connect(tmp_path).table("long")
    assert again.snapshot.table.manifest
    expected = [*plain(trips(range(12))), *plain(trips(range(100, 134)))]
    assert plain(again.scan().to_arrow()) == expected
    assert plain(again.scan(as_of=1).to_arrow()) == plain(trips(range(12)))
    assert plain(again.scan(where="id < 6").to_arrow()) == plain(trips(range(6)))
    assert examine(again._context.timeline, deep=True).healthy


def test_a_clean_deletes_adopted_data_files_only_when_no_readable_slot_names_them(
    catalog: SqlCatalog, lake: objcat.Lake, tmp_path: Path
) -> None:
    foreign = catalog.create_table("db.cleaned", SCHEMA)
    foreign.append(trips(range(10)))
    foreign.append(trips(range(10, 20)))
    lake.adopt_iceberg(foreign, "cleaned", key=["id"])
    table = lake.table("cleaned")
    table.upsert(trips(range(5)).set_column(4, "fare", pa.array([9.0] * 5)))
    table.maintenance.compact()
    before = files_below(tmp_path)
    table.maintenance.clean(keep_slots=100)
    assert files_below(tmp_path) == before
    table.maintenance.clean(keep_slots=1)
    gone = before.keys() - files_below(tmp_path).keys()
    assert len(gone) == 1
    assert all(path.endswith(".parquet") for path in gone)
    assert table.scan().count() == 20
    assert examine(table._context.timeline, deep=True).healthy


def test_changes_and_increments_name_the_adoption(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    foreign = catalog.create_table("db.fed", SCHEMA)
    foreign.append(trips(range(4)))
    slot = lake.adopt_iceberg(foreign, "fed", key=["id"]).slot
    table = lake.table("fed")
    assert table.incremental(since=0).to_arrow().num_rows == 4
    assert table.incremental(since=slot).to_arrow().num_rows == 0
    table.upsert(trips(range(3, 5)).set_column(4, "fare", pa.array([7.0, 8.0])))
    found = table.changes(since=slot).to_arrow()
    assert sorted(zip(found.column("_change_type").to_pylist(), found.column("id").to_pylist(), strict=True)) == [
        ("insert", 4),
        ("update_after", 3),
        ("update_before", 3),
    ]
    assert set(table.scan(columns=["id", "_commit_slot"], where="id < 3").to_arrow().column("_commit_slot").to_pylist()) == {slot}


def refused(lake: objcat.Lake, foreign: Any, match: str, error: type[Exception] = InvalidInput, **settings: Any) -> None:
    with pytest.raises(error, match=match):
        lake.adopt_iceberg(foreign, "t", **{"key": ["id"], **settings})
    assert lake.tables() == []
    root = Path(lake.fileio.url.removeprefix("file://"))
    assert not [path for path in (root / "tables").rglob("*") if path.is_file()]


def test_what_does_not_fit_is_refused_and_leaves_nothing(catalog: SqlCatalog, lake: objcat.Lake, tmp_path: Path) -> None:
    foreign = catalog.create_table("db.t", SCHEMA)
    foreign.append(trips(range(6)))
    refused(lake, foreign, "bucket index", index=objcat.BucketIndex(4))
    refused(lake, foreign, "no column 'nope'", key=["nope"])
    refused(lake, foreign, "0.0 and -0.0", InvalidSchema, key=["fare"])
    refused(lake, foreign, r"key column 'city' has nulls", key=["city"])
    refused(lake, foreign, r"ordering column 'at' has nulls", ordering="at")
    refused(lake, foreign, "setting of an adopted table", partition_by=["city"])
    refused(objcat.connect(tmp_path / "elsewhere"), foreign, "outside the lake .*Connect to a lake at a prefix")
    refused(lake, "warehouse/db/nothing", "no Iceberg metadata below")
    refused(lake, 7, "Give the URL")
    foreign.append(trips(range(5, 7)))
    refused(lake, foreign, r"1 keys come twice or more.*id=5.*in 2 rows")
    victim = next(iter(foreign.scan().plan_files())).file.file_path.removeprefix("file://")
    content = Path(victim).read_bytes()
    Path(victim).write_bytes(content[:-4])
    refused(lake, foreign, "bytes, and .* by the table", key=None)
    Path(victim).unlink()
    refused(lake, foreign, "is missing", key=None)


def test_keys_unique_in_their_partition_are_adopted_with_that_scope(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    foreign = catalog.create_table("db.t", SCHEMA, partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "city")))
    foreign.append(trips(range(4)))
    foreign.append(trips(range(4)).set_column(1, "city", pa.array(["Rome"] * 4)))
    refused(lake, foreign, "4 keys come twice")
    lake.adopt_iceberg(foreign, "t", key=["id"], key_scope="partition")
    assert lake.table("t").scan().count() == 8


def test_a_type_that_objcat_lacks_is_refused(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    foreign = catalog.create_table("db.t", Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "u", UUIDType())))
    refused(lake, foreign, "'u' has the Iceberg type uuid", InvalidSchema)


def test_a_commit_of_the_foreign_table_meanwhile_is_seen(catalog: SqlCatalog, lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = catalog.create_table("db.t", SCHEMA)
    foreign.append(trips(range(6)))
    check = keys.check_keys

    def beside(*arguments: Any) -> None:
        catalog.load_table("db.t").append(trips(range(10, 12)))
        check(*arguments)

    monkeypatch.setattr(adopt, "check_keys", beside)
    refused(lake, foreign, "changed from .* while it was adopted", ForeignTableChanged)
    location = foreign.location()
    refused(lake, location, "changed from .* while it was adopted", ForeignTableChanged)
    monkeypatch.undo()
    assert lake.adopt_iceberg(location, "t", key=None).rows == 10


def test_a_table_by_its_location_and_by_its_metadata_file(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    foreign = catalog.create_table("db.t", SCHEMA)
    foreign.append(trips(range(3)))
    older = foreign.metadata_location
    foreign.append(trips(range(3, 6)))
    assert lake.adopt_iceberg(foreign.metadata_location, "by_file", key=["id"]).rows == 6
    assert lake.adopt_iceberg("warehouse/db/t", "by_path", key=["id"]).rows == 6
    with pytest.raises(ForeignTableChanged):
        lake.adopt_iceberg(older, "older", key=["id"])
    with pytest.raises(TableExists):
        lake.adopt_iceberg(foreign, "by_path", key=["id"])
    empty = catalog.create_table("db.empty", SCHEMA)
    assert lake.adopt_iceberg(empty, "empty", key=["id"]).rows == 0
    lake.table("empty").upsert(trips(range(2)))
    assert lake.table("empty").scan().count() == 2


def test_files_with_deleted_positions_are_written_again(
    catalog: SqlCatalog, lake: objcat.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg writes no delete files, so its plan gets one here; Spark's are in the integration tier."""
    foreign = catalog.create_table("db.t", SCHEMA)
    foreign.append(trips(range(8)))
    foreign.append(trips(range(8, 12)))
    plan: Callable[..., Any] = DataScan.plan_files

    def with_deletes(scan: DataScan) -> list[Any]:
        tasks = list(plan(scan))
        task = next(one for one in tasks if one.file.record_count == 8)
        path = tmp_path / "warehouse" / "deletes.parquet"
        pq.write_table(pa.table({"file_path": [task.file.file_path] * 2 + ["file:///other"], "pos": [0, 7, 3]}), path)
        deletes = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES, file_path=f"file://{path}", file_format=FileFormat.PARQUET, record_count=3
        )
        task.delete_files = {deletes}
        return tasks

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    result = lake.adopt_iceberg(foreign, "t", key=["id"])
    assert (result.files_named, result.files_rewritten, result.rows) == (1, {"rows of it are deleted": 1}, 10)
    assert plain(lake.table("t").scan().to_arrow()) == plain(trips(range(12)))[1:7] + plain(trips(range(12)))[8:]


def test_equality_deletes_are_refused(catalog: SqlCatalog, lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tool of the tests writes them, so a manifest that names one is shown to objcat."""
    foreign = catalog.create_table("db.t", SCHEMA)
    foreign.append(trips(range(3)))
    deletes = SimpleNamespace(content=DataFileContent.EQUALITY_DELETES, file_path="s3://bucket/equal.parquet")
    manifest = SimpleNamespace(content=ManifestContent.DELETES, fetch_manifest_entry=lambda _: [SimpleNamespace(data_file=deletes)])
    monkeypatch.setattr("pyiceberg.table.snapshots.Snapshot.manifests", lambda *_: [manifest])
    refused(lake, foreign, r"equality deletes, such as s3://bucket/equal.parquet.*rewrite_data_files")


def test_a_default_is_in_rows_of_older_files(catalog: SqlCatalog, lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg writes no version 3, so the default is set in what it has read."""
    foreign = catalog.create_table("db.t", SCHEMA)
    foreign.append(trips(range(3)))
    with foreign.update_schema() as change:
        change.add_column("kind", StringType())
    foreign.append(trips(range(3, 5)).append_column("kind", pa.array(["own", None])))
    schema = foreign.metadata.schema()
    defaults = {"initial_default": "old", "write_default": "new"}
    fields = [field.model_copy(update=defaults) if field.name == "kind" else field for field in schema.fields]
    monkeypatch.setattr("pyiceberg.table.metadata.TableMetadataV2.schema", lambda _: Schema(*fields, schema_id=schema.schema_id))
    assert lake.adopt_iceberg(foreign, "t", key=["id"]).files_named == 2
    kinds = [row["kind"] for row in plain(lake.table("t").scan().to_arrow())]
    assert kinds == ["old", "old", "old", "own", None]
    assert lake.table("t").scan(where="kind = 'old'").count() == 3
    lake.table("t").upsert(trips(range(7, 8)))
    assert [row["kind"] for row in plain(lake.table("t").scan(where="id = 7").to_arrow())] == ["new"]


def test_every_kind_of_write_upon_adopted_files(catalog: SqlCatalog, lake: objcat.Lake) -> None:
    """What reads rows to change them reads adopted files, whose columns may have other names there."""
    foreign = catalog.create_table("db.t", SCHEMA, partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "city")))
    foreign.append(trips(range(18)))
    with foreign.update_schema() as change:
        change.rename_column("fare", "price")
    slot = lake.adopt_iceberg(foreign, "t", key=["id"]).slot
    table = lake.table("t")
    rows = {row["id"]: row for row in plain(trips(range(18)).rename_columns(["id", "city", "at", "day", "price"]))}
    table.update({"price": "price + 100"}, where="id < 3")
    rows |= {number: rows[number] | {"price": rows[number]["price"] + 100} for number in range(3)}
    table.delete("price = 4.0")
    del rows[8]
    source = pa.table({"id": [3, 40], "price": [1.0, 2.0]})
    table.merge(source).when_matched_update({"price": "source.price"}).when_not_matched_insert({"id": "source.id"}).execute()
    rows |= {3: rows[3] | {"price": 1.0}, 40: dict.fromkeys(rows[3]) | {"id": 40}}
    assert plain(table.scan().to_arrow()) == [rows[number] for number in sorted(rows)]
    with lake.transaction() as change:
        change["t"].upsert(pa.Table.from_pylist([rows[5] | {"price": -5.0}], schema=table.schema))
    rows[5] = rows[5] | {"price": -5.0}
    assert plain(table.scan().to_arrow()) == [rows[number] for number in sorted(rows)]
    table.restore(to=slot)
    assert plain(table.scan().to_arrow()) == plain(trips(range(18)).rename_columns(["id", "city", "at", "day", "price"]))
    assert examine(table._context.timeline, deep=True).healthy


def test_an_adoption_that_is_killed_leaves_no_table_and_begins_again(
    catalog: SqlCatalog, lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = catalog.create_table("db.t", SCHEMA)
    foreign.append(trips(range(3)))
    for at in ("check_keys", "check_own", "check_unchanged"):

        def killed(*_: Any, at: str = at) -> None:
            raise KeyboardInterrupt(at)

        monkeypatch.setattr(adopt, at, killed)
        with pytest.raises(KeyboardInterrupt, match=at):
            lake.adopt_iceberg(foreign, "t", key=["id"])
        monkeypatch.undo()
        assert lake.tables() == []
    assert lake.adopt_iceberg(foreign, "t", key=["id"]).rows == 3
    assert plain(lake.table("t").scan().to_arrow()) == plain(trips(range(3)))
