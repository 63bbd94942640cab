"""Partitions, and tables, that are replaced whole or taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from fileio.testing.faults import FaultyBackend, Request
from objcat.errors import InvalidBatch, InvalidInput, InvalidPredicate
from objcat.inspection.doctor import examine
from objcat.timeline.entry import Action
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("v", pa.int64()),
        pa.field("at", pa.int64(), nullable=False),
    ]
)
KINDS = ("merge_on_read", "copy_on_write")
KEYS: list[dict[str, Any]] = [
    {"key": ["id"], "key_scope": "partition", "index": objcat.BucketIndex(2)},
    {"key": ["id"], "key_scope": "partition", "index": objcat.BucketIndex(2), "ordering": "at"},
    {"key": ["id"], "key_scope": "partition", "index": objcat.SimpleIndex()},
    {"key": None},
]


def batch(ids: range, *, cities: str = "abc", v: int = 0, at: int = 5) -> pa.Table:
    rows = [{"id": i, "city": cities[i % len(cities)], "day": None, "v": v + i, "at": at} for i in ids]
    return pa.Table.from_pylist(rows, SCHEMA)


def make(store: FileIO | None = None, *, partition_by: list[str] | None = None, **settings: Any) -> objcat.Table:
    lake = objcat.Lake(store or FileIO(MemoryBackend("over"), env=FakeEnv(3)))
    table = lake.create_table("t", SCHEMA, partition_by=["city"] if partition_by is None else partition_by, **settings)
    table.insert(batch(range(12)))
    table.upsert(batch(range(3), v=100)) if settings["key"] else table.insert(batch(range(20, 23)))
    return table


def rows(table: objcat.Table, **scan: Any) -> set[tuple[Any, ...]]:
    found = [tuple(row.values()) for row in table.scan(columns=["id", "city", "v"], **scan).to_arrow().to_pylist()]
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.parametrize("settings", KEYS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_the_partitions_of_the_batch_are_replaced(kind: str, settings: dict[str, Any]) -> None:
    table = make(table_type=kind, **settings)
    before = rows(table)
    result = table.insert_overwrite(batch(range(100, 104), cities="bd", at=1), metadata={"why": "again"})
    expected = {row for row in before if row[1] != "b"} | {(i, "bd"[i % 2], i) for i in range(100, 104)}
    assert rows(table) == expected and result.rows == result.inserted == 4
    entry = table.inspect.history()[-1]
    assert entry.action is Action.REPLACE and dict(entry.metadata) == {"why": "again"}
    assert rows(table, as_of=2) == before
    told = table.changes(since=2).to_arrow().to_pylist()
    assert {row["id"] for row in told if row["_change_type"] == "insert"} == set(range(100, 104))
    assert {row["id"] for row in told if row["_change_type"] == "delete"} == {row[0] for row in before if row[1] == "b"}
    assert {row["id"] for row in table.incremental(since=2).to_arrow().to_pylist()} == set(range(100, 104))
    # What comes later finds the new rows, and finds them alone.
    if settings["key"]:
        table.upsert(batch(range(100, 101), cities="b", v=7))
        expected = expected - {(100, "b", 100)} | {(100, "b", 107)}
    table.maintenance.compact()
    assert rows(table) == expected
    table.maintenance.clean(keep_slots=1)
    assert rows(table) == expected
    table.restore(to=table.refresh().slot - 1)
    assert rows(table) == expected


@pytest.mark.parametrize("settings", KEYS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_table_is_replaced(kind: str, settings: dict[str, Any]) -> None:
    table = make(table_type=kind, **settings)
    table.overwrite(batch(range(5), cities="x", at=1))
    assert rows(table) == {(i, "x", i) for i in range(5)}
    plain = make(table_type=kind, partition_by=[], **settings)
    plain.insert_overwrite(batch(range(5), cities="x", at=1))
    assert rows(plain) == {(i, "x", i) for i in range(5)}
    assert plain.inspect.stats().rows == 5


@pytest.mark.parametrize("settings", KEYS, ids=repr)
def test_partitions_that_a_filter_names_are_replaced(settings: dict[str, Any]) -> None:
    table = make(**settings)
    before = rows(table)
    with pytest.raises(InvalidBatch, match="not in the partitions"):
        table.insert_overwrite(batch(range(100, 104)), where="city in ('a', 'b')")
    table.insert_overwrite(batch(range(100, 102), cities="b"), where="city in ('a', 'b')")
    assert rows(table) == {row for row in before if row[1] == "c"} | {(100, "b", 100), (101, "b", 101)}
    table.insert_overwrite(batch(range(5, 6), cities="z"), where=pc.field("city") > "b")
    assert {row[1] for row in rows(table)} == {"b", "z"}


@pytest.mark.parametrize("settings", KEYS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_partitions_are_taken_away(kind: str, settings: dict[str, Any]) -> None:
    table = make(table_type=kind, **settings)
    before = rows(table)
    assert table.delete_partition("city = 'z'") is None and table.refresh().slot == 2
    result = table.delete_partition("city <> 'b'", metadata={"why": "old"})
    assert result is not None and result.files == 0
    assert rows(table) == {row for row in before if row[1] == "b"}
    assert {row["_change_type"] for row in table.changes(since=2).to_arrow().to_pylist()} == {"delete"}
    table.insert(batch(range(30, 31), cities="a"))
    assert (30, "a", 30) in rows(table)


def test_partitions_of_times() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("over"), env=FakeEnv(3)))
    table = lake.create_table("t", SCHEMA, key=["id"], key_scope="partition", partition_by=["month(day)"])
    days = ["2026-01-03", "2026-01-20", "2026-02-01", None]
    table.insert(pa.table({"id": range(4), "day": pc.cast(pa.array(days), pa.date32()), "at": [1] * 4}))
    with pytest.raises(InvalidInput, match="some rows of the partition"):
        table.delete_partition("day < date '2026-01-10'")
    assert table.refresh().slot == 1
    table.delete_partition("day < date '2026-02-01'")
    assert {row[0] for row in rows(table)} == {2, 3}
    table.delete_partition("day is null")
    assert {row[0] for row in rows(table)} == {2}


@pytest.mark.parametrize("where", ["city not in ('a', null)", "not (city in ('a', null))", "city <> null", "city not between 'a' and null"])
def test_a_filter_that_is_null_names_no_partition(where: str) -> None:
    table = make(partition_by=["city"], key=["id"], key_scope="partition")
    table.maintenance.compact()
    scan = table.scan(where=where)
    expected = rows(table, where=where)
    assert scan.count() == len(expected)
    held = rows(table)
    table.delete_partition(where)
    assert rows(table) == held - expected


def test_what_is_refused() -> None:
    table = make(**KEYS[0])
    with pytest.raises(InvalidInput, match="and the partition columns are"):
        table.delete_partition("v = 1")
    with pytest.raises(InvalidPredicate, match="did you mean"):
        table.delete_partition("citty = 'a'")
    with pytest.raises(InvalidBatch, match="empty"):
        table.overwrite(batch(range(0)))
    with pytest.raises(InvalidInput, match="no partitions"):
        make(partition_by=[], **KEYS[0]).delete_partition("city = 'a'")
    assert table.refresh().slot == 2


@pytest.mark.parametrize("settings", KEYS, ids=repr)
def test_rows_of_an_earlier_partitioning_are_not_replaced_with_those_of_a_partition(settings: dict[str, Any]) -> None:
    """What a batch belongs to is one partition of before, with rows of other cities."""
    table = make(partition_by=[], **settings)
    table.alter.set_partitioning(["city"])
    before = rows(table)
    with pytest.raises(InvalidInput, match="is of a previous partition spec and would be replaced whole"):
        table.insert_overwrite(batch(range(40, 42), cities="b"))
    with pytest.raises(InvalidInput, match="true of some rows of the partition '' and not of others"):
        table.insert_overwrite(batch(range(40, 42), cities="b"), where="city = 'b'")
    with pytest.raises(
        InvalidInput, match="true for rows of the batch in the file groups without a partition, and for no existing row there"
    ):
        table.insert_overwrite(batch(range(40, 42), cities="d"), where="city = 'd'")
    assert rows(table) == before
    table.overwrite(batch(range(40, 42)))
    assert rows(table) == {(40, "b", 40), (41, "c", 41)}
    assert table.inspect.partitions()["partition"].to_pylist() == ["city=b", "city=c"], (
        "where nothing is left, the present partitioning decides"
    )


MOVING: list[dict[str, Any]] = [{"key": ["id"], "index": objcat.SimpleIndex()}, {"key": ["id"], "index": objcat.RecordIndex(2)}]


@pytest.mark.parametrize("settings", [*KEYS, *MOVING], ids=repr)
def test_the_partition_without_a_name_is_one_of_several(settings: dict[str, Any]) -> None:
    """Where rows are partitioned no more, those of before still are."""
    table = objcat.Lake(FileIO(MemoryBackend("over"), env=FakeEnv(3))).create_table("t", SCHEMA, partition_by=["city"], **settings)
    table.insert(batch(range(6), cities="ab"))
    table.alter.set_partitioning([])
    table.insert(batch(range(6, 8), cities="z"))
    table.insert_overwrite(batch(range(1, 2), cities="z", v=50), where="city = 'z'")
    moves = settings in MOVING
    expected = {(i, "ab"[i % 2], i) for i in range(6) if i != 1 or not moves}
    assert rows(table) == {*expected, (1, "z", 51)}
    table.delete_partition("city = 'z'")
    assert rows(table) == expected
    table.insert_overwrite(batch(range(1), cities="a", v=7))
    assert rows(table) == {(0, "a", 7)}, "without partitions the table is replaced whole"


@pytest.mark.parametrize("settings", [*KEYS, *MOVING], ids=repr)
def test_a_filter_that_is_true_of_a_part_of_a_partition_replaces_nothing(settings: dict[str, Any]) -> None:
    """Also when no row that is there is in that part."""
    table = objcat.Lake(FileIO(MemoryBackend("over"), env=FakeEnv(3))).create_table(
        "t", SCHEMA, partition_by=["truncate(v, 10)"], **settings
    )
    table.insert(batch(range(8)))
    before = rows(table)
    with pytest.raises(InvalidInput, match="for no existing row there\\. Nothing was written\\. Name whole partitions"):
        table.insert_overwrite(batch(range(9, 10)), where="v = 9")
    assert rows(table) == before
    table.insert_overwrite(batch(range(9, 10)), where="v >= 0 and v < 10")
    assert {row[0] for row in rows(table)} == {9}
    table.delete("v < 10")
    table.insert_overwrite(batch(range(7, 8)), where="v = 7")
    assert {row[0] for row in rows(table)} == {7}, "of an empty partition nothing is lost"


def test_a_replacement_counts_once() -> None:
    table = make(**KEYS[0])
    app = objcat.AppVersion(app="nightly", version=1)
    once, again = (table.insert_overwrite(batch(range(3)), app=app) for _ in range(2))
    assert again.already_applied and again.slot == once.slot == table.refresh().slot


@pytest.mark.parametrize("settings", KEYS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_beside_others(kind: str, settings: dict[str, Any]) -> None:
    backend = RacingBackend("race")
    table = make(FileIO(backend, env=FakeEnv(5)), table_type=kind, **settings)
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")
    write = other.upsert if settings["key"] else other.insert
    # What comes first is replaced; another partition is nobody's business.
    backend.races = [lambda: write(batch(range(40, 42), cities="bc", v=1))]
    done = table.insert_overwrite(batch(range(50, 51), cities="b"))
    assert (done.attempts, done.slots_lost) == (1, 1)
    assert {row for row in rows(table) if row[1] == "b"} == {(50, "b", 50)} and (41, "c", 42) in rows(table)
    # A write that is under way comes after the replacement.
    backend.races = [lambda: other.insert_overwrite(batch(range(60, 61), cities="b"))]
    (table.upsert if settings["key"] else table.insert)(batch(range(70, 71), cities="b"))
    assert {row for row in rows(table) if row[1] == "b"} == {(60, "b", 60), (70, "b", 70)}
    backend.races = [other.maintenance.compact]
    table.delete_partition("city = 'c'")
    assert {row[1] for row in rows(table)} == {"a", "b"}
    backend.races = [lambda: other.delete_partition("city = 'a'")]
    (table.upsert if settings["key"] else table.insert)(batch(range(80, 81), cities="a"))
    assert {row for row in rows(table) if row[1] == "a"} == {(80, "a", 80)}


# ---- beside writers that never rest

Replace = Callable[[objcat.Table], Any]
REPLACEMENTS: dict[str, tuple[Replace, set[tuple[Any, ...]]]] = {
    "of the batch": (lambda table: table.insert_overwrite(batch(range(50, 60), cities="b")), {(i, "b", i) for i in range(50, 60)}),
    "of a filter": (
        lambda table: table.insert_overwrite(batch(range(50, 60), cities="b"), where="city = 'b'"),
        {(i, "b", i) for i in range(50, 60)},
    ),
    "whole": (lambda table: table.overwrite(batch(range(50, 60), cities="b")), {(i, "b", i) for i in range(50, 60)}),
    "taken away": (lambda table: table.delete_partition("city = 'b'"), set()),
}


BESIDE = [(kind, KEYS[0], replace) for kind in KINDS for replace in REPLACEMENTS] + [
    (KINDS[0], settings, "of the batch") for settings in KEYS[1:]
]


class Beside:
    """What one writer asks of a store, and what another one does meanwhile. before: called before each request but those of its own."""

    def __init__(self, backend: MemoryBackend, before: Callable[[Beside, Request], None]) -> None:
        self.requests: list[Request] = []
        self._before, self._busy = before, False
        self.store = FileIO(FaultyBackend(backend, before=self._called), env=FakeEnv(8))

    def _called(self, request: Request) -> None:
        if not self._busy:
            self._busy = True
            self.requests.append(request)
            self._before(self, request)
            self._busy = False

    def count(self, kind: str, part: str) -> int:
        return sum(request.kind == kind and part in request.key for request in self.requests)


def upserter(backend: MemoryBackend, settings: dict[str, Any]) -> tuple[Callable[[], None], list[Any]]:
    """Writes a row of the partition `b` at each call; and its commits."""
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")
    write = other.upsert if settings["key"] else other.insert
    done: list[Any] = []
    return lambda: done.append(write(batch(range(100 + len(done), 101 + len(done)), cities="b", v=1))), done


def assert_replaced(table: objcat.Table, slot: int, written: set[tuple[Any, ...]], theirs: list[Any]) -> None:
    """At the slot of the replacement nothing else is there, and afterwards what was acknowledged later."""
    assert {row for row in rows(table, as_of=slot) if row[1] == "b"} == written
    later = {(100 + number, "b", 101 + number) for number, commit in enumerate(theirs) if commit.slot > slot}
    assert {row for row in rows(table) if row[1] == "b"} == written | later


@pytest.mark.parametrize(("kind", "settings", "replace"), BESIDE, ids=str)
def test_a_replacement_wins_beside_a_writer_of_its_own_speed(kind: str, settings: dict[str, Any], replace: str) -> None:
    """The writer commits whenever the replacement has sent as many requests as a small write itself: its file, a look, its slot. Looks that
    the replacement sends side by side count as requests one after the other, so the writer is even a little faster."""
    backend = MemoryBackend("busy")
    table = make(FileIO(backend, env=FakeEnv(5)), table_type=kind, **settings)
    upsert, theirs = upserter(backend, settings)

    def before(beside: Beside, _request: Request) -> None:
        if len(beside.requests) % 3 == 0:
            upsert()

    beside = Beside(backend, before)
    work, written = REPLACEMENTS[replace]
    done = work(objcat.Lake(beside.store).table("t"))
    assert done.attempts == 1 and done.slots_lost <= 8
    assert_replaced(table, done.slot, written, theirs)
    for _ in range(3):
        upsert()
    assert_replaced(table, done.slot, written, theirs)
    assert table.maintenance.compact() is not None or kind == "copy_on_write"
    assert_replaced(table, done.slot, written, theirs)
    assert examine(table._context.timeline, deep=True).healthy


@pytest.mark.parametrize(("kind", "settings", "replace"), BESIDE, ids=str)
def test_a_slot_that_is_lost_costs_a_look_and_a_put(kind: str, settings: dict[str, Any], replace: str) -> None:
    """Others take ten slots in turn, each in the moment in which it is asked for."""
    backend = MemoryBackend("busy")
    table = make(FileIO(backend, env=FakeEnv(5)), table_type=kind, **settings)
    upsert, theirs = upserter(backend, settings)
    asked: list[int] = []

    def before(beside: Beside, request: Request) -> None:
        if request.kind == "put" and "/log/" in f"/{request.key}":
            asked.append(len(beside.requests))
            if len(asked) <= 10:
                upsert()

    beside = Beside(backend, before)
    work, written = REPLACEMENTS[replace]
    done = work(objcat.Lake(beside.store).table("t"))
    assert (done.attempts, done.slots_lost) == (1, 10)
    assert_replaced(table, done.slot, written, theirs)
    # Its data are written before the first slot is asked for, and never again.
    assert not any("data/" in request.key for request in beside.requests[asked[0] :] if request.kind != "delete")
    between = [later - earlier for earlier, later in pairwise(asked)]
    assert sum(between) <= 3 * len(between) and max(between) <= 6
    entry = table.inspect.history()[done.slot]
    assert entry.action is Action.REPLACE and entry.base == done.slot - 1


def test_a_replacement_is_planned_anew_where_rows_lie_otherwise_by_then() -> None:
    backend = RacingBackend("anew")
    table = make(FileIO(backend, env=FakeEnv(5)), **KEYS[0])
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")
    changes: list[tuple[str, Callable[[], Any]]] = [
        ("split", lambda: other.maintenance.split_buckets(partition="city=b", count=4)),
        ("a column", lambda: other.alter.add_column("more", "bigint")),
        ("restored", lambda: other.restore(to=2)),
    ]
    for number, (what, change) in enumerate(changes):
        backend.races = [lambda change=change: (other.upsert(batch(range(90, 93), cities="b")), other.refresh(), change())]  # type: ignore[misc]
        done = table.insert_overwrite(batch(range(50, 60), cities="b", v=number))
        assert done.attempts == 2, what
        assert {row for row in rows(table) if row[1] == "b"} == {(i, "b", i + number) for i in range(50, 60)}, what


def test_a_replacement_that_names_many_files_puts_their_list_once() -> None:
    """Changes of more than 64 KiB lie beside the log."""
    backend = MemoryBackend("many")
    lake = objcat.Lake(FileIO(backend, env=FakeEnv(5)))
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(400))
    table.upsert(batch(range(3)))
    upsert, theirs = upserter(backend, KEYS[0])

    def before(beside: Beside, request: Request) -> None:
        if request.kind == "put" and "/log/" in f"/{request.key}" and len(theirs) < 5:
            upsert()

    beside = Beside(backend, before)
    new = batch(range(1_000, 3_000), cities="b")
    done = objcat.Lake(beside.store).table("t").overwrite(new)
    assert done.slots_lost == 5 and table.scan(as_of=done.slot).count() == 2_000
    # A file group that a row of the other writer was the first of has to end too.
    lists = [request.key for request in beside.requests if request.kind == "put" and "changes.json" in request.key]
    assert 1 <= len(lists) <= 6
    named = table.inspect.history()[done.slot].side
    assert named is not None and [key for key in backend_keys(beside.store) if "changes.json" in key and done.txn in key] == [
        key for key in lists if key.endswith(named.path.split("/")[-1])
    ]


def backend_keys(store: FileIO) -> list[str]:
    return list(store.list_keys(""))


def test_a_stream_that_loses_a_race_is_written_whole(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id"])
    rival = objcat.connect(tmp_path).table("t")
    table.insert([{"id": 1}])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"id": 7}, {"id": 8}], schema=schema)
        rival.upsert([{"id": 2}])

    table.overwrite(pa.RecordBatchReader.from_batches(schema, batches()))
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [7, 8]
