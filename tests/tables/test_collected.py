"""Handles whose checkpoint is collected under them: they move to a newer one, and nobody notices."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import objcat
from fileio.contract import Overwrite
from fileio.env import SystemEnv
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.inspection.doctor import examine
from objcat.inspection.findings import Severity
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from tests.tables.published import until_published

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


def grown(name: str, kind: TableType) -> tuple[objcat.Table, objcat.Table]:
    """A handle that stands on a checkpoint that is gone, and the one that went on."""
    store = FileIO(MemoryBackend(name))
    writer = objcat.create_table_at(store, SCHEMA, key=["k"], table_type=kind, index=objcat.BucketIndex(2))
    for i in range(40):
        writer.upsert([{"k": i, "v": i}])
    until_published(writer)
    stale = objcat.table_at(FileIO(store._bare, env=SystemEnv()))  # Of another process: it shares nothing with the writer.
    assert stale._context.timeline.open().checkpoint > 0
    for i in range(40, 80):
        writer.upsert([{"k": i, "v": i}])
    until_published(writer)
    collected = collect_checkpoints(writer._context.timeline, Committer(store), keep=1)
    assert collected.objects > 0
    return stale, writer


def scan(table: objcat.Table) -> None:
    assert table.scan().to_arrow().num_rows == 80


def upsert(table: objcat.Table) -> None:
    assert table.upsert([{"k": 7, "v": 70}]).rows == 1
    assert table.scan(where="k = 7").to_arrow().to_pylist() == [{"k": 7, "v": 70}]


def insert(table: objcat.Table) -> None:
    assert table.insert([{"k": 1000, "v": 1}]).rows == 1
    assert table.scan().to_arrow().num_rows == 81


@pytest.mark.parametrize("use", [scan, upsert, insert])
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_a_handle_moves_to_a_newer_checkpoint(kind: TableType, use: Callable[[objcat.Table], None]) -> None:
    stale, writer = grown(f"{kind}-{use.__name__}", kind)
    use(stale)
    assert sorted(map(str, stale.scan().to_arrow().to_pylist())) == sorted(map(str, writer.scan().to_arrow().to_pylist()))


def test_a_damaged_checkpoint_is_named_with_what_mends_it() -> None:
    store = FileIO(MemoryBackend("damaged"))
    table = objcat.create_table_at(store, SCHEMA, key=["k"], index=objcat.BucketIndex(2))
    for i in range(40):
        table.upsert([{"k": i, "v": i}])
    until_published(table)
    shards = [key for key in store.list_keys("checkpoints/") if key.endswith(".parquet")]
    kept = {key: store.read(key) for key in shards}
    store.delete(shards)
    assert objcat.table_at(FileIO(store._bare)).scan().to_arrow().num_rows == 40, "the log says the same"
    findings = [one for one in examine(table._context.timeline).findings if one.severity is Severity.BROKEN]
    assert {one.subject for one in findings} == set(shards)
    assert all(one.invariant == "P7" and "a cache" in one.remedy for one in findings)
    for key, data in kept.items():
        store.put(key, data, Overwrite())
    assert examine(table._context.timeline).healthy
    store.delete([*store.list_keys("checkpoints/"), "head.json"])
    assert objcat.table_at(FileIO(store._bare)).scan().to_arrow().num_rows == 40


def test_a_writer_publishes_nothing_that_stands_on_what_was_deleted() -> None:
    store = FileIO(MemoryBackend("deleted"))
    table = objcat.create_table_at(store, SCHEMA, key=["k"], index=objcat.BucketIndex(2048))
    table.upsert(pa.table({"k": range(4096), "v": range(4096)}))
    for i in range(20):
        table.upsert([{"k": i, "v": -1}])
    until_published(table)
    table._context.timeline.publish(table._context.timeline.open())
    held = table._context.timeline.open()
    assert held.checkpoint == 16
    store.delete([*store.list_keys("checkpoints/"), "head.json"])
    for i in range(20):
        table.upsert([{"k": i, "v": -2}])
    until_published(table)
    published = table._context.timeline.publish(table._context.timeline.refresh(held))
    assert published.checkpoint == 32
    assert objcat.table_at(FileIO(store._bare)).scan().to_arrow().num_rows == 4096
    assert examine(table._context.timeline).healthy
