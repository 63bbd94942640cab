"""The table of `spec/tables/` whose writers commit together: slots with several transactions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from unittest import mock

import pyarrow as pa

import objcat
from devkit.spec_tables import Maker
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Rule, Rules
from objcat.timeline import commit_group
from objcat.timeline.archive import archive

COUNTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("by", pa.string())])


def shared_slots(maker: Maker) -> None:
    """Writers that asked and died, and one that commits for them: upserts of the same keys, deletes, a compaction, archived slots."""
    table = maker.table("counts", COUNTS, key=["id"], index=objcat.BucketIndex(2), properties={"group_commit": "on"})
    died = 0

    def ask(write: Callable[[objcat.Table], object]) -> None:
        """Write in a process that dies once others may commit what it wrote."""
        nonlocal died
        died += 1
        rule = Rule(fault=Fault.CRASH_BEFORE, kinds=frozenset({"put"}), key=lambda key: "/log/" in key)
        env = FakeEnv(died, now_ms=maker.env.now_ms() + died)
        with contextlib.suppress(Crash):
            write(objcat.Lake(FileIO(FaultyBackend(maker.backend, Rules([rule])), env=env)).table("counts"))

    def rows(by: str, *ids: int) -> list[dict[str, object]]:
        return [{"id": number, "by": by} for number in ids]

    with mock.patch.object(commit_group, "ASKS_AFTER_SLOTS", 0):
        maker.tick()
        ask(lambda own: own.upsert(rows("first", 1, 2, 3), metadata={"who": "first"}))
        ask(lambda own: own.upsert(rows("second", 2, 3, 4)))
        table.upsert(rows("own", 3, 4, 5), metadata={"who": "own"})
        maker.tick()
        ask(lambda own: own.delete([{"id": 1}, {"id": 5}]))
        table.upsert(rows("own", 1))
        maker.tick()
        table.maintenance.compact()
        maker.tick()
        ask(lambda own: own.upsert(rows("third", 5, 6)))
        table.delete([{"id": 6}])
        for number in range(36):
            maker.tick()
            table.upsert(rows("own", number % 4))
        maker.tick()
        archive(table._context.timeline, keep_slots=16)
