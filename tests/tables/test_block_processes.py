"""Processes run blocks over two tables at once: at every slot, both tables are the same and each key is there once."""

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
from objcat.common.validation import TableType
from tests.effort import few
from tests.tables.block_process import NAMES

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string()), ("note", pa.string())])
KEYS, BLOCKS, WRITERS = 30, 8, 3


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("index", [objcat.BucketIndex(3), objcat.RecordIndex()])
def test_two_tables_are_the_same_at_every_slot(tmp_path: Path, kind: TableType, index: Any) -> None:
    check(str(tmp_path), {}, kind, index)


@pytest.mark.parametrize("server", few(["versitygw", "fake-gcs-server", "azurite", "seaweedfs"], 1))
def test_two_tables_are_the_same_on_a_server(servers: Callable[[str], ServerHandle], server: str) -> None:
    store = servers(server).fresh_bucket()
    check(f"{store.url}/lake", store.options, "merge_on_read", objcat.BucketIndex(3))


def check(url: str, options: Mapping[str, Any], kind: TableType, index: Any) -> None:
    lake = objcat.connect(url, options)
    tables = [lake.create_table(name, SCHEMA, key=["id"], index=index, table_type=kind, shared_log="pair") for name in NAMES]
    with lake.transaction() as tx:
        for name in NAMES:
            tx[name].insert([{"id": key, "value": "first", "note": None} for key in range(KEYS)])
    assert tx.result is not None
    jobs = [{"url": url, "options": dict(options), "writer": n, "seed": n, "blocks": BLOCKS, "keys": KEYS} for n in range(WRITERS)]
    command = [sys.executable, "-m", "tests.tables.block_process"]
    processes = [subprocess.Popen([*command, json.dumps(job)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for job in jobs]
    told = []
    for process in processes:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        told += [tuple(map(int, line.split())) for line in output.splitlines()]
    slots = sorted(slot for slot, _ in told)
    assert slots == list(range(tx.result.slot + 1, tx.result.slot + 1 + WRITERS * BLOCKS))
    for slot in [tx.result.slot, *slots]:
        left, right = (sorted(table.scan(as_of=slot).to_arrow().to_pylist(), key=lambda row: row["id"]) for table in tables)
        assert left == right, f"slot {slot}"
        assert [row["id"] for row in left] == list(range(KEYS)), f"slot {slot}"
    assert sum(attempts > 1 for _, attempts in told) > 0, "the processes met"
