"""What services do: compaction, splits, cleaning, checkpoints, archives, sweeps. A role is a frozen dataclass that is called once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from objcat.catalog.table_lifecycle import change_properties
from objcat.maintenance.clean import clean
from objcat.maintenance.cluster import cluster
from objcat.maintenance.cluster_keys import Clustering
from objcat.maintenance.compact import compact, execute_scheduled, plan_compaction, schedule_compaction
from objcat.maintenance.maintain import maintain
from objcat.maintenance.restore import restore
from objcat.maintenance.savepoint import release, savepoint
from objcat.maintenance.split_buckets import split_buckets
from objcat.metadata.files import files_named_by
from objcat.metadata.maintenance_policy import Retention
from objcat.metadata.manifest import Manifests
from objcat.timeline.archive import archive
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.dead_writers import rollback_dead_writers
from objcat.timeline.entry import FileGroupId, Txn
from tests.explorer.actors import Acknowledged, Participant, Stated
from tests.explorer.roles import BUCKETS, WatchedCommitter, mark_of, note_outcome, open_warm, warm_view

PLAN_TXN = "20270115T080000000Z-ee00000000000001"


@dataclass(frozen=True, slots=True)
class Compact:
    """Compacts every file group that has log rows, or only one. bucket: of that one."""

    bucket: int | None = None

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        group_ids = None if self.bucket is None else [FileGroupId("", self.bucket, BUCKETS)]
        done = compact(timeline, table, file_groups=group_ids)
        if done is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Sort:
    """Brings the rows of every file group into the order of their values."""

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        done = cluster(timeline, table, Clustering(by=("v",)))
        if done is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Execute:
    """Executes one plan of a compaction, made by somebody else as of a slot."""

    slot: int

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        view = timeline.at(self.slot)
        plan = plan_compaction(view, table, Manifests(me.fileio))
        assert plan is not None
        done = compact(timeline, table, plan=replace(plan, txn=Txn(PLAN_TXN)))
        assert done is not None
        me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Leaves a plan of a compaction for whoever executes it."""

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        schedule_compaction(timeline, table)


@dataclass(frozen=True, slots=True)
class ExecuteScheduled:
    """Executes the plans that wait."""

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        for executed in execute_scheduled(timeline, table):
            if executed.result is not None:
                me.note(Acknowledged(executed.result.txn, executed.result.slot))


@dataclass(frozen=True, slots=True)
class Maintain:
    """Does what is due: a round of maintenance."""

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        maintain(timeline, table, verify_bytes_max=0)


@dataclass(frozen=True, slots=True)
class CleanAllBut:
    """Cleans all but what the newest commits left."""

    commits: int

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        done = clean(timeline, table, retention=Retention(commits=self.commits))
        if done.txn is not None and done.slot is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Split:
    """Gives the table twice as many buckets as it was made with."""

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        done = split_buckets(timeline, table, count=2 * BUCKETS)
        if done is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Clean:
    """Cleans all but the newest slots."""

    keep_slots: int = 1

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        done = clean(timeline, table, keep_slots=self.keep_slots)
        if done.txn is not None and done.slot is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Save:
    """Sets a savepoint, or releases one."""

    slot: int
    release: bool = False

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        done = (release if self.release else savepoint)(timeline, table, slot=self.slot)
        if done is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Restore:
    """Restores the table to a slot."""

    to: int

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        done = restore(timeline, table, to=self.to)
        me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Publish:
    """Opens the table, and publishes a checkpoint when there is something to save. slot: as it was then; None: as it is."""

    slot: int | None = None

    def __call__(self, me: Participant) -> None:
        timeline, _ = open_warm(me)
        timeline.publish(timeline.open() if self.slot is None else timeline.at(self.slot))


@dataclass(frozen=True, slots=True)
class Collect:
    """Collects all checkpoints but the newest one."""

    def __call__(self, me: Participant) -> None:
        timeline, _ = open_warm(me)
        collect_checkpoints(timeline, WatchedCommitter(me), keep=1)


@dataclass(frozen=True, slots=True)
class Archive:
    """Moves what the newest checkpoint covers to history files."""

    def __call__(self, me: Participant) -> None:
        timeline, _ = open_warm(me)
        archive(timeline, keep_slots=1)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Settles whatever has left traces, however young it is."""

    def __call__(self, me: Participant) -> None:
        timeline, _ = open_warm(me)
        for swept in rollback_dead_writers(timeline, timeline.open(), older_than_s=0, names_of=files_named_by):
            note_outcome(me, swept.txn, swept.outcome)


@dataclass(frozen=True, slots=True)
class SetProperty:
    """Sets a property of the table to what its writer is called."""

    name: str

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        change_properties(timeline, warm_view(me), table, set_={self.name: mark_of(me)}, unset=())
        me.note(Stated(table, self.name, mark_of(me)))
