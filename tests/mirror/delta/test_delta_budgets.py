"""What the Delta mirror costs, in requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.mirror.delta.state import VERSIONS_MIN
from tests.mirror.delta.synthetic import History


@contextmanager
def counted(fileio: FileIO) -> Iterator[dict[str, int]]:
    """The requests of a block, by kind."""
    asked: dict[str, int] = {}
    before = fileio.metrics.snapshot()
    yield asked
    asked.update((fileio.metrics.snapshot() - before).requests)


def begun() -> History:
    table = History(FileIO(MemoryBackend("budgets"), env=FakeEnv(1)))
    table.mirror().write(table.begin())
    return table


def test_a_slot_without_files_is_one_put_and_any_other_one_is_two() -> None:
    table = begun()
    mirror = table.mirror()
    mirror.newest()
    stored = [table.file([{"id": number} for number in range(20)], masked={0}) for _ in range(3)]
    plain = table.file([{"id": 1}])
    paths = [one.file.path for one in stored]
    for change, puts in [
        (table.add(plain), 1),
        (table.add(*stored), 2),
        (table.nothing(), 1),
        (table.mask({path: {1, 2} for path in paths}), 2),
        (table.mask({path: {3} for path in paths}), 2),
        (table.restore(table.slot - 1), 2),
        (table.mask({paths[0]: {3}}), 2),
        (table.mask({paths[0]: {3}}), 1),
        (table.remove(paths[0]), 1),
    ]:
        with counted(table.fileio) as asked:
            mirror.write(change)
        assert asked == {"put_create": puts}, change
    with counted(table.fileio) as asked:
        mirror.newest()
    assert asked == {"list": 1}


def test_a_checkpoint_costs_four_more_and_comes_every_32_versions_of_a_small_table() -> None:
    table = begun()
    rng = random.Random(7)
    mirror = table.mirror()
    mirror.newest()
    with_checkpoint = []
    for _ in range(4 * VERSIONS_MIN + 1):
        with counted(table.fileio) as asked:
            change = table.draw(rng)
        with counted(table.fileio) as asked:
            mirror.write(change)
        if set(asked) == {"put_create"}:
            assert asked["put_create"] <= 2
        else:
            with_checkpoint.append(change.slot)
            assert asked["put_create"] <= 4 and sum(asked.values()) <= 6, asked
            assert set(asked) <= {"put_create", "put_update", "get", "head"}
    assert with_checkpoint == [VERSIONS_MIN * number + 1 for number in range(1, 5)]


def test_a_cold_start_reads_the_hint_a_listing_the_checkpoint_and_the_commits_after_it() -> None:
    table = begun()
    rng = random.Random(7)
    mirror = table.mirror()
    for _ in range(3 * VERSIONS_MIN + 10):
        mirror.write(table.draw(rng))
    with counted(table.fileio) as asked:
        newest = table.mirror().newest()
    assert newest is not None and newest.slot == table.slot
    # The commit of the checkpoint is read too, and the checkpoint in two requests.
    assert asked["list"] == 1 and asked["get"] <= 1 + 1 + 10 + 3, asked
    assert set(asked) == {"list", "get"}


def test_a_table_without_a_mirror_costs_a_read_and_a_listing() -> None:
    table = History(FileIO(MemoryBackend("none"), env=FakeEnv(1)))
    with counted(table.fileio) as asked:
        assert table.mirror().newest() is None
    assert asked == {"get": 1, "list": 1}
