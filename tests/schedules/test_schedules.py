"""Schedules that the explorer searches, played on real SDKs and real servers.

Every row says who does what, what breaks, in which order the requests reach the server, and what everybody is told. The table is empty at
slot 0; A and B write key 1 unless a row says otherwise. Everything is audited in the end: dense slots, one outcome for each transaction,
what was acknowledged is there, what failed is not, and what was unknown is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest

import objcat
from devkit.handle import ServerHandle, StoreScheme
from tests.schedules.stage import EVERY_TRY, Broken, Does, Schedule, go, hold, land, play, run

SERVERS: Mapping[StoreScheme, str] = {"s3": "versitygw", "gs": "fake-gcs-server", "az": "azurite"}

INSERT, DELETE, SETTLE_A, SCAN, ONCE = Does("insert"), Does("delete"), Does("settle A"), Does("scan"), Does("upsert once")
SLOW = {"A": Does(slow=True)}


def alone(name: str, fault: Broken, told: str = "slot 1", **more: Any) -> Schedule:
    """One writer, one fault."""
    rows = {} if more.pop("fails", False) else {1: "A"}
    faults = [fault, *more.pop("more", ())]
    return Schedule(name=name, steps=more.pop("steps", [run("A")]), expect={"A": told}, rows=rows, faults=faults, **more)


ONE_WRITER = [
    alone("the slot's answer is lost", Broken("A", "drop_after", "slot")),
    alone("the slot's answer is lost every time", Broken("A", "drop_after", "slot", EVERY_TRY)),
    alone("the slot's request is lost", Broken("A", "drop_before", "slot")),
    alone(
        "the slot's request is lost every time",
        Broken("A", "drop_before", "slot", EVERY_TRY),
        "CommitUnknown -> rolled back at 1",
        fails=True,
    ),
    alone("the slot is written and the answer says 500", Broken("A", "status_after", "slot", code=500)),
    alone("the slot is written and the answer says 503", Broken("A", "status_after", "slot", code=503)),
    alone("500 instead of the slot", Broken("A", "status_before", "slot", code=500)),
    alone("503 instead of the slot", Broken("A", "status_before", "slot", code=503)),
    alone("409 instead of the slot", Broken("A", "status_before", "slot", code=409), servers=["s3", "az"]),
    alone("412 instead of the slot", Broken("A", "status_before", "slot", code=412)),
    alone("the slot's request arrives twice, and the client sees the second answer", Broken("A", "duplicate", "slot")),
    alone(
        "a copy of the slot's request lands after the retry has won",
        Broken("A", "delayed_landing", "slot"),
        steps=[run("A"), land("A")],
    ),
    alone(
        "a copy of the slot's request lands before the retry",
        Broken("A", "delayed_landing", "slot"),
        steps=[hold("A", "before", "slot", 2), land("A"), go("A")],
    ),
    alone(
        "every copy of the slot's request lands after its writer gave up",
        Broken("A", "delayed_landing", "slot", EVERY_TRY),
        "CommitUnknown -> slot 1",
        steps=[run("A"), land("A")],
    ),
    alone("the intent's answer is lost", Broken("A", "drop_after", "intent"), actors=SLOW),
    alone("the intent's request arrives twice", Broken("A", "duplicate", "intent"), actors=SLOW),
    alone("503 instead of the intent", Broken("A", "status_before", "intent", code=503), actors=SLOW),
    alone("the intent's request is lost every time", Broken("A", "drop_before", "intent", EVERY_TRY), actors=SLOW),
    alone(
        "every copy of the intent's request lands after its writer was done",
        Broken("A", "delayed_landing", "intent", EVERY_TRY),
        actors=SLOW,
        steps=[run("A"), land("A")],
    ),
    alone(
        "the answers to the data and to the intent are lost",
        Broken("A", "drop_after", "data"),
        "slot 1",
        actors=SLOW,
        more=[Broken("A", "drop_after", "intent")],
    ),
    alone("a data file's answer is lost", Broken("A", "drop_after", "data")),
    alone("a copy of a data file lands after the commit", Broken("A", "delayed_landing", "data"), steps=[run("A"), land("A")]),
    alone("a data file's request is lost every time", Broken("A", "drop_before", "data", EVERY_TRY), "NotWritten", fails=True),
]

TWO_WRITERS = [
    Schedule(
        name="B takes the slot while A's request is on the way",
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2", "B": "slot 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="A's request is lost, and B takes the slot before A asks again",
        faults=[Broken("A", "drop_before", "slot")],
        steps=[hold("A", "before", "slot", 2), run("B"), go("A")],
        expect={"A": "slot 2", "B": "slot 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="A's answer is lost, and B commits before A asks again",
        faults=[Broken("A", "drop_after", "slot")],
        steps=[hold("A", "before", "slot", 2), run("B"), go("A")],
        expect={"A": "slot 1", "B": "slot 2"},
        rows={1: "B"},
    ),
    Schedule(
        name="A's request is delayed, B takes the slot, and A's copy lands before A asks again",
        faults=[Broken("A", "delayed_landing", "slot")],
        steps=[hold("A", "before", "slot", 2), run("B"), land("A"), go("A")],
        expect={"A": "slot 2", "B": "slot 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="A gave up, B takes the slot, and A's copies land too late",
        faults=[Broken("A", "delayed_landing", "slot", EVERY_TRY)],
        steps=[run("A"), run("B"), land("A")],
        expect={"A": "CommitUnknown -> rolled back at 2", "B": "slot 1"},
        rows={1: "B"},
    ),
    Schedule(
        name="A gave up, its copies land, and B finds the slot taken",
        faults=[Broken("A", "delayed_landing", "slot", EVERY_TRY)],
        steps=[run("A"), hold("B", "before", "slot"), land("A"), go("B")],
        expect={"A": "CommitUnknown -> slot 1", "B": "slot 2"},
        rows={1: "B"},
    ),
    Schedule(
        name="A loses the slot to B, and the answer of the next one is lost",
        faults=[Broken("A", "drop_after", "slot", nth=2)],
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2", "B": "slot 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="A loses the slot to B, and reading who won is lost",
        faults=[Broken("A", "drop_after", "read", nth=2)],
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2", "B": "slot 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="B and C commit while A's request is on the way",
        steps=[hold("A", "before", "slot"), run("B"), run("C"), go("A")],
        expect={"A": "slot 3", "B": "slot 1", "C": "slot 2"},
        rows={1: "A"},
    ),
    Schedule(
        name="A loses two slots in turn",
        steps=[hold("A", "before", "slot"), run("B"), hold("A", "before", "slot"), run("C"), go("A")],
        expect={"A": "slot 3", "B": "slot 1", "C": "slot 2"},
        rows={1: "A"},
    ),
    Schedule(
        name="B deletes while A's request is on the way",
        actors={"B": DELETE},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2", "B": "slot 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="A's deletion comes after B's row",
        actors={"A": DELETE},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2", "B": "slot 1"},
        rows={},
    ),
    Schedule(
        name="a scan while A's answer is on the way sees A",
        actors={"R": SCAN},
        steps=[hold("A", "after", "slot"), run("R"), go("A")],
        expect={"A": "slot 1", "R": "rows {1: 'A'}"},
        rows={1: "A"},
    ),
    Schedule(
        name="a scan while A's request is on the way does not see A",
        actors={"R": SCAN},
        faults=[Broken("R", "drop_after", "read")],
        steps=[hold("A", "before", "slot"), run("R"), go("A")],
        expect={"A": "slot 1", "R": "rows {}"},
        rows={1: "A"},
    ),
]

FIRST_ROWS = [
    Schedule(
        name="two first inserts into one bucket",
        actors={"A": INSERT, "B": Does("insert", (2,))},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2 at attempt 2", "B": "slot 1"},
        rows={1: "A", 2: "B"},
    ),
    Schedule(
        name="two first inserts into one bucket, and B's answer is lost",
        actors={"A": INSERT, "B": Does("insert", (2,))},
        faults=[Broken("B", "drop_after", "slot")],
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2 at attempt 2", "B": "slot 1"},
        rows={1: "A", 2: "B"},
    ),
    Schedule(
        name="a first insert after a first upsert",
        actors={"A": INSERT, "B": Does("upsert", (2,))},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2 at attempt 2", "B": "slot 1"},
        rows={1: "A", 2: "B"},
    ),
    Schedule(
        name="a first upsert after a first insert",
        actors={"B": Does("insert", (2,))},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2", "B": "slot 1"},
        rows={1: "A", 2: "B"},
    ),
]

ROLLBACKS = [
    Schedule(
        name="A pauses between its data and its slot, and is rolled back",
        actors={"C": SETTLE_A},
        steps=[hold("A", "after", "data"), run("C"), go("A")],
        expect={"A": "WriterFenced", "C": "rolled back at 1"},
        rows={},
    ),
    Schedule(
        name="A is rolled back while its slot is on the way",
        actors={"C": SETTLE_A},
        steps=[hold("A", "before", "slot"), run("C"), go("A")],
        expect={"A": "WriterFenced", "C": "rolled back at 1"},
        rows={},
    ),
    Schedule(
        name="A is rolled back before its data is written",
        actors={"C": SETTLE_A, **SLOW},
        steps=[hold("A", "after", "intent"), run("C"), go("A")],
        expect={"A": "WriterFenced", "C": "rolled back at 1"},
        rows={},
    ),
    Schedule(
        name="A is rolled back after B took the slot that A wants",
        actors={"C": SETTLE_A},
        steps=[hold("A", "before", "slot"), run("B"), run("C"), go("A")],
        expect={"A": "WriterFenced", "B": "slot 1", "C": "rolled back at 2"},
        rows={1: "B"},
    ),
    Schedule(
        name="A is rolled back, and B commits before A wakes up",
        actors={"C": SETTLE_A},
        steps=[hold("A", "before", "slot"), run("C"), run("B"), go("A")],
        expect={"A": "WriterFenced", "B": "slot 2", "C": "rolled back at 1"},
        rows={1: "B"},
    ),
    Schedule(
        name="A's request is lost, and A is rolled back before it asks again",
        actors={"C": SETTLE_A},
        faults=[Broken("A", "drop_before", "slot")],
        steps=[hold("A", "before", "slot", 2), run("C"), go("A")],
        expect={"A": "WriterFenced", "C": "rolled back at 1"},
        rows={},
    ),
    Schedule(
        name="A gave up, is rolled back, and its copies land too late",
        actors={"C": SETTLE_A},
        faults=[Broken("A", "delayed_landing", "slot", EVERY_TRY)],
        steps=[run("A"), run("C"), land("A")],
        expect={"A": "CommitUnknown -> rolled back at 1", "C": "rolled back at 1"},
        rows={},
    ),
    Schedule(
        name="A's copies land while it is being rolled back",
        actors={"C": SETTLE_A},
        faults=[Broken("A", "delayed_landing", "slot", EVERY_TRY)],
        steps=[run("A"), hold("C", "before", "slot"), land("A"), go("C")],
        expect={"A": "CommitUnknown -> slot 1", "C": "committed at 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="A is settled while its answer is on the way",
        actors={"C": SETTLE_A},
        steps=[hold("A", "after", "slot"), run("C"), go("A")],
        expect={"A": "slot 1", "C": "committed at 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="A commits while it is being rolled back",
        actors={"C": SETTLE_A},
        steps=[hold("A", "before", "slot"), hold("C", "before", "slot"), go("A"), go("C")],
        expect={"A": "slot 1", "C": "committed at 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="the answer of the rollback's slot is lost",
        actors={"C": SETTLE_A},
        faults=[Broken("C", "drop_after", "slot")],
        steps=[hold("A", "before", "slot"), run("C"), go("A")],
        expect={"A": "WriterFenced", "C": "rolled back at 1"},
        rows={},
    ),
    Schedule(
        name="two roll A back at once",
        actors={"C": SETTLE_A, "D": SETTLE_A},
        steps=[hold("A", "before", "slot"), hold("C", "before", "slot"), run("D"), go("C"), go("A")],
        expect={"A": "WriterFenced", "C": "rolled back at 1", "D": "rolled back at 1"},
        rows={},
    ),
    Schedule(
        name="A wakes up between its rollback and the deletion of its files",
        actors={"C": SETTLE_A},
        steps=[hold("A", "before", "slot"), hold("C", "before", "delete"), go("A"), go("C")],
        expect={"A": "WriterFenced", "C": "rolled back at 1"},
        rows={},
    ),
    Schedule(
        name="the answer of A's intent is lost, and A is rolled back while it looks for it",
        actors={"C": SETTLE_A, **SLOW},
        faults=[Broken("A", "drop_after", "intent")],
        steps=[hold("A", "before", "look", 2), run("C"), go("A")],
        expect={"A": "WriterFenced", "C": "rolled back at 1"},
        rows={},
    ),
    Schedule(
        name="A's data lands after it was rolled back",
        actors={"C": SETTLE_A},
        steps=[hold("A", "before", "data"), run("C"), go("A")],
        expect={"A": "WriterFenced", "C": "rolled back at 1"},
        rows={},
    ),
]

REPLACEMENTS = [
    Schedule(
        name="A and B replace one file",
        kind="copy_on_write",
        actors={"B": Does("upsert", (2,))},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2 at attempt 2", "B": "slot 1"},
        rows={1: "A", 2: "B"},
    ),
    Schedule(
        name="A and B replace one file, and the answer of A's second try is lost",
        kind="copy_on_write",
        actors={"B": Does("upsert", (2,))},
        faults=[Broken("A", "drop_after", "slot", nth=2)],
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2 at attempt 2", "B": "slot 1"},
        rows={1: "A", 2: "B"},
    ),
    Schedule(
        name="A is rolled back while it does its file again",
        kind="copy_on_write",
        actors={"B": Does("upsert", (2,)), "C": SETTLE_A},
        steps=[hold("A", "before", "slot"), run("B"), hold("A", "before", "slot"), run("C"), go("A")],
        expect={"A": "WriterFenced", "B": "slot 1", "C": "rolled back at 2"},
        rows={2: "B"},
    ),
    Schedule(
        name="A deletes from the file that B replaced",
        kind="copy_on_write",
        actors={"A": DELETE, "B": Does("upsert", (1, 2))},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2 at attempt 2", "B": "slot 1"},
        rows={2: "B"},
    ),
]

LOCATED = [
    Schedule(
        name="A and B insert one key where keys are located",
        index=objcat.SimpleIndex(),
        actors={"A": INSERT, "B": INSERT},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2 at attempt 2", "B": "slot 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="A and B insert one key where keys are located, and the answer of A's second try is lost",
        index=objcat.SimpleIndex(),
        kind="copy_on_write",
        actors={"A": INSERT, "B": INSERT},
        faults=[Broken("A", "drop_after", "slot", nth=2)],
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2 at attempt 2", "B": "slot 1"},
        rows={1: "A"},
    ),
    Schedule(
        name="A is rolled back while it looks again where its key lives",
        index=objcat.SimpleIndex(),
        actors={"A": INSERT, "B": INSERT, "C": SETTLE_A},
        steps=[hold("A", "before", "slot"), run("B"), hold("A", "before", "slot"), run("C"), go("A")],
        expect={"A": "WriterFenced", "B": "slot 1", "C": "rolled back at 2"},
        rows={1: "B"},
    ),
    Schedule(
        name="A deletes a key that is nowhere yet, which B inserts",
        index=objcat.SimpleIndex(),
        actors={"A": DELETE, "B": INSERT},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2 at attempt 2", "B": "slot 1"},
        rows={},
    ),
    Schedule(
        name="A and B insert keys of their own where keys are located",
        index=objcat.SimpleIndex(),
        actors={"A": INSERT, "B": Does("insert", (2,))},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "slot 2", "B": "slot 1"},
        rows={1: "A", 2: "B"},
    ),
]

ONCE_ONLY = [
    Schedule(
        name="an application writes its version again after its copies landed",
        actors={"A": ONCE, "B": ONCE},
        faults=[Broken("A", "delayed_landing", "slot", EVERY_TRY)],
        steps=[run("A"), land("A"), run("B")],
        expect={"A": "CommitUnknown -> slot 1", "B": "already applied"},
        rows={1: "A"},
    ),
    Schedule(
        name="two of an application write the same version at once",
        actors={"A": ONCE, "B": ONCE},
        steps=[hold("A", "before", "slot"), run("B"), go("A")],
        expect={"A": "already applied", "B": "slot 1"},
        rows={1: "B"},
    ),
]

SCHEDULES = [*ONE_WRITER, *TWO_WRITERS, *FIRST_ROWS, *ROLLBACKS, *REPLACEMENTS, *LOCATED, *ONCE_ONLY]


Stages = Callable[[StoreScheme], tuple[ServerHandle, Any]]


@pytest.fixture(scope="module")
def stages(servers: Callable[[str], ServerHandle]) -> Stages:
    """A server with a bucket for all schedules, and the lake of that bucket."""

    @cache
    def stage(scheme: StoreScheme) -> tuple[ServerHandle, Any]:
        store = servers(SERVERS[scheme]).fresh_bucket()
        return store, objcat.connect(store.url, dict(store.options))

    return stage


def cases() -> Iterator[Any]:
    """Every row on every server. What breaks nothing is the same for all SDKs, and runs on one server unless --all is given."""
    for schedule in SCHEDULES:
        for scheme in schedule.servers:
            marks = [pytest.mark.tier("all")] if not schedule.faults and scheme != "s3" else []
            yield pytest.param(schedule, scheme, id=f"{schedule.name}-{scheme}", marks=marks)


@pytest.mark.parametrize(("schedule", "scheme"), [*cases()])
def test_schedule(stages: Stages, schedule: Schedule, scheme: StoreScheme) -> None:
    play(schedule, *stages(scheme))


def test_a_row_that_expects_something_else_fails(stages: Stages) -> None:
    def row(**changes: Any) -> Schedule:
        sound: dict[str, Any] = {"name": "a row", "steps": [run("A")], "expect": {"A": "slot 1"}, "rows": {1: "A"}}
        return Schedule(**{**sound, **changes})

    stage = stages("s3")
    play(row(), *stage)
    with pytest.raises(AssertionError, match="they were told"):
        play(row(expect={"A": "WriterFenced"}), *stage)
    with pytest.raises(AssertionError, match=r"found \{1: 'A'\}"):
        play(row(rows={}), *stage)
    with pytest.raises(AssertionError, match="never fired"):
        play(row(faults=[Broken("A", "drop_after", "slot", nth=2)]), *stage)
    with pytest.raises(AssertionError, match=r"ended with 'slot 1' before"):
        play(row(steps=[hold("A", "before", "slot", 2), go("A")]), *stage)
