"""Every type and every change of a schema: the features of each version, its schema, and its rows, as deltalake and polars read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from fileio.registry import open_store
from objcat.metadata.schema_evolution import (
    AddColumn,
    ColumnChange,
    DropColumn,
    DropNotNull,
    MoveColumn,
    RenameColumn,
    WidenColumn,
    evolve,
)
from objcat.metadata.table_spec import TableSpec
from objcat.mirror.delta.features import DeltaSettings, settings_of
from tests.mirror.delta.synthetic import History, read_by_deltalake, rows_of, spec_of, typed_row

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("half", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", "UTC")),
        ("money", pa.decimal128(10, 2)),
        ("place", pa.struct([("x", pa.int32()), ("y z", pa.string())])),
        ("list", pa.list_(pa.struct([("n", pa.int32())]))),
        ("map", pa.map_(pa.string(), pa.int32())),
    ]
)


def row(number: int, **more: Any) -> dict[str, Any]:
    """Its list has structs."""
    return typed_row(number, **{"list": [{"n": number}, None], **more})


def protocol_of(table: History, slot: int) -> tuple[set[str], set[str]]:
    protocol = deltalake.DeltaTable(table.url, version=slot).protocol()
    assert protocol.min_writer_version == 7
    assert protocol.min_reader_version == (3 if protocol.reader_features else 1)
    return set(protocol.reader_features or ()), set(protocol.writer_features or ())


def test_features_join_when_the_table_needs_them_and_stay(tmp_path: Path) -> None:
    table = History(open_store(tmp_path.as_uri()), spec=spec_of(SCHEMA))
    mirror = table.mirror()
    mirror.write(table.begin())
    always = {"objcatMirror", "inCommitTimestamp", "invariants"}
    assert protocol_of(table, 0) == (set(), always)
    first = table.file([row(number) for number in range(10)])
    mirror.write(table.add(first))
    assert protocol_of(table, 1) == (set(), always)
    mirror.write(table.mask({first.file.path: {3}}))
    assert protocol_of(table, 2) == ({"deletionVectors"}, {*always, "deletionVectors"})
    changes: list[ColumnChange] = [RenameColumn("text", "the text"), DropColumn("flag"), AddColumn("flag", pa.string()), DropNotNull("id")]
    changes += [RenameColumn("place.x", "X"), RenameColumn("list.element.n", "N"), MoveColumn("day", first=True)]
    for number, change in enumerate(changes):
        table.spec = evolve(table.spec, [change])
        mirror.write(table.nothing())
        assert protocol_of(table, 3 + number) == ({"deletionVectors", "columnMapping"}, {*always, "deletionVectors", "columnMapping"})
    other = {"flag": "yes", "the text": "new", "place": {"X": 5}, "list": [{"N": 1}]}
    mirror.write(table.add(table.file([row(number, **other) for number in range(10, 20)], masked={4})))
    mirror.write(table.remove(first.file.path))
    for slot, rows in table.rows_at.items():
        assert read_by_deltalake(table.url, slot) == rows
    # Another process finds the same, and does not write the settings again.
    table.mirror().write(table.nothing())
    assert "metaData" not in (tmp_path / f"_delta_log/{table.slot:020d}.json").read_text()
    schema = json.loads(deltalake.DeltaTable(table.url).schema().to_json())
    assert [field["name"] for field in schema["fields"]] == table.spec.table_schema.names


def test_polars_reads_masked_rows_of_a_table_that_never_changed_its_schema(tmp_path: Path) -> None:
    table = History(open_store(tmp_path.as_uri()), spec=spec_of(SCHEMA))
    mirror = table.mirror()
    mirror.write(table.begin())
    stored = table.file([row(number) for number in range(10)])
    mirror.write(table.add(stored, table.file([row(20)], name="part=a%20b")))
    mirror.write(table.mask({stored.file.path: {0, 9}}))
    for slot, rows in table.rows_at.items():
        if slot > 0:
            found = pl.scan_delta(table.url, version=slot).collect().to_arrow().select(table.spec.table_schema.names)
            assert rows_of(found.cast(table.spec.table_schema.to_arrow())) == rows


def settings(spec: TableSpec, before: DeltaSettings | None = None) -> DeltaSettings:
    return settings_of(spec, table="t", name="orders", masked=(), created_ms=5, before=before)


def fields_of(found: DeltaSettings) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in json.loads(found.metadata.schema_string)["fields"]}


def test_widened_types_are_said_with_all_that_they_were() -> None:
    spec = spec_of(SCHEMA)
    found = settings(spec)
    steps: list[list[ColumnChange]] = [
        [WidenColumn("tiny", "int"), WidenColumn("half", "double"), WidenColumn("money", "decimal(20,2)")],
        [WidenColumn("tiny", "decimal(12,2)"), WidenColumn("small", "double"), WidenColumn("number", "bigint")],
        [WidenColumn("place.x", "bigint"), WidenColumn("list.element.n", "bigint"), WidenColumn("map.value", "double")],
        [RenameColumn("tiny", "huge"), RenameColumn("place.x", "X")],
    ]
    for changes in steps:
        spec = evolve(spec, changes)
        found = settings(spec, found)
        assert "typeWidening" in (found.protocol.reader_features or ())
        assert found.metadata.configuration["delta.enableTypeWidening"] == "true"
    fields = fields_of(found)

    def changed(field: dict[str, Any]) -> list[dict[str, str]]:
        changes: list[dict[str, str]] = field["metadata"]["delta.typeChanges"]
        return changes

    assert changed(fields["huge"]) == [{"fromType": "byte", "toType": "integer"}, {"fromType": "integer", "toType": "decimal(12,2)"}]
    assert changed(fields["half"]) == [{"fromType": "float", "toType": "double"}]
    assert changed(fields["money"]) == [{"fromType": "decimal(10,2)", "toType": "decimal(20,2)"}]
    assert changed(fields["small"]) == [{"fromType": "short", "toType": "double"}]
    assert changed(fields["map"]) == [{"fromType": "integer", "toType": "double", "fieldPath": "value"}]
    assert changed(fields["place"]["type"]["fields"][0]) == [{"fromType": "integer", "toType": "long"}]
    assert changed(fields["list"]["type"]["elementType"]["fields"][0]) == [{"fromType": "integer", "toType": "long"}]
    assert "delta.typeChanges" not in fields["id"]["metadata"]


def test_a_type_that_is_narrow_again_after_a_restore_loses_its_changes() -> None:
    narrow = spec_of(SCHEMA)
    middle = evolve(narrow, [WidenColumn("tiny", "int"), WidenColumn("number", "bigint")])
    wide = evolve(middle, [WidenColumn("tiny", "bigint")])
    found = settings(wide, settings(middle, settings(narrow)))
    again = settings(middle, found)
    assert fields_of(again)["tiny"]["metadata"]["delta.typeChanges"] == [{"fromType": "byte", "toType": "integer"}]
    back = settings(narrow, again)
    assert fields_of(back)["tiny"] == fields_of(settings(narrow))["tiny"]
    assert "typeWidening" in (back.protocol.reader_features or ())


def test_settings_that_did_not_change_are_equal_and_keep_their_time() -> None:
    spec = spec_of(SCHEMA)
    found = settings_of(spec, table="t", name="orders", masked=["data/a"], created_ms=5, before=None)
    assert settings_of(spec, table="t", name="renamed", masked=(), created_ms=9, before=found) == found


@pytest.mark.parametrize(
    ("schema", "feature"),
    [
        (pa.schema([("a", pa.struct([("b", pa.list_(pa.timestamp("us")))]))]), "timestampNtz"),
        (pa.schema([("a_1", pa.int32())]), "columnMapping"),
        (pa.schema([("a", pa.list_(pa.struct([("b_7", pa.int32())])))]), "columnMapping"),
    ],
)
def test_a_feature_is_seen_in_nested_fields_too(schema: pa.Schema, feature: str) -> None:
    listed = settings(spec_of(schema)).protocol.writer_features or ()
    assert set(listed) - {"objcatMirror", "inCommitTimestamp"} == {feature}
