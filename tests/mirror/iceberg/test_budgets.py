"""What a slot of a mirror costs, in requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from objcat.timeline.entry import Action
from tests.mirror.iceberg.worlds import World

VERSIONS = [2, 3]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Nothing but requests counts here, so the store is in memory."""
    return World(f"memory://{tmp_path.name}")


def spent(world: World, work: object) -> dict[str, int]:
    """The requests of a call, by kind."""
    before = world.fileio.metrics.snapshot()
    assert callable(work)
    work()
    return dict((world.fileio.metrics.snapshot() - before).requests)


def check_files(world: World) -> None:
    assert world.mirror().live_files() == {path: file.live.num_rows for path, file in world.files.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_warm_slot_reads_nothing_and_writes_few_objects(world: World, version: int):
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=[world.file(world.rows(*range(40)))], restarts=True))
    for number in range(80):
        change = world.upsert(number % 40, 100 + number, text=f"t{number}", deletes=[(number + 7) % 40])
        asked = spent(world, lambda change=change: mirror.write(change))
        # The position file, two manifests, the list and the metadata file; and the hint.
        assert asked == {"put_create": 5, "put_update": 1}, number
    compaction = world.compact()
    assert spent(world, lambda: mirror.write(compaction)) == {"put_create": 4, "put_update": 1}
    check_files(world)


def test_a_warm_slot_without_masked_rows(world: World):
    mirror = world.mirror()
    mirror.write(world.step(add=[world.file(world.rows(1))], restarts=True))
    change = world.step(add=[world.file(world.rows(2))])
    assert spent(world, lambda: mirror.write(change)) == {"put_create": 3, "put_update": 1}


@pytest.mark.parametrize("cold", [False, True])
def test_a_slot_without_changes_of_files_writes_the_metadata_file_and_the_hint(world: World, cold: bool):
    mirror = world.mirror()
    mirror.write(world.step(add=[world.file(world.rows(1))], restarts=True))
    if cold:
        mirror = world.mirror()
        assert spent(world, mirror.newest) == {"list": 1, "get": 1}
    for number in range(3):
        change = world.step(Action.CLEAN)
        read = {"get": 1} if cold and not number else {}
        assert spent(world, lambda change=change: mirror.write(change)) == {**read, "put_create": 1, "put_update": 1}
    after = world.upsert(1, text="b")
    mirror.write(after)
    check_files(world)


def test_a_cold_slot_that_removes_nothing_reads_no_manifest(world: World):
    mirror = world.mirror()
    mirror.write(world.step(add=[world.file(world.rows(*range(100)))], restarts=True))
    for number in range(20):
        mirror.write(world.upsert(number, 200 + number, text="b"))
    mirror = world.mirror()
    assert spent(world, mirror.newest) == {"list": 1, "get": 1}
    change = world.upsert(50, text="c")
    assert spent(world, lambda: mirror.write(change)) == {"get": 2, "put_create": 5, "put_update": 1}  # The manifest list, and the hint.
    assert spent(world, mirror.newest) == {"get": 2}


@pytest.mark.parametrize("says", [True, False])
def test_a_cold_slot_reads_the_manifest_that_names_what_it_removes(world: World, says: bool, monkeypatch: pytest.MonkeyPatch):
    """says: whether the manifest list says from which name to which each one goes. Else the newest are read first."""
    monkeypatch.setattr("objcat.mirror.iceberg.manifests._READ_AT_ONCE", 2)
    if not says:
        monkeypatch.setattr("objcat.mirror.iceberg.slot_writer.encode_ends", lambda _: {})
    mirror = world.mirror()
    mirror.write(world.step(add=[world.file(world.rows(*range(100)))], restarts=True))
    for number in range(20):
        mirror.write(world.step(add=[world.file(world.rows(200 + number))]))
    last = list(world.files)[-1]
    mirror = world.mirror()
    mirror.newest()
    change = world.step(remove=[last])
    # The list, one manifest or two at once, and the hint.
    assert spent(world, lambda: mirror.write(change)) == {"get": 3 if says else 4, "put_create": 3, "put_update": 1}
    check_files(world)
