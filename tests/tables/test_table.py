"""Tables through the public API: what was acknowledged is there, each key once, at every slot."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import objcat
from fileio.errors import FileIOError
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.common.validation import TableType
from objcat.errors import (
    CommitUnknown,
    CorruptTable,
    InvalidBatch,
    InvalidInput,
    InvalidPredicate,
    InvalidSchema,
    NullKey,
    TableExists,
    TableNotFound,
)
from objcat.inspection.doctor import examine

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("fare", pa.float64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("lake")))


def row(key: int, fare: float = 1.0, *, city: str | None = "Oslo", hours: int = 0) -> dict[str, Any]:
    return {"id": key, "city": city, "fare": fare, "at": NOON + dt.timedelta(hours=hours)}


def fares(table: objcat.Table, **scan: Any) -> dict[int, float]:
    rows = table.scan(**scan).to_arrow().to_pylist()
    assert len({r["id"] for r in rows}) == len(rows), "a key is there twice"
    return {r["id"]: r["fare"] for r in rows}


def test_upsert_insert_delete_and_time_travel(lake: objcat.Lake) -> None:
    table = lake.create_table("trips", SCHEMA, key=["id"])
    table.insert([row(i) for i in range(10)])
    table.upsert([row(i, 2.0) for i in range(5, 15)])
    result = table.delete([{"id": 0}, {"id": 99}])
    expected = dict.fromkeys(range(1, 5), 1.0) | dict.fromkeys(range(5, 15), 2.0)
    assert fares(table) == expected
    assert fares(lake.table("trips")) == expected
    assert result.slot == 3
    assert fares(table, as_of=1) == dict.fromkeys(range(10), 1.0)
    assert fares(table, as_of=0) == {}
    when = dt.datetime.fromtimestamp(table.inspect.history()[2].committed_at_ms / 1000, dt.UTC)
    assert fares(table, as_of=when) == {0: 1.0} | expected
    assert fares(table, as_of=when.isoformat()) == {0: 1.0} | expected


def test_the_later_commit_wins_without_an_ordering_column(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    table.upsert([row(1, 5.0, hours=9)])
    table.upsert([row(1, 4.0, hours=1), row(1, 3.0, hours=1)])
    assert fares(table) == {1: 3.0}


def test_the_greater_ordering_value_wins_whenever_it_arrives(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], ordering="at")
    table.upsert([row(1, 5.0, hours=9), row(1, 4.0, hours=8)])
    table.upsert([row(1, 3.0, hours=1)])
    assert fares(table) == {1: 5.0}
    table.upsert([row(1, 6.0, hours=9)])
    assert fares(table) == {1: 6.0}


def test_a_delete_with_an_ordering_value_keeps_older_late_rows_out(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], ordering="at")
    table.upsert([row(1, 1.0, hours=5), row(2, 1.0, hours=5)])
    table.delete(pa.Table.from_pylist([row(1, hours=6), row(2, hours=4)]).select(["id", "at"]))
    assert fares(table) == {2: 1.0}
    table.upsert([row(1, 9.0, hours=5)])
    assert fares(table) == {2: 1.0}
    table.delete([{"id": 2}])
    table.upsert([row(2, 7.0, hours=0)])
    assert fares(table) == {2: 7.0}


def test_where_and_columns(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    table.insert([row(1, city=None), row(2, 3.5), row(3, 9.0, city="O'Hare")])
    table.upsert([row(2, 4.5)])
    found = table.scan(where="fare > 4 and fare <= 9", columns=["city", "id"]).to_arrow()
    assert found.column_names == ["city", "id"]
    assert found.sort_by("id").to_pylist() == [{"city": "Oslo", "id": 2}, {"city": "O'Hare", "id": 3}]
    assert fares(table, where="city is null") == {1: 1.0}
    assert fares(table, where="city <> 'Oslo'") == {3: 9.0}
    assert fares(table, where="not city in ('Oslo')") == {3: 9.0}
    assert fares(table, where="at = '2026-01-01 12:00:00' and id between 2 and 7") == {2: 4.5, 3: 9.0}


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("fare >", "does not parse"),
        ("fair > 1", "did you mean 'fare'"),
        ("fare + 1 > 2", "cannot push down"),
        ("at > 'noon'", "Cast one of them"),
        ("at > 1700000000", "Cast one of them"),
        ("at in (1700000000)", "Cast one of them"),
        ("at = date '2026-01-01 12:00:00'", "Cast one of them"),
        ("at = cast('2026-01-01 12:00:00' as date)", "Cast one of them"),
        ("at = to_date('2026-02-01', 'yyyy-dd-MM')", "cannot push down"),
        ("city < date '2026-01-01'", "Cast one of them"),
        ("fare = -'1'", "cannot push down"),
    ],
)
def test_a_filter_that_does_not_fit_is_refused(lake: objcat.Lake, where: str, says: str) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    with pytest.raises(InvalidPredicate, match=says):
        table.scan(where=where)


@pytest.mark.parametrize(
    ("batch", "error", "says"),
    [
        ([], InvalidBatch, "is empty"),
        (pa.Table.from_pylist([], schema=SCHEMA), InvalidBatch, "is empty"),
        ([{"city": "x"}], InvalidBatch, "lacks the column 'id'"),
        ([{"id": None, "city": "x"}, {"id": 1, "city": "x"}], NullKey, "'id' is null in row 0"),
        ([{"id": 1, "citty": "x"}], InvalidBatch, "did you mean 'city'"),
        ([{"id": "one"}], InvalidBatch, "Cast it yourself"),
        ([{"id": 1.5}], InvalidBatch, "does not cast without loss"),
        ([{"id": 1, "at": dt.datetime(2026, 1, 1)}], InvalidBatch, "would have to guess. Nothing was written. Cast it yourself"),
        (7, InvalidBatch, "not a batch of rows"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_nothing_is_written(
    lake: objcat.Lake, batch: Any, error: type[Exception], says: str
) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    before = keys_of(lake)
    with pytest.raises(error, match=says):
        table.upsert(batch)
    with pytest.raises(error, match=says if error is not InvalidBatch or batch != 7 else "batch of rows"):
        table.insert(batch)
    assert keys_of(lake) == before


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"key": []}, InvalidInput, "needs a key"),
        ({"key": ["idd"]}, InvalidInput, "did you mean 'id'"),
        ({"key": ["id"], "ordering": "att"}, InvalidInput, "did you mean 'at'"),
        ({"key": ["id"], "index": objcat.BucketIndex(0)}, InvalidInput, "1 to 65536"),
        ({"key": ["id"], "index": objcat.BucketIndex(4, columns=("city",))}, InvalidInput, "can only hash key columns"),
        ({"key": ["id"], "table_type": "merge_on_reed"}, InvalidInput, "did you mean 'merge_on_read'"),
        ({"key": ["id"], "schema": pa.schema([("id", pa.uint64())])}, InvalidSchema, r"decimal\(20,0\)"),
        ({"key": ["id"], "schema": pa.schema([("id", pa.int64()), ("ID", pa.int64())])}, InvalidSchema, "more than case"),
        ({"key": ["id"], "schema": pa.schema([("id", pa.int64()), ("_objcat_x", pa.int64())])}, InvalidSchema, "reserved"),
    ],
)
def test_settings_that_do_not_fit_are_refused_and_nothing_is_created(
    lake: objcat.Lake, settings: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        lake.create_table("t", settings.pop("schema", SCHEMA), **settings)
    assert list(lake.fileio.list_keys()) == []


def test_one_of_many_creators_wins_and_the_others_learn_who(lake: objcat.Lake) -> None:
    outcomes: list[str] = []

    def create() -> None:
        try:
            lake.create_table("t", SCHEMA, key=["id"])
            outcomes.append("created")
        except TableExists as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("created") == 1
    winner = lake.table("t").inspect.history()[0].txn
    assert all(winner in outcome for outcome in outcomes if outcome != "created")


def test_a_table_that_is_not_there(lake: objcat.Lake) -> None:
    with pytest.raises(TableNotFound, match=r"lake\.create_table"):
        lake.table("nothing")
    with pytest.raises(InvalidInput, match="not a table name"):
        lake.table("a/b")


def test_first_inserts_into_one_bucket_at_once_both_land(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    handles = [lake.table("t") for _ in range(6)]
    barrier = threading.Barrier(6)

    def insert(number: int) -> None:
        barrier.wait()
        handles[number].insert([row(number * 100 + i) for i in range(50)])

    threads = [threading.Thread(target=insert, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fares(table)) == sorted(n * 100 + i for n in range(6) for i in range(50))
    bases = {group.group_id: group.base for group in table.refresh().file_groups(table._context.manifests)}
    assert sum(base is not None for base in bases.values()) == 2


def test_values_survive(lake: objcat.Lake) -> None:
    schema = pa.schema(
        [
            pa.field("k1", pa.string()),
            pa.field("k2", pa.decimal128(20, 4)),
            pa.field("b", pa.binary()),
            pa.field("d", pa.date32()),
            pa.field("t", pa.timestamp("us")),
            pa.field("f", pa.float32()),
            pa.field("s", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.list_(pa.string()))])),
            pa.field("m", pa.map_(pa.string(), pa.float64())),
        ]
    )
    rows = [
        {
            "k1": "",
            "k2": Decimal("0.0000"),
            "b": b"",
            "d": dt.date(1900, 1, 1),
            "t": dt.datetime(1, 1, 1),
            "f": -0.0,
            "s": None,
            "m": [("a", 1.0)],
        },
        {"k1": "日本\0é", "k2": Decimal("-1.5000"), "b": None, "d": None, "t": None, "f": None, "s": {"x": 1, "y": ["a", None]}, "m": None},
    ]
    table = lake.create_table("t", schema, key=["k1", "k2"])
    table.insert(pa.Table.from_pylist(rows[:1], schema=schema))
    table.upsert(pa.Table.from_pylist(rows, schema=schema))
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda r: r["k1"]) == rows


def test_frames_of_other_libraries(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    frame = pl.DataFrame([row(1), row(2)])
    table.upsert(frame)
    table.upsert(pa.Table.from_pylist([row(3)]).to_pandas())
    table.upsert(pa.Table.from_pylist([row(4)]).to_batches()[0])
    assert sorted(fares(table)) == [1, 2, 3, 4]


def test_a_lost_response_of_the_commit_is_acknowledged_once() -> None:
    memory = MemoryBackend("lost")
    lake = objcat.Lake(FileIO(memory))
    lake.create_table("t", SCHEMA, key=["id"])
    rule = Rule(kinds=frozenset({"put"}), key=is_table_slot, fault=Fault.AFTER)
    shaky = objcat.Lake(FileIO(FaultyBackend(memory, [rule]))).table("t")
    assert shaky.upsert([row(1)]).slot == 1
    assert [entry.slot for entry in lake.table("t").inspect.history()] == [0, 1]


def is_table_slot(key: str) -> bool:
    return key.startswith("tables/") and "/log/" in key


def keys_of(lake: objcat.Lake) -> set[str]:
    """Every object but the hints, which are put in the background."""
    return {key for key in lake.fileio.list_keys() if not key.endswith("head.json")}


def test_an_unknown_commit_deletes_nothing() -> None:
    memory = MemoryBackend("unknown")
    lake = objcat.Lake(FileIO(memory))
    lake.create_table("t", SCHEMA, key=["id"])
    opened = FileIO(
        FaultyBackend(
            memory,
            [
                Rule(kinds=frozenset({"put"}), key=is_table_slot, fault=Fault.AFTER, times=100),
                Rule(kinds=frozenset({"get", "head"}), key=is_table_slot, fault=Fault.BEFORE, nth=7, times=100),
            ],
        ),
        policy=RetryPolicy(attempts_max=2),
    )
    table = objcat.Lake(opened).table("t")
    with pytest.raises(CommitUnknown) as caught:
        table.upsert([row(1)])
    assert fares(lake.table("t")) == {1: 1.0}
    assert lake.table("t").inspect.history()[1].txn == caught.value.txn


def test_a_write_that_certainly_failed_leaves_no_files() -> None:
    memory = MemoryBackend("failed")
    lake = objcat.Lake(FileIO(memory))
    lake.create_table("t", SCHEMA, key=["id"])
    before = keys_of(lake)
    rule = Rule(kinds=frozenset({"put"}), key=lambda key: "/log/" in key, fault=Fault.THROTTLE, times=100)
    shaky = objcat.Lake(FileIO(FaultyBackend(memory, [rule]), policy=RetryPolicy(attempts_max=2))).table("t")
    with pytest.raises(FileIOError):
        shaky.upsert([row(1)])
    shaky._context.fileio.env.submit(lambda: None).result()
    assert fares(lake.table("t")) == {}
    assert {key for key in keys_of(lake) if "/intents/" not in key} == before


def test_a_handle_sees_what_others_commit(lake: objcat.Lake) -> None:
    mine = lake.create_table("t", SCHEMA, key=["id"])
    theirs = lake.table("t")
    theirs.upsert([row(1)])
    mine.upsert([row(2)])
    assert sorted(fares(theirs)) == sorted(fares(mine)) == [1, 2]


def test_bytes_on_disk_are_plain_parquet_that_others_read(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    table.insert([row(i) for i in range(100)])
    (base,) = (tmp_path / "tables").glob("*/data/**/*.parquet")
    read = pq.read_table(base)
    assert read.column("id").to_pylist() == list(range(100))
    assert set(read.column("_objcat_txn").to_pylist()) == {table.inspect.history()[1].txn}
    assert pq.ParquetFile(base).schema_arrow.field("fare").metadata[b"PARQUET:field_id"] == b"3"


@pytest.mark.parametrize(
    ("scan", "says"),
    [
        ({"columns": []}, "selects nothing"),
        ({"columns": ["fair"]}, "did you mean 'fare'"),
        ({"columns": ["id", "id"]}, "twice"),
        ({"as_of": 7}, "no slot 7"),
        ({"as_of": -1}, "no slot -1"),
        ({"as_of": 1.5}, "neither a slot nor a time"),
        ({"as_of": "yesterday"}, "not a time"),
        ({"as_of": "1999-01-01"}, "did not exist"),
    ],
)
def test_a_scan_that_cannot_be_is_refused(lake: objcat.Lake, scan: dict[str, Any], says: str) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    with pytest.raises(InvalidInput, match=says):
        table.scan(**scan)


def test_resolve_settles_an_unknown_commit_and_refuses_what_is_no_transaction(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    result = table.upsert([row(1)])
    assert table.resolve(result.txn) == objcat.CommittedAt(1)
    dead = "20260101T000000000Z-0123456789abcdef"
    assert table.resolve(dead) == objcat.RolledBackAt(2, files=0)
    table.upsert([row(2)])
    assert sorted(fares(table)) == [1, 2]
    for text in ("", "a typo", "../x", dead + "\n"):
        with pytest.raises(InvalidInput, match="not a transaction id"):
            table.resolve(text)


@pytest.mark.parametrize("operation", ["upsert", "insert", "delete"])
@pytest.mark.parametrize("recreated", [False, True])
def test_a_table_deleted_by_hand_under_a_handle_acknowledges_nothing(lake: objcat.Lake, operation: str, recreated: bool) -> None:
    place = lake.fileio.child("t")
    table = objcat.create_table_at(place, SCHEMA, key=["id"])
    table.upsert([row(1)])
    place.delete(list(place.list_keys()))
    if recreated:
        objcat.create_table_at(place, SCHEMA, key=["id"]).upsert([row(9)])
    before = {key for key in place.list_keys() if "intents/" not in key}
    with pytest.raises(TableNotFound, match="deleted by hand"):
        getattr(table, operation)([row(2)])
    assert {key for key in place.list_keys() if "intents/" not in key} == before


NOBODY = "20260101T000000000Z-0123456789abcdef"
ELSEWHERE: dict[str, Callable[[objcat.Table], object]] = {
    "resolve": lambda table: table.resolve(NOBODY),
    "rollback_dead": lambda table: table.maintenance.rollback_failed_writes(older_than_s=0),
    "set_properties": lambda table: table.set_properties({"owner": "ana"}),
    "add_column": lambda table: table.alter.add_column("note", pa.string()),
    "history": lambda table: table.inspect.history(),
    "newest of the history": lambda table: table.inspect.history(limit=1),
}


@pytest.mark.parametrize("call", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_log_deleted_by_hand_under_a_handle_is_neither_written_nor_taken_for_an_empty_one(
    lake: objcat.Lake, call: Callable[[objcat.Table], object]
) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    table.upsert([row(1)])
    table.upsert([row(2)])
    lake.fileio.delete(list(lake.fileio.list_keys()))
    with pytest.raises(TableNotFound, match=r"deleted by hand|Create it"):
        call(table)
    # A slot above those that are gone would let the next write of this handle pass, and no reader would come that far.
    with pytest.raises(TableNotFound, match="deleted by hand"):
        table.upsert([row(3)])
    assert list(lake.fileio.list_keys()) == []


@pytest.mark.parametrize("name", ["t", "u"])
def test_names_of_a_lake_deleted_by_hand_under_a_handle_are_not_changed(lake: objcat.Lake, name: str) -> None:
    lake.create_table("t", SCHEMA, key=["id"])
    lake.fileio.delete(list(lake.fileio.list_keys()))
    with pytest.raises(TableNotFound, match="deleted by hand"):
        lake.drop_table("t") if name == "t" else lake.create_table(name, SCHEMA, key=["id"])
    assert [key for key in keys_of(lake) if "_catalog" in key] == []


def test_a_scan_of_a_file_that_was_deleted_by_hand_says_so(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    table.upsert([row(1)])
    scan = table.scan()
    table._context.fileio.delete(list(table._context.fileio.list_keys("data/")))
    with pytest.raises(CorruptTable, match=r"If a clean passed the slot .* deleted by hand"):
        scan.to_arrow()


def test_importing_it_loads_no_library_that_only_some_calls_need() -> None:
    heavy = ("boto3", "google.cloud.storage", "azure", "pandas", "polars", "duckdb", "pyspark")
    code = f"import sys, objcat; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_checkpoints_load_nothing_beside_the_commits_that_they_follow(tmp_path: Path) -> None:
    """What a library takes to load, up to 0.2 s, whoever commits meanwhile waits for."""
    code = f"""if True:
        import sys, objcat, pyarrow as pa
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
        table = objcat.connect({str(tmp_path)!r}).create_table("t", schema, key=["id"])
        def write(n):
            table.upsert(pa.table({{"id": [n, n + 1], "v": ["a", "b"]}}))
        write(0)
        known = set(sys.modules)
        for n in range(1, 100):
            write(n)
        print([name for name in set(sys.modules) - known if name.partition(".")[0] in ("pandas", "pyarrow")])
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert len(list(tmp_path.rglob("root.json"))) > 1


def delete_and_write(lake: objcat.Lake, row: dict[str, Any]) -> None:
    with lake.transaction() as tx:
        tx["t"].delete([{name: row[name] for name in (".g", "g")}])
        tx["t"].upsert([row])


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("index", [objcat.BucketIndex(1), objcat.RecordIndex(2)], ids=lambda index: type(index).__name__)
def test_a_name_that_begins_with_a_dot_is_no_path(tmp_path: Path, index: objcat.BucketIndex | objcat.RecordIndex, kind: TableType) -> None:
    """Arrow sorts, groups and joins by the column `g` where text says `.g`."""
    lake = objcat.connect(tmp_path)
    schema = pa.schema([pa.field(name, pa.int64(), nullable=name == "v") for name in (".g", "g", "v", ".o")])
    table = lake.create_table("t", schema, key=[".g", "g"], ordering=".o", index=index, table_type=kind)
    expected: dict[tuple[int, int], int] = {}
    for turn in range(3):
        rows = [{".g": n * (turn + 1) % 23, "g": n % 2, "v": turn, ".o": turn} for n in range(46)]
        table.upsert(pa.Table.from_pylist(rows, schema))
        expected |= {(row[".g"], row["g"]): turn for row in rows}
        found = table.scan().to_arrow()
        assert found.num_rows == len(expected) and {(row[".g"], row["g"]): row["v"] for row in found.to_pylist()} == expected
    for net in (False, True):
        ends = {(row[".g"], row["g"]): row["v"] for row in table.changes(since=0, net=net).to_arrow().to_pylist() if row["v"] is not None}
        assert ends == expected
    delete_and_write(lake, {".g": 3, "g": 1, "v": 1, ".o": 0})
    with lake.transaction() as tx:
        tx["t"].replace_range([{".g": 4, "g": 0, "v": 5, ".o": 0}], where="g = 0 AND v >= 0 AND `.g` = 4")
    assert {(row[".g"], row["g"]): row["v"] for row in table.scan().to_arrow().to_pylist()} == expected | {(3, 1): 1, (4, 0): 5}
    table.maintenance.compact()
    assert table.scan().to_arrow().num_rows == len(expected)
    assert examine(table._context.timeline, deep=True).healthy


def test_rows_without_a_key_are_sorted_by_the_column_that_is_named(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", pa.schema([("a", pa.int64()), (".a", pa.int64())]), key=None)
    table.bulk_insert(pa.table({"a": range(9), ".a": [5, 3, 8, 1, 0, 7, 2, 6, 4]}), sort=[".a"])
    assert table.scan().to_arrow()[".a"].to_pylist() == list(range(9))


class _Courteous(FakeEnv):
    """Notes when work in the background lets urgent work pass, beside what is written."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__(1)
        self._seen = seen

    def give_way(self) -> None:
        self._seen.append("gives way")

    @contextmanager
    def urgent(self) -> Iterator[None]:
        self._seen.append("write begins")
        yield
        self._seen.append("write ends")


def test_a_checkpoint_lets_writes_pass_before_each_of_its_objects() -> None:
    """It takes as long as several small commits, and the commits beside it are waited for."""
    seen: list[str] = []
    backend = FaultyBackend(MemoryBackend("courteous"), before=lambda request: seen.append(f"{request.kind} {request.key}"))
    table = objcat.Lake(FileIO(backend, env=_Courteous(seen))).create_table("t", SCHEMA, key=["id"])
    for n in range(40):
        table.upsert([row(n)])
    told = [(before, what) for before, what in pairwise(seen) if what.startswith("put") and "/checkpoints/" in what]
    assert len(told) > 1
    for before, what in told:
        assert before == "gives way", what
    within = 0
    for what in seen:
        within += {"write begins": 1, "write ends": -1}.get(what, 0)
        assert not within or what != "gives way", "what is waited for waits for nobody"
    assert seen.count("write begins") == 40


def test_a_checkpoint_lets_writes_pass_between_the_columns_of_its_rows() -> None:
    """Its work on rows takes longer than a small commit, and holds what all threads of Python share."""
    seen: list[str] = []
    backend = FaultyBackend(MemoryBackend("courteous"), before=lambda request: seen.append(f"{request.kind} {request.key}"))
    schema = pa.schema([pa.field(f"c{n}", pa.int64(), nullable=n > 0) for n in range(20)])
    table = objcat.Lake(FileIO(backend, env=_Courteous(seen))).create_table("t", schema, key=["c0"])
    for number in range(60):
        table.upsert(pa.table([pa.array([number])] * 20, schema=schema))
    written = [at for at, what in enumerate(seen) if what.startswith("put") and "/checkpoints/" in what and what.endswith(".parquet")]
    courtesies = [seen[before:at].count("gives way") for before, at in pairwise([0, *written])]
    assert courtesies[0] > 20, "made of the commits"
    assert courtesies[-1] > 2 * 20, "and merged with those before"
