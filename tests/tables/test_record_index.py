"""Tables with the record index: it says of every key where it lives, at every slot, and whoever writes reads no key of the rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import objcat
from fileio.env import MEMORY_BYTES
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from objcat.common.validation import TableType
from objcat.errors import InvalidInput
from objcat.inspection.doctor import examine
from objcat.inspection.findings import Severity
from objcat.maintenance.auto import SLOTS_BETWEEN_LOOKS
from objcat.maintenance.reindex import LOG_OBJECTS_MAX
from objcat.metadata.files import decode_delta
from objcat.metadata.key_index_table import INDEX_PARTITION
from objcat.tasks.model import WriteResult, WriteTask
from objcat.timeline.entry import Action

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("part", pa.string(), nullable=False), pa.field("v", pa.int64())])
KINDS = ("merge_on_read", "copy_on_write")
BUCKETS = 4
Rows = dict[int, int]

of_both_kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("record")))


def create(lake: objcat.Lake, kind: TableType, *, name: str = "t", target: int = 1024, **settings: Any) -> objcat.Table:
    settings = {"partition_by": ["part"], "key_scope": "partition", "index": objcat.RecordIndex(BUCKETS), **settings}
    return lake.create_table(name, SCHEMA, key=["id"], table_type=kind, properties={"target_file_bytes": str(target)}, **settings)


def batch(*keys: int, v: int = 0, part: str | None = None) -> list[dict[str, object]]:
    return [{"id": key, "part": part or "xy"[key % 2], "v": v} for key in keys]


def rows(table: objcat.Table) -> Rows:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: row["v"] for row in found}


def check(table: objcat.Table) -> int:
    """What the log says of the index is what the rows say. Returns how many keys it holds."""
    report = examine(table._context.timeline, deep=True)
    assert {finding.severity for finding in report.findings} <= {Severity.LEFTOVER}, report.findings
    return report.counts["keys in the index"]


def index_objects(table: objcat.Table) -> tuple[int, int]:
    """Base files and log objects."""
    index = table.refresh().index
    assert index is not None
    groups = index.file_groups(table._context.manifests)
    return sum(group.base is not None for group in groups), len({part.object.path for group in groups for part in group.logs})


@pytest.mark.parametrize("target", [1024, 10**6])
def test_a_key_is_found_without_reading_those_of_any_row(lake: objcat.Lake, target: int) -> None:
    table = create(lake, "merge_on_read", target=target)
    for at in range(0, 40, 10):
        table.insert(batch(*range(at, at + 10)))
    groups = table.refresh().file_groups(table._context.manifests)
    paths = {group.base.path for group in groups if group.base} | {part.object.path for group in groups for part in group.logs}
    assert len(groups) > 8 if target == 1024 else len(groups) == 2
    hidden = {path: table._context.fileio.read(path) for path in paths}
    table._context.fileio.delete(hidden)
    lake.table("t").upsert(batch(3, 17, 40, v=1))
    for path, data in hidden.items():
        table._context.fileio.put(path, data)
    assert rows(table) == {**dict.fromkeys(range(40), 0), 3: 1, 17: 1, 40: 1}
    assert check(table) == 41


def located(lake: objcat.Lake, name: str, *, groups: int) -> tuple[dict[str, int], int, int]:
    """What 100 keys among so many file groups take to be found, by a handle that has just been opened: requests, and bytes; and how
    many file groups there are."""
    # With room for no more than ten rows each.
    table = create(lake, "merge_on_read", name=name, partition_by=[], index=objcat.RecordIndex(16))
    table.bulk_insert([{"id": key, "part": "x", "v": 0} for key in range(10 * groups)])
    table.maintenance.compact()
    table = lake.table(name)
    before = table._context.fileio.metrics.snapshot()
    done = table.upsert([{"id": key * groups // 10, "part": "x", "v": 1} for key in range(100)])
    sent = table._context.fileio.metrics.snapshot() - before
    assert rows(table) == {key: int(key % (groups // 10) == 0) for key in range(10 * groups)}
    return dict(done.requests), sent.bytes_read, len(table.refresh().file_groups(table._context.manifests))


def test_what_a_locate_reads_follows_the_batch_and_not_the_file_groups(lake: objcat.Lake) -> None:
    few, some = located(lake, "few", groups=50), located(lake, "some", groups=500)
    assert few[2] > 40 and some[2] > 400
    assert few[0] == some[0] and few[0]["get"] <= 16 + 4
    # Ten times as many keys: of each of the 16 files of the index one row group is read, which is larger as long as it is not full.
    assert some[1] < 3 * few[1], (few, some)


def read_to_find(lake: objcat.Lake, keys: npt.NDArray[np.int64], found: Sequence[int], *, is_merged: bool) -> tuple[int, int]:
    """What an upsert of some keys, and of one that is new, takes in a table with an index of one bucket: GETs and bytes. found: which of
    the keys are there."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    name = f"t{len(keys)}_{is_merged}"
    table = lake.create_table(name, schema, key=["id"], index=objcat.RecordIndex(1))
    table.bulk_insert(pa.table({"id": keys, "v": np.zeros(len(keys), np.int64)}, schema=schema))
    if is_merged:
        table.maintenance.compact()
    table = lake.table(name)
    before = table._context.fileio.metrics.snapshot()
    done = table.upsert([{"id": key, "v": 1} for key in (*found, -1)])
    sent = table._context.fileio.metrics.snapshot() - before
    # Who finds a key writes over its row, and who does not makes another one.
    assert table.scan().to_arrow().num_rows == len(keys) + 1
    assert table.scan(where="v = 1").to_arrow().num_rows == len(found) + 1
    return done.requests["get"], sent.bytes_read


@pytest.mark.parametrize("is_merged", [True, False])
def test_what_a_locate_reads_of_an_index_follows_the_batch_and_not_the_keys_of_the_table(lake: objcat.Lake, is_merged: bool) -> None:
    rng = np.random.default_rng(1)
    everything = np.unique(rng.integers(0, 1 << 40, 990_000))
    few, many = (rng.permutation(everything[:: len(everything) // size]) for size in (330_000, 990_000))
    found = rng.choice(few, 5, replace=False).tolist()
    of_few, of_many = (read_to_find(lake, keys, found, is_merged=is_merged) for keys in (few, many))
    # Both indexes are larger than what is read in one request, 1.4 and 4.2 MB. Of them a footer is read, and a row group for each key.
    assert max(of_few[0], of_many[0]) <= 3 + len(found) + 1, (of_few, of_many)
    assert max(of_few[1], of_many[1]) < 700_000, (of_few, of_many)


@of_both_kinds
@pytest.mark.parametrize("scope", ["partition", "table"])
def test_rows_are_found_after_every_operation_and_in_a_new_handle(lake: objcat.Lake, kind: TableType, scope: str) -> None:
    table = create(lake, kind, key_scope=scope)
    table.insert(batch(*range(10)))
    table.upsert(batch(*range(5, 15), v=1))
    table.delete(batch(1, 6))
    expected = {key: int(key >= 5) for key in range(15) if key not in (1, 6)}
    assert rows(table) == expected and check(table) == 13
    table.maintenance.compact()
    table = lake.table("t")
    assert index_objects(table)[1] == 0
    table.upsert(batch(1, 5, v=2))
    assert rows(table) == expected | {1: 2, 5: 2} and check(table) == 14
    with lake.transaction() as tx:
        tx["t"].insert(batch(20, 21))
        tx["t"].delete(batch(20))
        tx["t"].upsert(batch(20, 21, 22, v=3))
        tx["t"].delete(batch(22))
    assert rows(table) == expected | {1: 2, 5: 2, 20: 3, 21: 3} and check(table) == 16
    table.delete("v = 0")
    table.merge(batch(0, 14, v=4)).when_matched_update().when_not_matched_insert().execute()
    left = {key: v for key, v in (expected | {1: 2, 5: 2, 20: 3, 21: 3}).items() if v} | {0: 4, 14: 4}
    assert rows(table) == left and check(table) == len(left)


@of_both_kinds
@pytest.mark.parametrize(
    "others",
    [
        lambda table: table.insert(batch(3, v=1)),
        lambda table: table.delete(batch(1)),
        lambda table: table.maintenance.compact(),
        lambda table: (table.delete(batch(1)), table.maintenance.compact(), table.insert(batch(1, v=1))),
        lambda table: table.restore(to=1),
        lambda table: table.overwrite(batch(1, 3, v=1)),
        lambda table: (table.overwrite(batch(1, 3, v=1)), table.restore(to=2)),
        lambda table: table.delete_partition("part = 'y'"),
    ],
    ids=["insert", "delete", "compact", "come back", "restore", "overwrite", "overwrite and restore", "delete_partition"],
)
def test_what_others_did_is_seen(lake: objcat.Lake, kind: TableType, others: Callable[[objcat.Table], object]) -> None:
    table, other = create(lake, kind), objcat.Lake(lake.fileio).table("t")
    table.insert(batch(1, 2))
    table.upsert(batch(1, 2, v=0))
    others(other)
    table.upsert(batch(1, 2, 3, 4, v=5))
    assert rows(table) == dict.fromkeys((1, 2, 3, 4), 5)
    other.upsert(batch(1, 2, 3, 4, v=6))
    table.insert(batch(3, 5, v=7))
    assert rows(table) == {1: 6, 2: 6, 3: 7, 4: 6, 5: 7}
    check(table)


@of_both_kinds
def test_a_key_would_be_there_twice_if_the_index_were_not_written_with_the_rows(
    lake: objcat.Lake, kind: TableType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgotten(fileio: FileIO, task: WriteTask, name: str, changes: pa.Table) -> WriteResult:
        return WriteResult()

    table = create(lake, kind)
    table.insert(batch(1))
    with monkeypatch.context() as planted:
        planted.setattr("objcat.tasks.external_sort.put_index", forgotten)
        table.insert(batch(3))
    (finding,) = examine(table._context.timeline, deep=True).findings
    assert finding.invariant == "P9" and "where 1 keys live" in finding.says
    table.upsert(batch(1, 3, v=1))
    with pytest.raises(AssertionError, match="a key is there twice"):
        rows(table)


@of_both_kinds
def test_a_key_that_one_batch_ends_and_brings_back_is_known(lake: objcat.Lake, kind: TableType, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each record batch of a stream becomes a run of its own.
    monkeypatch.setattr("objcat.tasks.external_sort.RUN_SHARE", MEMORY_BYTES)
    monkeypatch.setattr("objcat.engine.spooled_batch.SPOOL_BYTES_MAX", 1)
    schema = SCHEMA.append(pa.field("op", pa.string()))
    table = create(lake, kind)
    table.insert(batch(1, 3))

    def write(*parts: tuple[int, str]) -> None:
        given = [pa.RecordBatch.from_pylist([{**batch(key, v=2)[0], "op": op}], schema) for key, op in parts]
        table.upsert(pa.RecordBatchReader.from_batches(schema, given), delete_when="op = 'd'")

    write((1, "d"), (5, "u"), (3, "u"), (1, "u"), (5, "d"), (3, "d"))
    assert rows(table) == {1: 2} and check(table) == 1
    table.upsert(batch(1, 3, 5, v=3))
    assert rows(table) == {1: 3, 3: 3, 5: 3} and check(table) == 3


@of_both_kinds
def test_a_delete_with_an_ordering_value_keeps_its_key_where_it_is(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind, ordering="v")
    table.insert(batch(1, v=1))
    table.delete(batch(1, v=5))
    assert check(table) == 1
    table.upsert(batch(1, v=4))
    assert rows(table) == {}
    table.maintenance.compact()
    table.upsert(batch(1, v=3))
    assert rows(table) == {} and check(table) == 1
    table.delete([{"id": 1, "part": "y"}])
    assert check(table) == 0
    table.upsert(batch(1, v=2))
    assert rows(table) == {1: 2} and check(table) == 1


@of_both_kinds
def test_log_objects_of_the_index_are_merged_when_there_are_many(
    lake: objcat.Lake, kind: TableType, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(lake, kind, target=10**6)
    table.insert(batch(*range(100)))
    assert index_objects(table) == (0, 1)
    table.maintenance.compact()
    assert index_objects(table) == (BUCKETS, 0)
    for key in range(100, 103):
        table.insert(batch(key))
    table.maintenance.compact()
    assert index_objects(table) == (BUCKETS, 3), "few rows beside many are left until there are more"
    monkeypatch.setattr("objcat.maintenance.reindex.LOG_OBJECTS_MAX", 3)
    before = table.snapshot.slot
    done = table.maintenance.compact()
    assert done is not None and done.file_groups == () and done.slot == before + 1
    # The buckets to which no key was added stay as they are.
    assert index_objects(table) == (BUCKETS, 0) and check(table) == 103
    assert table.maintenance.compact() is None
    assert rows(table) == dict.fromkeys(range(103), 0)
    assert table.changes(since=before).to_arrow().num_rows == 0


@of_both_kinds
def test_writers_merge_an_index_to_which_many_commits_have_added(kind: TableType) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("record"), env=FakeEnv(7)))
    table = create(lake, kind, target=10**6)
    most = 0
    for key in range(100):
        sent = table.insert(batch(key)).requests["get"]
        most = max(most, index_objects(table)[1])
        # A file of each bucket of the index, a log object of each commit since it was merged, and what a copy-on-write file takes.
        assert sent <= BUCKETS + LOG_OBJECTS_MAX + SLOTS_BETWEEN_LOOKS + 8
    assert LOG_OBJECTS_MAX <= most < LOG_OBJECTS_MAX + SLOTS_BETWEEN_LOOKS
    merged = [entry for entry in table._context.timeline.log.read_after(-1) if entry.action is Action.COMPACTION]
    assert 0 < len(merged) <= 100 // LOG_OBJECTS_MAX, "it is not merged more often than it has to be"
    assert all({group_id.partition for group_id in entry.footprint[table.id].replaces} == {INDEX_PARTITION} for entry in merged)
    assert rows(table) == dict.fromkeys(range(100), 0) and check(table) == 100


def test_a_large_index_waits_for_more_log_objects(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.maintenance.reindex.LOG_OBJECTS_MAX", 2)
    monkeypatch.setattr("objcat.maintenance.reindex.LOG_OBJECTS_OF_LARGE_MAX", 7)
    table = create(lake, "merge_on_read", target=10**6, partition_by=[])
    table.insert(batch(*range(1000)))
    table.maintenance.compact()

    def objects_when_due(rows_per_object: int) -> int:
        monkeypatch.setattr("objcat.maintenance.reindex.ROWS_PER_OBJECT", rows_per_object)
        for number in range(1, 20):
            table.insert(batch(next(keys)))
            if table.maintenance.compact() is not None and not index_objects(table)[1]:
                return number
        pytest.fail("it is never due")

    keys = iter(range(1000, 2000))
    assert [objects_when_due(size) for size in (10**6, 200, 1)] == [2, 5, 7]
    assert check(table) == 1014


def test_an_index_forgets_the_keys_of_partitions_that_are_gone(lake: objcat.Lake) -> None:
    table = create(lake, "merge_on_read")
    table.insert(batch(*range(100)))
    table.delete_partition("part = 'y'")
    assert check(table) == 100
    table.maintenance.compact()
    assert check(table) == 50
    table.upsert(batch(*range(4), v=1))
    assert rows(table) == {**dict.fromkeys(range(0, 100, 2), 0), **dict.fromkeys(range(4), 1)} and check(table) == 52


@of_both_kinds
def test_files_of_the_index_go_with_the_slots_that_name_them(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    for at in range(0, 20, 5):
        table.insert(batch(*range(at, at + 5)))
    saved = table.refresh().paths(table._context.manifests)
    kept = table.maintenance.savepoint()
    assert kept is not None
    table.maintenance.compact()
    table.insert(batch(20))
    table.maintenance.clean(keep_slots=1)
    assert set(table._context.fileio.list_keys("data/")) == saved | table.refresh().paths(table._context.manifests)
    table.restore(to=kept.saved)
    table.upsert(batch(*range(21), v=1))
    assert rows(table) == dict.fromkeys(range(21), 1)
    check(table)
    table.maintenance.release_savepoint(slot=kept.saved)
    lake.drop_table("t")
    lake.purge_table("t", older_than_s=0)
    assert not list(table._context.fileio.list_keys("data/"))


def test_an_index_is_opened_from_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.timeline.checkpoint.TAIL_SLOTS_MAX", 16)
    backend = MemoryBackend("record")
    table = create(objcat.Lake(FileIO(backend, env=FakeEnv())), "merge_on_read", target=10**6)
    for key in range(20):
        table.insert(batch(key))
    assert list(table._context.fileio.list_keys("checkpoints/"))
    opened = objcat.Lake(FileIO(backend, env=FakeEnv(2))).table("t")
    assert opened.snapshot.table.index is not None and opened.snapshot.table.index.manifest
    opened.upsert(batch(*range(30), v=1))
    assert rows(opened) == dict.fromkeys(range(30), 1) and check(opened) == 30


def test_nobody_sees_the_index_but_writers(lake: objcat.Lake) -> None:
    table = create(lake, "merge_on_read")
    slot = table.insert(batch(1, 2)).slot
    assert lake.tables() == ["t"]
    assert table.scan().to_arrow().column_names == SCHEMA.names
    assert table.incremental(since=0).to_arrow().num_rows == table.changes(since=0).to_arrow().num_rows == 2
    assert table.inspect.stats().groups == 2
    entry = table._context.timeline.log.read_known(slot)
    delta = decode_delta(entry.changes[table.id])
    assert delta.index is not None and len(delta.index.logs) == 1 and not delta.index.bases
    assert {group_id.partition for group_id in entry.footprint[table.id].creates} == {"part=x", "part=y"}


@pytest.mark.tier("all")
def test_processes_place_no_key_twice(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
    table = objcat.connect(str(tmp_path)).create_table("t", schema, key=["id"], index=objcat.RecordIndex(2))
    job = {"url": str(tmp_path), "options": {}, "table": "t", "commits": 6, "keys": 60}
    command = [sys.executable, str(Path(__file__).with_name("writer_process.py"))]
    given = [json.dumps({**job, "writer": number, "seed": number}) for number in range(2)]
    writers = [subprocess.Popen([*command, one], stdout=subprocess.PIPE, text=True) for one in given]
    told = [json.loads(line) for writer in writers for line in writer.communicate(timeout=150)[0].splitlines()]
    expected: dict[int, str] = {}
    for commit in sorted(told, key=lambda commit: commit["slot"]):
        written = {int(key): value for key, value in commit["written"].items()}
        expected = {key: value for key, value in (expected | written).items() if value is not None}
    found = table.scan().to_arrow().to_pylist()
    assert len(told) == 12 and len(found) == len(expected) and {row["id"]: row["value"] for row in found} == expected
    assert check(table) == len(expected)


@pytest.mark.parametrize("buckets", [0, 65_537, 2.5])
def test_an_index_has_a_number_of_buckets(lake: objcat.Lake, buckets: Any) -> None:
    with pytest.raises(InvalidInput, match=r"RecordIndex\(buckets="):
        create(lake, "merge_on_read", index=objcat.RecordIndex(buckets))
