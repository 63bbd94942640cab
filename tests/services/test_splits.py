"""A split moves no data: files and log rows of the old bucket count are read under the new one."""

from __future__ import annotations

import pytest

import objcat
from objcat.errors import InvalidInput
from objcat.maintenance.compact import compact
from objcat.maintenance.split_buckets import split_buckets
from objcat.metadata.manifest import Manifests
from objcat.timeline.entry import FileGroupId
from tests.services.world import World, once, rows


def test_append_then_split_then_compaction_of_the_children() -> None:
    world = World(buckets=2)
    world.insert(*rows(10))
    world.upsert(*rows(5, value=2, order=2))
    done = split_buckets(world.timeline(), world.id)
    assert done is not None and done.count == 4
    world.model.same()
    world.check()
    world.upsert((20, 1, 1), (1, 3, 3))
    world.delete((4, 9))
    compact(world.timeline(), world.id, file_groups=[FileGroupId("", 1, 4)])
    world.model.same()
    world.check()
    compact(world.timeline(), world.id)
    world.model.same()
    world.check()
    group_ids = {group.group_id for group in objcat.Lake(world.store()).table("t").snapshot.file_groups(Manifests(world.timeline().fileio))}
    assert {group_id.bucket_count for group_id in group_ids} == {4}
    world.check_files_after_clean()


def test_blind_appends_that_planned_with_the_old_count_land_on_top() -> None:
    world = World(buckets=2)
    world.insert(*rows(10))
    stale = objcat.Lake(world.store()).table("t")
    split_buckets(world.timeline(), world.id)
    world.model.same()
    stale.upsert([{"id": key, "v": 9, "o": 9} for key in range(12)])
    world.model.upsert((key, 9, 9) for key in range(12))
    world.check()
    compact(world.timeline(), world.id)
    world.model.same()
    world.check()


def test_base_files_written_for_a_stale_bucket_count_are_written_again() -> None:
    """An insert that lost to a split is the split's doing: no user hears of it."""
    world = World(buckets=2)
    world.upsert((0, 1, 1))
    split = once("put", "log/", lambda: split_buckets(world.timeline(), world.id))
    writer = objcat.Lake(world.store(split)).table("t")
    result = writer.insert([{"id": key, "v": 1, "o": 1} for key in range(1, 10)])
    world.model.same()
    world.model.upsert((key, 1, 1) for key in range(1, 10))
    assert result.slot == 3
    world.check()
    world.check_files_after_clean()
    world.insert((50, 1, 1))
    world.check()


def test_a_compaction_that_loses_to_a_split_plans_again() -> None:
    world = World(buckets=2)
    world.upsert(*rows(10))
    done = compact(world.timeline(once("put", "log/", lambda: split_buckets(world.timeline(), world.id))), world.id)
    world.model.same()
    world.model.same()
    assert done is not None and {group_id.bucket_count for group_id in done.file_groups} == {4}
    world.check()
    world.check_files_after_clean()


def test_two_who_double_the_buckets_double_them_once() -> None:
    world = World(buckets=2)
    world.upsert(*rows(4))
    late = world.timeline(once("put", "log/", lambda: split_buckets(world.timeline(), world.id)))
    assert split_buckets(late, world.id) is None
    assert split_buckets(world.timeline(), world.id, count=16) is not None
    for _ in range(2):
        world.model.same()
    world.check()
    with pytest.raises(InvalidInput, match=r"16 buckets, which cannot become 24\. Give 16 times a power of two"):
        split_buckets(world.timeline(), world.id, count=24)
    with pytest.raises(InvalidInput, match="cannot become 8"):
        split_buckets(world.timeline(), world.id, count=8)
