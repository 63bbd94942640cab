"""`objcat stats`, `objcat files` and `objcat partitions`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from tests.cli.commands import run


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    lake = objcat.connect(tmp_path)
    schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
    table = lake.create_table("trips", schema, key=["id", "city"], partition_by=["city"], index=objcat.BucketIndex(2))
    table.insert([{"id": i, "city": city} for i in range(1500) for city in ("Rome", "Oslo")])
    table.upsert([{"id": 3, "city": "Rome"}])
    return table


def test_stats(table: objcat.Table, tmp_path: Path) -> None:
    done = run("stats", f"{tmp_path}/trips")
    assert done.returncode == 0, done.stderr
    for part in ("at most 3,001", "slot 2", "4, of which 1 have something to merge", "4 with 3,000 rows", "1 with 1 rows"):
        assert part in " ".join(done.stdout.split()), done.stdout
    found = json.loads(run("stats", f"{tmp_path}/trips", "--json").stdout)
    assert (found["rows"], found["rows_exact"], found["partitions"]) == (3001, False, 2)
    table.maintenance.compact()
    assert "at most" not in run("stats", f"{tmp_path}/trips").stdout


def test_files(table: objcat.Table, tmp_path: Path) -> None:
    done = run("files", f"{tmp_path}/trips", columns=200)
    assert done.returncode == 0, done.stderr
    paths = table.inspect.files().column("path").to_pylist()
    assert len(paths) == 5
    assert all(path in done.stdout for path in paths)
    short = run("files", f"{tmp_path}/trips", "--limit", "2", columns=200)
    assert sum(path in short.stdout for path in paths) == 2
    assert "3 more" in short.stdout
    rows = [json.loads(line) for line in run("files", f"{tmp_path}/trips", "--json", "--limit", "1").stdout.splitlines()]
    assert {row["path"] for row in rows} == set(paths)
    assert {row["lower"]["city"] for row in rows if row["lower"]} == {"Rome", "Oslo"}


def test_partitions(table: objcat.Table, tmp_path: Path) -> None:
    done = run("partitions", f"{tmp_path}/trips", columns=120)
    assert done.returncode == 0, done.stderr
    for part in ("city=Rome", "city=Oslo", "1,500"):
        assert part in done.stdout
    rows = [json.loads(line) for line in run("partitions", f"{tmp_path}/trips", "--json").stdout.splitlines()]
    assert {row["partition"]: row["log_rows"] for row in rows} == {"city=Rome": 1, "city=Oslo": 0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["files", "{tmp}/trips", "--limit", "-1"], "limit=-1 is not a whole number"), (["stats", "{tmp}/none"], "There is no table 'none'")],
)
def test_wrong_input_is_one_sentence(table: objcat.Table, tmp_path: Path, arguments: list[str], says: str) -> None:
    done = run(*[argument.replace("{tmp}", str(tmp_path)) for argument in arguments])
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
