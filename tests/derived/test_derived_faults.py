"""Refreshes that die or lose an answer at any request, and refreshes at once."""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.faults import Crash, Fault, FaultyBackend, Request
from objcat.inspection.doctor import examine
from objcat.lake.lake import Lake
from tests.effort import effort
from tests.services.world import At

REQUESTS_MAX = 160
STEP = effort(4, with_all=1)
"""Of so many requests one is tried."""
TRIPS = pa.schema([("id", pa.int64()), ("driver", pa.int64()), ("fare", pa.int64())])
DRIVERS = pa.schema([("id", pa.int64()), ("name", pa.string())])
WIDE = "SELECT t.id, t.fare, d.name FROM trips t LEFT JOIN drivers d ON t.driver = d.id"
SUMS = "SELECT driver, count(*) AS n, sum(fare) AS fares, count(fare) AS fare_count FROM trips GROUP BY driver"
QUERIES = {"wide": (WIDE, ["id"]), "sums": (SUMS, ["driver"])}
FAULTS = [
    Fault.CRASH_AFTER,
    Fault.AFTER,
    *(pytest.param(fault, marks=pytest.mark.tier("all")) for fault in (Fault.CRASH_BEFORE, Fault.BEFORE, Fault.TWICE)),
]


def prepared() -> MemoryBackend:
    """A lake with derived tables, after which their sources changed."""
    backend = MemoryBackend(secrets.token_hex(4))
    lake = Lake(FileIO(backend))
    trips = lake.create_table("trips", TRIPS, key=["id"], index=objcat.BucketIndex(1))
    drivers = lake.create_table("drivers", DRIVERS, key=["id"], index=objcat.BucketIndex(1))
    trips.upsert([{"id": number, "driver": number % 3, "fare": number} for number in range(12)])
    drivers.upsert([{"id": number, "name": f"d{number}"} for number in range(2)])
    for name, (query, key) in QUERIES.items():
        lake.create_derived(name, query, key=key, index=objcat.BucketIndex(1))
    trips.upsert([{"id": number, "driver": 5, "fare": None} for number in range(10, 14)])
    trips.delete([{"id": 0}])
    drivers.upsert([{"id": 2, "name": "two"}])
    return backend


def rows(lake: Lake, name: str) -> list[dict[str, Any]]:
    return sorted(lake.table(name).scan().to_arrow().to_pylist(), key=str)


def wanted(lake: Lake, name: str, slots: Any) -> list[dict[str, Any]]:
    query = QUERIES[name][0]
    for source, slot in slots.items():
        query = query.replace(f"{source} ", f"{source} VERSION AS OF {slot} ")
    schema = lake.table(name).schema
    return sorted(lake.sql(query).rename_columns(schema.names).cast(schema).to_pylist(), key=str)


def shown(lake: Lake, name: str) -> dict[str, int]:
    """The slots of the sources that a derived table says it shows."""
    return {lag.source: lag.slot for lag in lake.derived_lag(name)}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", list(QUERIES))
def test_a_refresh_that_dies_at_any_request(fault: Fault, name: str) -> None:
    for number in range(1, REQUESTS_MAX, STEP):
        backend = prepared()
        script = At(number, fault)
        with contextlib.suppress(Crash, Exception):
            Lake(FileIO(FaultyBackend(backend, script))).refresh_derived(name)
        lake = Lake(FileIO(backend))
        # Whatever happened, the table shows the slots that it names.
        assert rows(lake, name) == wanted(lake, name, shown(lake, name))
        result = lake.refresh_derived(name)
        assert rows(lake, name) == wanted(lake, name, result.sources)
        assert result.sources == {source: lake.table(source).snapshot.slot for source in result.sources}
        if not script.hit:
            assert number > 8
            report = examine(lake.table(name)._context.timeline, deep=True)
            assert report.healthy, report.findings
            return
    pytest.fail(f"a refresh sends more than {REQUESTS_MAX} requests")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_creation_that_dies_at_any_request(fault: Fault) -> None:
    for number in range(1, REQUESTS_MAX, STEP):
        backend = prepared()
        script = At(number, fault)
        with contextlib.suppress(Crash, Exception):
            Lake(FileIO(FaultyBackend(backend, script))).create_derived("more", WIDE, key=["id"], index=objcat.BucketIndex(1))
        lake = Lake(FileIO(backend))
        if "more" not in lake.tables():
            lake.create_derived("more", WIDE, key=["id"])
        result = lake.refresh_derived("more")
        schema = lake.table("more").schema
        assert rows(lake, "more") == sorted(lake.sql(WIDE).cast(schema).to_pylist(), key=str)
        assert result.sources == {source: lake.table(source).snapshot.slot for source in result.sources}
        if not script.hit:
            assert number > 12
            return
    pytest.fail(f"a creation sends more than {REQUESTS_MAX} requests")


@pytest.mark.parametrize("name", list(QUERIES))
def test_another_refresh_before_any_request(name: str) -> None:
    """Another process refreshes right before a request of this one: each change counts once."""
    for number in range(1, REQUESTS_MAX, STEP):
        backend = prepared()
        other = Lake(FileIO(backend))
        came = False

        def beside(request: Request, number: int = number, other: Lake = other) -> None:
            nonlocal came
            if request.number == number and not came:
                came = True
                other.table("trips").upsert([{"id": 50, "driver": 5, "fare": 7}])
                other.refresh_derived(name)

        lake = Lake(FileIO(FaultyBackend(backend, (), before=beside)))
        result = lake.refresh_derived(name)
        assert rows(other, name) == wanted(other, name, shown(other, name)), (number, result)
        other.refresh_derived(name)
        assert rows(other, name) == wanted(other, name, shown(other, name)), (number, result)
        if not came:
            assert number > 8
            return
    pytest.fail(f"a refresh sends more than {REQUESTS_MAX} requests")


def test_refreshes_of_many_threads_count_each_change_once() -> None:
    backend = prepared()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        lake = Lake(FileIO(backend))
        try:
            for step in range(4):
                lake.table("trips").upsert([{"id": 100 * number + step, "driver": step, "fare": number}])
                for name in QUERIES:
                    lake.refresh_derived(name)
        except objcat.errors.PositionConflict:
            # Others were faster five times in a row, so they have its changes or will have them.
            return
        except BaseException as error:  # noqa: BLE001 - it is shown by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    lake = Lake(FileIO(backend))
    for name in QUERIES:
        assert rows(lake, name) == wanted(lake, name, shown(lake, name))
        assert rows(lake, name) == wanted(lake, name, lake.refresh_derived(name).sources)
