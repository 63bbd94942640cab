"""A table that is looked after costs the same after ten thousand commits as after ten, and holds no more than its policy keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest

import objcat
from fileio import FileIO
from fileio.memory import MemoryBackend
from fileio.testing import FakeEnv
from objcat.inspection.doctor import examine

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
KEYS, BATCH = 1000, 10
POLICY = {"keep_commits": "50", "compact_after_commits": "16"}
ROUND = 250
"""Commits between two rounds of maintenance."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests of a handle that is opened, reads a key and writes; and the bytes that it reads in all of that."""

    opening: int
    planning: int
    committing: int
    bytes_read: int


def lake_on(backend: MemoryBackend, seed: int) -> objcat.Lake:
    return objcat.Lake(FileIO(backend, env=FakeEnv(seed)))


def made(backend: MemoryBackend) -> objcat.Table:
    table = lake_on(backend, 1).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4), properties=POLICY)
    table.insert([{"id": i, "v": -1} for i in range(KEYS)])
    return table


def write(table: objcat.Table, number: int) -> None:
    table.upsert([{"id": (number * BATCH + i) % KEYS, "v": number} for i in range(BATCH)])


def cost_of(backend: MemoryBackend, number: int) -> Cost:
    table = lake_on(backend, number + 2).table("t")
    opened = requests_of(table)
    assert table.scan(where="id = 7").to_arrow().num_rows == 1
    planned = requests_of(table)
    write(table, number)
    return Cost(opened, planned - opened, requests_of(table) - planned, table._context.fileio.metrics.snapshot().bytes_read)


def requests_of(table: objcat.Table) -> int:
    """Requests of its handle so far, but for the delete of an intent, which comes when it comes."""
    return sum(count for kind, count in table._context.fileio.metrics.snapshot().requests.items() if kind != "delete")


@pytest.mark.parametrize("commits", [600, pytest.param(10_000, marks=[pytest.mark.tier("all"), pytest.mark.timeout(1800)])])
def test_a_maintained_table_costs_what_a_fresh_one_does(commits: int) -> None:
    backend = MemoryBackend("long")
    table = made(backend)
    for number in range(16):
        write(table, number)
    fresh = cost_of(backend, 16)
    for number in range(17, commits):
        write(table, number)
        if number % ROUND == 0:
            table.maintenance.run()
    table.maintenance.run()
    old = cost_of(backend, commits)
    print(f"\nfresh: {fresh}; after {commits:,} commits: {old}")
    assert 0 < old.opening <= fresh.opening + 4
    assert old.planning <= 2 * fresh.planning + 8
    assert 0 < old.committing <= fresh.committing + 2
    assert old.bytes_read <= 4 * fresh.bytes_read
    kept = Counter(key.split("/")[0] for key in table._context.fileio.list_keys(""))
    print(f"objects: {dict(kept)}; {sum(meta.size for page in table._context.fileio.list('') for meta in page.objects):,} bytes")
    # Every kept commit has a file, every compaction among them a base file for each bucket; rounds come some commits late.
    assert kept["data"] < 2 * ROUND + 50
    report = examine(table._context.timeline, deep=True)
    assert report.healthy, report.findings
    values = {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
    expected = dict.fromkeys(range(KEYS), -1) | {(number * BATCH + i) % KEYS: number for number in range(commits + 1) for i in range(BATCH)}
    assert values == expected
