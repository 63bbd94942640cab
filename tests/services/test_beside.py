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
from objcat.inspection.doctor import examine
from objcat.timeline.entry import Action

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
GROUPS = 100


def start(url: Path, does: str, **job: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.services.beside_process", json.dumps({"url": str(url), "does": does, **job})]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, problems = process.communicate(timeout=150)
    assert process.returncode == 0, problems
    return [json.loads(line) for line in out.splitlines()]


def table_of_groups(url: Path) -> objcat.Table:
    table = objcat.connect(url).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(GROUPS))
    table.insert([{"id": key, "v": -1} for key in range(40 * GROUPS)])
    assert table.inspect.stats().groups == GROUPS
    return table


def table_without_key(url: Path) -> objcat.Table:
    return objcat.connect(url).create_table("t", SCHEMA.append(pa.field("part", pa.string())), key=None, partition_by=["part"])


def check(table: objcat.Table, commits: list[dict[str, Any]]) -> None:
    """No commit was tried twice, and the table is what the writers have written, each key by one writer only."""
    assert {commit["attempts"] for commit in commits if "attempts" in commit} == {1}
    model = dict.fromkeys(range(40 * GROUPS), -1) if table.spec.has_key else {}
    for commit in sorted(commits, key=lambda commit: int(commit["slot"])):
        model |= {int(key): value for key, value in commit["rows"].items()}
    table.refresh()
    rows = table.scan().to_arrow()
    assert rows.num_rows == len(model)
    assert dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == model
    report = examine(table._context.timeline, deep=True)
    assert report.healthy, report.findings


def test_buckets_double_in_one_slot_and_services_run_while_writers_write(tmp_path: Path) -> None:
    table = table_of_groups(tmp_path)
    stop = tmp_path / "stop"
    services = start(tmp_path, "serve", services=["plan", "newest", "clean", "save", "execute"], stop=str(stop))
    writers = [start(tmp_path, "write", number=number, turns=12, keys=30, seed=number) for number in range(2)]
    try:
        split = table.maintenance.split_buckets()
        commits = [commit for writer in writers for commit in ended(writer)]
    finally:
        stop.touch()
    ended(services)
    assert split is not None and split.count == 2 * GROUPS
    entry = table._context.timeline.log.read_known(split.slot)
    assert entry.action is Action.REPLACE and entry.summary is not None and entry.summary.bytes == entry.summary.files == 0
    assert not list(table._context.fileio.list_keys(f"data/{split.txn}/"))
    entries = table._context.timeline.log.read_after(-1)
    assert sum(entry.action is Action.REPLACE for entry in entries) == 1
    check(table, commits)


class Killed:
    """Processes that serve, each killed (-9) again and again, whatever it is at, and begun anew."""

    def __init__(self, url: Path, kinds: list[list[str]]) -> None:
        self._url, self._kinds = url, kinds
        self._stop = url / "stop"
        seed = random.randrange(2**32)
        print("seed", seed)
        self._chance = random.Random(seed)
        self._running = [self._start(kind) for kind in kinds]
        self.kills = 0

    def _start(self, kind: list[str]) -> subprocess.Popen[str]:
        return start(self._url, "serve", services=kind, stop=str(self._stop))

    def kill(self, *, within_s: float) -> None:
        """Kill one of them at some moment soon after it has begun to serve."""
        number = self._chance.randrange(len(self._kinds))
        said = self._running[number].stdout
        assert said is not None
        said.readline()
        try:
            # What ends by itself has failed.
            out, problems = self._running[number].communicate(timeout=within_s * self._chance.random())
            pytest.fail(f"{self._kinds[number]} ended: {out} {problems}")
        except subprocess.TimeoutExpired:
            self._running[number].kill()
            self._running[number].communicate(timeout=60)
            self.kills += 1
        self._running[number] = self._start(self._kinds[number])

    def end(self) -> None:
        self._stop.touch()
        for process in self._running:
            ended(process)


def tidied(table: objcat.Table) -> None:
    """What the killed ones left is taken back, and what they had begun is done again."""
    table.maintenance.rollback_failed_writes(older_than_s=0)
    table.maintenance.execute_scheduled()
    table.maintenance.compact()


def test_a_clustering_of_other_groups_is_killed_and_comes_again_while_a_writer_writes(tmp_path: Path) -> None:
    table = table_without_key(tmp_path)
    writer = start(tmp_path, "append", number=0, turns=16)
    services = Killed(tmp_path, [["cluster", "compact", "clean", "save", "plan", "execute"]])
    try:
        services.kill(within_s=0.5)
        commits = ended(writer)
    finally:
        services.end()
    tidied(table)
    table.maintenance.cluster()
    check(table, commits)
    assert table.inspect.stats().groups == 3


@pytest.mark.tier("all")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("does", ["write", "append"])
def test_services_are_killed_in_the_middle_of_their_work(tmp_path: Path, does: str) -> None:
    """Four writers, and each service in a process that is killed again and again."""
    table = table_of_groups(tmp_path) if does == "write" else table_without_key(tmp_path)
    writers = [start(tmp_path, does, number=number, turns=60, keys=100, seed=number) for number in range(4)]
    kinds = [["compact"], ["newest"], ["plan", "execute"], ["clean"], ["save"], ["maintain"]]
    services = Killed(tmp_path, kinds if does == "write" else [*kinds, ["cluster"]])
    split = None
    try:
        if does == "write":
            split = table.maintenance.split_buckets()
        while any(writer.poll() is None for writer in writers):
            services.kill(within_s=1.5)
        commits = [commit for writer in writers for commit in ended(writer)]
    finally:
        services.end()
    assert services.kills > 5 and (split is None) == (does == "append")
    tidied(table)
    check(table, commits)
