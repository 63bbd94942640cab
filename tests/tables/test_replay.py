"""What entries mean to a table: the replay compared with a slow one, whatever was checkpointed on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from objcat.errors import CorruptTable
from objcat.metadata import manifest_levels
from objcat.metadata.files import TableDelta
from objcat.timeline.entry import FileGroupId, Footprint
from tests.effort import effort
from tests.tables.metadata import History, base, log, make_table, paths_of, txn_of

PARTITIONS = ("", "a", "b")
COUNTS = (2, 4, 8)


@dataclass
class Model:
    """Every event and every slice of every file group ever addressed, kept for ever; what is live is worked out from scratch."""

    counts: dict[str, int] = field(default_factory=dict)
    events: list[tuple[int, FileGroupId, str | None, int]] = field(default_factory=list)
    slices: list[tuple[int, int, FileGroupId, str]] = field(default_factory=list)

    def groups(self) -> dict[FileGroupId, tuple[str | None, list[str]]]:
        found = {}
        for partition in PARTITIONS:
            count = self.counts.get(partition, 2)
            for bucket in range(count):
                group_id = FileGroupId(partition, bucket, count)
                events = [event for event in self.events if event[1].is_common(group_id)]
                cut = max((event[3] for event in events), default=-1)
                newest = max(events, default=None, key=lambda event: (event[0], event[2] is not None))
                path = newest[2] if newest else None
                slices = [
                    part for part in self.slices if part[2].is_common(group_id) and (part[0] > cut or (newest and part[1] == newest[0]))
                ]
                slices.sort(key=lambda part: part[:2])
                if path or slices:
                    found[group_id] = (path, [part[3] for part in slices])
        return found

    def live(self) -> list[FileGroupId]:
        return list(self.groups())

    def newest(self, group_id: FileGroupId) -> int:
        return max((event[0] for event in self.events if event[1].is_common(group_id)), default=-1)


def group_ids_of(model: Model, data: st.DataObject, *, stale: bool = False) -> list[FileGroupId]:
    partition = data.draw(st.sampled_from(PARTITIONS))
    count = model.counts.get(partition, 2)
    if stale:
        count = data.draw(st.sampled_from([n for n in COUNTS if n <= count]))
    buckets = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True))
    return [FileGroupId(partition, bucket, count) for bucket in buckets]


def step(history: History, model: Model, data: st.DataObject) -> None:
    """One random entry that the conflict rules let through."""
    slot = history.slot + 1
    match data.draw(st.sampled_from(["append", "append", "insert", "compact", "retire", "overwrite", "split"])):
        case "append":
            logs = [log(slot, group_ids_of(model, data, stale=True), number=number) for number in range(data.draw(st.integers(1, 2)))]
            history.add(TableDelta(logs=tuple(logs)))
            model.slices += [(slot, slot, rows.group_id, one.path) for one in logs for rows in one.slices]
        case "insert":
            live = model.live()
            new = [group_id for group_id in group_ids_of(model, data) if group_id not in live]
            history.add(TableDelta(bases=tuple(base(slot, group_id) for group_id in new)))
            model.events += [(slot, group_id, base(slot, group_id).path, -1) for group_id in new]
        case "compact":
            group_ids = [group_id for group_id in group_ids_of(model, data) if group_id in model.groups()]
            as_of = data.draw(st.integers(max([model.newest(group_id) for group_id in group_ids], default=0), slot - 1))
            if as_of < 0 or not group_ids:
                return
            kept = [log(slot, group_ids, number=9)] if data.draw(st.booleans()) else []
            history.add(TableDelta(bases=tuple(base(slot, group_id) for group_id in group_ids), logs=tuple(kept), as_of=as_of))
            model.events += [(slot, group_id, base(slot, group_id).path, as_of) for group_id in group_ids]
            model.slices += [(as_of, slot, rows.group_id, one.path) for one in kept for rows in one.slices]
        case "retire":
            group_ids = group_ids_of(model, data)
            history.add(TableDelta(retires=tuple(group_ids)))
            model.events += [(slot, group_id, None, slot - 1) for group_id in group_ids]
        case "overwrite":
            group_ids = group_ids_of(model, data)
            bases, logs = [base(slot, group_id) for group_id in group_ids[1:]], [log(slot, group_ids[:1])]
            history.add(TableDelta(retires=tuple(group_ids), bases=tuple(bases), logs=tuple(logs)))
            model.events += [(slot, group_id, None, slot - 1) for group_id in group_ids]
            model.events += [(slot, one.group_id, one.path, slot - 1) for one in bases]
            model.slices += [(slot, slot, group_ids[0], logs[0].path)]
        case "split":
            partition = data.draw(st.sampled_from(PARTITIONS))
            count = model.counts.get(partition, 2)
            if count < COUNTS[-1]:
                history.add(TableDelta(splits={partition: 2 * count}))
                model.counts[partition] = 2 * count


def check(history: History, model: Model) -> None:
    found = {
        group.group_id: (group.base.path if group.base else None, [part.object.path for part in group.logs]) for group in history.groups()
    }
    expected = model.groups()
    assert found == expected
    assert list(found) == sorted(found)
    snapshot = history.snapshot()
    assert snapshot.live_group_ids(history.manifests) == set(expected)
    assert snapshot.paths(history.manifests) == set(paths_of(history.groups()))
    for group in history.groups():
        assert all(part.group_id.is_common(group.group_id) for part in group.logs)
        assert group.base is None or group.base.group_id.is_common(group.group_id)
    assert [g.group_id for g in history.groups(unmerged=True)] == [g.group_id for g in history.groups() if not g.is_plain]
    for partition in PARTITIONS:
        assert [g.group_id for g in history.groups(partitions=[partition])] == [
            group_id for group_id in sorted(expected) if group_id.partition == partition
        ]
    one = FileGroupId("a", 1, 2)
    assert [g.group_id for g in history.groups(group_ids=[one])] == [group_id for group_id in sorted(expected) if group_id.is_common(one)]


@settings(max_examples=effort(25, with_all=60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_checkpointed_on_the_way_the_fold_is_the_slow_one(data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_levels, "SHARD_ITEMS", data.draw(st.sampled_from([2, 5, 1000])))
    monkeypatch.setattr(manifest_levels, "ITEMS_SMALL", data.draw(st.sampled_from([0, 8])))
    monkeypatch.setattr(manifest_levels, "GROWTH", data.draw(st.sampled_from([1, 8])))
    history, model = History(make_table(2)), Model()
    for _ in range(data.draw(st.integers(1, 25))):
        step(history, model, data)
        if data.draw(st.integers(0, 2)) == 0:
            history.save()
            assert len({ref.run for ref in history.state["table"].manifest} - {0}) <= manifest_levels.RUNS_MAX
    check(history, model)


def test_a_split_shares_the_files_until_each_half_has_its_own() -> None:
    history = History(make_table(2))
    old = [FileGroupId("", 0, 2), FileGroupId("", 1, 2)]
    history.add(TableDelta(bases=tuple(base(1, group_id) for group_id in old)))
    history.save()
    history.add(TableDelta(splits={"": 4}))
    history.add(TableDelta(logs=(log(3, [old[0]]),)))
    groups = history.groups()
    assert [group.group_id for group in groups] == [FileGroupId("", bucket, 4) for bucket in range(4)]
    assert [group.base.group_id for group in groups] == [old[0], old[1], old[0], old[1]]
    assert [group.is_plain for group in groups] == [False] * 4, "a shared file must be filtered"
    assert [[part.group_id for part in group.logs] for group in groups] == [[old[0]], [], [old[0]], []]
    history.add(TableDelta(bases=(base(4, FileGroupId("", 2, 4)),), as_of=3))
    history.save()
    groups = history.groups()
    assert [group.is_plain for group in groups] == [False, False, True, False]
    assert groups[2].logs == () and len(groups[0].logs) == 1
    assert f"data/{txn_of(3)}/0.log.parquet" in history.snapshot().paths(history.manifests)


@pytest.mark.parametrize("saves", [False, True], ids=["known", "in manifests"])
@pytest.mark.parametrize("as_of", [None, 0, 1])
def test_a_base_file_without_the_rows_of_the_one_before_is_refused(as_of: int | None, *, saves: bool) -> None:
    history = History()
    group_id = FileGroupId("", 0, 4)
    history.add(TableDelta(bases=(base(1, group_id),)))
    history.add(TableDelta(bases=(base(2, group_id),), as_of=1))
    second = TableDelta(bases=(base(3, group_id),), as_of=as_of)
    if saves:
        history.save()
        history.add(second)
        with pytest.raises(CorruptTable, match=r"Slot 3 writes a base file for .* without the rows of slot 2"):
            history.groups()
        with pytest.raises(CorruptTable, match="without the rows of slot 2"):
            history.save()
    else:
        with pytest.raises(CorruptTable, match=r"Slot 3 writes a base file for .* without the rows of slot 2"):
            history.add(second)


def test_a_base_file_of_a_stale_bucket_count_is_refused() -> None:
    history = History()
    history.add(TableDelta(splits={"": 8}))
    with pytest.raises(CorruptTable, match="the bucket count there is 8"):
        history.add(TableDelta(bases=(base(2, FileGroupId("", 0, 4)),)))


def test_a_table_that_nobody_created_is_refused() -> None:
    history = History()
    history.state = {}
    with pytest.raises(CorruptTable, match="No slot before it creates"):
        history.add(TableDelta(logs=(log(1, [FileGroupId("", 0, 4)]),)))


def test_a_restore_brings_back_files_counts_and_schema_but_no_column_id() -> None:
    history = History()
    group_id = FileGroupId("", 0, 4)
    history.add(TableDelta(bases=(base(1, group_id),)))
    history.save()
    before = history.groups()
    spec = history.spec
    wider = type(spec.table_schema)(columns=spec.table_schema.columns[:1], last_id=9)
    history.add(
        TableDelta(spec=type(spec)(**{f: getattr(spec, f) for f in spec.__struct_fields__ if f != "table_schema"}, table_schema=wider))
    )
    history.add(TableDelta(splits={"": 8}, logs=(log(3, [group_id]),)))
    history.save()
    history.add(None, footprint=Footprint(restores=1))
    assert history.groups() == before
    restored = history.snapshot()
    assert restored.table.bucket_counts == {}
    assert restored.spec.table_schema.columns == spec.table_schema.columns
    assert restored.spec.table_schema.last_id == 9, "an id that was given once would be given twice"
    history.save()
    assert history.groups() == before
