"""The named cells of erasures: whoever writes, saves, restores or compacts meanwhile, a certificate that is given is true."""

from __future__ import annotations

from dataclasses import replace

from tests.explorer.actors import Actor
from tests.explorer.cast import COMPACTED, FRESH, LOG, ROWS, SMALL, play, writer
from tests.explorer.cells_indexes import placed
from tests.explorer.cells_services import ARCHIVE, CLEAN, COMPACTION, SCAN, SCHEDULED, SPLIT, WORKERS, alone
from tests.explorer.cells_without_key import APPEND, CLUSTERING, SCATTERED
from tests.explorer.engine import Cell
from tests.explorer.roles import KEYS, InTurn
from tests.explorer.roles_erasures import Delete, DeleteWhere, Erase, Forget
from tests.explorer.roles_services import Clean, Compact, Publish, Restore, Save

ERASURE = play("erasure", 2, Erase(KEYS[0]))
HIDDEN = (*ROWS, Actor("former delete", 11, Delete(KEYS[0])))
"""The row of key 2 is in a file, below a delete, at slot 2."""

TIDYING = play("tidying", 5, InTurn((Compact(), Clean())))

FORGETTING, OTHER_FORGETTING = play("forgetting", 3, Forget()), play("forgetting", 4, Forget())
GONE = (*HIDDEN, Actor("former tidying", 10, InTurn((Compact(), Clean()))))
"""The row of key 2 is in no file any more."""

KEPT = (*GONE, Actor("former publisher", 8, Publish()))
"""And there is a checkpoint, which has known it."""

_FORGETTING: tuple[Cell, ...] = (
    Cell(name="forgetting, scan", actors=(FORGETTING, SCAN), prelude=GONE, states_min=3_000),
    Cell(name="forgetting, write", actors=(FORGETTING, writer(1)), prelude=GONE, states_min=100, slow=True),
    Cell(name="forgetting, forgetting", actors=(FORGETTING, OTHER_FORGETTING), prelude=GONE, states_min=100, slow=True),
    Cell(name="forgetting, archive", actors=(FORGETTING, ARCHIVE), prelude=KEPT, settings=SMALL, states_min=100, slow=True),
    Cell(
        name="forgetting, publisher",
        actors=(FORGETTING, play("publisher", 5, Publish())),
        prelude=KEPT,
        settings=SMALL,
        states_min=100,
        slow=True,
    ),
    Cell(name="forgetting, write: checkpoints", actors=(FORGETTING, writer(1)), prelude=KEPT, settings=SMALL, states_min=100, slow=True),
    Cell(
        name="forgetting alone: 2 faults, 1 crash at the history",
        actors=(FORGETTING,),
        prelude=KEPT,
        settings=SMALL,
        faults_max=2,
        faults=FRESH,
        crashes_max=1,
        where=("t/history/",),
        states_min=1_300,
    ),
    Cell(
        name="forgetting alone, without retries: 2 faults at the log and the history",
        actors=(replace(FORGETTING, attempts_max=1),),
        prelude=KEPT,
        settings=SMALL,
        faults_max=2,
        faults=FRESH,
        where=(*LOG, "t/history/"),
        states_min=10_500,
    ),
    Cell(
        name="forgetting alone, without retries: 1 fault, 1 crash at the log",
        actors=(replace(FORGETTING, attempts_max=1),),
        prelude=KEPT,
        settings=SMALL,
        faults_max=1,
        faults=FRESH,
        crashes_max=1,
        where=LOG,
        states_min=1_300,
    ),
    Cell(
        name="forgetting alone: 2 faults, 1 crash at the log",
        actors=(FORGETTING,),
        prelude=KEPT,
        settings=SMALL,
        faults_max=2,
        faults=FRESH,
        crashes_max=1,
        where=LOG,
        states_min=75_000,
        slow=True,
    ),
    Cell(
        name="forgetting alone: 1 fault, 1 crash",
        actors=(FORGETTING,),
        prelude=KEPT,
        settings=SMALL,
        faults_max=1,
        crashes_max=1,
        faults=FRESH,
        states_min=9_000,
        slow=True,
    ),
)

_CELLS: tuple[Cell, ...] = (
    Cell(
        name="delete of what is found, compaction and clean",
        actors=(play("delete", 1, DeleteWhere(KEYS[0])), TIDYING),
        prelude=ROWS,
        all_succeed=True,
        states_min=1_750,
    ),
    Cell(
        name="delete of what is found, write",
        actors=(play("delete", 1, DeleteWhere(KEYS[0])), writer(2)),
        prelude=ROWS,
        all_succeed=True,
        states_min=128,
    ),
    alone(ERASURE, HIDDEN, faults_max=1, states_min=4_900, slow=True),
    Cell(
        name="erasure alone: 1 fault, 1 crash at the log",
        actors=(ERASURE,),
        prelude=HIDDEN,
        where=LOG,
        faults_max=1,
        crashes_max=1,
        faults=FRESH,
        states_min=2_800,
        slow=True,
    ),
    Cell(
        name="erasure alone: 1 fault, 1 crash at the data",
        actors=(ERASURE,),
        prelude=HIDDEN,
        where=("t/data/",),
        faults_max=1,
        crashes_max=1,
        faults=FRESH,
        states_min=660,
    ),
    Cell(name="erasure, save", actors=(ERASURE, play("save", 5, Save(2))), prelude=HIDDEN, states_min=40_000, slow=True),
    Cell(name="erasure, write", actors=(ERASURE, writer(1)), prelude=ROWS, states_min=2_650, slow=True),
    Cell(name="erasure, compaction", actors=(ERASURE, COMPACTION), prelude=ROWS, all_succeed=True, states_min=11_900, slow=True),
    Cell(
        name="erasure, compaction: record",
        actors=(ERASURE, COMPACTION),
        prelude=placed("record"),
        states_min=15_600,
        slow=True,
    ),
    Cell(name="erasure, split", actors=(ERASURE, SPLIT), prelude=COMPACTED, states_min=20_000, slow=True),
    Cell(name="erasure, worker", actors=(ERASURE, WORKERS[0]), prelude=SCHEDULED, all_succeed=True, states_min=50_000, slow=True),
    Cell(name="erasure, save the rows", actors=(ERASURE, play("save", 5, Save(1))), prelude=ROWS, states_min=8_700, slow=True),
    Cell(name="erasure, restore", actors=(ERASURE, play("restore", 5, Restore(1))), prelude=ROWS, states_min=9_700, slow=True),
    Cell(
        name="erasure, release and clean",
        actors=(ERASURE, play("tidying", 5, InTurn((Save(2, release=True), Compact(), Clean())))),
        prelude=(*HIDDEN, Actor("former save", 10, Save(2))),
        states_min=140_000,
        slow=True,
    ),
    Cell(name="erasure, clean", actors=(ERASURE, CLEAN), prelude=ROWS, states_min=3_000, slow=True),
    Cell(name="erasure, clustering", actors=(ERASURE, CLUSTERING), prelude=SCATTERED, states_min=67_100, slow=True),
    Cell(name="erasure, append", actors=(ERASURE, APPEND), prelude=SCATTERED, all_succeed=True, states_min=9_660, slow=True),
)

ERASURE_CELLS = tuple(replace(cell, solo_steps_max=400) if ERASURE in cell.actors else cell for cell in _CELLS) + tuple(
    replace(cell, solo_steps_max=400) for cell in _FORGETTING
)
"""An erasure is a delete, compactions, a clean, and reads of what is saved, one after the other."""
