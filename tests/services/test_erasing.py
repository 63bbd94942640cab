"""Erasure: rows go, with every file that ever held them, however often it is cut short and whoever writes meanwhile."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio import FileIO
from fileio.contract import DeleteResult
from fileio.errors import PermissionDenied, Unavailable
from fileio.memory import MemoryBackend
from fileio.testing import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Rule
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidInput, NullKey
from objcat.inspection.doctor import examine
from objcat.maintenance.compact import compact, plan_compaction
from objcat.metadata.files import FileGroup
from objcat.table import erase
from objcat.tasks.scan import scan_groups
from tests.effort import effort, few
from tests.services.world import At, once

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("fare", pa.float64())])
REQUESTS_MAX = 400
FIRST = effort(6, with_all=1)
"""Of the requests at which an erasure is cut short; by default one in so many."""


def made(backend: MemoryBackend, kind: TableType) -> objcat.Table:
    lake = objcat.Lake(FileIO(backend, env=FakeEnv(1)))
    table = lake.create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(1))
    table.insert([{"id": i, "fare": 1.0} for i in range(4)])
    table.upsert([{"id": 1, "fare": 2.0}])
    return table


@pytest.mark.parametrize("kind", few(["merge_on_read", "copy_on_write"], 1))
@pytest.mark.parametrize("fault", few([Fault.CRASH_AFTER, Fault.CRASH_BEFORE], 1))
def test_one_that_is_cut_short_is_finished_by_the_next(kind: TableType, fault: Fault) -> None:
    for at in range(FIRST, REQUESTS_MAX, effort(13, with_all=1)):
        backend = MemoryBackend("erased")
        made(backend, kind)
        script = At(at, fault)
        with contextlib.suppress(Crash):
            objcat.Lake(FileIO(FaultyBackend(backend, script), env=FakeEnv(2))).table("t").erase("id = 1")
        table = objcat.Lake(FileIO(backend, env=FakeEnv(3))).table("t")
        done = table.erase("id = 1", older_than_s=0)
        assert done.found == 0
        assert sorted(row["id"] for row in table.scan().to_arrow().to_pylist()) == [0, 2, 3]
        assert set(table._context.fileio.list_keys("data/")) == set(table.inspect.files().column("path").to_pylist()), (
            f"request {at} leaves files"
        )
        assert examine(table._context.timeline, deep=True).healthy
        if not script.hit:
            assert at > 20
            return
    pytest.fail(f"an erasure sends more than {REQUESTS_MAX} requests")


def test_a_savepoint_that_holds_such_rows_is_named_and_others_stay() -> None:
    table = made(MemoryBackend("saved"), "merge_on_read")
    table.maintenance.savepoint(slot=0)
    table.maintenance.savepoint(slot=1, name="month")
    table.maintenance.savepoint(slot=2)
    assert table.plan_erasure("fare = 2.0").saved == (2,)
    with pytest.raises(InvalidInput, match=r"at slots 2\. Nothing was erased\. Release them"):
        table.erase("fare = 2.0")
    assert table.scan().count() == 4
    table.maintenance.release_savepoint(slot=2)
    done = table.erase("fare = 2.0")
    assert (done.deleted, done.found) == (1, 0)
    assert table.scan(as_of=1).count() == 4
    with pytest.raises(InvalidInput, match="at slots 1"):
        table.erase("id = 1")


def test_a_savepoint_that_holds_rows_below_newer_ones_is_named() -> None:
    """No reader of the slot sees them, and its files hold them all the same."""
    table = made(MemoryBackend("hidden"), "merge_on_read")
    table.maintenance.savepoint(name="id 1 cost 1.0 once")
    table.delete([{"id": 0}])
    table.maintenance.savepoint(name="id 0 is deleted")
    assert table.plan_erasure("id = 1 and fare = 1.0").saved == (2, 4)
    assert table.plan_erasure("id = 0").saved == (2, 4)
    assert table.plan_erasure("id = 7").saved == table.plan_erasure("fare = 3.0").saved == ()
    table.maintenance.compact()
    table.maintenance.savepoint(name="they are gone")
    assert table.plan_erasure("id = 0").saved == (2, 4)


@pytest.mark.parametrize("gone", ["compacted", "split"])
def test_a_savepoint_that_holds_rows_of_others_in_a_file_is_named(gone: str) -> None:
    """A log object, and a base file that was split, hold rows of file groups that have been rewritten since."""
    table = objcat.Lake(FileIO(MemoryBackend("shared"), env=FakeEnv(1))).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    (table.insert if gone == "split" else table.upsert)([{"id": i, "fare": 1.0} for i in range(20)])
    if gone == "split":
        table.maintenance.split_buckets()
    groups = table.refresh().file_groups(table._context.manifests)
    erased, group_id = next((row["id"], group.group_id) for group in groups for row in rows_of(table, group))
    table.delete([{"id": erased}])
    compact(table._context.timeline, table.id, file_groups=[group_id])
    table.maintenance.savepoint()
    assert table.scan(where=f"id = {erased}").count() == 0
    assert len(table.plan_erasure(f"id = {erased}").saved) == 1


def rows_of(table: objcat.Table, group: FileGroup) -> list[dict[str, Any]]:
    plan = table.scan().plan
    return [row for rows in scan_groups(table._context.fileio, plan.task([group])) for row in rows.to_pylist()]


class Retaining(MemoryBackend):
    """Keeps the objects in `kept`, whoever deletes them, as a bucket under a retention policy does."""

    kept: frozenset[str] = frozenset()

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        inner = iter(super().delete_batch([key for key in keys if key not in self.kept]))
        return [DeleteResult(key, PermissionDenied("retained")) if key in self.kept else next(inner) for key in keys]


def test_what_a_dead_writer_left_and_the_store_keeps_takes_the_certificate_away() -> None:
    backend = Retaining("retained")
    table = made(backend, "merge_on_read")
    before = set(table._context.fileio.list_keys("data/"))
    dies = Rule(kinds=frozenset({"put"}), key=lambda key: "/log/" in key, fault=Fault.CRASH_BEFORE)
    with pytest.raises(Crash):
        objcat.Lake(FileIO(FaultyBackend(backend, [dies]), env=FakeEnv(2))).table("t").upsert([{"id": 1, "fare": 3.0}])
    (dead,) = set(table._context.fileio.list_keys("data/")) - before
    backend.kept = frozenset(meta.key for meta in backend.list_page("", None, None, None, 1000).objects if meta.key.endswith(dead))
    assert len(backend.kept) == 1
    with pytest.raises(Unavailable, match="1 files of t that were to be deleted still exist") as raised:
        table.erase("id = 1", older_than_s=0)
    assert dead in str(raised.value)
    backend.kept = frozenset()
    done = table.erase("id = 1", older_than_s=0)
    assert dead in done.files
    assert set(table._context.fileio.list_keys("data/")) == set(table.inspect.files().column("path").to_pylist())


def test_a_savepoint_that_comes_meanwhile_takes_the_certificate_away(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend("meanwhile")
    table = made(backend, "merge_on_read")

    def save_and_compact(*arguments: Any, **named: Any) -> Any:
        objcat.Lake(FileIO(backend, env=FakeEnv(5))).table("t").maintenance.savepoint(slot=1)
        return compact(*arguments, **named)

    monkeypatch.setattr(erase, "compact", save_and_compact)
    with pytest.raises(
        InvalidInput, match=r"at slots 1\. Everything that no savepoint retains is erased\. Release them .* then erase again"
    ):
        table.erase("id = 1", older_than_s=0)
    monkeypatch.undo()
    table.maintenance.release_savepoint(slot=1)
    assert table.erase("id = 1", older_than_s=0).found == 0
    for path in table._context.fileio.list_keys("data/"):
        assert 1 not in pq.read_table(table._context.fileio.open_read(path)).column(0).to_pylist(), path


def test_a_savepoint_that_is_released_and_cleaned_while_it_is_looked_at_holds_nothing() -> None:
    backend = MemoryBackend("released")
    table = made(backend, "merge_on_read")
    saved = table.maintenance.savepoint()
    assert saved is not None

    def tidy() -> None:
        table.maintenance.release_savepoint(slot=saved.saved)
        table.maintenance.compact()
        table.maintenance.clean(keep_slots=1)

    late = objcat.Lake(FileIO(FaultyBackend(backend, before=once("get", "data/", tidy)), env=FakeEnv(4))).table("t")
    assert late.erase("id = 7", older_than_s=0).deleted is None
    assert table.scan().count() == 4


def test_rows_that_come_back_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend("back")
    table = made(backend, "merge_on_read")

    def compact_and_write(*arguments: Any, **named: Any) -> Any:
        result = compact(*arguments, **named)
        objcat.Lake(FileIO(backend, env=FakeEnv(5))).table("t").upsert([{"id": 1, "fare": 9.0}])
        return result

    monkeypatch.setattr(erase, "compact", compact_and_write)
    done = table.erase("id = 1")
    assert (done.deleted, done.found) == (1, 1)


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_no_file_of_a_record_index_holds_the_key_any_more(kind: TableType) -> None:
    person = 987_654_321
    table = objcat.Lake(FileIO(MemoryBackend("indexed"), env=FakeEnv(1))).create_table(
        "t", SCHEMA, key=["id"], table_type=kind, index=objcat.RecordIndex(2)
    )
    table.upsert([{"id": i, "fare": 1.0} for i in (*range(200), person)])
    compact(table._context.timeline, table.id, whole_index=True)
    table.upsert([{"id": i, "fare": 2.0} for i in range(3)])

    def holders() -> list[str]:
        found = []
        for path in table._context.fileio.list_keys("data/"):
            columns = pq.read_table(table._context.fileio.open_read(path)).columns
            numbers = [column for column in columns if column.type == pa.int64()]
            found += [path for column in numbers if person in column.to_pylist()]
        return found

    assert len(holders()) >= 2, "the rows and the index"
    done = table.erase(f"id = {person}", older_than_s=0)
    assert (done.deleted, done.found) == (1, 0)
    assert holders() == []
    assert table.scan().count() == 200
    assert examine(table._context.timeline, deep=True).healthy


def test_rows_are_meant_by_their_keys_whatever_the_keys_are() -> None:
    at = dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.UTC)
    schema = pa.schema(
        [
            pa.field("it's `me`", pa.string(), nullable=False),
            pa.field("n", pa.int64(), nullable=False),
            pa.field("day", pa.date32(), nullable=False),
            pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("price", pa.decimal128(9, 2), nullable=False),
            pa.field("flag", pa.bool_(), nullable=False),
            ("note", pa.string()),
        ]
    )
    table = objcat.Lake(FileIO(MemoryBackend("keys"), env=FakeEnv(1))).create_table("t", schema, key=schema.names[:6])
    names = ['O\'Neill \\ "x"', "Zoë 😀", "100%"]
    rows = [
        {"it's `me`": name, "n": -i, "day": at.date(), "at": at, "price": decimal.Decimal("-1.50"), "flag": i > 0, "note": "x"}
        for name in names
        for i in range(2)
    ]
    table.upsert(rows)
    keys = [{name: row[name] for name in schema.names[:6]} for row in rows[::2]]
    assert table.plan_erasure(keys).rows == 3
    done = table.erase(keys, older_than_s=0)
    assert (done.deleted, done.found) == (3, 0)
    assert sorted(row["it's `me`"] for row in table.scan().to_arrow().to_pylist()) == sorted(names)
    for wrong, error, said in (
        ([], InvalidInput, "0 keys"),
        ([{"n": 1}], InvalidBatch, "it's `me`"),
        ([{**keys[0], "n": None}], NullKey, "n"),
    ):
        with pytest.raises(error, match=said):
            table.erase(wrong)


def test_a_negative_key_of_more_digits_than_python_rounds_to_is_erased_and_no_other() -> None:
    """28 of them, which are the key of the other row."""
    schema = pa.schema([pa.field("id", pa.decimal128(38, 10), nullable=False), ("note", pa.string())])
    table = objcat.Lake(FileIO(MemoryBackend("digits"), env=FakeEnv(1))).create_table("t", schema, key=["id"])
    gone, other = (decimal.Decimal(f"-123456789012345678901234567{end}") for end in ("8.6444444444", "9.0000000000"))
    table.upsert([{"id": gone, "note": "gone"}, {"id": other, "note": "other"}])
    assert table.plan_erasure([{"id": gone}]).rows == 1
    done = table.erase([{"id": gone}])
    assert (done.deleted, done.found) == (1, 0)
    assert [row["id"] for row in table.scan().to_arrow().to_pylist()] == [other]


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("key", [math.nan, math.inf, -math.inf])
def test_no_certificate_says_that_a_key_is_gone_that_a_filter_does_not_find(type_: pa.DataType, key: float) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("keys"), env=FakeEnv(1)))
    table = lake.create_table("t", pa.schema([pa.field("id", type_, nullable=False)]), key=["id"])
    table.upsert([{"id": key}, {"id": 1.0}])
    slot = table.snapshot.slot
    for ask in table.erase, table.plan_erasure:
        with pytest.raises(InvalidInput, match="cannot be written in a filter"):
            ask([{"id": 1.0}, {"id": key}])
    assert table.refresh().slot == slot and table.scan().count() == 2
    by_filter = "id <> id" if math.isnan(key) else "id > 1e38 or id < -1e38"
    assert table.erase(by_filter).deleted == 1
    assert table.scan().to_arrow()["id"].to_pylist() == [1.0]


def test_a_compaction_that_was_planned_before_the_delete_and_comes_first_hides_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    check_stale(made(MemoryBackend("stale"), "merge_on_read"), monkeypatch)


def test_one_that_merges_the_index_hides_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("stale index"), env=FakeEnv(1)))
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.RecordIndex(1))
    table.upsert([{"id": i, "fare": 1.0} for i in range(4)])
    check_stale(table, monkeypatch)


def check_stale(table: objcat.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = plan_compaction(table._context.timeline.open(), table.id, table._context.manifests, whole_index=True)
    assert stale is not None
    calls = []

    def forestalled(*arguments: Any, **named: Any) -> Any:
        calls.append(named)
        if len(calls) > 1:
            return compact(*arguments, **named)
        # Ours has yielded to one that merges what was there before the delete, and has done the rest.
        rest = [
            group.group_id for group in table.refresh().file_groups(table._context.manifests) if group.group_id not in stale.file_groups
        ]
        compact(table._context.timeline, table.id, plan=stale)
        return compact(table._context.timeline, table.id, file_groups=rest)

    monkeypatch.setattr(erase, "compact", forestalled)
    done = table.erase("id = 1", older_than_s=0)
    assert (done.deleted, done.found, len(calls)) == (1, 0, 2)
    for path in table._context.fileio.list_keys("data/"):
        assert 1 not in pq.read_table(table._context.fileio.open_read(path)).column(0).to_pylist(), path
