"""Columns that allow nulls from some commit on: older files and snapshots, both kinds of table, and writers of before."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidSchema, NullKey
from objcat.table.context import TableContext
from objcat.timeline.entry import Action

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
        pa.field("city", pa.string(), nullable=False),
        pa.field("place", pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("name", pa.string())]), nullable=False),
        pa.field("stops", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("tags", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)), nullable=False),
    ]
)
PATHS = ["city", "place", "place.x", "stops", "stops.element", "tags", "tags.value"]
FULL: dict[str, Any] = {"at": 1, "city": "Rome", "place": {"x": 0.5, "name": None}, "stops": [1], "tags": [("a", 1)]}
NULLS: dict[str, Any] = {"at": 2, "city": None, "place": None, "stops": None, "tags": None}
INNER: dict[str, Any] = {"at": 2, "city": "", "place": {"x": None, "name": "n"}, "stops": [None], "tags": [("a", None)]}


def batch(rows: dict[int, dict[str, Any]]) -> pa.Table:
    free = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.int64()),
            ("city", pa.string()),
            ("place", pa.struct([("x", pa.float64()), ("name", pa.string())])),
            ("stops", pa.list_(pa.int32())),
            ("tags", pa.map_(pa.string(), pa.int32())),
        ]
    )
    return pa.Table.from_pylist([{"id": key, **values} for key, values in rows.items()], schema=free)


def read(table: objcat.Table, **scan: Any) -> dict[int, dict[str, Any]]:
    return {one.pop("id"): one for one in table.scan(**scan).to_arrow().to_pylist()}


def created(kind: TableType, **settings: Any) -> objcat.Table:
    lake = objcat.Lake(FileIO(MemoryBackend("nulls")))
    table = lake.create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(1), **settings)
    table.insert(batch(dict.fromkeys(range(4), FULL)))
    return table


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_rows_with_nulls_lie_beside_files_of_before(kind: TableType) -> None:
    table = created(kind)
    for rows in ({1: NULLS}, {1: INNER}):
        with pytest.raises(InvalidBatch, match="holds a null, but the table does not allow one"):
            table.upsert(batch(rows))
    before = table.snapshot.slot
    table.alter.apply([objcat.DropNotNull(path) for path in PATHS])
    assert all(table.schema.field(name).nullable for name in SCHEMA.names[2:])
    table.upsert(batch({1: NULLS, 2: INNER, 5: NULLS}))
    expected = {0: FULL, 1: NULLS, 2: INNER, 3: FULL, 5: NULLS}
    assert read(table) == expected
    assert sorted(read(table, where="city is null")) == sorted(read(table, where="place is null")) == [1, 5]
    assert table.scan(where="city is null").count() == 2
    assert not table.scan(as_of=before).schema.field("city").nullable and read(table, as_of=before) == dict.fromkeys(range(4), FULL)
    kinds = table.changes(since=before).to_arrow().to_pylist()
    assert [one["city"] for one in kinds if one["id"] == 5] == [None]
    if kind == "merge_on_read":
        table.maintenance.compact()
        assert read(table) == expected
    table.upsert(batch({0: INNER}))
    assert read(table) == {**expected, 0: INNER}
    assert [entry.slot for entry in table.inspect.history() if entry.action is Action.SCHEMA] == [before + 1]


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_changes_tell_the_nulls_that_a_restore_took_away(kind: TableType) -> None:
    table = created(kind)
    table.alter.apply([objcat.DropNotNull(path) for path in PATHS])
    table.upsert(batch({1: NULLS, 2: INNER}))
    table.restore(to=1)
    assert not any(table.schema.field(name).nullable for name in SCHEMA.names)
    feed = table.changes(since=2)
    told = [
        (one["_change_type"], one["_commit_slot"], one.pop("id"), {name: one[name] for name in FULL}) for one in feed.to_arrow().to_pylist()
    ]
    assert sorted(told, key=lambda one: (one[2], one[1], one[0] == "update_after")) == [
        change
        for key, row in ((1, NULLS), (2, INNER))
        for change in (
            ("update_before", 3, key, FULL),
            ("update_after", 3, key, row),
            ("update_before", 4, key, row),
            ("update_after", 4, key, FULL),
        )
    ]
    assert all(feed.schema.field(name).nullable for name in SCHEMA.names[2:])
    back = table.incremental(since=3)
    assert {one.pop("id"): one for one in back.to_arrow().to_pylist()} == {1: FULL, 2: FULL}
    assert back.schema.equals(table.schema)


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_a_writer_of_before_goes_on_and_learns_it(kind: TableType) -> None:
    table = created(kind)
    other = objcat.Table(TableContext(table.name, table._context.timeline, table.id, table._context.timeline.open()))
    table.alter.drop_not_null("city")
    table.upsert(batch({1: {**FULL, "city": None}}))
    other.upsert(batch({2: {**FULL, "city": "Oslo"}}))
    other.upsert(batch({3: {**FULL, "city": None}}))
    assert {key: row["city"] for key, row in read(other).items()} == {0: "Rome", 1: None, 2: "Oslo", 3: None}


def test_what_is_never_null_stays_so() -> None:
    table = created("merge_on_read", ordering="at")
    slot = table.snapshot.slot
    for path, says in {
        "id": "'id' is a key column, which is never null",
        "at": "'at' is the ordering column",
        "tags.key": "a map's key",
    }.items():
        with pytest.raises(InvalidSchema, match=says):
            table.alter.drop_not_null(path)
    assert table.refresh().slot == slot
    table.alter.drop_not_null("city")
    with pytest.raises(NullKey):
        table.upsert(batch({1: FULL}).set_column(0, "id", pa.array([None], pa.int64())))
