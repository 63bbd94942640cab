"""Tables whose files other programs write: what is listed becomes commits, and no answer has other rows than the files that were taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.contract import ObjectMeta, Version
from objcat.adoption import source_files
from objcat.errors import InvalidInput, InvalidSchema, SourceFileChanged, UnsupportedFormat
from objcat.inspection.doctor import examine
from objcat.table import refresh_files
from objcat.timeline import entry as entries
from tests.tables.in_place import FORMATS, as_json, as_parquet, in_order, of_lake, read, rows


def json_table(lake: objcat.Lake, **settings: Any) -> objcat.Table:
    url = lake.fileio.url.removesuffix("/lake")
    return lake.create_table("t", source=objcat.Files(f"{url}/in/**/*.json", format="json", **settings))


def test_new_files_are_commits_with_time_travel() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 5)))
    table = json_table(lake)
    assert table.key is None and table.schema.names == ["id", "name", "share"]
    assert read(table) == []
    first = table.refresh_files()
    store.put("in/deep/er/b.json", as_json(rows(5, 9)))
    store.put("in/other.txt", b"no file of the pattern")
    store.put("in/_hidden/c.json", b"no file either")
    store.put("in/.d.json", b"nor this")
    second = table.refresh_files()
    assert (first.added, first.rows, second.added, second.rows) == (1, 5, 1, 4)
    assert table.refresh_files() == refresh_files.FileRefresh()
    assert read(table) == in_order(rows(0, 9)) and read(table, as_of=first.slots[-1]) == in_order(rows(0, 5))
    feed = table.changes(since=first.slots[-1]).to_arrow()
    assert sorted(feed.column("id").to_pylist()) == [5, 6, 7, 8] and set(feed.column("_change_type").to_pylist()) == {"insert"}
    again = objcat.connect(lake.fileio.url).table("t")
    assert read(again, where="id > 6 and name = 'n1'") == [row for row in rows(7, 9) if row["name"] == "n1"]


def test_bounds_and_path_leave_files_out() -> None:
    store, lake = of_lake()
    for day in (1, 2, 3):
        store.put(f"in/day={day}/h1/x.json", as_json(rows(day * 10, day * 10 + 5)))
    url = lake.fileio.url.removesuffix("/lake")
    table = lake.create_table("t", source=objcat.Files(f"{url}/in/day=*/{{host}}/*.json", format="json", path_columns={"day": "int"}))
    table.refresh_files()
    assert table.partitioning == ["day", "host"]
    scan = table.scan(where="day = 2")
    assert len(scan.plan.groups) == 1 and scan.count() == 5
    assert scan.to_arrow().column("host").to_pylist() == ["h1"] * 5 and set(scan.to_arrow().column("day").to_pylist()) == {2}
    assert len(table.scan(where="id >= 30").plan.groups) == 1 and len(table.scan(where="share is null").plan.groups) == 0
    assert table.scan().min("id") == 10 and table.scan().max("day") == 3
    store.put("in/day=x/h1/x.json", as_json(rows(0, 1)))
    with pytest.raises(SourceFileChanged, match=r"day=x/h1/x\.json cannot be taken: its directory `day=x` does not fit"):
        table.refresh_files()


def test_another_version_is_an_error_that_names_the_file_or_new_rows() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 5)))
    store.put("in/b.json", as_json(rows(5, 9)))
    table = json_table(lake)
    before = table.refresh_files().slots[-1]
    store.put("in/b.json", as_json(rows(50, 54)))
    with pytest.raises(SourceFileChanged, match=r"in/b\.json is not the file that a commit took"):
        read(table)
    assert read(table, where="id < 5") == in_order(rows(0, 5)), "a file that the filter leaves out is not opened"
    with pytest.raises(SourceFileChanged, match=r"in/b\.json changed .*on_change='replace'"):
        table.refresh_files()
    done = table.refresh_files(on_change="replace")
    assert (done.replaced, done.rows, done.added) == (1, 4, 0)
    assert read(table) == in_order([*rows(0, 5), *rows(50, 54)])
    with pytest.raises(SourceFileChanged, match=r"in/b\.json"):
        read(table, as_of=before)


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_other_bytes_of_the_same_length_are_another_version(kind: str) -> None:
    """Neither the size nor the number of rows tells them apart: only the version of the answer does."""
    write = FORMATS[kind]
    store, lake = of_lake()
    store.put(f"in/a.{kind}", write(rows(10, 20)))
    table = lake.create_table("t", source=objcat.Files(f"{store.url}/in/*.{kind}", format=kind))  # type: ignore[arg-type]
    table.refresh_files()
    other = write(rows(10, 20)).replace(b"n3", b"x3")
    assert other != write(rows(10, 20)) and len(other) == store.head(f"in/a.{kind}").size
    store.put(f"in/a.{kind}", other)
    with pytest.raises(SourceFileChanged, match=rf"in/a\.{kind} is not the file"):
        read(table)
    with pytest.raises(SourceFileChanged):
        table.delete("id = 15")
    table.refresh_files(on_change="replace")
    assert {row["name"] for row in read(table)} >= {"x3"}


def test_a_file_that_is_gone_is_an_error_or_dropped() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 5)))
    store.put("in/b.json", as_json(rows(5, 9)))
    table = json_table(lake)
    table.refresh_files()
    store.delete(["in/a.json"])
    with pytest.raises(SourceFileChanged, match=r"in/a\.json is not the file"):
        read(table)
    with pytest.raises(SourceFileChanged, match=r"in/a\.json vanished .*on_missing='drop'"):
        table.refresh_files()
    assert table.refresh_files(on_missing="drop").dropped == 1
    assert read(table) == in_order(rows(5, 9))


def test_the_settings_of_the_table_say_what_a_refresh_does() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 5)))
    store.put("in/b.json", as_json(rows(5, 9)))
    table = json_table(lake, on_change="replace", on_missing="drop")
    table.refresh_files()
    store.put("in/a.json", as_json(rows(0, 2)))
    store.delete(["in/b.json"])
    done = table.refresh_files()
    assert (done.replaced, done.dropped) == (1, 1) and read(table) == in_order(rows(0, 2))


def test_given_files_and_newer_names_alone_are_looked_at() -> None:
    store, lake = of_lake()
    url = store.url
    for name in "ab":
        store.put(f"in/{name}.json", as_json(rows(0, 1)))
    table = json_table(lake)
    done = table.refresh_files([f"{url}/in/b.json", f"{url}/in/b.txt", f"{url}/elsewhere/c.json"])
    assert (done.added, done.ignored) == (1, 2)
    assert table.refresh_files(newer_names=True).added == 0, "a.json is below the greatest name"
    store.put("in/c.json", as_json(rows(1, 3)))
    assert table.refresh_files(newer_names=True).added == 1
    assert table.refresh_files().added == 1 and table.scan().count() == 4
    store.delete(["in/a.json"])
    with pytest.raises(SourceFileChanged, match="vanished"):
        table.refresh_files([f"{url}/in/a.json"])
    assert table.refresh_files([f"{url}/in/a.json"], on_missing="drop").dropped == 1
    with pytest.raises(InvalidInput, match="Give one of them"):
        table.refresh_files([], newer_names=True)


def test_several_patterns_may_mean_one_file() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 2)))
    store.put("in/sub/b.json", as_json(rows(2, 4)))
    store.put("more/c.json", as_json(rows(4, 6)))
    url = store.url
    patterns = [f"{url}/in/sub/*.json", f"{url}/in/**/*.json", f"{url}/more/c.json"]
    table = lake.create_table("t", source=objcat.Files(patterns, format="json"))
    assert table.refresh_files().added == 3 and read(table) == in_order(rows(0, 6))


def test_files_of_a_lake_are_no_source() -> None:
    store, lake = of_lake()
    lake.write([{"id": 1}], "own", key=["id"])
    store.put("mine.parquet", as_parquet(rows(0, 3)))
    table = lake.create_table("t", source=objcat.Files(f"{store.url}/**/*.parquet", format="parquet"))
    assert table.refresh_files().added == 1
    with pytest.raises(InvalidInput, match="among the files of the lake"):
        lake.create_table("u", source=objcat.Files(f"{lake.fileio.url}/tables/**/*.parquet", format="parquet"))
    with pytest.raises(InvalidInput, match=r"in a file: store, and the lake in a memory: store"):
        lake.create_table("u", source=objcat.Files("/etc/*", format="text", line="(?P<x>.*)"))


def test_no_service_touches_a_source_file() -> None:
    store, lake = of_lake()
    for name in "abc":
        store.put(f"in/{name}.json", as_json(rows(0, 4)))
    held = {key: store.head(key) for key in store.list_keys("in/")}
    table = json_table(lake, on_missing="drop", on_change="replace")
    table.refresh_files()
    table.delete("id = 1")
    store.put("in/c.json", as_json(rows(4, 6)))
    store.delete(["in/b.json"])
    held = {key: store.head(key) for key in store.list_keys("in/")}
    table.refresh_files(unsafe_unmask=True)
    assert table.maintenance.compact() is None
    table.maintenance.run()
    cleaned = table.maintenance.clean(keep_slots=1)
    assert cleaned.files == 0
    table.maintenance.archive(keep_slots=1)
    assert read(table) == in_order([*(row for row in rows(0, 4) if row["id"] != 1), *rows(4, 6)])
    lake.drop_table("t")
    lake.purge_table("t", older_than_s=0)
    assert {key: store.head(key) for key in store.list_keys("in/")} == held


def test_an_entry_that_would_remove_a_source_file_is_refused() -> None:
    from objcat.errors import CorruptTable
    from objcat.metadata.consistency import check_delta
    from objcat.metadata.files import TableDelta
    from objcat.timeline.entry import Action, Entry, Footprint, new_txn

    store, _ = of_lake()
    told = Entry(format=1, slot=3, action=Action.CLEAN, txn=new_txn(store.env), base=2, committed_at_ms=0, footprint={"t": Footprint()})
    with pytest.raises(CorruptTable, match="files below data/"):
        check_delta(TableDelta(removes=("_sources/0/a.json",)), told, "t")


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.insert([{"id": 1}]),
        lambda table: table.bulk_insert([{"id": 1}]),
        lambda table: table.update({"id": "id + 1"}),
        lambda table: table.overwrite([{"id": 1}]),
        lambda table: table.insert_overwrite([{"id": 1}]),
        lambda table: table.delete_partition("id = 1"),
        lambda table: table.soft_delete("id = 1"),
        lambda table: table.erase("id = 1"),
        lambda table: table.plan_erasure("id = 1"),
        lambda table: table.maintenance.cluster(["id"]),
    ],
)
def test_writes_are_refused_with_the_next_step(write: Callable[[objcat.Table], Any]) -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 4)))
    table = json_table(lake)
    slot = table.refresh_files().slots[-1]
    with pytest.raises(InvalidInput, match=r"in place.*refresh_files|in place"):
        write(table)
    assert table.refresh().slot == slot and read(table) == in_order(rows(0, 4))


def test_mirrors_moves_and_statements_are_refused() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 4)))
    table = json_table(lake)
    table.refresh_files()
    with pytest.raises(InvalidInput, match="has no mirrors"):
        table.set_properties({"mirrors": "iceberg"})
    with pytest.raises(InvalidInput, match="in place"):
        lake.sql("INSERT INTO t VALUES (1, 'x', 2.0)")
    with pytest.raises(InvalidInput, match="in place"):
        lake.sql("UPDATE t SET id = 2")
    assert lake.sql("SELECT count(*) AS n FROM t WHERE id < 2").to_pylist() == [{"n": 2}]
    assert lake.sql("DELETE FROM t WHERE id = 0") is not None and table.scan().count() == 3
    lake.create_table("s", pa.schema([("id", pa.int64())]), key=None, shared_log="shared")
    with pytest.raises(InvalidInput, match="be copied to another log"):
        lake.move_to_shared_log("t", shared_log="shared")


def test_deleted_rows_are_masked_and_stay_so() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 100)))
    store.put("in/b.json", as_json(rows(100, 120)))
    table = json_table(lake)
    before = table.refresh_files().slots[-1]
    done = table.delete("id < 3 or id = 50")
    assert done is not None and (done.deleted, done.files) == (4, 0)
    left = [row for row in rows(0, 120) if row["id"] >= 3 and row["id"] != 50]
    assert read(table) == in_order(left) and table.scan().min("id") == 3
    assert read(table, as_of=before) == in_order(rows(0, 120))
    assert table.delete("id = 50") is None and table.delete("id = 1000") is None
    # A term that no scan computes, over rows of which some are masked.
    table.delete("id % 10 = 4")
    left = [row for row in left if row["id"] % 10 != 4]
    assert read(table) == in_order(left) and table.refresh_files().slots == ()
    assert table.scan(columns=["name"]).to_arrow().num_rows == len(left)
    feed = table.changes(since=before).to_arrow()
    assert set(feed.column("_change_type").to_pylist()) == {"delete"} and feed.num_rows == 120 - len(left)
    store.put("in/a.json", as_json(rows(0, 100)) + b"\n")
    with pytest.raises(SourceFileChanged, match="rows were deleted that the new version may have again"):
        table.refresh_files(on_change="replace")
    table.refresh_files(on_change="replace", unsafe_unmask=True)
    assert table.scan(where="id < 100").count() == 100


def test_a_file_whose_rows_are_all_deleted_is_still_known() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 4)))
    table = json_table(lake)
    table.refresh_files()
    table.delete("id >= 0")
    assert read(table) == [] and table.refresh_files().added == 0 and table.scan().count() == 0


def test_columns_change_by_our_own_rules() -> None:
    store, lake = of_lake()
    store.put("in/a.json", b'{"id": 1, "extra": "old"}\n')
    table = lake.create_table("t", pa.schema([("id", pa.int32()), ("name", pa.string())]), source=_files(store.url))
    table.refresh_files()
    table.alter.add_column("extra", pa.string())
    store.put("in/b.json", b'{"id": 2, "extra": "new"}\n')
    table.refresh_files()
    assert read(table) == in_order([{"id": 1, "name": None, "extra": None}, {"id": 2, "name": None, "extra": "new"}])
    assert read(table, where="extra = 'old'") == [] and len(read(table, where="extra = 'new'")) == 1
    table.alter.rename_column("extra", "more")
    table.alter.drop_column("name")
    store.put("in/c.json", b'{"id": 3, "extra": "newer", "more": "not this"}\n')
    table.refresh_files()
    assert {row["id"]: row["more"] for row in read(table)} == {1: None, 2: "new", 3: "newer"}
    with pytest.raises(InvalidInput, match="has no types"):
        table.alter.widen_column("id", "bigint")


def test_a_name_in_files_is_of_one_column() -> None:
    store, lake = of_lake()
    store.put("in/a.json", b'{"a": 1, "b": 2}\n')
    table = json_table(lake)
    table.refresh_files()
    table.alter.rename_column("b", "c")
    with pytest.raises(InvalidInput, match=r"already have 'b': as a column that was renamed"):
        table.alter.add_column("b", pa.int64())
    with pytest.raises(InvalidSchema):
        table.alter.add_column("a", pa.int64())
    store.put("in/b.json", b'{"a": 3, "b": 4}\n')
    table.refresh_files()
    assert read(table) == [{"a": 1, "c": 2}, {"a": 3, "c": 4}]
    table.alter.drop_column("c")
    table.alter.add_column("b", pa.string())
    store.put("in/c.json", b'{"a": 5, "b": "x"}\n')
    table.refresh_files()
    assert read(table) == [{"a": 1, "b": None}, {"a": 3, "b": None}, {"a": 5, "b": "x"}]


def test_partitions_are_of_columns_of_the_path() -> None:
    store, lake = of_lake()
    store.put("in/day=1/a.json", as_json(rows(0, 4)))
    table = json_table(lake, path_columns={"day": "int"})
    table.refresh_files()
    for wanted in (["id"], ["day", "name"]):
        with pytest.raises(InvalidInput, match="is no column of the path"):
            table.alter.set_partitioning(wanted)
    table.alter.set_partitioning([])
    store.put("in/day=2/a.json", as_json(rows(4, 9)))
    assert table.refresh_files().added == 1 and table.scan(where="day = 2").count() == 5 and table.scan(where="day = 1").count() == 4


def test_an_object_in_the_place_of_a_folder_is_no_file() -> None:
    from objcat.adoption.source_files import SourceListing
    from objcat.metadata.in_place import FileSource

    store, _ = of_lake()
    listing = SourceListing(store, [FileSource(url=store.url, pattern="**/*")], lake_url=None)
    assert listing.file_of(0, ObjectMeta("in/sub/", 0, Version("1"), 0)) is None
    assert listing.file_of(0, ObjectMeta("in/sub/a", 0, Version("1"), 0)) is not None


def _files(url: str, **settings: Any) -> objcat.Files:
    return objcat.Files(f"{url}/in/*.json", format="json", **settings)


def test_parquet_widens_and_names_what_does_not_read() -> None:
    store, lake = of_lake()
    store.put("in/a.parquet", as_parquet(rows(0, 25)))
    table = lake.create_table("t", source=objcat.Files(f"{store.url}/in/*.parquet", format="parquet"))
    table.refresh_files()
    table.delete("id = 12 or id = 24")
    assert table.scan(where="id between 11 and 13", columns=["id"]).to_arrow().column("id").to_pylist() == [11, 13]
    made = pa.BufferOutputStream()
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": ["text"], "name": ["x"]}), made)
    store.put("in/b.parquet", made.getvalue().to_pybytes())
    with pytest.raises(SourceFileChanged, match=r"b\.parquet cannot be taken: it has 'id' as string, which does not read as bigint"):
        table.refresh_files()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"format": "xml"}, "format"),
        ({"format": "text"}, "line="),
        ({"format": "json", "line": "x"}, "line="),
        ({"format": "text", "line": "("}, "not a regular expression"),
        ({"format": "text", "line": "x"}, "no named group"),
        ({"format": "csv", "delimiter": "::"}, "one character"),
        ({"format": "csv", "header": False}, "Give a schema"),
        ({"format": "json", "path_columns": {"d": "datum"}}, "The column 'd' of the path"),
        ({"format": "json", "on_change": "ignore"}, "on_change"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], said: str) -> None:
    store, lake = of_lake()
    with pytest.raises(InvalidInput, match=said):
        lake.create_table("t", source=objcat.Files(f"{store.url}/in/*.x", **settings))
    assert "t" not in lake.tables()


def test_other_settings_of_tables_do_not_fit() -> None:
    store, lake = of_lake()
    with pytest.raises(InvalidInput, match="key= does not fit a table in place"):
        lake.create_table("t", key=["id"], source=_files(store.url))  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="There is no file"):
        lake.create_table("t", source=_files(store.url))
    with pytest.raises(InvalidInput, match="has no mirrors"):
        lake.create_table("t", pa.schema([("id", pa.int64())]), source=_files(store.url), properties={"mirrors": "delta"})
    with pytest.raises(TypeError, match="needs a schema and key"):
        lake.create_table("t", pa.schema([("id", pa.int64())]))  # type: ignore[call-overload]
    own = lake.create_table("own", pa.schema([("id", pa.int64())]), key=None)
    with pytest.raises(InvalidInput, match="nothing to refresh"):
        own.refresh_files()


def test_a_reader_without_the_feature_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 4)))
    json_table(lake).refresh_files()
    monkeypatch.setattr(entries, "READER_FEATURES", entries.READER_FEATURES - {"files_in_place"})
    with pytest.raises(UnsupportedFormat, match="files_in_place"):
        objcat.connect(lake.fileio.url).table("t")


def test_the_doctor_names_files_that_are_not_those_of_the_log() -> None:
    store, lake = of_lake()
    for name in "ab":
        store.put(f"in/{name}.json", as_json(rows(0, 4)))
    table = json_table(lake)
    table.refresh_files()
    timeline = table._context.timeline
    report = examine(timeline, deep=True)
    assert report.healthy and not report.findings, report.findings
    store.delete(["in/a.json"])
    report = examine(timeline, deep=True)
    assert not report.healthy and any("in/a.json" in finding.subject for finding in report.findings)
    table.refresh_files(on_missing="drop")
    assert examine(timeline, deep=True).healthy, "only older slots need the file"


def test_a_file_that_changes_while_it_is_looked_at_waits_for_the_next_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = of_lake()
    for name in "ab":
        store.put(f"in/{name}.json", as_json(rows(0, 4)))
    table = json_table(lake)
    look_at = source_files.look_at

    def look(*given: Any) -> Any:
        if given[2].meta.key == "b.json":
            store.put("in/b.json", as_json(rows(4, 9)))
        return look_at(*given)

    monkeypatch.setattr(refresh_files, "look_at", look)
    done = table.refresh_files()
    assert (done.added, done.unsettled) == (1, 1) and read(table) == in_order(rows(0, 4))
    monkeypatch.undo()
    assert table.refresh_files().added == 1 and read(table) == in_order([*rows(0, 4), *rows(4, 9)])


def test_two_refreshers_take_each_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = of_lake()
    for name in "abc":
        store.put(f"in/{name}.json", as_json(rows(0, 4)))
    table, other = json_table(lake), objcat.connect(lake.fileio.url).table("t")
    look_at = source_files.look_at
    beside: list[Any] = []

    def look(*given: Any) -> Any:
        if not beside:
            beside.append(None)
            store.put("in/d.json", as_json(rows(4, 5)))
            beside.append(other.refresh_files())
        return look_at(*given)

    monkeypatch.setattr(refresh_files, "look_at", look)
    done = table.refresh_files()
    assert beside[1].added == 4 and done.added == 0 and done.slots == ()
    assert read(table) == in_order([*rows(0, 4) * 3, *rows(4, 5)])


def test_a_refresh_of_many_files_is_several_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = of_lake()
    for number in range(7):
        store.put(f"in/{number}.json", as_json(rows(number, number + 1)))
    table = json_table(lake)
    monkeypatch.setattr(refresh_files, "COMMIT_FILES_MAX", 3)
    done = table.refresh_files()
    assert (len(done.slots), done.added, done.rows) == (3, 7, 7) and read(table) == in_order(rows(0, 7))
    monkeypatch.setattr(refresh_files, "COMMIT_BYTES_MAX", 1)
    for number in range(7, 9):
        store.put(f"in/{number}.json", as_json(rows(number, number + 1)))
    assert len(table.refresh_files().slots) == 2 and read(table) == in_order(rows(0, 9))


def test_a_key_that_no_path_can_hold_is_an_error() -> None:
    from objcat.adoption.source_files import SourceListing
    from objcat.metadata.in_place import FileSource

    store, _ = of_lake()
    listing = SourceListing(store, [FileSource(url=store.url, pattern="**/*.json")], lake_url=None)
    with pytest.raises(InvalidInput, match="no commit can name"):
        listing.file_of(0, ObjectMeta("a//b.json", 1, Version("1"), 0))


def test_json_of_entries_is_small() -> None:
    """An entry names a file in about 500 bytes, with bounds of three columns, so that a commit of 10,000 files is some MB."""
    store, lake = of_lake()
    for number in range(100):
        store.put(f"in/{number:03d}.json", as_json(rows(number, number + 3)))
    table = json_table(lake)
    slot = table.refresh_files().slots[-1]
    entry = table._context.timeline.log.read_known(slot)
    size = sum(len(bytes(raw)) for raw in entry.changes.values())
    assert size < 100 * 500 and json.loads(bytes(next(iter(entry.changes.values()))))["bases"][0]["adopted"]["source"]["version"]
