"""Limits: entries of manifests, manifests, position files, snapshots; and what expires."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from objcat.errors import InvalidInput
from objcat.mirror.forgotten_slots import FORGOTTEN
from objcat.mirror.model import CorruptMirror
from objcat.timeline.entry import Action
from tests.mirror.iceberg.decoder import Decoder
from tests.mirror.iceberg.readers import check_all, check_slot, document, entries, manifests, metadata_key, metadata_slots
from tests.mirror.iceberg.worlds import World

VERSIONS = [2, 3]
FUTURE_MS = 1 << 60


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(f"memory://{tmp_path.name}")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    return request.param


def test_small_manifests_are_merged_and_none_grows_too_large(world: World, version: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("objcat.mirror.iceberg.manifests.SMALL_MANIFESTS_MAX", 4)
    monkeypatch.setattr("objcat.mirror.iceberg.slot_writer.ENTRIES_MAX", 10)
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=[world.file(world.rows(*range(40)))], restarts=True))
    for number in range(24):
        if number % 7 == 3:
            mirror = world.mirror()
        names = list(world.files)
        remove = names[1:3] if number % 5 == 4 else []
        add = [world.file(world.rows(100 + 2 * number + at), name=f"base-{at}.parquet") for at in range(2)]
        mirror.write(world.step(add=add, mask={names[0]: [number % 39]}, remove=remove))
        found = manifests(world, world.slot)
        sizes = [one["added_files_count"] + one["existing_files_count"] for one in found if one["content"] == 0]
        assert max(sizes) <= 10 and len(sizes) <= 3 + sum(size >= 5 for size in sizes) + 4
        assert sum(sizes) == len(world.files)
    check_slot(world, world.slot)
    for slot in range(world.slot):
        check_slot(world, slot, by=world.slot)


def test_position_files_are_merged(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("objcat.mirror.iceberg.positions.POSITION_FILES_MAX", 8)
    monkeypatch.setattr("objcat.mirror.iceberg.positions.ROWS_MAX", 20)
    mirror = world.mirror()
    files = [world.file(world.rows(*range(at * 50, at * 50 + 50)), name=f"base-{at}.parquet") for at in range(3)]
    mirror.write(world.step(add=files, restarts=True))
    counts = []
    for number in range(40):
        if number in (5, 14, 23):
            mirror = world.mirror()
        if number == 27:
            mirror.write(world.restart())
        gone = [files[2].path] if number == 20 else []
        mask = {file.path: [number] for file in files[: 2 if number >= 20 else 3]}
        mirror.write(world.step(mask=mask, remove=gone))
        live = [entry["data_file"] for entry in entries(world, world.slot, 1) if entry["status"] != 2]
        counts.append(len(live))
        assert len(live) <= 12
        check_slot(world, world.slot)
    assert max(counts) > 6 and min(counts[10:]) < 8
    check_all(world)
    masked = sum(len(file.masked) for file in world.files.values())
    left = world.mirror().masked(list(world.files))
    assert sum(len(rows) for rows in left.values()) == masked


def test_a_position_file_goes_with_its_last_data_file(world: World):
    mirror = world.mirror()
    files = [world.file(world.rows(*range(at * 10, at * 10 + 10)), name=f"base-{at}.parquet") for at in range(2)]
    mirror.write(world.step(add=files, restarts=True))
    mirror.write(world.step(mask={files[0].path: [1], files[1].path: [2]}))
    mirror.write(world.step(mask={files[1].path: [3]}))
    mirror.write(world.step(remove=[files[1].path]))
    statuses = sorted(entry["status"] for entry in entries(world, 3, 1))
    assert statuses == [1, 2]  # One still masks a row of the other file.
    mirror.write(world.step(remove=[files[0].path], add=[world.file(world.rows(99))]))
    assert [entry["status"] for entry in entries(world, 4, 1)] == [2]
    check_all(world)


def snapshots(world: World) -> list[int]:
    return [one["snapshot-id"] - 1 for one in document(world, world.slot)["snapshots"]]


def test_snapshots_are_capped_and_saved_ones_stay(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("objcat.mirror.iceberg.table_metadata.SNAPSHOTS_MAX", 5)
    mirror = world.mirror()
    world.saved = frozenset({2, 3})
    mirror.write(world.step(add=[world.file(world.rows(*range(40)))], restarts=True))
    for number in range(9):
        mirror.write(world.upsert(number, text="b"))
    assert snapshots(world) == [2, 3, 5, 6, 7, 8, 9]
    world.saved, world.oldest_slot = frozenset({3}), 8
    mirror.write(world.upsert(1, text="c"))
    assert snapshots(world) == [3, 8, 9, 10]
    found = document(world, 10)
    assert [one["snapshot-id"] for one in found["snapshot-log"]] == [4, 9, 10, 11]
    assert [one["metadata-file"].rpartition("/")[2] for one in found["metadata-log"]] == [
        f"v{slot + 1}.metadata.json" for slot in (3, 8, 9)
    ]
    for slot in snapshots(world):
        check_slot(world, slot, by=10)


def names(world: World) -> set[str]:
    return set(world.fileio.list_keys(world.where.folder + "metadata/"))


def named(world: World) -> Iterator[str]:
    """The metadata files of the newest one's snapshots, and every object that these name, by a walk of the test's own."""
    root = world.fileio.url + "/"
    yield f"{world.where.folder}metadata/version-hint.text"
    for slot in snapshots(world):
        reader = Decoder(world.fileio, metadata_key(world, slot))
        yield metadata_key(world, slot)
        for snapshot in reader.document["snapshots"]:
            yield snapshot["manifest-list"].removeprefix(root)
            for manifest in reader.manifests(snapshot):
                yield manifest["manifest_path"].removeprefix(root)
                if manifest["content"] == 1:
                    listed = reader.avro(manifest["manifest_path"])[0]
                    yield from (entry["data_file"]["file_path"].removeprefix(root) for entry in listed if entry["status"] != 2)


def test_what_no_readable_slot_names_expires(world: World, version: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("objcat.mirror.iceberg.table_metadata.SNAPSHOTS_MAX", 4)
    mirror = world.mirror(format_version=version)
    world.saved = frozenset({2})
    mirror.write(world.step(add=[world.file(world.rows(*range(40)))], restarts=True))
    for number in range(8):
        mirror.write(world.upsert(number, number + 50, text="b"))
        mirror.write(world.step(Action.CLEAN))
    world.fileio.put("metadata/notes.txt", b"not ours")
    world.fileio.put("metadata/snap-1-0123456789abcdef.avro", b"of a process that died")
    before = names(world)
    assert mirror.expire(modified_before_ms=0) == 0 and names(world) == before
    count = mirror.expire(modified_before_ms=FUTURE_MS)
    assert count == len(before) - len(names(world)) > 10
    assert names(world) == {*named(world), "metadata/notes.txt"}
    check_all(world)
    assert mirror.expire(modified_before_ms=FUTURE_MS) == 0
    mirror.write(world.upsert(1, text="c"))
    check_all(world)
    assert world.mirror().live_files() == {path: file.live.num_rows for path, file in world.files.items()}


@pytest.mark.parametrize("kind", ["snap", "m1"])
def test_nothing_expires_while_the_newest_slot_cannot_be_read(world: World, version: int, kind: str):
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=[world.file(world.rows(*range(10)))], restarts=True))
    mirror.write(world.upsert(1, text="b"))
    world.fileio.delete(world.fileio.list_keys(f"metadata/{kind}-1-"))
    before = names(world)
    with pytest.raises(CorruptMirror, match="which is missing"):
        world.mirror().expire(modified_before_ms=FUTURE_MS)
    assert names(world) == before
    # A restart later, the damage is of an older snapshot only.
    mirror.write(world.restart())
    assert world.mirror().expire(modified_before_ms=FUTURE_MS) > 0
    check_all(world)


def test_an_erasure_leaves_nothing_of_earlier_slots(world: World, version: int):
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=[world.file(world.rows(1, 2, text="secret"))], restarts=True))
    mirror.write(world.upsert(1, 3, text="secret"))
    with pytest.raises(InvalidInput, match="still names metadata of slot 0, which is before 2"):
        mirror.forget_before(2)
    assert metadata_slots(world) == [0, 1]
    mirror.write(world.step(add=[world.file(world.rows(1, 2))], remove=list(world.files), restarts=True))
    mirror.write(world.upsert(2, text="y"))
    world.fileio.put("metadata/notes.txt", b"not ours")
    before = names(world)
    deleted = mirror.forget_before(2)
    assert names(world) - before == {f"metadata/{FORGOTTEN}"}
    assert deleted == len(before - names(world))
    assert metadata_slots(world) == [2, 3]
    assert names(world) == {*named(world), "metadata/notes.txt", f"metadata/{FORGOTTEN}"}
    for key in names(world):
        assert b"secret" not in world.fileio.read(key)
    check_all(world)
    mirror.write(world.upsert(1, text="z"))
    check_all(world)
