"""Dropped tables are purged: for good, not too soon, after the log says so, and never beside an undrop that came first."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.errors import FileIOError
from fileio.memory import MEMORY_CAPABILITIES, MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Hit, Request, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.errors import CommitConflict, InvalidInput, SnapshotExpired, TableClosed, TableExists, TableNotFound
from objcat.inspection.doctor import examine, examine_names

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
ROWS = {1: "new", 2: "old", 3: "new"}
_stores = itertools.count()


class World:
    """A store whose clock stands at `clock`, and clients of it, whose own clocks are wrong."""

    def __init__(self) -> None:
        self.clock = FakeEnv(0, now_ms=1_800_000_000_000)
        self.memory = MemoryBackend(f"purging-{next(_stores)}", env=self.clock, capabilities=replace(MEMORY_CAPABILITIES, store_clock=True))
        self._seeds = itertools.count(1)

    def lake(self, backend: Any = None) -> objcat.Lake:
        return objcat.Lake(FileIO(backend or self.memory, env=FakeEnv(next(self._seeds)), policy=RetryPolicy(attempts_max=3)))

    def create(self, name: str, **settings: Any) -> objcat.Table:
        return self.lake().create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(2), **settings)

    def files(self) -> set[str]:
        """Data files of all tables."""
        return {key for key in FileIO(self.memory).list_keys() if key.endswith(".parquet") and "/data/" in key}


@pytest.fixture
def world() -> World:
    return World()


def fill(table: objcat.Table) -> objcat.Table:
    table.insert([{"id": key, "value": "old"} for key in (1, 2)])
    table.upsert([{"id": key, "value": "new"} for key in (1, 3)])
    return table


def rows_of(table: objcat.Table) -> dict[int, str]:
    return {row["id"]: row["value"] for row in table.scan().to_arrow().to_pylist()}


def test_a_purged_table_keeps_its_log_and_nothing_else_and_never_comes_back(world: World) -> None:
    table = fill(world.create("city.t"))
    table.maintenance.compact()
    slots, files = len(list(table._context.fileio.list_keys("log/"))), len(world.files())
    lake = world.lake()
    lake.drop_table("city.t")
    done = lake.purge_table("city.t", older_than_s=0)
    assert (done.slot, done.bound, done.files) == (slots + 1, slots, files)
    assert files > 0 and world.files() == set()
    assert len(list(table._context.fileio.list_keys("log/"))) == slots + 2
    assert lake.dropped_tables() == world.lake().dropped_tables() == []
    for client in (lake, world.lake()):
        with pytest.raises(
            TableNotFound, match=r"'city\.t' was dropped .* and then purged\. Its files are deleted, so it cannot be restored"
        ):
            client.undrop_table("city.t")
        with pytest.raises(TableNotFound, match="and then purged"):
            client.purge_table("city.t", older_than_s=0)
        with pytest.raises(TableNotFound, match=r"Create it with lake\.create_table"):
            client.table("city.t")
    with pytest.raises(TableClosed):
        table.scan(as_of=1)
    assert examine_names(lake.fileio).findings == []
    assert examine(table._context.timeline, deep=True).healthy
    assert rows_of(fill(world.create("city.t"))) == ROWS


def test_only_what_was_dropped_long_enough_ago_by_the_clock_of_the_store(world: World) -> None:
    fill(world.create("t"))
    world.lake().drop_table("t")
    before = world.files()
    world.clock.advance(3500)
    with pytest.raises(InvalidInput, match=r"was dropped 3,500 s ago\. Nothing was deleted\. Purge it 3,600 s after its drop"):
        world.lake().purge_table("t", older_than_s=3600)
    assert world.files() == before
    assert rows_of(world.lake().undrop_table("t")) == ROWS
    world.lake().drop_table("t")
    world.clock.advance(3500)
    with pytest.raises(InvalidInput, match=r"dropped 3,500 s ago"):
        world.lake().purge_table("t", older_than_s=3600)
    world.clock.advance(101)
    assert world.lake().purge_table("t", older_than_s=3600).files == len(before)
    assert world.files() == set()


@pytest.mark.parametrize("bad", [None, -1, float("nan"), "1h", True])
def test_an_age_is_a_time_span(world: World, bad: Any) -> None:
    fill(world.create("t"))
    world.lake().drop_table("t")
    with pytest.raises(InvalidInput, match="older_than_s"):
        world.lake().purge_table("t", older_than_s=bad)
    assert world.files()


def test_what_is_there_never_was_or_is_kept_by_a_savepoint_is_not_purged(world: World) -> None:
    lake = world.lake()
    table = fill(world.create("t"))
    with pytest.raises(TableExists, match="is not dropped"):
        lake.purge_table("t", older_than_s=0)
    with pytest.raises(TableNotFound, match="No table 'u' was dropped"):
        lake.purge_table("u", older_than_s=0)
    table.maintenance.savepoint(slot=1)
    lake.drop_table("t")
    before = world.files()
    with pytest.raises(
        InvalidInput, match=r"has savepoints \(1\), which retain its files\. Nothing was deleted\. Bring the table back, release"
    ):
        lake.purge_table("t", older_than_s=0)
    assert world.files() == before
    lake.undrop_table("t").maintenance.release_savepoint(slot=1)
    lake.drop_table("t")
    lake.purge_table("t", older_than_s=0)
    assert world.files() == set()


def test_a_table_without_files_does_not_come_back_either(world: World) -> None:
    world.create("t")
    lake = world.lake()
    lake.drop_table("t")
    done = lake.purge_table("t", older_than_s=0)
    assert (done.slot, done.bound, done.files) == (2, 1, 0)
    with pytest.raises(TableNotFound, match="purged"):
        lake.undrop_table("t")


def test_of_a_domain_only_the_dropped_table_goes(world: World) -> None:
    fill(world.create("a", shared_log="d"))
    other = fill(world.create("b", shared_log="d"))
    kept = {path for entry in other.inspect.history() for path in other._context.fileio.list_keys(f"data/{entry.txn}/")}
    lake = world.lake()
    lake.drop_table("a")
    lake.purge_table("a", older_than_s=0)
    assert rows_of(world.lake().table("b")) == ROWS
    assert {key.partition("/data/")[2] for key in world.files()} == {key.partition("data/")[2] for key in kept}
    other.upsert([{"id": 9, "value": "next"}])
    assert rows_of(world.lake().table("b")) == ROWS | {9: "next"}
    assert examine(other._context.timeline, deep=True).healthy


def test_of_several_of_one_name_the_last_goes_or_the_one_that_is_meant(world: World) -> None:
    lake = world.lake()
    ids = []
    for _ in range(3):
        ids.append(fill(world.create("t")).id)
        lake.drop_table("t")
    lake.purge_table("t", older_than_s=0, table=ids[0])
    lake.purge_table("t", older_than_s=0)
    assert [dropped.table for dropped in lake.dropped_tables()] == [ids[1]]
    assert rows_of(lake.undrop_table("t")) == ROWS


def before_slot(act: Callable[[], object]) -> Callable[[Request], None]:
    """Something that others do before the client puts a slot of a table's log, once."""
    done: list[object] = []

    def before(request: Request) -> None:
        if request.kind == "put" and request.key.startswith("tables/") and "/log/" in request.key and not done:
            done.append(None)
            act()

    return before


def test_an_undrop_that_comes_first_wins(world: World) -> None:
    fill(world.create("t"))
    world.lake().drop_table("t")
    before = world.files()
    slow = world.lake(FaultyBackend(world.memory, before=before_slot(lambda: world.lake().undrop_table("t"))))
    with pytest.raises(TableExists, match="is not dropped\\. Nothing was deleted"):
        slow.purge_table("t", older_than_s=0)
    assert world.files() == before
    assert rows_of(world.lake().table("t")) == ROWS


@pytest.mark.parametrize("kept", [{"keep_slots": 1}, {"before": 100}, {"keep_commits": 1}, {"keep_versions": 1}, {"keep_hours": 1}])
@pytest.mark.parametrize("domain", [None, "city"])
def test_a_handle_from_before_the_drop_cleans_nothing(world: World, kept: dict[str, int], domain: str | None) -> None:
    table = fill(world.create("t", shared_log=domain))
    world.lake().drop_table("t")
    with pytest.raises(TableClosed, match="was dropped at slot 3"):
        table.maintenance.clean(**kept)
    assert rows_of(world.lake().undrop_table("t")) == ROWS


CLOSED: dict[str, Callable[[objcat.Table], object]] = {
    "compact": lambda table: table.maintenance.compact(),
    "schedule": lambda table: table.maintenance.schedule_compaction(),
    "cluster": lambda table: table.maintenance.cluster(["value"]),
    "upsert": lambda table: table.upsert([{"id": 1, "value": "late"}]),
    "scan": lambda table: table.refresh(),
}


@pytest.mark.parametrize("what", CLOSED)
def test_who_holds_a_dropped_table_is_told_where_it_was_and_how_it_comes_back(world: World, what: str) -> None:
    table = fill(world.create("t"))
    world.lake().drop_table("t")
    with pytest.raises(TableClosed, match=f"at {re.escape(table._context.fileio.url)} was dropped at slot 3\\. .*undrop_table"):
        CLOSED[what](table)


@pytest.mark.parametrize("back", [False, True], ids=["purged", "restored"])
def test_a_clean_that_was_cut_short_before_the_drop_is_finished(world: World, back: bool) -> None:
    fill(world.create("t")).maintenance.compact()
    rule = Rule(kinds=frozenset({"delete"}), key=lambda key: "/data/" in key, fault=Fault.BEFORE, times=99)
    cut = world.lake(FaultyBackend(world.memory, [rule])).table("t")
    done = cut.maintenance.clean(keep_slots=1)
    left = done.failed
    assert left > 0 and done.files == 0
    kept = set(cut.snapshot.paths(cut._context.manifests))
    world.lake().drop_table("t")
    report = examine(cut._context.timeline, deep=True)
    assert report.healthy and not report.findings
    if back:
        again = world.lake().undrop_table("t")
        assert (again.maintenance.clean(keep_slots=1).earlier, len(world.files())) == (left, len(kept))
        assert rows_of(again) == ROWS
    else:
        assert world.lake().purge_table("t", older_than_s=0).earlier == left
        assert world.files() == set()


def test_a_clean_that_a_drop_overtakes_deletes_nothing(world: World) -> None:
    fill(world.create("t")).maintenance.compact()
    slow = world.lake(FaultyBackend(world.memory, before=before_slot(lambda: world.lake().drop_table("t")))).table("t")
    files = world.files()
    with pytest.raises(TableClosed, match="was dropped at slot 4"):
        slow.maintenance.clean(keep_slots=1)
    assert world.files() == files
    assert rows_of(world.lake().undrop_table("t")) == ROWS


def test_an_undrop_and_another_drop_begin_the_age_anew(world: World) -> None:
    fill(world.create("t"))
    world.lake().drop_table("t")

    def again() -> None:
        world.lake().undrop_table("t")
        world.lake().drop_table("t")

    slow = world.lake(FaultyBackend(world.memory, before=before_slot(again)))
    with pytest.raises(TableExists, match="restored and dropped again meanwhile\\. Nothing was deleted"):
        slow.purge_table("t", older_than_s=0)
    assert rows_of(world.lake().undrop_table("t")) == ROWS


def test_an_undrop_that_a_purge_overtakes_is_refused(world: World) -> None:
    fill(world.create("t"))
    world.lake().drop_table("t")
    slow = world.lake(FaultyBackend(world.memory, before=before_slot(lambda: world.lake().purge_table("t", older_than_s=0))))
    with pytest.raises(SnapshotExpired, match=r"was dropped at slot 3 and then cleaned\. It cannot be restored"):
        slow.undrop_table("t")
    assert world.lake().tables() == [] and world.files() == set()


def test_two_purges_at_once_do_it_once(world: World) -> None:
    fill(world.create("t"))
    world.lake().drop_table("t")
    slow = world.lake(FaultyBackend(world.memory, before=before_slot(lambda: world.lake().purge_table("t", older_than_s=0))))
    try:
        slow.purge_table("t", older_than_s=0)
    except CommitConflict:
        slow.purge_table("t", older_than_s=0)
    assert world.files() == set() and world.lake().dropped_tables() == []


def test_files_that_are_not_deleted_are_no_purge_yet(world: World) -> None:
    fill(world.create("t"))
    world.lake().drop_table("t")
    full = world.files()
    rule = Rule(kinds=frozenset({"delete"}), key=lambda key: "/data/" in key, fault=Fault.BEFORE, times=99)
    with pytest.raises(FileIOError):
        world.lake(FaultyBackend(world.memory, [rule])).purge_table("t", older_than_s=0)
    assert world.files() == full
    assert [dropped.name for dropped in world.lake().dropped_tables()] == ["t"]
    with pytest.raises(SnapshotExpired, match="It cannot be restored"):
        world.lake().undrop_table("t")
    assert world.lake().purge_table("t", older_than_s=0).files == len(full)
    assert world.files() == set() and world.lake().dropped_tables() == []


@dataclass
class CrashAt:
    """The client dies at its request of that number."""

    fault: Fault
    number: int
    has_died: bool = False

    def choose(self, request: Request) -> Hit | None:
        if request.number != self.number:
            return None
        self.has_died = True
        return Hit(self.fault)


def cut_short(fault: Fault, number: int) -> bool:
    """A purge that dies at one request, an undrop, and a purge that finishes it. Returns whether there was such a request."""
    world = World()
    fill(world.create("t"))
    world.lake().drop_table("t")
    full = world.files()
    script = CrashAt(fault, number)
    with contextlib.suppress(Crash):
        world.lake(FaultyBackend(world.memory, script)).purge_table("t", older_than_s=0)
    is_whole = world.files() == full
    try:
        table = world.lake().undrop_table("t")
    except (SnapshotExpired, TableNotFound):
        pass
    else:
        assert is_whole and rows_of(table) == ROWS
        world.lake().drop_table("t")
    if world.lake().dropped_tables():
        world.lake().purge_table("t", older_than_s=0)
    assert world.files() == set()
    assert world.lake().dropped_tables() == []
    return script.has_died


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER], ids=lambda fault: fault.value)
def test_cut_short_anywhere_it_is_all_there_or_gone_for_good_and_the_next_one_finishes(fault: Fault) -> None:
    died = list(itertools.takewhile(lambda number: cut_short(fault, number), range(1, 200)))
    assert 10 < len(died) < 190
