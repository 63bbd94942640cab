"""`TableMaintenance`: the table services of one table, as `table.maintenance` has them; and a round of maintenance of many tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow.compute as pc

from fileio.env import Env, map_io
from fileio.errors import FileIOError
from objcat.common.memory_errors import reports_full_memory
from objcat.common.progress import shown_progress
from objcat.common.validation import name_list, seconds, whole_number
from objcat.errors import InvalidInput, ObjcatError
from objcat.inspection.verify_files import VERIFIED_BYTES
from objcat.maintenance.clean import CleanPlan, CleanResult, clean, plan_clean
from objcat.maintenance.cluster import ClusteringResult, cluster
from objcat.maintenance.cluster_keys import Clustering
from objcat.maintenance.compact import (
    CompactionPlan,
    CompactionResult,
    Executed,
    compact,
    execute_scheduled,
    schedule_compaction,
    scheduled_compactions,
)
from objcat.maintenance.compaction_strategy import CompactionStrategy
from objcat.maintenance.maintain import MaintenanceReport, MaintenanceStep, maintain
from objcat.maintenance.metrics import prometheus_text, samples_of
from objcat.maintenance.savepoint import SavepointResult, release, savepoint
from objcat.maintenance.split_buckets import SplitResult, split_buckets
from objcat.metadata.files import files_named_by
from objcat.metadata.maintenance_policy import Retention, policy_of
from objcat.table.context import TableContext
from objcat.timeline.archive import Archived, archive
from objcat.timeline.checkpoint_expiry import CollectedCheckpoints, collect_checkpoints
from objcat.timeline.dead_writers import RolledBackWriter, rollback_dead_writers
from objcat.timeline.entry import FileGroupId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("objcat")

R = TypeVar("R")


def maintain_tables(
    names: Sequence[str],
    open_table: Callable[[str], TableMaintenance],
    env: Env,
    *,
    io_bytes_max: int | None,
    seconds_max: float | None,
    verify_bytes_max: int = VERIFIED_BYTES,
    spark: SparkSession | None = None,
) -> list[MaintenanceReport]:
    """A round of upkeep of some tables, within one budget for all: in the order of the names, from any of them on, so that a budget that is
    too small reaches all of them in time, and several machines do not begin with the same. What cannot be opened is left, and said so."""
    if io_bytes_max is not None:
        whole_number(io_bytes_max, what="io_bytes_max", least=1)
    if seconds_max is not None:
        seconds(seconds_max, what="seconds_max")
    first = int(env.random() * len(names))
    left, began_s = io_bytes_max, env.monotonic_s()
    done: list[MaintenanceReport] = []
    with shown_progress(env, "objcat: maintain", len(names), unit="tables") as advance:
        for name in (*names[first:], *names[:first]):
            time_left = None if seconds_max is None else max(0.0, seconds_max - (env.monotonic_s() - began_s))
            try:
                maintained = open_table(name).run(io_bytes_max=left, seconds_max=time_left, verify_bytes_max=verify_bytes_max, spark=spark)
            except (ObjcatError, FileIOError) as error:
                maintained = MaintenanceReport(
                    table=name, steps=(MaintenanceStep(service="open", done=False, why=str(error), failed=True),)
                )
            if left is not None:
                left = max(1, left - maintained.io_bytes)
            done.append(maintained)
            advance(1)
    return sorted(done, key=lambda maintained: maintained.table)


@reports_full_memory
class TableMaintenance:
    """The table services of one table: what `table.maintenance` is. Safe for many threads.

    Every service may run at any time, beside every writer and every other service. Where one takes `spark`, the executors of that session
    do its work, each opening the store for itself; this process when None.
    """

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"TableMaintenance({self._context.name!r} at {self._context.fileio.url!r})"

    def compact(
        self,
        *,
        strategy: CompactionStrategy | None = None,
        file_groups: Collection[FileGroupId] | None = None,
        spark: SparkSession | None = None,
    ) -> CompactionResult | None:
        """Merge log rows into base files, as one commit; None when there is nothing to merge. No writer ever conflicts with it.

        strategy: which file groups, see `objcat.CompactionStrategy`, all when None. file_groups: only those that have keys in common with
        one of these. Raises as `compact`."""
        return self._context.after_service(
            compact(
                self._context.timeline, self._context.id, file_groups=file_groups, strategy=strategy, workers=self._context.workers(spark)
            )
        )

    def schedule_compaction(
        self, *, strategy: CompactionStrategy | None = None, file_groups: Collection[FileGroupId] | None = None
    ) -> CompactionPlan | None:
        """Leave a plan of a compaction for whoever executes it, here or elsewhere; None when there is nothing to merge.

        Writes one object, and no data. `resolve(plan.txn)` takes it back. strategy, file_groups: as of `compact`.
        """
        return schedule_compaction(self._context.timeline, self._context.id, file_groups=file_groups, strategy=strategy)

    def scheduled_compactions(self) -> list[CompactionPlan]:
        """The plans that wait, oldest first. One LIST, and one GET for each."""
        return scheduled_compactions(self._context.timeline, self._context.id)

    def execute_scheduled(self, *, spark: SparkSession | None = None) -> list[Executed]:
        """Execute the plans that wait, each as one commit. Of several that execute one plan one wins, and nothing is done twice.

        A plan that cannot be executed any more is taken back. Raises as `execute_scheduled`.
        """
        self._context.refresh()
        return self._context.after_service(
            execute_scheduled(self._context.timeline, self._context.id, workers=self._context.workers(spark))
        )

    def cluster(
        self,
        by: Sequence[str] = (),
        *,
        zorder: bool = False,
        where: str | pc.Expression | None = None,
        io_bytes_max: int | None = None,
        spark: SparkSession | None = None,
    ) -> ClusteringResult | None:
        """Rewrite file groups as one commit that changes no row; None when there is nothing to gain. Small ones become few of the
        property `target_file_bytes`; under the bucket index, where rows stay in their groups, the rows of each are sorted by other columns.

        by: columns that rows are sorted by, so that filters on them leave files and row groups out; then large groups are rewritten too,
        unless they are in order already. zorder: by two to four of them at once. where: only groups that may hold a row for which this
        filter, as of `scan`, is true. io_bytes_max: what is read and written, at most. Raises as `cluster`.
        """
        clustering = Clustering(by=tuple(name_list(by, what="by")), zorder=zorder, where=where, io_bytes_max=io_bytes_max)
        return self._context.after_service(
            cluster(self._context.timeline, self._context.id, clustering, workers=self._context.workers(spark))
        )

    def clean(
        self,
        *,
        keep_slots: int | None = None,
        before: int | None = None,
        keep_commits: int | None = None,
        keep_versions: int | None = None,
        keep_hours: int | None = None,
    ) -> CleanResult:
        """Expire old slots, savepoints excepted, and delete the files that only they name. The newest state always remains.

        keep_slots: how many of the newest slots of the log stay readable. before: the oldest slot that stays readable. Or what one of these
        keeps: keep_commits, what the newest so many commits left; keep_versions, what the newest so many left that wrote base files;
        keep_hours, what was there in the so many hours before the newest commit. What the properties of these names say when none of the
        five is given. Raises as `clean`.
        """
        kept = self._kept(keep_slots, before, Retention(commits=keep_commits, versions=keep_versions, hours=keep_hours))
        return self._context.after_service(clean(self._context.timeline, self._context.id, view=self._context.latest.refresh(), **kept))

    def plan_clean(
        self,
        *,
        keep_slots: int | None = None,
        before: int | None = None,
        keep_commits: int | None = None,
        keep_versions: int | None = None,
        keep_hours: int | None = None,
    ) -> CleanPlan | None:
        """What `clean` with these arguments would do now, None for nothing; sends reads only.

        leftovers: files that an earlier clean was to delete, and that are still there. Raises InvalidInput and storage errors.
        """
        kept = self._kept(keep_slots, before, Retention(commits=keep_commits, versions=keep_versions, hours=keep_hours))
        plan = self._context.retry_on_new_checkpoint(
            lambda: plan_clean(self._context.timeline, self._context.latest.refresh(), self._context.id, **kept)
        )
        if plan is None:
            return None
        there = map_io(self._context.fileio.env, self._context.fileio.exists, plan.leftovers)
        plan = replace(plan, leftovers=tuple(path for path, is_there in zip(plan.leftovers, there, strict=True) if is_there))
        return plan if plan.removes or plan.leftovers else None

    def _kept(self, keep_slots: int | None, before: int | None, said: Retention) -> dict[str, Any]:
        """What a clean is to keep, as of `services.clean`. Raises InvalidInput."""
        for name, value in (("keep_commits", said.commits), ("keep_versions", said.versions), ("keep_hours", said.hours)):
            if value is not None:
                whole_number(value, what=name, least=1)
        if (keep_slots, before) == (None, None):
            return {"retention": policy_of(self._context.refresh().spec.properties).retention if said == Retention() else said}
        if said != Retention() or None not in (keep_slots, before):
            raise InvalidInput("clean() takes keep_slots, or before, or what keep_commits, keep_versions and keep_hours keep")
        if keep_slots is not None:
            return {"keep_slots": whole_number(keep_slots, what="keep_slots", least=1)}
        return {"before": whole_number(before, what="before")}

    def savepoint(self, *, slot: int | None = None, name: str = "") -> SavepointResult | None:
        """Keep a slot (the newest when None) readable until it is released; None when it is saved already.

        Raises SnapshotExpired when it was cleaned, else as `savepoint`.
        """
        return self._context.after_service(savepoint(self._context.timeline, self._context.id, slot=slot, name=name))

    def release_savepoint(self, *, slot: int) -> SavepointResult | None:
        """Take a savepoint back; None when the slot is not saved. Raises as `release`."""
        return self._context.after_service(release(self._context.timeline, self._context.id, slot=slot))

    def split_buckets(self, *, partition: str = "", count: int | None = None) -> SplitResult | None:
        """Double the buckets (or give the table `count`, its present number times a power of two), as one commit that moves no data.

        partition: of a table that is partitioned, which one, e.g. `city=Rome`: each has a number of its own. Returns None when it has that
        many already. Raises as `split_buckets`.
        """
        return self._context.after_service(split_buckets(self._context.timeline, self._context.id, partition=partition, count=count))

    def archive(self, *, keep_slots: int = 1000) -> Archived:
        """Move entries below the newest checkpoint to history files, but for the newest `keep_slots` of the log.

        Each slot stays an object, a tombstone. Readers see no difference, and nothing expires. Of tables that share a log, it is the log of
        all. Raises TableClosed, else as `objcat.timeline.archive.archive`.
        """
        self._context.refresh()
        return archive(self._context.timeline, keep_slots=keep_slots)

    def expire_checkpoints(self, *, keep: int = 2) -> CollectedCheckpoints:
        """Delete checkpoints but for the newest `keep` and those that savepoints need, and what dead writers left of theirs.

        Every slot can still be looked at, and handles that stand on one that is gone open another by themselves. Raises TableClosed, else
        as `objcat.timeline.checkpoint_expiry.collect_checkpoints`.
        """
        self._context.refresh()
        return self._context.after_service(collect_checkpoints(self._context.timeline, self._context.committer, keep=keep))

    def rollback_failed_writes(self, *, older_than_s: float = 3600) -> list[RolledBackWriter]:
        """Tidy up after writers that died: settle, as `resolve` does, every transaction that has left traces and has written nothing for
        `older_than_s` seconds by the store's clock, and delete what it left.

        A running writer touches its intent every few seconds; one that only seems dead is refused with WriterFenced, and nothing is lost.
        Returns what was settled or deleted, by transaction. Costs a LIST for every 1,000 data files. Raises InvalidInput, CommitUnknown
        and storage errors: call it again.
        """
        return rollback_dead_writers(self._context.timeline, self._context.view, older_than_s=older_than_s, names_of=files_named_by)

    def run(
        self,
        *,
        io_bytes_max: int | None = None,
        seconds_max: float | None = None,
        verify_bytes_max: int = VERIFIED_BYTES,
        spark: SparkSession | None = None,
    ) -> MaintenanceReport:
        """Do what the policy of the table says is due, each service as a commit of its own, and say what was done and what was left.

        Settles writers that died an hour ago or earlier, executes compactions that were scheduled, doubles buckets, compacts, clusters,
        cleans, archives and collects checkpoints. Several machines may do so at once. io_bytes_max: what compactions may read and write.
        seconds_max: nothing begins later. verify_bytes_max: about how many bytes of files, drawn at random, are held against the digests of
        their entries; 0 for none. Raises as `maintain`.
        """
        return self._context.after_service(
            maintain(
                self._context.timeline,
                self._context.id,
                name=self._context.name,
                io_bytes_max=io_bytes_max,
                seconds_max=seconds_max,
                verify_bytes_max=verify_bytes_max,
                workers=self._context.workers(spark),
            )
        )

    def metrics(self, *, recent: int = 100, verify_bytes_max: int = 0) -> str:
        """What a monitor asks of a table, in Prometheus's text format: see `objcat.maintenance.metrics`, also for its costs and errors."""
        return prometheus_text(
            samples_of(self._context.timeline, self._context.id, name=self._context.name, recent=recent, verify_bytes_max=verify_bytes_max)
        )
