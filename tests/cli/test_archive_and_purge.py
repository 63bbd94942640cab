"""`objcat archive`, `objcat collect`, `objcat purge`, and arguments of commands that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from objcat.inspection.doctor import examine
from tests.cli.commands import run

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("fare", pa.float64())])


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    """A table with checkpoints at slots 16 and 32."""
    table = objcat.connect(tmp_path).create_table("city.trips", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    for number in range(40):
        table.upsert([{"id": number % 3, "fare": float(number)}])
        if table.snapshot.slot in (16, 32):
            table._context.timeline.publish(table._context.timeline.open())
    return table


def test_a_dry_run_of_collect_minds_savepoints_that_are_older_than_every_checkpoint(table: objcat.Table, tmp_path: Path) -> None:
    assert table.maintenance.savepoint(slot=1) is not None
    for number in range(4):
        table.upsert([{"id": number}])
    said = run("collect", f"{tmp_path}/city.trips", "--keep", "1", "--dry-run", "--json")
    assert said.returncode == 0, said.stderr
    assert (
        json.loads(said.stdout)["voided"] == json.loads(run("collect", f"{tmp_path}/city.trips", "--keep", "1", "--json").stdout)["voided"]
    )


def test_old_entries_are_archived_and_old_checkpoints_collected(table: objcat.Table, tmp_path: Path) -> None:
    url, rows = f"{tmp_path}/city.trips", table.scan().to_arrow().sort_by("id")
    first = run("archive", url, "--keep-slots", "30", "--json")
    assert first.returncode == 0, first.stderr
    assert {**json.loads(first.stdout), "files": []} == {"first_slot": 0, "end_slot": 11, "tombstones": 11, "files": []}
    second = run("archive", url, "--keep-slots", "20")
    assert (second.returncode, second.stdout) == (0, "10 slots below slot 21 were archived, in 1 history files\n")
    assert run("archive", url, "--keep-slots", "20").stdout == "nothing to archive\n"
    collected = run("collect", url, "--keep", "1", "--json")
    assert collected.returncode == 0, collected.stderr
    assert (json.loads(collected.stdout)["slot"], json.loads(collected.stdout)["voided"]) == (41, [16])
    assert run("collect", url, "--keep", "1").stdout == "nothing to collect\n"
    opened = objcat.connect(tmp_path).table("city.trips")
    assert opened.scan().to_arrow().sort_by("id") == rows
    assert [entry.slot for entry in opened.inspect.history()] == list(range(42))
    assert opened.scan(as_of=3).to_arrow().num_rows == 3
    assert run("doctor", url).returncode == 0


def test_a_history_file_of_an_archiver_that_died_is_found_and_goes(table: objcat.Table, tmp_path: Path) -> None:
    url = f"{tmp_path}/city.trips"
    (path,) = table.maintenance.archive(keep_slots=30).files
    died = f"{path.removesuffix('.parquet')[:-16]}{'0' * 16}.parquet"
    table._context.fileio.put(died, table._context.fileio.read(path))
    report = examine(table._context.timeline)
    assert report.healthy and [finding.subject for finding in report.findings] == [died]
    assert run("archive", url, "--keep-slots", "30").stdout == "nothing to archive\n"
    assert list(table._context.fileio.list_keys("history/")) == [path]
    assert examine(table._context.timeline).findings == []


def test_a_dropped_table_is_purged(table: objcat.Table, tmp_path: Path) -> None:
    url = f"{tmp_path}/city.trips"
    refused = run("purge", url, "--older-than", "0")
    assert refused.returncode == 2 and "is not dropped" in refused.stderr
    objcat.connect(tmp_path).drop_table("city.trips")
    early = run("purge", url, "--older-than", "86400")
    assert early.returncode == 2 and "Nothing was deleted" in early.stderr
    done = run("purge", url, "--older-than", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] > 0
    assert not list(table._context.fileio.list_keys("data/"))
    assert "cannot be restored" in run("purge", url, "--older-than", "0").stderr
    assert run("ls", str(tmp_path), "--dropped", "--json").stdout == ""
    assert run("doctor", str(tmp_path)).returncode == 0


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("rollback", "--older-than", "nan"), "older_than_s=nan is not a time span"),
        (("rollback", "--older-than", "inf"), "older_than_s=inf is not a time span"),
        (("rollback", "--older-than", "-1"), "older_than_s=-1.0 is not a time span"),
        (("rollback", "nonsense"), "'nonsense' is not a transaction id"),
        (("archive", "--keep-slots", "0"), "keep_slots=0 is not a whole number from 1 up"),
        (("collect", "--keep", "-3"), "keep=-3 is not a whole number from 1 up"),
        (("purge", "--older-than", "nan"), "older_than_s=nan is not a time span"),
    ],
    ids=lambda found: " ".join(found) if isinstance(found, tuple) else "",
)
def test_arguments_that_are_none_are_one_sentence(tmp_path: Path, command: tuple[str, ...], says: str) -> None:
    objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    name, *rest = command
    done = run(name, f"{tmp_path}/t", *rest)
    assert done.returncode == 2
    assert done.stderr.startswith("objcat: ") and says in done.stderr and "Traceback" not in done.stderr
