"""The named cells of blocks: what a range holds at the slot of a block is what the block has put there, whoever wrote meanwhile."""

from __future__ import annotations

from dataclasses import replace

from tests.explorer.actors import Actor
from tests.explorer.cast import FRESH, LOG, MORE_ROWS, READER, REWRITTEN, ROWS, play, rollback, writer
from tests.explorer.cells_services import COMPACTION, alone
from tests.explorer.engine import Cell
from tests.explorer.roles import KEYS, ChangeRow
from tests.explorer.roles_blocks import LATER, RunBlock
from tests.explorer.roles_services import Clean, Restore

LONE = play("range", 1, RunBlock(lone=True))
BLOCK, OTHER_BLOCK = play("block", 1, RunBlock()), play("block", 2, RunBlock())
TRUNCATION = play("truncating block", 1, RunBlock(truncates=True))
INSIDE = play("write inside", 3, ChangeRow(LATER, "5."))
"""Writes a row of the range in a file group where blocks find none, and lone ones write nothing."""
OVERWRITES = play("write", 3, ChangeRow(KEYS[0], "5."))
"""Overwrites the row that a block puts there."""
REWRITTEN_ROWS = (*REWRITTEN, Actor("first", 12, ChangeRow(KEYS[0], "1.")), Actor("second", 13, ChangeRow(KEYS[1], "2.")))
"""A copy-on-write table with a row in each file group, at slot 2."""
BOUNDS = (("tests.explorer.toyfiles", "BOUNDED", True),)
"""Files say between which values their rows are, so a block may tell that a writer was elsewhere."""


def _bounded(cell: Cell) -> Cell:
    return replace(cell, name=f"{cell.name}, with bounds", settings=BOUNDS)


_BESIDE = (
    Cell(name="block, write", actors=(BLOCK, writer(3)), prelude=MORE_ROWS, all_succeed=True, states_min=51),
    Cell(name="block, write elsewhere", actors=(BLOCK, writer(3, 1)), prelude=MORE_ROWS, all_succeed=True, states_min=45),
    Cell(name="block, write inside", actors=(BLOCK, INSIDE), prelude=MORE_ROWS, all_succeed=True, states_min=117),
    Cell(
        name="block, write inside, write elsewhere",
        actors=(BLOCK, INSIDE, writer(4, 1)),
        prelude=MORE_ROWS,
        all_succeed=True,
        states_min=1_226,
    ),
    Cell(name="range, write inside", actors=(LONE, INSIDE), prelude=MORE_ROWS, all_succeed=True, states_min=104),
    Cell(name="range, write elsewhere", actors=(LONE, writer(3, 1)), prelude=MORE_ROWS, all_succeed=True, states_min=40),
    Cell(name="block, block", actors=(BLOCK, OTHER_BLOCK), prelude=MORE_ROWS, all_succeed=True, states_min=94),
)

BLOCK_CELLS: tuple[Cell, ...] = (
    *_BESIDE,
    *map(_bounded, _BESIDE),
    alone(BLOCK, MORE_ROWS, faults_max=1, states_min=115),
    alone(play("truncating block", 1, RunBlock(truncates=True)), MORE_ROWS, faults_max=1, states_min=49),
    Cell(name="block, compaction", actors=(BLOCK, COMPACTION), prelude=MORE_ROWS, all_succeed=True, states_min=180),
    Cell(name="block, clean", actors=(BLOCK, play("clean", 7, Clean())), prelude=MORE_ROWS, states_min=95),
    Cell(name="block, restore", actors=(BLOCK, play("restore", 6, Restore(1))), prelude=MORE_ROWS, states_min=164),
    Cell(name="block, write, copy on write", actors=(BLOCK, OVERWRITES), prelude=REWRITTEN_ROWS, all_succeed=True, states_min=166),
    Cell(name="block, write inside, copy on write", actors=(BLOCK, INSIDE), prelude=REWRITTEN_ROWS, all_succeed=True, states_min=171),
    Cell(name="block, rollback", actors=(BLOCK, rollback(5, 1)), prelude=MORE_ROWS, states_min=198),
    Cell(name="block, write, read", actors=(BLOCK, writer(3), READER), prelude=MORE_ROWS, all_succeed=True, states_min=2_160, slow=True),
    Cell(name="truncating block, write", actors=(TRUNCATION, writer(3, 0, 1)), prelude=MORE_ROWS, all_succeed=True, states_min=33),
    Cell(name="truncating block, write inside", actors=(TRUNCATION, INSIDE), prelude=MORE_ROWS, all_succeed=True, states_min=75),
    Cell(name="truncating block, first write elsewhere", actors=(TRUNCATION, writer(3, 1)), prelude=ROWS, all_succeed=True, states_min=33),
    Cell(name="truncating block, block", actors=(TRUNCATION, OTHER_BLOCK), prelude=MORE_ROWS, all_succeed=True, states_min=66),
    Cell(name="truncating block, compaction", actors=(TRUNCATION, COMPACTION), prelude=MORE_ROWS, all_succeed=True, states_min=117),
    Cell(
        name="range, write inside, with bounds: 1 fault at the log",
        actors=(LONE, INSIDE),
        prelude=MORE_ROWS,
        settings=BOUNDS,
        faults_max=1,
        where=LOG,
        faults=FRESH,
        all_succeed=True,
        states_min=1_108,
    ),
    Cell(
        name="block and resolve, write, without retries: 1 fault at the log",
        actors=(play("block", 1, RunBlock(resolves=True), attempts_max=1), writer(3)),
        prelude=MORE_ROWS,
        faults_max=1,
        where=LOG,
        faults=FRESH,
        states_min=945,
    ),
)
