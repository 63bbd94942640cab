"""A golden lake with derived tables: this client, and every later one, reads what they show, and follows their sources from there."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import objcat
from objcat.errors import InvalidInput
from objcat.inspection.doctor import examine_lake
from tests.golden.make_derived import ARCHIVE, QUERIES

WAYS = {"gold.wide": "rows", "gold.towns": "groups", "gold.ranks": "whole", "gold.counts": "groups"}


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    with zipfile.ZipFile(ARCHIVE) as packed:
        packed.extractall(tmp_path)
    return objcat.connect(tmp_path)


def rows(lake: objcat.Lake, name: str) -> list[str]:
    return sorted(map(str, lake.table(name).scan().to_arrow().to_pylist()))


def wanted(lake: objcat.Lake, name: str, *, stored: bool = False) -> list[str]:
    """The rows of the query, newest or at the slots that the table says it shows."""
    query = QUERIES[name][0].replace("people.drivers", "people.who")
    for lag in lake.derived_lag(name) if stored else ():
        source = lag.source.replace("people.drivers", "people.who")
        query = query.replace(f"FROM {source}", f"FROM {source} VERSION AS OF {lag.slot}")
        query = query.replace(f"JOIN {source}", f"JOIN {source} VERSION AS OF {lag.slot}")
    schema = lake.table(name).schema
    return sorted(map(str, lake.sql(query).rename_columns(schema.names).cast(schema).to_pylist()))


@pytest.mark.parametrize("name", list(QUERIES))
def test_they_show_the_slots_that_they_name(lake: objcat.Lake, name: str) -> None:
    assert rows(lake, name) == wanted(lake, name, stored=True)
    assert all(lag.slot > 0 and lag.slots is not None for lag in lake.derived_lag(name))
    assert any(lag.slots for lag in lake.derived_lag(name)) == (name != "gold.counts")


def test_refreshes_go_on_from_there(lake: objcat.Lake) -> None:
    for name in QUERIES:
        result = lake.refresh_derived(name)
        assert (result.way, result.why) == (WAYS[name], None)
        assert result.slot is not None and result.upserted + result.deleted > 0
        assert rows(lake, name) == wanted(lake, name) == wanted(lake, name, stored=True)
    lake.table("trips").upsert([{"id": 5, "driver": 1, "Town": "é", "fare": 500}])
    for name in QUERIES:
        assert lake.refresh_derived(name).why is None
        assert rows(lake, name) == wanted(lake, name)


def test_maintenance_goes_on_from_there(lake: objcat.Lake) -> None:
    lake.refresh_derived("gold.towns")
    done = {report.table: [step.slot for step in report.steps if step.service == "refresh"] for report in lake.maintain()}
    assert done["gold.counts"] and done["gold.counts"][0] is not None
    assert rows(lake, "gold.counts") == wanted(lake, "gold.counts")


def test_nobody_else_writes_to_them(lake: objcat.Lake) -> None:
    with pytest.raises(InvalidInput, match="refresh_derived"):
        lake.table("gold.wide").upsert([{"id": 1, "fare": 1, "driver": "x"}])


def test_nothing_is_wrong_with_it(lake: objcat.Lake) -> None:
    reports = list(examine_lake(lake.fileio, deep=True))
    assert [finding for report in reports for finding in report.findings] == []
    assert ARCHIVE.stat().st_size < 250_000
