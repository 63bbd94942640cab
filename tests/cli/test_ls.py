"""`objcat ls`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from tests.cli.commands import run, run_process

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path)
    for name in ("city.trips", "city.drivers", "notes"):
        lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    lake.namespaces.create("empty")
    return lake


def names(*arguments: str) -> list[str]:
    done = run("ls", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["name"] for line in done.stdout.splitlines()]


def test_tables_namespaces_and_dropped_ones(lake: objcat.Lake, tmp_path: Path) -> None:
    assert names(str(tmp_path)) == ["city.drivers", "city.trips", "notes", "empty."]
    assert names(str(tmp_path), "city") == ["city.drivers", "city.trips"]
    lake.drop_table("city.trips")
    assert names(str(tmp_path), "city") == ["city.drivers"]
    assert names(str(tmp_path), "--dropped") == ["city.trips"]
    lake.undrop_table("city.trips", new_name="city.journeys")
    assert names(str(tmp_path), "city") == ["city.drivers", "city.journeys"]
    assert names(str(tmp_path), "--dropped") == []


def test_for_people_each_table_shows_where_it_is(lake: objcat.Lake, tmp_path: Path) -> None:
    done = run("ls", str(tmp_path), columns=200)
    assert done.returncode == 0
    row = json.loads(run("ls", str(tmp_path), "--json").stdout.splitlines()[0])
    assert row["prefix"] in done.stdout and row["id"] in done.stdout
    assert (tmp_path / row["prefix"] / "log").is_dir()


def test_an_empty_lake_says_so(tmp_path: Path) -> None:
    done = run("ls", str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith("no tables in ")


def test_an_unknown_namespace_is_one_sentence(lake: objcat.Lake, tmp_path: Path) -> None:
    for done in (run("ls", str(tmp_path), "ctiy"), run_process("ls", str(tmp_path), "ctiy")):
        assert done.returncode == 2
        assert done.stderr.startswith("objcat: ") and done.stderr.count("\n") == 1 and "did you mean 'city'" in done.stderr
    done = run_process("ls", str(tmp_path), "city", "--json")
    assert done.returncode == 0
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["city.drivers", "city.trips"]
