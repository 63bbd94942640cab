"""The named cells of tables with several ordering columns: rows are equal in the first one, and the second one decides."""

from __future__ import annotations

from objcat.metadata.table_spec import COPY_ON_WRITE
from tests.explorer.actors import Actor
from tests.explorer.cast import FRESH, LOG, play
from tests.explorer.cells_services import COMPACTION
from tests.explorer.engine import Cell
from tests.explorer.roles import WIDE_ORDERING, ChangeRow, CreateTable, Scan

FIRST = Actor("first", 12, ChangeRow(0, "50", is_wide=True))
WIDE = (Actor("creator", 15, CreateTable(ordering=WIDE_ORDERING)), FIRST)
"""A table with two ordering columns and log rows in one file group, at slot 1."""
WIDE_REWRITTEN = (Actor("creator", 15, CreateTable(COPY_ON_WRITE, ordering=WIDE_ORDERING)), FIRST)
"""The same, copy on write."""
NEWER, OLDER = play("newer write", 1, ChangeRow(0, "52", is_wide=True)), play("older write", 2, ChangeRow(0, "51", is_wide=True))
DELETE = play("delete", 2, ChangeRow(0, "51", deletes=True, is_wide=True))
READER = Actor("reader", 9, Scan())

ORDERING_CELLS: tuple[Cell, ...] = (
    Cell(name="two ordering columns: write, write", actors=(NEWER, OLDER), prelude=WIDE, all_succeed=True, states_min=80),
    Cell(
        name="two ordering columns: write, write, copy on write",
        actors=(NEWER, OLDER),
        prelude=WIDE_REWRITTEN,
        all_succeed=True,
        states_min=129,
    ),
    Cell(
        name="two ordering columns: write, delete, copy on write",
        actors=(NEWER, DELETE),
        prelude=WIDE_REWRITTEN,
        all_succeed=True,
        states_min=141,
    ),
    Cell(
        name="two ordering columns: write, write, compaction",
        actors=(NEWER, OLDER, COMPACTION),
        prelude=WIDE,
        all_succeed=True,
        states_min=2_456,
    ),
    Cell(
        name="two ordering columns: write, write, read",
        actors=(NEWER, OLDER, READER),
        prelude=WIDE,
        all_succeed=True,
        states_min=2_016,
        slow=True,
    ),
    Cell(
        name="two ordering columns: write, write, copy on write: 1 fault at the log",
        actors=(NEWER, OLDER),
        prelude=WIDE_REWRITTEN,
        faults_max=1,
        where=LOG,
        faults=FRESH,
        all_succeed=True,
        states_min=1_429,
        slow=True,
    ),
)
