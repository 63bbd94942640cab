"""Schemas change while tables live: old files under the new schema, old snapshots under the old one, and writers in between."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.errors import CommitConflict, InvalidBatch, InvalidInput, InvalidPredicate, InvalidSchema
from objcat.metadata.files import files_named_by
from objcat.timeline.entry import Action
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int32()),
        ("fare", pa.decimal128(6, 2)),
        ("city", pa.string()),
        ("place", pa.struct([("x", pa.float32()), ("name", pa.string())])),
        ("stops", pa.list_(pa.struct([("at", pa.int32())]))),
    ]
)
KINDS = ["merge_on_read", "copy_on_write"]


@pytest.fixture
def backend() -> RacingBackend:
    return RacingBackend("evolution")


@pytest.fixture
def lake(backend: RacingBackend) -> objcat.Lake:
    return objcat.Lake(FileIO(backend))


def create(
    lake: objcat.Lake, kind: TableType = "merge_on_read", schema: pa.Schema = SCHEMA, buckets: int = 2, **options: Any
) -> objcat.Table:
    return lake.create_table("t", schema, key=["id"], table_type=kind, index=objcat.BucketIndex(buckets), **options)


def row(key: int, **values: Any) -> dict[str, Any]:
    return {
        "id": key,
        "n": key,
        "fare": Decimal("1.50"),
        "city": "Rome",
        "place": {"x": 0.5, "name": "p"},
        "stops": [{"at": key}],
        **values,
    }


def read(table: objcat.Table, **scan: Any) -> dict[int, dict[str, Any]]:
    """The rows by key. The key is read too, whatever is selected."""
    columns = scan.pop("columns", None)
    found = table.scan(columns=columns and ["id", *columns], **scan).to_arrow()
    rows = found.to_pylist()
    assert len({one["id"] for one in rows}) == len(rows), "a key is there twice"
    return {one.pop("id"): one for one in rows}


def column(table: objcat.Table, name: str, **scan: Any) -> dict[int, Any]:
    return {key: one[name] for key, one in read(table, columns=[name], **scan).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_every_age_are_read_under_the_newest_schema(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert([row(1), row(2), row(3)])
    table.alter.add_column("tip", pa.float64(), after="fare")
    table.alter.widen_column("n", "bigint")
    table.alter.widen_column("fare", "decimal(12,2)")
    table.alter.add_column("place.z", "int", first=True)
    table.alter.widen_column("place.x", "double")
    table.alter.rename_column("place.name", "label")
    table.alter.add_column("stops.element.why", "string")
    table.alter.drop_column("city")
    place = {"z": 7, "x": 0.1, "label": "q"}
    newer = {"n": 2**40, "fare": Decimal("1234567.25"), "tip": 0.25, "place": place, "stops": [{"at": 2, "why": "y"}]}
    table.upsert([{"id": 2, **newer}, {"id": 4, **newer}])
    older = {"fare": Decimal("1.50"), "tip": None, "place": {"z": None, "x": 0.5, "label": "p"}}
    expected = {
        1: {"n": 1, **older, "stops": [{"at": 1, "why": None}]},
        2: newer,
        3: {"n": 3, **older, "stops": [{"at": 3, "why": None}]},
        4: newer,
    }
    assert table.schema.names == ["id", "n", "fare", "tip", "place", "stops"]
    assert read(table) == expected
    table.maintenance.compact()
    assert read(table) == expected
    assert read(lake.table("t")) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_older_snapshots_are_read_under_their_own_schema(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert([row(1)])
    table.alter.rename_column("city", "town")
    table.alter.add_column("city", "int")
    table.alter.widen_column("n", "bigint")
    table.upsert([{"id": 1, "n": 2**40, "town": "Oslo", "city": 5}])
    table.alter.drop_column("town")
    table.maintenance.compact()
    assert column(table, "city") == {1: 5}
    assert read(table, as_of=1) == {1: {name: value for name, value in row(1).items() if name != "id"}}
    assert table.scan(as_of=1).to_arrow().schema == SCHEMA
    assert column(table, "city", as_of=3) == {1: None}
    assert column(table, "town", as_of=5) == {1: "Oslo"}
    with pytest.raises(InvalidInput, match="no column 'town'"):
        table.scan(columns=["town"])
    with pytest.raises(InvalidPredicate, match="'town', which is not a column"):
        table.scan(where="town = 'Oslo'")


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_comes_again_has_none_of_the_old_values(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert([row(1), row(2)])
    for _ in range(3):
        table.alter.drop_column("city")
        table.alter.drop_column("place.name")
        table.alter.apply([objcat.AddColumn("city", "string"), objcat.AddColumn("place.name", "string")])
    assert column(table, "city") == {1: None, 2: None}
    assert column(table, "place") == {key: {"x": 0.5, "name": None} for key in (1, 2)}
    table.upsert([row(1, city="new", place={"x": 1.0, "name": "new"})])
    table.maintenance.compact()
    assert column(table, "city") == {1: "new", 2: None}
    assert column(table, "place") == {1: {"x": 1.0, "name": "new"}, 2: {"x": 0.5, "name": None}}


@pytest.mark.parametrize("kind", KINDS)
def test_two_columns_swap_their_names(lake: objcat.Lake, kind: TableType) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.string()), ("b", pa.string())])
    table = create(lake, kind, schema)
    table.insert([{"id": 1, "a": "A", "b": "B"}, {"id": 2, "a": "A", "b": "B"}])
    swap = [objcat.RenameColumn("a", "c"), objcat.RenameColumn("b", "a"), objcat.RenameColumn("c", "b")]
    table.alter.apply(swap)
    assert read(table) == {key: {"a": "B", "b": "A"} for key in (1, 2)}
    assert read(table, where="a = 'B'", columns=["b"]) == {key: {"b": "A"} for key in (1, 2)}
    assert read(table, where="a = 'A'") == {}
    table.upsert([{"id": 2, "a": "x", "b": "y"}])
    assert read(table, where="a <> 'B'") == {2: {"a": "x", "b": "y"}}
    table.maintenance.compact()
    table.alter.apply(swap)
    assert read(table) == {1: {"a": "A", "b": "B"}, 2: {"a": "y", "b": "x"}}


@pytest.mark.parametrize("kind", KINDS)
def test_filters_and_pruning_are_right_on_columns_that_files_lack_or_hold_in_narrower_types(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind, buckets=8)
    table.insert([row(key) for key in range(8)])
    table.alter.apply([objcat.AddColumn("tip", "bigint"), objcat.WidenColumn("n", "bigint"), objcat.WidenColumn("fare", "decimal(30,2)")])
    table.upsert([row(key, n=2**40, fare=Decimal(10) ** 20, tip=5) for key in (100, 101)])
    old, new = set(range(8)), {100, 101}
    cases = {
        "tip is null": old,
        "tip is not null": new,
        "tip = 5": new,
        "tip <> 5": set(),
        "not (tip = 5)": set(),
        "tip in (5, 6)": new,
        "n = 3": {3},
        "n > 5": {6, 7} | new,
        "n > 2147483648": new,
        "n < 2147483648": old,
        "n = 1099511627776": new,
        "fare = 1.50": old,
        "fare > 99999999": new,
        "fare < 99999999 and tip is null": old,
    }
    for after in (lambda: None, table.maintenance.compact, lambda: _checkpoint(table)):
        after()
        assert {where: set(read(table, where=where)) for where in cases} == cases
        assert {where: set(read(lake.table("t"), where=where)) for where in cases} == cases
    groups = table.refresh().file_groups
    assert len(groups(table._context.manifests, where=table.scan(where="n > 2147483648").plan.where.to_pruning())) < 8  # type: ignore[union-attr]


def _checkpoint(table: objcat.Table) -> None:
    """Commits until the table stands on a newer checkpoint, so that bounds of all ages are in one manifest."""
    for number in range(40):
        table.set_properties({"n": str(number)})


def test_deletes_and_late_rows_are_merged_across_a_wider_ordering_column(lake: objcat.Lake) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("version", pa.int32()), ("value", pa.string())])
    table = create(lake, schema=schema, ordering="version")
    table.insert([{"id": key, "version": 10, "value": "old"} for key in range(6)])
    table.delete([{"id": 0, "version": 20}])
    table.alter.apply([objcat.WidenColumn("version", "bigint"), objcat.RenameColumn("version", "v"), objcat.AddColumn("more", "int")])
    table.upsert(
        [{"id": 0, "v": 15, "value": "late"}, {"id": 1, "v": 2**40, "value": "new", "more": 1}, {"id": 2, "v": 9, "value": "late"}]
    )
    expected = dict.fromkeys((2, 3, 4, 5), "old") | {1: "new"}
    assert column(table, "value") == expected
    table.maintenance.compact()
    table.upsert([{"id": 0, "v": 19, "value": "late"}])
    assert column(table, "value") == expected
    assert column(table, "more") == dict.fromkeys(expected) | {1: 1}


@pytest.mark.parametrize("kind", KINDS)
def test_key_columns_are_renamed_and_rows_are_found_by_the_new_name(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert([row(1), row(2)])
    table.alter.rename_column("id", "trip")
    table.upsert([{"trip": 2, "city": "Oslo"}])
    table.delete([{"trip": 1}])
    assert table.scan(columns=["trip", "city"]).to_arrow().to_pylist() == [{"trip": 2, "city": "Oslo"}]


def test_a_restore_brings_the_schema_back_and_no_id_is_given_twice(lake: objcat.Lake) -> None:
    table = create(lake)
    table.insert([row(1)])
    table.alter.add_column("tip", "int")
    added = table.spec.table_schema.column("tip")
    table.upsert([row(2, tip=5)])
    table.restore(to=1)
    assert table.schema == SCHEMA
    assert set(read(table)) == {1}
    table.alter.add_column("tip", "string")
    again = table.spec.table_schema.column("tip")
    assert again.id > added.id
    assert again.physical != added.physical
    assert column(table, "tip") == {1: None}
    table.restore(to=3)
    assert column(table, "tip") == {1: None, 2: 5}
    table.alter.add_column("last", "int")
    assert table.spec.table_schema.column("last").id > again.id


def test_each_change_is_one_commit_and_what_is_refused_changes_nothing(lake: objcat.Lake) -> None:
    table = create(lake)
    for refused in (
        lambda: table.alter.drop_column("id"),
        lambda: table.alter.widen_column("city", "binary"),
        lambda: table.alter.apply([objcat.AddColumn("new", "int"), objcat.DropColumn("nope")]),
        lambda: table.alter.apply(["drop city"]),  # type: ignore[list-item]
        lambda: table.alter.apply(objcat.DropColumn("city")),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInput):
            refused()
    assert table.refresh().slot == 0
    table.alter.apply([])
    table.alter.widen_column("n", "int")
    assert table.refresh().slot == 0, "what changes nothing is no commit"
    table.alter.apply([objcat.AddColumn("new", "int"), objcat.DropColumn("city")])
    entry = table.inspect.history()[-1]
    assert (entry.slot, entry.action) == (1, Action.SCHEMA)
    schema = entry.footprint[table.id].schema
    assert schema is not None
    assert set(schema.columns) == {4, table.spec.table_schema.column("new").id}
    assert not schema.needs_data


def test_two_that_change_the_schema_at_once_both_get_what_they_asked_for_or_are_told(lake: objcat.Lake, backend: RacingBackend) -> None:
    table, other = create(lake), lake.table("t")
    backend.races = [lambda: other.alter.add_column("theirs", "int")]
    table.alter.add_column("mine", "int")
    assert table.schema.names[-2:] == ["theirs", "mine"]
    ids = [one.id for one in table.spec.table_schema.columns]
    assert len(set(ids)) == len(ids)
    backend.races = [lambda: other.alter.add_column("same", "int")]
    with pytest.raises(InvalidSchema, match="There is a column 'same' already"):
        table.alter.add_column("same", "int")
    backend.races = [lambda: other.set_properties({"a": "b"})]
    table.alter.drop_column("same")
    assert table.properties == {"a": "b"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_planned_before_a_change_writes_what_it_meant(lake: objcat.Lake, backend: RacingBackend, kind: TableType) -> None:
    table, other = create(lake, kind), lake.table("t")
    table.insert([row(1), row(2), row(3)])
    swap = [objcat.RenameColumn("city", "town"), objcat.AddColumn("city", "string"), objcat.WidenColumn("n", "bigint")]
    backend.races = [lambda: other.alter.apply(swap)]
    assert table.upsert([row(1, city="mine"), row(4, city="mine")]).attempts == 1
    assert column(table, "town") == {1: "mine", 2: "Rome", 3: "Rome", 4: "mine"}
    assert column(table, "city") == dict.fromkeys(range(1, 5))
    assert column(table, "n") == {key: key for key in range(1, 5)}


def test_a_compaction_that_planned_before_a_change_loses_nothing(lake: objcat.Lake, backend: RacingBackend) -> None:
    table, other = create(lake), lake.table("t")
    table.insert([row(1), row(2)])
    table.upsert([row(2, city="Oslo")])

    def race() -> None:
        other.alter.apply([objcat.AddColumn("tip", "int"), objcat.WidenColumn("n", "bigint")])
        other.upsert([row(1, tip=5, n=2**40)])

    backend.races = [race]
    table.maintenance.compact()
    assert column(table, "tip") == {1: 5, 2: None}
    assert column(table, "n") == {1: 2**40, 2: 2}
    assert column(table, "city") == {1: "Rome", 2: "Oslo"}


# ---- schema modes ------------------------------------------------------------------------------------------------


def test_a_strict_write_is_refused_whatever_it_brings_and_nothing_is_written(lake: objcat.Lake) -> None:
    table = create(lake)
    before = {key for key in lake.fileio.list_keys() if not key.endswith("head.json")}
    for batch, says in (
        ([row(1, tip=5)], "the column 'tip', which the table does not"),
        ([row(1, place={"z": 5})], "the field 'place.z', which the table does not"),
        ([row(1, n=2**40)], "does not cast without loss"),
    ):
        with pytest.raises(InvalidBatch, match=says):
            table.upsert(batch)
    for mode in ("widne", 5, "STRICT"):
        with pytest.raises(InvalidInput, match="schema_mode="):
            table.upsert([row(1)], schema_mode=mode)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the property schema_mode"):
        table.set_properties({"schema_mode": "ad"})
    assert {key for key in lake.fileio.list_keys() if not key.endswith("head.json")} == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", ["upsert", "insert"])
def test_add_and_widen_land_in_the_commit_of_the_rows(lake: objcat.Lake, kind: TableType, operation: str) -> None:
    table = create(lake, kind)
    table.insert([row(1), row(2)])
    before = table.spec.table_schema
    added = row(3, tip=0.5, place={"x": 1.0, "z": "new"}, stops=[{"at": 1, "why": {"code": 7}}])
    del added["n"]
    result = getattr(table, operation)([added], schema_mode="add")
    assert (result.slot, result.attempts) == (2, 1)
    entry = table.inspect.history()[-1]
    assert entry.action in (Action.COMMIT, Action.DELTA_COMMIT)
    schema = entry.footprint[table.id].schema
    assert schema is not None
    assert min(schema.columns) > before.last_id
    assert table.schema.names == [*SCHEMA.names, "tip"]
    assert column(table, "tip") == {1: None, 2: None, 3: 0.5}
    assert column(table, "place")[1] == {"x": 0.5, "name": "p", "z": None}
    assert column(table, "place")[3] == {"x": 1.0, "name": None, "z": "new"}
    assert column(table, "stops") == {1: [{"at": 1, "why": None}], 2: [{"at": 2, "why": None}], 3: [{"at": 1, "why": {"code": 7}}]}
    with pytest.raises(InvalidBatch, match="does not cast without loss"):
        getattr(table, operation)([row(4, n=2**40)], schema_mode="add")
    getattr(table, operation)([row(4, n=2**40, fare=Decimal("123456.78"), more=True)], schema_mode="widen")
    assert table.schema.field("n").type == pa.int64()
    assert column(table, "n") == {1: 1, 2: 2, 3: None, 4: 2**40}
    assert column(table, "more") == {1: None, 2: None, 3: None, 4: True}
    assert table.scan(as_of=1).to_arrow().schema == SCHEMA
    table.maintenance.compact()
    assert column(table, "n") == {1: 1, 2: 2, 3: None, 4: 2**40}
    assert read(lake.table("t")) == read(table)


def test_the_property_says_the_mode_of_writes_that_do_not(lake: objcat.Lake) -> None:
    table = create(lake, properties={"schema_mode": "widen"})
    table.upsert([row(1, tip=5, n=2**40)])
    assert column(table, "tip") == {1: 5}
    with pytest.raises(InvalidBatch, match="'more', which the table does not"):
        table.upsert([row(1, more=5)], schema_mode="strict")
    table.delete([{"id": 1, "whatever": 5}])
    assert "whatever" not in table.schema.names
    table.set_properties(unset=["schema_mode"])
    with pytest.raises(InvalidBatch, match="'more', which the table does not"):
        table.upsert([row(1, more=5)])


def test_a_batch_that_fits_newer_columns_than_the_handle_has_seen_is_written(lake: objcat.Lake) -> None:
    table, other = create(lake), lake.table("t")
    other.alter.apply([objcat.AddColumn("tip", "int"), objcat.WidenColumn("n", "bigint")])
    table.upsert([row(1, tip=5, n=2**40)])
    assert column(table, "tip") == {1: 5}
    other.alter.rename_column("tip", "extra")
    table.upsert([row(2, extra=6)])
    assert column(table, "extra") == {1: 5, 2: 6}


@pytest.mark.parametrize("name", ["id", "city", "n"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [objcat.BucketIndex(2), objcat.SimpleIndex(), objcat.RecordIndex(2)], ids=str)
def test_a_batch_under_names_that_are_gone_since_is_refused_with_a_sentence(
    lake: objcat.Lake, index: Any, kind: TableType, name: str
) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], table_type=kind, index=index, partition_by=["city"], key_scope="partition")
    table.insert([row(1)])
    lake.table("t").alter.rename_column(name, "other")
    # Nobody has told this handle; a write that reads nothing takes the names as it knows them.
    with contextlib.suppress(InvalidBatch):
        table.upsert([row(1), row(2)])
        assert not table.spec.is_located
    with pytest.raises(InvalidBatch, match=f"'{name}'|'other'"):
        table.upsert([row(1), row(2)])


RACES = {
    "the same column": (lambda other: other.upsert([row(2, tip=7)], schema_mode="add"), {1: 5, 2: 7}),
    "the same column by hand": (lambda other: other.alter.add_column("tip", "bigint"), {1: 5}),
    "another column": (lambda other: other.upsert([row(2, extra=7)], schema_mode="add"), {1: 5, 2: None}),
    "a narrower column of that name": (lambda other: other.alter.add_column("tip", "smallint"), {1: 5}),
    "a property": (lambda other: other.set_properties({"a": "b"}), {1: 5}),
    "rows": (lambda other: other.upsert([row(1, city="Oslo"), row(2)]), {1: 5, 2: None}),
    "rows in a column of that name that came and went": (
        lambda other: (other.upsert([row(2, tip="x")], schema_mode="add"), other.alter.drop_column("tip")),
        {1: 5, 2: None},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("race", RACES)
def test_a_write_that_adds_a_column_while_others_do_something(
    lake: objcat.Lake, backend: RacingBackend, kind: TableType, race: str
) -> None:
    table, other = create(lake, kind), lake.table("t")
    act, expected = RACES[race]
    backend.races = [lambda: act(other)]
    table.upsert([row(1, tip=5)], schema_mode="add")
    names = table.schema.names
    assert names.count("tip") == 1
    assert ("extra" in names) == (race == "another column")
    ids = [one.id for one in table.spec.table_schema.columns]
    physical = [one.physical for one in table.spec.table_schema.columns]
    assert len(set(ids)) == len(ids) == len(set(physical))
    assert column(table, "tip") == expected
    assert column(table, "city")[1] == "Rome"
    assert table.properties == ({"a": "b"} if race == "a property" else {})
    for one in table.inspect.history():
        assert set(table._context.fileio.list_keys(f"data/{one.txn}/")) <= set(files_named_by(one))
    table.maintenance.compact()
    assert column(table, "tip") == expected


def test_one_that_adds_what_another_added_with_a_type_that_does_not_fit_is_told_so(lake: objcat.Lake, backend: RacingBackend) -> None:
    table, other = create(lake), lake.table("t")
    backend.races = [lambda: other.alter.add_column("tip", "date")]
    before = set(lake.fileio.list_keys())
    with pytest.raises(InvalidBatch, match="'tip' is int64 in the batch and date"):
        table.upsert([row(1, tip=5)], schema_mode="add")
    assert not [key for key in set(lake.fileio.list_keys()) - before if "/data/" in key or "/intents/" in key]
    assert read(lake.table("t")) == {}


def test_a_redo_after_names_were_swapped_writes_all_rows_under_one_meaning(lake: objcat.Lake, backend: RacingBackend) -> None:
    """The batch of a redone bucket would else be read by other names than those of the rest."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.string()), ("b", pa.string())])
    table, other = create(lake, "copy_on_write", schema, buckets=4), lake.table("t")
    table.insert([{"id": key, "a": "A", "b": "B"} for key in range(16)])

    def race() -> None:
        other.alter.apply([objcat.RenameColumn("a", "c"), objcat.RenameColumn("b", "a"), objcat.RenameColumn("c", "b")])
        other.upsert([{"id": 0, "a": "x", "b": "x"}])

    backend.races = [race]
    result = table.upsert([{"id": key, "a": "new a", "b": "new b"} for key in range(16)])
    assert result.attempts == 2
    assert {(one["a"], one["b"]) for one in read(table).values()} == {("new a", "new b")}


def test_a_redo_of_a_few_buckets_keeps_properties_that_were_set_meanwhile(lake: objcat.Lake, backend: RacingBackend) -> None:
    table, other = create(lake, "copy_on_write", buckets=4), lake.table("t")
    table.insert([row(key) for key in range(16)])

    def race() -> None:
        other.set_properties({"a": "b"})
        other.upsert([row(3, city="Oslo")])

    backend.races = [race]
    result = table.upsert([row(key, city="Bonn") for key in range(16)])
    assert result.attempts == 2
    assert table.properties == {"a": "b"}
    assert table.inspect.history()[-1].footprint[table.id].schema is None
    assert set(column(table, "city").values()) == {"Bonn"}


def test_a_restore_beside_a_write_that_adds_a_column_stops_it(lake: objcat.Lake, backend: RacingBackend) -> None:
    table, other = create(lake), lake.table("t")
    table.insert([row(1)])
    backend.races = [lambda: other.restore(to=0)]
    with pytest.raises(CommitConflict):
        table.upsert([row(2, tip=5)], schema_mode="add")
    assert table.schema == SCHEMA
    assert read(table) == {}


def test_a_transaction_adds_columns_to_its_tables_in_one_commit(lake: objcat.Lake) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int32())])
    one, two = (lake.create_table(name, schema, key=["id"], shared_log="d") for name in ("one", "two"))
    with lake.transaction() as tx:
        tx["one"].upsert([{"id": 1, "v": 1, "x": "a"}], schema_mode="add")
        tx["one"].upsert([{"id": 2, "v": 2**40, "y": 1.5}], schema_mode="widen")
        tx["one"].upsert([{"id": 3}])
        tx["two"].insert([{"id": 1, "z": True}], schema_mode="add")
        with pytest.raises(InvalidBatch, match="'q', which the table does not"):
            tx["two"].upsert([{"id": 1, "q": True}])
    one.refresh()
    assert read(one) == {1: {"v": 1, "x": "a", "y": None}, 2: {"v": 2**40, "x": None, "y": 1.5}, 3: {"v": None, "x": None, "y": None}}
    assert read(two) == {1: {"v": None, "z": True}}
    assert one.refresh().slot == two.refresh().slot == 2


# ---- other reads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_changes_over_a_change_of_the_schema_are_under_the_newest_one(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert([row(1), row(2), row(3)])
    table.alter.apply(
        [
            objcat.RenameColumn("place.name", "label"),
            objcat.WidenColumn("n", "bigint"),
            objcat.DropColumn("city"),
            objcat.AddColumn("city", "int"),
            objcat.RenameColumn("stops.element.at", "when"),
        ]
    )
    table.upsert([{"id": 2, "n": 2**40, "city": 5, "place": {"x": 1.0, "label": "q"}}])
    table.delete([{"id": 3}])
    found = table.changes(since=1, columns=["id", "n", "city", "place"]).to_arrow().to_pylist()
    told = {(one["_change_type"], one["id"]): one for one in found}
    assert set(told) == {("update_before", 2), ("update_after", 2), ("delete", 3)}
    assert told["update_before", 2]["place"] == {"x": 0.5, "label": "p"}
    assert (told["update_before", 2]["n"], told["update_before", 2]["city"]) == (2, None)
    assert (told["update_after", 2]["n"], told["update_after", 2]["city"]) == (2**40, 5)
    latest = {one["id"]: one for one in table.incremental(since=-1, columns=["id", "n", "place", "stops"]).to_arrow().to_pylist()}
    assert latest[1]["place"] == {"x": 0.5, "label": "p"}
    assert latest[1]["stops"] == [{"when": 1}]
    assert latest[2]["n"] == 2**40


@pytest.mark.parametrize("kind", KINDS)
def test_counts_and_extremes_by_metadata_are_right_for_columns_that_some_files_lack(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert([row(key) for key in range(8)])
    table.alter.apply(
        [objcat.AddColumn("tip", "int"), objcat.WidenColumn("n", "bigint"), objcat.DropColumn("city"), objcat.AddColumn("city", "int")]
    )
    assert table.scan().min("tip") is None
    assert table.scan().max("n") == 7
    table.upsert([row(3, n=2**40, tip=5, city=9)])
    for _ in range(2):
        assert table.scan(where="tip is null").count() == 7
        assert table.scan(where="city > 5").count() == 1
        assert (table.scan().min("tip"), table.scan().max("tip"), table.scan().max("city")) == (5, 5, 9)
        assert (table.scan().min("n"), table.scan().max("n")) == (0, 2**40)
        table.maintenance.compact()


# ---- other tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_a_key_keeps_its_rows_while_files_are_filled_up(lake: objcat.Lake, kind: TableType) -> None:
    schema = pa.schema([("line", pa.int32()), ("text", pa.string())])
    table = lake.create_table("t", schema, key=None, table_type=kind)
    table.insert([{"line": 1, "text": "a"}, {"line": 1, "text": "a"}])
    table.alter.apply([objcat.RenameColumn("text", "old"), objcat.AddColumn("text", "int"), objcat.WidenColumn("line", "bigint")])
    table.insert([{"line": 2**40, "text": 5}])
    table.insert([{"line": 3, "more": {"x": 1.5}}], schema_mode="add")
    table.bulk_insert([{"line": 4, "more": {"x": 2.5, "y": "z"}}], schema_mode="add")
    old = {"line": 1, "old": "a", "text": None, "more": None}
    expected = [
        old,
        old,
        {"line": 3, "old": None, "text": None, "more": {"x": 1.5, "y": None}},
        {"line": 4, "old": None, "text": None, "more": {"x": 2.5, "y": "z"}},
        {"line": 2**40, "old": None, "text": 5, "more": None},
    ]
    for _ in range(2):
        assert sorted(table.scan().to_arrow().to_pylist(), key=lambda one: one["line"]) == expected
        table.maintenance.compact()


@pytest.mark.parametrize("kind", KINDS)
def test_the_column_that_partitions_are_made_of_is_renamed_and_rows_stay_in_theirs(lake: objcat.Lake, kind: TableType) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("n", pa.int32())])
    table = create(lake, kind, schema, partition_by=["city"], key_scope="partition")
    table.insert([{"id": key, "city": city, "n": key} for key in range(4) for city in ("Rome", "Oslo")])
    table.alter.apply([objcat.RenameColumn("city", "town"), objcat.AddColumn("city", "string"), objcat.WidenColumn("n", "bigint")])
    table.upsert([{"id": 1, "town": "Rome", "city": "new", "n": 2**40}])
    table.upsert([{"id": 9, "town": "Bonn", "extra": 1}], schema_mode="add")
    assert set(read(table, where="town = 'Rome'")) == set(range(4))
    assert read(table, where="town = 'Rome' and city = 'new'", columns=["n"]) == {1: {"n": 2**40}}
    assert set(read(table, where="extra = 1")) == {9}
    assert {group_id.partition for group_id in table.refresh().live_group_ids(table._context.manifests)} == {
        "city=Rome",
        "city=Oslo",
        "city=Bonn",
    }
    with pytest.raises(InvalidSchema, match="partitions are made of"):
        table.alter.drop_column("town")


def test_a_stream_of_batches_adds_columns_as_a_whole_batch_does(lake: objcat.Lake) -> None:
    table = create(lake)
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("tip", pa.float64())])
    batches = [pa.RecordBatch.from_pylist([{"id": key, "n": 2**40 + key, "tip": key / 2}], schema) for key in range(5)]
    table.upsert(pa.RecordBatchReader.from_batches(schema, batches), schema_mode="widen")
    assert column(table, "tip") == {key: key / 2 for key in range(5)}
    assert column(table, "n") == {key: 2**40 + key for key in range(5)}
