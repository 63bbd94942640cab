"""Manifests: how many are read and written, and what a checkpoint costs beside what it saves."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import objcat
from fileio.contract import Overwrite
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.errors import CheckpointCollected, CheckpointUnreadable
from objcat.lake.standalone import table_at
from objcat.maintenance.compact import compact
from objcat.maintenance.split_buckets import split_buckets
from objcat.metadata import manifest, manifest_levels
from objcat.metadata.files import TableDelta
from objcat.metadata.manifest import Manifests
from objcat.metadata.manifest_levels import GROWTH, RUNS_MAX, cut, runs_to_merge, shards_to_merge
from objcat.metadata.replay import TablesReducer
from objcat.timeline.entry import FileGroupId
from objcat.timeline.hints import HINT_SLOTS
from objcat.timeline.log_view import Timeline
from tests.tables.metadata import ID, TABLE, History, base, log, make_table, paths_of, snapshot_at, txn_of

PARTITIONS = 40
BUCKETS = 25


def group_ids_of(partition: int) -> list[FileGroupId]:
    return [FileGroupId(f"p={partition:03}", bucket, BUCKETS) for bucket in range(BUCKETS)]


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    """1000 files in 40 partitions, checkpointed in shards of about 100."""
    monkeypatch.setattr(manifest_levels, "SHARD_ITEMS", 100)
    monkeypatch.setattr(manifest_levels, "ITEMS_SMALL", 10)
    history = History(make_table(BUCKETS))
    for partition in range(PARTITIONS):
        bounds = {ID: (partition * 100, partition * 100 + 99, 0)}
        history.add(TableDelta(bases=tuple(base(partition + 1, group_id, bounds=bounds) for group_id in group_ids_of(partition))))
    history.save()
    return history


def gets(history: History) -> int:
    return history.fileio.metrics.snapshot().requests.get("get", 0)


def test_a_plan_reads_the_shards_that_match_and_each_once(history: History) -> None:
    shards = history.state[TABLE].manifest
    assert len(shards) == 10 and {ref.run for ref in shards} == {0}
    before = gets(history)
    found = history.groups(partitions=["p=007"])
    assert [group.group_id for group in found] == group_ids_of(7)
    assert gets(history) - before == 1, "partitions that are small are not divided"
    history.groups(group_ids=group_ids_of(7)[:3])
    assert gets(history) - before == 1, "what was read is kept"
    assert history.groups(partitions=[]) == history.groups(partitions=["p=999"]) == []
    assert gets(history) - before == 1
    assert len(history.groups()) == 1000
    assert gets(history) - before == 10


def test_rows_of_a_state_are_made_once_and_never_those_of_another(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "STATES_MAX", 2)
    made: list[object] = []

    def rows(state: object, columns: frozenset[int], count: int = 1) -> int:
        def make() -> pa.Table:
            made.append(state)
            return pa.table({"n": [id(state)] * count})

        assert history.manifests.rows_of_state(state, columns, make).column("n").to_pylist() == [id(state)] * count
        return len(made)

    first, second, third = History(), History(), History()
    assert [rows(first, frozenset({1})), rows(first, frozenset({1})), rows(first, frozenset()), rows(second, frozenset())] == [1, 1, 2, 3]
    assert [rows(second, frozenset()), rows(first, frozenset({1}))] == [3, 4], "the oldest went"
    many = manifest.STATE_BYTES_MAX // 8 + 1
    assert [rows(third, frozenset(), many), rows(third, frozenset(), many)] == [5, 6], "and large ones are not kept"


def test_the_same_plan_twice_shows_what_was_written_between(history: History) -> None:
    group_id = FileGroupId("", 0, BUCKETS)
    own = History(make_table(BUCKETS))
    for slot in range(1, 4):
        own.add(TableDelta(bases=(base(slot, group_id, bounds={ID: (slot, slot, 0)}),), as_of=slot - 1))
        assert own.groups(group_ids=[group_id]) == own.groups()
        (group,) = own.groups()
        assert group.base is not None and group.base.path.startswith(f"data/{txn_of(slot)}/")
        bounds = snapshot_at(own.state[TABLE], slot).bounds(own.manifests, own.spec.key_columns, group_ids=[group_id])
        assert bounds.column(f"lower_{ID}").to_pylist() == [slot]


def test_opening_reads_no_manifest(history: History) -> None:
    before = history.fileio.metrics.snapshot().requests
    payload = history.save()
    history.reducer.objects(payload)
    assert history.reducer.load(payload) == history.state
    assert history.fileio.metrics.snapshot().requests == before, "a state that stands on its manifests already is only named again"


def test_a_checkpoint_writes_what_changed_and_reads_nothing(history: History) -> None:
    before, shards = history.fileio.metrics.snapshot(), history.state[TABLE].manifest
    history.add(TableDelta(logs=(log(history.slot + 1, [group_ids_of(p)[p % 3] for p in range(0, PARTITIONS, 3)]),)))
    history.save()
    spent = history.fileio.metrics.snapshot() - before
    assert spent.requests == {"put_create": 1}
    assert spent.bytes_written < 8_000
    assert set(history.state[TABLE].manifest) - set(shards) == {history.state[TABLE].manifest[-1]}
    assert history.state[TABLE].manifest[-1].rows == 14
    assert len([group for group in history.groups() if group.logs]) == 14


def test_a_checkpoint_of_one_busy_range_writes_only_its_shard_anew(history: History) -> None:
    shards = history.state[TABLE].manifest
    history.add(TableDelta(logs=(log(history.slot + 1, group_ids_of(5)),)))
    history.save()
    now = history.state[TABLE].manifest
    assert {ref.run for ref in now} == {0}
    assert len(set(shards) - set(now)) == 1
    assert len(history.groups(unmerged=True)) == BUCKETS


def test_new_partitions_come_between_and_around(history: History) -> None:
    new = [FileGroupId(f"p={name}", bucket, BUCKETS) for name in ("", "0225", "zz") for bucket in range(BUCKETS)]
    history.add(TableDelta(bases=tuple(base(history.slot + 1, group_id) for group_id in new)))
    history.save()
    now = history.state[TABLE].manifest
    ordered = sorted((ref for ref in now if ref.run == 0), key=lambda ref: ref.first.partition)
    assert all(one.last < two.first for one, two in pairwise(ordered)), "the ranges of the base overlap"
    assert len(history.groups()) == 1075
    assert [group.group_id.partition for group in history.groups(partitions=["p=0225"])] == ["p=0225"] * BUCKETS


def test_retired_partitions_leave_nothing_behind(history: History) -> None:
    for partition in range(PARTITIONS - 1):
        history.add(TableDelta(retires=tuple(group_ids_of(partition))))
        history.save()
    for _ in range(12):
        history.add(TableDelta(logs=(log(history.slot + 1, group_ids_of(39)),)))
        history.save()
    assert [group.group_id for group in history.groups()] == group_ids_of(39)
    assert sum(ref.rows for ref in history.state[TABLE].manifest) < 1000 / 2


def test_a_snapshot_is_small_and_so_is_its_plan(history: History) -> None:
    assert len(pickle.dumps(history.snapshot())) < 10_000
    bounds = {ID: (0, 10**9, 0)}
    history.add(
        TableDelta(logs=(log(history.slot + 1, [group_id for p in range(PARTITIONS) for group_id in group_ids_of(p)], bounds=bounds),))
    )
    groups = history.groups()
    assert all(not group.base.bounds and not part.object.bounds and not part.object.slices for group in groups for part in group.logs)
    assert len(pickle.dumps(groups[:10])) < 4_000, "a task holds what it reads, not what the table holds"


def test_an_older_state_stays_readable(history: History) -> None:
    older, expected = history.state, paths_of(history.groups())
    rng = random.Random(7)
    for _ in range(30):
        history.add(TableDelta(logs=(log(history.slot + 1, [rng.choice(group_ids_of(rng.randrange(PARTITIONS))) for _ in range(9)]),)))
        history.save()
    assert paths_of(snapshot_at(older[TABLE], 41).file_groups(Manifests(history.fileio))) == expected


def test_a_manifest_that_was_collected_means_open_again(history: History) -> None:
    history.fileio.delete([history.state[TABLE].manifest[3].path])
    with pytest.raises(CheckpointCollected, match="Open the table again"):
        history.groups()


def test_a_manifest_that_was_changed_is_refused(history: History) -> None:
    path = history.state[TABLE].manifest[3].path
    history.fileio.put(path, history.fileio.read(path)[:-1] + b"?", Overwrite())
    with pytest.raises(CheckpointUnreadable, match="is not what the checkpoint that names it wrote"):
        history.groups()


def test_the_cache_is_bounded(history: History) -> None:
    small = Manifests(history.fileio, bytes_max=max(ref.bytes for ref in history.state[TABLE].manifest))
    snapshot = history.snapshot()
    before = gets(history)
    for _ in range(2):
        assert len(snapshot.file_groups(small)) == 1000
    assert gets(history) - before > 15


# ---- the policy --------------------------------------------------------------------------------------------------


def test_runs_of_like_size_are_merged_and_never_more_than_a_few_stay() -> None:
    assert runs_to_merge(100, []) == 0
    assert runs_to_merge(2_000, [2_000]) == 1
    assert runs_to_merge(2_000, [2_000 * GROWTH + 1]) == 0
    assert runs_to_merge(2_000, [2_000, 2_000 * GROWTH * 2, 10**6]) == 2
    assert runs_to_merge(1, [10**4, 10**5, 10**6]) == 1, "one more run would be too many"
    assert runs_to_merge(1, [10, 10**5]) == 1, "what is small is merged at once"


def test_base_shards_are_written_anew_when_a_good_part_of_them_changed() -> None:
    assert shards_to_merge([0, 10, 5_000, 10], [16_000, 16_000, 16_000, 500]) == [2, 3]
    assert len(shards_to_merge([10_000] * 100, [16_000] * 100)) == 25
    assert shards_to_merge([], []) == []


def test_shards_are_even_and_keep_small_partitions_whole() -> None:
    partitions = np.repeat(np.arange(1000), 100)
    starts = cut(np.ones(100_000, np.int64), partitions)
    sizes = np.diff([*starts, 100_000])
    assert all(start % 100 == 0 for start in starts)
    assert sizes.max() <= 1.1 * manifest_levels.SHARD_ITEMS and sizes.min() >= manifest_levels.SHARD_ITEMS / 2
    starts = cut(np.ones(65_536, np.int64), np.zeros(65_536, np.int64))
    assert np.diff([*starts, 65_536]).max() <= 1.5 * manifest_levels.SHARD_ITEMS
    assert cut(np.array([10**6, 10**6, 1]), np.zeros(3, np.int64)) == [0, 1, 2], "a file group is never divided"
    assert cut(np.array([], np.int64), np.array([], np.int64)) == []


@pytest.mark.parametrize("touched", [100, 3_000])
def test_a_row_is_written_a_bounded_number_of_times(touched: int) -> None:
    """The sizes of runs and shards over many checkpoints that each touch file groups at random: what they write beside what they save."""
    rng = np.random.default_rng(1)
    shards, size, files, written, spent_most = 62, 16_384, 0, 0, 0
    runs: list[np.ndarray] = []
    for _ in range(3_000_000 // touched):
        files += touched
        merged = runs_to_merge(touched, [int(run.sum()) for run in reversed(runs)])
        new = np.bincount(rng.integers(0, shards, touched), minlength=shards)
        for _ in range(merged):
            new = new + runs.pop()
        spent = 0
        if not runs:
            for shard in shards_to_merge(new.tolist(), [size] * shards):
                spent += size + int(new[shard])
                new[shard] = 0
        if new.sum():
            runs.append(new)
            spent += int(new.sum())
        written += spent
        spent_most = max(spent_most, spent)
        assert len(runs) <= RUNS_MAX
        assert sum(int(run.sum()) for run in runs) <= shards * size / 2
    print(f"{written / files:.1f} rows written a row, {spent_most} at most at once")
    assert written / files < 40
    assert spent_most < shards * size


# ---- through tables ----------------------------------------------------------------------------------------------

ROW_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def rows_of(keys: Iterable[int], value: int) -> pa.Table:
    listed = list(keys)
    return pa.table({"id": listed, "v": [value] * len(listed)}, schema=ROW_SCHEMA)


def content(table: objcat.Table) -> dict[int, int]:
    rows = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "a key is there twice"
    return {row["id"]: row["v"] for row in rows}


def checkpointed(lake: objcat.Lake, name: str = "t") -> objcat.Table:
    """The table, opened anew from a checkpoint of its newest slot that may have one."""
    fileio = lake.table(name)._context.fileio
    timeline = Timeline(fileio, TablesReducer())
    timeline.publish(timeline.open())
    return table_at(fileio)


def test_a_table_is_opened_from_its_checkpoint_and_a_plan_reads_one_manifest() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("lake")))
    table = lake.create_table("t", ROW_SCHEMA, key=["id"])
    for number in range(32):
        table.upsert(rows_of(range(number, number + 50), number))
    expected = content(table)
    opened = checkpointed(lake)
    assert opened.snapshot.table.manifest and not opened.snapshot.table.overlay
    before = opened._context.fileio.metrics.snapshot()
    again = table_at(opened._context.fileio)
    requests = (opened._context.fileio.metrics.snapshot() - before).requests
    assert requests == {"get": 3 + HINT_SLOTS}, "the hint, its slot, and those that may be above it"
    again.snapshot.file_groups(again._context.manifests, partitions=[""])
    requests = (opened._context.fileio.metrics.snapshot() - before).requests
    assert requests == {"get": 4 + HINT_SLOTS}
    assert content(opened) == expected
    opened.upsert(rows_of([3], 1000))
    assert content(opened) == expected | {3: 1000}


def test_a_table_is_read_the_same_in_the_middle_of_a_split() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("lake")))
    table = lake.create_table("t", ROW_SCHEMA, key=["id"], index=objcat.BucketIndex(16))
    stale = lake.table("t")
    expected: dict[int, int] = {}

    def wrote(handle: objcat.Table, keys: Iterable[int], value: int) -> None:
        handle.upsert(rows_of(keys, value))
        expected.update(dict.fromkeys(keys, value))

    table.insert(rows_of(range(300), 0))
    expected.update(dict.fromkeys(range(300), 0))
    wrote(table, range(0, 300, 3), 1)
    split_buckets(table._context.timeline, table.id)
    assert content(lake.table("t")) == expected
    wrote(stale, range(0, 300, 5), 2)
    table.refresh()
    wrote(table, range(0, 400, 7), 3)
    for number in range(16):
        wrote(table, range(number, 400, 31), 10 + number)
    for handle in (lake.table("t"), checkpointed(lake)):
        assert content(handle) == expected
        group_ids = {group.group_id for group in handle.snapshot.file_groups(handle._context.manifests)}
        assert group_ids == {FileGroupId("", bucket, 32) for bucket in range(32)}
        found = [row["id"] for row in handle.scan(where="v = 2", columns=["id"]).to_arrow().to_pylist()]
        assert sorted(found) == sorted(key for key, value in expected.items() if value == 2)
    compact(table._context.timeline, table.id, file_groups=[FileGroupId("", bucket, 32) for bucket in range(0, 32, 3)])
    split_buckets(table._context.timeline, table.id)
    wrote(table, range(0, 500, 11), 50)
    for number in range(16):
        wrote(stale, range(number, 400, 37), 70 + number)
    for handle in (lake.table("t"), checkpointed(lake)):
        assert content(handle) == expected
    compact(table._context.timeline, table.id)
    last = lake.table("t")
    assert content(last) == expected
    assert all(group.is_plain for group in last.snapshot.file_groups(last._context.manifests))
