"""The named cells of indexes that are looked up, with all of their code: whoever else writes or compacts, a key is in one place."""

from __future__ import annotations

from objcat.common.validation import TableType
from objcat.metadata.table_spec import COPY_ON_WRITE, MERGE_ON_READ
from tests.explorer.actors import Actor
from tests.explorer.cast import FRESH, LOG, play
from tests.explorer.cells_services import alone
from tests.explorer.engine import Cell
from tests.explorer.roles_moves import CreateMoving, Move
from tests.explorer.roles_services import Clean, Compact, Maintain, Restore, Sort


def table(index: str, kind: TableType = MERGE_ON_READ, *, moves: bool = False) -> tuple[Actor, ...]:
    """A new table."""
    return (Actor("creator", 15, CreateMoving(kind, index=index, moves=moves)),)


def placed(index: str, kind: TableType = MERGE_ON_READ, *, moves: bool = False) -> tuple[Actor, ...]:
    """A table with a row, at slot 1."""
    return (*table(index, kind, moves=moves), Actor("first", 12, Move("a0")))


PLACES = (play("place", 1, Move("a1")), play("place", 2, Move("a2")))
"""Both place one key."""
MOVES = (play("move", 1, Move("b1")), play("move", 2, Move("c2")))
OTHER = play("place elsewhere", 2, Move("a2", bucket=1))
COMPACTION = play("compaction", 3, Compact())
CLUSTERING = play("clustering", 4, Sort())


def two_placed(index: str, kind: TableType = MERGE_ON_READ) -> tuple[Actor, ...]:
    """A table with two keys, at slot 2."""
    return (*placed(index, kind), Actor("second", 13, Move("a0", bucket=1)))


def beside_clustering(name: str, actor: Actor, prelude: tuple[Actor, ...], states_min: int, *, all_succeed: bool = True) -> Cell:
    """Whoever looks for keys, or does something to the groups, while these end and others begin with their rows."""
    return Cell(name=f"{name}, clustering", actors=(actor, CLUSTERING), prelude=prelude, all_succeed=all_succeed, states_min=states_min)


INDEX_CELLS: tuple[Cell, ...] = (
    *(
        Cell(name=f"place, place: {index}", actors=PLACES, prelude=table(index), all_succeed=True, states_min=109)
        for index in ("bloom", "memory")
    ),
    Cell(name="place, place: record", actors=PLACES, prelude=table("record"), all_succeed=True, states_min=126),
    Cell(name="place, place elsewhere: record", actors=(PLACES[0], OTHER), prelude=table("record"), all_succeed=True, states_min=132),
    Cell(
        name="update, place elsewhere: record, copy on write",
        actors=(PLACES[0], OTHER),
        prelude=placed("record", COPY_ON_WRITE),
        all_succeed=True,
        states_min=171,
    ),
    Cell(name="move, move: record", actors=MOVES, prelude=placed("record", moves=True), all_succeed=True, states_min=216),
    Cell(
        name="place elsewhere, compaction: record", actors=(OTHER, COMPACTION), prelude=placed("record"), all_succeed=True, states_min=156
    ),
    Cell(
        name="update, round of maintenance: record, copy on write",
        actors=(PLACES[0], play("maintenance", 3, Maintain())),
        prelude=placed("record", COPY_ON_WRITE),
        states_min=801,
    ),
    Cell(
        name="place elsewhere, round of maintenance: record, copy on write",
        actors=(OTHER, play("maintenance", 3, Maintain())),
        prelude=placed("record", COPY_ON_WRITE),
        states_min=1_032,
    ),
    Cell(
        name="compaction, compaction: record",
        actors=(COMPACTION, play("compaction", 4, Compact())),
        prelude=placed("record"),
        all_succeed=True,
        states_min=140,
    ),
    alone(CLUSTERING, two_placed("record"), faults_max=1, states_min=250),
    beside_clustering("update: bloom", PLACES[0], two_placed("bloom"), 267),
    beside_clustering("update: memory", PLACES[0], two_placed("memory"), 267),
    beside_clustering("update: record", PLACES[0], two_placed("record"), 293),
    beside_clustering("update: record, copy on write", PLACES[0], two_placed("record", COPY_ON_WRITE), 295),
    beside_clustering("place elsewhere: record", OTHER, placed("record"), 187),
    beside_clustering("move: record", MOVES[0], placed("record", moves=True), 221),
    beside_clustering("compaction: record", COMPACTION, two_placed("record"), 330),
    beside_clustering("other clustering: record", play("other clustering", 5, Sort()), two_placed("record"), 320),
    beside_clustering("restore: record", play("restore", 6, Restore(1)), two_placed("record"), 275, all_succeed=False),
    beside_clustering("clean: record", play("clean", 7, Clean()), two_placed("record"), 175, all_succeed=False),
    Cell(
        name="update after update, clustering: record",
        actors=(PLACES[0], PLACES[1], CLUSTERING),
        prelude=placed("record"),
        all_succeed=True,
        states_min=6_150,
        slow=True,
    ),
    Cell(
        name="update, clustering: record, 1 crash at the log",
        actors=(PLACES[0], CLUSTERING),
        prelude=placed("record"),
        crashes_max=1,
        where=LOG,
        faults=FRESH,
        states_min=286,
    ),
    Cell(
        name="place, place: record, 1 fault at the log",
        actors=PLACES,
        prelude=table("record"),
        faults_max=1,
        where=LOG,
        faults=FRESH,
        all_succeed=True,
        states_min=1_360,
        slow=True,
    ),
)
