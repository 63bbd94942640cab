"""The named cells of keys that move between partitions: whoever else moves them or changes them in place, each is in one."""

from __future__ import annotations

from objcat.metadata.table_spec import COPY_ON_WRITE
from tests.explorer.actors import Actor
from tests.explorer.cast import FRESH, LOG, play
from tests.explorer.engine import Cell
from tests.explorer.roles_moves import CreateMoving, Move, Replace

EMPTY = (Actor("creator", 15, CreateMoving()),)
"""A new table."""
PLACED = (*EMPTY, Actor("first", 12, Move("a0")))
"""With a row, at slot 1."""
REPLACED = (Actor("creator", 15, CreateMoving(COPY_ON_WRITE)), Actor("first", 12, Move("a0")))
"""The same in a copy-on-write table."""
MEASURED = (Actor("creator", 15, CreateMoving(ordering="v")), Actor("first", 12, Move("a0")))
"""The same in a table in which the greater value wins, so that a row that comes late stays where it is."""
MOVES = (play("move", 1, Move("b1")), play("move", 2, Move("c2")))
IN_PLACE = play("update", 2, Move("a2"))
KNOWN = (Actor("creator", 15, CreateMoving(index="record")), Actor("first", 12, Move("a0")))
"""As `PLACED`, with a record index."""
REPLACEMENT = play("replacement", 1, Replace("b1"))
"""Its key comes from the partition of `IN_PLACE`."""

FLAT = (Actor("creator", 15, CreateMoving(moves=False)), Actor("first", 12, Move("a0")))
"""A table without partitions, whose rows all have the first letter of one: so a replacement of that partition is one of the table."""
FLAT_REWRITTEN = (Actor("creator", 15, CreateMoving(COPY_ON_WRITE, moves=False)), Actor("first", 12, Move("a0")))
"""The same, copy on write."""
REPLACEMENT_OF_ALL = play("replacement", 1, Replace("a1"))
BESIDE = (play("other row", 2, Move("a2", bucket=1)), play("update", 3, Move("a3")))

MOVE_CELLS: tuple[Cell, ...] = (
    Cell(name="move, move", actors=MOVES, prelude=PLACED, all_succeed=True, states_min=167),
    Cell(name="move, move: copy on write", actors=MOVES, prelude=REPLACED, all_succeed=True, states_min=188),
    Cell(name="move, move: one comes late", actors=MOVES, prelude=MEASURED, all_succeed=True, states_min=164),
    Cell(name="move, update in place", actors=(MOVES[0], IN_PLACE), prelude=PLACED, all_succeed=True, states_min=152),
    Cell(name="two first writes to two partitions", actors=MOVES, prelude=EMPTY, all_succeed=True, states_min=115),
    Cell(name="replacement, move", actors=(REPLACEMENT, MOVES[1]), prelude=PLACED, all_succeed=True, states_min=378),
    Cell(name="replacement, update in place", actors=(REPLACEMENT, IN_PLACE), prelude=REPLACED, all_succeed=True, states_min=399),
    Cell(
        name="replacement, row of the partition: record",
        actors=(REPLACEMENT, play("place", 2, Move("b2", bucket=1))),
        prelude=KNOWN,
        all_succeed=True,
        states_min=387,
    ),
    Cell(
        name="replacement, replacement",
        actors=(REPLACEMENT, play("replacement", 2, Replace("a2"))),
        prelude=MEASURED,
        all_succeed=True,
        states_min=730,
    ),
    # Files of a replacement that reads nothing stay as they are when others come first: only what ends is said anew.
    Cell(name="replacement of all, other row", actors=(REPLACEMENT_OF_ALL, BESIDE[0]), prelude=FLAT, all_succeed=True, states_min=300),
    Cell(
        name="replacement of all, update", actors=(REPLACEMENT_OF_ALL, BESIDE[1]), prelude=FLAT_REWRITTEN, all_succeed=True, states_min=330
    ),
    Cell(
        name="replacement of all, replacement of all",
        actors=(REPLACEMENT_OF_ALL, play("replacement", 2, Replace("a4", bucket=1))),
        prelude=FLAT,
        all_succeed=True,
        states_min=650,
    ),
    Cell(
        name="replacement of all, other row, update",
        actors=(REPLACEMENT_OF_ALL, *BESIDE),
        prelude=FLAT,
        all_succeed=True,
        states_min=12_500,
        slow=True,
    ),
    Cell(
        name="replacement of all, other row: 1 fault at the log",
        actors=(REPLACEMENT_OF_ALL, BESIDE[0]),
        prelude=FLAT,
        faults_max=1,
        where=LOG,
        faults=FRESH,
        all_succeed=True,
        states_min=5_200,
        slow=True,
    ),
    Cell(
        name="move, move: 1 fault at the log",
        actors=MOVES,
        prelude=PLACED,
        faults_max=1,
        where=LOG,
        faults=FRESH,
        all_succeed=True,
        states_min=1_920,
        slow=True,
    ),
)
