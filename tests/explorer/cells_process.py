"""The cells of two handles of one process, of which the second one knows what the first one has committed and read."""

from __future__ import annotations

from objcat.tasks.model import Operation
from tests.explorer.actors import Actor
from tests.explorer.cast import COUNTERS, LOG, READER, inserter, rollback, writer
from tests.explorer.engine import Cell
from tests.explorer.roles import Write
from tests.explorer.roles_process import TwoHandles


def handles(number: int, first: Write, second: Write, **settings: int) -> Actor:
    """Two handles of one process."""
    return Actor(f"process {number}", number, TwoHandles(first, second), **settings)


INSERT = Write((0,), Operation.INSERT)
BOTH = handles(1, Write(), Write())
INSERTS = handles(1, INSERT, INSERT)
COUNTS = handles(1, Write(), Write((0, 1)))
RESOLVES = handles(1, Write(resolves=True), Write(), attempts_max=1)

PROCESS_CELLS: tuple[Cell, ...] = (
    Cell(name="two handles", actors=(BOTH,), states_min=6, all_succeed=True),
    Cell(name="two handles: 2 faults, 1 crash", actors=(BOTH,), faults_max=2, crashes_max=1, states_min=1_580),
    Cell(name="two handles, write: 1 fault", actors=(BOTH, writer(2)), faults_max=1, states_min=1_840, all_succeed=True),
    Cell(name="two handles, write: 2 faults at the log", actors=(BOTH, writer(2)), faults_max=2, where=LOG, states_min=13_800, slow=True),
    Cell(name="two handles, rollback: 1 fault at the log", actors=(BOTH, rollback(3, 1)), faults_max=1, where=LOG, states_min=4_660),
    Cell(name="two handles and resolve, without retries: 2 faults", actors=(RESOLVES,), faults_max=2, states_min=2_760),
    Cell(name="two handles and resolve, write, without retries: 1 fault", actors=(RESOLVES, writer(2)), faults_max=1, states_min=2_420),
    Cell(name="two handles, write, read", actors=(BOTH, writer(2), READER), states_min=2_320, all_succeed=True),
    Cell(name="two handles of inserts, insert: 1 fault", actors=(INSERTS, inserter(2)), faults_max=1, states_min=6_800, all_succeed=True),
    Cell(
        name="two handles that count, write: 1 fault at the log",
        actors=(COUNTS, writer(2)),
        prelude=COUNTERS,
        faults_max=1,
        where=LOG,
        states_min=6_580,
        all_succeed=True,
    ),
)
