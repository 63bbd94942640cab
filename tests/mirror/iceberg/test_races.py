"""Processes that race, die, or do not hear the outcome of a put. Whatever happens, every metadata file reads exactly its slot."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fileio.errors import FileIOError
from fileio.options import quote_path
from fileio.schemes import open_backend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Kind, Request, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.mirror.iceberg.mirror import IcebergMirror
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirrorChange, MirroredSlot, MirrorSlotTaken
from objcat.timeline.entry import Action
from tests.effort import few
from tests.mirror.iceberg.readers import check_all, check_each, check_slot, document, metadata_slots
from tests.mirror.iceberg.worlds import World

VERSIONS = [2, 3]
SEEDS = itertools.count(1)
"""Two processes never draw the same ids."""
PUTS: frozenset[Kind] = frozenset({"put"})


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Races do not need a disk, and a decoder of the tests' own reads what is in memory."""
    return World(f"memory://{tmp_path.name}")


def beside(world: World, version: int, rules: Iterable[Rule] = ()) -> tuple[IcebergMirror, FaultyBackend]:
    """A mirror of another process, whose requests fail by rules."""
    backend = FaultyBackend(open_backend(world.fileio.url, {}), rules)
    store = FileIO(backend, env=FakeEnv(next(SEEDS)), policy=RetryPolicy(attempts_max=2))
    return IcebergMirror(replace(world.where, fileio=store), format_version=version), backend


def begun(world: World, version: int) -> IcebergMirror:
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=[world.file(world.rows(*range(10)))], restarts=True))
    mirror.write(world.upsert(1, 2, text="b", deletes=[3]))
    return mirror


def left_over(world: World) -> int:
    return sum(1 for _ in world.fileio.list_keys("metadata/"))


def test_the_loser_of_a_race_leaves_nothing_and_goes_on(world: World, version: int):
    first = begun(world, version)
    second = world.mirror()
    assert second.newest() == first.newest()
    second.live_files()
    change = world.upsert(4, text="c")
    first.write(change)
    before = left_over(world)
    with pytest.raises(MirrorSlotTaken, match="Another process wrote the Iceberg mirror of slot 2 first"):
        second.write(change)
    assert left_over(world) == before
    assert second.newest() == MirroredSlot(2, change.txn)
    second.write(world.upsert(5, text="d"))
    # The first process is told when it looks, and also when it does not.
    with pytest.raises(MirrorSlotTaken):
        first.write(change)
    first.write(world.upsert(6, text="e"))
    check_all(world)


@pytest.mark.parametrize("number", range(1, 7))
def test_a_competitor_at_any_put_of_a_slot(world: World, version: int, number: int):
    """The other process writes the same slot, and the next one, in the middle of a slot of ours."""
    begun(world, version)
    changes = [world.upsert(4, 6, text="c", deletes=[7]), world.upsert(5, 4, text="d")]
    other = world.mirror()
    left = [number]

    def meanwhile(request: Request) -> None:
        left[0] -= request.kind == "put"
        if left[0] == 0:
            left[0] = -1
            for change in changes:
                with contextlib.suppress(MirrorSlotTaken):
                    other.newest()
                    other.write(change)

    backend = FaultyBackend(open_backend(world.fileio.url, {}), before=meanwhile)
    mirror = IcebergMirror(replace(world.where, fileio=FileIO(backend, env=FakeEnv(next(SEEDS)))), format_version=version)
    if number < 6:
        with pytest.raises(MirrorSlotTaken):
            mirror.write(changes[0])
    else:
        mirror.write(changes[0])  # Only the hint was left, and it does not go back.
    assert world.fileio.read("metadata/version-hint.text") == b"4"
    assert metadata_slots(world) == [0, 1, 2, 3]
    assert mirror.newest() == MirroredSlot(3, changes[1].txn)
    mirror.write(world.upsert(8, text="e"))
    check_all(world)
    unnamed = world.mirror().expire(modified_before_ms=1 << 60)
    assert unnamed == 0, "the loser left something"


def test_two_that_write_the_same_slot_without_changes_agree(world: World, version: int):
    first = begun(world, version)
    second = world.mirror()
    second.newest()
    change = world.step(Action.CLEAN)
    first.write(change)
    second.write(change)
    second.write(world.upsert(5, text="d"))
    check_all(world)


def test_a_winner_of_another_transaction_is_an_error(world: World, version: int):
    first = begun(world, version)
    second = world.mirror()
    second.newest()
    change = world.upsert(4, text="c")
    first.write(change)
    with pytest.raises(CorruptMirror, match="but the log has 'other' at slot 2"):
        second.write(replace(change, txn="other"))


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("number", range(1, 7))
def test_a_process_that_dies_at_any_put_leaves_nothing_that_reads_wrong(world: World, version: int, fault: Fault, number: int):
    begun(world, version)
    dying, backend = beside(world, version, [Rule(fault=fault, kinds=PUTS, nth=number)])
    change = world.upsert(1, 8, text="c", deletes=[5])
    with pytest.raises(Crash):
        dying.write(change)
    assert sum(backend.fired.values()) == 1
    check_each(world)
    other = world.mirror()
    newest = other.newest()
    assert newest is not None
    is_done = number == 6 or (number == 5 and fault is Fault.CRASH_AFTER)
    assert newest.slot == (2 if is_done else 1)
    if not is_done:
        other.write(change)
    other.write(world.upsert(9, text="d"))
    check_all(world)


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.LATER, Fault.TWICE, Fault.THROTTLE])
@pytest.mark.parametrize("times", few([1, 9, 2, 3], 1, integration=4))
@pytest.mark.parametrize("deaf", [False, True])
def test_puts_whose_outcome_is_lost(world: World, version: int, fault: Fault, times: int, deaf: bool):
    """deaf: what would settle an outcome fails too."""
    begun(world, version)
    changes = [world.upsert(1, 8, text="c", deletes=[5]), world.upsert(2, 9, text="d")]
    for number in range(1, 7):
        mirror, _ = beside(world, version, faults(fault, number, times, deaf))
        write_until_done(world, mirror, changes[0])
        write_until_done(world, world.mirror(), changes[1])
        check_slot(world, 2)
        check_slot(world, 3)
        assert metadata_slots(world) == [0, 1, 2, 3]
        for slot in (2, 3):
            world.fileio.delete([f"metadata/v{slot + 1}.metadata.json"])


def faults(fault: Fault, number: int, times: int, deaf: bool) -> list[Rule]:
    rules = [Rule(fault=fault, kinds=PUTS, nth=number, times=times)]
    return [*rules, Rule(fault=Fault.BEFORE, kinds=frozenset({"head", "get"}), nth=4, times=times)] if deaf else rules


def write_until_done(world: World, mirror: IcebergMirror, change: MirrorChange) -> None:
    """As a driver does: after an error or a lost race, look again, and go on."""
    met = []
    for _ in range(3):
        try:
            newest = mirror.newest()
            if newest is not None and newest.slot >= change.slot:
                return
            mirror.write(change)
        except (FileIOError, MirrorSlotTaken) as error:
            met.append(error)
            mirror = world.mirror()
        else:
            return
    assert world.mirror().newest() == MirroredSlot(change.slot, change.txn), met


def test_a_put_that_takes_effect_late_is_ours(world: World, version: int):
    begun(world, version)
    pointer = [Rule(fault=Fault.LATER, kinds=PUTS, key=lambda key: key.endswith("json"), times=9)]
    mirror, backend = beside(world, version, pointer)
    change = world.upsert(1, text="c")
    with pytest.raises(FileIOError):
        mirror.write(change)
    backend.release()
    assert world.mirror().newest() == MirroredSlot(2, change.txn)
    check_all(world)


@pytest.mark.parametrize("hint", [b"", b"1", b"99", b"not a number", "²".encode(), None])
def test_a_bad_hint_does_no_harm(world: World, version: int, hint: bytes | None):
    mirror = begun(world, version)
    mirror.write(world.upsert(4, text="c"))
    if hint is None:
        world.fileio.delete(["metadata/version-hint.text"])
    else:
        world.fileio.put("metadata/version-hint.text", hint)
    assert world.mirror().newest() == mirror.newest() == MirroredSlot(2, f"{2:032x}")
    mirror.write(world.upsert(5, text="d"))
    assert world.fileio.read("metadata/version-hint.text") == b"4"
    check_all(world)


@pytest.mark.parametrize("hint", [b"1", None])
def test_a_process_that_slept_writes_no_old_slot(world: World, version: int, hint: bytes | None, monkeypatch: pytest.MonkeyPatch):
    """Meanwhile the metadata file after the one that it knows has come and gone."""
    sleeper, _ = beside(world, version)
    sleeper.write(world.step(add=[world.file(world.rows(*range(10)))], restarts=True))
    env = sleeper._where.fileio.env
    assert isinstance(env, FakeEnv)
    missed = world.upsert(1, text="b")
    mirror = world.mirror()
    mirror.write(missed)
    world.oldest_slot = 3
    mirror.write(world.upsert(2, text="c"))
    mirror.write(world.upsert(3, text="d"))
    mirror.expire(modified_before_ms=1 << 60)
    assert metadata_slots(world) == [3]
    if hint is None:
        world.fileio.delete(["metadata/version-hint.text"])
    else:
        world.fileio.put("metadata/version-hint.text", hint)
    env.advance(61)
    with pytest.raises(MirrorSlotTaken):
        sleeper.write(missed)
    env.advance(61)
    assert sleeper.newest() == MirroredSlot(3, f"{3:032x}")
    assert metadata_slots(world) == [3]
    change = world.upsert(4, text="e")
    monkeypatch.setattr(IcebergMirror, "_prepare", slowly(IcebergMirror._prepare, [lambda: env.advance(61), lambda: mirror.write(change)]))
    with pytest.raises(MirrorSlotTaken, match="Other processes wrote Iceberg mirrors after slot 3"):
        sleeper.write(replace(change, slot=5))
    monkeypatch.undo()
    assert metadata_slots(world) == [3, 4]
    check_all(world)


def slowly(prepare: Any, meanwhile: list[Callable[[], None]]) -> Any:
    """As `prepare`, but something happens the first time."""

    def slow(*given: Any) -> Any:
        while meanwhile:
            meanwhile.pop(0)()
        return prepare(*given)

    return slow


def test_a_process_that_a_restart_overtakes_leaves_nothing(world: World, version: int):
    mirror = begun(world, version)
    missed = world.upsert(4, text="c")
    for _ in range(2):
        world.step(Action.CLEAN)
    other = world.mirror(format_version=version)
    other.write(world.restart())
    before = sorted(world.fileio.list_keys())
    with pytest.raises(MirrorSlotTaken, match="began again after slot 2"):
        mirror.write(missed)
    assert sorted(world.fileio.list_keys()) == before and world.fileio.read("metadata/version-hint.text") == b"6"
    mirror.write(world.upsert(5, text="d"))
    check_all(world)


def test_the_hint_never_goes_back(world: World, version: int):
    first = begun(world, version)
    second = world.mirror()
    for number in range(4):
        (first, second)[number % 2].newest()
        (first, second)[number % 2].write(world.upsert(number, text=f"t{number}"))
        assert world.fileio.read("metadata/version-hint.text") == str(world.slot + 1).encode()


def test_what_is_remembered_is_kept_while_nobody_else_writes(world: World, version: int):
    mirror, _ = beside(world, version)
    mirror.write(world.step(add=[world.file(world.rows(*range(10)))], restarts=True))
    env, fileio = mirror._where.fileio.env, mirror._where.fileio
    assert isinstance(env, FakeEnv)
    env.advance(61)
    change = world.upsert(1, text="b")
    before = fileio.metrics.snapshot()
    mirror.write(change)
    # The metadata files are listed, and the newest one is read; nothing else.
    assert (fileio.metrics.snapshot() - before).requests == {"list": 1, "get": 1, "put_create": 5, "put_update": 1}
    check_all(world)


def test_a_process_sees_that_another_one_began_the_mirror_again(world: World, version: int):
    mirror = begun(world, version)
    for _ in range(3):
        world.step(Action.CLEAN)
    world.mirror().write(world.restart())
    assert mirror.newest() == MirroredSlot(5, f"{5:032x}")
    mirror.write(world.upsert(4, text="c"))
    check_all(world)


@pytest.mark.parametrize("properties", [{}, {"objcat.slot": "1"}, {"objcat.slot": "1", "objcat.table": "another"}])
def test_metadata_of_others_is_never_replaced(world: World, version: int, properties: dict[str, str]):
    begun(world, version)
    foreign = {**document(world, 1), "properties": properties}
    world.fileio.put("metadata/v7.metadata.json", json.dumps(foreign).encode())
    before = {key: world.fileio.read(key) for key in world.fileio.list_keys("metadata/")}
    change = world.upsert(1, text="c")
    for restarts in (False, True):
        mirror = world.mirror(format_version=version)
        with pytest.raises(ForeignMetadata, match=r"v7\.metadata\.json (was not written by objcat|is the mirror of another table)"):
            mirror.newest()
        with pytest.raises(ForeignMetadata):
            mirror.write(replace(change, restarts=restarts))
    assert {key: world.fileio.read(key) for key in world.fileio.list_keys("metadata/")} == before


def test_a_commit_of_another_catalog_is_not_taken_for_ours(world: World, version: int):
    """Spark keeps our properties when it writes to a table by its path."""
    mirror = begun(world, version)
    ours = document(world, 1)
    snapshot = {**ours["snapshots"][-1], "snapshot-id": 77, "summary": {"operation": "append"}}
    commits = [
        {**ours, "snapshots": [*ours["snapshots"], snapshot], "current-snapshot-id": 77},
        {**ours, "properties": {**ours["properties"], "write.format.default": "orc"}},
    ]
    change = world.upsert(1, text="c")
    for found in commits:
        world.fileio.put("metadata/v3.metadata.json", json.dumps(found).encode())
        with pytest.raises(ForeignMetadata, match="was written by something else"):
            world.mirror().newest()
        for one in (mirror, world.mirror()):
            with pytest.raises(ForeignMetadata):
                one.write(change)
        with pytest.raises(ForeignMetadata):
            world.mirror().write(replace(change, restarts=True))


def test_packed_metadata_is_of_others(world: World):
    world.fileio.put("metadata/v3.gz.metadata.json", b"")
    with pytest.raises(ForeignMetadata):
        world.mirror().newest()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"properties": {"objcat.slot": "3", "objcat.table": "0123456789abcdef"}}'])
def test_damaged_metadata_is_replaced_by_a_restart_only(world: World, version: int, data: bytes):
    begun(world, version)
    change = world.upsert(1, text="c")
    world.fileio.put("metadata/v3.metadata.json", data)
    if data == b"[]":
        with pytest.raises(ForeignMetadata):
            world.mirror().newest()
        return
    mirror = world.mirror(format_version=version)
    with pytest.raises(CorruptMirror):
        mirror.newest()
    with pytest.raises(CorruptMirror):
        mirror.write(change)
    again = replace(change, restarts=True, removed=[], masked=[], added=[file.mirrored() for file in world.files.values()])
    with pytest.raises(CorruptMirror):
        mirror.newest()
    mirror.write(again)
    mirror.write(world.upsert(2, text="d"))
    check_all(world)


@pytest.mark.parametrize("kind", ["snap", "m0", "m1", "pos", "dv"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_a_damaged_object_is_an_error_until_the_mirror_begins_again(world: World, version: int, kind: str, is_missing: bool):
    mirror = begun(world, version)
    mirror.write(world.upsert(1, 4, text="c"))
    keys = list(world.fileio.list_keys(f"metadata/{kind}-"))
    for key in keys:
        world.fileio.put(key, world.fileio.read(key)[:60])
        if is_missing:
            world.fileio.delete([key])
    change = world.restore(0)
    damaged = world.mirror(format_version=version)
    if keys:
        with pytest.raises(CorruptMirror, match="Make the mirror again from the table"):
            damaged.write(change)
        assert metadata_slots(world) == [0, 1, 2]
        # A driver that asks for the newest slot learns that the mirror must begin again, until it did.
        for _ in range(2):
            with pytest.raises(CorruptMirror, match="Begin it again"):
                damaged.newest()
    again = replace(change, restarts=True, removed=[], masked=[], added=[file.mirrored() for file in world.files.values()])
    damaged.write(again)
    assert damaged.newest() == MirroredSlot(3, change.txn)
    check_slot(world, 3)


def test_a_mirror_whose_newest_slot_is_damaged_begins_again_at_that_slot(world: World, version: int):
    begun(world, version)
    world.slot -= 1
    again = world.restart()
    change = world.upsert(1, text="c")
    world.fileio.delete(world.fileio.list_keys("metadata/snap-1-"))
    damaged = world.mirror(format_version=version)
    with pytest.raises(CorruptMirror):
        damaged.write(change)
    with pytest.raises(MirrorSlotTaken):
        damaged.write(replace(again, slot=0))
    damaged.write(again)
    assert damaged.newest() == world.mirror().newest() == MirroredSlot(1, again.txn)
    check_slot(world, 1)
    damaged.write(change)
    check_slot(world, 2)
    with pytest.raises(MirrorSlotTaken):
        damaged.write(replace(again, slot=2, txn=change.txn))


def test_a_copied_prefix_has_no_mirror_of_its_own(world: World, version: int):
    mirror = begun(world, version)
    mirror.write(world.upsert(4, text="c"))
    copy = World(f"{world.fileio.url}-copy")
    for key in world.fileio.list_keys():
        copy.fileio.put(key, world.fileio.read(key))
    # The copy was made while the table was written, so that its log ends before its mirror.
    copy.slot, copy.files, copy.spec = 0, world.files, world.spec
    change = copy.restart()
    copied = copy.mirror(format_version=version)
    assert copied.newest() is None
    copied.write(change)
    assert copied.newest() == copy.mirror().newest() == MirroredSlot(1, change.txn)
    assert document(copy, 1)["location"] == copy.fileio.url
    copied.write(copy.step(mask={next(iter(copy.files)): [7]}))
    check_slot(copy, 1)
    check_slot(copy, 2)
    assert mirror.newest() == MirroredSlot(2, f"{2:032x}")


def test_a_mirror_below_a_folder(tmp_path: Path, version: int):
    world = World(f"file://{tmp_path}/{quote_path('a b%20c')}", folder="_mirrors/t1/")
    mirror = world.mirror(format_version=version)
    mirror.write(world.step(add=[world.file(world.rows(*range(6)), name="city=Z%C3%BCrich é.parquet")], restarts=True))
    mirror.write(world.upsert(1, text="b"))
    found = json.loads((tmp_path / "a b%20c" / "_mirrors/t1/metadata/v2.metadata.json").read_text())
    assert found["location"] == f"file://{tmp_path}/a b%20c/_mirrors/t1"
    check_all(world)
    assert world.mirror().live_files() == {path: file.live.num_rows for path, file in world.files.items()}
