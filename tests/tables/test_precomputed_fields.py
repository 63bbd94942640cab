"""Fields of structs that are precomputed without their column: same rows, no request for the source, and bounds that exclude no row."""

from __future__ import annotations

import io
import json
import random
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.faults import FaultyBackend
from objcat.errors import CorruptTable, InvalidInput, SourceFileChanged, UnsupportedFormat
from objcat.inspection.doctor import examine
from objcat.lake.lake import Lake
from objcat.metadata.column_parts import field_at
from objcat.metadata.in_place import FilesInPlace
from objcat.timeline import entry as entries
from tests.effort import effort, seeds
from tests.tables.in_place import Row, in_order, of_lake, read

USER = pa.struct([("name", pa.string()), ("age", pa.int32())])
PAYLOAD = pa.struct([("status", pa.int64()), ("user", USER), ("tags", pa.list_(pa.string())), ("share", pa.float64())])
SCHEMA = pa.schema([("id", pa.int64()), ("payload", PAYLOAD), ("note", pa.string())])
NAMED = ["id", "payload.status", "payload.user.name"]


def events(begin: int, end: int) -> list[Row]:
    """Rows with structs. Some structs are null, on both levels, and so are some fields."""

    def payload(number: int) -> Row | None:
        if number % 7 == 3:
            return None
        user = None if number % 5 == 1 else {"name": None if number % 11 == 2 else f"u{number % 4}", "age": number}
        return {"status": None if number % 13 == 0 else number, "user": user, "tags": ["a"] * (number % 3), "share": number / 4}

    return [{"id": number, "payload": payload(number), "note": f"n{number % 3}"} for number in range(begin, end)]


def as_json(given: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in given).encode()


def as_parquet(given: Sequence[Row]) -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(given), SCHEMA), made, row_group_size=7)
    return made.getvalue()


def as_orc(given: Sequence[Row]) -> bytes:
    made = io.BytesIO()
    orc.write_table(pa.Table.from_pylist(list(given), SCHEMA), made)
    return made.getvalue()


def as_avro(given: Sequence[Row]) -> bytes:
    made = io.BytesIO()
    user = {"type": "record", "name": "u", "fields": [{"name": "name", "type": ["null", "string"]}, {"name": "age", "type": "int"}]}
    payload = {
        "type": "record",
        "name": "p",
        "fields": [
            {"name": "status", "type": ["null", "long"]},
            {"name": "user", "type": ["null", user]},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "share", "type": "double"},
        ],
    }
    fields = [{"name": "id", "type": "long"}, {"name": "payload", "type": ["null", payload]}, {"name": "note", "type": "string"}]
    fastavro.writer(made, {"type": "record", "name": "r", "fields": fields}, list(given))
    return made.getvalue()


FORMATS: dict[str, Callable[[Sequence[Row]], bytes]] = {"json": as_json, "parquet": as_parquet, "orc": as_orc, "avro": as_avro}


def table_of(lake: objcat.Lake, kind: str = "json", precompute: Sequence[str] = NAMED, name: str = "t", **settings: Any) -> objcat.Table:
    url = lake.fileio.url.removesuffix("/lake")
    source: Any = objcat.Files(f"{url}/in/*.{kind}", format=kind, precompute=precompute, **settings)  # type: ignore[arg-type]
    return lake.create_table(name, SCHEMA, source=source)


def chosen_fields(table: objcat.Table) -> tuple[int, ...]:
    """The ids of the fields that a table wants precomputed."""
    settings = table.spec.in_place
    assert isinstance(settings, FilesInPlace)
    return settings.precompute_fields


def field_id(table: objcat.Table, *path: str) -> int:
    return field_at(table.spec.table_schema, path).id


class Watched:
    """A lake over sources, and the requests that reach the sources."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        backend = MemoryBackend(secrets.token_hex(4))
        self.store = FileIO(backend)
        self.lake = Lake(FileIO(FaultyBackend(backend, before=self.requests.append)).child("lake"))

    def asked(self) -> int:
        """How many requests have asked for source files since the last call."""
        count = sum(request.key.startswith("in/") for request in self.requests)
        self.requests.clear()
        return count


FILTERS: list[str | None] = [
    None,
    "payload.status = 33",
    "payload.status is null",
    "payload.status is not null and id > 40",
    "payload is null",
    "payload.user.name = 'u1'",
    "payload.user is null and payload.status > 20",
    "payload.user.age > 30 and payload.status < 50",
    "payload.status in (5, 6, 7, 108)",
    "not (payload.status > 30)",
    "payload.status between 30 and 35 or note = 'n1'",
    "payload.share > 10",
    "payload.status < 0",
]
COLUMNS: list[list[str] | None] = [
    None,
    ["payload.status"],
    ["note", "payload.user.name"],
    ["payload.user.name", "id", "payload.status"],
    ["payload.user"],
    ["payload.tags", "payload.status"],
    ["_file", "payload.status"],
]


@pytest.mark.parametrize("kind", FORMATS)
def test_answers_are_those_without_precomputed_fields(kind: str) -> None:
    store, lake = of_lake()
    for number in range(3):
        store.put(f"in/{number}.{kind}", FORMATS[kind](events(number * 100, number * 100 + 60)))
    plain, quick = table_of(lake, kind, (), "plain"), table_of(lake, kind, NAMED, "quick")
    for table in (plain, quick):
        table.refresh_files()
        table.delete("payload.status between 20 and 22 or id = 159 or payload.user.name = 'u3'")
    assert read(plain) != in_order([*events(0, 60), *events(100, 160), *events(200, 260)])
    for where in FILTERS:
        for columns in COLUMNS:
            assert read(quick, where=where, columns=columns) == read(plain, where=where, columns=columns), (where, columns)


def test_a_query_of_precomputed_fields_never_asks_for_a_source() -> None:
    watched = Watched()
    for number in range(3):
        watched.store.put(f"in/{number}.json", as_json(events(number * 10, number * 10 + 10)))
    table = table_of(watched.lake)
    table.refresh_files()
    assert watched.asked() >= 3
    assert len(read(table, columns=["payload.status"])) == 30
    assert read(table, columns=["payload.user.name", "id"], where="payload.status = 18") == [
        {"payload": {"user": {"name": "u2"}}, "id": 18}
    ]
    assert table.scan(where="payload.status > 4").count() == sum(
        row["payload"] is not None and (row["payload"]["status"] or 0) > 4 for row in events(0, 30)
    )
    sql = watched.lake.sql
    assert sql("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 30}]
    assert sql("SELECT payload.status AS s FROM t WHERE payload.user.name = 'u2' AND payload.status > 20").to_pylist() == [{"s": 22}]
    assert sql("SELECT t.PAYLOAD.Status AS s FROM t ORDER BY s DESC LIMIT 1").to_pylist() == [{"s": 29}]
    joined = "SELECT count(*) AS n FROM t a JOIN t b ON a.payload.status = b.payload.status + 1 WHERE a.payload.user.name IS NOT NULL"
    known = {row["id"]: row["payload"]["user"] for row in events(0, 30) if row["payload"] and row["payload"]["status"] is not None}
    pairs = [one for one, user in known.items() if one - 1 in known and user and user["name"] is not None]
    assert sql(joined).to_pylist() == [{"n": len(pairs)}]
    assert watched.asked() == 0
    assert read(table, where="payload.user.name = 'nobody'") == []
    assert watched.asked() == 0, "the positions of matches are precomputed"
    assert read(table, where="payload.status = 12") == events(12, 13)
    assert watched.asked() > 0
    assert table.scan(columns=["payload.status"]).explain().sources == {"precomputed": 3, "positions": 0, "whole": 0}
    assert table.scan(columns=["payload.user"]).explain().sources["whole"] == 3
    assert table.scan(columns=["payload"], where="payload.status = 12").explain().sources == {"precomputed": 0, "positions": 1, "whole": 0}
    assert sql("SELECT payload FROM t WHERE payload.status = 12").to_pylist() == [{"payload": events(12, 13)[0]["payload"]}]
    watched.store.put("in/1.json", b"{}\n")
    assert len(read(table, columns=["payload.status"])) == 30, "what was committed is still known"
    with pytest.raises(SourceFileChanged, match=r"in/1\.json"):
        read(table, where="payload.status = 12")


def test_bounds_of_fields_exclude_files_and_no_row() -> None:
    """Where masked rows were the ones with values, a stale count of nulls would exclude the file."""
    store, lake = of_lake()
    given = [{"id": n, "payload": {"status": None if n < 5 else n, "user": None, "tags": [], "share": 0}, "note": ""} for n in range(8)]
    store.put("in/a.json", as_json(given))
    store.put("in/b.json", as_json(events(100, 130)))
    table = table_of(lake, precompute=())
    table.refresh_files()
    assert table.scan(where="payload.status = 6").explain().read.base_files == 2
    table.delete("id in (0, 1, 2)")
    table.alter.set_precomputed(["payload.status"])
    table.maintenance.precompute()
    assert table.scan(where="payload.status = 6").explain().read.base_files == 1
    assert [row["id"] for row in read(table, where="payload.status > 4 and id < 50")] == [5, 6, 7]
    assert [row["id"] for row in read(table, where="payload.status is null and id < 50")] == [3, 4]
    table.delete("id in (3, 4)")
    assert table.scan(where="payload.status is null and id < 50").count() == 0
    assert [row["id"] for row in read(table, where="payload.status >= 7 and id < 50")] == [7]
    table.delete("id = 7")
    assert table.scan(where="payload.status between 7 and 50").explain().read.base_files == 0
    for _ in range(30):
        store.put(f"in/{secrets.token_hex(4)}.json", as_json(events(500, 501)))
        table.refresh_files()
    again = objcat.connect(lake.fileio.url).table("t")
    assert again.scan(where="payload.status = 6").explain().read.base_files == 1, "a checkpoint keeps bounds"
    table.alter.set_precomputed([])
    table.maintenance.precompute()
    assert table.scan(where="payload.status = 6").explain().read.base_files == 32
    assert not examine(table._context.timeline, deep=True).findings


def test_what_does_not_fit_beside_a_field_counts_as_before() -> None:
    """A value that does not fit makes a column null. So a source is read with the whole column, whichever fields are asked for."""
    store, lake = of_lake()
    lines = [b'{"id": 1, "payload": {"status": 5, "share": "much"}}', b'{"id": 2, "payload": {"status": 6, "share": 1}}', b"nothing"]
    store.put("in/a.json", b"\n".join(lines))
    plain, quick = (table_of(lake, "json", names, name, bad_rows="permit") for names, name in (((), "plain"), (NAMED, "quick")))
    for table in (plain, quick):
        table.refresh_files()
    for where in (None, "payload.status = 5", "payload.status is null", "payload.status = 6"):
        for columns in (["payload.status"], ["payload.share"], None):
            assert read(quick, where=where, columns=columns) == read(plain, where=where, columns=columns)


def test_fields_are_renamed_dropped_and_chosen_later() -> None:
    watched = Watched()
    watched.store.put("in/a.json", as_json(events(0, 20)))
    table = table_of(watched.lake, precompute=["payload.status"])
    table.refresh_files()
    table.alter.rename_column("payload.status", "code")
    watched.asked()
    assert sorted(row["payload"]["code"] for row in read(table, columns=["payload.code"], where="payload.code > 15")) == [16, 18, 19]
    assert watched.asked() == 0
    table.alter.set_precomputed(["payload.code", "payload.user"])
    assert table.maintenance.precompute().files == 1 and table.maintenance.precompute().slots == ()
    watched.asked()
    assert len(read(table, columns=["payload.user.age", "payload.code"])) == 20 and watched.asked() == 0
    table.alter.drop_column("payload.code")
    assert chosen_fields(table) == (field_id(table, "payload", "user"),)
    assert table.maintenance.precompute().files == 1
    for name in ("payload.tags", "payload.share"):
        table.alter.drop_column(name)
    watched.asked()
    assert [row["payload"] for row in read(table, columns=["payload"], where="payload.user.age = 4")] == [
        {"user": {"name": "u0", "age": 4}}
    ]
    assert watched.asked() == 0, "its fields are all that there is of the column"
    table.alter.drop_column("payload")
    assert chosen_fields(table) == ()
    assert table.maintenance.precompute().files == 1 and len(read(table)) == 20


def test_a_promoted_table_has_whole_columns() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(events(0, 20)))
    table = table_of(lake)
    table.refresh_files()
    assert table.maintenance.promote().is_whole
    assert read(table) == in_order(events(0, 20))
    assert read(table, columns=["payload.status"]) == in_order(
        {"payload": row["payload"] and {"status": row["payload"]["status"]}} for row in events(0, 20)
    )


def test_fields_that_cannot_be_precomputed_are_refused() -> None:
    store, lake = of_lake()
    store.put("in/part=1/a.json", as_json(events(0, 3)))
    dotted = pa.schema(
        [*SCHEMA, ("a.b", pa.struct([("c.d", pa.int64())])), ("counts", pa.map_(pa.string(), pa.struct([("n", pa.int32())])))]
    )
    listed = dotted.append(pa.field("items", pa.list_(pa.struct([("n", pa.int32())]))))

    def create(*names: str) -> objcat.Table:
        source: Any = objcat.Files(f"{store.url}/in/part=*/*.json", format="json", path_columns=["part"], precompute=names)
        return lake.create_table(f"t{secrets.token_hex(4)}", listed, source=source)

    for names, message in {
        ("payload.stat",): "'payload.stat' is not there, since 'payload' has no field 'stat': did you mean 'status'",
        ("payload.user.nam",): "'user' has no field 'nam': did you mean 'name'",
        ("note.x",): "'note.x' leads into 'note', which is of type string and no struct. Name 'note' whole",
        ("items.n",): "leads into 'items', which is of type list and no struct",
        ("counts.n",): "leads into 'counts', which is of type map and no struct",
        ("payload.tags.element",): "leads into 'tags', which is of type list",
        ("nothing.x",): "no column 'nothing.x'",
        ("a.b.c.d",): "no column 'a.b.c.d'",
        ("payload..status",): "Put a name with a dot in it in backticks",
        ("payload", "payload.status"): "'payload', which is precomputed whole, and 'payload.status', which is inside",
        ("payload.user.name", "payload.user"): "'payload.user', which is precomputed whole",
        ("part.x",): "'part.x' leads into 'part'",
    }.items():
        with pytest.raises(InvalidInput, match=message):
            create(*names)
    whole, inside = create("a.b"), create("`a.b`.`c.d`")
    assert chosen_fields(whole) == () and chosen_fields(inside) == (field_id(inside, "a.b", "c.d"),)
    inside.refresh_files()
    assert read(inside, columns=["`a.b`.`c.d`"]) == [{"a.b": None}] * 3
    assert inside.scan(columns=["`a.b`.`c.d`"]).explain().sources["precomputed"] == 1


def test_a_reader_without_the_feature_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(events(0, 3)))
    table = table_of(lake)
    table.refresh_files()
    monkeypatch.setattr(entries, "READER_FEATURES", entries.READER_FEATURES - {"precomputed_fields"})
    with pytest.raises(UnsupportedFormat, match="precomputed_fields"):
        objcat.connect(lake.fileio.url).table("t").scan().to_arrow()


def test_columns_alone_need_no_feature_of_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier clients read stays readable to them."""
    store, lake = of_lake()
    store.put("in/a.json", as_json(events(0, 3)))
    table_of(lake, precompute=["id", "payload"]).refresh_files()
    monkeypatch.setattr(entries, "READER_FEATURES", entries.READER_FEATURES - {"precomputed_fields"})
    assert len(objcat.connect(lake.fileio.url).table("t").scan().to_arrow()) == 3


def test_damaged_fields_are_an_error() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(events(0, 20)))
    table = table_of(lake)
    table.refresh_files()
    key = next(key for key in lake.fileio.list_keys("tables/") if key.endswith(".columns.parquet"))
    data = lake.fileio.read(key)
    lake.fileio.put(key, data[:-9] + b"x" * 9)
    with pytest.raises(CorruptTable, match="columns"):
        read(table, columns=["payload.status"])


@pytest.mark.parametrize("table_type", ["merge_on_read", "copy_on_write"])
def test_any_table_is_read_by_fields(table_type: Any) -> None:
    _, lake = of_lake()
    table = lake.create_table("t", SCHEMA, key=["id"], table_type=table_type)
    table.insert(pa.Table.from_pylist(events(0, 20), SCHEMA))
    table.upsert(pa.Table.from_pylist([{**row, "note": "new"} for row in events(10, 30)], SCHEMA))
    scan = table.scan(columns=["payload.user.name", "note", "payload.status"], where="payload.user.age > 4")
    assert scan.schema.names == ["payload", "note"]
    assert scan.schema.field("payload").type == pa.struct([("status", pa.int64()), ("user", pa.struct([("name", pa.string())]))])
    expected = [
        {
            "payload": {"status": row["payload"]["status"], "user": {"name": row["payload"]["user"]["name"]}},
            "note": "new" if row["id"] >= 10 else row["note"],
        }
        for row in events(0, 30)
        if row["payload"] and row["payload"]["user"] and row["payload"]["user"]["age"] > 4
    ]
    assert in_order(scan.to_arrow().to_pylist()) == in_order(expected)
    assert in_order(scan.to_dataset().to_table(columns=["payload"]).to_pylist()) == in_order(
        {"payload": row["payload"]} for row in expected
    )
    with pytest.raises(InvalidInput, match="names a column twice"):
        table.scan(columns=["payload", "payload.status"])
    with pytest.raises(InvalidInput, match="names a column twice"):
        table.scan(columns=["payload.status", "payload.status"])
    with pytest.raises(InvalidInput, match="has no field 'stats': did you mean 'status'"):
        table.scan(columns=["payload.stats"])


@pytest.mark.parametrize("seed", seeds(3, with_all=30))
def test_random_queries_agree_with_a_model(seed: int) -> None:
    """Tables with random fields precomputed answer random filters and columns as one without."""
    drawn = random.Random(seed)
    store, lake = of_lake()
    kind = drawn.choice(sorted(FORMATS))
    leaves = ["payload.status", "payload.user.name", "payload.user.age", "payload.user", "payload.tags", "payload.share"]
    chosen = drawn.sample(["id", "note", *leaves], drawn.randrange(1, 4))
    if "payload.user" in chosen:
        chosen = [name for name in chosen if not name.startswith("payload.user.")]
    plain, quick = table_of(lake, kind, (), "plain"), table_of(lake, kind, chosen, "quick")
    terms = ["payload.status > {}", "payload.status = {}", "payload.user.age <= {}", "id < {}", "payload.user.name = 'u1'", "note = 'n0'"]
    terms += ["payload.status is null", "payload.user is null", "payload is not null", "not payload.share < {}"]

    def filtered() -> str:
        some = [drawn.choice(terms).format(drawn.randrange(0, 120)) for _ in range(drawn.randrange(1, 4))]
        return drawn.choice([" and ", " or "]).join(some)

    for _ in range(effort(5, with_all=8)):
        begin = drawn.randrange(0, 100)
        store.put(f"in/{secrets.token_hex(4)}.{kind}", FORMATS[kind](events(begin, begin + drawn.randrange(1, 40))))
        gone = filtered()
        for table in (plain, quick):
            table.refresh_files()
        if drawn.random() < 0.5:
            plain.delete(gone)
            quick.delete(gone)
        for _ in range(5):
            where, columns = filtered(), drawn.choice([None, drawn.sample(["id", "note"], 1) + drawn.sample(leaves[:3], 2)])
            assert read(quick, where=where, columns=columns) == read(plain, where=where, columns=columns), (kind, chosen, where, columns)
    assert not examine(quick._context.timeline, deep=True).findings


def test_entries_say_what_is_precomputed() -> None:
    """The stored form of the specification."""
    store, lake = of_lake()
    store.put("in/a.json", as_json(events(1, 9)))
    table = table_of(lake)
    table.refresh_files()
    key = max(key for key in lake.fileio.list_keys("tables/") if "/log/" in key)
    entry = json.loads(lake.fileio.read(key))
    assert {"precomputed_columns", "precomputed_fields"} <= set(entry["features"])
    (changes,) = entry["changes"].values()
    (base,) = changes["bases"]
    said = base["adopted"]["source"]["precomputed"]
    status, name = field_id(table, "payload", "status"), field_id(table, "payload", "user", "name")
    assert (said["columns"], said["fields"]) == ([1], [status, name])
    assert base["bounds"][str(status)] == [1, 8, 1]
    held = pq.read_schema(io.BytesIO(lake.fileio.read(next(k for k in lake.fileio.list_keys("tables/") if k.endswith(said["path"])))))
    assert held.field("payload").type.names == ["status", "user"] and held.field("payload").type.field("user").type.names == ["name"]
