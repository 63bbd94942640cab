"""Checkpoints that are collected while an operation is under way, before each of its looks at one: the operation opens the log again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.contract import ByteRange, GetResult, NotModified, Version
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.errors import SnapshotExpired
from objcat.inspection.doctor import examine
from objcat.timeline import checkpoint
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from tests.effort import effort
from tests.tables.published import until_published

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("day", pa.string())])
ROWS = 8
LOOKS_MAX = 40


class Looked(MemoryBackend):
    """Calls somebody before the nth look at an object of a checkpoint, but for roots: before what a view stands on is read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.nth = 0
        self.act: Callable[[], None] = lambda: None

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        if self.nth and key.startswith("checkpoints/") and not key.endswith("/root.json"):
            self.nth -= 1
            if not self.nth:
                self.act()
        return super().get(key, byte_range, if_none_match)


@dataclass
class Place:
    """A table that one handle writes to, and another one that stands on a checkpoint of before."""

    backend: Looked
    writer: objcat.Table
    stale: objcat.Table

    def collect(self) -> None:
        """Somebody writes on, publishes, and collects all checkpoints but the newest."""
        for number in range(6):
            self.writer.upsert([{"k": 1000 + number % 3, "v": number, "day": "z"}])
        until_published(self.writer)
        assert collect_checkpoints(self.writer._context.timeline, Committer(self.writer._context.fileio), keep=1).objects > 0


@pytest.fixture(autouse=True)
def short_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few commits make a checkpoint."""
    monkeypatch.setattr(checkpoint, "SPACING_SLOTS", 2)
    monkeypatch.setattr(checkpoint, "TAIL_SLOTS_MAX", 4)


def place(name: str, kind: Any, index: Any) -> Place:
    backend = Looked(name)
    store = FileIO(backend)
    writer = objcat.create_table_at(store, SCHEMA, key=["k"], table_type=kind, index=index, partition_by=["day"], key_scope="partition")
    for number in range(ROWS):
        writer.upsert([{"k": number, "v": number, "day": "ab"[number % 2]}])
    until_published(writer)
    stale = objcat.table_at(FileIO(backend))
    assert stale._context.timeline.open().checkpoint > 0
    return Place(backend, writer, stale)


def update(table: objcat.Table) -> None:
    assert table.update({"v": "v + 100"}, where="k < 10") is not None


def merge(table: objcat.Table) -> None:
    source = pa.table({"k": [1, 2], "v": [5, 5], "day": ["b", "a"]})
    assert table.merge(source).when_matched_update().when_not_matched_insert().execute() is not None


def upsert(table: objcat.Table) -> None:
    table.upsert([{"k": 3, "v": 33, "day": "b"}])


def insert(table: objcat.Table) -> None:
    table.insert([{"k": 5000, "v": 33, "day": "c"}])


def delete(table: objcat.Table) -> None:
    table.delete("k < 4")
    table.delete("v % 7 = 3")


def soft_delete(table: objcat.Table) -> None:
    table.soft_delete("k = 5")


def insert_overwrite(table: objcat.Table) -> None:
    table.insert_overwrite([{"k": 6000, "v": 1, "day": "b"}])


def delete_partition(table: objcat.Table) -> None:
    table.delete_partition("day = 'b'")


def scan(table: objcat.Table) -> None:
    assert table.scan(where="k < 40").to_arrow().num_rows == ROWS
    assert table.scan(where="k < 40").count() == ROWS
    found = table.scan(where="k = 3", columns=["k", "_commit_slot", "_file"]).to_arrow()
    assert found.num_rows == 1


def scan_that_was_planned(table: objcat.Table) -> None:
    scanned = table.scan(where="k < 40")
    explained = scanned.explain()
    assert str(explained)
    assert scanned.to_arrow().num_rows == ROWS
    assert scanned.max("v") is not None


def dataset(table: objcat.Table) -> None:
    assert table.scan().to_dataset().to_table(columns=["k"]).num_rows >= ROWS


def older(table: objcat.Table) -> None:
    assert table.scan(as_of=5).to_arrow().num_rows == 5


def changes(table: objcat.Table) -> None:
    assert table.changes(since=4, until=7).to_arrow().num_rows == 3
    assert table.incremental(since=4, until=7).to_arrow().num_rows == 3


def metadata(table: objcat.Table) -> None:
    assert table.inspect.stats().rows >= ROWS
    assert table.inspect.files().num_rows > 0
    assert table.inspect.partitions().num_rows >= 2
    assert "objcat_rows" in table.maintenance.metrics()


def services(table: objcat.Table) -> None:
    table.maintenance.compact()
    table.maintenance.cluster(by=["v"])
    if not table.spec.is_located:
        table.maintenance.split_buckets(partition="day=a")


def scheduled(table: objcat.Table) -> None:
    table.maintenance.schedule_compaction()
    table.maintenance.execute_scheduled()


def clean(table: objcat.Table) -> None:
    table.maintenance.compact()
    table.maintenance.plan_clean(keep_slots=5)
    table.maintenance.clean(keep_slots=5)


def restore(table: objcat.Table) -> None:
    table.maintenance.savepoint(slot=4)
    table.restore(to=4)
    table.maintenance.release_savepoint(slot=4)


def erase(table: objcat.Table) -> None:
    table.erase("k = 7")


def maintain(table: objcat.Table) -> None:
    round_ = table.maintenance.run()
    assert not [step for step in round_.steps if step.failed], round_.steps
    table.maintenance.rollback_failed_writes(older_than_s=0)


def partitioning(table: objcat.Table) -> None:
    table.alter.set_partitioning([])
    table.upsert([{"k": 3, "v": 33, "day": "b"}])


def doctor(table: objcat.Table) -> None:
    assert examine(table._context.timeline, deep=True).healthy


OPERATIONS: list[Callable[[objcat.Table], None]] = [
    update,
    merge,
    upsert,
    insert,
    delete,
    soft_delete,
    insert_overwrite,
    delete_partition,
    scan,
    scan_that_was_planned,
    dataset,
    older,
    changes,
    metadata,
    services,
    scheduled,
    clean,
    restore,
    erase,
    maintain,
    partitioning,
    doctor,
]
TABLES = {
    "merge-on-read": ("merge_on_read", objcat.BucketIndex(2)),
    "copy-on-write": ("copy_on_write", objcat.BucketIndex(2)),
    "simple": ("merge_on_read", objcat.SimpleIndex()),
    "record": ("copy_on_write", objcat.RecordIndex(2)),
}


def looks(name: str, kind: str, index: Any, operation: Callable[[objcat.Table], None]) -> Iterator[int]:
    """Runs the operation with a collection before its first look, on another table before its second, and so on, until it needs no more."""
    for nth in count(1):
        assert nth < LOOKS_MAX
        at = place(f"{name}-{nth}", kind, index)
        at.backend.act, at.backend.nth = at.collect, nth
        try:
            operation(at.stale)
        except SnapshotExpired:
            pass  # It cleans by itself what it then asks for.
        except Exception as error:
            error.add_note(f"checkpoints were collected before look {nth}")
            raise
        if at.backend.nth:
            return
        yield nth


CASES = [(operation, name) for operation in OPERATIONS for name in TABLES]
BY_DEFAULT = [(operation, "merge-on-read") for operation in OPERATIONS] + [(update, "simple"), (merge, "simple")]


@pytest.mark.parametrize(
    ("operation", "table"),
    [
        pytest.param(*case, id=f"{case[0].__name__}-{case[1]}", marks=[] if case in BY_DEFAULT else [pytest.mark.tier("all")])
        for case in CASES
    ],
)
def test_an_operation_whose_checkpoint_is_collected_opens_the_log_again(operation: Callable[[objcat.Table], None], table: str) -> None:
    for nth in looks(f"{operation.__name__}-{table}", *TABLES[table], operation):
        if nth == effort(2, with_all=LOOKS_MAX):
            break
