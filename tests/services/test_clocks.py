"""Retention by hours where no store says what time it is: only what a cleaner can check makes history old."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import SnapshotExpired

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
WEEK_H = 168
DAY_S = 86_400
NOW_MS = 1_790_000_000_000


@dataclass
class Clocks:
    """A table whose files have the times of one clock, and handles whose clocks are others."""

    disk: FakeEnv = field(default_factory=lambda: FakeEnv(1, now_ms=NOW_MS))
    ahead: FakeEnv = field(default_factory=lambda: FakeEnv(2, now_ms=NOW_MS + 8 * DAY_S * 1000))

    def __post_init__(self) -> None:
        self.backend = MemoryBackend("clocks", env=self.disk)
        self.right = objcat.create_table_at(
            FileIO(self.backend, env=self.disk), SCHEMA, key=["k"], table_type="copy_on_write", index=objcat.BucketIndex(1)
        )
        self.wrong = objcat.table_at(FileIO(self.backend, env=self.ahead))
        for number in range(5):
            self.write(self.right, number)

    def write(self, table: objcat.Table, value: int) -> int:
        self.disk.advance(60)
        self.ahead.advance(60)
        return table.upsert([{"k": 1, "v": value}]).slot

    def readable(self) -> list[int]:
        found = []
        for slot in range(self.right.refresh().slot + 1):
            try:
                self.right.scan(as_of=slot).to_arrow()
                found.append(slot)
            except SnapshotExpired:
                pass
        return found


def by_the_right(clocks: Clocks) -> objcat.Table:
    return clocks.right


def by_the_wrong(clocks: Clocks) -> objcat.Table:
    return clocks.wrong


@pytest.mark.parametrize("cleaner", [by_the_right, by_the_wrong])
@pytest.mark.parametrize("later", [0, 3])
def test_a_writer_whose_clock_is_ahead_makes_no_history_old(
    cleaner: Callable[[Clocks], objcat.Table], later: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither when it cleans itself nor when others do, after its commit and after some of others."""
    clocks = Clocks()
    clocks.write(clocks.wrong, 100)
    for number in range(later):
        clocks.write(clocks.right, 200 + number)
    before = clocks.readable()
    with caplog.at_level(logging.WARNING):
        done = cleaner(clocks).maintenance.clean(keep_hours=WEEK_H)
    assert done.slot is None and clocks.readable() == before
    assert "older than 168 hours" in done.doubt and "A writer's clock was wrong" in done.doubt
    assert done.doubt in caplog.text
    assert cleaner(clocks).maintenance.plan_clean(keep_hours=WEEK_H) is None


def test_what_is_old_by_every_measure_expires() -> None:
    clocks = Clocks()
    clocks.disk.advance(8 * DAY_S)
    newest = clocks.write(clocks.right, 100)
    done = clocks.right.maintenance.clean(keep_hours=WEEK_H)
    assert done.slot is not None and done.doubt == ""
    assert done.bound == newest - 1, "what was there a week ago can be read"
    assert clocks.readable()[0] == newest - 1


def test_of_a_jump_in_the_middle_what_is_old_expires_and_what_is_not_stays() -> None:
    clocks = Clocks()
    old = clocks.right.refresh().slot
    clocks.disk.advance(8 * DAY_S)
    young = [clocks.write(clocks.right, 100 + number) for number in range(3)]
    ahead = FakeEnv(3, now_ms=clocks.disk.now_ms() + 8 * DAY_S * 1000)
    wrong = objcat.table_at(FileIO(clocks.backend, env=ahead))
    clocks.write(wrong, 200)
    done = clocks.right.maintenance.clean(keep_hours=WEEK_H)
    assert done.slot is not None and done.bound == old
    assert done.doubt
    assert set(young) <= set(clocks.readable())


def test_a_copy_whose_files_are_new_keeps_its_history() -> None:
    clocks = Clocks()
    clocks.disk.advance(8 * DAY_S)
    clocks.write(clocks.right, 100)
    source = FileIO(clocks.backend, env=clocks.disk)
    target = FileIO(MemoryBackend("copy", env=clocks.disk), env=clocks.disk)
    for key in source.list_keys():
        target.put(key, source.read(key))
    done = objcat.table_at(target).maintenance.clean(keep_hours=WEEK_H)
    assert done.slot is None and "the files were copied" in done.doubt


def test_a_moment_is_looked_up_by_the_times_of_commits_and_clocks_that_disagree_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """A moment names one slot for everybody and for ever, in copies too: what a file's time says would be another one there."""
    clocks = Clocks()
    before = clocks.right.refresh().slot
    now = dt.datetime.fromtimestamp(clocks.disk.now_ms() / 1000, dt.UTC)
    with caplog.at_level(logging.WARNING):
        clocks.right.scan(as_of=now).to_arrow()
    assert caplog.text == ""
    clocks.write(clocks.wrong, 100)
    with caplog.at_level(logging.WARNING):
        found = clocks.right.scan(as_of=now + dt.timedelta(hours=1)).plan.snapshot.slot
    assert found == before
    assert "ahead of this machine's clock" in caplog.text
