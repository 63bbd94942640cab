"""Two processes at one mirror, processes that die, answers that are lost, and metadata of others: no version is ever wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fileio.errors import FileIOError
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Rule
from objcat.mirror.delta.actions import commit_key
from objcat.mirror.delta.mirror import DeltaMirror
from objcat.mirror.delta.vectors import VECTORS_FOLDER
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirrorChange, MirrorFolder, MirrorSlotTaken
from tests.effort import few
from tests.mirror.delta.synthetic import TABLE, History, positions, read_by_deltalake


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[History, list[MirrorChange]]:
    """A history that no mirror has yet, with a restart after a gap, and enough slots for checkpoints."""
    table = History(open_store(tmp_path_factory.mktemp("history").as_uri()))
    rng = random.Random(11)
    changes = [table.begin(), *(table.draw(rng) for _ in range(35))]
    restart = table.begin(slot=table.slot + 3)
    return table, [*changes, restart, *(table.draw(rng) for _ in range(3))]


def beside(table: History, path: Path, rules: Sequence[Rule] = (), *, seed: int = 0) -> DeltaMirror:
    """A mirror of a history in another place, over the same data files."""
    path.mkdir(exist_ok=True)
    if not (path / "data").exists():
        (path / "data").symlink_to(Path(table.url) / "data")
    backend = FaultyBackend(open_store(path.as_uri())._bare, rules)
    return DeltaMirror(MirrorFolder(FileIO(backend, env=FakeEnv(seed)), "", TABLE, "shop.orders"))


def vector_files(path: Path) -> set[str]:
    return {file.name for file in (path / VECTORS_FOLDER).glob("*.bin")}


def named_files(path: Path) -> set[str]:
    """The files of vectors that some commit names."""
    found = set()
    for commit in (path / "_delta_log").glob("*.json"):
        for line in commit.read_text().splitlines():
            vector = json.loads(line).get("add", {}).get("deletionVector")
            if vector is not None:
                found.add(vector["pathOrInlineDv"])
    return found


def go_on(mirror: DeltaMirror, changes: Sequence[MirrorChange]) -> None:
    """Write what the mirror does not have, as any process does."""
    newest = mirror.newest()
    for change in changes:
        if newest is None or change.slot > newest.slot:
            mirror.write(change)


PUTS = 75
"""Enough for every put of that history: the test says so itself."""


@pytest.mark.parametrize("fault", few([Fault.CRASH_BEFORE, Fault.CRASH_AFTER], 0, integration=2))
def test_a_process_that_dies_at_any_put_leaves_what_the_next_one_continues(
    written: tuple[History, list[MirrorChange]], tmp_path: Path, fault: Fault
) -> None:
    table, changes = written
    deaths = 0
    for nth in range(1, PUTS, 1 if fault is Fault.CRASH_AFTER else 25):
        path = tmp_path / str(nth)
        dying = beside(table, path, [Rule(fault=fault, kinds=frozenset({"put"}), nth=nth)], seed=1)
        try:
            go_on(dying, changes)
        except Crash:
            deaths += 1
        else:
            break
        newest = beside(table, path).newest()
        if newest is not None:
            assert read_by_deltalake(str(path)) == table.rows_at[newest.slot]
        go_on(beside(table, path, seed=2), changes)
        assert read_by_deltalake(str(path)) == table.rows_at[changes[-1].slot]
        for slot in (changes[20].slot, changes[34].slot, changes[-2].slot):
            assert read_by_deltalake(str(path), slot) == table.rows_at[slot]
    else:
        pytest.fail("the history has more puts than were tried") if fault is Fault.CRASH_AFTER else None
    assert deaths > 1


@pytest.mark.parametrize("seed", few(range(20), 1, integration=5))
def test_two_processes_agree_on_every_slot(written: tuple[History, list[MirrorChange]], tmp_path: Path, seed: int) -> None:
    table, changes = written
    mirrors = [beside(table, tmp_path, seed=number) for number in (1, 2)]
    rng = random.Random(seed)
    for mirror in mirrors:
        mirror.newest()
    lost = 0
    while any((newest := mirror.newest()) is None or newest.slot < changes[-1].slot for mirror in mirrors):
        # Both know the newest slot, and both go on from it for a while.
        for mirror in rng.sample(mirrors, 2):
            known = newest.slot if newest is not None else -1
            for change in [change for change in changes if change.slot > known][: rng.randint(1, 4)]:
                try:
                    mirror.write(change)
                except MirrorSlotTaken:
                    lost += 1
                    break
    assert lost > 5
    for slot in sorted({change.slot for change in changes}):
        assert read_by_deltalake(str(tmp_path), slot) == table.rows_at[slot]
    # Whoever lost deleted its vectors.
    assert len(vector_files(tmp_path)) == len(named_files(tmp_path))


@pytest.mark.parametrize("fault", few([Fault.AFTER, Fault.TWICE, Fault.BEFORE, Fault.THROTTLE], 2, integration=4))
def test_answers_that_are_lost_change_nothing(written: tuple[History, list[MirrorChange]], tmp_path: Path, fault: Fault) -> None:
    table, changes = written
    rules = [Rule(fault=fault, kinds=frozenset({"put"}), nth=nth) for nth in range(2, PUTS, 3)]
    go_on(beside(table, tmp_path, rules), changes)
    for change in changes[::6]:
        assert read_by_deltalake(str(tmp_path), change.slot) == table.rows_at[change.slot]


@pytest.mark.parametrize("fault", [Fault.AFTER, Fault.BEFORE])
def test_a_commit_whose_outcome_stays_unknown_is_read_again(
    written: tuple[History, list[MirrorChange]], tmp_path: Path, fault: Fault
) -> None:
    table, changes = written
    masking = next(number for number, change in enumerate(changes) if number > 3 and any(len(file.masked) for file in change.added))
    key = f"{changes[masking].slot:020d}.json"
    rules = [
        Rule(fault=fault, kinds=frozenset({"put"}), key=lambda path: path.endswith(key), times=100),
        Rule(fault=Fault.BEFORE, kinds=frozenset({"get", "head"}), key=lambda path: path.endswith(key), times=100),
    ]
    mirror = beside(table, tmp_path, rules)
    for change in changes[:masking]:
        mirror.write(change)
    with pytest.raises(FileIOError):
        mirror.write(changes[masking])
    # Its vectors stay: the commit may be there.
    assert len(vector_files(tmp_path)) > len(named_files(tmp_path)) - (fault is Fault.AFTER)
    with suppress(MirrorSlotTaken):
        go_on(beside(table, tmp_path, seed=5), changes)
    assert read_by_deltalake(str(tmp_path)) == table.rows_at[changes[-1].slot]


def test_what_does_not_fit_the_mirror_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    table = History(open_store(tmp_path.as_uri()))
    mirror = table.mirror()
    mirror.write(table.begin())
    one, other = table.file([{"id": 1}, {"id": 2}]), table.file([{"id": 3}])
    mirror.write(table.add(one))
    before = sorted(table.fileio.list_keys())
    for parts in (
        {"added": (one.file,)},
        {"masked": (other.file,)},
        {"removed": (other.file.path,)},
        {"removed": (one.file.path,), "masked": (replace(one.file, masked=positions(0)),)},
    ):
        with pytest.raises(CorruptMirror, match="does not fit"):
            mirror.write(table.change(**parts))
        assert sorted(table.fileio.list_keys()) == before
    with pytest.raises(ValueError, match="cannot follow"):
        mirror.write(table.change(slot=5))
    mirror.write(table.add(other))
    assert read_by_deltalake(table.url) == table.rows_at[2]


def test_metadata_of_others_is_never_touched(tmp_path: Path) -> None:
    table = History(open_store(tmp_path.as_uri()))
    mirror = table.mirror()
    mirror.write(table.begin())
    mirror.write(table.add(table.file([{"id": 1}])))
    key = commit_key(table.place, 2)
    other = replace(table.place, table="another")
    with pytest.raises(ForeignMetadata, match="of the table 5f0c1d2e3a4b"):
        DeltaMirror(other).newest()
    foreign = b'{"commitInfo":{"timestamp":1,"operation":"WRITE","engineInfo":"Apache-Spark/4.1","isBlindAppend":"yes"}}\n'
    for data in (foreign, b'{"add":{"path":"x","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true}}\n'):
        table.fileio.put(key, data)
        for one in (mirror, table.mirror()):
            with pytest.raises(ForeignMetadata, match=r"02.json.*was not written by objcat"):
                one.newest()
        for slot in (2, 3):
            with pytest.raises(ForeignMetadata):
                table.mirror().write(table.change(slot=slot, restarts=True))
        assert table.fileio.read(key) == data


def test_a_process_that_slept_writes_no_slot_that_has_expired(tmp_path: Path) -> None:
    table = History(open_store(tmp_path.as_uri()))
    env = FakeEnv(3)
    sleeper = DeltaMirror(replace(table.place, fileio=FileIO(open_store(tmp_path.as_uri())._bare, env=env)))
    sleeper.write(table.begin())
    sleeper.write(table.add(table.file([{"id": 1}, {"id": 2}])))
    missed = table.mask({path: {0} for path in table.files})
    other = table.mirror()
    other.write(missed)
    while table.slot < 70:
        other.write(table.nothing(oldest_slot=table.slot))
    assert other.expire(modified_before_ms=1 << 60) > 0 and not table.fileio.exists(commit_key(table.place, 2))
    env.sleep(61)
    with pytest.raises(MirrorSlotTaken):
        sleeper.write(missed)
    assert not table.fileio.exists(commit_key(table.place, 2))
    newest = sleeper.newest()
    assert newest is not None and newest.slot == 70
    sleeper.write(table.nothing())
    assert read_by_deltalake(table.url) == table.rows_at[71]
