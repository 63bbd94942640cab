"""What a process that has just begun sends to find a row: its requests, and how many of them come one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

import objcat
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.contract import Backend, Buffer, PutMode, PutOutcome
from fileio.errors import PermissionDenied
from fileio.memory import MemoryBackend
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.lake.lake import Lake
from objcat.timeline.entry import log_key
from tests.round_trips import Trips, counted_trips

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
KEYS = 400
SPREAD = range(0, KEYS, 7)
"""Keys on both sides of the one that is looked up, in every bucket: bounds leave out nothing."""


class Store(MemoryBackend):
    """A store that may refuse checkpoints."""

    refuses = False

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        if self.refuses and "/checkpoints/" in key:
            raise PermissionDenied(f"{key} cannot be written")
        return super().put(key, data, mode, metadata)


class Writer:
    """One process that writes a table of a lake."""

    def __init__(self, store: Backend, *, before: int = 0) -> None:
        """before: tables that were made earlier."""
        lake = Lake(FileIO(store, env=FakeEnv(5)))
        for number in range(before):
            lake.create_table(f"earlier_{number}", SCHEMA, key=["id"])
        self.table = lake.create_table("sales.trips", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
        self.table.insert(pa.table({"id": range(KEYS), "v": [0] * KEYS}, schema=SCHEMA))

    def commit(self, count: int, keys: range = range(1, 2)) -> None:
        for number in range(count):
            self.table.upsert([{"id": key, "v": number} for key in keys])


def lookup(store: Backend, expected: int | None = None) -> Trips:
    """Find one row by its key, in a new process. expected: its value, if that is known."""
    found: list[pa.Table] = []
    trips = counted_trips(store, lambda fileio: found.append(Lake(fileio).table("sales.trips").scan(where="id = 7").to_arrow()))
    assert found[0].column("id").to_pylist() == [7]
    assert expected is None or found[0].column("v").to_pylist() == [expected]
    assert {request.kind for request in trips.requests} == {"get"}
    return trips


@pytest.fixture(params=["memory", "versitygw"])
def store(request: pytest.FixtureRequest, servers: Callable[[ServerName], ServerHandle]) -> Iterator[Backend]:
    if request.param == "memory":
        yield Store("trips")
        return
    handle = servers("versitygw").fresh_bucket()
    with open_store(f"{handle.url}/lake", handle.options) as opened:
        yield opened._bare


def test_a_row_is_found_in_five_round_trips_and_fourteen_requests(store: Backend) -> None:
    writer = Writer(store, before=3)
    writer.commit(44)
    writer.table.maintenance.compact()
    trips = lookup(store)
    assert trips.depth <= 5 and len(trips.requests) <= 14, trips
    writer.commit(10, SPREAD)
    trips = lookup(store, expected=9)
    assert trips.depth <= 6 and len(trips.requests) <= 14 + 10, trips


def test_that_holds_at_every_length_of_the_log() -> None:
    store = Store("lengths")
    writer = Writer(store)
    for length in range(70):
        trips = lookup(store)
        merged = sum(request.key.endswith(".log.parquet") for request in trips.requests)
        assert trips.depth <= 5 and len(trips.requests) - merged <= 14, f"{length}: {trips}"
        writer.commit(1, range(length % KEYS, length % KEYS + 1))


@pytest.mark.parametrize("logs", [0, 10])
def test_a_hundred_commits_since_a_checkpoint_cost_no_more(logs: int) -> None:
    store = Store(f"hundred-{logs}")
    writer = Writer(store)
    writer.commit(40)
    store.refuses = True
    before = writer.table._context.view.checkpoint
    writer.commit(99 - logs)
    writer.table.maintenance.compact()
    writer.commit(logs, SPREAD)
    view = writer.table._context.timeline.open()
    assert view.checkpoint == before and view.slot - before >= 100
    trips = lookup(store, expected=logs - 1 if logs else 0)
    assert trips.depth <= 5 + (logs > 0) and len(trips.requests) <= 14 + logs, trips


@pytest.mark.parametrize("tables", [0, 5, 40])
def test_the_number_of_tables_in_the_lake_does_not_matter(tables: int) -> None:
    store = Store(f"many-{tables}")
    Writer(store, before=tables).commit(5)
    trips = lookup(store)
    assert trips.depth <= 5 and len(trips.requests) <= 14, trips
    assert sum("_catalog/" in request.key for request in trips.requests) == 4, "the hint, its slot and the next two"


def test_without_hints_a_row_is_found_all_the_same() -> None:
    store = Store("without")
    writer = Writer(store, before=1)
    writer.commit(9)
    writer.commit(10, SPREAD)
    plain = FileIO(store)
    plain.delete([key for key in plain.list_keys() if key.endswith("head.json")])
    trips = lookup(store, expected=9)
    assert trips.depth <= 9, trips


def test_a_name_that_moved_meanwhile_is_followed() -> None:
    """The catalog's hint is stale: it names another table than the log says."""
    store = Store("renamed")
    writer = Writer(store)
    lake = Lake(FileIO(store, env=FakeEnv(6)))
    plain = FileIO(store)
    stale = plain.read("_catalog/head.json")
    lake.rename_table("sales.trips", "sales.older")
    other = lake.create_table("sales.trips", SCHEMA, key=["id"])
    other.upsert([{"id": 7, "v": 77}])
    plain.put("_catalog/head.json", stale)
    assert lookup(store, expected=77).depth <= 7
    writer.commit(1)
    lookup(store, expected=77)


# ---- news while a scan is planned ---------------------------------------------------------------------------------


class Meanwhile(FakeEnv):
    """Does something just before the first request that is handed on."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.first: Callable[[], Any] | None = None

    def submit_io(self, function: Callable[[], Any]) -> Future[Any]:
        if self.first is not None:
            first, self.first = self.first, None
            first()
        return super().submit_io(function)


@pytest.mark.parametrize("change", ["rows", "a column", "a drop of the column"])
def test_a_scan_that_plans_ahead_sees_what_was_committed_before_it_began(change: str) -> None:
    """The handle has not read its manifests, so the plan reads them while it asks for news. There are some."""
    store = Store(f"news-{change}")
    writer = Writer(store)
    writer.commit(40)
    writer.table.alter.add_column("old", pa.int64())
    env = Meanwhile(9)
    table = Lake(FileIO(store, env=env)).table("sales.trips")
    where, columns = "id = 7", ["id", "v"]
    match change:
        case "rows":
            writer.table.upsert([{"id": 7, "v": 1234}])
        case "a column":
            writer.table.alter.add_column("new", pa.int64())
            writer.table.upsert([{"id": 7, "v": 1234, "old": 1, "new": 5}])
            where, columns = "new = 5", ["id", "v", "new"]
        case _:
            writer.table.alter.drop_column("old")
            writer.table.upsert([{"id": 7, "v": 1234}])
    before = table._context.fileio.metrics.snapshot()
    scan = table.scan(where=where, columns=columns)
    asked = (table._context.fileio.metrics.snapshot() - before).requests
    assert scan.to_arrow().column("v").to_pylist() == [1234]
    assert asked.get("get", 0) <= 8
    if change == "a drop of the column":
        with pytest.raises(objcat.errors.InvalidPredicate):
            table.scan(where="old = 1")


def test_a_warm_plan_asks_once_for_news_and_a_cold_one_with_its_manifest() -> None:
    store = Store("warm")
    writer = Writer(store)
    writer.commit(40)
    table = Lake(FileIO(store, env=FakeEnv(9))).table("sales.trips")
    asked = []
    for _ in range(3):
        before = table._context.fileio.metrics.snapshot()
        table.scan(where="id = 7")
        asked.append((table._context.fileio.metrics.snapshot() - before).requests)
    assert asked[1:] == [{"get": 1}, {"get": 1}]
    shards = len(table.snapshot.table.manifest)
    assert asked[0] == {"get": 1 + shards} and shards
    assert not FileIO(store).exists(f"{table.url.rpartition('/tables/')[2]}/{log_key(10**6)}")
