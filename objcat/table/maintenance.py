"""`TableMaintenance`: the table services of one table, as `table.maintenance`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow.compute as pc

from fileio.env import map_io
from objcat.catalog.table_lifecycle import raise_watermark
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import name_list, whole_number
from objcat.errors import InvalidInput
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
from objcat.maintenance.maintain import MaintenanceReport, maintain
from objcat.maintenance.metrics import prometheus_text, samples_of
from objcat.maintenance.precompute import Precomputation, precompute_columns
from objcat.maintenance.promote import Promotion, promote_files
from objcat.maintenance.reencode import LEVEL_MAX, Reencoding, ReencodingSettings, reencode_files
from objcat.maintenance.savepoint import SavepointResult, release, savepoint
from objcat.maintenance.split_buckets import SplitResult, split_buckets
from objcat.metadata.files import files_named_by
from objcat.metadata.maintenance_policy import Retention, policy_of
from objcat.metadata.watermark import Watermark
from objcat.mirror.mirror import MirrorReport
from objcat.table.context import TableContext
from objcat.timeline.archive import Archived, archive
from objcat.timeline.checkpoint_expiry import CollectedCheckpoints, collect_checkpoints
from objcat.timeline.dead_writers import RolledBackWriter, rollback_dead_writers
from objcat.timeline.entry import FileGroupId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("objcat")

R = TypeVar("R")


@reports_full_memory
class TableMaintenance:
    """The table services of one table (`table.maintenance`). Safe for many threads.

    Every service may run at any time, next to every writer and every other service. Each is one commit, and None means that there was
    nothing to do. With `spark`, the executors of that session do the work, each opening the store; otherwise this process does.
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
        """Merge log rows into base files, as one commit. No writer conflicts with it.

        Args:
            strategy: which file groups to take, see `objcat.CompactionStrategy`; all when None.
            file_groups: only those that share keys with one of these.
            spark: the session whose executors do the work.

        Returns:
            What was written; None when there is nothing to merge.

        Raises:
            InvalidInput, InvalidPredicate: an argument does not fit.
            CommitConflict: other services were faster each time.
            TableClosed, CommitUnknown, storage errors: see `objcat.errors`.
        """
        return self._context.after_service(
            compact(
                self._context.timeline, self._context.id, file_groups=file_groups, strategy=strategy, workers=self._context.workers(spark)
            )
        )

    def forget_deletes(self, *, below: Any) -> int:
        """Declare that no change with an ordering value below one comes any more, so that compactions may forget older deletes.

        A table with an ordering column stores each delete that has a value, because an older row may still come. From this commit on, rows
        and deletes of a batch with a lower value count for nothing, without an error. What is stored stays as it is. Running writers write
        again. The next compaction of a file group drops its deletes below the value.

        Args:
            below: the least value that still counts, of the type of the first ordering column. It is never lowered, except by `restore()`.

        Returns:
            The slot from which on it holds.

        Raises:
            InvalidInput: the table has no ordering column, or the value is of another type.
            TableClosed, Contention, WriterFenced, CommitUnknown: see `objcat.errors`.
        """
        self._context.refresh()
        self._context.latest.set_if_newer(raise_watermark(self._context.timeline, self._context.view, self._context.id, below))
        self._context.mirror_later()
        found = self._context.spec.watermark
        return found.slot if isinstance(found, Watermark) else self._context.view.slot

    def schedule_compaction(
        self, *, strategy: CompactionStrategy | None = None, file_groups: Collection[FileGroupId] | None = None
    ) -> CompactionPlan | None:
        """Store a compaction plan for an executor, here or elsewhere. Writes one object, and no data.

        Args:
            strategy, file_groups: see `compact`.

        Returns:
            The plan; `resolve(plan.txn)` takes it back. None when there is nothing to merge.

        Raises:
            InvalidInput, InvalidPredicate, TableClosed, storage errors: see `objcat.errors`.
        """
        return schedule_compaction(self._context.timeline, self._context.id, file_groups=file_groups, strategy=strategy)

    def scheduled_compactions(self) -> list[CompactionPlan]:
        """The plans that wait, oldest first. One LIST, and one GET for each. Raises storage errors."""
        return scheduled_compactions(self._context.timeline, self._context.id)

    def execute_scheduled(self, *, spark: SparkSession | None = None) -> list[Executed]:
        """Execute the plans that wait, each as one commit.

        Of several executors of a plan one wins, and nothing is done twice. A plan that cannot be executed any more is taken back.

        Args:
            spark: the session whose executors do the work.

        Returns:
            What became of each plan, oldest first.

        Raises:
            TableClosed, Contention, CommitUnknown, storage errors: what was executed stays committed, and the other plans wait.
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
        """Rewrite file groups, as one commit that changes no row.

        Small groups become few of about `target_file_bytes`. Under the bucket index rows stay in their groups, and the rows of each are
        sorted by other columns.

        Args:
            by: columns to sort by, so that filters on them skip files and row groups. Large groups are then rewritten too, unless they are
                in order.
            zorder: sort by two to four columns at once.
            where: only groups that may hold a row for which this scan filter is true.
            io_bytes_max: bytes to read and write at most.
            spark: the session whose executors do the work.

        Returns:
            What was rewritten; None when there is nothing to gain.

        Raises:
            InvalidInput, InvalidPredicate: an argument does not fit.
            CommitConflict: writers were faster each time.
            TableClosed, CommitUnknown, storage errors: see `objcat.errors`.
        """
        clustering = Clustering(by=tuple(name_list(by, what="by")), zorder=zorder, where=where, io_bytes_max=io_bytes_max)
        return self._context.after_service(
            cluster(self._context.timeline, self._context.id, clustering, workers=self._context.workers(spark))
        )

    def reencode(self, *, where: str | pc.Expression | None = None, level: int = 9, least_saving: float = 0.05) -> Reencoding:
        """Write base files again with a stronger codec where that saves bytes, as commits that change no row. For cold partitions.

        Args:
            where: only files that may hold a row for which this scan filter is true.
            level: of zstd, 1 to 22. Above 12 it takes minutes for what 9 does in seconds.
            least_saving: the share of its bytes that a file has to lose, from 0 to 1.

        Raises:
            InvalidInput: an argument does not fit, or the files are in place.
            InvalidPredicate, CommitConflict, TableClosed, CommitUnknown, storage errors: see `objcat.errors`. What was committed stays.
        """
        whole_number(level, what="level", least=1, most=LEVEL_MAX)
        share: Any = least_saving
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
            raise InvalidInput(f"least_saving={least_saving!r} is not a share. Give a number from 0 to below 1, such as 0.05.")
        return self._context.after_service(
            reencode_files(self._context.timeline, self._context.id, ReencodingSettings(where, level, least_saving))
        )

    def precompute(self, *, bytes_max: int | None = None) -> Precomputation:
        """Give every file in place the precomputed columns that the table wants, see `table.alter.set_precomputed`.

        Each file that lacks some is read once. Safe next to refreshes and deletes.

        Args:
            bytes_max: of files to read, about.

        Returns:
            What was made.

        Raises:
            InvalidInput: the table is not in place.
            CommitConflict, TableClosed, CommitUnknown, storage errors: see `objcat.errors`. What was committed stays.
        """
        if bytes_max is not None:
            whole_number(bytes_max, what="bytes_max", least=1)
        return self._context.after_service(
            precompute_columns(self._context.timeline, self._context.id, view=self._context.latest.refresh(), bytes_max=bytes_max)
        )

    def promote(self, *, where: str | pc.Expression | None = None) -> Promotion:
        """Make files in place files of the table, as commits that change no row, while readers, refreshes and deletes go on.

        Sources stay where they are, and no refresh takes them again, whatever becomes of them. Without a filter, the table is an ordinary
        one in the end, to which rows are written.

        Args:
            where: only files that may hold a row for which this scan filter is true, such as those of a partition.

        Returns:
            What was done.

        Raises:
            InvalidInput: the table is not in place.
            InvalidPredicate, CommitConflict, TableClosed, CommitUnknown, storage errors: see `objcat.errors`. What was committed stays.
        """
        return self._context.after_service(promote_files(self._context.timeline, self._context.id, where=where))

    def clean(
        self,
        *,
        keep_slots: int | None = None,
        before: int | None = None,
        keep_commits: int | None = None,
        keep_versions: int | None = None,
        keep_hours: int | None = None,
    ) -> CleanResult:
        """Expire old slots, except savepoints, and delete the files that only they name. The newest state always remains.

        Without arguments, the table properties of the same names decide.

        Args:
            keep_slots: how many of the newest slots of the log stay readable.
            before: the oldest slot that stays readable.
            keep_commits: retain the states after the newest N commits.
            keep_versions: retain the states after the newest N commits that wrote base files.
            keep_hours: retain the states of so many hours before the newest commit.

        Returns:
            What was expired and deleted.

        Raises:
            InvalidInput: the arguments exclude each other, or nothing says what to retain.
            TableClosed, CommitConflict, CommitUnknown, storage errors: nothing new was deleted.
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
        """What `clean` with these arguments would do. Only reads.

        Returns:
            The plan; `leftovers` are files that an earlier clean listed and that still exist. None when there is nothing to do.

        Raises:
            InvalidInput, storage errors: see `objcat.errors`.
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
        """What a clean retains, as arguments of `objcat.maintenance.clean.clean`. Raises InvalidInput."""
        for name, value in (("keep_commits", said.commits), ("keep_versions", said.versions), ("keep_hours", said.hours)):
            if value is not None:
                whole_number(value, what=name, least=1)
        if (keep_slots, before) == (None, None):
            return {"retention": policy_of(self._context.refresh().spec.properties).retention if said == Retention() else said}
        if said != Retention() or None not in (keep_slots, before):
            raise InvalidInput(
                "clean() takes keep_slots, or before, or any of keep_commits, keep_versions and keep_hours. Give one of the three."
            )
        if keep_slots is not None:
            return {"keep_slots": whole_number(keep_slots, what="keep_slots", least=1)}
        return {"before": whole_number(before, what="before")}

    def savepoint(self, *, slot: int | None = None, name: str = "") -> SavepointResult | None:
        """Retain a slot until it is released.

        Args:
            slot: to retain; the newest one when None.
            name: for people, shown in the log.

        Returns:
            The savepoint; None when the slot is saved already.

        Raises:
            SnapshotExpired: the slot was cleaned.
            InvalidInput: there is no such slot.
            TableClosed, CommitConflict, CommitUnknown, storage errors: see `objcat.errors`.
        """
        return self._context.after_service(savepoint(self._context.timeline, self._context.id, slot=slot, name=name))

    def release_savepoint(self, *, slot: int) -> SavepointResult | None:
        """Release a savepoint, so that the next clean may delete what only it retained.

        Args:
            slot: that is saved.

        Returns:
            The release; None when the slot is not saved.

        Raises:
            ObjcatError: the errors of `savepoint`.
        """
        return self._context.after_service(release(self._context.timeline, self._context.id, slot=slot))

    def split_buckets(self, *, partition: str = "", count: int | None = None) -> SplitResult | None:
        """Give the table or a partition more buckets, as one commit that moves no data.

        Args:
            partition: which one, e.g. `city=Rome`; each has its own count. Empty where the table is not partitioned.
            count: the current count times a power of two; twice the current one when None.

        Returns:
            The split; None when there are that many buckets already.

        Raises:
            InvalidInput, TableClosed, CommitConflict, CommitUnknown, storage errors: see `objcat.errors`.
        """
        return self._context.after_service(split_buckets(self._context.timeline, self._context.id, partition=partition, count=count))

    def archive(self, *, keep_slots: int = 1000) -> Archived:
        """Move log entries below the newest checkpoint to history files.

        Each slot stays an object, a tombstone. Readers see no difference, and nothing expires. A shared log is archived for all its tables.

        Args:
            keep_slots: how many of the newest slots stay as they are.

        Returns:
            The history files and the number of tombstones.

        Raises:
            InvalidInput, TableClosed, storage errors: see `objcat.errors`.
        """
        self._context.refresh()
        return archive(self._context.timeline, keep_slots=keep_slots)

    def expire_checkpoints(self, *, keep: int = 2) -> CollectedCheckpoints:
        """Delete old checkpoints, and what dead writers left of theirs.

        Every slot can still be read. Handles that depend on a deleted checkpoint open another one.

        Args:
            keep: how many of the newest checkpoints stay; those that savepoints need stay too.

        Returns:
            What was deleted.

        Raises:
            InvalidInput, TableClosed, CommitConflict, CommitUnknown, storage errors: see `objcat.errors`.
        """
        self._context.refresh()
        return self._context.after_service(collect_checkpoints(self._context.timeline, self._context.committer, keep=keep))

    def rollback_failed_writes(self, *, older_than_s: float = 3600) -> list[RolledBackWriter]:
        """Settle every transaction whose writer is silent, as `resolve` does, and delete what it left.

        A running writer touches its intent every few seconds. One that only seems dead gets WriterFenced, and nothing is lost. Costs one
        LIST for every 1,000 data files.

        Args:
            older_than_s: seconds of silence, by the store's clock, after which a writer counts as dead.

        Returns:
            What was settled or deleted, for each transaction.

        Raises:
            InvalidInput, CommitUnknown, storage errors: call it again.
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
        """Run the services that are due by the table's policy, each as its own commit.

        It rolls back writers that died at least an hour ago, executes scheduled compactions, doubles buckets, compacts, clusters, cleans,
        archives and expires checkpoints. Several machines may do so at once.

        Args:
            io_bytes_max: bytes that compactions may read and write.
            seconds_max: nothing begins later.
            verify_bytes_max: about how many bytes of random files to compare with their digests; 0 for none.
            spark: the session whose executors compact and cluster.

        Returns:
            What was done, and what was left and why.

        Raises:
            InvalidInput, TableClosed, storage errors of opening the table: see `objcat.errors`.
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

    def mirror(self) -> list[MirrorReport]:
        """Bring the mirrors up to the newest slot, so that readers of other formats see it.

        The property `mirrors` names the formats. Writers do the same after each commit, in the background. Several processes may do so at
        once. It changes no row and no file of the table.

        Returns:
            One report for each format: where its mirror is, how many slots it lags, and what holds it. Empty without mirrors.

        Raises:
            ForeignMetadata: other metadata of that format is at the table's prefix; nothing of it is changed.
            TableClosed, CorruptTable, storage errors: see `objcat.errors`. Call it again.
        """
        return list(self._context.retry_on_new_checkpoint(self._context.mirror_now))

    def metrics(self, *, recent: int = 100, verify_bytes_max: int = 0) -> str:
        """Metrics of the table in the text format of Prometheus.

        Args:
            recent: how many of the newest slots count as recent; each is read.
            verify_bytes_max: about how many bytes of random files to compare with their digests.

        Returns:
            The text; `objcat.maintenance.metrics` lists the metrics.

        Raises:
            InvalidInput, TableClosed, storage errors: see `objcat.errors`.
        """
        return prometheus_text(
            samples_of(self._context.timeline, self._context.id, name=self._context.name, recent=recent, verify_bytes_max=verify_bytes_max)
        )
