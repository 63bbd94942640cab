"""Only those stripes of ORC are read, and blocks of Avro decoded, that hold a match. The rows are those of whole files."""

from __future__ import annotations

import io
import itertools
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc

import objcat
from fileio.contract import ByteRange, GetResult, NotModified, Version
from fileio.errors import PermissionDenied
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.adoption import source_files
from objcat.datafile.in_place import layout_of
from objcat.errors import ObjcatError, SourceFileChanged
from objcat.lake.lake import Lake
from objcat.sourcefiles import formats, text_files
from objcat.sourcefiles.orc_stripes import stripes_of
from tests.effort import seeds
from tests.tables.in_place import COMPRESSED, FORMATS, SCHEMA, in_order, read, rows

NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("share", pa.float64()),
        ("who", pa.struct([("city", pa.string()), ("tags", pa.list_(pa.string()))])),
        ("more", pa.map_(pa.string(), pa.int64())),
        ("pad", pa.string()),
    ]
)


def nested_rows(draw: random.Random, first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "name": draw.choice([None, f"n{number % 7}"]),
            "share": draw.choice([None, number / 4]),
            "who": draw.choice([None, {"city": f"c{number % 3}", "tags": [str(number)] * draw.randrange(3)}]),
            "more": draw.choice([None, [(f"k{at}", number) for at in range(draw.randrange(3))]]),
            "pad": draw.randbytes(300).hex(),
        }
        for number in range(first, first + count)
    ]


def as_orc(
    given: Sequence[Mapping[str, Any]], schema: pa.Schema = NESTED, *, rows_of_stripe: int, compression: str = "uncompressed"
) -> bytes:
    """A file whose stripes have so many rows, or of a compressed one as many as fill a block of 64 KiB of a column."""
    made = io.BytesIO()
    table = pa.Table.from_pylist(list(given), schema)
    orc.write_table(table, made, stripe_size=1, batch_size=rows_of_stripe, compression=compression)
    return made.getvalue()


NESTED_AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "share", "type": ["null", "double"]},
        {
            "name": "who",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "w",
                    "fields": [
                        {"name": "city", "type": ["null", "string"]},
                        {"name": "tags", "type": {"type": "array", "items": "string"}},
                    ],
                },
            ],
        },
        {"name": "more", "type": ["null", {"type": "map", "values": "long"}]},
        {"name": "pad", "type": "string"},
    ],
}


def as_avro(given: Sequence[Mapping[str, Any]], *, rows_of_block: int, codec: str) -> bytes:
    """A file whose blocks have about so many rows, each of which has some 650 bytes."""
    made = io.BytesIO()
    records = [{**row, "more": None if row["more"] is None else dict(row["more"])} for row in given]
    fastavro.writer(made, NESTED_AVRO, records, codec=codec, sync_interval=650 * rows_of_block)
    return made.getvalue()


class Counted(MemoryBackend):
    """A store that counts the bytes that reads of source files give, and can refuse them."""

    taken = 0
    requests = 0
    left: int | None = None

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        found = super().get(key, byte_range, if_none_match)
        if key.startswith("in/") and isinstance(found, GetResult):
            if self.left is not None and self.requests >= self.left:
                raise PermissionDenied("no more of it")
            self.taken += len(found.data)
            self.requests += 1
        return found

    def begin(self, left: int | None = None) -> None:
        self.taken = self.requests = 0
        self.left = left


def counted_lake() -> tuple[Counted, FileIO, Lake]:
    backend = Counted(secrets.token_hex(4))
    return backend, FileIO(backend), Lake(FileIO(backend).child("lake"))


def table_of(lake: Lake, store: FileIO, kind: str = "orc", schema: pa.Schema | None = None, **settings: Any) -> objcat.Table:
    name, suffix = settings.pop("name", "t"), settings.pop("suffix", "")
    return lake.create_table(name, schema, source=objcat.Files(f"{store.url}/in/**/*.{kind}{suffix}", format=kind, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("rows_of_stripe", [1, 7, 100, 1024])
def test_stripes_are_those_that_arrow_reads(compression: str, rows_of_stripe: int) -> None:
    count = 300 if rows_of_stripe < 10 else 2000
    data = as_orc(nested_rows(random.Random(3), 0, count), rows_of_stripe=rows_of_stripe, compression=compression)
    file = orc.ORCFile(io.BytesIO(data))
    stripes = stripes_of(file)
    assert [stripe.rows for stripe in stripes] == [file.read_stripe(number, columns=["id"]).num_rows for number in range(file.nstripes)]
    assert sum(stripe.rows for stripe in stripes) == count and len(stripes) > 1
    assert stripes[0].begin == 3 and stripes[-1].end < len(data)
    assert all(before.end <= after.begin for before, after in itertools.pairwise(stripes))


def test_a_file_without_rows_has_no_stripes() -> None:
    assert stripes_of(orc.ORCFile(io.BytesIO(as_orc([], rows_of_stripe=1)))) == []


@pytest.mark.parametrize("kind", ["orc", "avro"])
@pytest.mark.parametrize("seed", seeds(3, with_all=40))
def test_rows_by_positions_are_those_of_whole_files(seed: int, kind: str) -> None:
    draw = random.Random(seed)
    store = FileIO(MemoryBackend(secrets.token_hex(4)))
    lake = Lake(store.child("lake"))
    first = 0
    for number in range(draw.randrange(1, 4)):
        count = draw.choice([0, 1, draw.randrange(2, 30), draw.randrange(30, 250)])
        height, given = draw.choice([13, 100]) if count > 30 else draw.choice([1, 2, 5]), nested_rows(draw, first, count)
        if kind == "orc":
            data = as_orc(given, rows_of_stripe=height, compression=draw.choice(["uncompressed", "zlib", "zstd"]))
        else:
            data = as_avro(given, rows_of_block=height, codec=draw.choice(["null", "deflate"]))
        store.put(f"in/part={number}/a.{kind}", data)
        first += count
    chosen = draw.sample(["id", "name", "share", "who.city"], draw.randrange(1, 4))
    schema = NESTED.append(pa.field("part", pa.string()))
    plain = table_of(lake, store, kind, schema, name="plain", path_columns=["part"])
    quick = table_of(lake, store, kind, schema, name="quick", path_columns=["part"], precompute=chosen)
    for table in (plain, quick):
        table.refresh_files()
        table.delete(f"id % 11 = {seed % 11} or id between {first // 3} and {first // 3 + 20}")
    for _ in range(6):
        number = draw.choice([0, first - 1, draw.randrange(first + 1)])
        where = draw.choice(
            [
                f"id = {number}",
                f"id in ({number}, 0, {first})",
                f"id >= {number} and share > {number / 5}",
                f"name = 'n{number % 7}' and part = '0'",
                f"who.city = 'c1' and id < {number}",
                "name is null",
            ]
        )
        columns = draw.choice([None, ["who"], ["share", "id"], ["more"], ["part", "name"], ["_file", "id"]])
        assert read(quick, where=where, columns=columns) == read(plain, where=where, columns=columns), (seed, where, columns)


def wide_rows(count: int) -> tuple[pa.Schema, list[dict[str, Any]]]:
    names = [f"c{number}" for number in range(6)]
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])
    return schema, [{"id": number, **{name: secrets.token_hex(40) for name in names}} for number in range(count)]


@pytest.mark.parametrize("compression", ["uncompressed", "zstd"])
def test_a_needle_takes_the_stripe_that_holds_it(compression: str) -> None:
    backend, store, lake = counted_lake()
    schema, given = wide_rows(10_000)
    data = as_orc(given, schema, rows_of_stripe=500, compression=compression)
    longest = max(stripe.end - stripe.begin for stripe in stripes_of(orc.ORCFile(io.BytesIO(data))))
    assert longest < len(data) / 8
    store.put("in/a.orc", data)
    table = table_of(lake, store, schema=schema, precompute=["id"])
    backend.begin()
    table.refresh_files()
    assert backend.taken < 1.2 * len(data)
    for number in (0, 4000, 9999):
        backend.begin()
        assert read(table, where=f"id = {number}") == [given[number]]
        assert backend.taken <= 2 * (longest + 128 * 1024) and backend.requests <= 2 * 3, "a scan and a count, each with the footer"
    backend.begin()
    assert table.scan().to_arrow().num_rows == 10_000
    assert backend.taken < 1.2 * len(data)


def test_few_columns_take_their_own_bytes() -> None:
    backend, store, lake = counted_lake()
    schema, given = wide_rows(20_000)
    data = as_orc(given, schema, rows_of_stripe=10_000)
    store.put("in/a.orc", data)
    table = table_of(lake, store, schema=schema)
    table.refresh_files()
    backend.begin()
    assert table.scan(columns=["c3"]).to_arrow().num_rows == 20_000
    assert backend.taken < len(data) / 4, "one of six columns"


def test_an_error_of_the_store_stays_one() -> None:
    backend, store, lake = counted_lake()
    schema, given = wide_rows(20_000)
    store.put("in/a.orc", as_orc(given, schema, rows_of_stripe=10_000))
    table = table_of(lake, store, schema=schema)
    table.refresh_files()
    for columns in (None, ["c3"]):
        for left in range(3):
            backend.begin(left)
            with pytest.raises(PermissionDenied, match="no more of it"):
                table.scan(columns=columns).to_arrow()


def test_avro_is_read_up_to_the_last_match_and_decoded_where_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    records = formats._records

    def counted(piece: Any, *others: Any) -> Any:
        decoded.append(len(piece))
        return records(piece, *others)

    monkeypatch.setattr(formats, "_records", counted)
    backend, store, lake = counted_lake()
    given = [{**row, "name": secrets.token_hex(400)} for row in rows(0, 16_000)]
    data = FORMATS["avro"](given)
    store.put("in/a.avro", data)
    table = table_of(lake, store, "avro", precompute=["id"])
    table.refresh_files()
    assert sum(decoded) == len(given)
    decoded.clear()
    backend.begin()
    assert table.scan(where="id in (3, 1000)").to_arrow().sort_by("id").to_pylist() == [given[3], given[1000]]
    assert backend.taken < len(data) / 2, "what was read ahead counts too"
    assert len(decoded) == 2 and sum(decoded) < 100
    assert table.scan(where="id = 15999").to_arrow().to_pylist() == given[-1:]


NARROW = pa.schema([("id", pa.int64()), ("name", pa.string()), ("share", pa.int64())])


def with_misfits() -> list[dict[str, Any]]:
    """Rows of which two have a share that is no whole number."""
    return [{**row, "share": 0.5 if row["id"] in (5, 33) else float(row["id"])} for row in rows(0, 60)]


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_a_value_that_does_not_fit_is_null_where_that_is_permitted(kind: str) -> None:
    _, store, lake = counted_lake()
    store.put(f"in/a.{kind}", FORMATS[kind](with_misfits()))
    wanted = [{"id": number, "name": f"n{number % 7}", "share": None if number in (5, 33) else number} for number in range(60)]
    wanted = in_order(wanted)
    for precompute in ([], ["id"], ["id", "share"]):
        table = table_of(lake, store, kind, NARROW, name=f"t{len(precompute)}", precompute=precompute, bad_rows="permit")
        done = table.refresh_files()
        assert (done.rows, done.bad_rows) == (60, 0)
        assert read(table) == wanted
        assert read(table, where="share is null", columns=["id"]) == in_order([{"id": 5}, {"id": 33}])
        assert read(table, where="id = 40", columns=["name"]) == [{"name": "n5"}]
        assert read(table, where="id = 33") == [{"id": 33, "name": "n5", "share": None}]
        table.delete("id in (5, 40)")
        assert read(table) == [row for row in wanted if row["id"] not in (5, 40)]
    strict = table_of(lake, store, kind, NARROW, name="strict")
    with pytest.raises(ObjcatError, match="row 6 does not fit"):
        strict.refresh_files()


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_files_that_were_taken_without_such_rows_stay_readable(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version of objcat left the rows out. A query by positions gives an error rather than the rows beside its own."""
    _, store, lake = counted_lake()
    store.put(f"in/a.{kind}", FORMATS[kind](with_misfits()))
    table = table_of(lake, store, kind, NARROW, precompute=["id"], bad_rows="permit")
    own = layout_of
    with monkeypatch.context() as earlier:
        earlier.setattr(source_files, "layout_of", lambda *said: replace(own(*said), misfits_are_null=False))
        assert table.refresh_files().bad_rows == 2
    wanted = [{"id": number, "name": f"n{number % 7}", "share": number} for number in range(60) if number not in (5, 33)]
    wanted = in_order(wanted)
    assert read(table) == wanted
    assert read(table, where="id = 40") == [{"id": 40, "name": "n5", "share": 40}]
    table.delete("id = 40")
    assert read(table) == [row for row in wanted if row["id"] != 40]
    with pytest.raises(SourceFileChanged, match="60 rows"):
        table.scan(where="id = 41", columns=["name"]).to_arrow()


@pytest.mark.parametrize("bad_rows", ["fail", "permit"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_csv_with_lines_in_fields_and_torn_rows(suffix: str, bad_rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 512)
    draw = random.Random(5)
    _, store, lake = counted_lake()
    lines = ["id,name,share"]
    for number in range(400):
        name = draw.choice(["a", "b\n", "c,\r\n", 'd""e', "\n\n"])
        lines.append(f'{number},"{name}",{number / 4}')
        if bad_rows == "permit" and draw.randrange(5) == 0:
            lines.append(draw.choice([f"{number},torn", f"x{number},bad,y", ""]))
    store.put(f"in/a.csv{suffix}", COMPRESSED[suffix]("\n".join(lines).encode()))
    plain = table_of(lake, store, "csv", SCHEMA, suffix=suffix, name="plain", bad_rows=bad_rows)
    quick = table_of(lake, store, "csv", SCHEMA, suffix=suffix, name="quick", bad_rows=bad_rows, precompute=["id", "share"])
    for table in (plain, quick):
        table.refresh_files()
        table.delete("id % 7 = 3")
    for number in (0, 57, 399):
        for where in (f"id = {number}", f"share < {number / 4}", f"id in ({number}, 20)", "id is null"):
            assert read(quick, where=where) == read(plain, where=where)
            assert read(quick, where=where, columns=["name"]) == read(plain, where=where, columns=["name"])
