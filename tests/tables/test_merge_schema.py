"""Merges that change the schema: what a source brings becomes columns of the table, in the commit of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidInput, InvalidPredicate

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int32())])
SOURCE = pa.table({"id": [1, 5], "v": pa.array([10, 50], pa.int32()), "note": ["one", "five"]})


def make(place: Path, kind: TableType = "merge_on_read", **settings: Any) -> objcat.Table:
    made = objcat.connect(place).create_table("t", SCHEMA, key=["id"], table_type=kind, **{"index": objcat.BucketIndex(2)} | settings)
    made.insert([{"id": 1, "v": 1}, {"id": 2, "v": 2}])
    return made


def rows(table: objcat.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("index", [objcat.BucketIndex(2), objcat.SimpleIndex(), objcat.RecordIndex(2)])
def test_a_star_adds_the_columns_of_the_source(tmp_path: Path, kind: TableType, index: Any) -> None:
    table = make(tmp_path, kind, index=index)
    done = table.merge(SOURCE, schema_mode="add").when_matched_update().when_not_matched_insert().execute()
    assert done is not None and (done.inserted, done.updated) == (1, 1)
    assert rows(table) == [{"id": 1, "v": 10, "note": "one"}, {"id": 2, "v": 2, "note": None}, {"id": 5, "v": 50, "note": "five"}]
    assert done.slot == 2 and table.refresh().slot == 2, "rows and columns are one commit"
    assert table.scan(as_of=1).to_arrow().column_names == ["id", "v"]
    table.maintenance.compact()
    assert len(rows(table)) == 3 and objcat.connect(tmp_path).table("t").schema.names == ["id", "v", "note"]


def test_only_what_clauses_take_is_added(tmp_path: Path) -> None:
    table = make(tmp_path)
    source = SOURCE.append_column("other", pa.array([1.5, 2.5])).rename_columns(["key", "v", "note", "other"])
    table.merge(source, on="source.key = target.id", schema_mode="add").when_matched_update({"note": "source.note"}).execute()
    assert rows(table) == [{"id": 1, "v": 1, "note": "one"}, {"id": 2, "v": 2, "note": None}]
    table.merge(source, on="source.key = target.id", schema_mode="add").when_not_matched_insert().execute()
    assert rows(table)[2] == {"id": 5, "v": 50, "note": "five", "other": 2.5}, "a key under another name is no column"
    table.merge(SOURCE.append_column("gone", pa.array([1, 2])), schema_mode="add").when_matched_delete(where="source.v < 50").execute()
    assert table.schema.names == ["id", "v", "note", "other"] and [row["id"] for row in rows(table)] == [2, 5]


def test_without_a_mode_the_schema_stays(tmp_path: Path) -> None:
    table = make(tmp_path, properties={"schema_mode": "add"})
    table.merge(SOURCE).when_matched_update().when_not_matched_insert().execute()
    assert rows(table)[0] == {"id": 1, "v": 10}
    wide = pa.table({"id": [2], "v": pa.array([2**40], pa.int64())})
    table.merge(wide, schema_mode="widen").when_matched_update().execute()
    assert rows(table)[1] == {"id": 2, "v": 2**40} and table.schema.field("v").type == pa.int64()
    slot = table.refresh().slot
    with pytest.raises(InvalidInput, match="schema_mode"):
        table.merge(SOURCE, schema_mode="grow")  # type: ignore[arg-type]
    with pytest.raises((InvalidInput, InvalidPredicate), match="none"):
        table.merge(SOURCE, schema_mode="add").when_matched_update({"none": "1"}).execute()
    assert table.merge(SOURCE.slice(0, 0), schema_mode="add").when_matched_update().execute() is None
    assert table.refresh().slot == slot and table.schema.names == ["id", "v"], "no row, no column"


def test_a_column_that_another_writer_adds_meanwhile_is_the_same_column(tmp_path: Path) -> None:
    table, other = make(tmp_path), objcat.connect(tmp_path).table("t")
    merging = table.merge(SOURCE, schema_mode="add").when_matched_update().when_not_matched_insert()
    other.upsert([{"id": 1, "v": 7, "note": "theirs"}], schema_mode="add")
    merging.execute()
    assert rows(table)[0] == {"id": 1, "v": 10, "note": "one"} and table.schema.names == ["id", "v", "note"]


def test_a_statement_has_words_for_it(tmp_path: Path) -> None:
    make(tmp_path)
    lake = objcat.connect(tmp_path)
    lake.write(SOURCE, "news", key=None)
    lake.sql(
        "MERGE  with schema\nEVOLUTION INTO t USING news n ON t.id = n.id WHEN MATCHED THEN UPDATE SET note = n.note "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    assert rows(lake.table("t"))[0] == {"id": 1, "v": 1, "note": "one"}
