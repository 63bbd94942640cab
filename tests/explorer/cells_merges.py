"""The named cells of merges: each adds to a row what it has read before, so that an update that is lost shows."""

from __future__ import annotations

from tests.explorer.actors import Actor
from tests.explorer.cast import FRESH, LOG, REWRITTEN, ROWS, play, writer
from tests.explorer.cells_services import COMPACTION, alone
from tests.explorer.engine import Cell
from tests.explorer.roles import CREATED
from tests.explorer.roles_merges import Add

MERGE, OTHER_MERGE = play("merge", 1, Add()), play("merge", 2, Add())
MERGE_ELSEWHERE = play("merge", 2, Add(1))
ADDED = (*REWRITTEN, Actor("first", 12, Add()))
"""A copy-on-write table with a row in one file group, at slot 1."""

MERGE_CELLS: tuple[Cell, ...] = (
    alone(MERGE, ROWS, faults_max=1, states_min=145),
    alone(play("rewriting merge", 1, Add()), ADDED, faults_max=1, states_min=145),
    Cell(name="merge, merge", actors=(MERGE, OTHER_MERGE), prelude=ROWS, all_succeed=True, states_min=180),
    Cell(name="merge, merge, both insert", actors=(MERGE, OTHER_MERGE), prelude=CREATED, all_succeed=True, states_min=145),
    Cell(name="merge, merge elsewhere", actors=(MERGE, MERGE_ELSEWHERE), prelude=ROWS, all_succeed=True, states_min=130),
    Cell(name="merge, write", actors=(MERGE, writer(3)), prelude=ROWS, all_succeed=True, states_min=67),
    Cell(name="merge, compaction", actors=(MERGE, COMPACTION), prelude=ROWS, all_succeed=True, states_min=145),
    Cell(name="merge, merge, copy on write", actors=(MERGE, OTHER_MERGE), prelude=ADDED, all_succeed=True, states_min=200),
    Cell(name="merge, merge, write", actors=(MERGE, OTHER_MERGE, writer(3)), prelude=ROWS, all_succeed=True, states_min=3_100),
    Cell(
        name="merge, merge: 1 fault at the log",
        actors=(MERGE, OTHER_MERGE),
        prelude=ROWS,
        faults_max=1,
        where=LOG,
        faults=FRESH,
        all_succeed=True,
        states_min=2_440,
    ),
)
