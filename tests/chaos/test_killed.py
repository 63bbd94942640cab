"""Real processes are killed (-9) at the requests of a service, while another process writes: nothing is lost, doubled or left for ever.

By default at the put of the slot and at one request more (over HTTP at one of both), on GCS and Azure one service, and within an upload in
parts; with `--all` at every one. `KILLED_SEED=...` chooses again which.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from devkit.fault_proxy import FaultKind
from devkit.handle import ServerHandle
from tests.chaos.killing import AT_PART, AT_SLOT, MOMENTS, Beside, Died, Ground, check, holding, orphans, tidy
from tests.chaos.works import ERASED, WORKS
from tests.effort import effort

POINTS_MAX = 80
"""Of a work that sends more requests, about so many are chosen with `--all`."""
CHIEF = 9
"""Works that are killed without `--all`; on a server every second one of them."""


def run(ground: Ground, work: str, nth: int | None, moment: FaultKind) -> Died:
    """Kill a process, or let it end; whatever is wrong afterwards fails."""
    place, story = ground.begin(work)
    beside = Beside(place, story.beside)
    slots_max = effort(4, with_all=50)
    with ground.killed(place, work, beside, nth, moment) as died:
        told = f"{work} at request {nth}, {moment}"
        assert died.exitcode == (-9 if died.hit else 0), f"{told}: {died}"
        beside.turn()
        check(place, work, story, beside.acknowledged, slots_max=slots_max)
        finished = ground.finish(place, work, 5000)
        acknowledged = {**beside.acknowledged, finished["txn"]: {5000: 1}}
        if moment == "delayed_landing":
            place.lake().table(story.beside).maintenance.rollback_failed_writes(older_than_s=0)
    # What landed late has changed nothing.
    check(place, work, story, acknowledged, slots_max=slots_max)
    tidy(place, story)
    check(place, work, story, acknowledged, slots_max=slots_max)
    assert orphans(place, story) == [], told
    if work.startswith(("erase", "purge")):
        assert holding(place, ERASED) == [], told
    return died


def ground_on(store: str, servers: Callable[[str], ServerHandle], directory: Path) -> Ground:
    return Ground(directory / "lakes" if store == "file" else servers(store).fresh_bucket(), directory)


def cases() -> Iterator[ParameterSet]:
    for store in ("file", "versitygw", "fake-gcs-server", "azurite"):
        for number, work in enumerate(WORKS):
            if work == "upload":
                continue
            is_chief = number < CHIEF and (store == "file" or number % 2 == 0)
            chosen = is_chief if store in ("file", "versitygw") else work == "compact"
            yield pytest.param(store, work, marks=[] if chosen else [pytest.mark.tier("all")])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("store", "work"), list(cases()))
def test_a_process_is_killed_at_its_requests_while_another_one_writes(
    servers: Callable[[str], ServerHandle], tmp_path: Path, store: str, work: str, request: pytest.FixtureRequest
) -> None:
    ground = ground_on(store, servers, tmp_path)
    moments = MOMENTS[:2] if store == "file" else MOMENTS
    seed = int(os.environ.get("KILLED_SEED") or secrets.randbits(32))
    chance = random.Random(seed)
    print(f"KILLED_SEED={seed}")
    if request.config.getoption("--all"):
        for moment in moments:
            assert run(ground, work, AT_SLOT, moment).hit
        step = 1 + run(ground, work, None, "drop_after").requests // POINTS_MAX
        for number in itertools.count(1 + chance.randrange(step), step):
            if not run(ground, work, number, chance.choice(moments)).hit:
                return
    points = [AT_SLOT, chance.randint(4, 12)]
    for nth in points if store == "file" else chance.sample(points, 1):
        assert run(ground, work, nth, chance.choice(moments)).hit


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", ["file", "versitygw", "fake-gcs-server", "azurite"])
def test_a_process_is_killed_between_the_parts_of_an_upload(
    servers: Callable[[str], ServerHandle], tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    ground = ground_on(store, servers, tmp_path)
    moments = MOMENTS[:2] if store == "file" else MOMENTS
    everything = request.config.getoption("--all")
    for moment in moments if everything else [secrets.choice(moments)]:
        assert run(ground, "upload", AT_PART, moment).hit
    for nth in itertools.count(1) if everything else ():
        if not run(ground, "upload", nth, secrets.choice(moments)).hit:
            return
