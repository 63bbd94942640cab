"""Every slot of a mirror reads exactly, by pyiceberg, whatever happened to the table."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from objcat.datafile.hidden_columns import HIDDEN_IDS
from objcat.mirror.model import CorruptMirror, MirroredSlot
from objcat.timeline.entry import Action
from tests.effort import seeds
from tests.mirror.iceberg.readers import check_all, check_slot, document, entries, manifests, metadata_slots
from tests.mirror.iceberg.worlds import World

VERSIONS = [2, 3]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(f"file://{tmp_path}")


def test_each_slot_of_a_history_reads_exactly(world: World, version: int):
    mirror = world.mirror(format_version=version)
    assert mirror.newest() is None
    mirror.write(world.step(add=[world.file(world.rows(*range(10)))], restarts=True))
    mirror.write(world.upsert(1, 2, 20, text="b", deletes=[3]))
    mirror.write(world.upsert(1, 5, text="c"))
    mirror.write(world.step(Action.CLEAN))
    mirror.write(world.upsert(20, text="d", deletes=[2]))
    mirror.write(world.compact())
    mirror.write(world.upsert(1, text="e"))
    check_all(world)
    assert mirror.newest() == MirroredSlot(6, f"{6:032x}") == world.mirror().newest()
    live = {path: file.live.num_rows for path, file in world.files.items()}
    assert mirror.live_files() == live == world.mirror().live_files()


def test_the_last_column_id_covers_columns_that_only_files_have(world: World, version: int):
    # ClickHouse refuses every file that has a field id above it.
    world.mirror(format_version=version).write(world.step(add=[world.file(world.rows(1))], restarts=True))
    assert document(world, 0)["last-column-id"] == max(HIDDEN_IDS.values()) > world.spec.table_schema.last_id


def test_a_mirror_of_a_table_without_rows(world: World, version: int):
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(Action.CREATE, restarts=True))
    mirror.write(world.step(add=[world.file(world.rows(1))]))
    mirror.write(world.step(remove=list(world.files)))
    mirror.write(world.step(Action.CLEAN))
    check_all(world)
    assert manifests(world, 3) == manifests(world, 2) and world.mirror().live_files() == {}


def test_rows_that_a_restore_takes_back_count_again(world: World, version: int):
    mirror = world.mirror(format_version=version)
    mirror.write(
        world.step(add=[world.file(world.rows(*range(6))), world.file(world.rows(*range(6, 12)), name="base-1.parquet")], restarts=True)
    )
    mirror.write(world.upsert(1, 7, text="b"))
    mirror.write(world.upsert(2, 8, text="c"))
    # The file of the first rows loses a mask, and the file of the others keeps the position file alive that named both.
    mirror.write(world.restore(1))
    mirror.write(world.upsert(9, text="d"))
    mirror.write(world.restore(0))
    check_all(world)


def test_a_second_restore_takes_back_what_lies_beside_what_stays(world: World, version: int):
    """The first restore masks rows of two files in one object. The second one changes one of them, and the object is still named."""
    mirror = world.mirror(format_version=version)
    first, second = world.file(world.rows(*range(6))), world.file(world.rows(*range(6, 12)), name="base-1.parquet")
    mirror.write(world.step(add=[first, second], restarts=True))
    mirror.write(world.step(mask={second.path: [0]}))
    mirror.write(world.step(mask={first.path: [1]}))
    mirror.write(world.step(mask={first.path: [2], second.path: [3]}))
    mirror.write(world.restore(2))
    mirror.write(world.restore(1))
    assert not first.masked and second.masked == {0}
    mirror.write(world.step(mask={first.path: [4]}))
    check_all(world)


def test_files_that_a_compaction_took_come_back(world: World, version: int):
    mirror = world.mirror(format_version=version)
    mirror.write(
        world.step(add=[world.file(world.rows(*range(6))), world.file(world.rows(*range(6, 12)), name="base-1.parquet")], restarts=True)
    )
    mirror.write(world.upsert(1, 7, text="b"))
    first = next(iter(world.files))
    # Only one of the two files goes, so what masks both is still named.
    mirror.write(world.step(Action.COMPACTION, add=[world.file(world.files[first].live)], remove=[first], keeps_rows=True))
    mirror.write(world.restore(0))
    mirror.write(world.restore(2))
    mirror.write(world.restore(1))
    check_all(world)


def test_a_cold_process_goes_on(world: World, version: int):
    world.mirror(format_version=version).write(world.step(add=[world.file(world.rows(*range(6)))], restarts=True))
    for number in range(4):
        world.mirror().write(world.upsert(number, text=f"t{number}", deletes=[number + 1]))
    world.mirror().write(world.restore(2))
    world.mirror().write(world.compact())
    check_all(world)
    assert document(world, 6)["format-version"] == version


@pytest.mark.parametrize("seed", seeds(1, integration=4, with_all=40))
def test_a_random_history_reads_exactly(world: World, version: int, seed: int):
    draw = random.Random(seed)
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=[world.file(world.rows(*range(20)))], restarts=True))
    for number in range(14):
        action = draw.choice(["upsert", "upsert", "upsert", "compact", "restore", "clean", "restart", "cold"])
        if action == "cold":
            mirror = world.mirror(format_version=version)
        elif action == "compact" and world.files:
            mirror.write(world.compact())
        elif action == "restore":
            mirror.write(world.restore(draw.randrange(world.slot + 1)))
        elif action == "restart":
            mirror.write(world.restart())
        elif action == "clean":
            mirror.write(world.step(Action.CLEAN))
        else:
            ids = draw.sample(range(30), 6)
            mirror.write(world.upsert(*ids[:4], text=f"t{number}", deletes=ids[4:]))
        found = mirror.masked(list(world.files))
        assert {path: set(rows.tolist()) for path, rows in found.items()} == {
            path: file.masked for path, file in world.files.items() if file.masked
        }
        assert mirror.live_files() == {path: file.live.num_rows for path, file in world.files.items()}
    check_all(world)


def test_a_restart_drops_what_was_before(world: World, version: int):
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=[world.file(world.rows(*range(6)))], restarts=True))
    mirror.write(world.upsert(1, text="b"))
    world.step(Action.CLEAN)
    mirror.write(world.restart())
    check_all(world)
    found = document(world, world.slot)
    assert [one["snapshot-id"] for one in found["snapshots"]] == [4]
    assert "parent-snapshot-id" not in found["snapshots"][0] and found["metadata-log"] == []


def test_what_a_slot_removes_must_be_named(world: World, version: int):
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=[world.file(world.rows(*range(6)))], restarts=True))
    before = set(world.fileio.list_keys())
    change = world.upsert(1, text="b")
    added = set(world.fileio.list_keys()) - before
    with pytest.raises(CorruptMirror, match=r"does not name .*nowhere\.parquet"):
        mirror.write(World.with_removed(change, "data/nowhere.parquet"))
    assert set(world.fileio.list_keys()) - before == added  # Nothing is left of the attempt.
    world.mirror().write(change)
    check_slot(world, 1)
    assert metadata_slots(world) == [0, 1]


def test_a_file_that_is_named_already_is_not_named_twice(world: World, version: int):
    mirror = world.mirror(format_version=version)
    file = world.file(world.rows(*range(6)))
    mirror.write(world.step(add=[file], restarts=True))
    for one in (mirror, world.mirror()):
        world.slot = 0
        with pytest.raises(CorruptMirror, match="names a file already"):
            one.write(world.step(add=[file]))


def test_what_snapshots_say_of_themselves(world: World, version: int):
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=[world.file(world.rows(*range(6)))], restarts=True))
    mirror.write(world.step(add=[world.file(world.rows(7))]))
    mirror.write(world.upsert(1, text="b"))
    mirror.write(world.step(mask={next(iter(world.files)): [0]}))
    mirror.write(world.step(Action.CLEAN))
    mirror.write(world.compact())
    snapshots = document(world, 5)["snapshots"]
    assert [one["summary"]["operation"] for one in snapshots] == ["append", "append", "overwrite", "delete", "replace", "replace"]
    for slot, one in enumerate(snapshots):
        assert (one["snapshot-id"], one["sequence-number"]) == (slot + 1, slot + 1)
        assert one["timestamp-ms"] == 1_700_000_000_000 + 1000 * slot
        assert (one["summary"]["objcat.slot"], one["summary"]["objcat.txn"]) == (str(slot), f"{slot:032x}")
        check_totals(world, slot)
    assert document(world, 5)["properties"]["gc.enabled"] == "false"
    assert document(world, 5)["location"] == world.fileio.url


def check_totals(world: World, slot: int) -> None:
    """The totals of a snapshot are those of its entries."""
    found = document(world, slot)["snapshots"][-1]["summary"]
    data, deletes = ([entry["data_file"] for entry in entries(world, slot, content) if entry["status"] != 2] for content in (0, 1))
    assert int(found["total-data-files"]) == len(data) and int(found["total-delete-files"]) == len(deletes)
    assert int(found["total-records"]) == sum(one["record_count"] for one in data)
    assert int(found["total-position-deletes"]) == sum(one["record_count"] for one in deletes)
    assert int(found["total-files-size"]) == sum(one["file_size_in_bytes"] for one in (*data, *deletes))
    assert found["total-equality-deletes"] == "0"
