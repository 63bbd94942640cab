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
    late_writer,
    rollback,
    slow_writer,
    writer,
)
from tests.explorer.cells_blocks import BLOCK_CELLS
from tests.explorer.cells_derived import DERIVED_CELLS
from tests.explorer.cells_erasures import ERASURE_CELLS
from tests.explorer.cells_groups import GROUP_CELLS
from tests.explorer.cells_indexes import INDEX_CELLS
from tests.explorer.cells_lake import LAKE_CELLS
from tests.explorer.cells_merges import MERGE_CELLS
from tests.explorer.cells_mirrors import MIRROR_CELLS
from tests.explorer.cells_moves import MOVE_CELLS
from tests.explorer.cells_ordering import ORDERING_CELLS
from tests.explorer.cells_positions import POSITION_CELLS
from tests.explorer.cells_process import PROCESS_CELLS
from tests.explorer.cells_rewrites import REWRITE_CELLS
from tests.explorer.cells_services import SERVICE_CELLS
from tests.explorer.cells_without_key import WITHOUT_KEY_CELLS
from tests.explorer.engine import Cell

WRITER_CELLS: tuple[Cell, ...] = (
    # Two writers, one file group.
    Cell(name="write, write", actors=(writer(1), writer(2)), states_min=22, all_succeed=True),
    Cell(name="write, write: 1 fault", actors=(writer(1), writer(2)), faults_max=1, states_min=448, all_succeed=True),
    Cell(name="write, write: 2 faults", actors=(writer(1), writer(2)), faults_max=2, states_min=5_570, all_succeed=True),
    Cell(name="write, write: 1 fault, 1 crash", actors=(writer(1), writer(2)), faults_max=1, crashes_max=1, states_min=936),
    Cell(name="write, write: 3 late requests", actors=(writer(1), writer(2)), faults_max=3, faults=LATE, where=LOG, states_min=5_840),
    Cell(
        name="write, write without retries: 2 faults",
        actors=(writer(1, attempts_max=1), writer(2, attempts_max=1)),
        faults_max=2,
        states_min=4_870,
    ),
    Cell(name="write, write: 3 faults", actors=(writer(1), writer(2)), faults_max=3, states_min=51_400),
    Cell(name="write, write, etags of content: 1 fault", actors=(writer(1), writer(2)), faults_max=1, profile=ETAGS, states_min=448),
    Cell(
        name="write, write, store with a clock, an hour ahead and behind: 1 fault",
        actors=(writer(1, clock_ms=HOUR_MS), writer(2, clock_ms=-HOUR_MS)),
        faults_max=1,
        profile=CLOCK,
        states_min=495,
    ),
    Cell(
        name="write, write, store without a clock, an hour ahead and behind: 1 fault",
        actors=(writer(1, clock_ms=HOUR_MS), writer(2, clock_ms=-HOUR_MS)),
        faults_max=1,
        states_min=448,
    ),
    Cell(
        name="write, write, store with a clock: 2 faults, 1 crash at the data and the intents",
        actors=(writer(1, clock_ms=HOUR_MS), writer(2)),
        faults_max=2,
        crashes_max=1,
        where=("t/data/", "t/intents/"),
        profile=CLOCK,
        states_min=4_670,
        slow=True,
    ),
    Cell(
        name="write alone, store with a clock: 2 faults, 1 crash",
        actors=(writer(1, clock_ms=HOUR_MS),),
        faults_max=2,
        crashes_max=1,
        profile=CLOCK,
        states_min=405,
    ),
    # Two writers, disjoint file groups.
    Cell(name="write, write elsewhere", actors=(writer(1), writer(2, 1)), states_min=22, all_succeed=True),
    Cell(name="write, write elsewhere: 1 fault", actors=(writer(1), writer(2, 1)), faults_max=1, states_min=448),
    Cell(name="write, write elsewhere: 2 faults", actors=(writer(1), writer(2, 1)), faults_max=2, states_min=5_570),
    # Three writers.
    Cell(name="write, write, write", actors=(writer(1), writer(2), writer(3)), states_min=237, all_succeed=True),
    Cell(
        name="write, write, write: 1 fault at the log", actors=(writer(1), writer(2), writer(3)), faults_max=1, where=LOG, states_min=4_840
    ),
    Cell(name="write, write, write: 1 fault", actors=(writer(1), writer(2), writer(3)), faults_max=1, states_min=8_330, slow=True),
    Cell(
        name="write, write, write: 2 faults at the log",
        actors=(writer(1), writer(2), writer(3)),
        faults_max=2,
        where=LOG,
        states_min=66_500,
        slow=True,
    ),
    # First base files.
    Cell(name="insert, insert", actors=(inserter(1), inserter(2)), states_min=45, all_succeed=True),
    Cell(name="insert, insert: 1 fault", actors=(inserter(1), inserter(2)), faults_max=1, states_min=924, all_succeed=True),
    Cell(
        name="insert, insert: 2 faults at the log", actors=(inserter(1), inserter(2)), faults_max=2, where=LOG, slow=True, states_min=4_420
    ),
    Cell(
        name="insert, insert: 1 fault, 1 crash at the log",
        actors=(inserter(1), inserter(2)),
        where=LOG,
        faults_max=1,
        crashes_max=1,
        states_min=1_000,
    ),
    Cell(name="insert, insert: 2 faults", actors=(inserter(1), inserter(2)), faults_max=2, states_min=12_500, slow=True),
    Cell(
        name="insert, insert elsewhere: 1 fault",
        actors=(inserter(1), inserter(2, 1)),
        faults_max=1,
        states_min=765,
        all_succeed=True,
        slow=True,
    ),
    Cell(
        name="insert of two file groups, write, write",
        actors=(inserter(1, 0, 1), writer(2), writer(3, 1)),
        states_min=469,
        all_succeed=True,
    ),
    Cell(name="insert, write: 1 fault", actors=(inserter(1), writer(2)), faults_max=1, states_min=682, all_succeed=True),
    Cell(name="insert, write: 2 faults", actors=(inserter(1), writer(2)), faults_max=2, states_min=9_000, slow=True),
    # Creation.
    Cell(name="create, create", actors=(CREATE_1, CREATE_2), prelude=(), states_min=32),
    Cell(name="create, create: 2 faults at the log", actors=(CREATE_1, CREATE_2), prelude=(), faults_max=2, where=LOG, states_min=2_800),
    Cell(name="create, create: 2 faults", actors=(CREATE_1, CREATE_2), prelude=(), faults_max=2, states_min=11_000, slow=True),
    Cell(name="create, create: 1 fault, 1 crash", actors=(CREATE_1, CREATE_2), prelude=(), faults_max=1, crashes_max=1, states_min=1_580),
    Cell(
        name="create, create without retries: 2 faults, 1 crash",
        actors=(replace(CREATE_1, attempts_max=1), replace(CREATE_2, attempts_max=1)),
        prelude=(),
        faults_max=2,
        crashes_max=1,
        states_min=11_000,
    ),
    Cell(name="create, create: 3 faults", actors=(CREATE_1, CREATE_2), prelude=(), faults_max=3, states_min=100_000, slow=True),
    # Rollbacks.
    Cell(name="write, rollback", actors=(writer(1), rollback(3, 1)), states_min=55),
    Cell(name="write, rollback: 2 faults at the log", actors=(writer(1), rollback(3, 1)), faults_max=2, where=LOG, states_min=5_930),
    Cell(name="write, rollback: 2 faults", actors=(writer(1), rollback(3, 1)), faults_max=2, states_min=24_900, slow=True),
    Cell(name="write, rollback: 1 fault", actors=(writer(1), rollback(3, 1)), faults_max=1, states_min=1_510),
    Cell(name="write, rollback: 1 fault, 1 crash", actors=(writer(1), rollback(3, 1)), faults_max=1, crashes_max=1, states_min=2_670),
    Cell(
        name="write, rollback: 3 late requests", actors=(writer(1), rollback(3, 1)), faults_max=3, faults=LATE, where=LOG, states_min=17_100
    ),
    Cell(
        name="write, rollback without retries: 2 faults, 1 crash",
        actors=(writer(1, attempts_max=1), replace(rollback(3, 1), attempts_max=1)),
        faults_max=2,
        crashes_max=1,
        states_min=16_600,
        slow=True,
    ),
    Cell(
        name="write, rollback without retries: 1 fault",
        actors=(writer(1, attempts_max=1), replace(rollback(3, 1), attempts_max=1)),
        faults_max=1,
        states_min=1_170,
    ),
    Cell(
        name="write, rollback without retries: 2 faults",
        actors=(writer(1, attempts_max=1), replace(rollback(3, 1), attempts_max=1)),
        faults_max=2,
        states_min=10_600,
        slow=True,
    ),
    Cell(name="insert, rollback: 1 fault", actors=(inserter(1), rollback(3, 1)), faults_max=1, states_min=1_550),
    Cell(name="write, write, rollback", actors=(writer(1), writer(2), rollback(3, 1)), states_min=1_000),
    Cell(
        name="write, write, rollback: 1 fault, 1 crash at the log",
        actors=(writer(1), writer(2), rollback(3, 1)),
        faults_max=1,
        crashes_max=1,
        where=LOG,
        states_min=45_100,
    ),
    Cell(
        name="write, write, rollback: 1 fault, 1 crash",
        actors=(writer(1), writer(2), rollback(3, 1)),
        faults_max=1,
        crashes_max=1,
        states_min=99_000,
        slow=True,
    ),
    Cell(name="write, rollback, rollback", actors=(writer(1), rollback(3, 1), rollback(4, 1)), states_min=2_880),
    Cell(
        name="write, rollback, rollback: 1 crash at the log",
        actors=(writer(1), rollback(3, 1), rollback(4, 1)),
        crashes_max=1,
        where=LOG,
        states_min=4_500,
    ),
    Cell(
        name="write, rollback, rollback: 1 fault at the log",
        actors=(writer(1), rollback(3, 1), rollback(4, 1)),
        faults_max=1,
        where=LOG,
        states_min=60_000,
        slow=True,
    ),
    Cell(
        name="write, rollback, rollback: 1 fault",
        actors=(writer(1), rollback(3, 1), rollback(4, 1)),
        faults_max=1,
        states_min=138_000,
        slow=True,
    ),
    Cell(name="write, rollback, rollback of both", actors=(writer(1), rollback(3, 1), rollback(4, 1, 3)), states_min=3_950),
    # A writer whose heart beats while somebody thinks it dead.
    Cell(
        name="slow write alone: 2 faults, 1 crash",
        actors=(slow_writer(1),),
        faults_max=2,
        crashes_max=1,
        states_min=2_480,
    ),
    Cell(
        name="slow write alone, without retries: 2 faults, 1 crash",
        actors=(slow_writer(1, attempts_max=1),),
        faults_max=2,
        crashes_max=1,
        states_min=1_500,
    ),
    Cell(name="slow write, rollback", actors=(slow_writer(1), rollback(3, 1)), states_min=309),
    Cell(
        name="slow write, rollback: 1 fault, 1 crash at the intents",
        actors=(slow_writer(1), rollback(3, 1)),
        faults_max=1,
        crashes_max=1,
        where=("t/intents/",),
        states_min=10_900,
    ),
    Cell(
        name="slow write, rollback: 1 fault, 1 crash",
        actors=(slow_writer(1), rollback(3, 1)),
        faults_max=1,
        crashes_max=1,
        states_min=26_300,
        slow=True,
    ),
    Cell(name="late write, rollback", actors=(late_writer(1), rollback(3, 1)), states_min=149),
    Cell(
        name="late write, rollback: 1 fault, 1 crash",
        actors=(late_writer(1), rollback(3, 1)),
        faults_max=1,
        crashes_max=1,
        states_min=12_500,
    ),
    Cell(
        name="late write, rollback: 2 faults at the intents and the log",
        actors=(late_writer(1), rollback(3, 1)),
        faults_max=2,
        where=("t/intents/", *LOG),
        states_min=84_100,
    ),
    Cell(name="slow write, rollback: 2 faults", actors=(slow_writer(1), rollback(3, 1)), faults_max=2, states_min=387_000, slow=True),
    # Writers who ask for the outcome that they do not know.
    Cell(
        name="write and resolve, write, without retries: 1 fault",
        actors=(writer(1, resolves=True, attempts_max=1), writer(2, attempts_max=1)),
        faults_max=1,
        states_min=765,
    ),
    Cell(
        name="write and resolve, write, without retries: 2 faults",
        actors=(writer(1, resolves=True, attempts_max=1), writer(2, attempts_max=1)),
        faults_max=2,
        states_min=13_600,
        slow=True,
    ),
    Cell(
        name="write and resolve, rollback, without retries: 2 faults at the log",
        actors=(writer(1, resolves=True, attempts_max=1), rollback(3, 1)),
        faults_max=2,
        where=LOG,
        states_min=32_000,
    ),
    Cell(
        name="write and resolve, rollback, without retries: 2 faults",
        actors=(writer(1, resolves=True, attempts_max=1), rollback(3, 1)),
        faults_max=2,
        slow=True,
        states_min=102_000,
    ),
    Cell(
        name="write and resolve, without retries: 2 faults, 1 crash",
        actors=(writer(1, resolves=True, attempts_max=1),),
        faults_max=2,
        crashes_max=1,
        states_min=945,
    ),
    # Readers.
    Cell(name="write, write, read", actors=(writer(1), writer(2), READER), states_min=406, all_succeed=True),
    Cell(name="write, read: 1 fault", actors=(writer(1), READER), faults_max=1, faults=FRESH, states_min=452, all_succeed=True),
    Cell(name="write, read: 1 fault, 1 crash", actors=(writer(1), CARELESS_READER), faults_max=1, crashes_max=1, states_min=714),
    Cell(name="write, rollback, read", actors=(writer(1), rollback(3, 1), READER), states_min=822),
    Cell(name="insert, write, read", actors=(inserter(1), writer(2), READER), states_min=655, all_succeed=True),
    Cell(
        name="write, write, read: 1 fault",
        actors=(writer(1), writer(2), READER),
        faults_max=1,
        faults=FRESH,
        states_min=10_700,
        slow=True,
    ),
)

CELLS = (
    *WRITER_CELLS,
    *SERVICE_CELLS,
    *REWRITE_CELLS,
    *MERGE_CELLS,
    *MOVE_CELLS,
    *ORDERING_CELLS,
    *DERIVED_CELLS,
    *POSITION_CELLS,
    *PROCESS_CELLS,
    *BLOCK_CELLS,
    *GROUP_CELLS,
    *INDEX_CELLS,
    *WITHOUT_KEY_CELLS,
    *ERASURE_CELLS,
    *LAKE_CELLS,
    *MIRROR_CELLS,
)


def cell_named(name: str) -> Cell:
    """The cell of that name."""
    return next(cell for cell in CELLS if cell.name == name)
