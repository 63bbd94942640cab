"""Files of a folder: which a look finds, which columns and values they give, and what of them is broken."""

from __future__ import annotations

import gzip
import io
import random
import secrets
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import objcat
from fileio.contract import ObjectMeta, Version
from fileio.env import default_env
from fileio.registry import open_store
from objcat.ingest.config import parse_config
from objcat.ingest.folder.file_record import FileRecord, FileState, Novelty, RecordedFile
from objcat.ingest.folder.looks import FolderLooks
from objcat.ingest.folder.settings import FileRule, folder_settings, format_of
from objcat.ingest.folder.table_schemas import TableSchemas
from objcat.ingest.routes import Router
from objcat.sourcefiles.avro_types import avro_schema
from objcat.sourcefiles.file_batch import BrokenFile
from objcat.sourcefiles.formats import open_rows
from objcat.sourcefiles.values import arrow_cast, canonical, cast_rows, json_column, text_cast
from tests.effort import seeds


def meta(key: str, version: str = "1", modified_ms: int = 1_000) -> ObjectMeta:
    return ObjectMeta(key=key, size=10, version=Version(version), modified_ms=modified_ms)


def record() -> FileRecord:
    return FileRecord(objcat.connect(f"memory://{secrets.token_hex(6)}"), "landing.ingest_files")


def note(found: FileRecord, one: ObjectMeta, state: FileState = FileState.TAKEN) -> None:
    found.note(RecordedFile(meta=one, table="t", state=state))


def rule(**source: Any) -> tuple[FolderLooks, FileRule, FileRecord, Any]:
    """A folder in memory with what looks at it."""
    routes = [{"tables": "skipped", "skip": True}, {"tables": "(.*)", "to": "land.\\1"}]
    given = {"lake": {"url": "memory:"}, "source": {"name": "landing", "kind": "folder", "url": "memory:", **source}, "route": routes}
    config = parse_config(given, path="x.toml", environment={})
    settings, rules = folder_settings(config)
    fileio = open_store(f"memory://{secrets.token_hex(6)}")
    known = record()
    return FolderLooks(fileio, settings, rules, Router(config), known, default_env()), rules[0], known, fileio


# ---- which files


def test_a_record_knows_versions_and_what_became_of_them() -> None:
    found = record()
    note(found, meta("a"))
    note(found, meta("b"), FileState.BROKEN)
    note(found, meta("c", "2"), FileState.REFUSED)
    asked = [meta("a"), meta("a", "2"), meta("b"), meta("b", "2"), meta("c", "2"), meta("c", "3"), meta("d")]
    assert found.compare(asked) == [
        Novelty.KNOWN,
        Novelty.OVERWRITTEN,
        Novelty.KNOWN,
        Novelty.NEW,
        Novelty.KNOWN,
        Novelty.OVERWRITTEN,
        Novelty.NEW,
    ]
    assert found.compare([]) == []


@pytest.mark.parametrize("seed", seeds(3, with_all=50))
def test_a_record_that_was_loaded_answers_as_before(seed: int) -> None:
    drawn = random.Random(seed)
    lake = objcat.connect(f"memory://{secrets.token_hex(6)}")
    lake.create_table(
        "landing.ingest_files",
        pa.schema([pa.field("file", pa.string(), nullable=False), *((name, pa.string()) for name in ("version", "state", "source_table"))]),
        key=["file"],
    )
    known = {f"{drawn.randrange(10**6)}": (str(drawn.randrange(3)), drawn.choice(list(FileState))) for _ in range(drawn.randrange(1, 300))}
    rows = [{"file": name, "version": version, "state": str(state), "source_table": "t"} for name, (version, state) in known.items()]
    lake.table("landing.ingest_files").upsert(pa.Table.from_pylist(rows))
    loaded, noted = FileRecord(lake, "landing.ingest_files"), record()
    loaded.load()
    for name, (version, state) in known.items():
        note(noted, meta(name, version), state)
    asked = [meta(name, str(drawn.randrange(3))) for name in [*known, *(f"{drawn.randrange(10**6)}" for _ in range(100))]]
    assert loaded.compare(asked) == noted.compare(asked)


def test_a_look_finds_every_file_once_whatever_its_name() -> None:
    looks, _, known, fileio = rule()
    taken = []
    for number, names in enumerate((["m/5", "m/7"], ["m/1"], [], ["m/6", "a/1", "skipped/1", "m/_x", "top"]), 1):
        for name in names:
            fileio.put(f"{name}.parquet", b"x")
        look = looks.look(number)
        assert look.is_whole and look.reached == number
        for file in look.files:
            note(known, file.meta)
            taken.append(file.meta.key.removesuffix(".parquet"))
    assert taken[:3] == ["m/5", "m/7", "m/1"] and sorted(taken[3:]) == ["a/1", "m/6"]


def test_a_look_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.ingest.folder.looks.LOOK_FILES_MAX", 3)
    looks, _, known, fileio = rule(order="name")
    for name in "gbdaecf":
        fileio.put(f"m/{name}.json", b"x")
    found = []
    for number in range(1, 4):
        look = looks.look(number)
        found.append([file.meta.key for file in look.files])
        assert look.is_whole is (number == 3)
        for file in look.files:
            note(known, file.meta)
    assert [len(one) for one in found] == [3, 3, 1] and [name for one in found for name in one] == [f"m/{name}.json" for name in "abcdefg"]


def test_a_file_that_settles_holds_back_what_a_look_has_reached() -> None:
    looks, _, known, fileio = rule(settle_s=3600.0)
    assert looks.look(1).reached == 1
    fileio.put("m/a.json", b"x")
    look = looks.look(2)
    assert (look.files, look.reached, looks.is_settling) == ([], 1, True)
    fileio.put("m/a.json", b"xy")
    assert looks.look(3).reached == 2
    fileio.delete(["m/a.json"])
    assert looks.look(4).reached == 4 and not looks.is_settling and known.compare([meta("m/a.json")]) == [Novelty.NEW]


@pytest.mark.parametrize("order", ["modified", "name"])
def test_a_listing_that_is_no_snapshot_keeps_the_order_of_files(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file comes to a page that was listed, and then a newer one to a page that was not."""
    looks, _, known, fileio = rule(order=order)
    fileio.put("a/1.json", b"x")
    fileio.put("m/1.json", b"x")
    late = [("a/0.json", b"x"), ("z/1.json", b"x")]
    pages = fileio.list

    def list_with_writes() -> Any:
        for page in pages(page_size=1):
            yield page
            while late:
                fileio.put(*late.pop(0))

    monkeypatch.setattr(fileio, "list", list_with_writes)
    monkeypatch.setattr(looks, "_fileio", fileio)
    taken: list[str] = []
    look = looks.look(1)
    for number in range(2, 7):
        taken += [file.meta.key for file in look.files]
        for file in look.files:
            note(known, file.meta)
        look = looks.look(number)
    assert sorted(taken) == ["a/0.json", "a/1.json", "m/1.json", "z/1.json"] and look.reached == 6 and not looks.is_settling
    assert taken.index("a/0.json") < taken.index("z/1.json")


def test_a_file_that_settles_holds_back_later_ones() -> None:
    looks, _, known, fileio = rule(order="name", settle_s=0.2)
    fileio.put("m/z.json", b"x")
    taken: list[str] = []
    look = looks.look(1)
    fileio.put("m/a.json", b"x")
    for number in range(2, 8):
        taken += [file.meta.key for file in look.files]
        for file in look.files:
            note(known, file.meta)
        default_env().sleep(0.12)
        look = looks.look(number)
    assert taken == ["m/a.json", "m/z.json"] and look.reached == 7


def test_formats_by_name() -> None:
    names = {"a.parquet": "parquet", "d/A.CSV": "csv", "a.csv.gz": "csv", "x.jsonl": "json", "x.ndjson.gz": "json", "b.avro": "avro"}
    assert {name: format_of(name) for name in names} == names
    assert [format_of(name) for name in ("a.txt", "_a.csv", "_t/a.csv", ".a.csv", "a.parquet.crc", "csv")] == [None] * 6


# ---- values


def test_a_cast_finds_the_rows_that_do_not_fit() -> None:
    array = pa.array(["1", "x", None, "3", "", "9" * 30])
    made, bad = cast_rows(array, text_cast(pa.int64()), pa.int64())
    assert made.to_pylist() == [1, None, None, 3, None, None] and sorted(bad) == [1, 4, 5]


@pytest.mark.parametrize(
    ("text", "data_type", "value"),
    [
        (" 12 ", pa.int32(), 12),
        ("1e3", pa.float64(), 1000.0),
        ("-1.50", pa.decimal128(10, 2), Decimal("-1.50")),
        ("TRUE", pa.bool_(), True),
        ("aGk=", pa.binary(), b"hi"),
        (" x", pa.string(), " x"),
        ("[1, 2]", pa.list_(pa.int64()), [1, 2]),
    ],
)
def test_text_as_values(text: str, data_type: pa.DataType, value: object) -> None:
    made, bad = cast_rows(pa.array([text]), text_cast(data_type), data_type)
    assert bad == {} and made.type == data_type and made.to_pylist() == [value]


def test_times_have_a_zone_or_are_in_utc() -> None:
    zoned = pa.timestamp("us", tz="UTC")
    made, bad = cast_rows(pa.array(["2024-01-01T02:00:00+02:00", "2024-01-01 00:00:00", "2024-01-01"]), text_cast(zoned), zoned)
    assert bad == {} and len(set(made.to_pylist())) == 1 and made.type == zoned


def test_numbers_of_json_lose_no_digit() -> None:
    decimals = pa.decimal128(30, 10)
    made, bad = json_column([Decimal("12345678901234567890.0123456789"), 7, "8.5", True, {"a": 1}], decimals)
    assert made.to_pylist()[:3] == [Decimal("12345678901234567890.0123456789"), Decimal(7), Decimal("8.5")] and sorted(bad) == [3, 4]
    nested = pa.struct([("a", pa.float64()), ("b", pa.list_(pa.string()))])
    made, bad = json_column([{"a": Decimal("0.1"), "b": ["x", 1]}, {"b": "x"}, 5, None], nested)
    assert made.to_pylist()[0] == {"a": 0.1, "b": ["x", "1"]} and made.to_pylist()[3] is None and sorted(bad) == [1, 2]


def test_a_cast_that_would_lose_something_is_refused() -> None:
    _, bad = cast_rows(pa.array([1.0, 1.5]), arrow_cast(pa.int64()), pa.int64())
    assert list(bad) == [1]
    assert canonical(pa.field("x", pa.null())) is None and canonical(pa.field("x", pa.uint64())) == pa.decimal128(20, 0)
    with pytest.raises(BrokenFile, match="'x'"):
        canonical(pa.field("x", pa.month_day_nano_interval()))


# ---- schemas


def test_columns_grow_and_never_shrink() -> None:
    schemas = TableSchemas(lambda _: ("id",))
    any_rule = rule()[1]

    def fit(**columns: pa.DataType) -> bool:
        table, changed = schemas.fit("t", pa.schema(list(columns.items())), any_rule)
        schemas.accept(table)
        return changed

    assert fit(id=pa.int64(), n=pa.int16()) and not fit(id=pa.int64()) and not fit(n=pa.int16(), id=pa.int32())
    assert fit(id=pa.int64(), n=pa.int32()) and not fit(id=pa.int64(), n=pa.int8()) and fit(id=pa.int64(), x=pa.string())
    assert [(column.name, column.type) for column in schemas.tables()[0].columns] == [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("x", pa.string()),
    ]
    with pytest.raises(BrokenFile, match="'n' is string, and int in files before"):
        fit(id=pa.int64(), n=pa.string())
    with pytest.raises(BrokenFile, match="A key keeps its type"):
        fit(id=pa.decimal128(30, 0))
    with pytest.raises(BrokenFile, match="in the key"):
        fit(n=pa.int32())
    again = TableSchemas(lambda _: ("id",))
    again.load({"t": schemas.tables()[0].version, "record": 1})
    assert [column.type for column in again.tables()[0].columns] == [column.type for column in schemas.tables()[0].columns]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("string", "no records"),
        ({"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "A"]}]}, "contains itself"),
        ({"type": "record", "name": "A", "fields": [{"name": "x", "type": ["int", "string"]}]}, "union of 2 types"),
        ({"type": "record", "name": "A", "fields": [{"name": "x", "type": "B"}]}, "'B' is not known"),
        (
            {
                "type": "record",
                "name": "A",
                "fields": [{"name": "x", "type": {"type": "bytes", "logicalType": "decimal", "precision": 40}}],
            },
            "40 digits",
        ),
    ],
)
def test_schemas_of_avro_that_no_table_has(schema: Any, said: str) -> None:
    with pytest.raises(BrokenFile, match=said):
        avro_schema(schema)


def test_a_named_type_of_avro_is_used_again() -> None:
    kind = {"type": "enum", "name": "Kind", "symbols": ["A"]}
    fields = [
        {"name": "x", "type": kind},
        {"name": "y", "type": {"type": "array", "items": "Kind"}},
        {"name": "z", "type": ["Kind", "null"]},
    ]
    found = avro_schema({"type": "record", "name": "R", "fields": fields})
    assert found.types == [pa.string(), pa.list_(pa.field("element", pa.string())), pa.string()]


# ---- what is broken


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.parquet", b"no", "no Parquet file"),
        ("a.avro", b"no", "no Avro file"),
        ("a.csv", b"", "no header"),
        ("a.csv", b"x,y\n1,2\n", "none of the columns"),
        ("a.csv", b"id,id\n", "same name"),
        ("a.csv", b"id\n\xff\xff\n", "cannot be read"),
        ("a.csv.gz", b"no", "header cannot be read"),
        ("a.json", b'[{"id": 1}]', "one array"),
        ("a.json.gz", gzip.compress(b'{"id": 1}\n' * 100)[:-9], "cannot be read"),
    ],
)
def test_files_that_cannot_be_read(name: str, data: bytes, said: str) -> None:
    _, any_rule, _, fileio = rule(files=[{"columns": {"id": "bigint"}}])
    fileio.put(f"t/{name}", data)
    with pytest.raises(BrokenFile, match=said):
        list(open_rows(fileio, fileio.head(f"t/{name}"), str(format_of(name)), any_rule.layout))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b'{"id": 1, "s": ' + b"[" * 100_000 + b'\n{"id": 2}\n'),
        ("a.json", b'{"id": 1, "s": [1]}\n{"id": 2}\n'),
        ("a.csv", b"id,s\n1," + b"[" * 100_000 + b"\n2,\n"),
        ("a.csv", b"id,s\n1,[1]\n2,\n"),
    ],
)
def test_a_nested_value_that_does_not_fit_is_a_bad_row(name: str, data: bytes) -> None:
    _, any_rule, _, fileio = rule(files=[{"columns": {"id": "bigint", "s": "struct<a: bigint>"}}])
    fileio.put(f"t/{name}", data)
    (found,) = open_rows(fileio, fileio.head(f"t/{name}"), str(format_of(name)), any_rule.layout)
    assert found.rows.column("id").to_pylist() == [2] and [bad.number for bad in found.bad] == [1]


def test_an_identifier_of_avro_is_its_text() -> None:
    _, any_rule, _, fileio = rule()
    made, value = io.BytesIO(), uuid.UUID(int=7)
    fields = [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "more", "type": {"type": "array", "items": "string"}},
    ]
    fastavro.writer(made, {"type": "record", "name": "r", "fields": fields}, [{"id": value, "more": ["x"]}])
    fileio.put("t/a.avro", made.getvalue())
    (found,) = open_rows(fileio, fileio.head("t/a.avro"), "avro", any_rule.layout)
    assert found.rows.to_pylist() == [{"id": str(value), "more": ["x"]}]


def test_a_broken_schema_of_avro_is_a_broken_file() -> None:
    _, any_rule, _, fileio = rule()
    made = io.BytesIO()
    fastavro.writer(made, {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}, [{"id": 1}])
    fileio.put("t/a.avro", made.getvalue().replace(b'"type": "long"', b'"tyqe": "long"'))
    with pytest.raises(BrokenFile, match="no Avro file"):
        open_rows(fileio, fileio.head("t/a.avro"), "avro", any_rule.layout)


def test_text_needs_columns(tmp_path: Path) -> None:
    _, any_rule, _, fileio = rule()
    fileio.put("t/a.csv", b"id\n1\n")
    with pytest.raises(BrokenFile, match="have to be declared"):
        open_rows(fileio, fileio.head("t/a.csv"), "csv", any_rule.layout)


def test_a_file_of_many_blocks_has_every_row() -> None:
    _, any_rule, _, fileio = rule(files=[{"columns": {"id": "bigint", "s": "string"}}])
    lines = [f'{number},"{"x" * (number % 7)}"' for number in range(60_000)]
    fileio.put("t/a.csv", ("id,s\n" + "\n".join(lines)).encode())
    batches = list(open_rows(fileio, fileio.head("t/a.csv"), "csv", any_rule.layout))
    rows = pa.concat_tables([batch.rows for batch in batches])
    assert rows.column("id").to_pylist() == list(range(60_000)) and not any(batch.bad for batch in batches)
    assert [number for batch in batches for number in batch.kept] == list(range(1, 60_001))
    assert pc.sum(pc.utf8_length(rows.column("s"))).as_py() == sum((number % 7) for number in range(60_000))


@pytest.mark.parametrize("seed", seeds(2, with_all=30))
def test_a_record_that_was_packed_answers_as_before(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(seed)
    packed, plain = record(), record()
    for _ in range(200):
        one, state = meta(str(drawn.randrange(60)), str(drawn.randrange(3))), drawn.choice(list(FileState))
        with monkeypatch.context() as patch:
            patch.setattr("objcat.ingest.folder.file_record.RECENT_MAX", 7)
            note(packed, one, state)
        note(plain, one, state)
    asked = [meta(str(name), str(version)) for name in range(70) for version in range(3)]
    assert packed.compare(asked) == plain.compare(asked)
