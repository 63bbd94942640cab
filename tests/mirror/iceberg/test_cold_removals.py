"""A process that knows nothing of a mirror reads the manifests that name what it removes, and hardly any others."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from objcat.mirror.iceberg.manifests import END_CHARS_MAX, ends_of
from objcat.mirror.model import MirrorChange
from tests.mirror.iceberg.readers import check_slot, manifests
from tests.mirror.iceberg.worlds import World

ENTRIES = 6
FILES = 120


@pytest.fixture(autouse=True)
def small_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.mirror.iceberg.slot_writer.ENTRIES_MAX", ENTRIES)
    monkeypatch.setattr("objcat.mirror.iceberg.slot_writer.VECTOR_ENTRIES_MAX", ENTRIES)
    monkeypatch.setattr("objcat.mirror.iceberg.manifests.SMALL_MANIFESTS_MAX", 6)
    # Each manifest that is read counts.
    monkeypatch.setattr("objcat.mirror.iceberg.manifests._READ_AT_ONCE", 1)


@pytest.fixture(params=[2, 3])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return followed(f"memory://{tmp_path.name}", version=request.param)


def followed(url: str, *, version: int) -> World:
    """A mirror that began with many files, each with a masked row, and that has followed some commits since."""
    world = World(url)
    files = [world.file(world.rows(2 * at, 2 * at + 1), name=f"base-{at:05d}.parquet", masked=[1]) for at in range(FILES)]
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=files, restarts=True))
    rng = random.Random(3)
    for number in range(20):
        added = [world.file(world.rows(10_000 + 10 * number + at), name=f"base-{at}.parquet") for at in range(2)]
        removed = rng.sample(sorted(world.files), 1) if number % 4 == 3 else []
        mirror.write(world.step(add=added, remove=removed))
    return world


def cold(world: World, change: MirrorChange) -> dict[str, int]:
    """The requests of one slot by a process that knows nothing but where the mirror is."""
    mirror = world.mirror()
    mirror.newest()
    before = world.fileio.metrics.snapshot()
    mirror.write(change)
    return dict((world.fileio.metrics.snapshot() - before).requests)


def test_a_removal_reads_the_manifest_that_names_the_file(world: World) -> None:
    rng = random.Random(5)
    count = len(manifests(world, world.slot))
    assert count > FILES // ENTRIES
    for _ in range(6):
        asked = cold(world, world.step(remove=[rng.choice(sorted(world.files)[:FILES])]))
        # The manifest list and the hint; a manifest of data files, or two whose names overlap; and one of deletes.
        assert asked["get"] <= 2 + 2 + 1, (asked, count)
    check_slot(world, world.slot)


def test_a_compaction_reads_as_many_manifests_as_it_removes_files(world: World) -> None:
    for some in (3, 8):
        gone = random.Random(some).sample(sorted(world.files)[:FILES], some)
        asked = cold(world, world.step(add=[world.file(world.rows(77), name="base-7.parquet")], remove=gone, keeps_rows=True))
        assert asked["get"] <= 2 + 2 * some + some, asked
    check_slot(world, world.slot)


def test_masking_more_rows_reads_the_vectors_of_the_file(tmp_path: Path, world: World) -> None:
    path = sorted(world.files)[FILES // 2]
    change = world.step(mask={path: [0]})
    asked = cold(world, change)
    # Version 3 reads the manifest and the old vector.
    assert asked["get"] <= 2 + 2, asked
    check_slot(world, world.slot)


def test_a_file_that_comes_again_is_looked_for_where_it_could_be(tmp_path: Path) -> None:
    """Version 2. Version 3 writes all vectors again that are beside an old one of the file."""
    world = followed(f"memory://{tmp_path.name}", version=2)
    path = sorted(world.files)[5]
    world.mirror().write(world.step(remove=[path]))
    change = world.restore(world.slot - 1)
    asked = cold(world, change)
    # The position file of the beginning names every file that it had, so each of their manifests is read. Those since are not.
    assert asked["get"] <= FILES // ENTRIES + 6 < len(manifests(world, world.slot)), asked
    check_slot(world, world.slot)


def test_lists_of_older_mirrors_do_not_say_and_are_read_all_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("objcat.mirror.iceberg.slot_writer.encode_ends", lambda _: {})
        world.mirror().write(world.step(add=[world.file(world.rows(5), name="base-9.parquet")]))
    oldest = min(world.files)
    asked = cold(world, world.step(remove=[oldest]))
    assert asked["get"] > 10
    check_slot(world, world.slot)
    # The next list says it of the manifests that were read.
    world.mirror().write(world.step(remove=[min(world.files)]))
    check_slot(world, world.slot)


def test_ends_are_cut_so_that_they_leave_out_no_name() -> None:
    names = ["a" * END_CHARS_MAX + "b", "c" * END_CHARS_MAX + "d"]
    found = ends_of(names)
    assert found is not None and found[0] <= names[0] and found[1] >= names[1] and len(found[1]) == END_CHARS_MAX + 1
    assert ends_of([]) is None and ends_of(["x"]) == ("x", "x")
