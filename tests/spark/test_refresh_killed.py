"""Drivers that die in a refresh of a derived table on Spark: the table has all of it or nothing, and the next refresh goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.inspection.doctor import examine
from objcat.lake.lake import Lake
from tests.spark.killed_refresh import QUERIES
from tests.spark.test_driver_killed import POINTS, REQUESTS, run_driver

TRIPS = pa.schema([("id", pa.int64()), ("driver", pa.int64()), ("fare", pa.int64())])
DRIVERS = pa.schema([("id", pa.int64()), ("name", pa.string())])
CHIEF = (("sums", "landed"),)
"""What dies without `--all`."""


@pytest.mark.timeout(900)
def test_a_refresh_is_whole_or_not_there(tmp_path: Path) -> None:
    check_all(tmp_path, [{"kill": kill, "point": point} for kill, point in CHIEF])


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("point", POINTS)
def test_drivers_die_in_every_refresh(tmp_path: Path, point: str) -> None:
    check_all(tmp_path, [{"kill": name, "point": point} for name in QUERIES])


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("request_", REQUESTS)
def test_drivers_die_after_requests_of_their_own(tmp_path: Path, request_: int) -> None:
    check_all(tmp_path, [{"kill": name, "point": "request", "request": request_} for name in QUERIES])


def check_all(directory: Path, plans: list[dict[str, Any]]) -> None:
    """Let one driver after another die, with changes of the sources before each, and the last one end."""
    lake = objcat.connect(directory / "lake")
    lake.create_table("trips", TRIPS, key=["id"], index=objcat.BucketIndex(2))
    lake.create_table("drivers", DRIVERS, key=["id"], index=objcat.BucketIndex(2))
    change(lake, 0)
    for name, (query, key) in QUERIES.items():
        lake.create_derived(name, query, key=[key], index=objcat.BucketIndex(2))
    died = 0
    for number, plan in enumerate(plans):
        change(lake, number + 1)
        died += run_driver("tests.spark.killed_refresh", directory, plan) is not None
        check(directory)
    assert died >= len(plans) / 2, "too few died for this to mean anything"
    assert run_driver("tests.spark.killed_refresh", directory, {"kill": None, "point": None}) is None
    for name in check(directory):
        assert all(lag.slot == lag.newest for lag in objcat.connect(directory / "lake").derived_lag(name))


def change(lake: Lake, number: int) -> None:
    """Rows of both sources come, change and go."""
    trips, drivers = lake.table("trips"), lake.table("drivers")
    first = 20 * number
    trips.upsert([{"id": first + row, "driver": row % 7, "fare": None if row % 9 == 0 else first + row} for row in range(60)])
    trips.delete([{"id": first + 3}, {"id": first + 10}])
    drivers.upsert([{"id": row, "name": f"d{row} of {number}"} for row in range(number % 3, 6, 2)])


def check(directory: Path) -> list[str]:
    """Each derived table is its query at the slots that it names, and these are not before those that were acknowledged."""
    lake = objcat.connect(directory / "lake")
    journal = directory / "journal"
    acknowledged = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    for name, (query, _) in QUERIES.items():
        shown = {lag.source: lag.slot for lag in lake.derived_lag(name)}
        at = query
        for source, slot in shown.items():
            at = at.replace(f"{source} ", f"{source} VERSION AS OF {slot} ")
        table = lake.table(name)
        wanted = lake.sql(at).rename_columns(table.schema.names).cast(table.schema).to_pylist()
        assert sorted(table.scan().to_arrow().to_pylist(), key=str) == sorted(wanted, key=str), name
        for of, slots in acknowledged:
            assert of != name or all(shown[source] >= slot for source, slot in slots.items())
        report = examine(table._context.timeline, deep=True)
        assert report.healthy, report.findings
    return list(QUERIES)
