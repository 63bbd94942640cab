"""Cleaning deletes what no readable slot names, whoever cuts it short, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import objcat
from fileio.contract import DeleteResult
from fileio.errors import FileIOError, PermissionDenied
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Request, Rule
from objcat.errors import CommitUnknown, InvalidInput, SnapshotExpired
from objcat.maintenance.clean import clean, plan_clean
from objcat.maintenance.compact import compact
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Footprint, new_txn
from tests.services.world import PLAIN, World, expiring, once, rows


def test_a_clean_deletes_what_only_expired_slots_name() -> None:
    world = World()
    for number in range(4):
        world.upsert(*rows(6, value=number, order=number))
    compact(world.timeline(), world.id)
    world.model.same()
    before = world.stored()
    result = clean(world.timeline(), world.id, keep_slots=1)
    world.model.same()
    assert result.bound == 5 and result.files == 4
    assert len(before - world.stored()) == 4
    world.check()
    world.check_files()
    for slot in range(5):
        with pytest.raises(SnapshotExpired, match=f"Slot {slot} .*was cleaned. Use a slot from 5 on"):
            world.read(slot)


def test_a_clean_without_anything_to_delete_takes_no_slot() -> None:
    world = World()
    world.upsert(*rows(3))
    assert clean(world.timeline(), world.id, keep_slots=1).slot is None
    compact(world.timeline(), world.id)
    assert clean(world.timeline(), world.id, before=1).slot is None
    assert clean(world.timeline(), world.id, keep_slots=1).slot == 3
    # It vouches for what the one before deleted; after that there is nothing left to say.
    assert clean(world.timeline(), world.id, keep_slots=1).slot == 4
    assert clean(world.timeline(), world.id, keep_slots=1).slot is None


@pytest.mark.parametrize("asked", [{}, {"keep_slots": 1, "before": 1}, {"keep_slots": 0}, {"before": -1}])
def test_a_clean_says_what_it_takes(asked: dict[str, Any]) -> None:
    world = World()
    with pytest.raises(InvalidInput, match=r"keep_slots|before"):
        clean(world.timeline(), world.id, **asked)


def test_a_smaller_bound_after_a_larger() -> None:
    world = World()
    for number in range(6):
        world.upsert(*rows(3, value=number, order=number))
        compact(world.timeline(), world.id)
        world.model.same()
    slow = world.timeline(once("put", "log/", lambda: clean(world.timeline(), world.id, before=10)))
    result = clean(slow, world.id, before=4)
    world.model.same()
    world.model.same()
    assert result.bound == 10
    world.check()
    world.check_files()
    assert clean(world.timeline(), world.id, before=2).bound == 10


def test_a_clean_leaves_alone_what_the_log_does_not_name() -> None:
    """Files of a writer that is still busy look like garbage to whoever lists; the log knows nothing of them."""
    world = World()
    world.upsert(*rows(6))
    compact(world.timeline(), world.id)
    world.model.same()

    def act() -> None:
        clean(world.timeline(), world.id, keep_slots=1)
        world.model.same()

    writer = objcat.Lake(world.store(once("put", "log/", act))).table("t")
    writer.upsert([{"id": 9, "v": 9, "o": 9}])
    world.model.upsert([(9, 9, 9)])
    world.check()
    world.check_files()


def test_an_unknown_clean_deletes_nothing_and_the_next_one_finishes_it() -> None:
    world = World()
    world.upsert(*rows(6))
    compact(world.timeline(), world.id)
    world.model.same()
    before = world.stored()
    lost = [Rule(kinds=frozenset({"put"}), key=lambda key: "/log/" in f"/{key}", fault=Fault.AFTER, times=1)]
    lost += [Rule(kinds=frozenset({"get", "head"}), key=lambda key: "log/00000000000000000003" in key, fault=Fault.BEFORE, nth=2, times=99)]
    store = FaultyBackend(world.backend, lost)
    with pytest.raises((CommitUnknown, FileIOError)):
        clean(world.on(world.store_on(store)), world.id, keep_slots=1)
    assert world.stored() == before
    world.model.same()
    done = clean(world.timeline(), world.id, keep_slots=1)
    assert (done.files, done.earlier) == (1, 1)
    world.model.same()
    world.check()
    world.check_files()


def test_deletes_that_fail_are_left_to_the_next_clean() -> None:
    world = World(buckets=1)
    for number in range(3):
        world.upsert((1, number, number))
    compact(world.timeline(), world.id)
    world.model.same()
    store = FaultyBackend(world.backend, [Rule(kinds=frozenset({"delete"}), key=lambda key: "data/" in key, fault=Fault.BEFORE, times=99)])
    done = clean(world.on(world.store_on(store)), world.id, keep_slots=1)
    assert (done.slot, done.files, done.failed) == (5, 0, 3)
    world.model.same()
    assert len(world.stored()) == 4
    world.check()
    done = clean(world.timeline(), world.id, keep_slots=1)
    assert (done.slot, done.files, done.earlier, done.failed) == (6, 3, 3, 0)
    world.model.same()
    world.check_files()
    world.check()


def test_a_clean_counts_what_is_gone() -> None:
    class OneHeld(FaultyBackend):
        """Refuses to delete the first file."""

        def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
            held = DeleteResult(keys[0], PermissionDenied("it is held"))
            return [held, *super().delete_batch(keys[1:])] if "data/" in keys[0] else super().delete_batch(keys)

    world = World(buckets=1)
    for number in range(3):
        world.upsert((1, number, number))
    compact(world.timeline(), world.id)
    done = clean(world.on(world.store_on(OneHeld(world.backend, []))), world.id, keep_slots=1)
    assert (done.files, done.failed, len(world.stored())) == (2, 1, 2)


def test_a_clean_of_checkpoints_vouches_for_no_files() -> None:
    world = expiring()
    store = FaultyBackend(world.backend, [Rule(kinds=frozenset({"delete"}), key=lambda key: "data/" in key, fault=Fault.BEFORE, times=99)])
    assert clean(world.on(world.store_on(store)), world.id, keep_slots=1).slot == 4
    timeline = world.timeline()
    candidate = CommitAttempt(
        txn=new_txn(timeline.fileio.env),
        action=Action.CLEAN,
        base=timeline.open().log,
        changes={},
        footprint={world.id: Footprint(root_bound=0)},
    )
    Committer(timeline.fileio).commit(candidate)
    assert clean(world.timeline(), world.id, keep_slots=1).slot == 6
    for _ in range(3):
        world.model.same()
    world.check()
    world.check_files()


def test_a_plan_of_a_clean_follows_what_changed() -> None:
    """A table with many buckets, of which one is rewritten: nothing is asked of the others."""
    world = World(buckets=64)
    world.insert(*rows(200))
    for number in range(3):
        world.upsert((1, number, number + 2))
        compact(world.timeline(), world.id)
    timeline = world.timeline()
    view = timeline.open()
    plan = plan_clean(timeline, view, world.id, keep_slots=1)
    assert plan is not None and len(plan.removes) == 3 * 2
    assert clean(world.timeline(), world.id, keep_slots=1).files == 6
    assert len(world.stored()) == len(world.named(timeline.open().slot))


@pytest.mark.parametrize("asked", [{"keep_slots": 60}, {"before": 60}, {"keep_hours": 6}, {"keep_commits": 1000}])
def test_a_clean_that_follows_another_reads_next_to_nothing(asked: dict[str, int]) -> None:
    """However much is kept: the entries that expire, and those since the newest clean."""
    env, requests = FakeEnv(7), [0]

    def count(_request: Request) -> None:
        requests[0] += 1

    backend = FaultyBackend(MemoryBackend(f"cleaned-{next(iter(asked))}", env=env), before=count)
    table = objcat.Lake(FileIO(backend, env=env)).create_table(
        "t", PLAIN, key=["id"], index=objcat.BucketIndex(1), properties={"auto_clean": "false"}
    )
    for number in range(120):
        env.advance(360)
        table.upsert([{"id": number % 5, "v": number}])
        if number % 10 == 9:
            table.maintenance.compact()
    took_slots = [table.maintenance.clean(**asked).slot is not None for _ in range(3)]
    assert took_slots == ([False] * 3 if "keep_commits" in asked else [True, True, False])
    # Where the store has no clock, hours are checked by the times of a few files too.
    requests_max = 24 if "keep_hours" in asked else 20
    for _ in range(2):
        requests[0] = 0
        assert table.maintenance.clean(**asked).slot is None
        assert requests[0] <= requests_max, requests
        requests[0] = 0
        assert table.maintenance.plan_clean(**asked) is None
        assert requests[0] <= requests_max, requests


def test_a_plan_shows_only_what_is_still_there() -> None:
    table = objcat.Lake(FileIO(MemoryBackend("cleaned-plan"))).create_table("t", PLAIN, key=["id"], index=objcat.BucketIndex(1))
    for number in range(4):
        table.upsert([{"id": 1, "v": number}])
    table.maintenance.compact()
    plan = table.maintenance.plan_clean(keep_slots=1)
    assert plan is not None and len(plan.removes) == 4
    assert table.maintenance.clean(keep_slots=1).files == 4
    assert table.maintenance.plan_clean(keep_slots=1) is None
    # The next clean vouches for it in the log, and the one after it has nothing to say.
    assert table.maintenance.clean(keep_slots=1).slot is not None
    assert table.maintenance.clean(keep_slots=1).slot is None
    assert table.maintenance.plan_clean() is None
