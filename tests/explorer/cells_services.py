"""The named cells of services, of tables that are rewritten, of applications and of checkpoints."""

from __future__ import annotations

from dataclasses import replace

from tests.explorer.actors import Actor
from tests.explorer.cast import (
    COMPACTED,
    COUNTERS,
    CREATE_1,
    FRESH,
    LATE,
    LOG,
    MORE_ROWS,
    READER,
    ROWS,
    SMALL,
    inserter,
    play,
    rollback,
    writer,
)
from tests.explorer.engine import Cell, Settings
from tests.explorer.roles import CREATED, Abandon, InTurn, Place, Read, RollBack, Scan, Settle, Write
from tests.explorer.roles_services import (
    PLAN_TXN,
    Archive,
    Clean,
    CleanAllBut,
    Collect,
    Compact,
    Execute,
    ExecuteScheduled,
    Maintain,
    Publish,
    Restore,
    Save,
    Schedule,
    SetProperty,
    Sort,
    Split,
    Sweep,
)

COMPACTION = play("compaction", 5, Compact())
OTHER_COMPACTION = play("compaction", 6, Compact())
SORT = play("sort", 7, Sort())
SORTED = (*MORE_ROWS, Actor("former sort", 14, Sort()))
"""Both file groups in the order of their values, at slot 3."""
CLEAN = play("clean", 5, Clean())
SPLIT = play("split", 5, Split())
RESTORE = play("restore", 5, Restore(1))
EXECUTORS = (play("executor", 5, Execute(1)), play("executor", 6, Execute(1)))
STREAM = (Actor("zombie", 1, Write(app_version=1)), Actor("restarted", 2, Write(app_version=1)))

SCHEDULED = (*ROWS, Actor("former scheduler", 14, Schedule()))
WORKERS = (play("worker", 5, ExecuteScheduled()), play("worker", 6, ExecuteScheduled()))
DUE = (("objcat.maintenance.maintain", "COMPACT_AFTER_COMMITS", 1),)
MAINTENANCE = play("maintenance", 5, Maintain())
SOLO_ROUND_STEPS_MAX = 150
"""A round of maintenance is several services, one after the other."""
LESS_CLEAN = play("clean", 6, Clean(2))
RELEASE = play("release", 6, Save(2, release=True))
SCAN = Actor("reader", 9, Scan())
SAVED = (*COMPACTED, Actor("former save", 11, Save(2)))
PLACES = (play("place", 1, Place()), play("place", 2, Place()))
DIGESTS_ASIDE = (("objcat.timeline.side_objects", "INLINE_DIGESTS_MAX", 0),)
CHECKPOINT = play("checkpoint", 5, Publish())
OTHER_CHECKPOINT = play("checkpoint", 6, Publish())
ARCHIVE = play("archive", 6, Archive())
OTHER_ARCHIVE = play("archive", 7, Archive())
SWEEP = play("sweep", 4, Sweep())
PROPERTY = play("property", 5, SetProperty("a"))
OTHER_PROPERTY = play("property", 6, SetProperty("b"))
LEFTOVERS = play("later clean", 7, Clean())
CLEANED = (*COMPACTED, Actor("third", 11, Write((0, 1))), Actor("second compaction", 10, Compact()))
LONGER = (*MORE_ROWS, Actor("third", 11, Write((0, 1))), Actor("fourth", 10, Write((0, 1))))
BATCHED = (*ROWS, Actor("former batch", 11, Write(app_version=1)))
CHECKPOINTED = (*MORE_ROWS, Actor("former checkpoint", 14, Publish()))
OVERTAKEN = (
    *CHECKPOINTED,
    Actor("third", 11, InTurn((Write(), Write()))),
    Actor("fourth", 10, InTurn((Write(), Write(), Publish()))),
)
"""Checkpoints at the slots 2 and 6: who opened the log at slot 4 may yet publish that."""
TWICE_CHECKPOINTED = (*CHECKPOINTED, Actor("third", 11, InTurn((Write(), Write(), Publish()))))
COLLECTION = play("collection", 7, Collect())
LATE_CHECKPOINT = play("checkpoint", 5, Publish(4))
COLD_READER = Actor("reader", 9, Read(1))
ABANDONED = (*ROWS, Actor("abandoned", 11, Abandon()))
LOG_AND_DATA = ("t/log/", "t/data/")


def alone(
    actor: Actor, prelude: tuple[Actor, ...], settings: Settings = (), *, faults_max: int = 2, states_min: int, slow: bool = False
) -> Cell:
    """An actor alone, with a fault and a crash anywhere: who meets others, meets faults only at the log."""
    faults = "1 fault" if faults_max == 1 else f"{faults_max} faults"
    how = f"{', small' if settings else ''}{', without retries' if actor.attempts_max == 1 else ''}"
    return Cell(
        name=f"{actor.name} alone, history of {len(prelude)}{how}: {faults}, 1 crash",
        actors=(actor,),
        prelude=prelude,
        settings=settings,
        faults_max=faults_max,
        crashes_max=1,
        faults=FRESH,
        states_min=states_min,
        slow=slow,
    )


ALONE_CELLS = (
    alone(CREATE_1, (), states_min=310),
    alone(inserter(2, 0, 1), CREATED, states_min=576),
    alone(STREAM[0], ROWS, states_min=282),
    alone(rollback(3, 11), ABANDONED, states_min=1_170),
    alone(READER, MORE_ROWS, states_min=490),
    alone(COMPACTION, MORE_ROWS, faults_max=1, states_min=270),
    alone(COMPACTION, MORE_ROWS, states_min=2_890, slow=True),
    alone(play("executor", 5, Execute(1)), ROWS, faults_max=1, states_min=140),
    alone(play("executor", 5, Execute(1)), ROWS, states_min=1_270, slow=True),
    alone(play("scheduler", 5, Schedule()), ROWS, faults_max=3, states_min=222),
    alone(WORKERS[0], SCHEDULED, faults_max=1, states_min=170),
    alone(MAINTENANCE, ABANDONED, DUE, faults_max=1, states_min=733),
    alone(CLEAN, COMPACTED, faults_max=1, states_min=220),
    alone(CLEAN, COMPACTED, states_min=1_900, slow=True),
    alone(LEFTOVERS, CLEANED, faults_max=1, states_min=250),
    alone(LEFTOVERS, CLEANED, states_min=2_280, slow=True),
    alone(play("save", 6, Save(2)), COMPACTED, states_min=1_190),
    alone(RELEASE, SAVED, states_min=860),
    alone(play("restore", 6, Restore(2)), COMPACTED, states_min=1_190),
    alone(SPLIT, ROWS, states_min=570),
    alone(PROPERTY, ROWS, states_min=310),
    alone(SCAN, COMPACTED, states_min=480),
    alone(play("place", 1, Place()), ROWS, DIGESTS_ASIDE, states_min=761),
    alone(CHECKPOINT, MORE_ROWS, SMALL, states_min=1_020),
    alone(ARCHIVE, CHECKPOINTED, SMALL, states_min=1_240),
    alone(SCAN, CHECKPOINTED, SMALL, states_min=270),
    # Two faults at one put: it is lost, and so is the last look at what became of it.
    alone(replace(CHECKPOINT, attempts_max=1), MORE_ROWS, SMALL, states_min=170),
    alone(replace(ARCHIVE, attempts_max=1), CHECKPOINTED, SMALL, states_min=210),
    alone(play("place", 1, Place(), attempts_max=1), ROWS, DIGESTS_ASIDE, states_min=248),
    alone(SWEEP, ABANDONED, states_min=4_090),
    alone(COLLECTION, TWICE_CHECKPOINTED, SMALL, states_min=5_720),
)

SERVICE_CELLS: tuple[Cell, ...] = (
    *ALONE_CELLS,
    # Compaction.
    Cell(name="write, compaction, write", actors=(writer(1), COMPACTION, writer(2)), prelude=ROWS, all_succeed=True, states_min=666),
    Cell(
        name="write, compaction: 1 fault at the log",
        actors=(writer(1), COMPACTION),
        prelude=ROWS,
        all_succeed=True,
        where=LOG,
        faults_max=1,
        faults=FRESH,
        states_min=630,
    ),
    Cell(
        name="write, compaction: 1 fault, 1 crash at the log",
        actors=(writer(1), COMPACTION),
        prelude=ROWS,
        faults_max=1,
        crashes_max=1,
        where=LOG,
        faults=FRESH,
        states_min=1_120,
    ),
    Cell(name="compaction, compaction", actors=(COMPACTION, OTHER_COMPACTION), prelude=MORE_ROWS, all_succeed=True, states_min=270),
    Cell(
        name="compaction, compaction: 1 fault at the log",
        actors=(COMPACTION, OTHER_COMPACTION),
        prelude=ROWS,
        all_succeed=True,
        where=LOG,
        faults_max=1,
        faults=FRESH,
        states_min=1_550,
        slow=True,
    ),
    Cell(name="insert, compaction", actors=(inserter(1, 0, 1), COMPACTION), prelude=ROWS, all_succeed=True, states_min=89),
    Cell(name="compaction, rollback", actors=(COMPACTION, rollback(3, 5)), prelude=ROWS, states_min=244),
    Cell(name="two executors of one plan", actors=EXECUTORS, prelude=ROWS, states_min=110),
    Cell(
        name="two executors of one plan: 1 fault at the log",
        actors=EXECUTORS,
        prelude=ROWS,
        where=LOG,
        faults_max=1,
        faults=FRESH,
        states_min=1_290,
    ),
    Cell(
        name="write and compaction, compaction",
        actors=(Actor("tidy writer", 1, InTurn((Write(), Compact()))), COMPACTION),
        prelude=ROWS,
        states_min=550,
    ),
    # Clustering within file groups.
    alone(SORT, MORE_ROWS, faults_max=1, states_min=250),
    Cell(name="write, sort, write", actors=(writer(1), SORT, writer(2)), prelude=ROWS, all_succeed=True, states_min=666),
    Cell(name="write, write to what is sorted", actors=(writer(1), writer(2), SCAN), prelude=SORTED, states_min=980),
    Cell(
        name="write and compaction, sort",
        actors=(Actor("tidy writer", 1, InTurn((Write(), Compact()))), SORT),
        prelude=ROWS,
        states_min=500,
    ),
    Cell(name="compaction, sort", actors=(COMPACTION, SORT), prelude=MORE_ROWS, all_succeed=True, states_min=300),
    Cell(name="sort, split", actors=(SORT, SPLIT), prelude=ROWS, states_min=150),
    Cell(name="restore, sort", actors=(play("restore", 6, Restore(2)), SORT), prelude=SORTED[:3], states_min=250),
    Cell(
        name="write, sort: 1 fault, 1 crash at the log",
        actors=(writer(1), SORT),
        prelude=ROWS,
        faults_max=1,
        crashes_max=1,
        where=LOG,
        faults=FRESH,
        states_min=1_120,
    ),
    # Cleaning, savepoints.
    Cell(name="write, write, clean", actors=(writer(1), writer(2), CLEAN), prelude=COMPACTED, states_min=954),
    Cell(
        name="write, clean: 1 fault at the log",
        actors=(writer(1), CLEAN),
        prelude=COMPACTED,
        where=LOG,
        faults_max=1,
        faults=FRESH,
        states_min=1_320,
    ),
    Cell(name="write, clean, scan", actors=(writer(1), CLEAN, SCAN), prelude=COMPACTED, states_min=3_530),
    Cell(name="compaction, clean, scan", actors=(OTHER_COMPACTION, CLEAN, SCAN), prelude=ROWS, states_min=2_030),
    Cell(
        name="clean, clean: 1 fault, 1 crash",
        actors=(CLEAN, LESS_CLEAN),
        prelude=COMPACTED,
        faults_max=1,
        crashes_max=1,
        faults=FRESH,
        where=LOG_AND_DATA,
        states_min=4_230,
    ),
    Cell(
        name="write, clean after a compaction of one file group",
        actors=(writer(1), CLEAN),
        prelude=(*MORE_ROWS, Actor("former compaction", 14, Compact(0))),
        states_min=89,
    ),
    Cell(
        name="write, clean after a restore",
        actors=(writer(1), LESS_CLEAN),
        prelude=(*COMPACTED, Actor("former restore", 11, Restore(2))),
        states_min=115,
    ),
    Cell(name="worker, worker", actors=WORKERS, prelude=SCHEDULED, states_min=300),
    *(
        Cell(
            name=f"worker, worker: {'1 fault, ' if faults_max else ''}1 crash at the log",
            actors=WORKERS,
            prelude=SCHEDULED,
            faults_max=faults_max,
            crashes_max=1,
            where=LOG,
            faults=FRESH,
            states_min=4_100 if faults_max else 410,
            slow=bool(faults_max),
        )
        for faults_max in (0, 1)
    ),
    Cell(name="worker, worker: 1 crash", actors=WORKERS, prelude=SCHEDULED, crashes_max=1, states_min=520),
    Cell(name="worker, sweep", actors=(WORKERS[0], SWEEP), prelude=SCHEDULED, states_min=1_760),
    Cell(name="scheduler, worker, write", actors=(play("scheduler", 6, Schedule()), WORKERS[0], writer(1)), prelude=ROWS, states_min=117),
    Cell(
        name="worker, compaction, write", actors=(WORKERS[0], OTHER_COMPACTION, writer(1)), prelude=SCHEDULED, states_min=3_090, slow=True
    ),
    Cell(
        name="maintenance, write",
        actors=(MAINTENANCE, writer(1)),
        prelude=ROWS,
        settings=DUE,
        all_succeed=True,
        states_min=521,
        solo_steps_max=SOLO_ROUND_STEPS_MAX,
    ),
    Cell(
        name="maintenance, write: 1 fault at the log",
        actors=(MAINTENANCE, writer(1)),
        prelude=ROWS,
        settings=DUE,
        faults_max=1,
        faults=FRESH,
        where=LOG,
        states_min=12_800,
        solo_steps_max=SOLO_ROUND_STEPS_MAX,
    ),
    Cell(
        name="maintenance, maintenance",
        actors=(MAINTENANCE, play("maintenance", 6, Maintain())),
        prelude=ROWS,
        settings=DUE,
        states_min=12_300,
        solo_steps_max=SOLO_ROUND_STEPS_MAX,
    ),
    Cell(name="clean by commits, write", actors=(play("clean", 5, CleanAllBut(1)), writer(1)), prelude=COMPACTED, states_min=59),
    Cell(name="save, clean", actors=(play("save", 6, Save(2)), CLEAN), prelude=COMPACTED, states_min=320),
    Cell(
        name="save, clean: 1 fault at the log",
        actors=(play("save", 6, Save(2)), CLEAN),
        prelude=COMPACTED,
        faults_max=1,
        faults=FRESH,
        where=LOG,
        states_min=6_190,
        slow=True,
    ),
    Cell(name="release, clean", actors=(RELEASE, CLEAN), prelude=SAVED, states_min=210),
    Cell(name="release, restore, clean", actors=(RELEASE, play("restore", 7, Restore(2)), CLEAN), prelude=SAVED, states_min=7_420),
    Cell(name="restore, clean", actors=(play("restore", 6, Restore(2)), CLEAN), prelude=COMPACTED, states_min=330),
    Cell(
        name="restore, clean: 1 fault at the log",
        actors=(play("restore", 6, Restore(2)), CLEAN),
        prelude=COMPACTED,
        faults_max=1,
        faults=FRESH,
        where=LOG,
        states_min=6_700,
        slow=True,
    ),
    Cell(name="savepoint, write, clean", actors=(writer(1), CLEAN), prelude=SAVED, states_min=76),
    Cell(name="savepoint, restore, clean", actors=(play("restore", 6, Restore(1)), CLEAN), prelude=SAVED, states_min=260),
    Cell(name="clean, clean, save", actors=(CLEAN, LESS_CLEAN, play("save", 7, Save(4))), prelude=CLEANED, states_min=23_000),
    # Keys of an index that has to be asked.
    Cell(name="place, place", actors=PLACES, all_succeed=True, states_min=80),
    Cell(name="place, place: 1 fault at the log", actors=PLACES, faults_max=1, where=LOG, faults=FRESH, all_succeed=True, states_min=733),
    Cell(
        name="place, place, digests in objects",
        actors=PLACES,
        settings=DIGESTS_ASIDE,
        all_succeed=True,
        states_min=102,
    ),
    Cell(
        name="place, place, digests in objects: 1 fault, 1 crash there",
        actors=PLACES,
        settings=DIGESTS_ASIDE,
        where=("t/data/",),
        faults=FRESH,
        faults_max=1,
        crashes_max=1,
        states_min=1_720,
    ),
    # Splits.
    Cell(
        name="split, compaction: 1 fault, 1 crash at the data",
        actors=(SPLIT, OTHER_COMPACTION),
        prelude=ROWS,
        where=("t/data/",),
        faults=FRESH,
        faults_max=1,
        crashes_max=1,
        states_min=1_370,
    ),
    Cell(name="split, write", actors=(SPLIT, writer(1)), prelude=ROWS, all_succeed=True, states_min=48),
    Cell(
        name="split, write: 1 fault, 1 crash at the log",
        actors=(SPLIT, writer(1)),
        prelude=ROWS,
        where=LOG,
        faults_max=1,
        crashes_max=1,
        states_min=1_000,
    ),
    Cell(name="split, compaction", actors=(SPLIT, OTHER_COMPACTION), prelude=MORE_ROWS, states_min=260),
    Cell(name="split, write, compaction", actors=(SPLIT, writer(1), OTHER_COMPACTION), prelude=ROWS, states_min=2_050, slow=True),
    Cell(name="split, write, read", actors=(SPLIT, writer(1), READER), prelude=ROWS, states_min=1_320),
    Cell(name="split, insert", actors=(SPLIT, inserter(1, 0, 1)), prelude=ROWS, states_min=86),
    Cell(name="split, rewrite", actors=(SPLIT, writer(1)), prelude=COUNTERS, states_min=86),
    # Restores.
    Cell(name="restore, write", actors=(RESTORE, writer(1)), prelude=MORE_ROWS, states_min=72),
    Cell(
        name="restore, write: 1 fault at the log", actors=(RESTORE, writer(1)), prelude=MORE_ROWS, where=LOG, faults_max=1, states_min=939
    ),
    Cell(name="restore, rewrite", actors=(RESTORE, writer(1)), prelude=(*COUNTERS, Actor("second", 13, Write((0,)))), states_min=114),
    Cell(name="restore, compaction", actors=(RESTORE, OTHER_COMPACTION), prelude=MORE_ROWS, states_min=270),
    # Applications.
    Cell(name="one batch, twice", actors=STREAM, states_min=41),
    Cell(name="one batch, twice: 2 faults at the log", actors=STREAM, faults_max=2, faults=FRESH, where=LOG, states_min=2_970),
    Cell(name="one batch, twice, rollback", actors=(*STREAM, rollback(3, 1)), states_min=1_330),
    Cell(
        name="one batch, restore, one batch", actors=(play("restore", 5, Restore(1)), STREAM[0], STREAM[1]), prelude=BATCHED, states_min=210
    ),
    # Properties.
    Cell(name="property, write", actors=(PROPERTY, writer(1)), prelude=ROWS, all_succeed=True, states_min=27),
    Cell(
        name="property, write: 1 fault, 1 crash at the log",
        actors=(PROPERTY, writer(1)),
        prelude=ROWS,
        faults_max=1,
        crashes_max=1,
        where=LOG,
        states_min=561,
    ),
    Cell(name="property, write: 2 faults", actors=(PROPERTY, writer(1)), prelude=ROWS, faults_max=2, states_min=8_200, slow=True),
    Cell(name="property, property", actors=(PROPERTY, OTHER_PROPERTY), all_succeed=True, states_min=50),
    Cell(
        name="property, property: 1 fault, 1 crash at the log",
        actors=(PROPERTY, OTHER_PROPERTY),
        faults_max=1,
        crashes_max=1,
        where=LOG,
        states_min=1_300,
    ),
    Cell(
        name="property, restore, write", actors=(PROPERTY, play("restore", 6, Restore(1)), writer(1)), prelude=MORE_ROWS, states_min=1_150
    ),
    Cell(
        name="property, compaction, split",
        actors=(PROPERTY, OTHER_COMPACTION, play("split", 7, Split())),
        prelude=ROWS,
        states_min=3_060,
        slow=True,
    ),
    # Archives, sweeps.
    Cell(name="archive, write, scan", actors=(ARCHIVE, writer(1), SCAN), prelude=CHECKPOINTED, settings=SMALL, states_min=1_620),
    Cell(
        name="archive, archive: 1 fault, 1 crash at the history files",
        actors=(ARCHIVE, OTHER_ARCHIVE),
        prelude=CHECKPOINTED,
        settings=SMALL,
        where=("t/history/",),
        faults_max=1,
        crashes_max=1,
        faults=FRESH,
        states_min=2_320,
    ),
    Cell(
        name="archive, archive: 1 fault at the log",
        actors=(ARCHIVE, OTHER_ARCHIVE),
        prelude=CHECKPOINTED,
        settings=SMALL,
        where=LOG,
        faults_max=1,
        faults=FRESH,
        states_min=4_010,
        slow=True,
    ),
    Cell(
        name="write, rollback, checkpoint, archive",
        actors=(writer(1), rollback(3, 1), CHECKPOINT, ARCHIVE),
        prelude=ROWS,
        settings=SMALL,
        states_min=12_900,
        slow=True,
    ),
    Cell(
        name="stalled write, archive",
        actors=(writer(1), Actor("tidy", 4, InTurn((RollBack((1,)), Write((1,)), Write((1,)), Publish(), Archive())))),
        prelude=ROWS,
        settings=SMALL,
        states_min=1_930,
    ),
    Cell(
        name="stalled rollback, archive",
        actors=(rollback(3, 1), Actor("tidy", 1, InTurn((Write(), Publish(), Archive())))),
        prelude=ROWS,
        settings=SMALL,
        states_min=780,
    ),
    Cell(name="write, sweep", actors=(writer(1), SWEEP), prelude=ROWS, states_min=119),
    Cell(name="write, sweep: 1 crash", actors=(writer(1), SWEEP), prelude=ROWS, crashes_max=1, states_min=245),
    Cell(name="rewrite, rewrite, sweep", actors=(writer(1), writer(2), SWEEP), prelude=COUNTERS, states_min=8_890, slow=True),
    Cell(
        name="executor, rollback of its plan",
        actors=(play("executor", 5, Execute(1)), play("rollback", 3, Settle(PLAN_TXN))),
        prelude=ROWS,
        states_min=140,
    ),
    # Checkpoints.
    Cell(
        name="checkpoint, write and read",
        actors=(CHECKPOINT, Actor("writer", 1, InTurn((Write(), Read(1))))),
        prelude=MORE_ROWS,
        settings=SMALL,
        all_succeed=True,
        states_min=360,
    ),
    Cell(
        name="checkpoint, late read",
        actors=(CHECKPOINT, Actor("reader", 9, Read(1))),
        prelude=LONGER,
        settings=SMALL,
        all_succeed=True,
        states_min=490,
    ),
    Cell(
        name="write, checkpoint, read",
        actors=(writer(1), CHECKPOINT, READER),
        prelude=MORE_ROWS,
        settings=SMALL,
        all_succeed=True,
        states_min=1_730,
    ),
    *(
        Cell(
            name=f"checkpoint, checkpoint: 1 {what} at the roots",
            actors=(CHECKPOINT, OTHER_CHECKPOINT),
            prelude=MORE_ROWS,
            settings=SMALL,
            where=("t/checkpoints/",),
            faults=FRESH,
            faults_max=faults_max,
            crashes_max=1 - faults_max,
            states_min=2_450 if faults_max else 340,
        )
        for what, faults_max in (("fault", 1), ("crash", 0))
    ),
    Cell(
        name="checkpoint, checkpoint",
        actors=(CHECKPOINT, OTHER_CHECKPOINT),
        prelude=MORE_ROWS,
        settings=SMALL,
        states_min=240,
    ),
    Cell(
        name="checkpoint, checkpoint: 1 fault, 1 crash at the roots",
        actors=(CHECKPOINT, OTHER_CHECKPOINT),
        prelude=MORE_ROWS,
        settings=SMALL,
        where=("t/checkpoints/",),
        faults_max=1,
        crashes_max=1,
        faults=FRESH,
        states_min=5_630,
        slow=True,
    ),
    Cell(
        name="checkpoint, read: 1 fault",
        actors=(CHECKPOINT, Actor("reader", 9, Read(1))),
        prelude=MORE_ROWS,
        settings=SMALL,
        faults_max=1,
        faults=FRESH,
        states_min=2_810,
    ),
    Cell(
        name="write, write, checkpoint, read",
        actors=(writer(1), writer(2), CHECKPOINT, Actor("reader", 9, Read(1))),
        prelude=ROWS,
        settings=SMALL,
        states_min=4_150,
    ),
    # Collection of checkpoints, beside a publisher that it overtakes.
    Cell(
        name="checkpoint, collection: 1 crash",
        actors=(LATE_CHECKPOINT, COLLECTION),
        crashes_max=1,
        prelude=OVERTAKEN,
        settings=SMALL,
        states_min=760,
    ),
    Cell(
        name="checkpoint, collection, read",
        actors=(LATE_CHECKPOINT, COLLECTION, COLD_READER),
        prelude=OVERTAKEN,
        settings=SMALL,
        states_min=11_000,
    ),
    Cell(
        name="checkpoint, collection: 1 late request at the roots",
        actors=(LATE_CHECKPOINT, COLLECTION),
        prelude=OVERTAKEN,
        settings=SMALL,
        where=("t/checkpoints/00000000000000000004/root", "t/checkpoints/00000000000000000006/root"),
        faults=LATE,
        faults_max=1,
        states_min=6_800,
    ),
)
