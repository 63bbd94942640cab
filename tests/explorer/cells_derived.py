"""The named cells of derived tables: whoever refreshes at once, or dies meanwhile, each change of the source counts once."""

from __future__ import annotations

from objcat.timeline.entry import log_key
from tests.explorer.cast import FRESH, ROWS, play, rollback
from tests.explorer.engine import Cell
from tests.explorer.roles import KEYS, PREFIX, InTurn, RollBack
from tests.explorer.roles_derived import ChangeSource, CreateDerived, Refresh

FIRST, SECOND = play("refresh", 1, Refresh()), play("refresh", 2, Refresh())
TWICE = play("refresh", 1, Refresh(rounds=2))
WRITE, DELETE = play("write", 3, ChangeSource()), play("delete", 4, ChangeSource(KEYS[1], deletes=True))
NEW = (*ROWS, play("derived", 16, CreateDerived()))
"""A source with a row at slot 1, and a derived table at slot 2 that was never refreshed."""
BEHIND = (*NEW, play("former refresh", 13, Refresh()), play("change", 14, ChangeSource()))
"""It was refreshed at slot 3, and at slot 4 the row of the source changes."""
NEWEST = tuple(PREFIX + log_key(slot) for slot in range(3, 9))
"""The slots that the actors of a cell contend for. Faults of older ones are those of any reader."""
FIFTH = (PREFIX + log_key(5),)
"""The first of them after `BEHIND`."""

DERIVED_CELLS: tuple[Cell, ...] = (
    Cell(name="refresh, refresh", actors=(FIRST, SECOND), prelude=BEHIND, states_min=430),
    Cell(
        name="refresh, refresh: 1 fault at the slot",
        actors=(FIRST, SECOND),
        prelude=BEHIND,
        faults_max=1,
        faults=FRESH,
        where=FIFTH,
        states_min=4_650,
    ),
    Cell(
        name="first refresh, first refresh: 1 fault at the log",
        actors=(FIRST, SECOND),
        prelude=NEW,
        faults_max=1,
        where=NEWEST,
        states_min=6_300,
    ),
    Cell(name="refresh, write", actors=(FIRST, WRITE), prelude=BEHIND, states_min=125),
    Cell(name="refresh, write: 1 fault at the slot", actors=(FIRST, WRITE), prelude=BEHIND, faults_max=1, where=FIFTH, states_min=1_140),
    Cell(name="refresh twice, write", actors=(TWICE, WRITE), prelude=BEHIND, states_min=335),
    Cell(name="refresh twice, write, delete", actors=(TWICE, WRITE, DELETE), prelude=BEHIND, states_min=13_800, slow=True),
    Cell(name="refresh, refresh, write", actors=(FIRST, SECOND, WRITE), prelude=BEHIND, states_min=14_600, slow=True),
    Cell(
        name="refresh twice alone: 1 fault, 1 crash",
        actors=(TWICE,),
        prelude=BEHIND,
        faults_max=1,
        crashes_max=1,
        faults=FRESH,
        states_min=435,
    ),
    Cell(
        name="refresh, rollback, write: 1 crash at the log",
        actors=(FIRST, rollback(5, 1), WRITE),
        prelude=BEHIND,
        crashes_max=1,
        where=NEWEST,
        states_min=3_960,
    ),
    Cell(
        name="refresh, refresh, rollback: 1 crash at the slot",
        actors=(FIRST, SECOND, rollback(5, 1)),
        prelude=BEHIND,
        crashes_max=1,
        where=FIFTH,
        states_min=20_500,
        slow=True,
    ),
    Cell(
        name="refresh, refresh, rollback and write: 1 crash at the slot",
        actors=(FIRST, SECOND, play("rollback and write", 5, InTurn((RollBack((1,)), ChangeSource())))),
        prelude=BEHIND,
        crashes_max=1,
        where=FIFTH,
        states_min=105_900,
        slow=True,
    ),
)
