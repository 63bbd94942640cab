"""The named cells of tables whose files are rewritten by every write, and of transactions over two of them."""

from __future__ import annotations

from objcat.tasks.model import Operation
from tests.explorer.cast import (
    COUNTER_PAIR,
    COUNTERS,
    FRESH,
    LOG,
    ORDERED,
    PAIR,
    READER,
    RECOUNTED,
    REWRITTEN,
    inserter,
    play,
    rollback,
    writer,
)
from tests.explorer.cells_services import CLEAN, COLD_READER, COMPACTION, alone
from tests.explorer.engine import Cell
from tests.explorer.roles import ChangeRow, Transact

TRANSACTION = play("transaction", 1, Transact())
OTHER_TRANSACTION = play("transaction", 2, Transact())
ONE_OF_TWO = play("writer", 2, Transact((1,)))
INSERTS = (play("transaction", 1, Transact((0, 1), Operation.INSERT)), play("transaction", 2, Transact((0, 1), Operation.INSERT)))
DELETE = play("delete", 1, ChangeRow(0, "7", deletes=True))
"""Of a row that is there: its file group is rewritten, and the delete stays beside it."""
LONE_DELETE = play("delete", 1, ChangeRow(3, "7", deletes=True))
"""Of a row that is not there: only the delete is written."""
LATE_WRITE = play("late write", 2, ChangeRow(3, "6"))
"""Comes too late where the delete of 7 came first."""

REWRITE_CELLS: tuple[Cell, ...] = (
    alone(writer(1, 0, 1), COUNTERS, states_min=722),
    alone(inserter(1, 0, 1), REWRITTEN, states_min=576),
    alone(TRANSACTION, COUNTER_PAIR, states_min=576),
    alone(DELETE, ORDERED, faults_max=1, states_min=180),
    alone(DELETE, ORDERED, states_min=1_460, slow=True),
    # Copy on write: what a write adds to a row is computed from what it reads.
    Cell(name="rewrite, rewrite", actors=(writer(1), writer(2)), prelude=COUNTERS, all_succeed=True, states_min=58),
    Cell(
        name="rewrite of two file groups, rewrite", actors=(writer(1, 0, 1), writer(2)), prelude=COUNTERS, all_succeed=True, states_min=71
    ),
    Cell(
        name="rewrite, rewrite: 1 fault at the log",
        actors=(writer(1), writer(2)),
        prelude=COUNTERS,
        where=LOG,
        faults_max=1,
        faults=FRESH,
        all_succeed=True,
        states_min=594,
    ),
    Cell(
        name="rewrite, rewrite: 2 faults at the log",
        actors=(writer(1), writer(2)),
        prelude=COUNTERS,
        faults_max=2,
        where=LOG,
        faults=FRESH,
        states_min=4_620,
        slow=True,
    ),
    Cell(
        name="rewrite, rewrite, rewrite",
        actors=(writer(1), writer(2), writer(3)),
        prelude=COUNTERS,
        all_succeed=True,
        states_min=1_650,
        slow=True,
    ),
    Cell(
        name="rewrite, rollback: 1 fault at the log",
        actors=(writer(1), rollback(3, 1)),
        prelude=COUNTERS,
        faults_max=1,
        where=LOG,
        faults=FRESH,
        states_min=736,
    ),
    Cell(name="first rewrite, first rewrite", actors=(writer(1), writer(2)), prelude=REWRITTEN, all_succeed=True, states_min=48),
    Cell(name="rewrite, rewrite, read", actors=(writer(1), writer(2), READER), prelude=COUNTERS, all_succeed=True, states_min=1_520),
    # Two tables of one log: what a transaction adds to a row of each is computed from what it reads.
    Cell(name="transaction, write", actors=(TRANSACTION, ONE_OF_TWO), prelude=COUNTER_PAIR, all_succeed=True, states_min=54),
    *(
        Cell(
            name=f"transaction, write: 1 {what} at the slot that both want",
            actors=(TRANSACTION, ONE_OF_TWO),
            prelude=COUNTER_PAIR,
            where=("t/log/00000000000000000002",),
            faults=FRESH,
            faults_max=faults_max,
            crashes_max=1 - faults_max,
            all_succeed=bool(faults_max),
            states_min=412 if faults_max else 109,
        )
        for what, faults_max in (("fault", 1), ("crash", 0))
    ),
    Cell(name="transaction, transaction", actors=(TRANSACTION, OTHER_TRANSACTION), prelude=COUNTER_PAIR, all_succeed=True, states_min=65),
    Cell(name="transaction, transaction, inserts", actors=INSERTS, prelude=PAIR, all_succeed=True, states_min=58),
    Cell(
        name="transaction, write, read",
        actors=(TRANSACTION, ONE_OF_TWO, COLD_READER),
        prelude=COUNTER_PAIR,
        all_succeed=True,
        states_min=535,
    ),
    # Rewrites beside a clean, which takes the files that they are computed from.
    Cell(name="rewrite, clean", actors=(writer(1), CLEAN), prelude=RECOUNTED, all_succeed=True, states_min=133),
    Cell(name="rewrite, rewrite, clean", actors=(writer(1), writer(2), CLEAN), prelude=RECOUNTED, all_succeed=True, states_min=2_970),
    Cell(
        name="rewrite, clean: 1 fault, 1 crash at the log",
        actors=(writer(1), CLEAN),
        prelude=RECOUNTED,
        faults_max=1,
        crashes_max=1,
        where=LOG,
        faults=FRESH,
        states_min=2_890,
    ),
    Cell(
        name="rewrite, rewrite, clean: 1 fault at the log",
        actors=(writer(1), writer(2), CLEAN),
        prelude=RECOUNTED,
        faults_max=1,
        where=LOG,
        faults=FRESH,
        states_min=72_100,
        slow=True,
    ),
    # Deletes that are measured by a value, beside a compaction, which must keep them.
    Cell(name="ordered delete, compaction", actors=(DELETE, COMPACTION), prelude=ORDERED, all_succeed=True, states_min=293),
    Cell(name="lone ordered delete, compaction", actors=(LONE_DELETE, COMPACTION), prelude=ORDERED, all_succeed=True, states_min=270),
    Cell(
        name="lone ordered delete, late write, compaction",
        actors=(LONE_DELETE, LATE_WRITE, COMPACTION),
        prelude=ORDERED,
        all_succeed=True,
        states_min=8_090,
    ),
    Cell(
        name="ordered delete, compaction: 1 fault, 1 crash at the log",
        actors=(DELETE, COMPACTION),
        prelude=ORDERED,
        faults_max=1,
        crashes_max=1,
        where=LOG,
        faults=FRESH,
        states_min=5_690,
        slow=True,
    ),
)
