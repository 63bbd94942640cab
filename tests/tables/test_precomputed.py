"""Precomputed columns of files in place: same rows, fewer requests, and files that are cleaned like others."""

from __future__ import annotations

import secrets
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import objcat
from fileio.contract import ByteRange, GetResult, NotModified, Version
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.faults import FaultyBackend
from objcat.errors import CorruptTable, InvalidInput, SourceFileChanged, UnsupportedFormat
from objcat.inspection.doctor import examine
from objcat.lake.lake import Lake
from objcat.maintenance import precompute
from objcat.sourcefiles import line_blocks
from objcat.timeline import entry as entries
from tests.tables.in_place import COMPRESSED, FORMATS, LINE, SCHEMA, as_json, as_parquet, in_order, of_lake, read, rows


def table_of(
    lake: objcat.Lake, kind: str = "json", precompute: tuple[str, ...] = ("name",), name: str = "t", suffix: str = ""
) -> objcat.Table:
    url = lake.fileio.url.removesuffix("/lake")
    line = {"line": LINE} if kind == "text" else {}
    source: Any = objcat.Files(f"{url}/in/*.{kind}{suffix}", format=kind, precompute=precompute, **line)  # type: ignore[arg-type]
    return lake.create_table(name, SCHEMA, source=source)


class Counted(MemoryBackend):
    """A store that counts the bytes that reads of source files give."""

    taken = 0

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        found = super().get(key, byte_range, if_none_match)
        if key.startswith("in/") and isinstance(found, GetResult):
            self.taken += len(found.data)
        return found


class Watched:
    """A lake over sources, and the requests that reach the sources."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.backend = MemoryBackend(secrets.token_hex(4))
        self.store = FileIO(self.backend)
        self.lake = Lake(FileIO(FaultyBackend(self.backend, before=self.requests.append)).child("lake"))

    def asked(self) -> int:
        """How many requests have asked for source files since the last call."""
        count = sum(request.key.startswith("in/") for request in self.requests)
        self.requests.clear()
        return count


CASES = [
    ("json", ""),
    ("json", ".gz"),
    ("json", ".zst"),
    ("text", ""),
    ("text", ".bz2"),
    ("csv", ""),
    ("parquet", ""),
    ("orc", ""),
    ("avro", ""),
]


@pytest.mark.parametrize(("kind", "suffix"), CASES)
def test_answers_are_those_without_precomputed_columns(kind: str, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "LINES_BYTES", 256)
    store, lake = of_lake()
    for number in range(3):
        store.put(f"in/{number}.{kind}{suffix}", COMPRESSED[suffix](FORMATS[kind](rows(number * 100, number * 100 + 60))))
    plain, quick = table_of(lake, kind, (), "plain", suffix), table_of(lake, kind, ("name", "id"), "quick", suffix)
    for table in (plain, quick):
        table.refresh_files()
        table.delete("id between 20 and 22 or id = 159 or name = 'n0'")
    for where in (
        None,
        "name = 'n3'",
        "id = 33",
        "id = 21",
        "id > 130 and share < 40",
        "share = 3.25",
        "name = 'n1' and share > 50",
        "id < 0",
    ):
        assert read(quick, where=where) == read(plain, where=where)
        for columns in (["share"], ["name"], ["id", "name"], ["_file", "id"], ["share", "name"]):
            assert read(quick, where=where, columns=columns) == read(plain, where=where, columns=columns)
    assert quick.scan(where=pc.field("id") == 33).to_arrow().to_pylist() == plain.scan(where=pc.field("id") == 33).to_arrow().to_pylist()
    assert quick.scan().min("id") == plain.scan().min("id")


def test_a_query_of_precomputed_columns_never_asks_for_a_source() -> None:
    watched = Watched()
    for number in range(3):
        watched.store.put(f"in/{number}.json", as_json(rows(number * 10, number * 10 + 10)))
    table = table_of(watched.lake, precompute=("name", "id"))
    table.refresh_files()
    assert watched.asked() >= 3
    assert len(read(table, columns=["name", "id"])) == 30 and len(read(table, columns=["id"], where="name = 'n1'")) == 5
    assert table.scan(where="id > 4").count() == 25 and table.scan(where="name = 'n1'").count() == 5
    assert watched.asked() == 0
    assert len(read(table, where="name = 'n1' and id > 100")) == 0 and len(read(table, where="name = 'none'")) == 0
    assert watched.asked() == 0, "no file has such a row"
    assert read(table, where="id = 11") == rows(11, 12)
    assert watched.asked() > 0
    said = table.scan(columns=["id"]).explain().sources
    assert said == {"precomputed": 3, "positions": 0, "whole": 0}
    assert table.scan(where="name = 'n1'").explain().sources == {"precomputed": 0, "positions": 3, "whole": 0}
    assert table.scan(where="share > 1").explain().sources["whole"] == 3
    assert "3 by positions of matches" in str(table.scan(where="name = 'n1'").explain())
    watched.store.put("in/1.json", b"{}\n")
    assert len(read(table, columns=["name"])) == 30, "what was committed is still known"
    with pytest.raises(SourceFileChanged, match=r"in/1\.json"):
        read(table, where="id = 11")


@pytest.mark.parametrize("kind", ["json", "text", "parquet"])
def test_a_needle_takes_the_bytes_that_hold_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "LINES_BYTES", 16 * 1024)
    backend = Counted(secrets.token_hex(4))
    store, lake = FileIO(backend), Lake(FileIO(backend).child("lake"))
    many = [{**row, "name": secrets.token_hex(60)} for row in rows(0, 20_000)]
    data = as_parquet(many, row_group_size=500) if kind == "parquet" else FORMATS[kind](many)
    store.put(f"in/a.{kind}", data)
    table = table_of(lake, kind, ("id",))
    table.refresh_files()
    backend.taken = 0
    assert table.scan(where="id in (5, 17000)").count() == 2 and backend.taken == 0
    assert read(table, where="id in (5, 17000)") == in_order([many[5], many[17000]])
    assert 0 < backend.taken < len(data) / 5


def test_a_block_that_begins_with_a_bad_line_is_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked for in the first line of a file, a mark and one array, is not looked for in the first line of a block."""
    monkeypatch.setattr(line_blocks, "LINES_BYTES", 64)
    store, lake = of_lake()
    bad = [b"[1, 2]", b"\xef\xbb\xbf{}", b"nothing", b""]
    lines = [b'{"id": %d, "name": "n%d"}' % (number, number) if number % 3 else bad[number // 3 % 4] for number in range(1, 200)]
    store.put("in/a.json", b"\xef\xbb\xbf" + b"\n".join(lines))
    for name, columns in (("plain", ()), ("quick", ("id",))):
        source: Any = objcat.Files(f"{store.url}/in/*.json", format="json", bad_rows="permit", precompute=columns)
        lake.create_table(name, SCHEMA, source=source).refresh_files()
    plain, quick = lake.table("plain"), lake.table("quick")
    assert len(read(plain)) == 133
    for number in range(1, 200, 13):
        assert read(quick, where=f"id = {number}") == read(plain, where=f"id = {number}")


def test_columns_are_added_and_dropped_later() -> None:
    watched = Watched()
    watched.store.put("in/a.json", as_json(rows(0, 20)))
    table = table_of(watched.lake, precompute=())
    table.refresh_files()
    table.delete("id = 3")
    assert table.scan(columns=["name"]).explain().sources["whole"] == 1
    table.alter.set_precomputed(["name"])
    assert table.maintenance.run().did[0].service == "precompute"
    watched.asked()
    assert sorted(row["name"] for row in read(table, columns=["name"])) == sorted(row["name"] for row in rows(0, 20) if row["id"] != 3)
    assert watched.asked() == 0
    watched.store.put("in/b.json", as_json(rows(20, 25)))
    table.refresh_files()
    table.alter.rename_column("name", "label")
    assert {row["label"] for row in read(table, columns=["label"])} <= {f"n{number}" for number in range(7)}
    table.alter.set_precomputed(["id", "label"])
    assert table.maintenance.precompute().files == 2 and table.maintenance.precompute().slots == ()
    assert table.scan(columns=["id", "label"]).explain().sources["precomputed"] == 2
    table.alter.drop_column("label")
    assert table.scan(columns=["id"]).explain().sources["precomputed"] == 2
    table.alter.add_column("label", pa.string())
    assert {row["label"] for row in read(table, columns=["label"])} == {None}, "an older column of this name has other values"
    assert table.maintenance.precompute().files == 2
    table.alter.set_precomputed([])
    assert table.maintenance.precompute().files == 2 and read(table, where="id = 21", columns=["id"]) == [{"id": 21}]
    assert table.scan(columns=["id"]).explain().sources["whole"] == 2


def test_files_of_columns_are_cleaned_and_verified() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 10)))
    store.put("in/b.json", as_json(rows(10, 20)))
    table = table_of(lake)
    table.refresh_files()
    folder = next(key for key in lake.fileio.list_keys("tables/") if key.endswith(".columns.parquet")).partition("/data/")[0]

    def kept() -> list[str]:
        return [key for key in lake.fileio.list_keys(folder) if key.endswith(".columns.parquet")]

    first = kept()
    assert len(first) == 2
    table.delete("id in (1, 11)")
    table.maintenance.clean(keep_slots=1)
    assert kept() == first, "the file with masked rows still has them"
    assert not examine(table._context.timeline, deep=True).findings
    store.put("in/b.json", as_json(rows(30, 35)))
    store.delete(["in/a.json"])
    done = table.refresh_files(on_change="replace", on_missing="drop", unsafe_unmask=True)
    assert (done.replaced, done.dropped) == (1, 1) and len(kept()) == 3
    table.maintenance.clean(keep_slots=1)
    assert len(kept()) == 1 and not set(kept()) & set(first)
    assert not examine(table._context.timeline, deep=True).findings
    assert table.maintenance.run(verify_bytes_max=10**9).verified_files == 1
    lake.fileio.put(kept()[0], lake.fileio.read(kept()[0])[:-9] + b"x" * 9)
    with pytest.raises(CorruptTable, match="columns"):
        read(table, columns=["name"])
    assert not examine(table._context.timeline, deep=True).healthy
    assert read(table, columns=["share"]) == in_order({"share": row["share"]} for row in rows(30, 35))


def test_a_checkpoint_keeps_what_is_precomputed() -> None:
    watched = Watched()
    table = table_of(watched.lake)
    for number in range(40):
        watched.store.put(f"in/{number:03d}.json", as_json(rows(number, number + 1)))
        table.refresh_files()
    again = Lake(watched.lake.fileio).table("t")
    watched.asked()
    assert len(read(again, columns=["name"])) == 40 and watched.asked() == 0


def test_settings_that_do_not_fit_are_refused() -> None:
    store, lake = of_lake()
    store.put("in/part=1/a.json", as_json(rows(0, 3)))
    url = lake.fileio.url.removesuffix("/lake")

    def create(*names: str) -> objcat.Table:
        return lake.create_table(
            "t", source=objcat.Files(f"{url}/in/part=*/*.json", format="json", path_columns=["part"], precompute=names)
        )

    with pytest.raises(InvalidInput, match="'nam', which is not a column: did you mean 'name'"):
        create("nam")
    with pytest.raises(InvalidInput, match="'part' is a column of the path"):
        create("part")
    own = lake.create_table("own", SCHEMA, key=None)
    with pytest.raises(InvalidInput, match="its own"):
        own.alter.set_precomputed(["id"])
    with pytest.raises(InvalidInput, match="its own"):
        own.maintenance.precompute()
    table = create("name")
    table.refresh_files()
    assert read(table, where="part = '1' and name = 'n2'") == [{**row, "part": "1"} for row in rows(2, 3)]
    assert read(table, where="part = '1'", columns=["part"]) == [{"part": "1"}] * 3


def test_a_reader_without_the_feature_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 3)))
    table_of(lake).refresh_files()
    monkeypatch.setattr(entries, "READER_FEATURES", entries.READER_FEATURES - {"precomputed_columns"})
    with pytest.raises(UnsupportedFormat, match="precomputed_columns"):
        objcat.connect(lake.fileio.url).table("t").scan().to_arrow()


def test_files_that_changed_wait_for_a_refresh() -> None:
    store, lake = of_lake()
    for name in "ab":
        store.put(f"in/{name}.json", as_json(rows(0, 5)))
    table = table_of(lake, precompute=())
    table.refresh_files()
    store.put("in/a.json", as_json(rows(5, 9)))
    table.alter.set_precomputed(["id"])
    done = table.maintenance.precompute()
    assert (done.files, done.unsettled) == (1, 1)
    left = table.maintenance.run().left
    assert [step.service for step in left] == ["precompute"] and "refresh_files" in left[0].why
    table.refresh_files(on_change="replace")
    assert table.scan(columns=["id"]).explain().sources["precomputed"] == 2


@pytest.mark.parametrize("act", ["replace", "delete", "drop"])
def test_a_commit_that_comes_between_wins(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = of_lake()
    for name in "abc":
        store.put(f"in/{name}.json", as_json(rows(0, 5)))
    table, other = table_of(lake, precompute=()), objcat.connect(lake.fileio.url).table("t")
    table.refresh_files()
    table.alter.set_precomputed(["id"])
    made = precompute._made

    def between(*given: Any) -> Any:
        found = made(*given)
        monkeypatch.setattr(precompute, "_made", made)
        if act == "replace":
            store.put("in/a.json", as_json(rows(70, 72)))
            other.refresh_files(on_change="replace")
        elif act == "delete":
            other.delete("id = 2")
        else:
            store.delete(["in/a.json"])
            other.refresh_files(on_missing="drop")
        return found

    monkeypatch.setattr(precompute, "_made", between)
    table.maintenance.precompute()
    table.maintenance.precompute()
    expected = {
        "replace": [*rows(70, 72), *rows(0, 5), *rows(0, 5)],
        "delete": [row for row in rows(0, 5) if row["id"] != 2] * 3,
        "drop": [*rows(0, 5), *rows(0, 5)],
    }[act]
    assert read(table) == in_order(expected)
    assert read(table, columns=["id"]) == in_order({"id": row["id"]} for row in expected)
    assert table.scan(columns=["id"]).explain().sources["whole"] == 0


def test_a_dropped_table_leaves_no_columns() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 5)))
    table_of(lake).refresh_files()
    lake.drop_table("t")
    lake.purge_table("t", older_than_s=0)
    assert not [key for key in lake.fileio.list_keys("tables/") if key.endswith(".parquet")]
    assert list(store.list_keys("in/")) == ["in/a.json"]


def test_bytes_of_columns_are_few() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json({"id": number, "name": "n", "share": 0.5} for number in range(50_000)))
    table = table_of(lake)
    table.refresh_files()
    (key,) = (key for key in lake.fileio.list_keys("tables/") if key.endswith(".columns.parquet"))
    assert lake.fileio.head(key).size < 5_000, "one value in every row"
    assert pq.read_metadata(pa.BufferReader(lake.fileio.read(key))).num_rows == 50_000
