"""Files in place of every format, compressed or not, have the rows that were written, whatever columns and filters are asked for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput, SourceFileChanged
from objcat.metadata.in_place import key_pattern, split_pattern
from tests.tables.in_place import COMPRESSED, FORMATS, LINE, SCHEMA, as_json, as_text, in_order, of_lake, read, rows

CASES = [
    *((kind, "") for kind in FORMATS),
    *((kind, suffix) for kind in ("csv", "json", "text") for suffix in COMPRESSED if suffix in (".gz", ".bz2")),
]


def files(url: str, kind: str, **settings: object) -> objcat.Files:
    line = {"line": LINE} if kind == "text" else {}
    return objcat.Files(f"{url}/in/**/*.{kind}*", format=kind, **line, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "suffix"), CASES)
def test_every_format_has_the_rows_that_were_written(kind: str, suffix: str) -> None:
    store, lake = of_lake()
    for number in range(3):
        data = COMPRESSED[suffix](FORMATS[kind](rows(number * 40, number * 40 + 40)))
        store.put(f"in/{number}.{kind}{suffix}", data)
    table = lake.create_table("t", SCHEMA if kind == "text" else None, source=files(store.url, kind))
    assert table.schema.equals(SCHEMA)
    assert table.refresh_files().rows == 120
    assert read(table) == in_order(rows(0, 120))
    assert read(table, where="id between 35 and 44", columns=["share"]) == in_order([{"share": n / 4} for n in range(35, 45)])
    assert len(table.scan(where="id > 100").plan.groups) == 1 and table.scan(where="name = 'zz'").count() == 0
    table.delete("id % 3 = 0")
    left = [row for row in rows(0, 120) if row["id"] % 3]
    assert read(table) == in_order(left) and table.scan().min("id") == 1
    assert read(table, where="share >= 20") == in_order(row for row in left if row["share"] >= 20)
    assert table.scan(columns=["name"], limit=7).to_arrow().num_rows == 7


@pytest.mark.parametrize("suffix", [".zst", ".lz4"])
def test_frames_of_other_compressions(suffix: str, tmp_path: Path) -> None:
    kind = {".zst": "zstd", ".lz4": "lz4"}[suffix]
    (tmp_path / "in").mkdir()
    with pa.output_stream(tmp_path / f"in/a.json{suffix}", compression=kind) as out:
        out.write(as_json(rows(0, 5000)))
    lake = objcat.connect(tmp_path / "lake")
    table = lake.create_table("t", source=objcat.Files(str(tmp_path / f"in/*.json{suffix}"), format="json"))
    assert table.refresh_files().rows == 5000 and read(table, where="id >= 4998") == in_order(rows(4998, 5000))


def test_bad_rows_fail_or_are_left_out() -> None:
    store, lake = of_lake()
    store.put("in/a.json", b'{"id": 1}\nnot JSON\n{"id": "x"}\n\n{"id": 4}\n')
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    strict = lake.create_table("strict", schema, source=files(store.url, "json"))
    with pytest.raises(SourceFileChanged, match=r"a\.json cannot be taken: Its row 2 does not fit"):
        strict.refresh_files()
    assert read(strict) == []
    loose = lake.create_table("loose", schema, source=files(store.url, "json", bad_rows="permit"))
    done = loose.refresh_files()
    assert (done.rows, done.bad_rows) == (3, 1)
    assert [row["id"] for row in read(loose)] == [1, 4, None]
    assert loose.scan(columns=["name"]).to_arrow().num_rows == 3, "which rows there are does not depend on the columns"
    assert loose.scan(where="id is null").count() == 1


def test_lines_of_text_that_do_not_match() -> None:
    store, lake = of_lake()
    store.put("in/a.text", b"1 0.5 first\nTraceback:\n  more\n2 1.5 second\r\n3 x third")
    strict = lake.create_table("strict", SCHEMA, source=files(store.url, "text"))
    with pytest.raises(SourceFileChanged, match="Its row 2 does not fit: it does not match"):
        strict.refresh_files()
    loose = lake.create_table("loose", SCHEMA, source=files(store.url, "text", bad_rows="permit"))
    assert loose.refresh_files().bad_rows == 2
    found = {row["id"]: (row["share"], row["name"]) for row in read(loose)}
    assert found == {1: (0.5, "first"), 2: (1.5, "second"), 3: (None, "third")}


def test_csv_without_a_header_and_with_torn_rows() -> None:
    store, lake = of_lake()
    store.put("in/a.csv", b"1;a;0.5\n2;b\n3;'c';\n")
    settings = {"header": False, "delimiter": ";", "bad_rows": "permit"}
    table = lake.create_table("t", SCHEMA, source=files(store.url, "csv", **settings))
    done = table.refresh_files()
    assert (done.rows, done.bad_rows) == (2, 1)
    assert read(table, columns=["share", "id"]) == in_order([{"share": 0.5, "id": 1}, {"share": None, "id": 3}])


def test_fields_of_csv_without_a_header_keep_their_places() -> None:
    store, lake = of_lake()
    store.put("in/a.csv", b"1,n,0.5\n")
    table = lake.create_table("t", SCHEMA, source=files(store.url, "csv", header=False))
    table.refresh_files()
    table.alter.move_column("share", first=True)
    table.alter.add_column("more", pa.string(), after="id")
    store.put("in/b.csv", b"2,m,1.5,x\n")
    table.refresh_files()
    first, second = {"share": 0.5, "id": 1, "more": None, "name": "n"}, {"share": 1.5, "id": 2, "more": "x", "name": "m"}
    assert read(table) == in_order([first, second]) and read(table, columns=["name"]) == in_order([{"name": "n"}, {"name": "m"}])
    with pytest.raises(InvalidInput, match="told apart by their places"):
        table.alter.drop_column("name")


def test_csv_of_a_header_alone_has_no_rows() -> None:
    store, lake = of_lake()
    for name, header in (("a", b"id,name,share"), ("b", b"id,name,share\r\n")):
        store.put(f"in/{name}.csv", header)
    table = lake.create_table("t", SCHEMA, source=files(store.url, "csv"))
    done = table.refresh_files()
    assert (done.added, done.rows) == (2, 0) and read(table) == []


def test_columns_of_text_that_no_line_has_are_null() -> None:
    store, lake = of_lake()
    store.put("in/a.text", as_text(rows(0, 3)))
    table = lake.create_table("t", pa.schema([("extra", pa.string()), *SCHEMA]), source=files(store.url, "text"))
    table.refresh_files()
    assert read(table, columns=["extra"]) == [{"extra": None}] * 3 and read(table) == in_order({"extra": None} | row for row in rows(0, 3))
    none = lake.create_table("none", pa.schema([("extra", pa.string())]), source=files(store.url, "text"))
    with pytest.raises(SourceFileChanged, match="no group of its pattern of lines is one of the columns extra"):
        none.refresh_files()


def test_nested_columns_and_times() -> None:
    store, lake = of_lake()
    lines = [{"at": "2026-11-27T10:00:00Z", "who": {"name": "ana", "tags": ["x"]}, "n": 1.5}, {"who": None, "at": None}]
    store.put("in/a.json", "".join(json.dumps(line) + "\n" for line in lines).encode())
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("who", pa.struct([("name", pa.string()), ("tags", pa.list_(pa.string()))])),
            ("n", pa.decimal128(5, 2)),
        ]
    )
    table = lake.create_table("t", schema, source=files(store.url, "json"))
    table.refresh_files()
    found = table.scan().to_arrow()
    assert found.schema.equals(table.schema) and found.column("who").to_pylist() == [{"name": "ana", "tags": ["x"]}, None]
    assert table.scan(where="at > '2026-11-27 09:00:00'").count() == 1 and len(table.scan(where="n > 2").plan.groups) == 0


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro", "csv", "json"])
def test_columns_that_a_file_lacks_are_null(kind: str) -> None:
    store, lake = of_lake()
    store.put(f"in/a.{kind}", FORMATS[kind](rows(0, 50)))
    schema = pa.schema([*SCHEMA, ("more", pa.int64())])
    table = lake.create_table("t", schema, source=files(store.url, kind))
    table.refresh_files()
    table.delete("id = 3")
    assert read(table, columns=["more"]) == [{"more": None}] * 49
    assert table.scan(where="more is null", columns=["more"]).count() == 49 and table.scan(where="more = 1").count() == 0


def test_inferred_columns_hold_those_of_all_first_files() -> None:
    store, lake = of_lake()
    store.put("in/a.json", b'{"id": 1}\n')
    store.put("in/b.json", b'{"id": 2, "name": "x"}\n')
    table = lake.create_table("t", source=files(store.url, "json"))
    assert table.schema.names == ["id", "name"]
    store.put("in/c.json", b'{"id": {"a": 1}}\n')
    with pytest.raises(InvalidInput, match="cannot be inferred"):
        lake.create_table("u", source=files(store.url, "json"))


def test_damaged_files_are_errors_that_name_them() -> None:
    store, lake = of_lake()
    store.put("in/a.json.gz", gzip.compress(as_json(rows(0, 500)))[:-20])
    table = lake.create_table("t", SCHEMA, source=files(store.url, "json"))
    with pytest.raises(SourceFileChanged, match=r"in/a\.json\.gz cannot be taken: it cannot be read from about line"):
        table.refresh_files()
    for kind in ("parquet", "orc", "avro", "csv"):
        store.put(f"in/x.{kind}", b"\x00\xff" * 40)
        broken = lake.create_table(f"b_{kind}", SCHEMA, source=files(store.url, kind))
        with pytest.raises(SourceFileChanged, match=rf"in/x\.{kind} cannot be taken"):
            broken.refresh_files()


def test_a_file_of_many_blocks_is_masked_by_position() -> None:
    """Blocks of text have 16,384 rows, so the positions of rows cross them."""
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 40_000)))
    table = lake.create_table("t", source=files(store.url, "json"))
    table.refresh_files()
    table.delete("id between 16380 and 16390 or id = 39999")
    table.delete("id = 16391 or id = 0")
    left = table.scan(columns=["id"]).to_arrow().column("id").to_pylist()
    assert sorted(left) == [*range(1, 16380), *range(16392, 39999)]
    (group,) = table.scan().plan.groups
    assert group.base is not None and group.base.source is not None
    assert group.base.source.masked == ((0, 1), (16380, 16392), (39999, 40000))


@pytest.mark.parametrize(
    ("pattern", "key", "said"),
    [
        ("**/*.json", "a.json", {}),
        ("**/*.json", "x/y/a.json", {}),
        ("*/a?.json", "x/ab.json", {}),
        ("{host}/*.log", "h1/a.log", {"host": "h1"}),
        ("x[1].json", "x[1].json", {}),
    ],
)
def test_patterns_mean_keys(pattern: str, key: str, said: dict[str, str]) -> None:
    found = key_pattern(pattern).fullmatch(key)
    assert found is not None and found.groupdict() == said


@pytest.mark.parametrize(
    ("pattern", "key"), [("*.json", "x/a.json"), ("?.json", "/.json"), ("{a}/b", "x/y/b"), ("*.json", "a.jsonx"), ("a.b", "axb")]
)
def test_patterns_do_not_mean_others(pattern: str, key: str) -> None:
    assert key_pattern(pattern).fullmatch(key) is None


def test_patterns_are_cut_before_their_first_special_part() -> None:
    assert split_pattern("s3://logs/app/**/*.json") == ("s3://logs/app", "**/*.json")
    assert split_pattern("s3://logs/a.json") == ("s3://logs", "a.json")
    assert split_pattern("logs/x-*.json") == ("logs", "x-*.json")
    for wrong, said in [("s3://*/a.json", "no bucket"), ("s3://logs/app/", "names a folder")]:
        with pytest.raises(InvalidInput, match=said):
            split_pattern(wrong)
    for wrong in ("{1}/a", "{a", "{a}/{a}"):
        with pytest.raises(InvalidInput):
            key_pattern(wrong)
