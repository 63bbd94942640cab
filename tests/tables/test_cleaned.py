"""Writes and transactions whose files are cleaned under them: what can begin anew does, and nobody is told of damage."""

# ruff: noqa: PT012  (a transaction is a block, and fails where it ends)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.contract import ByteRange, GetResult, NotModified, Version
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.errors import CommitConflict, SnapshotExpired
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from tests.tables.published import until_published

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
KINDS = ["merge_on_read", "copy_on_write"]


class InterruptedBackend(MemoryBackend):
    """interruptions: each is run once, in order, before a data file is read; what it reads itself sets off nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.interruptions: list[Callable[[], object]] = []
        self._running = False

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        if "/data/" in f"/{key}" and self.interruptions and not self._running:
            self._running = True
            self.interruptions.pop(0)()
            self._running = False
        return super().get(key, byte_range, if_none_match)


@pytest.fixture
def backend() -> InterruptedBackend:
    return InterruptedBackend("cleaned")


@pytest.fixture
def lake(backend: InterruptedBackend) -> objcat.Lake:
    return objcat.Lake(FileIO(backend))


def create(lake: objcat.Lake, kind: TableType) -> objcat.Table:
    table = lake.create_table("t", SCHEMA, key=["k"], table_type=kind, index=objcat.BucketIndex(2), shared_log="d")
    table.upsert(rows(*range(8), value=0))
    return table


def rows(*keys: int, value: int) -> list[dict[str, Any]]:
    return [{"k": key, "v": value} for key in keys]


def values(table: objcat.Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


def overtake(backend: InterruptedBackend, value: int) -> Callable[[], object]:
    """Somebody else rewrites every row, and cleans what was before."""

    def run() -> None:
        other = objcat.Lake(FileIO(backend)).table("t")
        other.upsert(rows(*range(8), value=value))
        other.maintenance.compact()
        other.maintenance.clean(keep_slots=1)

    return run


def test_a_copy_on_write_begins_anew_when_what_it_reads_is_cleaned(backend: InterruptedBackend, lake: objcat.Lake) -> None:
    table = create(lake, "copy_on_write")
    backend.interruptions = [overtake(backend, 1), overtake(backend, 2)]
    done = table.upsert(rows(3, value=9))
    assert values(table) == {key: 9 if key == 3 else 2 for key in range(8)}
    assert (done.rows, done.inserted, done.updated) == (1, 0, 1)
    readable = [table.scan(as_of=slot).plan.snapshot for slot in range(table.snapshot.log.marks(table.id).bound, done.slot + 1)]
    assert set(table._context.fileio.list_keys("data/")) == {
        path for snapshot in readable for path in snapshot.paths(table._context.manifests)
    }


def test_a_copy_on_write_that_is_overtaken_for_ever_says_so(backend: InterruptedBackend, lake: objcat.Lake) -> None:
    table = create(lake, "copy_on_write")
    backend.interruptions = [overtake(backend, number) for number in range(1, 9)]
    with pytest.raises(CommitConflict, match=r"the CLEAN at slot \d+ deleted files of that slot\. Nothing of it is visible"):
        table.upsert(rows(3, value=9))
    backend.interruptions = []
    assert values(table).keys() == set(range(8)) and 9 not in values(table).values()


@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_that_reads_what_is_cleaned_is_told_so(backend: InterruptedBackend, lake: objcat.Lake, kind: TableType) -> None:
    create(lake, kind)
    with pytest.raises(SnapshotExpired, match="was cleaned"), lake.transaction() as tx:
        scan = tx["t"].scan()
        overtake(backend, 1)()
        scan.to_arrow()


@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_that_computed_from_what_is_cleaned_conflicts(
    backend: InterruptedBackend, lake: objcat.Lake, kind: TableType
) -> None:
    table = create(lake, kind)
    with pytest.raises(CommitConflict), lake.transaction() as tx:
        tx["t"].scan().to_arrow()
        overtake(backend, 1)()
        tx["t"].upsert(rows(3, value=9))
    assert values(table) == dict.fromkeys(range(8), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_moves_to_a_newer_checkpoint(backend: InterruptedBackend, lake: objcat.Lake, kind: TableType) -> None:
    writer = create(lake, kind)
    for number in range(40):
        writer.upsert(rows(number, value=number))
    until_published(writer)
    stale = objcat.Lake(FileIO(backend))
    assert stale.table("t")._context.timeline.open().checkpoint > 0
    for number in range(40):
        writer.upsert(rows(number, value=-number))
    until_published(writer)
    assert collect_checkpoints(writer._context.timeline, Committer(writer._context.fileio), keep=1).objects > 0
    with stale.transaction() as tx:
        assert tx["t"].scan().to_arrow().num_rows == 40
        tx["t"].insert(rows(100, value=1))
    assert values(writer)[100] == 1 and len(values(writer)) == 41
