"""A service that dies, or loses an answer, at any of its requests: nothing readable changes, and the next call finishes the work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from fileio.errors import FileIOError
from fileio.testing.faults import Crash, Fault, FaultyBackend
from objcat.errors import CommitUnknown
from objcat.maintenance.clean import clean
from objcat.maintenance.compact import compact
from objcat.maintenance.restore import restore
from objcat.maintenance.savepoint import release, savepoint
from objcat.maintenance.split_buckets import split_buckets
from objcat.timeline.entry import Action, parse_txn
from objcat.timeline.log_view import Timeline
from objcat.timeline.rollback import resolve
from tests.services.world import At, World

REQUESTS_MAX = 80

Serve = Callable[[Timeline[Any], str], object]

SERVICES: dict[str, tuple[Action, Serve]] = {
    "compact": (Action.COMPACTION, compact),
    "clean": (Action.CLEAN, lambda timeline, table: clean(timeline, table, keep_slots=1)),
    "savepoint": (Action.SAVEPOINT, lambda timeline, table: savepoint(timeline, table, slot=2)),
    "release": (Action.SAVEPOINT, lambda timeline, table: release(timeline, table, slot=1)),
    "restore": (Action.RESTORE, lambda timeline, table: restore(timeline, table, to=4)),
    "split": (Action.REPLACE, lambda timeline, table: split_buckets(timeline, table, count=4)),
}


FAULTS = [
    Fault.CRASH_AFTER,
    *(pytest.param(fault, marks=pytest.mark.tier("all")) for fault in (Fault.AFTER, Fault.CRASH_BEFORE, Fault.BEFORE, Fault.TWICE)),
]


def prepared() -> World:
    """A table on which every service has something to do: saved and expired slots, log rows, deletes that stay."""
    world = World()
    world.upsert(*((key, 1, 1) for key in range(8)))
    savepoint(world.timeline(), world.id, slot=1)
    world.model.same()
    world.delete((1, 5), (2, 0))
    world.upsert((3, 3, 3))
    compact(world.timeline(), world.id)
    world.model.same()
    clean(world.timeline(), world.id, before=2)
    if world.timeline().open().slot > world.model.head:
        world.model.same()
    world.upsert((1, 4, 4), (9, 9, 9))
    world.delete((8, 8))
    return world


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_that_is_cut_short_anywhere(name: str, fault: Fault) -> None:
    action, serve = SERVICES[name]
    for number in range(1, REQUESTS_MAX):
        world = prepared()
        head = world.model.head
        script = At(number, fault)
        with contextlib.suppress(Crash, CommitUnknown, FileIOError):
            serve(world.on(world.store_on(FaultyBackend(world.backend, script))), world.id)
        follow(world, action, head)
        world.check()
        serve(world.timeline(), world.id)
        follow(world, action, head)
        settle(world)
        for _ in range(2):
            clean(world.timeline(), world.id, keep_slots=1)
        while world.timeline().open().slot > world.model.head:
            world.model.same()
        world.check()
        world.check_files()
        if not script.hit:
            assert number > 4, "the service sent less requests than it must"
            return
    pytest.fail(f"{name} sends more than {REQUESTS_MAX} requests")


def follow(world: World, action: Action, head: int) -> None:
    """Let the model have the slots that a service took."""
    for entry in world.timeline().log.read_after(world.model.head):
        assert entry.action is action and entry.slot > head
        world.model.restore(4) if action is Action.RESTORE else world.model.same()


def settle(world: World) -> None:
    """What somebody does who finds intents of the dead: their files go, or are the table's."""
    fileio = world.timeline().fileio
    for key in list(fileio.list_keys("intents/")):
        resolve(fileio, parse_txn(key.split("/")[1].split(".")[0]))
    for entry in world.timeline().log.read_after(world.model.head):
        assert entry.action is Action.ROLLBACK
        world.model.same()
