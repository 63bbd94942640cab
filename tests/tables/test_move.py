"""A table moves into a shared log: what moves along, who is refused, and what is there when it stops anywhere."""

# ruff: noqa: PT012  (a transaction is a block, and fails where it ends)

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.errors import FileIOError
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend
from fileio.write_outcomes import RetryPolicy
from objcat.catalog.catalog import Catalog
from objcat.catalog.plans import plan_shared_log
from objcat.catalog.table_lifecycle import close, close_unchanged, reopen
from objcat.errors import (
    Contention,
    InvalidInput,
    ObjcatError,
    TableClosed,
    TableExists,
    TableMoved,
    TableNotFound,
)
from objcat.inspection.doctor import examine_lake
from objcat.lake import move
from objcat.maintenance.copy_table import TableCopy
from tests.effort import effort
from tests.services.world import At

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string())])
NINE = dt.datetime(2026, 11, 21, 9, tzinfo=dt.UTC)


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend("moves")


@pytest.fixture
def lake(memory: MemoryBackend) -> objcat.Lake:
    return made(memory)


def made(memory: MemoryBackend) -> objcat.Lake:
    """A table with a log of its own, and another one in the log `shop`."""
    lake = objcat.Lake(FileIO(memory, env=FakeEnv(1)))
    alone = lake.create_table("alone", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    alone.insert([{"id": key, "value": "a"} for key in range(6)])
    alone.upsert([{"id": 1, "value": "b"}], app=objcat.AppVersion(app="feed", version=7))
    alone.delete([{"id": 2}])
    lake.create_table("other", SCHEMA, key=["id"], shared_log="shop").upsert([{"id": 1, "value": "other"}])
    return lake


def rows(lake: objcat.Lake, name: str = "alone") -> dict[int, str]:
    found = lake.table(name).scan().to_arrow().to_pylist()
    known = {row["id"]: row["value"] for row in found}
    assert len(known) == len(found), "a key is there twice"
    return known


ROWS = {0: "a", 1: "b", 3: "a", 4: "a", 5: "a"}


def broken(lake: objcat.Lake) -> list[Any]:
    return [one for report in examine_lake(lake.fileio, deep=True) for one in report.findings]


def another(memory: MemoryBackend, seed: int = 5) -> objcat.Lake:
    return objcat.Lake(FileIO(memory, env=FakeEnv(seed)))


# ---- where it goes -----------------------------------------------------------------------------------------------


def test_a_table_shares_its_own_log_where_there_is_none_of_that_name(lake: objcat.Lake) -> None:
    before = lake.table("alone")
    objects = set(before._context.fileio.list_keys())
    moved = lake.move_to_shared_log("alone", shared_log="bank")
    assert (moved.id, moved.url, moved.snapshot.slot) == (before.id, before.url, before.snapshot.slot)
    assert set(before._context.fileio.list_keys()) == objects, "nothing was copied"
    before.upsert([{"id": 9, "value": "by the old handle"}])
    lake.create_table("second", SCHEMA, key=["id"], shared_log="bank")
    with lake.transaction() as tx:
        tx["alone"].upsert([{"id": 10, "value": "together"}])
        tx["second"].upsert([{"id": 10, "value": "together"}])
    assert rows(lake) == ROWS | {9: "by the old handle", 10: "together"}
    assert moved.scan(as_of=1).count() == 6
    assert broken(lake) == []


def test_a_table_moves_into_the_log_of_others(lake: objcat.Lake) -> None:
    before = lake.table("alone")
    moved = lake.move_to_shared_log("alone", shared_log="Shop")
    assert moved.id != before.id
    assert moved.url == lake.table("other").url
    assert rows(lake) == ROWS
    assert moved.app_version("feed") == 7
    assert moved.upsert([{"id": 0, "value": "again"}], app=objcat.AppVersion(app="feed", version=7)).already_applied
    with lake.transaction(shared_log="shop", position=objcat.SourcePosition(source="s", state={}, since=-1)) as tx:
        tx["alone"].upsert([{"id": 1, "value": "c"}])
        tx["other"].upsert([{"id": 2, "value": "c"}])
    assert rows(lake) == ROWS | {1: "c"}
    assert broken(lake) == []


def test_a_table_that_is_there_stays(lake: objcat.Lake) -> None:
    before = lake.fileio.metrics.snapshot()
    assert lake.move_to_shared_log("other", shared_log="shop").snapshot.slot == 1
    assert not [kind for kind in (lake.fileio.metrics.snapshot() - before).requests if kind.startswith("put")]


def test_a_table_moves_from_one_shared_log_to_another_and_to_a_new_one(lake: objcat.Lake) -> None:
    lake.move_to_shared_log("alone", shared_log="shop")
    lake.create_table("third", SCHEMA, key=["id"], shared_log="third")
    lake.move_to_shared_log("alone", shared_log="third")
    assert lake.table("alone").url == lake.table("third").url
    lake.move_to_shared_log("alone", shared_log="fourth")
    assert lake.table("alone").url not in (lake.table("third").url, lake.table("other").url)
    assert rows(lake) == ROWS
    lake.create_table("fifth", SCHEMA, key=["id"], shared_log="fourth")
    assert lake.table("alone").url == lake.table("fifth").url
    assert rows(lake, "other") == {1: "other"}
    assert broken(lake) == []


def test_a_shared_log_without_a_table_takes_a_position_only_when_it_has_one(lake: objcat.Lake) -> None:
    """As a move leaves it that stopped after it had named a new log."""
    Catalog(lake.fileio).change(lambda names: plan_shared_log(names, "empty", "tables/empty-1"))
    own = objcat.SourcePosition(source="s", state={}, since=-1)
    assert lake.source_position("s", shared_log="empty") is None
    with pytest.raises(InvalidInput, match="no shared log 'empty'"), lake.transaction(shared_log="empty", position=own):
        pytest.fail("the block has begun")
    lake.move_to_shared_log("alone", shared_log="empty")
    with lake.transaction(shared_log="empty", position=own):
        pass
    assert rows(lake) == ROWS


# ---- what moves along --------------------------------------------------------------------------------------------


def test_settings_columns_and_files_stay_as_they_are(lake: objcat.Lake) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("day", pa.date32(), nullable=False),
            ("fare", pa.decimal128(8, 2)),
            pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        ]
    )
    table = lake.create_table(
        "city.trips",
        schema,
        key=["id", "day"],
        ordering="at",
        allowed_lateness="7 days",
        partition_by=["month(day)"],
        index=objcat.BucketIndex(2),
        properties={"owner": "Ω", "keep_commits": "5"},
    )

    def trip(key: int, month: int, hours: float = 0.0) -> dict[str, Any]:
        return {"id": key, "day": dt.date(2026, month, 3), "fare": Decimal(key), "at": NINE + dt.timedelta(hours=hours)}

    table.insert([trip(key, 1 + key % 2) for key in range(40)])
    table.alter.rename_column("fare", "price")
    table.alter.add_column("note", "string")
    table.maintenance.split_buckets(partition="day_month=2026-01", count=4)
    table.delete([{"id": 3, "day": dt.date(2026, 2, 3), "at": NINE + dt.timedelta(hours=5)}])
    before, spec = table.scan().to_arrow().sort_by("id"), table.spec
    moved = lake.move_to_shared_log("city.trips", shared_log="shop")
    after = moved.spec
    assert (after.table_schema, after.key, after.ordering, after.index, after.partitioning, after.properties, after.lateness_ms) == (
        spec.table_schema,
        spec.key,
        spec.ordering,
        spec.index,
        spec.partitioning,
        spec.properties,
        spec.lateness_ms,
    )
    assert moved.snapshot.table.bucket_counts == {"day_month=2026-01": 4}
    assert moved.scan().to_arrow().sort_by("id") == before
    # A delete with an ordering value still keeps out an older row.
    late = {"id": 3, "day": dt.date(2026, 2, 3), "price": Decimal(1), "note": None, "at": NINE + dt.timedelta(hours=1)}
    moved.upsert([late])
    assert moved.scan(where="id = 3").count() == 0
    moved.upsert([{**late, "at": NINE + dt.timedelta(hours=9)}])
    assert moved.scan(where="id = 3").count() == 1
    assert broken(lake) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"table_type": "copy_on_write"},
        {"index": objcat.SimpleIndex()},
        {"index": objcat.BloomIndex()},
        {"index": objcat.MemoryIndex()},
        {"index": objcat.RecordIndex()},
        {"key": None},
        {"partition_by": ["value"], "key_scope": "partition"},
    ],
    ids=str,
)
def test_every_kind_of_table_moves_and_takes_writes_after_it(lake: objcat.Lake, settings: dict[str, Any]) -> None:
    table = lake.create_table("t", SCHEMA, **({"key": ["id"]} | settings))
    put = table.insert if table.spec.key == () else table.upsert
    for batch in range(3):
        put([{"id": key, "value": f"v{key % 3}"} for key in range(batch * 2, batch * 2 + 5)])
    if table.spec.has_key:
        table.delete("id = 4")
    before = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    moved = lake.move_to_shared_log("t", shared_log="shop")
    assert sorted(moved.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == before
    (moved.upsert if table.spec.has_key else moved.insert)([{"id": 1, "value": "v1"}, {"id": 77, "value": "v2"}])
    known = [row for row in before if not table.spec.has_key or row["id"] != 1]
    expected = sorted([*known, {"id": 1, "value": "v1"}, {"id": 77, "value": "v2"}], key=lambda row: row["id"])
    assert sorted(moved.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == expected
    assert broken(lake) == []


def test_the_past_is_a_dropped_table(lake: objcat.Lake) -> None:
    moved = lake.move_to_shared_log("alone", shared_log="shop")
    with pytest.raises(InvalidInput, match="created later, in a shared log"):
        moved.scan(as_of=1)
    past = lake.undrop_table("alone", new_name="alone_before")
    assert past.scan(as_of=1).count() == 6
    assert rows(lake, "alone_before") == rows(lake) == ROWS
    lake.drop_table("alone_before")
    assert lake.purge_table("alone_before", older_than_s=0).files > 0
    assert rows(lake) == ROWS
    assert broken(lake) == []


def test_an_application_that_was_rewound_is_refused(lake: objcat.Lake) -> None:
    table = lake.table("alone")
    table.restore(to=1)
    before = set(lake.fileio.list_keys())
    with pytest.raises(InvalidInput, match="'feed'"):
        lake.move_to_shared_log("alone", shared_log="shop")
    assert set(lake.fileio.list_keys()) == before
    table.upsert([{"id": 1, "value": "c"}], app=objcat.AppVersion(app="feed", version=8, resumed_after=table.refresh().slot))
    assert lake.move_to_shared_log("alone", shared_log="shop").app_version("feed") == 8


def test_names_that_do_not_fit_are_refused(lake: objcat.Lake) -> None:
    with pytest.raises(TableNotFound):
        lake.move_to_shared_log("none", shared_log="shop")
    with pytest.raises(InvalidInput, match="shared_log"):
        lake.move_to_shared_log("alone", shared_log="a/b")


# ---- who writes meanwhile ----------------------------------------------------------------------------------------


def test_handles_of_the_old_log_are_told_where_the_table_is(lake: objcat.Lake, memory: MemoryBackend) -> None:
    old, stale = lake.table("alone"), another(memory).table("alone")
    with pytest.raises(TableMoved, match="shared log 'shop'"), lake.transaction() as tx:
        tx["alone"].upsert([{"id": 1, "value": "late"}])
        another(memory, 6).move_to_shared_log("alone", shared_log="shop")
    for handle in (old, stale):
        with pytest.raises(TableMoved, match=r"Open the table by its name"):
            handle.upsert([{"id": 1, "value": "late"}])
        with pytest.raises(TableMoved):
            handle.scan()
        with pytest.raises(TableMoved):
            handle.maintenance.compact()
    assert rows(lake) == ROWS
    assert lake.write([{"id": 1, "value": "by name"}], "alone", key=["id"]).rows == 1
    assert rows(lake) == ROWS | {1: "by name"}


def test_a_write_that_comes_before_the_close_moves_along(lake: objcat.Lake, memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after the copy was made, so the copy follows it; then also a delete, a whole partition and an application."""
    writer = another(memory).table("alone")
    works: list[Callable[[], object]] = [
        lambda: writer.upsert([{"id": 1, "value": "c"}, {"id": 20, "value": "new"}], app=objcat.AppVersion(app="feed", version=8)),
        lambda: writer.delete([{"id": 0}]),
        writer.maintenance.compact,
        lambda: writer.overwrite([{"id": 30, "value": "all"}]),
    ]
    follow = TableCopy.follow

    def followed(copy: TableCopy, *of: Any) -> None:
        follow(copy, *of)
        if works:
            works.pop(0)()

    monkeypatch.setattr(TableCopy, "follow", followed)
    moved = lake.move_to_shared_log("alone", shared_log="shop")
    assert works == []
    assert rows(lake) == {30: "all"}
    assert moved.app_version("feed") == 8
    assert broken(lake) == []


def test_a_change_of_the_schema_or_a_split_meanwhile_begins_the_copy_again(
    lake: objcat.Lake, memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = another(memory).table("alone")
    works = [lambda: writer.alter.add_column("more", "int"), lambda: writer.maintenance.split_buckets(count=4)]
    follow = TableCopy.follow

    def followed(copy: TableCopy, *of: Any) -> None:
        follow(copy, *of)
        if works:
            works.pop(0)()

    monkeypatch.setattr(TableCopy, "follow", followed)
    moved = lake.move_to_shared_log("alone", shared_log="shop")
    assert moved.schema.names == ["id", "value", "more"]
    assert moved.snapshot.table.bucket_counts == {"": 4}
    assert rows(lake) == ROWS
    assert broken(lake) == []


def test_writers_that_never_pause_stop_the_move_and_nothing_else(
    lake: objcat.Lake, memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = another(memory).table("alone")
    follow = TableCopy.follow

    def followed(copy: TableCopy, *of: Any) -> None:
        follow(copy, *of)
        writer.upsert([{"id": 1, "value": "z"}])

    monkeypatch.setattr(TableCopy, "follow", followed)
    monkeypatch.setattr(move, "FOLLOWED_MAX", 3)
    with pytest.raises(Contention, match="when its writers pause"):
        lake.move_to_shared_log("alone", shared_log="shop")
    assert rows(lake) == ROWS | {1: "z"}
    assert writer.upsert([{"id": 1, "value": "y"}]).rows == 1
    assert broken(lake) == []
    assert not [key for key in lake.table("other")._context.fileio.list_keys("data/") if "00000000-" in key], "the copy was removed"


def test_of_two_that_move_a_table_one_moves_it(lake: objcat.Lake, memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create_table("third", SCHEMA, key=["id"], shared_log="third")
    follow, others = TableCopy.follow, [another(memory)]

    def followed(copy: TableCopy, *of: Any) -> None:
        follow(copy, *of)
        if others:
            others.pop().move_to_shared_log("alone", shared_log="third")

    monkeypatch.setattr(TableCopy, "follow", followed)
    moved = lake.move_to_shared_log("alone", shared_log="shop")
    assert moved.url == lake.table("other").url, "it moved to the third log first, and from there on"
    assert rows(lake) == ROWS
    assert broken(lake) == []


@pytest.mark.parametrize("what", ["drop", "rename", "create"])
def test_names_that_change_meanwhile(lake: objcat.Lake, memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    follow, other = TableCopy.follow, another(memory)
    works = {
        "drop": lambda: other.drop_table("alone"),
        "rename": lambda: other.rename_table("alone", "renamed"),
        "create": lambda: other.create_table("new", SCHEMA, key=["id"], shared_log="shop"),
    }
    todo = [works[what]]

    def followed(copy: TableCopy, *of: Any) -> None:
        follow(copy, *of)
        if todo:
            todo.pop()()

    monkeypatch.setattr(TableCopy, "follow", followed)
    if what == "drop":
        with pytest.raises(TableClosed):
            lake.move_to_shared_log("alone", shared_log="shop")
        assert rows(lake, lake.undrop_table("alone").name) == ROWS
    elif what == "rename":
        assert lake.move_to_shared_log("alone", shared_log="shop").name == "renamed"
        assert rows(lake, "renamed") == ROWS
        assert lake.table("renamed").url == lake.table("other").url
    else:
        lake.move_to_shared_log("alone", shared_log="shop")
        assert rows(lake) == ROWS
    assert broken(lake) == []


def test_writers_by_name_lose_nothing_while_tables_move() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("race")))
    lake.create_table("first", SCHEMA, key=["id"], shared_log="shop")
    lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    done: list[int] = []
    failures: list[BaseException] = []

    def write(number: int) -> None:
        table = lake.table("t")
        try:
            for turn in range(15):
                key = 100 * number + turn
                for _ in range(50):
                    try:
                        table.upsert([{"id": key, "value": "x"}])
                    except TableMoved:
                        table = lake.table("t")
                        continue
                    done.append(key)
                    break
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for name in ("shop", "two", "shop"):
        for _ in range(30):
            with contextlib.suppress(Contention):
                lake.move_to_shared_log("t", shared_log=name)
                break
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(done) == 45
    assert sorted(rows(lake, "t")) == sorted(done)
    assert broken(lake) == []


def test_a_close_follows_what_was_copied_though_the_process_knows_later_entries(lake: objcat.Lake) -> None:
    context = lake.table("alone")._context
    copied = context.view
    lake.table("alone").upsert([{"id": 100, "value": "later"}])
    assert close_unchanged(context.timeline, copied, context.id) is None
    newest = context.timeline.refresh(copied)
    closed = close_unchanged(context.timeline, newest, context.id)
    assert closed == newest.slot + 1


def test_a_table_is_not_reopened_over_what_was_written_since(lake: objcat.Lake) -> None:
    context = lake.table("alone")._context
    view = close(context.timeline, context.view, context.id)
    reopen(context.timeline, view, context.id)
    lake.table("alone").upsert([{"id": 100, "value": "later"}])
    reopen(context.timeline, view, context.id)
    assert 100 in rows(lake, "alone")


# ---- where it stops ----------------------------------------------------------------------------------------------


REQUESTS_MAX = 400


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("target", ["shop", "bank"])
def test_a_move_that_is_killed_at_any_request_has_moved_or_has_not(fault: Fault, target: str) -> None:
    for at in range(1, REQUESTS_MAX):
        memory = MemoryBackend("killed")
        made(memory)
        script = At(at, fault)
        with contextlib.suppress(Crash):
            objcat.Lake(FileIO(FaultyBackend(memory, script), env=FakeEnv(2))).move_to_shared_log("alone", shared_log=target)
        fresh = another(memory, 3)
        assert rows(fresh) == ROWS, at
        fresh.table("alone").upsert([{"id": 1, "value": "after"}])
        assert rows(fresh) == ROWS | {1: "after"}, at
        moved = fresh.move_to_shared_log("alone", shared_log=target)
        assert rows(fresh) == ROWS | {1: "after"}, at
        assert moved.app_version("feed") == 7
        assert (moved.url == fresh.table("other").url) == (target == "shop")
        left = [one for one in broken(fresh) if not one.subject.startswith(("data/", "intents/"))]
        assert left == [], at
        if not script.hit:
            assert at > (20 if target == "shop" else 3)
            return
    pytest.fail("a move asks for too much")


@pytest.mark.parametrize("fault", [Fault.AFTER, Fault.BEFORE, Fault.LATER, Fault.TWICE])
def test_a_move_whose_requests_get_lost_has_moved_or_has_not(fault: Fault) -> None:
    """Without retries: it may end with an error, and whoever opens the table finds every row."""
    for at in range(1, REQUESTS_MAX, effort(3, with_all=1)):
        memory = MemoryBackend("lost")
        made(memory)
        script = At(at, fault)
        faulty = FaultyBackend(memory, script)
        lake = objcat.Lake(FileIO(faulty, env=FakeEnv(2), policy=RetryPolicy(attempts_max=1)))
        with contextlib.suppress(ObjcatError, FileIOError):
            lake.move_to_shared_log("alone", shared_log="shop")
        fresh = another(memory, 3)
        fresh.table("alone").upsert([{"id": 1, "value": "after"}])
        faulty.release()
        assert rows(another(memory, 4)) == ROWS | {1: "after"}, at
        another(memory, 5).move_to_shared_log("alone", shared_log="shop")
        assert rows(another(memory, 6)) == ROWS | {1: "after"}, at
        if not script.hit:
            return
    pytest.fail("a move asks for too much")


def test_a_move_that_stopped_before_its_name_is_finished_by_whoever_opens_drops_or_creates(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(memory: MemoryBackend) -> objcat.Lake:
        lake = made(memory)
        change = Catalog.change
        monkeypatch.setattr(Catalog, "change", lambda *_, **__: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            lake.move_to_shared_log("alone", shared_log="shop")
        monkeypatch.setattr(Catalog, "change", change)
        return another(memory)

    lake = stopped(MemoryBackend("opened"))
    assert lake.table("alone").url == lake.table("other").url
    assert rows(lake) == ROWS
    lake = stopped(MemoryBackend("dropped"))
    lake.drop_table("alone")
    with pytest.raises(TableNotFound):
        lake.table("alone")
    assert lake.undrop_table("alone").url == lake.table("other").url
    assert rows(lake) == ROWS
    lake = stopped(MemoryBackend("created"))
    with pytest.raises(TableExists):
        lake.create_table("alone", SCHEMA, key=["id"])
    assert rows(lake) == ROWS
    lake = stopped(MemoryBackend("undropped"))
    assert lake.undrop_table("alone", new_name="before").scan(as_of=1).count() == 6
    assert rows(lake) == ROWS
    lake = stopped(MemoryBackend("read only"))
    monkeypatch.setattr(Catalog, "change", lambda *_, **__: (_ for _ in ()).throw(Contention("no", winner_slot=0)))
    assert rows(lake) == ROWS, "the name cannot be moved, and the table is found all the same"
