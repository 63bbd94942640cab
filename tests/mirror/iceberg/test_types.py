"""Types, changes of the schema, and what Iceberg cannot express."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable

import objcat
from objcat.metadata.schema import Column, ListType, MapType, StructType, TableSchema, schema_from_arrow
from objcat.mirror.mirror import HELD_SLOTS
from objcat.mirror.model import MirrorHeld
from objcat.timeline.entry import Action
from tests.mirror.iceberg.readers import check_all, document, metadata_slots, rows_at, static_table
from tests.mirror.iceberg.worlds import World, WorldFile, rows_of

EVERY = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("flag", pa.bool_()),
        pa.field("tiny", pa.int8()),
        pa.field("small", pa.int16()),
        pa.field("whole", pa.int32()),
        pa.field("single", pa.float32()),
        pa.field("real", pa.float64()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("huge", pa.decimal128(38, 10)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("text", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("place", pa.struct([pa.field("city", pa.string()), pa.field("zip", pa.int32())])),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def row(number: int) -> dict[str, object]:
    sign = -1 if number % 2 else 1
    return {
        "id": number,
        "flag": bool(number % 2),
        "tiny": sign * number,
        "small": sign * 300,
        "whole": sign * 70_000 * number,
        "single": 0.5 * number,
        "real": sign * 1e100,
        "price": decimal.Decimal(sign * number).scaleb(-2),
        "huge": decimal.Decimal(f"{sign * 12345678901234567890123456}.0123456789"),
        "day": dt.date(1969, 12, 28) + dt.timedelta(days=number),
        "at": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC) + dt.timedelta(microseconds=number),
        "local": dt.datetime(2024, 2, 29, 12) + dt.timedelta(microseconds=number),
        "text": f"Zürich {number} 𝄞",
        "raw": bytes([number, 255]),
        "place": {"city": f"c{number}", "zip": number},
        "tags": [f"t{number}", None],
        "counts": [("a", number)],
    }


def test_every_type_reads_exactly_and_is_found_by_filters(tmp_path: Path):
    world = World(f"file://{tmp_path}", EVERY)
    nulls = {name: None for name in EVERY.names if name != "place"} | {"id": 99, "place": {"city": None, "zip": None}}
    rows = pa.Table.from_pylist([*(row(number) for number in range(4)), nulls], schema=EVERY)
    world.mirror().write(world.step(add=[world.file(rows)], restarts=True))
    check_all(world)
    table = static_table(world, 0)
    for name in EVERY.names[1:14]:
        for value in rows.column(name).to_pylist()[:4]:
            found = [one["id"] for one in table.scan(row_filter=equal(name, value)).to_arrow().to_pylist()]
            assert found == [one["id"] for one in rows.to_pylist() if one[name] == value], name
    assert table.scan(row_filter="real > 2.5").to_arrow().num_rows == 2
    assert len(list(table.scan(row_filter="whole > 1000000").plan_files())) == 0  # Bounds leave the file out.
    names = {field.name: str(field.field_type) for field in table.schema().fields}
    assert (names["tiny"], names["small"], names["whole"], names["id"]) == ("int", "int", "int", "long")
    assert (names["at"], names["local"], names["price"]) == ("timestamptz", "timestamp", "decimal(9, 2)")
    assert table.schema().identifier_field_names() == {"id"}


def equal(name: str, value: object):
    make: Any = EqualTo
    return make(name, value)


def renamed(schema: TableSchema, *columns: Column) -> TableSchema:
    return TableSchema(columns=columns, last_id=max(schema.last_id, *(column.id for column in columns)))


def with_schema(world: World, schema: TableSchema) -> None:
    world.spec = msgspec.structs.replace(world.spec, table_schema=schema)


def changed(column: Column, **values: object) -> Column:
    return msgspec.structs.replace(column, **values)


def test_a_schema_that_changes_reads_as_it_was_at_each_slot(tmp_path: Path):
    start = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("a", pa.int32()),
            pa.field("b", pa.float32()),
            pa.field("c", pa.decimal128(5, 2)),
            pa.field("s", pa.struct([pa.field("x", pa.int16()), pa.field("y", pa.string())])),
        ]
    )
    world = World(f"file://{tmp_path}", start)
    mirror = world.mirror()

    def file() -> None:
        names = [column.physical for column in world.spec.table_schema.columns]
        inner = next((c for c in world.spec.table_schema.columns if isinstance(c.type, StructType)), None)
        values = {"id": 10 + world.slot, "a": 7, "b": 1.5, "c": decimal.Decimal("1.25"), "e": "new", "a_20": "text"}
        one = {name: values.get(name, values.get(name.partition("_")[0])) for name in names}
        if inner is not None and isinstance(inner.type, StructType):
            one[inner.physical] = {f.physical: 3 if f.type in ("smallint", "int", "bigint") else "y" for f in inner.type.fields}
        table = pa.Table.from_pylist([one], schema=world.spec.table_schema.to_arrow_physical(nullable=True))
        mirror.write(world.step(add=[world.file(table)], restarts=mirror.newest() is None))

    file()
    key, a, b, c, s = world.spec.table_schema.columns
    assert isinstance(s.type, StructType)
    x, y = s.type.fields
    steps = [
        (key, changed(a, name="renamed"), b, c, s),
        (key, changed(a, type="bigint"), changed(b, type="double"), changed(c, type="decimal(9,2)"), s),
        (key, a, changed(s, type=StructType(fields=(changed(x, type="bigint"), changed(y, name="z"))))),
        (key, Column(id=20, name="a", physical="a_20", type="string"), Column(id=21, name="e", physical="e_21", type="string"), s),
    ]
    for columns in steps:
        with_schema(world, renamed(world.spec.table_schema, *columns))
        mirror.write(world.step(Action.SCHEMA))
        file()
    check_types_of_all(world)
    assert len({one["schema-id"] for one in document(world, world.slot)["snapshots"]}) == 5
    mapping = json.loads(document(world, world.slot)["properties"]["schema.name-mapping.default"])
    names = {field["field-id"]: field["names"] for field in mapping}
    assert names == {
        1: ["id"], 2: ["a"], 3: ["b"], 4: ["c"], 5: ["s"], 20: ["a_20"], 21: ["e_21"],
        2147480001: ["_objcat_txn"], 2147480002: ["_objcat_op"],
    }  # fmt: skip
    assert [field["fields"] for field in mapping if field["field-id"] == 5] == [
        [{"field-id": 6, "names": ["x"]}, {"field-id": 7, "names": ["y"]}]
    ]


def check_types_of_all(world: World) -> None:
    """As `check_all`, for worlds whose truth was computed under a schema that is as wide as the mirror's or narrower."""
    newest = metadata_slots(world)[-1]
    for slot in metadata_slots(world):
        for by in (slot, newest):
            found, wanted = rows_at(world, slot, by=by), world.truth[slot]
            assert found.schema.names == wanted.schema.names
            assert rows_of(found) == rows_of(wanted), slot


def test_a_restore_that_makes_a_column_narrow_keeps_the_wider_type(tmp_path: Path):
    world = World(f"file://{tmp_path}", pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("a", pa.int32())]))
    mirror = world.mirror()

    def rows(number: int) -> pa.Table:
        return pa.Table.from_pylist([{"id": number, "a": 1}], schema=world.spec.table_schema.to_arrow_physical(nullable=True))

    mirror.write(world.step(add=[world.file(rows(1))], restarts=True))
    key, a = world.spec.table_schema.columns
    with_schema(world, renamed(world.spec.table_schema, key, changed(a, type="bigint")))
    mirror.write(world.step(add=[world.file(rows(2))]))
    mirror.write(world.restore(0))
    mirror.write(world.step(add=[world.file(rows(3))]))
    check_types_of_all(world)
    assert world.spec.table_schema.columns[1].type == "int"
    assert [str(static_table(world, slot).schema().find_field("a").field_type) for slot in range(4)] == ["int", "long", "long", "long"]


def test_a_restore_that_forbids_nulls_again_still_allows_them(tmp_path: Path):
    world = World(f"memory://{tmp_path.name}", pa.schema([pa.field("id", pa.int64(), False), pa.field("a", pa.int32(), False)]))
    mirror = world.mirror()
    mirror.write(world.step(Action.CREATE, restarts=True))
    key, a = world.spec.table_schema.columns
    with_schema(world, renamed(world.spec.table_schema, key, changed(a, nullable=True)))
    mirror.write(world.step(Action.SCHEMA))
    mirror.write(world.restore(0))
    assert not world.spec.table_schema.columns[1].nullable
    required = [schema["fields"][1]["required"] for slot in range(3) for schema in document(world, slot)["schemas"]]
    assert required == [True, True, False, True, False] and document(world, 2)["current-schema-id"] == 1


@pytest.mark.parametrize(("old", "new"), [("int", "double"), ("smallint", "double"), ("int", "decimal(12,2)"), ("bigint", "decimal(20,0)")])
@pytest.mark.parametrize("nested", [False, True])
def test_a_widening_that_iceberg_does_not_know_holds_the_mirror(tmp_path: Path, old: str, new: str, nested: bool):
    def schema(kind: str) -> TableSchema:
        inside = Column(id=3, name="x", physical="x", type=kind)
        element = Column(id=4, name="element", physical="element", type=StructType(fields=(inside,)))
        column = Column(id=2, name="a", physical="a", type=ListType(element=element) if nested else kind)
        return TableSchema(columns=(Column(id=1, name="id", physical="id", type="bigint", nullable=False), column), last_id=4)

    world = World(f"file://{tmp_path}", schema(old))
    mirror = world.mirror()
    mirror.write(world.step(Action.CREATE, restarts=True))
    with_schema(world, schema(new))
    before = sorted(world.fileio.list_keys())
    name = "a.element.x" if nested else "a"
    for one in (mirror, world.mirror()):
        with pytest.raises(MirrorHeld, match=f"The column '{name}' of table 'shop.orders' changes from .*maintenance.cluster") as error:
            one.write(world.step(Action.SCHEMA))
        assert "The table is not affected." in str(error.value)
    assert sorted(world.fileio.list_keys()) == before
    newest = mirror.newest()
    assert newest is not None and newest.slot == 0


DECIMAL = "decimal(12,2)"


@pytest.mark.parametrize(("kind", "value"), [("double", 3.0), (DECIMAL, decimal.Decimal("3.00"))])
@pytest.mark.parametrize("has_bounds", [False, True])
def test_a_mirror_waits_until_no_file_has_the_narrow_type(tmp_path: Path, kind: str, value: object, has_bounds: bool):
    world = World(f"file://{tmp_path}", pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("a", pa.int32())]))
    mirror = world.mirror()

    def file(amount: object) -> WorldFile:
        found = world.file(pa.Table.from_pylist([{"id": 1, "a": amount}], schema=world.spec.table_schema.to_arrow_physical(nullable=True)))
        # A checkpoint holds bounds of old files in the new type.
        found.bounds = {2: (float(3), float(3), 0) if kind == "double" else ("3.00", "3.00", 0)} if has_bounds else {}
        return found

    narrow = file(3)
    mirror.write(world.step(add=[narrow], restarts=True))
    key, a = world.spec.table_schema.columns
    with_schema(world, renamed(world.spec.table_schema, key, changed(a, type=kind)))
    held = [world.step(Action.SCHEMA), world.step(add=[file(value)])]
    for change in held:
        with pytest.raises(MirrorHeld):
            mirror.write(change)
    again = world.restart()
    for one in (mirror, World(f"file://{tmp_path}", folder="elsewhere/").mirror()):
        with pytest.raises(MirrorHeld, match=f"{narrow.path}.* holds integers in the column with id 2"):
            one.write(again)
    world.step(Action.COMPACTION, remove=[narrow.path], add=[file(value)])
    mirror.write(world.restart())
    check_all(world)
    before = world.fileio.metrics.snapshot()
    mirror.write(world.restart())
    assert (world.fileio.metrics.snapshot() - before).requests.get("get", 0) == 0  # The type has not changed since.


def test_bounds_of_a_file_group_hide_no_narrow_type(tmp_path: Path):
    """Manifests have bounds of a file group. Log rows after the change have halves, and the files before it have integers still."""
    lake = objcat.connect(tmp_path / "lake")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("a", pa.int32())])
    table = lake.create_table("t", schema, key=["id"], index=objcat.BucketIndex(1), properties={"mirrors": "iceberg"})
    table.upsert([{"id": 1, "a": 1}])
    table.alter.widen_column("a", pa.float64())
    for number in range(2, 2 + HELD_SLOTS + 2):
        table.upsert([{"id": number, "a": number + 0.5}])
        (report,) = table.maintenance.mirror()
        assert "holds integers" in report.held or "changes from" in report.held
        assert report.slot == 1
    table.maintenance.compact()
    for number in range(HELD_SLOTS + 1):
        table.set_properties({"team.note": str(number)})
        table.maintenance.mirror()
    (report,) = table.maintenance.mirror()
    assert (report.held, report.lag) == ("", 0)
    folder = table.url.removeprefix("file://")
    found = StaticTable.from_metadata(f"{folder}/metadata/v{report.slot + 1}.metadata.json").scan().to_arrow()
    assert found.sort_by("id").to_pylist() == table.scan().to_arrow().sort_by("id").to_pylist()


def test_bounds_spare_the_look_into_files(tmp_path: Path):
    world = World(f"memory://{tmp_path.name}")
    change = world.step(add=[world.file(world.rows(1, 2, 3))], restarts=True)
    before = world.fileio.metrics.snapshot()
    world.mirror().write(change)
    assert (world.fileio.metrics.snapshot() - before).requests["get"] == 1  # The hint.


def test_files_without_field_ids_are_read_by_the_name_mapping(tmp_path: Path):
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("gone", pa.string()),
            pa.field("place", pa.struct([pa.field("city", pa.string())])),
            pa.field("tags", pa.list_(pa.int32())),
            pa.field("counts", pa.map_(pa.string(), pa.int64())),
        ]
    )
    world = World(f"file://{tmp_path}", schema)
    values = {"id": 1, "gone": "x", "place": {"city": "Rome"}, "tags": [1], "counts": [("a", 1)]}
    rows = pa.Table.from_pylist([values], schema=schema)
    file = world.file(rows)
    out = io.BytesIO()
    old = rows.append_column("_objcat_txn", pa.array([1], pa.int32())).append_column("_objcat_op", pa.array([0], pa.int8()))
    pq.write_table(old, out)
    world.fileio.put(file.path, out.getvalue())
    file.bytes = len(out.getvalue())
    mirror = world.mirror()
    mirror.write(world.step(add=[file], restarts=True))
    with_schema(world, renamed(world.spec.table_schema, *(one for one in world.spec.table_schema.columns if one.name != "gone")))
    mirror.write(world.step(Action.SCHEMA))
    check_all(world)
    mapping = json.loads(document(world, 1)["properties"]["schema.name-mapping.default"])
    assert [field["names"] for field in mapping if field["field-id"] == 2] == [["gone"]]


def test_identifier_fields_are_given_only_where_iceberg_allows_them(tmp_path: Path):
    def identifiers(number: int, *fields: pa.Field) -> set[str]:
        world = World(f"file://{tmp_path}/{number}", pa.schema(fields), key=[field.name for field in fields])
        world.mirror().write(world.step(Action.CREATE, restarts=True))
        return set(static_table(world, 0).schema().identifier_field_names())

    assert identifiers(0, pa.field("a", pa.string(), False), pa.field("b", pa.date32(), False)) == {"a", "b"}
    assert identifiers(1, pa.field("a", pa.string(), False), pa.field("b", pa.date32())) == set()
    assert identifiers(2, pa.field("a", pa.float64(), False)) == set()


def test_nested_types_keep_their_ids(tmp_path: Path):
    world = World(f"file://{tmp_path}", EVERY)
    world.mirror().write(world.step(Action.CREATE, restarts=True))
    found = static_table(world, 0).schema()
    for column in schema_from_arrow(EVERY).columns:
        match column.type:
            case StructType(fields):
                assert [found.find_field(f"{column.name}.{one.name}").field_id for one in fields] == [one.id for one in fields]
            case ListType(element):
                assert found.find_field(f"{column.name}.element").field_id == element.id
            case MapType(key, value):
                assert found.find_field(f"{column.name}.key").field_id == key.id
                assert found.find_field(f"{column.name}.value").field_id == value.id
        assert found.find_field(column.name).field_id == column.id
