"""`objcat maintain`: of a lake, of a table, without anything to do, and metrics."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from tests.cli.commands import run

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("fare", pa.float64())])


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    table = objcat.connect(tmp_path).create_table("city.trips", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    for number in range(17):
        table.upsert([{"id": number % 3, "fare": float(number)}])
    return table


def test_a_lake_is_maintained_once(table: objcat.Table, tmp_path: Path) -> None:
    rows = table.scan().to_arrow()
    first = run("maintain", str(tmp_path), "--json")
    assert first.returncode == 0, first.stderr
    (done,) = [json.loads(line) for line in first.stdout.splitlines()]
    assert done["table"] == "city.trips" and [(step["service"], step["done"]) for step in done["steps"]] == [("compact", True)]
    assert done["verified_files"] == 1 and done["verified_bytes"] > 0 and not done["damaged"]
    again = run("maintain", str(tmp_path))
    assert again.returncode == 0
    assert again.stdout == f"nothing is due\n1 files were verified, {done['verified_bytes']:,} bytes\n"
    (path,) = table.refresh().paths(table._context.manifests)
    table._context.fileio.put(path, table._context.fileio.read(path)[:-1] + b"?")
    damaged = run("maintain", str(tmp_path))
    assert damaged.returncode == 1 and "city.trips: verify left: Files differ from what was committed" in damaged.stdout
    assert path in damaged.stdout and "that of what was committed" in damaged.stdout
    assert 'objcat_damaged_files{table="city.trips"} 1\n' in run("maintain", str(tmp_path), "--metrics", "--verify-bytes", "1").stdout
    table._context.fileio.put(path, table._context.fileio.read(path)[:-1] + b"1")
    assert table.scan().to_arrow().sort_by("id") == rows.sort_by("id")


def test_a_table_is_maintained_and_told_of(table: objcat.Table, tmp_path: Path) -> None:
    url = f"{tmp_path}/city.trips"
    said = run("maintain", url)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("city.trips: compact done, slot 18, ") and "log rows of 17 commits wait" in said.stdout
    metrics = run("maintain", url, "--metrics")
    assert metrics.returncode == 0, metrics.stderr
    assert 'objcat_slot{table="city.trips"} 18\n' in metrics.stdout
    assert table.refresh().slot == 18
    assert run("maintain", str(tmp_path), "--metrics").stdout.count("# HELP objcat_slot ") == 1
    samples = [json.loads(line) for line in run("maintain", str(tmp_path), "--metrics", "--json").stdout.splitlines()]
    assert {"metric": "objcat_slot", "labels": {"table": "city.trips"}, "value": 18} in samples


def test_what_cannot_be_maintained_is_one_sentence(table: objcat.Table, tmp_path: Path) -> None:
    wrong = run("maintain", f"{tmp_path}/city.tips")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "city.trips" in wrong.stderr and not wrong.stdout
    nothing = run("maintain", f"{tmp_path}/nothing/here")
    assert nothing.returncode == 2 and nothing.stderr.count("\n") == 1 and not nothing.stdout
    objcat.connect(tmp_path).drop_table("city.trips")
    assert run("maintain", str(tmp_path)).stdout == "there are no tables\n"
    refused = run("maintain", str(tmp_path), "--io-bytes", "0")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and "io_bytes_max=0" in refused.stderr


@pytest.mark.parametrize(
    ("number", "how", "code"), [(signal.SIGINT, "Interrupted", 130), (signal.SIGTERM, "Ended by SIGTERM", 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_an_interrupted_command_says_how_to_go_on(table: objcat.Table, tmp_path: Path, number: signal.Signals, how: str, code: int) -> None:
    assert table.maintenance.compact() is not None
    command = [sys.executable, "-m", "objcat.cli", "maintain", str(tmp_path), "--watch", "--every", "3600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None and watching.stderr is not None
        assert watching.stdout.readline() == "nothing is due\n"
        watching.send_signal(number)
        said = watching.stderr.read()
        assert watching.wait() == code
    assert said.startswith(f"objcat: {how}. ") and said.count("\n") == 1 and "Call the command again" in said
