"""The named cells of tables without a key: clustering ends file groups and begins others, and every row stays, once."""

from __future__ import annotations

from objcat.metadata.table_spec import COPY_ON_WRITE
from tests.explorer.actors import Actor
from tests.explorer.cast import FRESH, LATE, LOG, play
from tests.explorer.cells_services import SCAN, alone
from tests.explorer.engine import Cell
from tests.explorer.roles_services import Clean, Compact, ExecuteScheduled, Restore, Schedule
from tests.explorer.roles_without_key import Append, Cluster, CreateWithoutKey, TakeOut

SCATTERED = (
    Actor("creator", 15, CreateWithoutKey()),
    Actor("first", 12, Append(1, "a1", apart=True)),
    Actor("second", 13, Append(2, "a2", apart=True)),
    Actor("third", 14, Append(3, "a3")),
)
"""A table with two file groups, one of which has a log row, at slot 3."""
PARTED = (
    *SCATTERED[:3],
    Actor("third", 14, Append(5, "b5", apart=True)),
    Actor("fourth", 11, Append(6, "b6", apart=True)),
)
"""A table with two file groups in each of two partitions, at slot 4."""
CLUSTERED = (
    *SCATTERED,
    Actor("former clustering", 11, Cluster()),
    Actor("fourth", 10, Append(4, "a4", apart=True)),
)
"""Three rows in one group, at slot 4, and a new group."""
PLANNED = (*SCATTERED, Actor("former scheduler", 11, Schedule()), Actor("fourth", 10, Append(4, "a4")))
"""The first one with a plan of a compaction, and log rows that came after it, at slot 4."""
REWRITTEN = (Actor("creator", 15, CreateWithoutKey(COPY_ON_WRITE)), *SCATTERED[1:])
"""The first one as a copy-on-write table."""
CLUSTERING = play("clustering", 5, Cluster())
CLEAN = play("clean", 7, Clean())
APPEND = play("append", 1, Append(7, "a7"))
DELETE = play("delete", 2, TakeOut(2))
BESIDE: dict[str, tuple[Actor, tuple[Actor, ...]]] = {
    "append": (APPEND, SCATTERED),
    "append apart": (play("append", 1, Append(7, "a7", apart=True)), SCATTERED),
    "append, copy on write": (APPEND, REWRITTEN),
    "append to one of two partitions": (play("append", 1, Append(7, "b7")), PARTED),
    "delete": (DELETE, SCATTERED),
    "compaction": (play("compaction", 6, Compact()), SCATTERED),
    "clustering": (play("clustering", 6, Cluster()), SCATTERED),
    "restore": (play("restore", 6, Restore(2)), SCATTERED),
}
"""Who does something to a group that is being clustered; nobody is refused."""

WITHOUT_KEY_CELLS: tuple[Cell, ...] = (
    alone(CLUSTERING, SCATTERED, faults_max=1, states_min=220),
    alone(CLUSTERING, SCATTERED, states_min=2_200, slow=True),
    alone(APPEND, SCATTERED, faults_max=1, states_min=106),
    alone(DELETE, SCATTERED, faults_max=1, states_min=500),
    *(
        Cell(name=f"{name}, clustering", actors=(actor, CLUSTERING), prelude=prelude, all_succeed=True, states_min=216)
        for name, (actor, prelude) in BESIDE.items()
    ),
    Cell(
        name="clusterings of other partitions",
        actors=(play("clustering", 5, Cluster("v < 'b'")), play("clustering", 6, Cluster("v >= 'b'"))),
        prelude=PARTED,
        all_succeed=True,
        states_min=330,
    ),
    Cell(name="clustering, clean", actors=(CLUSTERING, CLEAN), prelude=CLUSTERED, states_min=350),
    Cell(name="clustering, clean, scan", actors=(CLUSTERING, CLEAN, SCAN), prelude=SCATTERED, states_min=5_200),
    Cell(
        name="append, delete, clustering",
        actors=(APPEND, DELETE, CLUSTERING),
        prelude=SCATTERED,
        all_succeed=True,
        states_min=17_300,
        slow=True,
    ),
    *(
        Cell(
            name=f"{name}, clustering: {'1 fault, ' if faults_max else ''}1 crash at the log",
            actors=(actor, CLUSTERING),
            prelude=prelude,
            where=LOG,
            faults_max=faults_max,
            crashes_max=1,
            faults=FRESH,
            states_min=4_170 if faults_max else 333,
            slow=bool(faults_max),
        )
        for name, (actor, prelude) in BESIDE.items()
        if name in ("append", "delete", "clustering")
        for faults_max in (0, 1)
    ),
    Cell(
        name="append, executor of a plan from before it",
        actors=(play("append", 1, Append(8, "a8")), play("worker", 6, ExecuteScheduled())),
        prelude=PLANNED,
        all_succeed=True,
        states_min=229,
    ),
    Cell(
        name="append, clustering: 1 late request at the log",
        actors=(APPEND, CLUSTERING),
        prelude=SCATTERED,
        where=LOG,
        faults_max=1,
        faults=LATE,
        states_min=2_770,
    ),
)
