"""Whoever writes a lot leaves checkpoints behind, off the critical path, so that others open the table quickly."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Rule
from objcat.common.validation import TableType

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string())])


def rows(*keys: int) -> list[dict[str, Any]]:
    return [{"id": key, "value": "a"} for key in keys]


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_a_writer_publishes_checkpoints_and_others_open_from_them(kind: TableType) -> None:
    backend = MemoryBackend("published")
    lake = objcat.Lake(FileIO(backend, env=FakeEnv()))
    table = lake.create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(2))
    assert not any("list" in table.upsert(rows(number)).requests for number in range(70))
    assert list(table._context.fileio.list_keys("checkpoints/"))
    fresh = objcat.Lake(FileIO(backend, env=FakeEnv(2)))
    opened = fresh.table("t")
    assert opened.snapshot.slot == 70
    requests = opened._context.fileio.metrics.snapshot().requests
    assert requests["get"] < 40, f"70 slots were opened by {requests}"
    assert "list" not in requests
    assert opened.scan().to_arrow().num_rows == 70
    assert opened.scan(as_of=10).to_arrow().num_rows == 10
    assert table.scan().to_arrow().num_rows == 70


def test_a_checkpoint_that_cannot_be_written_fails_no_commit(caplog: pytest.LogCaptureFixture) -> None:
    backend = MemoryBackend("refused")
    rules = [Rule(kinds=frozenset({"put"}), key=lambda key: "checkpoints/" in key, fault=Fault.THROTTLE, times=10_000)]
    lake = objcat.Lake(FileIO(FaultyBackend(backend, rules), env=FakeEnv()))
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    for number in range(40):
        table.upsert(rows(number))
    assert table.snapshot.slot == 40
    assert "no checkpoint" in caplog.text
    assert table.scan().to_arrow().num_rows == 40


def test_chores_of_a_long_log_take_nothing_away() -> None:
    backend = MemoryBackend("chores")
    table = objcat.Lake(FileIO(backend, env=FakeEnv())).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    for number in range(70):
        table.upsert(rows(number))
    before = table.inspect.history()
    held = objcat.Lake(FileIO(backend, env=FakeEnv(2))).table("t")
    archived = table.maintenance.archive(keep_slots=20)
    assert archived.tombstones == archived.end_slot - archived.first_slot > 10
    assert table.maintenance.archive(keep_slots=20).tombstones == 0
    collected = table.maintenance.expire_checkpoints(keep=1)
    assert collected.slot == table.snapshot.slot == 71, "the handle has seen the slot of the collection"
    assert collected.voided and collected.objects
    assert table.maintenance.expire_checkpoints(keep=1).slot is None
    for one in (table, held, objcat.Lake(FileIO(backend, env=FakeEnv(3))).table("t")):
        assert one.scan().to_arrow().num_rows == 70
        assert one.scan(as_of=5).to_arrow().num_rows == 5
        assert list(one.inspect.history())[:-1] == list(before)
    held.upsert(rows(100))
    assert table.refresh().slot == 72
