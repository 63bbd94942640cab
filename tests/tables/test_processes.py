"""Several processes write overlapping keys into one table on a real store: what was acknowledged is there, every key once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from devkit.handle import ServerHandle
from tests.effort import few

WRITERS = 4
COMMITS = 10
KEYS = 60
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
WRITER = Path(__file__).with_name("writer_process.py")


def start_writer(url: str, options: dict[str, Any], writer: int) -> subprocess.Popen[str]:
    job = {"url": url, "options": options, "table": "t", "writer": writer, "seed": 1000 + writer, "commits": COMMITS, "keys": KEYS}
    return subprocess.Popen([sys.executable, str(WRITER), json.dumps(job)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return [json.loads(line) for line in output.splitlines()]


def check(url: str, options: dict[str, Any], *, group_commit: str = "off") -> None:
    settings: dict[str, Any] = {"index": objcat.BucketIndex(4), "properties": {"group_commit": group_commit}}
    table = objcat.connect(url, options).create_table("t", SCHEMA, key=["id"], **settings)
    writers = [start_writer(url, options, number) for number in range(WRITERS)]
    told = {commit["txn"]: commit for writer in writers for commit in finish(writer)}

    history = table.inspect.history()
    acknowledged = [told[txn] for entry in history[1:] for txn in entry.txns]
    assert len(acknowledged) == len(told) == WRITERS * COMMITS
    assert [commit["slot"] for commit in acknowledged] == [entry.slot for entry in history[1:] for _ in entry.txns]
    assert [entry.slot for entry in history] == list(range(len(history)))
    assert group_commit == "on" or not any(entry.also for entry in history)
    assert all(b.committed_at_ms > a.committed_at_ms for a, b in pairwise(history))

    expected: dict[int, str] = {}
    for commit in acknowledged:
        for key, value in commit["written"].items():
            if value is None:
                expected.pop(int(key), None)
            else:
                expected[int(key)] = value
    rows = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["id"]: row["value"] for row in rows} == expected


def test_processes_on_local_disk(tmp_path: Path) -> None:
    check(str(tmp_path), {})


def test_processes_that_commit_together(tmp_path: Path) -> None:
    check(str(tmp_path), {}, group_commit="on")


@pytest.mark.parametrize("group_commit", ["off", "on"])
@pytest.mark.parametrize("server", few(["versitygw", "fake-gcs-server", "azurite", "seaweedfs", "moto"], 1))
def test_processes_on_a_server(servers: Callable[[str], ServerHandle], server: str, group_commit: str) -> None:
    store = servers(server).fresh_bucket()
    check(f"{store.url}/lake", dict(store.options), group_commit=group_commit)
