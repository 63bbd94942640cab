"""Several ordering columns: of the rows of a key the greatest wins, compared column by column; of equal ones the last."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.contract import Overwrite
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.errors import CorruptTable, InvalidBatch, InvalidSchema, NullKey, UnsupportedFormat
from objcat.metadata.table_spec import Index
from objcat.timeline import entry as entries
from objcat.timeline.entry import log_key

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("v", pa.string()),
        pa.field("at", pa.int32(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("position", pa.float64(), nullable=False),
    ]
)
BY = ["at", "file", "position"]
INDEXES: list[Index] = [objcat.BucketIndex(2), objcat.SimpleIndex(), objcat.BloomIndex(), objcat.RecordIndex(2), objcat.MemoryIndex()]
KINDS: list[TableType] = ["merge_on_read", "copy_on_write"]


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("ordering")))


def create(lake: objcat.Lake, name: str = "t", **options: Any) -> objcat.Table:
    return lake.create_table(name, SCHEMA, key=["id"], **{"ordering": BY, "index": objcat.BucketIndex(2), **options})


def row(number: int, v: str, at: int, file: str = "m", position: float = 5) -> dict[str, Any]:
    return {"id": number, "v": v, "at": at, "file": file, "position": position}


def end(number: int, at: int, file: str = "m", position: float = 5) -> dict[str, Any]:
    return {"id": number, "at": at, "file": file, "position": position}


def read(table: objcat.Table) -> dict[int, str]:
    found = table.scan().to_arrow().to_pylist()
    assert len({one["id"] for one in found}) == len(found)
    return {one["id"]: one["v"] for one in found}


def entry_of(table: objcat.Table, slot: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(table._context.fileio.read(log_key(slot)))
    return found


def test_a_table_says_its_ordering_columns(lake: objcat.Lake) -> None:
    table = create(lake)
    assert (table.ordering, lake.table("t").ordering) == (BY, BY)
    entry = entry_of(table)
    spec = entry["changes"][table.id]["spec"]
    assert (spec["ordering"], spec["ordering_more"], entry["features"]) == (3, [4, 5], {"ordering_columns": "0.1.0"})


@pytest.mark.parametrize("ordering", ["at", ["at"], ("at",)])
def test_a_table_with_one_is_what_it_was(lake: objcat.Lake, ordering: Any) -> None:
    table = create(lake, ordering=ordering)
    entry = entry_of(table)
    assert table.ordering == "at"
    assert "features" not in entry
    assert "ordering_more" not in entry["changes"][table.id]["spec"]


def test_a_client_without_the_feature_refuses_the_table(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    create(lake)
    monkeypatch.setattr(entries, "READER_FEATURES", frozenset({"column_defaults"}))
    with pytest.raises(UnsupportedFormat, match=r"'ordering_columns'.*Use objcat 0\.1\.0 or newer"):
        objcat.Lake(lake.fileio).table("t").scan()
    with pytest.raises(UnsupportedFormat, match=r"'ordering_columns'"):
        objcat.Lake(lake.fileio).table("t").upsert([row(1, "x", 1)])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda entry, spec: spec.update(ordering_more=[9]), r"spec\.ordering says 9"),
        (lambda entry, spec: spec.update(ordering_more=[4, 4]), r"ordering_more says \(4, 4\).*each once"),
        (lambda entry, spec: spec.update(ordering_more=[3]), r"ordering_more says \(3,\).*each once"),
        (lambda entry, spec: entry.update(features={}), r"features says \[\].*'ordering_columns' among them"),
    ],
)
def test_an_entry_that_contradicts_itself_is_corrupt(lake: objcat.Lake, change: Callable[[Any, Any], None], says: str) -> None:
    table = create(lake)
    entry = entry_of(table)
    del entry["digest"]
    change(entry, entry["changes"][table.id]["spec"])
    table._context.fileio.put(log_key(0), json.dumps(entry).encode(), Overwrite())
    with pytest.raises(CorruptTable, match=says):
        objcat.Lake(lake.fileio).table("t").scan()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", INDEXES, ids=lambda index: type(index).__name__)
def test_the_first_column_that_differs_decides(lake: objcat.Lake, kind: TableType, index: Index) -> None:
    table = create(lake, table_type=kind, index=index)
    table.insert([row(number, "first", 5) for number in range(1, 9)])
    table.upsert([row(1, "x", 4, "z", 9), row(2, "x", 5, "a", 9), row(3, "x", 5, "m", 4), row(4, "tie", 5)])
    table.upsert([row(5, "at", 6, "a", 0), row(6, "file", 5, "é", 0), row(7, "position", 5, "m", 5.5), row(4, "x", 5, "m", -0.0)])
    # Of a batch the greatest row of a key counts, and of equal ones the last.
    table.upsert([row(9, "x", 1, "b", 1), row(9, "one", 1, "b", 2), row(9, "two", 1, "b", 2), row(9, "x", 1, "a", 9)])
    expected = {1: "first", 2: "first", 3: "first", 4: "tie", 5: "at", 6: "file", 7: "position", 8: "first", 9: "two"}
    assert read(table) == expected
    table.delete([end(1, 5, "m", 4), end(2, 5), end(3, 5, "n", 0), end(11, 3)])
    table.delete([{"id": 5}, {"id": 6}])
    expected = {number: v for number, v in expected.items() if number not in (2, 3, 5, 6)}
    assert read(table) == expected
    table.upsert([row(2, "late", 5, "m", 4), row(3, "late", 5, "m", 99), row(5, "again", 0), row(11, "late", 3, "a")])
    assert read(table) == {**expected, 5: "again"}
    table.maintenance.compact()
    table.upsert([row(2, "equal", 5), row(3, "late", 5, "m", 100), row(11, "late", 3, "m", 4)])
    assert read(table) == {**expected, 2: "equal", 5: "again"}


def test_zeros_are_equal_and_nan_and_null_are_refused(lake: objcat.Lake) -> None:
    table = create(lake)
    table.upsert([row(1, "plus", 1, "a", 0.0)])
    table.upsert([row(1, "minus", 1, "a", -0.0)])
    assert read(table) == {1: "minus"}
    before = table.refresh().slot
    with pytest.raises(NullKey, match=r"'position' is NaN"):
        table.upsert([row(1, "x", 9, "a", float("nan"))])
    with pytest.raises(NullKey, match=r"'file' is null in row 0"):
        table.upsert([{**row(1, "x", 9), "file": None}])
    with pytest.raises(InvalidBatch, match=r"lacks the column 'position'"):
        table.upsert([{"id": 1, "v": "x", "at": 9, "file": "a"}])
    with pytest.raises(InvalidBatch, match=r"has the ordering column 'at' and lacks 'file'.*Give all of \['at', 'file', 'position'\]"):
        table.delete([{"id": 1, "at": 9}])
    with pytest.raises(NullKey, match=r"'position' is NaN"):
        table.delete([end(1, 9, "a", float("nan"))])
    assert table.refresh().slot == before


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_measured_with_the_values_that_stay(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, table_type=kind)
    table.upsert([row(number, "old", 5) for number in range(4)])
    table.update({"v": "'set'", "position": "position - 1"}, where="id = 0")
    table.update({"v": "'set'", "file": "'z'", "position": "0"}, where="id = 1")
    table.update({"v": "'set'"}, where="id = 2")
    assert read(table) == {0: "old", 1: "set", 2: "set", 3: "old"}
    source = [row(0, "late", 5, "a", 9), row(1, "newer", 5, "zz"), row(2, "late", 5, "m", 4), row(3, "equal", 5), row(9, "new", 1)]
    table.merge([*source, row(1, "lost", 5, "zy"), row(9, "lost", 0)]).when_matched_update().when_not_matched_insert().execute()
    assert read(table) == {0: "old", 1: "newer", 2: "set", 3: "equal", 9: "new"}
    table.merge([row(3, "", 5, "m", 7), row(9, "", 0)]).when_matched_delete().execute()
    table.upsert([row(3, "late", 5, "m", 6), row(9, "late", 0, "z")])
    assert read(table) == {0: "old", 1: "newer", 2: "set"}
    table.upsert([row(3, "equal", 5, "m", 7), row(9, "equal", 1)])
    assert read(table) == {0: "old", 1: "newer", 2: "set", 3: "equal", 9: "equal"}


def test_partial_rows_count_step_by_step(lake: objcat.Lake) -> None:
    schema = pa.schema([*SCHEMA, ("w", pa.string())])
    table = lake.create_table("t", schema, key=["id"], ordering=BY)
    table.upsert([{**row(number, "old", 5), "w": "old"} for number in range(3)])
    table.upsert_partial(
        [
            row(0, "late", 5, "m", 4),
            {"id": 0, "w": "always"},
            row(0, "newer", 5, "n", 0),
            {**end(1, 5, "a", 9), "w": "late"},
            {**end(1, 5, "m", 6), "w": "newer"},
            {"id": 2, "v": "always"},
            row(7, "new", 1),
        ]
    )
    found = {one["id"]: (one["v"], one["w"], one["file"], one["position"]) for one in table.scan().to_arrow().to_pylist()}
    assert found == {
        0: ("newer", "always", "n", 0.0),
        1: ("old", "newer", "m", 6.0),
        2: ("always", "old", "m", 5.0),
        7: ("new", None, "m", 5.0),
    }
    with pytest.raises(InvalidBatch, match=r"Row 1 of the batch lacks the ordering column 'file'"):
        table.upsert_partial([row(1, "x", 9), {"id": 1, "at": 9}])
    some = [{"id": 1, "at": 9}]
    with pytest.raises(InvalidBatch, match=r"has the ordering column 'at' and lacks 'file'.*partial rows may also have none"):
        table.upsert_partial(some)
    shared = lake.create_table("shared", schema, key=["id"], ordering=BY, shared_log="shop")
    shared.upsert([{**row(1, "old", 5), "w": "old"}])
    with pytest.raises(InvalidBatch, match=r"has the ordering column 'at' and lacks 'file'"), lake.transaction() as tx:
        tx["shared"].upsert_partial(some)
    assert [one["at"] for one in shared.scan().to_arrow().to_pylist()] == [5]


@pytest.mark.parametrize("ordering", [["at", "id"], ["id", "at"], ["file", "at"]])
def test_columns_by_which_rows_are_found_do_not_order_a_partial_row(lake: objcat.Lake, ordering: list[str]) -> None:
    """An ordering column of the key or of a partition is in every row, so the row has ordering values only with the others."""
    table = create(lake, ordering=ordering, partition_by=["file"], key_scope="partition")
    table.upsert([row(1, "old", 5)])
    place = {"id": 1, "file": "m"}
    table.upsert_partial([{**place, "v": "always"}, {**place, "position": 7.0}])
    late = {**place, "v": "late", "at": 4}
    table.upsert_partial([late, {**place, "position": 8.0}, {**late, "position": 9.0}])
    assert table.scan().to_arrow().to_pylist() == [row(1, "always", 5, "m", 8.0)]
    table.upsert_partial([{**place, "v": "newer", "at": 6}, {**place, "position": 9.0}])
    assert table.scan().to_arrow().to_pylist() == [row(1, "newer", 6, "m", 9.0)]


def test_an_incremental_read_leaves_out_what_lost_by_the_second_column(lake: objcat.Lake) -> None:
    for kind in KINDS:
        table = create(lake, kind, table_type=kind)
        table.insert([row(number, "old", 5) for number in range(6)])
        table.upsert([row(4, "log", 5, "p")])
        since = table.refresh().slot
        table.upsert([row(0, "late", 5, "a"), row(1, "newer", 5, "n"), row(2, "late", 4, "z"), row(3, "tie", 5), row(4, "late", 5, "o")])
        changed = {one["id"]: one["v"] for one in table.incremental(since=since).to_arrow().to_pylist()}
        assert changed == {1: "newer", 3: "tie"}
        told = table.changes(since=since).to_arrow().to_pylist()
        assert {one["id"] for one in told} == {1, 3}


def test_lateness_and_watermarks_go_by_the_first_column(lake: objcat.Lake) -> None:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    schema = pa.schema([("id", pa.int64()), ("day", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
    table = lake.create_table(
        "late",
        schema,
        key=["id"],
        ordering=["day", "n"],
        allowed_lateness="10 days",
        partition_by=["day(day)"],
        key_scope="partition",
        index=objcat.BucketIndex(1),
    )
    old, recent = now - dt.timedelta(days=20), now - dt.timedelta(days=2)
    table.insert([{"id": 1, "day": old, "n": 1}, {"id": 2, "day": recent, "n": 5}])
    table.upsert([{"id": 1, "day": old, "n": 9}, {"id": 2, "day": recent, "n": 4}])
    assert sorted(table.scan().to_arrow().column("n").to_pylist()) == [1, 5]
    # A delete that has the day alone, which says where the row lives, is a barrier, and those are never late.
    table.delete([{"id": 1, "day": old}])
    table.delete([{"id": 2, "day": recent, "n": 4}])
    assert table.scan().to_arrow().column("n").to_pylist() == [5]
    table.maintenance.compact()
    assert table.scan().to_arrow().column("n").to_pylist() == [5]

    other = create(lake)
    other.upsert([row(1, "x", 5), row(2, "x", 5)])
    other.delete([end(1, 6, "a"), end(2, 9, "a")])
    other.maintenance.forget_deletes(below=7)
    other.maintenance.compact()
    assert sum(part.end - part.start for group in other.refresh().file_groups(other._context.manifests) for part in group.logs) == 1
    result = other.upsert([row(1, "late", 6, "z"), row(2, "late", 8, "z"), row(3, "new", 7, "")])
    assert result.slot == other.refresh().slot
    assert read(other) == {3: "new"}


def test_every_ordering_column_stays(lake: objcat.Lake) -> None:
    table = create(lake)
    table.upsert([row(1, "x", 5, "m", 5)])
    with pytest.raises(InvalidSchema, match=r"'file' is an ordering column.*cannot be dropped"):
        table.alter.drop_column("file")
    with pytest.raises(InvalidSchema, match=r"'position' is an ordering column, which each row has to say itself"):
        table.alter.set_default("position", 1.5)
    with pytest.raises(InvalidSchema, match=r"'file' is an ordering column, which is never null"):
        table.alter.drop_not_null("file")
    table.alter.rename_column("file", "segment")
    table.alter.widen_column("at", "bigint")
    table.upsert(
        [{"id": 1, "v": "older", "at": 5, "segment": "l", "position": 9}, {"id": 2, "v": "far", "at": 2**40, "segment": "", "position": 0}]
    )
    assert read(table) == {1: "x", 2: "far"}
    assert table.ordering == ["at", "segment", "position"]


def test_a_table_that_moves_or_is_erased_keeps_its_order(lake: objcat.Lake) -> None:
    table = create(lake)
    table.upsert([row(1, "x", 5), row(2, "y", 5)])
    table.delete([end(2, 5, "n")])
    create(lake, "other", shared_log="shop")
    moved = lake.move_to_shared_log("t", shared_log="shop")
    assert moved.ordering == BY
    moved.upsert([row(1, "older", 5, "l"), row(2, "late", 5, "m", 9), row(3, "gone", 5)])
    assert read(moved) == {1: "x", 3: "gone"}
    moved.delete([end(3, 6)])
    moved.erase(pa.table({"id": [2, 3]}))
    moved.upsert([row(2, "again", 1), row(3, "again", 1)])
    assert read(moved) == {1: "x", 2: "again", 3: "again"}


def test_a_range_is_replaced_whatever_the_order_of_its_rows(lake: objcat.Lake) -> None:
    table = create(lake)
    table.upsert([row(1, "x", 5), row(2, "y", 5)])
    table.delete([end(2, 9)])
    with lake.transaction() as tx:
        tx["t"].replace_range([row(1, "less", 1, "a"), row(2, "less", 1, "a")], where="at >= 0")
    assert read(table) == {1: "less", 2: "less"}


def test_statements_name_them_with_commas(lake: objcat.Lake) -> None:
    lake.sql("CREATE TABLE s (id BIGINT, a INT, b INT, v STRING, PRIMARY KEY (id)) TBLPROPERTIES ('ordering' = 'a, b')")
    table = lake.table("s")
    assert table.ordering == ["a", "b"]
    lake.sql("INSERT INTO s VALUES (1, 1, 2, 'x'), (1, 1, 3, 'y'), (1, 0, 9, 'z')")
    assert read(table) == {1: "y"}


def test_rows_are_written_to_a_new_table(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.write([row(1, "x", 1), row(1, "y", 1, "z")], "w", key=["id"], ordering=BY)
    lake.write([row(1, "late", 1, "y")], "w", key=["id"], ordering=BY)
    assert read(lake.table("w")) == {1: "y"}
