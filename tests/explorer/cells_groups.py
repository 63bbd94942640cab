"""The cells of writers that commit together: each of them asks at once, and one claims a slot for all."""

from __future__ import annotations

from tests.explorer.actors import Actor
from tests.explorer.cast import READER, play, rollback, writer
from tests.explorer.engine import Cell, Settings
from tests.explorer.roles import CreateTable, Write
from tests.explorer.roles_services import Compact, Restore, Sweep

TOGETHER = (Actor("creator", 15, CreateTable(properties=(("group_commit", "on"),))),)
"""A new table whose writers commit together."""
ROWS_TOGETHER = (*TOGETHER, Actor("first", 12, Write((0,))))
"""And a row, at slot 1."""
FRESH_WRITER = Actor("fresh writer 4", 4, Write(refreshes=True))
MORE_TOGETHER = (*ROWS_TOGETHER, Actor("second", 13, Write((0, 1))))
"""And rows of both file groups, at slot 2."""
EAGER: Settings = (
    ("objcat.timeline.commit_group", "ASKS_AFTER_SLOTS", 0),
    ("objcat.timeline.commit_group", "CYCLE_LISTINGS", 2),
    ("objcat.timeline.commit_group", "LISTINGS_MAX", 1),
    ("objcat.timeline.commit_group", "LEADER_SLOTS", 0),
)
"""Everybody asks before the first try, and whoever is second looks once whether the first one is at work."""
HASTY: Settings = (*EAGER, ("objcat.timeline.commit_group", "CYCLE_LISTINGS", 0))
"""Nobody waits for the first one."""
BOTH = ("t/log/", "t/requests/")

GROUP_CELLS: tuple[Cell, ...] = (
    Cell(
        name="together: write alone: 2 faults, 1 crash",
        actors=(writer(1),),
        prelude=TOGETHER,
        settings=EAGER,
        faults_max=2,
        crashes_max=1,
        states_min=1_240,
    ),
    Cell(
        name="together: write alone, without retries: 2 faults",
        actors=(writer(1, attempts_max=1),),
        prelude=TOGETHER,
        settings=EAGER,
        faults_max=2,
        states_min=650,
    ),
    Cell(
        name="together: write, write: 1 crash",
        actors=(writer(1), writer(2)),
        prelude=TOGETHER,
        settings=HASTY,
        crashes_max=1,
        states_min=480,
    ),
    Cell(name="together: write, write", actors=(writer(1), writer(2)), prelude=TOGETHER, settings=EAGER, states_min=245, all_succeed=True),
    Cell(
        name="together: write, write: 1 fault",
        actors=(writer(1), writer(2)),
        prelude=TOGETHER,
        settings=EAGER,
        faults_max=1,
        states_min=10_300,
    ),
    Cell(
        name="together: write, write: 2 faults at the log and the requests",
        actors=(writer(1), writer(2)),
        prelude=TOGETHER,
        settings=EAGER,
        faults_max=2,
        where=BOTH,
        slow=True,
        states_min=146_600,
    ),
    Cell(
        name="together: write, write: 1 fault, 1 crash",
        actors=(writer(1), writer(2)),
        prelude=TOGETHER,
        settings=EAGER,
        faults_max=1,
        crashes_max=1,
        states_min=19_700,
    ),
    Cell(
        name="together: write, write in haste: 1 fault",
        actors=(writer(1), writer(2)),
        prelude=TOGETHER,
        settings=HASTY,
        faults_max=1,
        states_min=9_500,
    ),
    Cell(
        name="together: write, write elsewhere, write",
        actors=(writer(1), writer(2, 1), writer(3)),
        prelude=TOGETHER,
        settings=HASTY,
        states_min=48_700,
        all_succeed=True,
    ),
    Cell(
        name="together: write, write, rollback",
        actors=(writer(1), writer(2), rollback(3, 1)),
        prelude=TOGETHER,
        settings=HASTY,
        states_min=13_800,
    ),
    Cell(
        name="together: write, write, rollback: 1 fault at the log and the requests",
        actors=(writer(1), writer(2), rollback(3, 1)),
        prelude=TOGETHER,
        settings=HASTY,
        faults_max=1,
        where=BOTH,
        states_min=621_000,
        slow=True,
    ),
    Cell(
        name="together: write that resolves, write, without retries: 2 faults at the log and the requests",
        actors=(writer(1, resolves=True, attempts_max=1), writer(2, attempts_max=1)),
        prelude=TOGETHER,
        settings=EAGER,
        faults_max=2,
        where=BOTH,
        slow=True,
        states_min=195_800,
    ),
    Cell(
        name="together: write, write, compaction",
        actors=(writer(1), writer(2), play("compaction", 3, Compact())),
        prelude=ROWS_TOGETHER,
        settings=HASTY,
        states_min=8_300,
    ),
    Cell(
        name="together: write, write, read",
        actors=(writer(1), writer(2), READER),
        prelude=TOGETHER,
        settings=EAGER,
        states_min=6_300,
        all_succeed=True,
    ),
    Cell(
        name="together: write, write, fresh write",
        actors=(writer(1), writer(2), FRESH_WRITER),
        prelude=TOGETHER,
        settings=HASTY,
        states_min=58_300,
        all_succeed=True,
    ),
    Cell(
        name="together: write, fresh write, restore",
        actors=(writer(1), FRESH_WRITER, play("restore", 6, Restore(1))),
        prelude=MORE_TOGETHER,
        settings=HASTY,
        states_min=10_400,
    ),
    Cell(
        name="together: write, write, restore",
        actors=(writer(1), writer(2), play("restore", 6, Restore(1))),
        prelude=MORE_TOGETHER,
        settings=HASTY,
        states_min=8_100,
    ),
    Cell(
        name="together: write, write, restore: 1 fault at the log and the requests",
        actors=(writer(1), writer(2), play("restore", 6, Restore(1))),
        prelude=MORE_TOGETHER,
        settings=HASTY,
        faults_max=1,
        where=BOTH,
        states_min=379_000,
        slow=True,
    ),
    Cell(
        name="together: write, write, sweep: 1 crash",
        actors=(writer(1), writer(2), play("sweep", 7, Sweep())),
        prelude=TOGETHER,
        settings=HASTY,
        crashes_max=1,
        slow=True,
        states_min=133_500,
    ),
)
