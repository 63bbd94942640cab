"""Promotion: files in place become files of the table, and no row comes twice or is lost on the way."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.faults import Crash, Fault, FaultyBackend
from objcat.adoption import source_files
from objcat.errors import InvalidInput, UnsupportedFormat
from objcat.inspection.doctor import examine
from objcat.lake.lake import Lake
from objcat.maintenance import promote
from objcat.table import refresh_files
from objcat.timeline import entry as entries
from tests.services.world import At
from tests.tables.in_place import FORMATS, LINE, SCHEMA, Row, as_json, in_order, of_lake, read, rows


def partitioned(lake: objcat.Lake, *precompute: str) -> objcat.Table:
    url = lake.fileio.url.removesuffix("/lake")
    source: Any = objcat.Files(f"{url}/in/day={{day}}/*.json", format="json", precompute=precompute)
    return lake.create_table("t", SCHEMA, source=source)


def of_day(day: int, found: list[Row]) -> list[Row]:
    return [{**row, "day": str(day)} for row in found]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_whole_table_becomes_an_ordinary_one(kind: str) -> None:
    store, lake = of_lake()
    for number in range(3):
        store.put(f"in/{number}.{kind}", FORMATS[kind](rows(number * 10, number * 10 + 8)))
    line = {"line": LINE} if kind == "text" else {}
    source: Any = objcat.Files(f"{store.url}/in/*.{kind}", format=kind, precompute=["name"], **line)  # type: ignore[arg-type]
    table = lake.create_table("t", SCHEMA, source=source)
    before = table.refresh_files().slots[-1]
    table.delete("id in (3, 14)")
    expected = read(table)
    done = table.maintenance.promote()
    assert (done.files, done.rows, done.is_whole, done.unsettled) == (3, 22, True, 0)
    store.delete(list(store.list_keys("in/")))
    assert read(table) == expected and table.scan().explain().sources == {}
    assert table.changes(since=done.slots[0] - 1).to_arrow().num_rows == 0, "a promotion changes no row"
    with pytest.raises(InvalidInput, match="its own"):
        table.refresh_files()
    with pytest.raises(InvalidInput, match="its own"):
        table.maintenance.promote()
    table.insert(pa.Table.from_pylist(rows(100, 103), SCHEMA))
    table.update({"name": "'new'"}, where="id = 100")
    table.delete("id < 5")
    assert [row["id"] for row in sorted(read(table), key=lambda row: row["id"])] == [
        *range(5, 8),
        10,
        11,
        12,
        13,
        15,
        16,
        17,
        *range(20, 28),
        100,
        101,
        102,
    ]
    table.maintenance.cluster(["id"])
    table.maintenance.clean(keep_slots=1)
    assert not [key for key in lake.fileio.list_keys("tables/") if key.endswith(".columns.parquet")]
    assert examine(table._context.timeline, deep=True).healthy
    assert table.scan().count() == 21 and before < done.slots[0]
    table.alter.drop_column("share")
    again = objcat.connect(lake.fileio.url).table("t")
    assert again.scan(where="id > 20").count() == 10


def test_a_partition_is_promoted_and_never_taken_again() -> None:
    store, lake = of_lake()
    for day in (1, 2, 3):
        store.put(f"in/day={day}/a.json", as_json(rows(day * 10, day * 10 + 5)))
    table = partitioned(lake, "id")
    table.refresh_files()
    done = table.maintenance.promote(where="day <= '2'")
    assert (done.files, done.is_whole) == (2, False) and table.maintenance.promote(where="day <= '2'").slots == ()
    store.delete(["in/day=1/a.json"])
    store.put("in/day=2/a.json", as_json(rows(900, 901)))
    store.put("in/day=2/b.json", as_json(rows(25, 27)))
    store.put("in/day=3/a.json", as_json(rows(30, 33)))
    refreshed = table.refresh_files(on_change="replace")
    assert (refreshed.added, refreshed.replaced, refreshed.dropped) == (1, 1, 0)
    assert table.refresh_files(newer_names=True).slots == () and table.refresh_files([f"{store.url}/in/day=1/a.json"]).slots == ()
    expected = [*of_day(1, rows(10, 15)), *of_day(2, rows(20, 27)), *of_day(3, rows(30, 33))]
    assert read(table) == in_order(expected)
    with pytest.raises(InvalidInput, match="in place"):
        table.insert(pa.table({"id": [1], "name": ["a"], "share": [0.5], "day": ["1"]}))
    table.delete("id in (11, 20, 31)")
    left = [row for row in expected if row["id"] not in {11, 20, 31}]
    assert read(table) == in_order(left) and table.refresh_files().slots == (), "a file without some rows is still known"
    table.delete("day = '1'")
    assert table.refresh_files().slots == ()
    for _ in range(40):
        table.alter.set_precomputed(["id", "name"])
        table.alter.set_precomputed(["id"])
    again = objcat.connect(lake.fileio.url).table("t")
    store.put("in/day=1/a.json", as_json(rows(10, 15)))
    assert again.refresh_files().slots == (), "also from a checkpoint"
    assert read(again) == in_order(row for row in left if row["day"] != "1")
    assert again.scan(columns=["id"]).explain().sources == {"precomputed": 2, "positions": 0, "whole": 0}
    assert again.maintenance.promote().is_whole and read(again) == in_order(row for row in left if row["day"] != "1")
    assert examine(again._context.timeline, deep=True).healthy


def test_files_that_changed_stay_in_place() -> None:
    store, lake = of_lake()
    for day in (1, 2):
        store.put(f"in/day={day}/a.json", as_json(rows(day * 10, day * 10 + 5)))
    table = partitioned(lake)
    table.refresh_files()
    store.put("in/day=2/a.json", as_json(rows(50, 52)))
    done = table.maintenance.promote()
    assert (done.files, done.unsettled, done.is_whole) == (1, 1, False)
    table.refresh_files(on_change="replace")
    done = table.maintenance.promote()
    assert (done.files, done.is_whole) == (1, True)
    assert read(table) == in_order([*of_day(1, rows(10, 15)), *of_day(2, rows(50, 52))])


@pytest.mark.parametrize("act", ["refresh", "replace", "delete"])
def test_a_commit_that_comes_between_wins(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process changes the table after the files were read, and before each commit of the promotion."""
    store, lake = of_lake()
    store.put("in/day=1/a.json", as_json(rows(0, 5)))
    store.put("in/day=2/b.json", as_json(rows(10, 15)))
    table, other = partitioned(lake), objcat.connect(lake.fileio.url).table("t")
    table.refresh_files()
    expected = [*of_day(1, rows(0, 5)), *of_day(2, rows(10, 15))]
    written = promote._written
    acts: list[str] = [act]

    def between(*given: Any) -> Any:
        found = written(*given)
        if acts:
            acts.pop()
            if act == "refresh":
                store.put("in/day=3/c.json", as_json(rows(20, 22)))
                other.refresh_files()
            elif act == "replace":
                store.put("in/day=1/a.json", as_json(rows(70, 72)))
                other.refresh_files(on_change="replace")
            else:
                other.delete("id = 2")
        return found

    monkeypatch.setattr(promote, "_written", between)
    done = table.maintenance.promote()
    assert done.is_whole and not acts
    match act:
        case "refresh":
            expected += of_day(3, rows(20, 22))
        case "replace":
            expected = [*of_day(1, rows(70, 72)), *of_day(2, rows(10, 15))]
        case _:
            expected = [row for row in expected if row["id"] != 2]
    assert read(table) == in_order(expected)


def test_a_refresh_that_began_before_the_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = of_lake()
    store.put("in/day=1/a.json", as_json(rows(0, 5)))
    table, other = partitioned(lake), objcat.connect(lake.fileio.url).table("t")
    table.refresh_files()
    look_at, acts = source_files.look_at, ["promote"]

    def look(*given: Any) -> Any:
        if acts:
            acts.pop()
            assert other.maintenance.promote().is_whole
        return look_at(*given)

    monkeypatch.setattr(refresh_files, "look_at", look)
    store.put("in/day=2/b.json", as_json(rows(10, 15)))
    with pytest.raises(InvalidInput, match="promoted meanwhile"):
        table.refresh_files()
    assert read(table) == in_order(of_day(1, rows(0, 5)))


def test_statements_call_these_services() -> None:
    store, lake = of_lake()
    store.put("in/day=1/a.json", as_json(rows(0, 5)))
    store.put("in/day=2/a.json", as_json(rows(5, 10)))
    table = partitioned(lake)
    table.refresh_files()
    lake.sql("CALL set_precomputed(table => 't', columns => array('id'))")
    assert lake.sql("CALL precompute(table => 't')").to_pylist()[0]["files"] == 2
    assert lake.sql("SELECT count(*) AS n FROM t WHERE id > 3").to_pylist() == [{"n": 6}]
    (done,) = lake.sql("""CALL promote(table => 't', where => "day = '1'")""").to_pylist()
    assert (done["files"], done["is_whole"]) == (1, False)
    assert lake.sql("CALL promote(table => 't')").to_pylist()[0]["is_whole"] is True
    assert read(table) == in_order([*of_day(1, rows(0, 5)), *of_day(2, rows(5, 10))])


def test_a_promoted_table_is_as_any_other() -> None:
    store, lake = of_lake()
    for day in (1, 2):
        store.put(f"in/day={day}/a.json", as_json(rows(day * 10, day * 10 + 5)))
    table = partitioned(lake, "id")
    table.refresh_files()
    table.maintenance.promote()
    certificate = table.erase("id = 12")
    assert certificate.deleted == 1 and any(path.endswith(".columns.parquet") for path in certificate.files)
    moved = lake.move_to_shared_log("t", shared_log="s")
    moved.set_properties({"mirrors": "iceberg"})
    moved.insert(pa.table({"id": [100], "name": ["a"], "share": [0.5], "day": ["3"]}))
    assert sorted(row["id"] for row in read(moved)) == [10, 11, 13, 14, *range(20, 25), 100]
    assert examine(moved._context.timeline, deep=True).healthy


def test_a_reader_without_the_feature_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = of_lake()
    store.put("in/day=1/a.json", as_json(rows(0, 5)))
    table = partitioned(lake)
    table.refresh_files()
    table.maintenance.promote(where="day = '1'")
    monkeypatch.setattr(entries, "READER_FEATURES", entries.READER_FEATURES - {"promoted_files"})
    with pytest.raises(UnsupportedFormat, match="promoted_files"):
        objcat.connect(lake.fileio.url).table("t").scan().to_arrow()


FAULTS = [
    Fault.CRASH_AFTER,
    *(pytest.param(fault, marks=pytest.mark.tier("all")) for fault in (Fault.AFTER, Fault.CRASH_BEFORE, Fault.BEFORE, Fault.TWICE)),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_promotion_that_dies_at_any_request(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promote, "COMMIT_FILES_MAX", 2)
    expected = [row for day in (1, 2, 3) for row in of_day(day, rows(day * 10, day * 10 + 4)) if row["id"] != 21]
    for number in range(1, 200):
        backend = MemoryBackend(secrets.token_hex(4))
        store, lake = FileIO(backend), Lake(FileIO(backend).child("lake"))
        for day in (1, 2, 3):
            store.put(f"in/day={day}/a.json", as_json(rows(day * 10, day * 10 + 4)))
        table = partitioned(lake, "id")
        table.refresh_files()
        table.delete("id = 21")
        script = At(number, fault)
        with contextlib.suppress(Crash, Exception):
            Lake(FileIO(FaultyBackend(backend, script)).child("lake")).table("t").maintenance.promote()
        table = Lake(FileIO(backend).child("lake")).table("t")
        assert read(table) == in_order(expected)
        if table.spec.is_in_place:
            assert table.refresh_files().slots == () and read(table) == in_order(expected)
            assert table.maintenance.promote().is_whole
        assert read(table) == in_order(expected)
        table.maintenance.rollback_failed_writes(older_than_s=0)
        table.maintenance.clean(keep_slots=1)
        assert read(table) == in_order(expected) and examine(table._context.timeline, deep=True).healthy
        assert len([key for key in store.list_keys("lake/tables/") if "/data/" in key]) == 3
        if not script.hit:
            assert number > 12
            return
    pytest.fail("a promotion sends more than 200 requests")
