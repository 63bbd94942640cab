"""The named cells of writers, rollbacks and readers; and all cells there are. A cell is a few actors and a budget; see `Cell`."""

from __future__ import annotations

from dataclasses import replace

from tests.explorer.cast import (
    CARELESS_READER,
    CLOCK,
    CREATE_1,
    CREATE_2,
    ETAGS,
    FRESH,
    HOUR_MS,
    LATE,
    LOG,
    READER,
    inserter,
    rollback,
    writer,
)
from tests.explorer.cells_lake import LAKE_CELLS
from tests.explorer.cells_services import SERVICE_CELLS
from tests.explorer.engine import Cell

WRITER_CELLS: tuple[Cell, ...] = (
    # Two writers, one home.
    Cell(name="write, write", actors=(writer(1), writer(2)), states_min=49, all_succeed=True),
    Cell(name="write, write: 1 fault", actors=(writer(1), writer(2)), faults_max=1, states_min=1_440, all_succeed=True),
    Cell(name="write, write: 2 faults", actors=(writer(1), writer(2)), faults_max=2, states_min=27_000, all_succeed=True),
    Cell(name="write, write: 1 fault, 1 crash", actors=(writer(1), writer(2)), faults_max=1, crashes_max=1, states_min=3_440),
    Cell(name="write, write: 3 late requests", actors=(writer(1), writer(2)), faults_max=3, faults=LATE, where=LOG, states_min=9_000),
    Cell(
        name="write, write without retries: 2 faults",
        actors=(writer(1, attempts_max=1), writer(2, attempts_max=1)),
        faults_max=2,
        states_min=17_000,
    ),
    Cell(name="write, write: 3 faults", actors=(writer(1), writer(2)), faults_max=3, states_min=363_000, slow=True),
    Cell(name="write, write, etags of content: 1 fault", actors=(writer(1), writer(2)), faults_max=1, profile=ETAGS, states_min=1_440),
    Cell(
        name="write, write, store with a clock, an hour ahead and behind: 1 fault",
        actors=(writer(1, clock_ms=HOUR_MS), writer(2, clock_ms=-HOUR_MS)),
        faults_max=1,
        profile=CLOCK,
        states_min=1_460,
    ),
    Cell(
        name="write, write, store without a clock, an hour ahead and behind: 1 fault",
        actors=(writer(1, clock_ms=HOUR_MS), writer(2, clock_ms=-HOUR_MS)),
        faults_max=1,
        states_min=1_440,
    ),
    Cell(
        name="write, write, store with a clock: 2 faults, 1 crash at the intents",
        actors=(writer(1, clock_ms=HOUR_MS), writer(2)),
        faults_max=2,
        crashes_max=1,
        where=("t/intents/",),
        profile=CLOCK,
        states_min=9_000,
        slow=True,
    ),
    Cell(
        name="write alone, store with a clock: 2 faults, 1 crash",
        actors=(writer(1, clock_ms=HOUR_MS),),
        faults_max=2,
        crashes_max=1,
        profile=CLOCK,
        states_min=300,
    ),
    # Two writers, disjoint homes.
    Cell(name="write, write elsewhere", actors=(writer(1), writer(2, 1)), states_min=49, all_succeed=True),
    Cell(name="write, write elsewhere: 1 fault", actors=(writer(1), writer(2, 1)), faults_max=1, states_min=1_440),
    Cell(name="write, write elsewhere: 2 faults", actors=(writer(1), writer(2, 1)), faults_max=2, states_min=27_000, slow=True),
    # Three writers.
    Cell(name="write, write, write", actors=(writer(1), writer(2), writer(3)), states_min=780, all_succeed=True),
    Cell(
        name="write, write, write: 1 fault at the log", actors=(writer(1), writer(2), writer(3)), faults_max=1, where=LOG, states_min=19_000
    ),
    Cell(name="write, write, write: 1 fault", actors=(writer(1), writer(2), writer(3)), faults_max=1, states_min=43_000, slow=True),
    Cell(
        name="write, write, write: 2 faults at the log",
        actors=(writer(1), writer(2), writer(3)),
        faults_max=2,
        where=LOG,
        states_min=300_000,
        slow=True,
    ),
    # First base files.
    Cell(name="insert, insert", actors=(inserter(1), inserter(2)), states_min=98, all_succeed=True),
    Cell(name="insert, insert: 1 fault", actors=(inserter(1), inserter(2)), faults_max=1, states_min=3_400, all_succeed=True),
    Cell(
        name="insert, insert: 2 faults at the log", actors=(inserter(1), inserter(2)), faults_max=2, where=LOG, slow=True, states_min=16_000
    ),
    Cell(
        name="insert, insert: 1 fault, 1 crash at the log",
        actors=(inserter(1), inserter(2)),
        where=LOG,
        faults_max=1,
        crashes_max=1,
        states_min=2_180,
    ),
    Cell(name="insert, insert: 2 faults", actors=(inserter(1), inserter(2)), faults_max=2, states_min=103_000, slow=True),
    Cell(
        name="insert, insert elsewhere: 1 fault",
        actors=(inserter(1), inserter(2, 1)),
        faults_max=1,
        states_min=2_370,
        all_succeed=True,
        slow=True,
    ),
    Cell(name="insert of two homes, write, write", actors=(inserter(1, 0, 1), writer(2), writer(3, 1)), states_min=1_600, all_succeed=True),
    Cell(name="insert, write: 1 fault", actors=(inserter(1), writer(2)), faults_max=1, states_min=2_790, all_succeed=True),
    Cell(name="insert, write: 2 faults", actors=(inserter(1), writer(2)), faults_max=2, states_min=64_000, slow=True),
    # Creation.
    Cell(name="create, create", actors=(CREATE_1, CREATE_2), prelude=(), states_min=32),
    Cell(name="create, create: 2 faults at the log", actors=(CREATE_1, CREATE_2), prelude=(), faults_max=2, where=LOG, states_min=3_000),
    Cell(name="create, create: 2 faults", actors=(CREATE_1, CREATE_2), prelude=(), faults_max=2, states_min=12_000, slow=True),
    Cell(name="create, create: 1 fault, 1 crash", actors=(CREATE_1, CREATE_2), prelude=(), faults_max=1, crashes_max=1, states_min=1_580),
    Cell(
        name="create, create without retries: 2 faults, 1 crash",
        actors=(replace(CREATE_1, attempts_max=1), replace(CREATE_2, attempts_max=1)),
        prelude=(),
        faults_max=2,
        crashes_max=1,
        states_min=8_000,
    ),
    Cell(name="create, create: 3 faults", actors=(CREATE_1, CREATE_2), prelude=(), faults_max=3, states_min=124_000, slow=True),
    # Rollbacks.
    Cell(name="write, rollback", actors=(writer(1), rollback(3, 1)), states_min=107),
    Cell(name="write, rollback: 2 faults at the log", actors=(writer(1), rollback(3, 1)), faults_max=2, where=LOG, states_min=11_500),
    Cell(name="write, rollback: 2 faults", actors=(writer(1), rollback(3, 1)), faults_max=2, states_min=62_000, slow=True),
    Cell(name="write, rollback: 1 fault", actors=(writer(1), rollback(3, 1)), faults_max=1, states_min=3_510),
    Cell(name="write, rollback: 1 fault, 1 crash", actors=(writer(1), rollback(3, 1)), faults_max=1, crashes_max=1, states_min=5_000),
    Cell(
        name="write, rollback: 3 late requests", actors=(writer(1), rollback(3, 1)), faults_max=3, faults=LATE, where=LOG, states_min=24_000
    ),
    Cell(
        name="write, rollback without retries: 2 faults, 1 crash",
        actors=(writer(1, attempts_max=1), replace(rollback(3, 1), attempts_max=1)),
        faults_max=2,
        crashes_max=1,
        states_min=37_000,
        slow=True,
    ),
    Cell(
        name="write, rollback without retries: 2 faults",
        actors=(writer(1, attempts_max=1), replace(rollback(3, 1), attempts_max=1)),
        faults_max=2,
        states_min=28_410,
    ),
    Cell(name="insert, rollback: 1 fault", actors=(inserter(1), rollback(3, 1)), faults_max=1, states_min=3_350),
    Cell(name="write, write, rollback", actors=(writer(1), writer(2), rollback(3, 1)), states_min=2_810),
    Cell(
        name="write, write, rollback: 1 fault, 1 crash at the log",
        actors=(writer(1), writer(2), rollback(3, 1)),
        faults_max=1,
        crashes_max=1,
        where=LOG,
        states_min=108_000,
    ),
    Cell(
        name="write, write, rollback: 1 fault, 1 crash",
        actors=(writer(1), writer(2), rollback(3, 1)),
        faults_max=1,
        crashes_max=1,
        states_min=408_000,
        slow=True,
    ),
    Cell(name="write, rollback, rollback", actors=(writer(1), rollback(3, 1), rollback(4, 1)), states_min=5_000),
    Cell(
        name="write, rollback, rollback: 1 crash at the log",
        actors=(writer(1), rollback(3, 1), rollback(4, 1)),
        crashes_max=1,
        where=LOG,
        states_min=8_110,
    ),
    Cell(
        name="write, rollback, rollback: 1 fault at the log",
        actors=(writer(1), rollback(3, 1), rollback(4, 1)),
        faults_max=1,
        where=LOG,
        states_min=116_000,
        slow=True,
    ),
    Cell(
        name="write, rollback, rollback: 1 fault",
        actors=(writer(1), rollback(3, 1), rollback(4, 1)),
        faults_max=1,
        states_min=312_000,
        slow=True,
    ),
    Cell(name="write, rollback, rollback of both", actors=(writer(1), rollback(3, 1), rollback(4, 1, 3)), states_min=9_000),
    # Writers who ask for the outcome that they do not know.
    Cell(
        name="write and resolve, write, without retries: 2 faults",
        actors=(writer(1, resolves=True, attempts_max=1), writer(2, attempts_max=1)),
        faults_max=2,
        states_min=29_000,
    ),
    Cell(
        name="write and resolve, rollback, without retries: 2 faults at the log",
        actors=(writer(1, resolves=True, attempts_max=1), rollback(3, 1)),
        faults_max=2,
        where=LOG,
        states_min=27_000,
    ),
    Cell(
        name="write and resolve, rollback, without retries: 2 faults",
        actors=(writer(1, resolves=True, attempts_max=1), rollback(3, 1)),
        faults_max=2,
        slow=True,
        states_min=90_000,
    ),
    Cell(
        name="write and resolve, without retries: 2 faults, 1 crash",
        actors=(writer(1, resolves=True, attempts_max=1),),
        faults_max=2,
        crashes_max=1,
        states_min=1_140,
    ),
    # Readers.
    Cell(name="write, write, read", actors=(writer(1), writer(2), READER), states_min=1_000, all_succeed=True),
    Cell(name="write, read: 1 fault", actors=(writer(1), READER), faults_max=1, faults=FRESH, states_min=880, all_succeed=True),
    Cell(name="write, read: 1 fault, 1 crash", actors=(writer(1), CARELESS_READER), faults_max=1, crashes_max=1, states_min=1_350),
    Cell(name="write, rollback, read", actors=(writer(1), rollback(3, 1), READER), states_min=1_420),
    Cell(name="insert, write, read", actors=(inserter(1), writer(2), READER), states_min=1_700, all_succeed=True),
    Cell(
        name="write, write, read: 1 fault",
        actors=(writer(1), writer(2), READER),
        faults_max=1,
        faults=FRESH,
        states_min=38_000,
        slow=True,
    ),
)

CELLS = (*WRITER_CELLS, *SERVICE_CELLS, *LAKE_CELLS)


def cell_named(name: str) -> Cell:
    """The cell of that name."""
    return next(cell for cell in CELLS if cell.name == name)
