"""Changes of a schema as values: what each one gives, and the sentence that refuses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from objcat.errors import InvalidBatch, InvalidInput, InvalidSchema
from objcat.metadata.properties import SchemaMode
from objcat.metadata.schema import NESTING_MAX, StructType, schema_from_arrow, walk
from objcat.metadata.schema_differences import changed_ids, describe_changes
from objcat.metadata.schema_evolution import (
    AddColumn,
    ColumnChange,
    DropColumn,
    MoveColumn,
    RenameColumn,
    WidenColumn,
    evolve,
    widened_spec,
)
from objcat.metadata.table_spec import BucketIndex, TableSpec, make_spec
from objcat.metadata.type_widening import is_wider

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("at", pa.int32(), nullable=False),
        ("fare", pa.float32()),
        ("place", pa.struct([("x", pa.int32()), ("name", pa.string())])),
        ("stops", pa.list_(pa.struct([("n", pa.int16())]))),
        ("tags", pa.map_(pa.string(), pa.struct([("w", pa.float32())]))),
        ("a.b", pa.string()),
    ]
)


def spec(schema: pa.Schema = SCHEMA, **options: Any) -> TableSpec:
    settings: dict[str, Any] = {"key": ["id"], "ordering": "at", "index": BucketIndex(4), "table_type": "merge_on_read", "properties": {}}
    return make_spec("t", schema_from_arrow(schema), **settings | options)


def changed(*changes: ColumnChange, **options: Any) -> TableSpec:
    return evolve(spec(**options), changes)


def logical(found: TableSpec) -> pa.Schema:
    return found.table_schema.to_arrow()


def test_an_added_column_comes_last_or_where_it_is_said() -> None:
    found = changed(AddColumn("tip", "decimal(10, 2)"), AddColumn("vat", pa.int64(), after="fare"), AddColumn("no", "string", first=True))
    assert found.table_schema.names == ["no", "id", "at", "fare", "vat", "place", "stops", "tags", "a.b", "tip"]
    assert logical(found).field("tip").type == pa.decimal128(10, 2)
    assert all(found.table_schema.column(name).nullable for name in ("no", "vat", "tip"))


def test_ids_and_physical_names_are_never_used_twice() -> None:
    first = changed(AddColumn("tip", "int"))
    again = evolve(first, [DropColumn("tip"), AddColumn("tip", "string"), DropColumn("fare"), AddColumn("fare", "string")])
    before, after = first.table_schema.column("tip"), again.table_schema.column("tip")
    assert before.id < after.id < again.table_schema.column("fare").id == again.table_schema.last_id
    physical = {before.physical, after.physical, "fare", again.table_schema.column("fare").physical}
    assert len(physical) == 4
    assert after.physical == f"tip_{after.id}"


def test_a_name_with_a_number_at_creation_cannot_meet_one_that_is_added() -> None:
    """`x_3` is a column of the user's, and what a column `x` with the id 3 would be called."""
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), ("x_3", pa.string())])
    found = evolve(spec(schema, ordering=None), [AddColumn("x", "string")])
    assert found.table_schema.column("x").id == 3
    names = [column.physical for column in found.table_schema.columns]
    assert len(set(names)) == len(names)


def test_nested_fields_are_added_renamed_moved_widened_and_dropped_by_path() -> None:
    found = changed(
        AddColumn("place.z", "double", first=True),
        RenameColumn("place.name", "label"),
        MoveColumn("place.x", after="label"),
        WidenColumn("place.x", "bigint"),
        AddColumn("stops.element.at", pa.timestamp("s", "UTC")),
        WidenColumn("stops.element.n", "int"),
        AddColumn("tags.value.v", "string"),
        DropColumn("tags.value.w"),
        DropColumn("`a.b`"),
    )
    assert logical(found).remove(0).remove(0).remove(0) == pa.schema(
        [
            ("place", pa.struct([("z", pa.float64()), ("label", pa.string()), ("x", pa.int64())])),
            ("stops", pa.list_(pa.field("element", pa.struct([("n", pa.int32()), ("at", pa.timestamp("us", "UTC"))])))),
            ("tags", pa.map_(pa.string(), pa.struct([("v", pa.string())]))),
        ]
    )
    place = found.table_schema.column("place").type
    assert isinstance(place, StructType)
    assert [field.physical for field in place.fields] == [f"z_{place.fields[0].id}", "name", "x"]
    ids = [column.id for column in walk(found.table_schema.columns)]
    assert len(set(ids)) == len(ids)


def test_two_names_are_swapped_in_one_change() -> None:
    found = changed(RenameColumn("fare", "swap"), RenameColumn("a.b", "fare"), RenameColumn("swap", "a.b"))
    assert {c.name: c.physical for c in found.table_schema.columns if c.name in ("fare", "a.b")} == {"fare": "a.b", "a.b": "fare"}


def test_the_key_and_the_ordering_column_may_be_renamed_and_moved_and_the_ordering_widened() -> None:
    found = changed(RenameColumn("id", "trip"), RenameColumn("at", "when"), MoveColumn("when", first=True), WidenColumn("when", "bigint"))
    assert [column.name for column in found.key_columns] == ["trip"]
    assert found.ordering_column == found.table_schema.columns[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (WidenColumn("id", "bigint"), "'id' is a key column"),
        (DropColumn("id"), "'id' is a key column"),
        (DropColumn("at"), "'at' is the ordering column"),
        (DropColumn("fares"), "did you mean 'fare'"),
        (DropColumn("fare.x"), "which is float and has no fields"),
        (DropColumn("place.xx"), r"no column 'xx' \(did you mean 'x'"),
        (DropColumn("stops.element"), "can only be widened"),
        (DropColumn("stops.element.n"), "the only one there"),
        (DropColumn("stops.n"), "no column 'n'"),
        (DropColumn("tags.key"), "can only be widened"),
        (DropColumn("place..x"), "Write its name"),
        (DropColumn(""), "is empty"),
        (RenameColumn("fare", "PLACE"), "There is a column 'place' already"),
        (RenameColumn("fare", "_objcat_x"), "reserved"),
        (RenameColumn("fare", ""), "is empty"),
        (RenameColumn("place.x", "Name"), "There is a column 'name' already"),
        (AddColumn("Fare", "int"), "There is a column 'fare' already"),
        (AddColumn("place.X", "int"), "There is a column 'x' already"),
        (AddColumn("new", "bigin"), "did you mean 'bigint'"),
        (AddColumn("new", "decimal(40,2)"), "1 to 38 digits"),
        (AddColumn("new", pa.uint64()), "which Spark cannot hold"),
        (AddColumn("new", 5), "Give an Arrow type"),
        (AddColumn("new", "int", after="nope"), "no column 'nope'"),
        (AddColumn("new", "int", after="id", first=True), "both first and after"),
        (AddColumn("fare.x", "int"), "has no fields"),
        (MoveColumn("fare"), "exactly one place"),
        (MoveColumn("fare", after="fare"), "no column 'fare'"),
        (WidenColumn("fare", "int"), "It can become double"),
        (WidenColumn("a.b", "binary"), "add another column"),
        (WidenColumn("place", "string"), "add another column"),
        (WidenColumn("tags.key", "binary"), "is a map's key"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(change: ColumnChange, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        changed(change)


def test_a_column_that_partitions_are_made_of_keeps_its_type_and_stays() -> None:
    table = spec(key=["id", "fare"], partition_by=["fare"])
    for change in (WidenColumn("fare", "double"), DropColumn("fare")):
        with pytest.raises(InvalidSchema, match="'fare' is a key column"):
            evolve(table, [change])
    table = spec(partition_by=["a.b"], key_scope="partition")
    with pytest.raises(InvalidSchema, match="partitions are made of"):
        evolve(table, [DropColumn("a.b")])
    assert evolve(table, [RenameColumn("a.b", "city")]).partition_columns[0].name == "city"


WIDER: dict[str, Sequence[str]] = {
    "tinyint": ["smallint", "int", "bigint", "double", "decimal(10,0)", "decimal(12,2)"],
    "smallint": ["int", "bigint", "double", "decimal(10,0)"],
    "int": ["bigint", "double", "decimal(10,0)", "decimal(38,28)"],
    "bigint": ["decimal(20,0)"],
    "float": ["double"],
    "decimal(5,2)": ["decimal(6,2)", "decimal(38,2)"],
}
TYPES = ["boolean", "string", "binary", "date", "timestamp", "timestamp_ntz", "double", "decimal(9,0)", "decimal(6,3)", "decimal(19,0)"]


def test_wider_is_what_loses_nothing_and_nothing_else() -> None:
    for old in [*WIDER, *TYPES]:
        wider = [new for new in {*TYPES, *WIDER, *(name for names in WIDER.values() for name in names)} if is_wider(new, old)]
        expected = WIDER.get(old, [])
        assert all(is_wider(new, old) for new in expected)
        for new in set(wider) - set(expected):
            # The lists above are not complete in decimals.
            assert new.startswith("decimal"), (old, new)
            assert old in WIDER or old.startswith("decimal"), (old, new)
    assert not is_wider("decimal(10,4)", "decimal(5,2)")
    assert not is_wider("double", "bigint")
    assert not is_wider("float", "tinyint")
    assert not is_wider("timestamp_ntz", "date")


def grow(mode: SchemaMode, *fields: Any, **options: Any) -> TableSpec:
    return widened_spec(spec(**options), pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.int64()), *fields]), mode)


def test_a_strict_write_changes_nothing_and_one_that_brings_nothing_neither() -> None:
    table = spec()
    assert widened_spec(table, pa.schema([("new", pa.int32())]), SchemaMode.STRICT) is table
    assert widened_spec(table, SCHEMA, SchemaMode.WIDEN) is table
    assert widened_spec(table, pa.schema([("fare", pa.float64())]), SchemaMode.ADD) is table


def test_unknown_columns_and_fields_of_a_batch_are_added_at_the_end_and_nullable() -> None:
    place = pa.struct([pa.field("z", pa.int8(), nullable=False), pa.field("x", pa.int32())])
    stops = pa.large_list(pa.struct([pa.field("why", pa.string(), nullable=False)]))
    new = pa.struct([pa.field("k", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False)])
    found = grow(SchemaMode.ADD, ("place", place), ("stops", stops), pa.field("new", new, nullable=False))
    fields = logical(found)
    assert fields.field("place").type == pa.struct([("x", pa.int32()), ("name", pa.string()), ("z", pa.int8())])
    assert fields.field("stops").type.value_type == pa.struct([("n", pa.int16()), ("why", pa.string())])
    assert fields.field(len(fields) - 1) == pa.field("new", pa.struct([("k", pa.list_(pa.field("element", pa.int32())))]))
    assert fields.field("id").type == pa.int32()


def test_widen_widens_what_is_wider_and_leaves_the_rest() -> None:
    fields = [("fare", pa.float64()), ("place", pa.struct([("x", pa.int8())])), ("stops", pa.list_(pa.struct([("n", pa.int64())])))]
    found = logical(grow(SchemaMode.WIDEN, *fields, ("a.b", pa.null())))
    assert found.field("fare").type == pa.float64()
    assert found.field("place").type.field("x").type == pa.int32()
    assert found.field("stops").type.value_type.field("n").type == pa.int64()
    assert found.field("id").type == pa.int32(), "a key column keeps its type"
    assert found.field("at").type == pa.int64(), "the ordering column does not have to"
    assert grow(SchemaMode.ADD, *fields).table_schema.column("fare").type == "float"


@pytest.mark.parametrize(
    ("field", "error", "says"),
    [
        (("Fare", pa.int32()), InvalidSchema, "differ in more than case and"),
        (("place", pa.struct([("X", pa.int32())])), InvalidSchema, "differ in more than case and"),
        (("new", pa.null()), InvalidBatch, "its type is unknown"),
        (("new", pa.uint64()), InvalidSchema, "which Spark cannot hold"),
    ],
)
def test_a_column_that_cannot_be_added_is_refused(field: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        grow(SchemaMode.ADD, field)


def nested(count: int, wrap: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    data_type = pa.int32()
    for _ in range(count):
        data_type = wrap(data_type)
    return data_type


@pytest.mark.parametrize(
    ("wrap", "levels"),
    [
        (lambda inner: pa.struct([("x", inner)]), 1),
        (pa.list_, 2),
        (lambda inner: pa.list_(inner, 1), 2),
        (lambda inner: pa.map_(pa.string(), inner), 2),
    ],
)
def test_a_column_that_is_nested_deeper_than_files_are_read_is_refused(wrap: Callable[[pa.DataType], pa.DataType], levels: int) -> None:
    deepest, deeper = nested(NESTING_MAX // levels, wrap), nested(NESTING_MAX // levels + 1, wrap)
    keyed = [pa.field("id", pa.int32(), nullable=False), pa.field("at", pa.int32(), nullable=False)]
    table = spec(pa.schema([*keyed, ("deep", deepest)]))
    buffer = pa.BufferOutputStream()
    pq.write_table(table.table_schema.to_arrow_physical().empty_table(), buffer)
    assert pq.read_table(buffer.getvalue()).num_columns == len(keyed) + 1
    says = "is nested deeper than Parquet files can be read"
    for data_type in (deeper, nested(5000, wrap)):
        with pytest.raises(InvalidSchema, match=says):
            spec(pa.schema([*keyed, ("deep", data_type)]))
        with pytest.raises(InvalidSchema, match=says):
            changed(AddColumn("deep", data_type))
    with pytest.raises(InvalidSchema, match=says):
        changed(AddColumn("place.deep", deepest))
    with pytest.raises(InvalidSchema, match=says):
        grow(SchemaMode.ADD, ("deep", deeper))


def test_changes_are_told_in_words_and_by_id() -> None:
    old = spec().table_schema
    new = changed(
        AddColumn("tip", pa.struct([("cents", pa.int32())])),
        DropColumn("stops"),
        RenameColumn("place", "where"),
        AddColumn("where.z", "double"),
        DropColumn("where.name"),
        WidenColumn("fare", "double"),
        MoveColumn("a.b", first=True),
    ).table_schema
    assert describe_changes(old, new) == [
        "widened fare from float to double",
        "renamed place to where",
        "added where.z (double)",
        "added tip (struct<cents: int32>)",
        "dropped place.name",
        "dropped stops",
        "ordered columns as a.b, id, at, fare, where, tags, tip",
    ]
    named = {path: column.id for path, column in ((c.name, c) for c in walk(old.columns))}
    changed_there = set(changed_ids(old, new))
    assert {named["fare"], named["place"], named["stops"]} <= changed_there
    assert not {named["id"], named["at"], named["a.b"], named["tags"]} & changed_there
    assert describe_changes(old, old) == []
