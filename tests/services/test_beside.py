"""Services beside fast writers, each in a process of its own: no writer fails or does anything twice, and nothing is lost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.doctor import examine
from objcat.timeline import Action

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
GROUPS = 100


def start(url: Path, **job: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.services.beside_process", json.dumps({"url": str(url), **job})]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, problems = process.communicate(timeout=150)
    assert process.returncode == 0, problems
    return [json.loads(line) for line in out.splitlines()]


def table_of_groups(url: Path) -> objcat.Table:
    table = objcat.connect(url).create_table("t", SCHEMA, key=["id"], index=objcat.Bucket(GROUPS))
    table.insert([{"id": key, "v": -1} for key in range(40 * GROUPS)])
    assert table.stats().groups == GROUPS
    return table


def check(table: objcat.Table, commits: list[dict[str, Any]]) -> None:
    """No commit was tried twice, and the table is what the writers have written, each key by one writer only."""
    assert {commit["attempts"] for commit in commits} == {1}
    model = dict.fromkeys(range(40 * GROUPS), -1)
    for commit in sorted(commits, key=lambda commit: int(commit["slot"])):
        model |= {int(key): value for key, value in commit["rows"].items()}
    table.refresh()
    rows = table.scan().to_arrow()
    assert rows.num_rows == len(model)
    assert dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == model
    report = examine(table.timeline, deep=True)
    assert report.healthy, report.findings


def test_buckets_double_in_one_slot_and_services_run_while_writers_write(tmp_path: Path) -> None:
    table = table_of_groups(tmp_path)
    stop = tmp_path / "stop"
    services = start(tmp_path, services=["plan", "newest", "clean", "save", "execute"], stop=str(stop))
    writers = [start(tmp_path, number=number, turns=12, keys=30, seed=number) for number in range(2)]
    try:
        split = table.split_buckets()
        commits = [commit for writer in writers for commit in ended(writer)]
    finally:
        stop.touch()
    ended(services)
    assert split is not None and split.count == 2 * GROUPS
    entry = table.timeline.log.read_known(split.slot)
    assert entry.action is Action.REPLACE and entry.summary is not None and entry.summary.bytes == entry.summary.files == 0
    assert not list(table.fileio.list_keys(f"data/{split.txn}/"))
    entries = table.timeline.log.read_after(-1)
    assert sum(entry.action is Action.REPLACE for entry in entries) == 1
    check(table, commits)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_services_are_killed_in_the_middle_of_their_work(tmp_path: Path) -> None:
    """Four writers, and each service in a process that is killed again and again."""
    table = table_of_groups(tmp_path)
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    stop = tmp_path / "stop"
    writers = [start(tmp_path, number=number, turns=60, keys=100, seed=seed + number) for number in range(4)]
    kinds = [["compact"], ["newest"], ["plan", "execute"], ["clean"], ["save"], ["maintain"]]
    running = [start(tmp_path, services=kind, stop=str(stop)) for kind in kinds]
    kills = 0
    try:
        split = table.split_buckets()
        while any(writer.poll() is None for writer in writers):
            number = chance.randrange(len(kinds))
            try:
                # What ends by itself has failed.
                out, problems = running[number].communicate(timeout=1.5 * chance.random())
                pytest.fail(f"{kinds[number]} ended: {out} {problems}")
            except subprocess.TimeoutExpired:
                running[number].kill()
                running[number].communicate(timeout=60)
                kills += 1
            running[number] = start(tmp_path, services=kinds[number], stop=str(stop))
        commits = [commit for writer in writers for commit in ended(writer)]
    finally:
        stop.touch()
    for process in running:
        ended(process)
    assert split is not None and kills > 5
    # What the killed ones left is taken back, and what they had begun is done again.
    table.rollback_dead(older_than_s=0)
    table.execute_scheduled()
    table.compact()
    check(table, commits)
