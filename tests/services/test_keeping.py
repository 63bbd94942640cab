"""Savepoints and restores beside cleaning, in both orders; what a restore brings back, and what it does not."""

from __future__ import annotations

import msgspec
import pytest

import objcat
from objcat.errors import CommitConflict, InvalidInput, SnapshotExpired, StreamRewound, TableClosed
from objcat.maintenance.clean import clean
from objcat.maintenance.compact import compact
from objcat.maintenance.restore import restore
from objcat.maintenance.savepoint import release, savepoint
from objcat.metadata.files import TableDelta, encode_delta
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Footprint, SchemaChange, new_txn
from objcat.timeline.log_state import AppVersion
from tests.services.world import World, close, expiring, history, once, rows


def test_a_savepoint_outlives_cleaning_and_its_release_does_not() -> None:
    world = World()
    for number in range(4):
        world.upsert(*rows(6, value=number, order=number))
    assert savepoint(world.timeline(), world.id, slot=2, name="before the migration") is not None
    assert savepoint(world.timeline(), world.id, slot=2) is None
    world.model.same()
    assert history(world)[5].metadata == {"savepoint": "before the migration"}
    for _ in range(2):
        compact(world.timeline(), world.id)
        world.model.same()
        clean(world.timeline(), world.id, keep_slots=1)
        world.model.same()
        world.upsert(*rows(3, value=9, order=9))
    assert world.readable()[0] == 2
    world.check()
    world.check_files()
    assert release(world.timeline(), world.id, slot=2) is not None
    assert release(world.timeline(), world.id, slot=2) is None
    world.model.same()
    with pytest.raises(SnapshotExpired):
        world.read(2)
    with pytest.raises(SnapshotExpired, match="was cleaned"):
        savepoint(world.timeline(), world.id, slot=2)
    clean(world.timeline(), world.id, keep_slots=3)
    world.model.same()
    world.check()
    world.check_files()


@pytest.mark.parametrize("slot", [-1, 2])
def test_no_savepoint_of_a_slot_that_is_not_there(slot: int) -> None:
    world = World()
    world.upsert(*rows(2))
    with pytest.raises(InvalidInput, match=f"has no slot {slot}. Use a slot from 0 to 1"):
        savepoint(world.timeline(), world.id, slot=slot)


def test_savepoint_onto_files_that_a_clean_is_about_to_delete() -> None:
    world = expiring()
    slow = world.timeline(once("put", "log/", lambda: clean(world.timeline(), world.id, keep_slots=1)))
    with pytest.raises(SnapshotExpired):
        savepoint(slow, world.id, slot=1)
    world.model.same()
    world.check()
    world.check_files()


def test_a_clean_that_a_savepoint_overtakes_spares_its_files() -> None:
    world = expiring()
    slow = world.timeline(once("put", "log/", lambda: savepoint(world.timeline(), world.id, slot=1)))
    clean(slow, world.id, keep_slots=1)
    world.model.same()
    world.model.same()
    assert 1 in world.readable() and 2 not in world.readable()
    world.check()
    world.check_files()


def test_restore_onto_files_that_a_clean_is_about_to_delete() -> None:
    world = expiring()
    slow = world.timeline(once("put", "log/", lambda: clean(world.timeline(), world.id, keep_slots=1)))
    with pytest.raises(SnapshotExpired):
        restore(slow, world.id, to=1)
    world.model.same()
    world.check()
    world.check_files()


def test_a_clean_that_a_restore_overtakes_spares_its_files() -> None:
    world = expiring()
    slow = world.timeline(once("put", "log/", lambda: restore(world.timeline(), world.id, to=1)))
    clean(slow, world.id, before=3)
    world.model.restore(1)
    if world.timeline().open().slot > world.model.head:
        world.model.same()
    world.check()
    world.check_files()
    assert world.read() == world.model.values(1)


def test_a_restore_of_a_saved_slot_whose_savepoint_is_released_and_cleaned_meanwhile() -> None:
    world = expiring(saved=True)
    clean(world.timeline(), world.id, keep_slots=1)
    world.model.same()

    def act() -> None:
        release(world.timeline(), world.id, slot=1)
        clean(world.timeline(), world.id, keep_slots=1)
        world.model.same()
        world.model.same()

    with pytest.raises(SnapshotExpired):
        restore(world.timeline(once("put", "log/", act)), world.id, to=1)
    world.check()
    world.check_files()


def test_a_restore_of_a_saved_slot_whose_savepoint_is_released_meanwhile() -> None:
    world = expiring(saved=True)
    clean(world.timeline(), world.id, keep_slots=1)
    with pytest.raises(SnapshotExpired):
        restore(world.timeline(once("put", "log/", lambda: release(world.timeline(), world.id, slot=1))), world.id, to=1)
    for _ in range(2):
        world.model.same()
    world.check()


def test_the_release_of_a_restored_savepoint_leaves_the_table_its_files() -> None:
    world = expiring(saved=True)
    clean(world.timeline(), world.id, keep_slots=1)
    world.model.same()
    restore(world.timeline(), world.id, to=1)
    world.model.restore(1)
    release(world.timeline(), world.id, slot=1)
    world.model.same()
    for _ in range(3):
        if clean(world.timeline(), world.id, keep_slots=1).slot is not None:
            world.model.same()
        world.check()
        world.check_files()
    assert world.read() == world.model.values(1)


def test_a_restore_brings_back_rows_and_forgets_nothing_else() -> None:
    world = World()
    world.upsert(*rows(6))
    world.table.refresh()
    world.table.upsert([{"id": 7, "v": 7, "o": 7}], app=AppVersion(app="stream", version=4))
    world.model.upsert([(7, 7, 7)])
    savepoint(world.timeline(), world.id, slot=1)
    world.model.same()
    world.table.refresh()
    world.table.upsert([{"id": 8, "v": 8, "o": 8}], app=AppVersion(app="stream", version=5))
    world.model.upsert([(8, 8, 8)])
    assert restore(world.timeline(), world.id, to=2).slot == 5
    world.model.restore(2)
    world.check()
    marks = world.timeline().open().log.marks(world.id)
    assert marks.saved == {1}
    assert marks.apps["stream"].version == 4
    world.table.refresh()
    with pytest.raises(StreamRewound):
        world.table.upsert([{"id": 9, "v": 9, "o": 9}], app=AppVersion(app="stream", version=6))
    world.table.upsert([{"id": 9, "v": 9, "o": 9}], app=AppVersion(app="stream", version=5, resumed_after=5))
    world.model.upsert([(9, 9, 9)])
    world.check()


def test_a_restore_under_a_running_writer() -> None:
    world = World()
    world.upsert(*rows(6))
    world.upsert(*rows(6, value=2, order=2))
    writer = objcat.Lake(world.store(once("put", "log/", lambda: restore(world.timeline(), world.id, to=1)))).table("t")
    with pytest.raises(CommitConflict, match="restored the table to an earlier state"):
        writer.upsert([{"id": 1, "v": 9, "o": 9}])
    world.model.restore(1)
    world.check()
    writer.refresh()
    writer.upsert([{"id": 1, "v": 9, "o": 9}])
    world.model.upsert([(1, 9, 9)])
    world.check()


def test_writers_that_a_restore_meets_are_undone() -> None:
    world = World()
    world.upsert(*rows(6))
    slow = world.timeline(once("put", "log/", lambda: world.upsert((1, 9, 9))))
    restore(slow, world.id, to=1)
    world.model.restore(1)
    world.check()


def test_a_dropped_table_is_restored_by_a_restore_which_no_clean_prevents() -> None:
    world = World()
    world.upsert(*rows(6))
    close(world)
    world.model.same()
    with pytest.raises(TableClosed):
        compact(world.timeline(), world.id)
    with pytest.raises(InvalidInput, match=r"was dropped at slot 2, so slot 2 has no rows\. Restore an earlier slot"):
        restore(world.timeline(), world.id, to=2)
    restore(world.timeline(), world.id, to=1)
    world.model.restore(1)
    assert world.read() == world.model.values(1)
    world.upsert((1, 9, 9))
    stored = world.stored()
    close(world)
    world.model.same()
    with pytest.raises(TableClosed):
        clean(world.timeline(), world.id, keep_slots=1)
    assert world.stored() == stored
    restore(world.timeline(), world.id, to=4)
    assert world.read() == world.model.values(4)


def test_column_ids_are_not_given_again_after_a_restore() -> None:

    world = World()
    timeline = world.timeline()
    spec = world.table.spec
    wider = msgspec.structs.replace(spec, table_schema=msgspec.structs.replace(spec.table_schema, last_id=spec.table_schema.last_id + 5))
    candidate = CommitAttempt(
        txn=new_txn(timeline.fileio.env),
        action=Action.SCHEMA,
        base=timeline.open().log,
        changes={world.id: encode_delta(TableDelta(spec=wider))},
        footprint={world.id: Footprint(schema=SchemaChange())},
    )
    Committer(timeline.fileio).commit(candidate)
    restore(world.timeline(), world.id, to=0)
    assert world.timeline().open().state[world.id].spec.table_schema.last_id == spec.table_schema.last_id + 5
