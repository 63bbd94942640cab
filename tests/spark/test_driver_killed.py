"""Drivers that die in the middle of a write or a service, with their JVM or without, and fresh ones that go on: every work counts once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import objcat
from devkit import toolchain
from devkit.paths import ROOT
from objcat.inspection.doctor import examine
from objcat.timeline.entry import Action
from tests.chaos.killing import orphans_of
from tests.spark.killed_driver import KINDS, SCHEMA, WORKS, Rows, done_to, work_of
from tests.spark.processes import of_session

DRIVER_S_MAX = 300
CHIEF = (("copy_on_write insert_overwrite", "jvm"),)
"""What dies without `--all`."""
POINTS = ("task", "driver", "term", "jvm", "slot", "landed")
LOST = ("SparkJobLost", "Nothing of it is visible")
REQUESTS = (1, 2, 3, 4, 6, 8, 11, 15)
"""After which ones of a driver it dies, with `--all`; where a work has less, it ends."""


def every(point: str, request: int | None = None) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        for work in WORKS:
            if (kind, work) != ("copy_on_write", "compact"):
                yield {"works": list(WORKS), "kill": f"{kind} {work}", "point": point, "request": request}


@pytest.mark.timeout(900)
def test_a_fresh_driver_goes_on_where_another_one_died(tmp_path: Path) -> None:
    works = ["insert", "upsert", "compact", "merge", "insert_overwrite"]
    check_all(tmp_path, [{"works": works, "kill": kill, "point": point} for kill, point in CHIEF])


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("point", POINTS)
def test_drivers_die_in_every_work(tmp_path: Path, point: str) -> None:
    check_all(tmp_path, list(every(point)))


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("request_", REQUESTS)
def test_drivers_die_after_requests_of_their_own(tmp_path: Path, request_: int) -> None:
    check_all(tmp_path, list(every("request", request_)))


def check_all(directory: Path, plans: list[dict[str, Any]]) -> None:
    """Let one driver after another die, and the last one end."""
    lake = objcat.connect(directory / "lake")
    for kind in KINDS:
        lake.create_table(kind, SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(2), partition_by=["p"], key_scope="partition")
    died = 0
    for plan in plans:
        said = run(directory, plan)
        died += said is not None
        check(directory, plan)
    assert died >= len(plans) / 2, "too few died for this to mean anything"
    works = plans[0]["works"]
    assert run(directory, {"works": works, "kill": None, "point": None}) is None
    check(directory, {})
    for kind in KINDS:
        table = objcat.connect(directory / "lake").table(kind)
        assert done_to(table) == [work for work in works if (kind, work) != ("copy_on_write", "compact")]
        table.maintenance.rollback_failed_writes(older_than_s=0)
        for _ in range(2):
            table.maintenance.clean(keep_slots=1)
        assert orphans_of(table) == []
    check(directory, {})


def run(directory: Path, plan: dict[str, Any]) -> str | None:
    """Run a driver of works, see `run_driver`."""
    return run_driver("tests.spark.killed_driver", directory, plan)


def run_driver(module: str, directory: Path, plan: dict[str, Any], lost: Collection[str] = LOST) -> str | None:
    """Run a driver to its end, whichever it is, until no process of it is left. Returns what it said when it died, else None.

    lost: what a driver says whose JVM was ended.
    """
    environment = {**os.environ, "JAVA_HOME": str(toolchain.java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    log = directory / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", module, str(directory), json.dumps(plan)]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            code = process.wait(DRIVER_S_MAX)
            said = log.read_text()
            if code > 0:
                # Only a driver whose JVM was ended has something to say.
                assert plan["point"] == "jvm" and all(words in said for words in lost), said[-4000:]
            # Workers and a JVM that outlive their driver may still write.
            while of_session(process.pid):
                pass
        finally:
            for pid in of_session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    return None if code == 0 else said


def check(directory: Path, plan: dict[str, Any]) -> None:
    """Works are in the log once, in their order, whole; those that were acknowledged are. Every slot reads as it should."""
    journal = directory / "journal"
    acknowledged = journal.read_text().splitlines() if journal.exists() else []
    assert len(set(acknowledged)) == len(acknowledged)
    for kind in KINDS:
        table = objcat.connect(directory / "lake").table(kind)
        done = done_to(table)
        assert len(set(done)) == len(done), done
        assert {said.split()[1] for said in acknowledged if said.split()[0] == kind} <= set(done)
        rows: Rows = {}
        marks = table._context.timeline.open().log.marks(table.id)
        for entry in table._context.timeline.log.read_after(-1):
            work = work_of(entry)
            if work is None:
                assert entry.action in (Action.CREATE, Action.ROLLBACK, Action.CLEAN), entry
            else:
                rows = WORKS[work][1](rows)
            if marks.is_readable(entry.slot):
                found = table.scan(as_of=entry.slot).to_arrow()
                assert found.num_rows == len(rows), f"{plan}: slot {entry.slot}"
                assert dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == rows, f"{plan}: slot {entry.slot}"
        if plan.get("point") == "jvm" and plan["kill"].split()[0] == kind:
            assert plan["kill"].split()[1] not in done, "a work of which was said that nothing is visible"
        report = examine(table._context.timeline, deep=True)
        assert report.healthy, report.findings
