"""Refreshes by the command line, by CALL and by maintenance, and how far tables are behind."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput
from objcat.lake.lake import Lake
from tests.cli.commands import run

TRIPS = pa.schema([("id", pa.int64()), ("driver", pa.int64())])
BY_DRIVER = "SELECT driver, count(*) AS n FROM trips GROUP BY driver"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = objcat.connect(tmp_path / "lake")
    made.create_table("trips", TRIPS, key=["id"]).upsert([{"id": number, "driver": number % 3} for number in range(9)])
    made.create_derived("gold.drivers", BY_DRIVER, key=["driver"])
    return made


def add(lake: Lake, number: int, driver: int = 1) -> None:
    lake.table("trips").upsert([{"id": number, "driver": driver}])


def counted(lake: Lake, name: str = "gold.drivers") -> int:
    return sum(row["n"] for row in lake.table(name).scan().to_arrow().to_pylist())


def test_the_command_refreshes_explains_and_says_the_lag(lake: Lake, tmp_path: Path) -> None:
    table = f"{tmp_path}/lake/gold.drivers"
    assert "nothing changed" in run("refresh", table).stdout
    add(lake, 20)
    assert "trips: at slot 1, 1 slots behind" in run("refresh", table, "--lag").stdout
    assert json.loads(run("refresh", table, "--lag", "--json").stdout)["slots"] == 1
    assert "changes their groups" in " ".join(run("refresh", table, "--explain").stdout.split())
    done = json.loads(run("refresh", table, "--json").stdout)
    assert (done["way"], done["upserted"], done["sources"]) == ("groups", 1, {"trips": 2})
    add(lake, 21)
    assert "1 rows came or changed, 0 are gone; trips at slot 3" in run("refresh", table).stdout
    assert "it was asked for" in run("refresh", table, "--full").stdout
    assert counted(lake) == 11
    failed = run("refresh", f"{tmp_path}/lake/trips")
    assert failed.returncode == 2 and "not derived" in failed.stderr


def test_call_refreshes(lake: Lake) -> None:
    add(lake, 20)
    lag = lake.sql("CALL derived_lag(name => 'gold.drivers')").to_pylist()
    assert [(row["source"], row["slots"]) for row in lag] == [("trips", 1)]
    assert lake.sql("CALL refresh_derived('gold.drivers')").to_pylist()[0]["upserted"] == 1
    assert lake.sql("CALL refresh_derived(name => 'gold.drivers', full => true)").to_pylist()[0]["way"] == "whole"
    assert "trips: at slot 2, newest slot 2." in str(lake.sql("CALL explain_derived('gold.drivers')").to_pylist())


def test_maintain_refreshes_tables_with_a_policy_after_their_sources(lake: Lake) -> None:
    lake.create_derived(
        "a.most", "SELECT n, count(*) AS drivers FROM gold.drivers GROUP BY n", key=["n"], properties={"refresh_after_s": "0"}
    )
    add(lake, 20)
    assert [step.service for report in lake.maintain() for step in report.did if step.service == "refresh"] == []
    lake.table("gold.drivers").set_properties({"refresh_after_s": "0"})
    # The name of the second one comes first, and it is made of the other.
    done = {report.table: [step for step in report.steps if step.service == "refresh"] for report in lake.maintain()}
    assert len(done["gold.drivers"]) == len(done["a.most"]) == 1 and done["trips"] == []
    assert done["a.most"][0].slot is not None
    assert lake.table("a.most").scan().to_arrow().sort_by("n").to_pylist() == [{"n": 3, "drivers": 2}, {"n": 4, "drivers": 1}]
    assert all(step.service != "refresh" for report in lake.maintain() for step in report.steps)


def test_maintain_waits_as_long_as_the_policy_says(lake: Lake) -> None:
    lake.table("gold.drivers").set_properties({"refresh_after_s": "3600"})
    add(lake, 20)
    assert all(step.service != "refresh" for report in lake.maintain() for step in report.steps)
    with pytest.raises(InvalidInput, match="refresh_after_s"):
        lake.table("gold.drivers").set_properties({"refresh_after_s": "soon"})


def test_a_refresh_that_fails_is_reported_and_others_go_on(lake: Lake) -> None:
    lake.table("gold.drivers").set_properties({"refresh_after_s": "0"})
    lake.create_derived("gold.same", "SELECT id, driver FROM trips", key=["id"], properties={"refresh_after_s": "0"})
    add(lake, 20)
    lake.table("trips").upsert([{"id": 21, "driver": None}])
    steps = {report.table: [step for step in report.steps if step.service == "refresh"] for report in lake.maintain()}
    assert steps["gold.drivers"][0].failed and "NullKey" in steps["gold.drivers"][0].why
    assert steps["gold.same"][0].done
    assert counted(lake) == 9


def test_the_command_maintains_and_shows_the_lag(lake: Lake, tmp_path: Path) -> None:
    lake.table("gold.drivers").set_properties({"refresh_after_s": "0"})
    add(lake, 20)
    shown = 'objcat_derived_lag_slots{table="gold.drivers",source="trips"} '
    assert f"{shown}1\n" in run("maintain", f"{tmp_path}/lake", "--metrics").stdout
    assert "gold.drivers: refresh done, slot " in run("maintain", f"{tmp_path}/lake").stdout
    assert f"{shown}0\n" in lake.metrics()
    assert counted(lake) == 10
