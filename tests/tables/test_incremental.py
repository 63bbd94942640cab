"""Incremental reads: the latest state of every row that changed in a range, read from what was written there."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from objcat.common.validation import TableType
from objcat.errors import InvalidInput, SnapshotExpired
from objcat.timeline.archive import archive
from tests.effort import seeds
from tests.tables.followed import Followed

KINDS = ("merge_on_read", "copy_on_write")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", seeds(2, with_all=4))
def test_any_range_of_any_history_gives_the_rows_that_are_others_than_before(kind: TableType, ordered: bool, seed: int) -> None:
    chance = random.Random(seed)
    followed = Followed(kind=kind, ordered=ordered)
    for _ in range(30):
        followed.step(chance)
    for since in range(-1, followed.head + 1, 3):
        for until in {since, followed.head, chance.randint(max(since, 0), followed.head)} - {-1}:
            assert followed.read_changed(since, until) == followed.changed(since, until), f"seed {seed}: slots {since} to {until}"


def test_points_are_slots_transactions_and_times() -> None:
    followed = Followed()
    for key in range(5):
        followed.upsert(key)
    entries = followed.table.inspect.history()
    third = entries[3]
    when = dt.datetime.fromtimestamp(third.committed_at_ms / 1000, dt.UTC)
    expected = followed.changed(3, 5)
    assert set(expected) == {3, 4}
    for since in (3, third.txn, when, when.isoformat()):
        assert followed.read_changed(since) == expected
    assert followed.read_changed(1, third.txn) == followed.changed(1, 3)
    assert followed.read_changed("2001-01-01") == followed.changed(-1, 5)
    assert followed.read_changed(5) == {}


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ({"since": 7}, "since=7 is no slot of the table 't'. Use a slot from 0 to 2"),
        ({"since": -2}, "Use a slot from 0 to 2"),
        ({"since": True}, "neither a slot nor a time"),
        ({"since": 2, "until": 1}, "comes before"),
        ({"since": 0, "until": 9}, "until=9"),
        ({"since": 0, "until": "2001-01-01"}, "did not exist at 2001-01-01"),
        ({"since": "20261121T090000000Z-0000000000000000"}, "is no transaction that the table 't' has committed"),
        ({"since": "yesterday"}, "is not a time"),
        ({"since": 0, "columns": ["w"]}, "no column 'w'"),
        ({"since": 0, "columns": []}, "selects nothing"),
        ({"since": 0, "columns": "v"}, "list"),
        ({"since": 0, "where": "w > 1"}, "w"),
    ],
)
def test_what_is_no_range_is_said(points: Any, said: str) -> None:
    followed = Followed()
    followed.upsert(1)
    followed.upsert(2)
    with pytest.raises(InvalidInput, match=said):
        followed.table.incremental(**points)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_columns_say_when_a_row_was_written_through_rewrites(kind: TableType) -> None:
    followed = Followed(kind=kind, buckets=1)
    for key in range(6):
        followed.upsert(key)
    followed.upsert(1)
    followed.same(done=followed.table.maintenance.compact())
    rows = followed.table.incremental(since=2, columns=["_commit_slot", "id", "_commit_time"], where="v > 3").to_arrow()
    assert rows.schema.names == ["_commit_slot", "id", "_commit_time"]
    slots = {row["id"]: row["_commit_slot"] for row in rows.to_pylist()}
    assert slots == {3: 4, 4: 5, 5: 6, 1: 7}
    times = {entry.slot: entry.committed_at_ms for entry in followed.table.inspect.history()}
    assert all(round(row["_commit_time"].timestamp() * 1000) == times[row["_commit_slot"]] for row in rows.to_pylist())


def test_a_late_row_that_lost_did_not_change_and_a_newer_one_did() -> None:
    followed = Followed(ordered=True, buckets=1)
    followed.upsert(1, 2, 3, order=5)
    followed.delete(4, order=5)
    followed.same(done=followed.table.maintenance.compact())
    since = followed.head
    followed.upsert(1, 4, order=4)
    followed.upsert(2, order=5)
    followed.upsert(3, order=6)
    followed.delete(5)
    assert set(followed.changed(since, followed.head)) == {2, 3}
    assert followed.read_changed(since) == followed.changed(since, followed.head)
    followed.same(done=followed.table.maintenance.compact())
    assert followed.read_changed(since) == followed.changed(since, followed.head)


def test_the_last_commit_is_read_without_the_files_of_the_others() -> None:
    """However large the table is: no base file that is older, and no log object."""
    followed = Followed(buckets=8)
    followed.upsert(*range(400), how="insert")
    for key in range(6):
        followed.upsert(key)
    table = followed.stranger()
    asked = table._context.fileio.metrics.snapshot()
    rows = table.incremental(since=followed.head - 1).to_arrow()
    spent = table._context.fileio.metrics.snapshot() - asked
    assert rows.num_rows == 1
    assert spent.request_count <= 2, "one look for news, and the log object"


def test_a_range_that_was_cleaned_can_still_begin_there_but_not_end() -> None:
    followed = Followed(kind="copy_on_write")
    for key in range(8):
        followed.upsert(key)
    followed.same(done=followed.table.maintenance.clean(keep_slots=2).slot)
    assert followed.read_changed(3) == followed.changed(3, followed.head)
    with pytest.raises(SnapshotExpired, match="Slot 4 of"):
        followed.table.incremental(since=2, until=4)


def test_slots_in_history_files_are_as_good_as_others() -> None:
    followed = Followed(buckets=1)
    for step in range(90):
        followed.upsert(step % 12)
    archive(followed.table._context.timeline, keep_slots=5)
    table = followed.stranger()
    followed.table = table
    for since, until in ((3, 20), (0, 90), (60, 88)):
        assert followed.read_changed(since, until) == followed.changed(since, until)
        assert followed.read_changes(since, until) == followed.changes(since, until)


def test_a_new_column_is_there_in_rows_that_are_older_than_it() -> None:
    followed = Followed(buckets=1)
    followed.upsert(1)
    followed.upsert(2)
    followed.table.alter.add_column("note", pa.string())
    followed.table.upsert([{"id": 3, "v": 99, "o": 0, "note": "new"}])
    rows = followed.table.incremental(since=1, columns=["id", "note"]).to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 2, "note": None}, {"id": 3, "note": "new"}]
    assert followed.table.incremental(since=0, until=2).schema.names == ["id", "v", "o"]


def test_a_read_optimized_scan_sees_what_compaction_has_merged() -> None:
    followed = Followed(buckets=2)
    followed.upsert(*range(6), how="insert")
    followed.upsert(1, 7)
    assert {row["id"]: row["v"] for row in followed.table.scan(mode="read_optimized").to_arrow().to_pylist()} == followed.model.values(1)
    followed.same(done=followed.table.maintenance.compact())
    assert {row["id"]: row["v"] for row in followed.table.scan(mode="read_optimized").to_arrow().to_pylist()} == followed.model.values()
    followed.delete(1)
    assert followed.table.scan(mode="read_optimized").to_arrow().num_rows == 7
    with pytest.raises(InvalidInput, match="read_optimized"):
        followed.table.scan(mode="read-optimized")  # type: ignore[arg-type]


def test_a_read_optimized_scan_of_a_copy_on_write_table_is_its_snapshot_and_of_log_rows_alone_empty() -> None:
    rewritten = Followed(kind="copy_on_write", ordered=True)
    rewritten.upsert(1, 2, 3, order=2)
    rewritten.delete(3, 9, order=4)
    found = rewritten.table.scan(mode="read_optimized").to_arrow().to_pylist()
    assert {row["id"]: row["v"] for row in found} == rewritten.model.values()
    appended = Followed()
    appended.upsert(1, 2)
    assert appended.table.scan(mode="read_optimized").to_arrow().num_rows == 0


def test_old_rows_that_a_barrier_discarded_do_not_keep_newer_ones_out() -> None:
    followed = Followed(ordered=True, buckets=1)
    followed.upsert(1, 2, order=5)
    followed.same(done=followed.table.maintenance.compact())
    followed.delete(1)
    since = followed.head
    followed.upsert(1, 2, order=3)
    assert set(followed.changed(since, followed.head)) == {1}
    assert followed.read_changed(since) == followed.changed(since, followed.head)


def test_filters_are_those_of_scans() -> None:
    followed = Followed(buckets=4)
    followed.upsert(*range(8))
    followed.upsert(*range(4))
    assert set(followed.read_changed(1, where=pc.field("id") > 1)) == {2, 3}
    assert set(followed.read_changed(0, where="id in (2, 7)")) == {2, 7}
