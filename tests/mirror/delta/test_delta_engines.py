"""Delta mirrors as Spark, DuckDB, ClickHouse, deltalake and polars read them, and what they refuse to write."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from fileio.registry import open_store
from fileio.testing.faults import Crash
from objcat.metadata.schema_evolution import AddColumn, ColumnChange, DropColumn, MoveColumn, RenameColumn, WidenColumn, evolve
from tests.engines.process import Engines, ReadRefused, running_engines
from tests.engines.readers.serve import Request
from tests.engines.rows import compare
from tests.mirror.delta.restarting import NEWEST, Written, follow, restarting
from tests.mirror.delta.synthetic import TABLE, History, spec_of, typed_row


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with running_engines() as running:
        yield running


def late(path: Path) -> History:
    """It begins at slot 7, and again after a gap."""
    table = History(open_store(path.as_uri()))
    one = table.file([{"id": number, "v": "a"} for number in range(10)], masked={1, 2})
    table.files = {one.file.path: one}
    mirror = table.mirror()
    mirror.write(table.begin(slot=7))
    grow(table, 4)
    mirror.write(table.begin(slot=30))
    grow(table, 4)
    return table


def shared(path: Path) -> History:
    """Its log belongs to several tables, so paths lead out of its folder; and it has checkpoints."""
    table = History(open_store(path.as_uri()), f"mirrors/{TABLE}/")
    table.mirror().write(table.begin())
    grow(table, 70)
    return table


def several(path: Path) -> History:
    """It has several small files, which an OPTIMIZE would join."""
    table = History(open_store(path.as_uri()))
    mirror = table.mirror()
    mirror.write(table.begin())
    mirror.write(table.add(*(table.file([{"id": number}, {"id": 4}], masked=set(range(number % 2))) for number in range(5))))
    return table


def grow(table: History, steps: int) -> None:
    rng = random.Random(5)
    mirror = table.mirror()
    for _ in range(steps):
        mirror.write(table.draw(rng))


TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("half", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", "UTC")),
        ("clock", pa.timestamp("us")),
        ("money", pa.decimal128(10, 2)),
        ("place", pa.struct([("x", pa.int32()), ("y z", pa.string())])),
        ("list", pa.list_(pa.int32())),
        ("map", pa.map_(pa.string(), pa.int32())),
    ]
)


WIDENED: list[ColumnChange] = [
    WidenColumn("number", "bigint"),
    WidenColumn("tiny", "double"),
    WidenColumn("small", "decimal(12,2)"),
    WidenColumn("money", "decimal(20,2)"),
    WidenColumn("half", "double"),
    WidenColumn("place.x", "bigint"),
    WidenColumn("list.element", "bigint"),
    WidenColumn("map.value", "bigint"),
]
RENAMED: list[ColumnChange] = [
    RenameColumn("text", "the, (text)"),
    DropColumn("flag"),
    AddColumn("flag", pa.string()),
    RenameColumn("place.x", "X"),
    MoveColumn("day", first=True),
]


def evolved(path: Path, *steps: list[ColumnChange]) -> History:
    """Every type, and then some changes of the schema, with files before and after each."""
    table = History(open_store(path.as_uri()), spec=spec_of(TYPES))
    mirror = table.mirror()
    mirror.write(table.begin())
    mirror.write(table.add(table.file([typed_row(number) for number in range(10)], masked={3})))
    for begin, step in enumerate(steps, 1):
        table.spec = evolve(table.spec, step)
        mirror.write(table.nothing())
        names = set(table.spec.table_schema.names)
        other = {"flag": "yes", "the, (text)": "new", "place": {"X": 5, "y z": "r"}} if "the, (text)" in names else {}
        rows = [typed_row(10 * begin + number, **other) for number in range(10)]
        mirror.write(table.add(table.file([{name: one[name] for name in one if name in names} for one in rows], masked={4})))
    mirror.write(table.mask({path: {0} for path in table.files}))
    return table


def wide(path: Path) -> History:
    """It begins after columns were widened, over files from before and after that."""
    table = History(open_store(path.as_uri()), spec=spec_of(TYPES))
    old = table.file([typed_row(number) for number in range(10)], masked={3})
    table.spec = evolve(table.spec, WIDENED)
    new = table.file([typed_row(number) for number in range(10, 20)])
    table.files = {one.file.path: one for one in (old, new)}
    mirror = table.mirror()
    mirror.write(table.begin(slot=9))
    mirror.write(table.mask({old.file.path: {1}}))
    return table


def expired(path: Path) -> History:
    """What its readable slots and a saved one do not need is gone."""
    table = History(open_store(path.as_uri()))
    table.mirror().write(table.begin())
    grow(table, 75)
    mirror = table.mirror()
    mirror.write(table.nothing(oldest_slot=70, saved=frozenset({5})))
    assert mirror.expire(modified_before_ms=1 << 60) > 0
    for slot in [slot for slot in table.rows_at if slot < 70 and slot != 5]:
        del table.rows_at[slot]
    return table


TABLES: dict[str, Callable[[Path], History]] = {
    "several": several,
    "expired": expired,
    "late": late,
    "shared": shared,
    "types": evolved,
    "renamed": lambda path: evolved(path, RENAMED),
    "wide": wide,
    "widened": lambda path: evolved(path, WIDENED, RENAMED),
}
REFUSED = {
    ("deltalake", "widened"): "TypeWidening",
    ("polars", "renamed"): "columnMapping",
    ("polars", "widened"): "typeWidening",
    ("polars", "wide"): "data type mismatch",
    ("polars", "shared"): "columnMapping",
    ("polars", "expired"): "columnMapping",
    ("chdb", "shared"): "should be inside the table directory",
}
"""What an engine cannot, by a part of its error: then it refuses the newest version."""
OWN_TYPES = {"chdb", "polars"}
"""Engines with other types, whose values are equal."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, History]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in TABLES.items()}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("engine", ["spark", "duckdb", "chdb", "deltalake", "polars"])
def test_an_engine_reads_every_version(engine: str, name: str, engines: Engines, tables: dict[str, History]) -> None:
    table = tables[name]
    why = REFUSED.get((engine, name))
    if why is not None:
        with pytest.raises(ReadRefused, match=why):
            engines[engine].read(Request("delta", table.url, "newest", table.slot, ""))
        return
    slots = sorted(table.rows_at)
    for slot in slots[:: 8 if engine == "spark" and name == "shared" else 1]:
        found = engines[engine].read(Request("delta", table.url, "travel", slot, ""))
        check(table, slot, found, engine)
    check(table, table.slot, engines[engine].read(Request("delta", table.url, "newest", table.slot, "")), engine)


@pytest.mark.parametrize("engine", ["spark", "duckdb", "chdb", "deltalake", "polars"])
def test_an_engine_refuses_a_restart_until_its_checkpoint_is_there(engine: str, engines: Engines, tmp_path: Path) -> None:
    """Another process puts the versions before it later. Applied to them, the restart would show rows twice."""
    written = Written(History(open_store(tmp_path.as_uri())))
    written.write(0, 1, 2, 3)
    puts_later = follow(4, 5, 6)(written)
    with pytest.raises(Crash):
        restarting(written, "before its checkpoint", lambda _: None).write(written.whole(NEWEST))
    puts_later()
    table = written.table
    with pytest.raises(ReadRefused, match="objcatNeedsCheckpoint"):
        engines[engine].read(Request("delta", table.url, "newest", NEWEST, ""))
    if engine == "spark":  # It looks at the newest version first, whichever is asked for.
        with pytest.raises(ReadRefused, match="objcatNeedsCheckpoint"):
            engines[engine].read(Request("delta", table.url, "travel", 6, ""))
    else:
        check(table, 6, engines[engine].read(Request("delta", table.url, "travel", 6, "")), engine)
    newest = written.mirror().newest()
    assert newest is not None and newest.slot == NEWEST
    check(table, NEWEST, engines[engine].read(Request("delta", table.url, "travel", NEWEST, "")), engine)
    check(table, NEWEST, engines[engine].read(Request("delta", table.url, "newest", NEWEST, "")), engine)


def check(table: History, slot: int, found: pa.Table, engine: str) -> None:
    difference = compare(table.tables_at[slot], found, empties=engine == "chdb")
    if difference is not None and engine in OWN_TYPES and difference.shapes:
        return
    assert difference is None, f"slot {slot}: {difference.text}"


FILTERS = ["id > 12", "id < 3", "day >= DATE '1969-12-25'", "money = 2.25", "text = 'ü4'", "small between 3 and 5", "tiny is null"]


@pytest.mark.parametrize("where", FILTERS)
@pytest.mark.parametrize("engine", ["spark", "duckdb"])
def test_an_engine_filters_by_statistics_without_losing_rows(engine: str, where: str, engines: Engines, tables: dict[str, History]) -> None:
    table = tables["types"]
    found = engines[engine].read(Request("delta", table.url, "newest", table.slot, "", f"select id from {{t}} where {where}"))
    every = engines[engine].read(Request("delta", table.url, "newest", table.slot, "", f"select id, ({where}) as w from {{t}}"))
    assert sorted(found["id"].to_pylist()) == sorted(one["id"] for one in every.to_pylist() if one["w"])


@pytest.mark.parametrize(
    "statement",
    [
        "delete from delta.`{0}` where id = 4",
        "update delta.`{0}` set v = 'x' where id = 4",
        "insert into delta.`{0}` values (1, 'x')",
        "vacuum delta.`{0}` retain 0 hours",
        "optimize delta.`{0}`",
        "alter table delta.`{0}` set tblproperties ('x' = 'y')",
        "restore table delta.`{0}` to version as of 0",
    ],
)
def test_spark_refuses_to_write(statement: str, engines: Engines, tables: dict[str, History]) -> None:
    table = tables["several"]
    before = set(table.fileio.list_keys())
    with pytest.raises(ReadRefused, match="objcatMirror"):
        engines["spark"].read(Request("delta", "", "write", 0, "", statement.format(table.url)))
    # Files that it could not commit stay where Spark puts them: not in a folder of objcat, and no log names them.
    left = set(table.fileio.list_keys())
    assert before <= left and not any("/" in key for key in left - before)


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.delete("id = 4"),
        lambda table: table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True),
        lambda table: table.optimize.compact(),
        lambda table: deltalake.write_deltalake(table, pa.table({"id": [1], "v": ["x"]}), mode="append"),
        lambda table: table.restore(0),
    ],
)
def test_deltalake_refuses_to_write(write: Callable[[deltalake.DeltaTable], object], tables: dict[str, History]) -> None:
    table = tables["several"]
    # A VACUUM that has nothing to delete asks for no feature.
    table.fileio.put("no-version-names-it.parquet", b"of nobody")
    before = sorted(table.fileio.list_keys())
    with pytest.raises(Exception, match="objcatMirror"):
        write(deltalake.DeltaTable(table.url))
    assert sorted(table.fileio.list_keys()) == before
