"""Readers, writers and services at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import objcat
from fileio.local.backend import LocalBackend
from fileio.local.options import LocalOptions
from objcat.errors import SnapshotExpired
from objcat.maintenance.clean import clean
from objcat.maintenance.compact import compact
from objcat.maintenance.savepoint import savepoint
from tests.services.world import World, rows


def test_readers_of_an_expired_slot_are_told_so(tmp_path: Any) -> None:
    """On files: a scan that was planned before the clean finds its files gone."""
    world = World(backend=LocalBackend(str(tmp_path), LocalOptions()))
    world.upsert(*rows(6))
    table = objcat.Lake(world.store()).table("t")
    scan = table.scan()
    compact(world.timeline(), world.id)
    clean(world.timeline(), world.id, keep_slots=1)
    with pytest.raises(SnapshotExpired, match=r"Slot 1 .*was cleaned"):
        scan.to_arrow()
    assert len(table.scan().to_arrow()) == 6


def test_services_and_writers_in_threads_lose_nothing() -> None:
    """Eight threads of each kind on one store; what was acknowledged is there, and what is readable is whole."""
    world = World(buckets=4)
    errors: list[BaseException] = []
    acknowledged: list[int] = []

    def writer(number: int) -> None:
        table = objcat.Lake(world.store()).table("t")
        for turn in range(6):
            key = 100 * number + turn
            table.upsert([{"id": key, "v": key, "o": 1}])
            acknowledged.append(key)

    def serve(number: int) -> None:
        for turn in range(5):
            try:
                compact(world.timeline(), world.id)
                if number % 2:
                    clean(world.timeline(), world.id, keep_slots=4)
                elif turn == 2:
                    savepoint(world.timeline(), world.id)
            except SnapshotExpired:
                pass

    def run(act: Any, number: int) -> None:
        try:
            act(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(act, number)) for act in (writer, serve) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert world.read() == {key: key for key in sorted(acknowledged)}
    for slot in world.readable():
        world.read(slot)
    world.check_files_after_clean()
