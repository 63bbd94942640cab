"""Mirrors beside writers, compaction, cleaning, savepoints, restores, schema changes and erasures, with readers all the time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from fileio.errors import FileIOError
from objcat.errors import InvalidInput, ObjcatError, SnapshotExpired
from objcat.inspection.doctor import examine
from tests.effort import effort
from tests.mirror.histories import READERS, Rows, check_caught_up, folder, is_refused, make_table, people, rows_at, slots_of

KEYS = 40
MIRROR_PROCESS = """
import sys
import objcat
table = objcat.connect(sys.argv[1]).table("shop.people")
while True:
    table.maintenance.mirror()
"""


class Crowd:
    """Threads with handles of their own, until a time. What they raise beside conflicts is kept in `errors`."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url = url
        self.until = time.monotonic() + seconds
        self.errors: list[BaseException] = []
        self.done: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []

    def add(self, name: str, work: Callable[[objcat.Table], object], *, pause_s: float = 0.0) -> None:
        self._threads.append(threading.Thread(target=self._repeat, args=(name, work, pause_s)))

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _repeat(self, name: str, work: Callable[[objcat.Table], object], pause_s: float) -> None:
        table = objcat.connect(self.url).table("shop.people")
        while time.monotonic() < self.until and not self.errors:
            try:
                work(table)
                self.done[name] += 1
            except (objcat.errors.Contention, objcat.errors.CommitConflict, SnapshotExpired) as error:
                self.done[f"{name}: {type(error).__name__}"] += 1
            except BaseException as error:  # noqa: BLE001 - told by the test
                self.errors.append(error)
            time.sleep(pause_s)


def upsert(draw: random.Random) -> Callable[[objcat.Table], object]:
    return lambda table: table.upsert(people(*draw.sample(range(KEYS), 5), value=draw.randrange(1000)))


def change_something(draw: random.Random) -> Callable[[objcat.Table], object]:
    """A service, or a change of settings."""

    def restore(table: objcat.Table) -> object:
        slot = table.refresh().slot
        return table.restore(to=max(table.refresh().log.marks(table.id).bound, slot - 3))

    works: list[Callable[[objcat.Table], object]] = [
        lambda table: table.maintenance.compact(),
        lambda table: table.maintenance.compact(),
        lambda table: table.maintenance.clean(keep_slots=draw.choice([1, 8])),
        lambda table: table.delete([{"id": draw.randrange(KEYS)}]),
        lambda table: table.delete(f"value < {draw.randrange(100)}"),
        lambda table: table.set_properties({"note": str(draw.randrange(9))}),
        lambda table: table.alter.add_column(f"more_{draw.randrange(1 << 30)}", pa.int32()),
        lambda table: table.maintenance.savepoint(),
        restore,
    ]

    def change(table: objcat.Table) -> object:
        return draw.choice(works)(table)

    return change


def read_patiently(name: str, table: objcat.Table, slot: int) -> Rows | None:
    """The rows of a slot of a mirror, None if it was cleaned. A restart deletes what was before it: who listed that reads again."""
    for _ in range(3):
        try:
            return READERS[name](folder(table), slot)
        except Exception:  # noqa: BLE001 - whatever readers raise
            if not table.refresh().log.marks(table.id).is_readable(slot):
                return None
            time.sleep(0.5)
    return READERS[name](folder(table), slot)


def read_newest(name: str, counts: Counter[str]) -> Callable[[objcat.Table], object]:
    """Read the newest slot of a mirror. It is right, or it was cleaned meanwhile."""

    def read(table: objcat.Table) -> None:
        slots = slots_of(folder(table))[name]
        if not slots:
            return
        slot = slots[-1]
        if name == "delta" and is_refused(folder(table), slot):
            counts["before its checkpoint"] += 1
            return
        found = read_patiently(name, table, slot)
        if found is None:
            counts["cleaned"] += 1
            return
        try:
            expected = rows_at(table, slot)
        except SnapshotExpired:
            return
        assert found == expected, f"{name} at slot {slot}"
        counts["compared"] += 1

    return read


@pytest.mark.tier("integration")
@pytest.mark.parametrize("version", ["2", "3"])
@pytest.mark.parametrize("seconds", [effort(2, with_all=120)])
def test_mirrors_beside_everything(tmp_path: Path, seconds: int, version: str) -> None:
    """Four writers, whose handles mirror in the background, a fifth that does all else, two that only mirror, and readers."""
    table = make_table(objcat.connect(tmp_path), mirror_iceberg_version=version)
    table.upsert(people(*range(KEYS)))
    crowd, counts = Crowd(str(tmp_path), seconds), Counter[str]()
    for number in range(4):
        crowd.add("write", upsert(random.Random(number)), pause_s=0.02)
    crowd.add("change", change_something(random.Random(seconds)), pause_s=0.02)
    for _ in range(2):
        crowd.add("mirror", lambda table: table.maintenance.mirror())
    for name in READERS:
        crowd.add(f"read {name}", read_newest(name, counts))
    crowd.run()
    if crowd.errors:
        raise crowd.errors[0]
    assert counts["compared"] and crowd.done["mirror"] and crowd.done["write"]
    end = objcat.connect(tmp_path).table("shop.people")
    check_caught_up(end)
    report = examine(end._context.timeline, deep=True)
    assert not [finding for finding in report.findings if "mirror" in finding.says], report.findings


@pytest.mark.tier("integration")
def test_processes_that_mirror_are_killed(tmp_path: Path) -> None:
    table = make_table(objcat.connect(tmp_path))
    table.upsert(people(*range(KEYS)))
    crowd, counts = Crowd(str(tmp_path), effort(6, with_all=60)), Counter[str]()
    crowd.add("write", upsert(random.Random(1)), pause_s=0.05)
    crowd.add("change", change_something(random.Random(2)), pause_s=0.1)
    for name in READERS:
        crowd.add(f"read {name}", read_newest(name, counts))
    killed: list[int] = []

    def kill() -> None:
        draw = random.Random(3)
        while time.monotonic() < crowd.until:
            process = subprocess.Popen([sys.executable, "-c", MIRROR_PROCESS, str(tmp_path)], stderr=subprocess.DEVNULL)
            time.sleep(draw.uniform(1, 2))
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.wait())

    killer = threading.Thread(target=kill)
    killer.start()
    crowd.run()
    killer.join()
    if crowd.errors:
        raise crowd.errors[0]
    assert counts["compared"] and len(killed) >= 3 and set(killed) == {-signal.SIGKILL}
    check_caught_up(objcat.connect(tmp_path).table("shop.people"))


@pytest.mark.tier("integration")
def test_erasures_beside_writers_and_mirrors(tmp_path: Path) -> None:
    table = make_table(objcat.connect(tmp_path))
    table.upsert(people(*range(KEYS)))
    crowd, counts = Crowd(str(tmp_path), effort(1, with_all=60)), Counter[str]()
    crowd.add("write", upsert(random.Random(1)), pause_s=0.05)
    crowd.add("mirror", lambda table: table.maintenance.mirror(), pause_s=0.01)

    def erase(table: objcat.Table) -> None:
        try:
            table.erase([{"id": 1000 + crowd.done["erase"]}])
        except (InvalidInput, ObjcatError, FileIOError) as error:
            if not isinstance(error, (objcat.errors.NotErased, objcat.errors.Contention, objcat.errors.CommitConflict)):
                raise

    crowd.add("erase", erase)
    for name in READERS:
        crowd.add(f"read {name}", read_newest(name, counts))
    crowd.run()
    if crowd.errors:
        raise crowd.errors[0]
    assert crowd.done["erase"]
    check_caught_up(objcat.connect(tmp_path).table("shop.people"))
