"""Batches of rows and deletes, in one commit: what a change stream hands out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidPredicate, NullKey

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False), pa.field("version", pa.int64())]
)
FINE = pa.array([1], pa.timestamp("ns", "UTC"))
"""A time between two microseconds."""
KINDS = ("merge_on_read", "copy_on_write")


def make(tmp_path: Path, kind: TableType, **settings: Any) -> objcat.Table:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(4), **settings)
    table.insert([{"id": i, "name": f"n{i}", "version": 1} for i in range(10)])
    return table


def rows(table: objcat.Table) -> dict[int, str]:
    found = table.scan().to_arrow()
    keys = found["id"].to_pylist()
    assert len(keys) == len(set(keys))
    return dict(zip(keys, found["name"].to_pylist(), strict=True))


def change(key: int, op: str, name: str | None = None, version: int = 2) -> dict[str, Any]:
    return {"op": op, "id": key, "name": name, "version": version}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_deletes_are_one_commit(tmp_path: Path, kind: TableType) -> None:
    table = make(tmp_path, kind)
    batch = [change(1, "u", "one"), change(2, "d"), change(11, "c", "eleven"), change(3, "d"), change(99, "d")]
    result = table.upsert(batch, delete_when="op = 'd'")
    assert rows(table) == {i: f"n{i}" for i in range(10) if i not in (2, 3)} | {1: "one", 11: "eleven"}
    assert result.slot == 2 and result.rows == 5
    expected = (1, 1, 2) if kind == "copy_on_write" else (None, None, None)
    assert (result.inserted, result.updated, result.deleted) == expected
    table.maintenance.compact()
    assert len(rows(table)) == 9


def test_what_is_a_delete_may_stand_within_a_struct(tmp_path: Path) -> None:
    table = make(tmp_path, "merge_on_read")
    batch = [{"meta": {"op": op}, "id": key, "name": "new", "version": 2} for key, op in ((1, "u"), (2, "d"), (3, None))]
    table.upsert(batch, delete_when="meta.op = 'd'")
    assert rows(table) == {i: f"n{i}" for i in range(10) if i != 2} | {1: "new", 3: "new"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_later_of_one_key_counts(tmp_path: Path, kind: TableType) -> None:
    table = make(tmp_path, kind)
    table.upsert(
        [change(1, "u", "a"), change(1, "d"), change(2, "d"), change(2, "c", "again"), change(3, "u", "x"), change(3, "u", "y")],
        delete_when="op = 'd'",
    )
    assert {key: name for key, name in rows(table).items() if key < 4} == {0: "n0", 2: "again", 3: "y"}


@pytest.mark.parametrize("kind", KINDS)
def test_deletes_obey_event_time(tmp_path: Path, kind: TableType) -> None:
    table = make(tmp_path, kind, ordering="version")
    table.upsert([change(1, "u", "new", 9), change(1, "d", version=5), change(2, "d", version=9)], delete_when="op = 'd'")
    table.upsert([change(2, "u", "late", 8), change(1, "d", version=8)], delete_when="op = 'd'")
    found = rows(table)
    assert found[1] == "new" and 2 not in found
    table.maintenance.compact()
    table.upsert([change(2, "u", "late again", 8)], delete_when="op = 'd'")
    assert 2 not in rows(table)


def test_null_is_no_delete_and_the_column_may_be_the_tables(tmp_path: Path) -> None:
    table = make(tmp_path, "merge_on_read")
    table.upsert([change(1, "u", "one") | {"op": None}, change(2, "d")], delete_when="op = 'd'")
    assert rows(table)[1] == "one" and 2 not in rows(table)
    table.upsert([{"id": 4, "name": "x", "version": -1}, {"id": 5, "name": "y", "version": 3}], delete_when="version < 0")
    assert 4 not in rows(table) and rows(table)[5] == "y"


def test_a_batch_of_deletes_alone_needs_no_other_column(tmp_path: Path) -> None:
    table = make(tmp_path, "copy_on_write")
    with pytest.raises(InvalidBatch, match="lacks the column 'name'"):
        table.upsert([{"op": "d", "id": 1}], delete_when="op = 'd'")
    result = table.upsert([change(1, "d"), change(2, "d")], delete_when="op = 'd'")
    assert (result.inserted, result.updated, result.deleted) == (0, 0, 2)


@pytest.mark.parametrize(
    ("batch", "text", "error", "said"),
    [
        ([change(1, "u", "a")], "opp = 'd'", InvalidPredicate, "did you mean 'op'"),
        ([change(1, "u", "a")], "op = ", InvalidPredicate, "does not parse"),
        ([change(1, "u", "a") | {"extra": 1}], "op = 'd'", InvalidBatch, "the column 'extra', which the table does not"),
        ([change(1, "u", None)], "op = 'd'", InvalidBatch, "'name' holds a null"),
        ([change(1, "u", "a"), {"op": "d", "id": None, "name": None, "version": 1}], "op = 'd'", NullKey, "'id' is null"),
        (
            pa.table({"id": [1], "version": [1], "name": ["a"], "at": FINE}),
            "at is null",
            InvalidBatch,
            "reads 'at' .* lose data",
        ),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_batches_write_nothing(tmp_path: Path, kind: TableType, batch: Any, text: str, error: type[Exception], said: str) -> None:
    table = make(tmp_path, kind)
    with pytest.raises(error, match=said):
        table.upsert(batch, delete_when=text)
    assert table.refresh().slot == 1


def test_columns_may_be_added_by_the_same_batch(tmp_path: Path) -> None:
    table = make(tmp_path, "merge_on_read")
    table.upsert([change(1, "u", "one") | {"city": "Rome"}, change(2, "d") | {"city": None}], delete_when="op = 'd'", schema_mode="add")
    assert table.schema.names == ["id", "name", "version", "city"]
    assert rows(table)[1] == "one" and 2 not in rows(table)
