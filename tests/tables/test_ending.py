"""Writes by threads that outlive the main one, and by what is called at exit, when Python begins no thread of a pool any more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from devkit.handle import ServerHandle
from objcat.inspection.doctor import examine
from tests.effort import few

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def told(how: str, url: str, options: Mapping[str, Any] | None = None) -> list[str]:
    command = [sys.executable, "-m", "tests.tables.ending_process", how, url, json.dumps(dict(options or {}))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert not ended.stderr
    return ended.stdout.splitlines()


def check(how: str, url: str, options: Mapping[str, Any] | None = None) -> None:
    table = objcat.connect(url, options).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    first = 2 if how == "thread" else 1
    assert told(how, url, options) == [str(slot) for slot in range(first, first + 7)]
    rows = {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
    assert rows == {key: 9 if key == 2 else 1 for key in range(2, 100)}
    assert examine(table._context.timeline, deep=True).findings == []


@pytest.mark.parametrize("how", ["thread", "new thread", "exit"])
def test_writes_and_services_work_when_the_main_thread_has_ended(tmp_path: Path, how: str) -> None:
    check(how, str(tmp_path))


@pytest.mark.parametrize("server", few(["versitygw", "fake-gcs-server", "azurite"], 1))
def test_on_a_server(servers: Callable[[str], ServerHandle], server: str) -> None:
    store = servers(server).fresh_bucket()
    check("exit", f"{store.url}/lake", dict(store.options))


def test_a_commit_is_no_error_because_the_main_thread_has_ended_meanwhile(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    table.upsert([{"id": 1, "v": 1}])
    assert told("while it commits", str(tmp_path)) == ["2"]
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "v": 2}]
    assert examine(table._context.timeline, deep=True).findings == []
