"""A process whose memory is limited ends its work with a typed error, and what it has said of its commits is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import objcat
from fileio import SystemEnv
from objcat.metadata.table_spec import COPY_ON_WRITE, MERGE_ON_READ
from tests.copies import copy_lake
from tests.tables.limited_process import NEW, SCHEMA, make, rows

ROOT = Path(__file__).resolve().parents[2]
MIB = 1024**2
CASES = [
    (MERGE_ON_READ, "upsert", 4),
    (COPY_ON_WRITE, "bulk_insert", 48),
    (MERGE_ON_READ, "compact", 16),
    (MERGE_ON_READ, "scan", 16),
    (MERGE_ON_READ, "polars", 64),
]
"""What is done to which table, and how many MiB there are for it. One process each, of some seconds."""
MORE = [
    (MERGE_ON_READ, "update", 48),
    (MERGE_ON_READ, "sql", 48),
    (COPY_ON_WRITE, "upsert", 48),
    (MERGE_ON_READ, "insert", 4),
    (MERGE_ON_READ, "merge", 48),
    (MERGE_ON_READ, "delete", 48),
    (COPY_ON_WRITE, "scan", 16),
    (MERGE_ON_READ, "scan", 4),
    (MERGE_ON_READ, "batches", 16),
    (COPY_ON_WRITE, "batches", 4),
    (COPY_ON_WRITE, "polars", 160),
    (COPY_ON_WRITE, "pandas", 48),
    (MERGE_ON_READ, "changes", 16),
    (COPY_ON_WRITE, "greatest", 4),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limited")
    make(str(folder))
    return folder


def limited(lake: Path, name: str, work: str, mib: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.tables.limited_process", str(lake), name, work, str(mib * MIB)]
    # Arrow's other pools reserve a GiB of addresses at the start, and the C library 64 MiB for each thread. A limit does not count these.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses are Linux's")
@pytest.mark.parametrize(("name", "work", "mib"), [*CASES, *(pytest.param(*case, marks=pytest.mark.tier("all")) for case in MORE)])
def test_work_that_does_not_fit_ends_in_a_typed_error_and_commits_are_as_was_said(
    name: str, work: str, mib: int, made: Path, tmp_path: Path
) -> None:
    copy_lake(made, tmp_path / "lake")
    done = limited(tmp_path / "lake", name, work, mib)
    assert done.returncode == 0, done.stderr[-4000:]
    ended, _, said = done.stdout.partition(" ")
    assert ended == "OutOfMemory", done.stdout
    assert "Memory ended in" in said
    assert "raise the limit of the process" in said
    before, after = objcat.connect(made).table(name), objcat.connect(tmp_path / "lake").table(name)
    assert after.refresh().slot == before.refresh().slot, "what was said to have failed is not visible"
    assert after.scan(columns=["v"], where=f"v = {NEW}").count() == 0
    assert after.scan().count() == before.scan().count()
    after.maintenance.rollback_failed_writes(older_than_s=0)
    assert after.maintenance.rollback_failed_writes(older_than_s=0) == [], "what stayed of the write is swept"
    assert after.scan().count() == before.scan().count()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses are Linux's")
@pytest.mark.parametrize("work", ["query", pytest.param("export", marks=pytest.mark.tier("all"))])
def test_a_command_that_does_not_fit_ends_with_one_message(work: str, made: Path) -> None:
    done = limited(made, MERGE_ON_READ, work, 4)
    assert done.returncode == 2, done.stderr[-4000:]
    said = json.loads(done.stderr)
    assert (said["error"], said["exit_code"]) == ("OutOfMemory", 2)
    assert "raise the limit of the process" in said["message"]


def test_a_process_that_may_begin_no_thread_does_the_work_of_tasks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    env = SystemEnv(parallelism=2, io_parallelism=2)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    calls: list[int] = []
    env.submit_io(lambda: calls.append(1)).result()
    assert list(env.map(lambda item: item + 1, [1, 2, 3])) == [2, 3, 4]
    with pytest.raises(RuntimeError):
        env.submit(lambda: calls.append(2), idle=True)
    monkeypatch.undo()
    assert env.submit(threading.get_ident).result() != threading.get_ident(), "later there may be threads again"
    env.submit(lambda: None).result()
    assert calls == [1], "nothing is done twice, and nothing that was refused"


def test_the_end_of_memory_after_a_commit_does_not_hide_the_commit(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    others: list[objcat.CommitResult] = []

    def fill(result: objcat.CommitResult) -> None:
        others.append(result)
        raise MemoryError

    table.on_commit(fill)
    assert table.upsert(rows(10, NEW)).slot == others[0].slot == table.refresh().slot
