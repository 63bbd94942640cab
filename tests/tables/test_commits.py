"""When rows were committed: found from their transactions, with few requests however long the log is."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.common.validation import TableType
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.parquet import read_base
from objcat.errors import CorruptTable
from objcat.planning.commits import CommitInfo, commits_table, txns_of, with_commits
from objcat.timeline.archive import archive
from objcat.timeline.entry import Txn

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
_names = itertools.count()


def create(kind: TableType = "copy_on_write", *, buckets: int = 2) -> objcat.Table:
    lake = objcat.Lake(FileIO(MemoryBackend(f"commits-{next(_names)}"), env=FakeEnv(7)))
    return lake.create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(buckets))


def points(table: objcat.Table) -> dict[str, CommitInfo]:
    return {entry.txn: CommitInfo(entry.slot, entry.committed_at_ms) for entry in table.inspect.history()}


def requests(table: objcat.Table) -> int:
    return table._context.fileio.metrics.snapshot().request_count


@pytest.mark.parametrize("kind", ["copy_on_write", "merge_on_read"])
def test_the_rows_of_every_file_lead_to_their_commits(kind: TableType) -> None:
    table = create(kind)
    for step in range(6):
        table.upsert([{"id": step, "v": step}, {"id": 100, "v": step}])
    table.maintenance.compact()
    groups = table.refresh().file_groups(table._context.manifests)
    txns = txns_of(table._context.fileio, groups)
    assert table._context.commits_of(txns) == {txn: point for txn, point in points(table).items() if txn in txns}
    rows = pa.concat_tables([read_base(table._context.fileio, group.base, ["id", TXN_COLUMN]) for group in groups if group.base])
    dated = with_commits(rows, table._context.commits_of(txns))
    slots = dict(zip(dated.column("id").to_pylist(), dated.column("_commit_slot").to_pylist(), strict=True))
    assert slots == {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 100: 6}
    times = {entry.slot: entry.committed_at_ms for entry in table.inspect.history()}
    assert [round(when.timestamp() * 1000) for when in dated.column("_commit_time").to_pylist()] == [
        times[slot] for slot in dated.column("_commit_slot").to_pylist()
    ]
    assert commits_table({}).num_rows == 0


def test_a_file_of_one_transaction_is_not_read_beyond_its_footer() -> None:
    table = create(buckets=1)
    done = table.insert([{"id": n, "v": n} for n in range(50_000)])
    (group,) = table.refresh().file_groups(table._context.manifests)
    before = table._context.fileio.metrics.snapshot()
    assert txns_of(table._context.fileio, [group]) == {done.txn}
    spent = table._context.fileio.metrics.snapshot() - before
    assert spent.request_count <= 2


def test_few_requests_find_the_commits_of_a_long_log_and_none_find_them_again() -> None:
    table = create(buckets=1)
    for step in range(420):
        table.upsert([{"id": step, "v": step}])
    archive(table._context.timeline, keep_slots=10)
    expected = {txn: point for txn, point in points(table).items() if point.slot > 0}
    (group,) = table.refresh().file_groups(table._context.manifests)
    txns = txns_of(table._context.fileio, [group])
    assert txns == expected.keys()
    before = requests(table)
    assert table._context.commits_of(txns) == expected
    spent = requests(table) - before
    assert 1 <= spent <= 10, "one for each segment of old outcomes"
    before = requests(table)
    assert table._context.commits_of(txns) == expected
    assert requests(table) == before


def test_the_newest_commits_cost_no_request() -> None:
    table = create(buckets=1)
    for step in range(20):
        table.upsert([{"id": step, "v": step}])
    txns = [entry.txn for entry in table.inspect.history()]
    before = requests(table)
    assert len(table._context.commits_of(txns)) == 21
    assert requests(table) == before


def test_a_transaction_that_nobody_committed_is_named() -> None:
    table = create()
    with pytest.raises(CorruptTable, match="20261121T090000000Z-0000000000000000"):
        table._context.commits_of([Txn("20261121T090000000Z-0000000000000000")])
