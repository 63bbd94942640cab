"""A streaming application that is killed time and again, Spark and all, or whose JVM or driver is told to end: every row is there once.

`STREAM_SEED=...` chooses again what the seed that a run prints has chosen. When a kill comes is told in what the application had written.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from devkit import toolchain
from devkit.paths import ROOT
from objcat.inspection.doctor import examine
from tests.spark.processes import jvms_of, of_session

ROWS, KEYS = 20, 50
WRITES_MAX = 10
"""Objects that an application makes at most before it is killed; a batch makes three or four."""
LOOK_S = 0.01
END_S_MAX = 300
WAYS = ("kill", "jvm", "driver")
"""SIGKILL to all processes of the application; SIGTERM to its JVM, to its driver."""


@pytest.mark.parametrize(
    ("kills", "files"),
    [
        pytest.param(1, 8, id="1", marks=pytest.mark.timeout(900)),
        pytest.param(20, 110, id="20", marks=[pytest.mark.tier("all"), pytest.mark.timeout(3600)]),
    ],
)
def test_a_stream_that_is_killed_writes_exactly_once(tmp_path: Path, kills: int, files: int, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("STREAM_SEED") or secrets.randbits(32))
    chance = random.Random(seed)
    with capsys.disabled():
        print(f"a stream, killed {kills} times, STREAM_SEED={seed}", flush=True)
    lake = objcat.connect(tmp_path / "lake")
    lake.create_table("rows", pa.schema([("id", pa.int64()), ("batch", pa.int64())]), key=None)
    newest_schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("batch", pa.int64())])
    lake.create_table("newest", newest_schema, key=["id"], table_type="copy_on_write", index=objcat.BucketIndex(2))
    expected = arrive(tmp_path / "in", files, chance)
    ways = chance.sample(WAYS, len(WAYS)) * kills
    died = sum(run(tmp_path, kill_after=chance.randint(1, WRITES_MAX), way=ways[number]) for number in range(kills))
    assert died == kills, "the stream ended before it could be killed: give it more files"
    assert not run(tmp_path, kill_after=None)
    rows, newest = lake.table("rows"), lake.table("newest")
    found = rows.scan().to_arrow()
    assert Counter(zip(found["id"].to_pylist(), found["batch"].to_pylist(), strict=True)) == expected
    found = newest.scan().to_arrow()
    assert dict(zip(found["id"].to_pylist(), found["batch"].to_pylist(), strict=True)) == dict(sorted(expected))
    for number, table in enumerate((rows, newest)):
        versions = [version for entry in table.inspect.history() for version in entry.apps.get(table.id, {}).values()]
        # As many as Spark has: a file that it had listed, and not yet planned, when it was ended comes in one batch with the next one.
        batches = max(int(name) for name in os.listdir(tmp_path / f"checkpoint-{number}" / "commits") if name.isdigit())
        assert versions == list(range(batches + 1))
        table.maintenance.rollback_failed_writes(older_than_s=0)
        report = examine(table._context.timeline, deep=True)
        assert report.healthy, report.findings


def arrive(directory: Path, files: int, chance: random.Random) -> Counter[tuple[int, int]]:
    """The files of the source, and the rows in them."""
    directory.mkdir()
    rows: Counter[tuple[int, int]] = Counter()
    for number in range(files):
        ids = chance.sample(range(KEYS), ROWS)
        rows.update((key, number) for key in ids)
        path = directory / f"{number:03d}.json"
        path.write_text("\n".join(json.dumps({"id": key, "batch": number}) for key in ids))
        # Spark reads files in the order of their times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return rows


def run(directory: Path, *, kill_after: int | None, way: str = "kill") -> bool:
    """Run the application, and end it in some way once it has made so many objects. Returns whether it was ended."""
    environment = {**os.environ, "JAVA_HOME": str(toolchain.java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    before = objects(directory / "lake")
    with (directory / "log").open("ab") as log:
        command = [sys.executable, "-m", "tests.spark.stream_driver", str(directory)]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            seen: set[str] = set()
            while kill_after is None or len(seen) < kill_after:
                with suppress(subprocess.TimeoutExpired):
                    assert process.wait(timeout=LOOK_S if kill_after else None) == 0, (directory / "log").read_text()[-4000:]
                    return False
                seen |= objects(directory / "lake") - before
            if way != "kill":
                for pid in jvms_of(process.pid) if way == "jvm" else [process.pid]:
                    os.kill(pid, signal.SIGTERM)
                # All of it ends by itself.
                process.wait(timeout=END_S_MAX)
                while of_session(process.pid):
                    pass
            return True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def objects(lake: Path) -> set[str]:
    # os.walk passes over directories that a writer takes away meanwhile; Path.rglob raises
    return {os.path.join(directory, name) for directory, _, names in os.walk(lake) for name in names}
