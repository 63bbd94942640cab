"""Random histories of sources against a model, and refreshes that die at any request."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Callable
from typing import Any

import pytest

import objcat
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.faults import Crash, Fault, FaultyBackend
from objcat.inspection.doctor import examine
from objcat.lake.lake import Lake
from tests.effort import seeds
from tests.services.world import At
from tests.tables.in_place import FORMATS, Row, as_json, in_order, of_lake, read, rows
from tests.tables.in_place_world import STEPS, World

REQUESTS_MAX = 120


@pytest.mark.parametrize("seed", seeds(4, integration=12, with_all=100))
def test_a_random_history_answers_as_the_model(seed: int) -> None:
    drawn = random.Random(seed)
    store, lake = of_lake()
    world = World(drawn, store, lake, list(FORMATS)[seed % len(FORMATS)], "t")
    for _ in range(STEPS):
        world.step()


@pytest.mark.parametrize("server", ["versitygw", "azurite", "fake-gcs-server"])
@pytest.mark.tier("integration")
def test_histories_in_stores(server: ServerName, servers: Callable[[ServerName], ServerHandle]) -> None:
    handle = servers(server)
    store, lake = of_lake(f"{handle.url}/in-place-{secrets.token_hex(4)}", handle.options)
    for number, kind in enumerate(("parquet", "json")):
        world = World(random.Random(number), store, lake, kind, f"t{number}")
        for _ in range(STEPS):
            world.step()


FAULTS = [
    Fault.CRASH_AFTER,
    *(pytest.param(fault, marks=pytest.mark.tier("all")) for fault in (Fault.AFTER, Fault.CRASH_BEFORE, Fault.BEFORE, Fault.TWICE)),
]


def prepared(*precompute: str) -> tuple[MemoryBackend, list[Row], list[Row]]:
    """A table in place for which a refresh has files to add, replace and drop: the store, its rows before, and after."""
    backend = MemoryBackend(secrets.token_hex(4))
    store, lake = FileIO(backend), Lake(FileIO(backend).child("lake"))
    for number in range(3):
        store.put(f"in/{number}.json", as_json(rows(number * 10, number * 10 + 5)))
    url = f"{store.url}/in/*.json"
    source = objcat.Files(url, format="json", on_change="replace", on_missing="drop", precompute=precompute)
    table = lake.create_table("t", source=source)
    table.refresh_files()
    kept = store.read("in/1.json")
    store.put("in/1.json", as_json(rows(100, 103)))
    store.delete(["in/2.json"])
    store.put("in/3.json", as_json(rows(200, 202)))
    assert kept
    return backend, rows(0, 5), [*rows(0, 5), *rows(100, 103), *rows(200, 202)]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("deletes", "precompute"), [(False, ()), (True, ()), (True, ("name",))])
def test_a_refresh_that_dies_at_any_request(fault: Fault, precompute: tuple[str, ...], *, deletes: bool) -> None:
    for number in range(1, REQUESTS_MAX):
        backend, same, after = prepared(*precompute)
        script = At(number, fault)
        sick = Lake(FileIO(FaultyBackend(backend, script)).child("lake"))
        with contextlib.suppress(Crash, Exception):
            table = sick.table("t")
            table.refresh_files()
            if deletes:
                table.delete("id >= 200 or id = 0")
        table = Lake(FileIO(backend).child("lake")).table("t")
        assert read(table, where="id < 5 and id > 0") == in_order(row for row in same if row["id"])
        table.refresh_files()
        found = read(table)
        left = [row for row in after if not (row["id"] >= 200 or row["id"] == 0)]
        assert found == in_order(after) or (deletes and found == in_order(left))
        assert read(table, columns=["name"]) == in_order({"name": row["name"]} for row in found)
        assert sorted(FileIO(backend).list_keys("in/")) == [f"in/{name}.json" for name in (0, 1, 3)]
        assert_columns_are_kept(backend, table)
        if not script.hit:
            assert number > 8 and (not deletes or found == in_order(left))
            return
    pytest.fail(f"a refresh sends more than {REQUESTS_MAX} requests")


def assert_columns_are_kept(backend: MemoryBackend, table: objcat.Table) -> None:
    """What a dead writer left is found and deleted, and no file that the table names is."""
    report = examine(table._context.timeline, deep=True)
    assert report.healthy, report.findings
    table.maintenance.rollback_failed_writes(older_than_s=0)
    table.maintenance.clean(keep_slots=1)
    named = {file.path for group in table.scan().plan.groups if group.base for file in group.base.data_files[1:]}
    kept = {key for key in FileIO(backend).list_keys("lake/tables/") if key.endswith(".columns.parquet")}
    assert {key.partition("/data/")[2] for key in kept} == {path.removeprefix("data/") for path in named}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_precomputes_dies_at_any_request(fault: Fault) -> None:
    for number in range(1, REQUESTS_MAX):
        backend, _, _ = prepared()
        table = Lake(FileIO(backend).child("lake")).table("t")
        table.refresh_files()
        expected = read(table)
        table.alter.set_precomputed(["name"])
        script = At(number, fault)
        with contextlib.suppress(Crash, Exception):
            Lake(FileIO(FaultyBackend(backend, script)).child("lake")).table("t").maintenance.precompute()
        assert read(table) == expected and read(table, columns=["name"]) == in_order({"name": row["name"]} for row in expected)
        table.maintenance.precompute()
        assert table.scan(columns=["name"]).explain().sources["precomputed"] == 3
        assert read(table, columns=["name"]) == in_order({"name": row["name"]} for row in expected)
        assert_columns_are_kept(backend, table)
        if not script.hit:
            assert number > 8
            return
    pytest.fail(f"a run sends more than {REQUESTS_MAX} requests")


def test_a_crash_is_one() -> None:
    """The requests of a refresh are seen by the faults: one that crashes leaves the old rows."""
    backend, _, _ = prepared()
    seen: list[Any] = []
    sick = Lake(FileIO(FaultyBackend(backend, before=seen.append)).child("lake"))
    sick.table("t").refresh_files()
    assert any(request.key.startswith("in/") for request in seen) and any(request.kind == "list" for request in seen)
