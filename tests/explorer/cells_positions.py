"""The named cells of positions: of two readers of one source one goes on, and rows and positions add up."""

from __future__ import annotations

from tests.explorer.cast import FRESH, LATE, LOG, ROWS, play, rollback, writer
from tests.explorer.engine import Cell
from tests.explorer.roles_positions import ReadSource
from tests.explorer.roles_services import Clean, Restore, Sweep

FIRST, SECOND = play("source reader", 1, ReadSource()), play("source reader", 2, ReadSource())
TWICE = play("source reader", 1, ReadSource(rounds=2))
BARE = play("source reader", 2, ReadSource(bare=True))
OTHER = play("other source reader", 2, ReadSource(source="other"))
POSITIONED = (*ROWS, play("former source reader", 13, ReadSource(rounds=2)))
"""Rows, and a position of version 1 at slot 3."""
LARGE = (("objcat.timeline.position", "STATE_INLINE_BYTES_MAX", 4),)
"""Every state is in an object of its own."""

POSITION_CELLS: tuple[Cell, ...] = (
    Cell(name="source, source", actors=(FIRST, SECOND), states_min=43),
    Cell(name="source, source: 1 fault", actors=(FIRST, SECOND), faults_max=1, states_min=800),
    Cell(name="source, source: 2 faults at the log", actors=(FIRST, SECOND), faults_max=2, where=LOG, states_min=3_540),
    Cell(name="source, source: 3 late requests", actors=(FIRST, SECOND), faults_max=3, faults=LATE, where=LOG, states_min=10_000),
    Cell(name="source, source, write", actors=(FIRST, SECOND, writer(3)), states_min=575),
    Cell(
        name="source, source, write: 1 fault, 1 crash at the log",
        actors=(FIRST, SECOND, writer(3)),
        faults_max=1,
        crashes_max=1,
        where=LOG,
        states_min=26_700,
        slow=True,
    ),
    Cell(name="source twice, source without rows: 1 fault at the log", actors=(TWICE, BARE), faults_max=1, where=LOG, states_min=2_400),
    Cell(name="source, other source: 1 fault", actors=(FIRST, OTHER), faults_max=1, states_min=765, all_succeed=True),
    Cell(
        name="source without retries, source: 2 faults at the log",
        actors=(play("source reader", 1, ReadSource(rounds=2), attempts_max=1), SECOND),
        faults_max=2,
        where=LOG,
        states_min=24_300,
        slow=True,
    ),
    Cell(name="source, source, rollback", actors=(FIRST, SECOND, rollback(3, 1)), states_min=1_420),
    Cell(
        name="source, source, large states: 1 fault, 1 crash",
        actors=(FIRST, SECOND),
        prelude=POSITIONED,
        settings=LARGE,
        faults_max=1,
        crashes_max=1,
        faults=FRESH,
        states_min=2_950,
    ),
    Cell(
        name="source alone, large states: 2 faults, 1 crash at the data",
        actors=(FIRST,),
        prelude=POSITIONED,
        settings=LARGE,
        faults_max=2,
        crashes_max=1,
        faults=FRESH,
        where=("t/data/",),
        states_min=320,
    ),
    Cell(
        name="source alone without retries, large states: 2 faults, 1 crash at the data",
        actors=(play("source reader", 1, ReadSource(), attempts_max=1),),
        prelude=POSITIONED,
        settings=LARGE,
        faults_max=2,
        crashes_max=1,
        faults=FRESH,
        where=("t/data/",),
        states_min=189,
    ),
    Cell(
        name="source, clean, large states: 1 fault",
        actors=(FIRST, play("clean", 7, Clean())),
        prelude=POSITIONED,
        settings=LARGE,
        faults_max=1,
        faults=FRESH,
        states_min=4_380,
    ),
    Cell(
        name="source, sweep, large states",
        actors=(FIRST, play("sweep", 4, Sweep())),
        prelude=POSITIONED,
        settings=LARGE,
        states_min=350,
    ),
    Cell(name="source, restore", actors=(FIRST, play("restore", 6, Restore(1))), prelude=POSITIONED, states_min=99),
    Cell(
        name="source, source, restore: 1 fault at the log",
        actors=(FIRST, SECOND, play("restore", 6, Restore(1))),
        prelude=POSITIONED,
        faults_max=1,
        where=LOG,
        states_min=33_100,
        slow=True,
    ),
)
