"""The named cells of lakes: names, namespaces, drops."""

from __future__ import annotations

from tests.explorer.actors import Actor
from tests.explorer.cast import FRESH, play
from tests.explorer.engine import Cell
from tests.explorer.roles_lake import Drop, DropSpace, MakeSpace, Name, NameWithRow, ReadWhole, Rename, TakeBack, Undrop, WriteNamed

LAKE = (Actor("lake", 15, Name("a.x")),)
SHARED = (Actor("lake", 15, Name("x", "d")), Actor("second table", 14, Name("y", "d")))
EMPTIED = (*LAKE, Actor("former drop", 14, Drop("a.x")))
NAMES = (play("creator", 1, Name("t")), play("creator", 2, Name("t")))
WITH_ROW = (play("creator", 1, NameWithRow("t")), play("creator", 2, NameWithRow("t")))
CATALOG_LOG = ("_catalog/log/",)

ALONE = (
    (play("creator", 1, Name("a.t")), LAKE, 2_590),
    (play("dropper", 1, Drop("a.x")), LAKE, 3_800),
    (play("refused creator", 1, TakeBack("a.x")), LAKE, 4_320),
    (play("undropper", 1, Undrop("a.x")), EMPTIED, 3_790),
    (play("renamer", 2, Rename("a.x", "a.y")), LAKE, 560),
    (play("space maker", 2, MakeSpace("b.c")), LAKE, 500),
    (play("space dropper", 2, DropSpace("b")), (Actor("lake", 15, MakeSpace("b")),), 500),
    (play("writer", 2, WriteNamed("a.x")), LAKE, 629),
    (play("hasty writer", 2, WriteNamed("a.x"), attempts_max=1), LAKE, 208),
)

LAKE_CELLS: tuple[Cell, ...] = (
    *(
        Cell(
            name=f"{actor.name} alone: 2 faults, 1 crash",
            actors=(actor,),
            prelude=prelude,
            faults_max=2,
            crashes_max=1,
            faults=FRESH,
            states_min=states_min,
        )
        for actor, prelude, states_min in ALONE
    ),
    Cell(name="two tables of one name", actors=NAMES, prelude=(), states_min=150),
    Cell(name="two tables of one name: 1 fault", actors=NAMES, prelude=(), faults_max=1, states_min=6_230),
    Cell(
        name="two tables of one name: 2 faults at the catalog",
        actors=NAMES,
        prelude=(),
        faults_max=2,
        where=CATALOG_LOG,
        states_min=10_000,
        slow=True,
    ),
    Cell(name="two tables of one name: 1 crash", actors=NAMES, prelude=(), crashes_max=1, states_min=360),
    Cell(
        name="two tables of one domain",
        actors=(play("creator", 1, Name("a", "d")), play("creator", 2, Name("b", "d"))),
        prelude=(),
        states_min=260,
    ),
    Cell(name="table with a row alone: 1 fault, 1 crash", actors=WITH_ROW[:1], prelude=(), faults_max=1, crashes_max=1, states_min=500),
    Cell(name="two tables with rows of one name: 1 crash", actors=WITH_ROW, prelude=(), crashes_max=1, states_min=900),
    Cell(name="table with a row, read", actors=(WITH_ROW[0], play("reader", 2, ReadWhole("t"))), prelude=(), crashes_max=1, states_min=270),
    Cell(
        name="table with a row, write to its domain: 1 crash",
        actors=(play("creator", 1, NameWithRow("z", "d")), play("writer", 2, WriteNamed("x"))),
        prelude=SHARED,
        crashes_max=1,
        states_min=1_500,
    ),
    Cell(
        name="create, drop its namespace",
        actors=(play("creator", 1, Name("a.y")), play("dropper", 2, DropSpace("a"))),
        prelude=(Actor("lake", 15, MakeSpace("a")),),
        states_min=130,
    ),
    Cell(
        name="create, drop its namespace: 1 fault at the catalog",
        actors=(play("creator", 1, Name("a.y")), play("dropper", 2, DropSpace("a"))),
        prelude=(Actor("lake", 15, MakeSpace("a")),),
        faults_max=1,
        where=CATALOG_LOG,
        states_min=1_540,
    ),
    Cell(name="drop, write", actors=(play("dropper", 1, Drop("a.x")), play("writer", 2, WriteNamed("a.x"))), prelude=LAKE, states_min=279),
    Cell(
        name="drop, write: 1 crash",
        actors=(play("dropper", 1, Drop("a.x")), play("writer", 2, WriteNamed("a.x"))),
        prelude=LAKE,
        crashes_max=1,
        states_min=488,
    ),
    Cell(name="drop, drop", actors=(play("dropper", 1, Drop("a.x")), play("dropper", 2, Drop("a.x"))), prelude=LAKE, states_min=610),
    Cell(
        name="drop, create again: 1 crash",
        actors=(play("dropper", 1, Drop("a.x")), play("creator", 2, Name("a.x"))),
        prelude=LAKE,
        crashes_max=1,
        states_min=650,
    ),
    Cell(
        name="take back, write",
        actors=(play("refused creator", 1, TakeBack("a.x")), play("writer", 2, WriteNamed("a.x"))),
        prelude=LAKE,
        states_min=289,
    ),
    Cell(
        name="take back, write: 1 fault",
        actors=(play("refused creator", 1, TakeBack("a.x")), play("writer", 2, WriteNamed("a.x"))),
        prelude=LAKE,
        faults_max=1,
        faults=FRESH,
        states_min=9_130,
    ),
    Cell(
        name="take back, write: 1 crash",
        actors=(play("refused creator", 1, TakeBack("a.x")), play("writer", 2, WriteNamed("a.x"))),
        prelude=LAKE,
        crashes_max=1,
        states_min=484,
    ),
    Cell(
        name="take back, write to its domain",
        actors=(play("refused creator", 1, TakeBack("y", opened=1)), play("writer", 2, WriteNamed("x"))),
        prelude=SHARED,
        states_min=356,
    ),
    Cell(
        name="drop, rename",
        actors=(play("dropper", 1, Drop("a.x")), play("renamer", 2, Rename("a.x", "a.y"))),
        prelude=LAKE,
        states_min=180,
    ),
    Cell(
        name="undrop, create",
        actors=(play("undropper", 1, Undrop("a.x")), play("creator", 2, Name("a.x"))),
        prelude=EMPTIED,
        states_min=260,
    ),
    Cell(
        name="undrop, undrop",
        actors=(play("undropper", 1, Undrop("a.x")), play("undropper", 2, Undrop("a.x"))),
        prelude=EMPTIED,
        states_min=720,
    ),
)
