"""What is deleted, and when: no version that is readable loses anything, and after a restart nothing older can be found."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from fileio.errors import NotWritten
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Rule
from objcat.errors import InvalidInput
from objcat.mirror.delta.actions import checkpoint_key, commit_key, commit_version, hint_key
from objcat.mirror.delta.mirror import DeltaMirror
from objcat.mirror.delta.vectors import VECTORS_FOLDER, vector_slot
from objcat.mirror.forgotten_slots import FORGOTTEN
from objcat.mirror.model import MirrorFolder
from tests.effort import seeds
from tests.mirror.delta.synthetic import TABLE, History, read_by_deltalake

LATER = 1 << 60
"""After every object was modified."""


def history(path: Path, steps: int, seed: int = 1) -> History:
    table = History(open_store(path.as_uri()))
    mirror = table.mirror()
    mirror.write(table.begin())
    rng = random.Random(seed)
    for _ in range(steps):
        mirror.write(table.draw(rng))
    return table


def objects(table: History) -> set[str]:
    return {key for prefix in ("_delta_log", VECTORS_FOLDER) for key in table.fileio.list_keys(prefix)}


def check_readable(table: History, slots: Sequence[int]) -> None:
    for slot in slots:
        assert read_by_deltalake(table.url, slot) == table.rows_at[slot], slot
    assert read_by_deltalake(table.url) == table.rows_at[table.slot]


@pytest.mark.parametrize("seed", seeds(0, integration=4, with_all=20))
def test_readable_slots_and_saved_ones_stay_as_they_are(tmp_path: Path, seed: int) -> None:
    table = history(tmp_path, 150, seed)
    saved = frozenset({5, 40, 64})
    table.mirror().write(table.nothing(oldest_slot=110, saved=saved))
    before = objects(table)
    deleted = table.mirror().expire(modified_before_ms=LATER)
    after = objects(table)
    assert deleted == len(before) - len(after) > 60 and after < before
    # Version 110 needs the checkpoint of 96; 40 that of 32; 64 has its own; 5 the first commits.
    commits = {version for key in after if (version := commit_version(key)) is not None}
    assert commits == {*range(6), *range(32, 41), 64, *range(96, 152)}
    check_readable(table, [*range(110, 152, 3), *saved])
    assert table.mirror().expire(modified_before_ms=LATER) == 0
    # The next process goes on, with the vectors of files that were masked long ago.
    rng = random.Random(seed)
    mirror = table.mirror()
    for _ in range(5):
        mirror.write(table.draw(rng))
    check_readable(table, range(150, 157))


def test_young_objects_stay_and_so_does_what_a_mirror_may_be_about_to_name(tmp_path: Path) -> None:
    table = history(tmp_path, 70)
    mirror = table.mirror()
    mirror.write(table.nothing(oldest_slot=table.slot))
    before = objects(table)
    assert mirror.expire(modified_before_ms=0) == 0
    assert objects(table) == before


def test_vectors_that_no_commit_names_go_when_their_slots_expire(tmp_path: Path) -> None:
    table = history(tmp_path, 40)
    orphan = f"{VECTORS_FOLDER}/deletion_vector_00000000-0000-0007-0123-456789abcdef.bin"
    late = f"{VECTORS_FOLDER}/deletion_vector_00000000-0000-0fff-0123-456789abcdef.bin"
    for key in (orphan, late):
        table.fileio.put(key, b"\x01")
    assert vector_slot(orphan) == 7
    table.mirror().write(table.nothing(oldest_slot=table.slot))
    table.mirror().expire(modified_before_ms=LATER)
    assert not table.fileio.exists(orphan) and table.fileio.exists(late)
    check_readable(table, [table.slot])


@pytest.mark.parametrize("restart", [41, 50])
def test_after_a_restart_everything_older_goes_at_once(tmp_path: Path, restart: int) -> None:
    table = history(tmp_path, 40)
    table.fileio.put("_delta_log/00000000000000000012.crc", b"of other software")
    with pytest.raises(InvalidInput, match="Restart the mirror"):
        table.mirror().forget_before(20)
    mirror = table.mirror()
    gone = table.file([{"id": 1}], name="name=AdaLovelace")
    if restart == 41:
        table.slot = 40
        restart = 42
        mirror.write(table.add(gone))
        del table.files[gone.file.path]
    mirror.write(table.begin(slot=restart))
    young = objects(table)
    deleted = mirror.forget_before(restart)
    left = objects(table)
    assert deleted == len(young - left)
    assert commit_key(table.place, restart) in left and checkpoint_key(table.place, restart) in left and hint_key(table.place) in left
    assert {key for key in left if not key.startswith(VECTORS_FOLDER)} == {
        commit_key(table.place, restart),
        checkpoint_key(table.place, restart),
        hint_key(table.place),
    }
    forgotten = f"{VECTORS_FOLDER}/{FORGOTTEN}"
    assert left - young == {forgotten}
    assert {vector_slot(key) for key in left - {forgotten} if key.startswith(VECTORS_FOLDER)} <= {restart}
    # Not even the path of a file that is gone, which may hold a value.
    assert not any(b"AdaLovelace" in table.fileio.read(key) for key in left)
    rng = random.Random(5)
    for _ in range(3):
        mirror.write(table.draw(rng))
    check_readable(table, range(restart, restart + 4))
    assert table.mirror().forget_before(restart) == 0


def test_a_hint_that_could_not_be_put_is_put_before_what_it_names_goes(tmp_path: Path) -> None:
    table = history(tmp_path, 40)
    refused = Rule(fault=Fault.BEFORE, kinds=frozenset({"put"}), key=lambda key: key.endswith("_last_checkpoint"), times=100)
    place = MirrorFolder(FileIO(FaultyBackend(open_store(tmp_path.as_uri())._bare, [refused]), env=FakeEnv(3)), "", TABLE, "shop.orders")
    mirror = DeltaMirror(place)
    mirror.write(table.begin(slot=41))
    with pytest.raises(NotWritten):
        mirror.forget_before(41)
    assert table.fileio.exists(commit_key(place, 3))
    assert table.mirror().forget_before(41) > 0
    check_readable(table, [41])


def test_without_a_mirror_nothing_expires_and_remains_are_forgotten(tmp_path: Path) -> None:
    table = History(open_store(tmp_path.as_uri()))
    assert table.mirror().expire(modified_before_ms=LATER) == 0
    orphan = f"{VECTORS_FOLDER}/deletion_vector_00000000-0000-0007-0123-456789abcdef.bin"
    table.fileio.put(orphan, b"\x01")
    assert table.mirror().forget_before(7) == 0
    assert table.mirror().forget_before(8) == 1 and not objects(table)
