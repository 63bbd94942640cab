"""The named cells of services, of tables that are rewritten, of applications and of checkpoints."""

from __future__ import annotations

from tests.explorer.actors import Actor
from tests.explorer.cast import COMPACTED, COUNTERS, FRESH, LOG, MORE_ROWS, READER, REWRITTEN, ROWS, SMALL, inserter, play, rollback, writer
from tests.explorer.engine import Cell
from tests.explorer.roles import Clean, Compact, Execute, Place, Publish, Read, Restore, Save, Scan, Split, Write

COMPACTION = play("compaction", 5, Compact())
OTHER_COMPACTION = play("compaction", 6, Compact())
CLEAN = play("clean", 5, Clean())
SPLIT = play("split", 5, Split())
RESTORE = play("restore", 5, Restore(1))
EXECUTORS = (play("executor", 5, Execute(1)), play("executor", 6, Execute(1)))
STREAM = (Actor("zombie", 1, Write(app_version=1)), Actor("restarted", 2, Write(app_version=1)))

LESS_CLEAN = play("clean", 6, Clean(2))
RELEASE = play("release", 6, Save(2, release=True))
SCAN = Actor("reader", 9, Scan())
SAVED = (*COMPACTED, Actor("former save", 11, Save(2)))
PLACES = (play("place", 1, Place()), play("place", 2, Place()))
LOG_AND_DATA = ("t/log/", "t/data/")

SERVICE_CELLS: tuple[Cell, ...] = (
    # Compaction.
    Cell(name="write, compaction, write", actors=(writer(1), COMPACTION, writer(2)), prelude=ROWS, all_succeed=True, states_min=1_600),
    Cell(
        name="write, compaction: 1 fault",
        actors=(writer(1), COMPACTION),
        prelude=ROWS,
        all_succeed=True,
        faults_max=1,
        faults=FRESH,
        states_min=2_900,
    ),
    Cell(
        name="write, compaction: 1 fault, 1 crash at the log",
        actors=(writer(1), COMPACTION),
        prelude=ROWS,
        faults_max=1,
        crashes_max=1,
        where=LOG,
        faults=FRESH,
        states_min=1,
    ),
    Cell(name="compaction, compaction", actors=(COMPACTION, OTHER_COMPACTION), prelude=MORE_ROWS, all_succeed=True, states_min=1),
    Cell(
        name="compaction, compaction: 1 fault",
        actors=(COMPACTION, OTHER_COMPACTION),
        prelude=ROWS,
        all_succeed=True,
        faults_max=1,
        faults=FRESH,
        states_min=1,
    ),
    Cell(name="insert, compaction", actors=(inserter(1, 0, 1), COMPACTION), prelude=ROWS, all_succeed=True, states_min=1),
    Cell(name="compaction, rollback", actors=(COMPACTION, rollback(3, 5)), prelude=ROWS, states_min=1),
    Cell(name="two executors of one plan", actors=EXECUTORS, prelude=ROWS, states_min=1),
    Cell(name="two executors of one plan: 1 fault", actors=EXECUTORS, prelude=ROWS, faults_max=1, faults=FRESH, states_min=1),
    # Cleaning, savepoints.
    Cell(name="write, write, clean", actors=(writer(1), writer(2), CLEAN), prelude=COMPACTED, states_min=1),
    Cell(name="write, clean: 1 fault", actors=(writer(1), CLEAN), prelude=COMPACTED, faults_max=1, faults=FRESH, states_min=1),
    Cell(name="write, clean, scan", actors=(writer(1), CLEAN, SCAN), prelude=COMPACTED, states_min=1),
    Cell(name="compaction, clean, scan", actors=(OTHER_COMPACTION, CLEAN, SCAN), prelude=ROWS, states_min=1),
    Cell(
        name="clean, clean: 1 fault, 1 crash",
        actors=(CLEAN, LESS_CLEAN),
        prelude=COMPACTED,
        faults_max=1,
        crashes_max=1,
        faults=FRESH,
        where=LOG_AND_DATA,
        states_min=1,
    ),
    Cell(name="save, clean", actors=(play("save", 6, Save(2)), CLEAN), prelude=COMPACTED, states_min=1),
    Cell(
        name="save, clean: 1 fault at the log",
        actors=(play("save", 6, Save(2)), CLEAN),
        prelude=COMPACTED,
        faults_max=1,
        faults=FRESH,
        where=LOG,
        states_min=1,
    ),
    Cell(name="release, clean", actors=(RELEASE, CLEAN), prelude=SAVED, states_min=1),
    Cell(name="release, restore, clean", actors=(RELEASE, play("restore", 7, Restore(2)), CLEAN), prelude=SAVED, states_min=1),
    Cell(name="restore, clean", actors=(play("restore", 6, Restore(2)), CLEAN), prelude=COMPACTED, states_min=1),
    Cell(
        name="restore, clean: 1 fault at the log",
        actors=(play("restore", 6, Restore(2)), CLEAN),
        prelude=COMPACTED,
        faults_max=1,
        faults=FRESH,
        where=LOG,
        states_min=1,
    ),
    # Keys of an index that has to be asked.
    Cell(name="place, place", actors=PLACES, all_succeed=True, states_min=1),
    Cell(name="place, place: 1 fault at the log", actors=PLACES, faults_max=1, where=LOG, faults=FRESH, all_succeed=True, states_min=1),
    Cell(
        name="place, place, digests in objects",
        actors=PLACES,
        settings=(("objcat.timeline.side", "INLINE_DIGESTS_MAX", 0),),
        all_succeed=True,
        states_min=1,
    ),
    # Splits.
    Cell(name="split, write", actors=(SPLIT, writer(1)), prelude=ROWS, all_succeed=True, states_min=1),
    Cell(name="split, write: 1 fault, 1 crash", actors=(SPLIT, writer(1)), prelude=ROWS, faults_max=1, crashes_max=1, states_min=1),
    Cell(name="split, compaction", actors=(SPLIT, OTHER_COMPACTION), prelude=MORE_ROWS, states_min=1),
    Cell(name="split, write, compaction", actors=(SPLIT, writer(1, 0, 1), OTHER_COMPACTION), prelude=ROWS, states_min=1),
    # Copy on write: what a write adds to a row is computed from what it reads.
    Cell(name="rewrite, rewrite", actors=(writer(1), writer(2)), prelude=COUNTERS, all_succeed=True, states_min=1),
    Cell(name="rewrite of two homes, rewrite", actors=(writer(1, 0, 1), writer(2)), prelude=COUNTERS, all_succeed=True, states_min=1),
    Cell(
        name="rewrite, rewrite: 1 fault",
        actors=(writer(1), writer(2)),
        prelude=COUNTERS,
        faults_max=1,
        faults=FRESH,
        all_succeed=True,
        states_min=1,
    ),
    Cell(
        name="rewrite, rewrite: 2 faults at the log",
        actors=(writer(1), writer(2)),
        prelude=COUNTERS,
        faults_max=2,
        where=LOG,
        faults=FRESH,
        states_min=1,
        slow=True,
    ),
    Cell(name="rewrite, rewrite, rewrite", actors=(writer(1), writer(2), writer(3)), prelude=COUNTERS, all_succeed=True, states_min=1),
    Cell(
        name="rewrite, rollback: 1 fault at the log",
        actors=(writer(1), rollback(3, 1)),
        prelude=COUNTERS,
        faults_max=1,
        where=LOG,
        faults=FRESH,
        states_min=1,
    ),
    Cell(name="first rewrite, first rewrite", actors=(writer(1), writer(2)), prelude=REWRITTEN, all_succeed=True, states_min=1),
    Cell(name="rewrite, rewrite, read", actors=(writer(1), writer(2), READER), prelude=COUNTERS, all_succeed=True, states_min=1),
    # Restores.
    Cell(name="restore, write", actors=(RESTORE, writer(1)), prelude=MORE_ROWS, states_min=1),
    Cell(name="restore, write: 1 fault", actors=(RESTORE, writer(1)), prelude=MORE_ROWS, faults_max=1, states_min=1),
    Cell(name="restore, rewrite", actors=(RESTORE, writer(1)), prelude=(*COUNTERS, Actor("second", 13, Write((0,)))), states_min=1),
    Cell(name="restore, compaction", actors=(RESTORE, OTHER_COMPACTION), prelude=MORE_ROWS, states_min=1),
    # Applications.
    Cell(name="one batch, twice", actors=STREAM, states_min=80),
    Cell(name="one batch, twice: 2 faults at the log", actors=STREAM, faults_max=2, faults=FRESH, where=LOG, states_min=1),
    Cell(name="one batch, twice, rollback", actors=(*STREAM, rollback(3, 1)), states_min=1),
    # Checkpoints.
    Cell(
        name="write, checkpoint, read",
        actors=(writer(1), play("checkpoint", 5, Publish()), READER),
        prelude=MORE_ROWS,
        settings=SMALL,
        states_min=1,
    ),
    Cell(
        name="checkpoint, checkpoint",
        actors=(play("checkpoint", 5, Publish()), play("checkpoint", 6, Publish())),
        prelude=MORE_ROWS,
        settings=SMALL,
        states_min=1,
    ),
    Cell(
        name="checkpoint, checkpoint: 1 fault, 1 crash at the roots",
        actors=(play("checkpoint", 5, Publish()), play("checkpoint", 6, Publish())),
        prelude=MORE_ROWS,
        settings=SMALL,
        where=("t/checkpoints/",),
        faults_max=1,
        crashes_max=1,
        faults=FRESH,
        states_min=1,
    ),
    Cell(
        name="checkpoint, read: 1 fault",
        actors=(play("checkpoint", 5, Publish()), Actor("reader", 9, Read(1))),
        prelude=MORE_ROWS,
        settings=SMALL,
        faults_max=1,
        faults=FRESH,
        states_min=1,
    ),
    Cell(
        name="write, write, checkpoint, read",
        actors=(writer(1), writer(2), play("checkpoint", 5, Publish()), Actor("reader", 9, Read(1))),
        prelude=ROWS,
        settings=SMALL,
        states_min=1,
    ),
)
