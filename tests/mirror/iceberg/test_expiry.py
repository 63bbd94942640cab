"""What a metadata file names stays as long as the file does, however busy the table is, and however old what it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.timeline.entry import Action
from tests.mirror.iceberg.readers import check_slot, document, metadata_slots
from tests.mirror.iceberg.worlds import World

SNAPSHOTS = 5
DAY_S = 86_400


class AgedWorld(World):
    """A world in memory whose objects are as old as its clock says."""

    def __init__(self, name: str, *, version: int) -> None:
        super().__init__(f"memory://{name}")
        self.env = FakeEnv(1, now_ms=1_800_000_000_000)
        self.fileio = FileIO(MemoryBackend(name, env=self.env), env=self.env)
        self.where = replace(self.where, fileio=self.fileio)
        self.version = version
        self.one = self.mirror(format_version=version)

    def busy(self, slots: int, first: int) -> None:
        """Slots that replace what others named: each writes the manifests of the data files and of the deletes again."""
        for number in range(slots):
            name = list(self.files)[-1] if number % 3 == 2 else None
            if name is None:
                self.one.write(self.upsert((first + number) % 40, 200 + first + number, text=f"t{first + number}"))
            else:
                self.one.write(self.step(remove=[name], add=[self.file(self.rows(900 + first + number))]))

    def expire(self) -> int:
        """Delete what is older than a day, as cleaning does."""
        return self.mirror(format_version=self.version).expire(modified_before_ms=self.env.now_ms() - DAY_S * 1000)


@pytest.fixture(autouse=True)
def few_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.mirror.iceberg.table_metadata.SNAPSHOTS_MAX", SNAPSHOTS)


@pytest.fixture(params=[2, 3])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> AgedWorld:
    world = AgedWorld(tmp_path.name, version=request.param)
    world.one.write(world.step(add=[world.file(world.rows(*range(40))), world.file(world.rows(50), name="base-1.parquet")], restarts=True))
    return world


def check_whole(world: AgedWorld) -> int:
    """Each metadata file that exists reads all snapshots that it names, of slots that are readable. Returns how many reads that were."""
    count = 0
    for slot in metadata_slots(world):
        for snapshot in document(world, slot)["snapshots"]:
            at = snapshot["snapshot-id"] - 1
            if at >= world.oldest_slot or at in world.saved:
                check_slot(world, at, by=slot)
                count += 1
    return count


def test_old_manifests_that_a_younger_metadata_file_names_stay(world: AgedWorld):
    """Within a minute a table has more commits than a metadata file has snapshots."""
    world.busy(2, 1)
    world.env.advance(2 * DAY_S)
    world.busy(SNAPSHOTS * 4, 10)
    young = [slot for slot in metadata_slots(world) if slot > 2]
    world.expire()
    assert set(young) <= set(metadata_slots(world))
    assert check_whole(world) > len(young)


def test_everything_old_goes_when_nothing_needs_it(world: AgedWorld):
    world.busy(SNAPSHOTS * 3, 1)
    world.env.advance(2 * DAY_S)
    world.busy(SNAPSHOTS * 3, 40)
    assert world.expire() > 0
    world.env.advance(2 * DAY_S)
    world.one.write(world.step(Action.CLEAN))
    before = len(list(world.fileio.list_keys("metadata/")))
    deleted = world.expire()
    left = list(world.fileio.list_keys("metadata/"))
    assert deleted == before - len(left) > 0
    # What stays was written for the slots of the newest metadata file, or is named by it.
    assert min(metadata_slots(world)) == world.slot - SNAPSHOTS + 1
    lists = [key for key in left if "/snap-" in key]
    assert len(lists) <= 2 * SNAPSHOTS
    check_whole(world)
    assert world.expire() == 0


def test_saved_slots_keep_all_that_their_metadata_files_name(world: AgedWorld):
    world.busy(3, 1)
    world.saved = frozenset({3})
    world.busy(SNAPSHOTS * 2, 10)
    for _ in range(3):
        world.env.advance(2 * DAY_S)
        world.busy(SNAPSHOTS * 2, 20)
        world.expire()
    assert metadata_slots(world)[0] == 3
    assert check_whole(world) >= SNAPSHOTS


def test_what_a_process_that_died_left_goes_in_the_end(world: AgedWorld):
    world.busy(3, 1)
    orphan = f"metadata/snap-{world.slot}-0123456789abcdef.avro"
    world.fileio.put(orphan, b"of a process that died")
    world.env.advance(2 * DAY_S)
    world.busy(2, 10)
    world.expire()
    assert not world.fileio.exists(orphan)
    check_whole(world)


def test_after_a_restart_the_metadata_files_before_it_stay_readable_for_a_day(world: AgedWorld):
    world.busy(2, 1)
    world.env.advance(2 * DAY_S)
    world.busy(SNAPSHOTS * 2, 10)
    world.one.write(world.restart())
    world.busy(SNAPSHOTS * 2, 30)
    world.expire()
    assert check_whole(world) > 4 * SNAPSHOTS
    world.env.advance(DAY_S + 60)
    world.one.write(world.step(Action.CLEAN))
    world.expire()
    assert metadata_slots(world) == list(range(world.slot - SNAPSHOTS + 1, world.slot + 1))
    check_whole(world)


def test_a_metadata_file_that_cannot_be_read_holds_nothing_and_breaks_nothing(world: AgedWorld):
    world.busy(2, 1)
    world.env.advance(2 * DAY_S)
    world.busy(SNAPSHOTS * 3, 10)
    oldest = next(slot for slot in metadata_slots(world) if slot > 2)
    world.fileio.put(f"metadata/v{oldest + 1}.metadata.json", b"{")
    world.expire()
    world.fileio.delete([f"metadata/v{oldest + 1}.metadata.json"])
    check_whole(world)


def test_slots_that_are_not_readable_keep_nothing(world: AgedWorld):
    world.busy(SNAPSHOTS * 2, 1)
    world.oldest_slot = world.slot
    world.env.advance(2 * DAY_S)
    world.one.write(world.step(Action.CLEAN))
    world.expire()
    named = {one["snapshot-id"] - 1 for one in document(world, world.slot)["snapshots"]}
    assert named == {world.slot - 1, world.slot}
    lists = {key for key in world.fileio.list_keys("metadata/") if "/snap-" in key}
    assert len(lists) == 1
    check_whole(world)


def test_reading_what_is_named_costs_little_of_a_busy_table(world: AgedWorld):
    world.busy(2, 1)
    world.env.advance(2 * DAY_S)
    world.busy(SNAPSHOTS * 12, 10)
    before = world.fileio.metrics.snapshot()
    world.expire()
    asked = (world.fileio.metrics.snapshot() - before).requests
    # Two metadata files, of whose snapshots each has a list and a manifest of deletes; not one for each of sixty slots. One more says what
    # an erasure forgot.
    assert asked["get"] <= 2 + 2 * SNAPSHOTS * 2 + 3, asked
