"""What users hold of one table: a handle that writes and reads it, and scans of it."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

import pyarrow as pa
import pyarrow.compute as pc

from fileio.errors import FileIOError
from objcat.common.memory_errors import after_commit, reports_full_memory
from objcat.common.validation import (
    OnExisting,
    ScanMode,
    SchemaModeName,
    SortName,
    moment_ms,
    name_list,
    one_of,
    text,
    text_mapping,
    whole_number,
)
from objcat.errors import AlreadyApplied, CommitConflict, InvalidInput, ObjcatError
from objcat.inspection.history import History
from objcat.inspection.snapshot_stats import TableStats, files_of, partitions_of_snapshot, stats_of
from objcat.maintenance.auto import AutoMaintenance
from objcat.maintenance.savepoint import check_readable
from objcat.metadata.properties import SchemaMode
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_state import Tables
from objcat.planning.commits import CommitInfo, Commits
from objcat.planning.scan import MODES, SNAPSHOT, ScanPlan, plan_scan
from objcat.table.alter import Altered
from objcat.table.apply_changes import DELETES, batch_of, check_follows, version_of
from objcat.table.batch_input import parse_layout, prepare_batch, session_of
from objcat.table.change_feed import ChangeFeed, FeedContext, changes, incremental
from objcat.table.context import LatestView
from objcat.table.delete import delete_where
from objcat.table.erase import Certificate, ErasurePlan, plan_erasure
from objcat.table.erase import erase as erase_for_good
from objcat.table.insert import insert_new
from objcat.table.merge import Merge, soft_delete, update, upsert_partial
from objcat.table.overwrite import delete_partition, overwrite
from objcat.table.scan import Scan
from objcat.tasks.model import Operation, WriteLayout
from objcat.timeline.commit import check_log_unchanged
from objcat.timeline.entry import Txn, parse_txn
from objcat.timeline.log import with_changes
from objcat.timeline.log_state import AppVersion
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.rollback import Resolution, resolve
from objcat.write.bucket_size_warning import BucketSizeWarning
from objcat.write.service_commit import ServiceCommit
from objcat.write.transaction import CommitResult, WriteOperation, already_applied_result, result_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOCKS_APART_MS = 60_000
"""So far apart clocks of machines may be, and nobody is told."""

logger = logging.getLogger("objcat")

R = TypeVar("R")
AsOf = int | str | dt.datetime


@reports_full_memory
class Table(Altered):
    """A handle on a table, at the newest slot that it has seen. Safe for many threads; not picklable (open the table there)."""

    def __init__(
        self, name: str, timeline: Timeline[Tables], table: str, view: LogView[Tables], *, upkeep: AutoMaintenance | None = None
    ) -> None:
        super().__init__(name, timeline, table, LatestView(timeline, view), upkeep or AutoMaintenance())
        self._advice = BucketSizeWarning(name)
        self._commits = Commits(timeline.fileio)

    def __repr__(self) -> str:
        return f"Table({self.name!r} at {self.fileio.url!r}, slot {self._standing.view.slot})"

    # ---- the newest state

    def history(self, *, limit: int | None = None) -> History:
        """The entries of the table's log, without those that are of other tables alone, oldest first: a list, and `to_arrow()` of it.

        limit: only so many, the newest ones, for about as many requests. Raises InvalidInput, TableNotFound when the log was deleted by
        hand under this handle, storage errors.
        """
        span = None if limit is None else whole_number(limit, what="limit")
        newest = self.refresh().log
        while True:
            after = -1 if span is None else max(-1, newest.slot - span)
            entries = with_changes(self.fileio, self.timeline.log.read_after(after))
            if after < newest.slot:
                is_whole = len(entries) >= newest.slot - after
                if not is_whole:
                    self.timeline.check_absent(after + len(entries) + 1, newest.slot)
                found = entries[newest.slot - after - 1] if is_whole else None
                check_log_unchanged(newest, found, where=self.fileio.url)
            mine = [entry for entry in entries if self.id in entry.footprint or not entry.footprint]
            if limit is None or span is None:
                return History(mine, self.id)
            if after < 0 or len(mine) >= limit:
                return History(mine[max(0, len(mine) - limit) :], self.id)
            # Others share the log.
            span *= 4

    def resolve(self, txn: str) -> Resolution:
        """Settle a write whose outcome nobody knows (CommitUnknown), or whose writer died: for ever.

        Returns CommittedAt when it is durable. Otherwise rolls it back: from then on its writer, should it still run, is refused with
        Fenced; its files are deleted. Safe beside the writer and beside other calls. Raises CommitUnknown when the store does not answer:
        call it again.
        """
        return resolve(self.fileio, parse_txn(txn), view=self._standing.view)

    # ---- writing

    def upsert(
        self,
        data: Any,
        *,
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        schema_mode: SchemaModeName | None = None,
        delete_when: str | None = None,
    ) -> CommitResult:
        """Insert or replace rows by key, as one commit.

        A merge-on-read table is not read: the rows are appended. Of a copy-on-write table, the buckets that hold the keys are read and
        rewritten; when another commit rewrites one of them first, that bucket is done again, and only that one. A Spark DataFrame is
        computed again for it: cache or checkpoint one that does not give the same rows every time.
        data: an Arrow table, a pandas or polars frame or a list of dicts is written by this process, a Spark DataFrame by Spark. Columns
        match by name; missing nullable ones are null, also those that only some of several dicts lack (`upsert_partial` leaves them as
        they are). metadata: kept with the commit and shown in the log. app: makes a write that is
        tried again count once: when the table has this version of the application already, nothing is written, and the result says so in
        `already_applied`. schema_mode: "strict", the batch must fit the table; "add", columns and fields that the table lacks are added
        to it by the same commit; "widen", types become wider too, as `widen_column` does. None: the table's property `schema_mode`, else
        "strict". delete_when: SQL text over the columns of the batch, e.g. `"op = 'd'"`: rows for which it is true are deletes, as of
        `delete`; a column that only it names need not be one of the table's.
        Raises InvalidBatch, InvalidPredicate and NullKey (nothing was written), CommitConflict (nothing is visible: write again),
        StreamRewound (a RESTORE took back versions of `app`), Fenced, CommitUnknown (look before you write again).
        """
        return self._write(data, Operation.UPSERT, metadata, app, schema_mode, delete_when=delete_when)

    @overload
    def insert(
        self,
        data: Any,
        *,
        on_existing: Literal["replace", "fail"] = "replace",
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        schema_mode: SchemaModeName | None = None,
    ) -> CommitResult: ...

    @overload
    def insert(
        self,
        data: Any,
        *,
        on_existing: OnExisting,
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        schema_mode: SchemaModeName | None = None,
    ) -> CommitResult | None: ...

    def insert(
        self,
        data: Any,
        *,
        on_existing: OnExisting = "replace",
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        schema_mode: SchemaModeName | None = None,
    ) -> CommitResult | None:
        """Insert rows, as one commit; buckets without rows get base files.

        on_existing: what becomes of a row whose key is in the table. "replace": nobody looks; the caller declares the keys new, and one
        that is there is replaced as by `upsert`. "fail": the batch is refused, and the error names some of the keys. "skip": the row is
        left out, and what is there stays; None is returned when no row is left. Both read the keys of the file groups concerned, and are
        judged again where another commit writes to these first: at the slot of the commit no inserted key was there. They are merges, so a
        batch names each key once (in a table with an ordering column the newest row of a key counts), has the table's columns, and takes
        no schema_mode. Else as `upsert`. Raises KeyExists, InvalidInput for tables without a key or with lateness, MissingDependency
        (DuckDB joins the keys in this process), else as `upsert`.
        """
        if one_of(on_existing, get_args(OnExisting), what="on_existing") == "replace":
            return self._write(data, Operation.INSERT, metadata, app, schema_mode)
        if schema_mode not in (None, SchemaMode.STRICT):
            raise InvalidInput(
                f"insert() with on_existing={on_existing!r} changes no schema: add the columns by alter(), or upsert the batch"
            )
        return insert_new(self, data, fails=on_existing == "fail", metadata=metadata, app=app)

    def bulk_insert(
        self,
        data: Any,
        *,
        sort: SortName | Sequence[str] = "none",
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        schema_mode: SchemaModeName | None = None,
    ) -> CommitResult:
        """Insert a great many rows, as one commit, into files of about the property `target_file_bytes`; what is there is left alone.

        sort: how rows of a table without a key are dealt to files: "none", as they come, which is the fastest; "partition", so that few
        tasks write to one partition; or names of columns, so that each file (in this process: each piece of some 128 MB of the batch) holds
        a range of their values, which filters on them profit from. In a table with a key rows lie by bucket and key anyway. Else as
        `insert`, and memory is bounded: a stream, as of an Arrow reader, goes through local disk. Raises InvalidInput, else as `insert`.
        """
        return self._write(data, Operation.INSERT, metadata, app, schema_mode, layout=parse_layout(sort, self.spec))

    @overload
    def delete(self, keys: str, *, metadata: Mapping[str, str] | None = None, spark: SparkSession | None = None) -> CommitResult | None: ...

    @overload
    def delete(self, keys: Any, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None) -> CommitResult: ...

    def delete(
        self, keys: Any, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None, spark: SparkSession | None = None
    ) -> CommitResult | None:
        """Delete rows by key or by a filter, as one commit.

        keys: a filter, SQL text or an Arrow expression: rows for which it is true are deleted as they are at the moment of the commit, and
        None is returned when there are none, since then nothing is committed. It is as of `scan`; terms of text that a scan cannot filter
        by (functions, LIKE, arithmetic) are computed for each row that is left, as of `update`. spark: finds and deletes them on Spark. In
        a table with an ordering column, older rows of their keys that come late stay out too. Raises InvalidPredicate, InvalidInput for
        such terms in a table with lateness, and CommitConflict when others change the same buckets faster than they can be read.
        Or a batch with the key columns; others are ignored. In a table with an ordering column: a batch that has that column too
        deletes only what is not newer, and keeps older late rows out; without it, everything written before is deleted. Keys that do not
        exist are no error. Else as `upsert`.
        """
        if isinstance(keys, (str, pc.Expression)):
            if app is not None:
                raise InvalidInput("delete() with a filter takes no app: what it deletes depends on when it runs")
            return delete_where(self, keys, metadata=metadata, spark=spark)
        return self._write(keys, Operation.DELETE, metadata, app)

    def plan_erasure(self, keys: str | Any) -> ErasurePlan:
        """What `erase` would do now; sends reads only. keys: as of `erase`. Raises InvalidPredicate, and as `scan`."""
        return plan_erasure(self, keys)

    def erase(self, keys: str | Any, *, older_than_s: float = 3600) -> Certificate:
        """Delete rows, and every file that holds them or held them; all slots but the newest expire.

        keys: a batch of up to 1,000 keys, as of `delete`, or a filter as SQL text, such as `"visitor = 'ana'"`. Log rows of the whole table
        are merged, since a log file has rows of many file groups; what writers left that have been silent for `older_than_s` is rolled
        back, as by `rollback_dead`. Writers go on meanwhile: what they write is not touched. Cut short, it is finished when it is called
        again.
        Raises InvalidInput when a savepoint keeps such rows (it names them: release them first), Unavailable when the store did not delete
        a file (call it again), InvalidPredicate, InvalidBatch, NullKey, CommitConflict, Fenced, CommitUnknown and storage errors.
        """
        return erase_for_good(self, keys, older_than_s=older_than_s, reliably=self._standing.retry_on_new_checkpoint)

    def update(
        self,
        values: Mapping[str, Any],
        *,
        where: str | pc.Expression | None = None,
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        spark: SparkSession | None = None,
    ) -> CommitResult | None:
        """Set columns of the rows for which a filter is true, as they are at the moment of the commit; None when there are none.

        values: by column what it becomes: SQL text over the columns of the row, e.g. `{"fare": "fare * 2", "note": "'late'"}`, a number, a
        truth value or None. All of them see the row as it was. where: SQL text, of which a scan takes what it can to leave files out, or an
        Arrow expression; all rows when None. app: as of `upsert`. spark: does it on Spark (a table without a key is updated by this
        process). In a table with an ordering column, an update that would make a row older than it is does nothing. When others change the
        same buckets first, all is read and computed again.
        Raises InvalidInput for values that do not fit their columns and for key columns, InvalidPredicate, MissingDependency (DuckDB
        evaluates in this process), else as `Merge.execute`.
        """
        return update(self, values, where, metadata=metadata, app=app, spark=spark)

    def merge(self, source: Any, *, on: str | None = None, source_alias: str = "source", target_alias: str = "target") -> Merge:
        """Begin a merge: say what happens to rows that match by key and to those that do not, then `execute()` it.

        source: a batch as of `upsert`; a Spark DataFrame is merged by Spark. It may have any columns beside those of the key. on: which
        column of the source equals which key column, `"source.customer = target.id"`; the same names when None. source_alias,
        target_alias: what expressions call the two.
        """
        aliases = (text(source_alias, what="source_alias"), text(target_alias, what="target_alias"))
        return Merge(self, source, on, aliases)

    def upsert_partial(self, data: Any, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None) -> CommitResult | None:
        """Insert or update rows by key, of which the batch has only some columns: the others stay as they are, and are null in new rows.

        A merge that updates all columns of the batch: see `Merge.execute`, also for what it raises and returns. In a list of dicts each row
        may have other columns: what a dict lacks stays as it is, and None is null. Such rows count one after the other, as if each came by
        itself, in one commit: of one key the later row wins, column by column. A frame or an Arrow table has the same columns in every row,
        and null there is null.
        """
        return upsert_partial(self, data, metadata=metadata, app=app)

    def applied(self, app_id: str) -> int | None:
        """The version that an application has reached in this table; None when it has written nothing. One GET when nothing is new."""
        self.refresh()
        reached = self._standing.view.log.marks(self.id).apps.get(text(app_id, what="app_id"))
        return None if reached is None else reached.version

    def upsert_from(
        self, source: ChangeFeed, *, app_id: str, metadata: Mapping[str, str] | None = None, spark: SparkSession | None = None
    ) -> CommitResult | None:
        """Follow another table: write its changes here, rows and deletes, as one commit that counts once; None when there are none.

        source: `source.changes(since=table.applied("job"), net=True)`, or since=-1 the first time. The columns that this table has too are
        written. app_id: names the work; its version is the last slot of the changes, so that changes which are tried again are written
        once. Net changes begin where the version is: a key that came and went would else be neither in them nor gone. spark: reads and
        writes on Spark. Raises InvalidInput when changes would be left out, CommitConflict when others have brought some of them (read them
        anew), else as `upsert`.
        """
        reached = self.applied(app_id)
        check_follows(source, reached, app_id=app_id)
        known = self._standing.view.log.marks(self.id).apps.get(app_id)
        app = version_of(source, app_id=app_id, rewound_at=None if known is None else known.rewound_at)
        batch = batch_of(source, self.spec, spark, table=self.name)
        return None if batch is None else self.upsert(batch, metadata=metadata, app=app, delete_when=DELETES)

    def soft_delete(
        self,
        where: str | pc.Expression,
        *,
        flag: str | None = None,
        metadata: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
    ) -> CommitResult | None:
        """Empty the rows for which a filter is true, and keep them: all columns but those of key, partition and ordering become null.

        flag: a column of truth values; then it becomes true, and the others stay. Scans return such rows as all others. Else as `update`.
        """
        return soft_delete(self, self.refresh().spec, where, flag=flag, metadata=metadata, spark=spark)

    def insert_overwrite(
        self,
        data: Any,
        *,
        where: str | pc.Expression | None = None,
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        schema_mode: SchemaModeName | None = None,
    ) -> CommitResult:
        """Replace partitions by a batch, as one commit: all of their rows go, whatever their ordering, and those of the batch come.

        where: which partitions, a filter over partition columns, of which the batch must be too; None: those in which the batch has rows
        (of a table without partitions: the whole table). A commit of another that writes there first is replaced as well, and the batch is
        not written again for it; one that comes later finds the new rows. Partitions that the filter names and that another commit creates
        at the same time stay. Older slots keep the rows. Else as `insert`. Raises InvalidInput when the filter names other columns or
        divides a partition, and where rows of the batch live in a partition of an earlier partitioning that no filter names; else as
        `insert`.
        """
        return overwrite(self, data, where=where, whole=False, metadata=metadata, app=app, schema_mode=schema_mode)

    def overwrite(
        self,
        data: Any,
        *,
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        schema_mode: SchemaModeName | None = None,
    ) -> CommitResult:
        """Replace all rows of the table by a batch, as one commit. Else as `insert_overwrite`."""
        return overwrite(self, data, where=None, whole=True, metadata=metadata, app=app, schema_mode=schema_mode)

    def delete_partition(self, where: str | pc.Expression, *, metadata: Mapping[str, str] | None = None) -> CommitResult | None:
        """Take partitions away, as one commit that reads and writes no data; None when there are none.

        where: a filter over partition columns. In a table with an ordering column older rows that come late are let in again. Raises
        InvalidInput when the filter names other columns or divides a partition, InvalidPredicate, CommitConflict when others write there
        faster than this can be planned, Fenced, CommitUnknown.
        """
        return delete_partition(self, where, metadata=metadata)

    def committed(self, write: Callable[[], ServiceCommit[Any] | None], *, spark: SparkSession | None = None) -> CommitResult | None:
        """Run a write that is a service, and say what it committed; the handle has seen it. spark: that writes."""
        began, since_slot = self.fileio.metrics.snapshot(), self._standing.view.slot
        try:
            done = write()
        except AlreadyApplied as applied:
            return already_applied_result(self.fileio, applied.winner_slot, began)
        if done is None:
            return None
        sent = self.fileio.metrics.snapshot() - began
        result = result_of(done.entry, done.proposal.summary, attempts=done.attempts, slots_lost=done.slots_lost, sent=sent)
        self._served(None)
        with after_commit(result.slot):
            self._look_after(since_slot, spark=spark)
            self._tell(result)
        return result

    # ---- reading

    def scan(
        self,
        *,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        as_of: AsOf | None = None,
        limit: int | None = None,
        mode: ScanMode = SNAPSHOT,
    ) -> Scan:
        """A scan of the newest snapshot, or of an older one; nothing is read before one of its methods is called.

        where: SQL text, e.g. `"fare > 10 and city = 'Rome'"`, or a `pyarrow.compute.Expression` over the columns. columns: names, in
        order; all when None; `_file`, `_commit_slot` and `_commit_time` are there when they are named. as_of: a slot, a datetime, or ISO
        text (UTC where it has no zone): the newest commit at or before it. limit: rows at most, which of them is not said. mode:
        "snapshot", every row; or "read_optimised", of a merge-on-read table what its base files hold, as fast as Parquet: rows that no
        compaction has merged yet are not there (of a copy-on-write table the same as "snapshot"). Raises InvalidPredicate, InvalidInput,
        and SnapshotExpired when the slot was cleaned.
        """
        columns = None if columns is None else name_list(columns, what="columns")
        one_of(mode, MODES, what="mode")
        if limit is not None:
            whole_number(limit, what="limit")

        def plan() -> ScanPlan:
            snapshot = self.refresh() if as_of is None else self._snapshot_as_of(as_of)
            return plan_scan(snapshot, self.manifests, where=where, columns=columns, mode=mode)

        planned = self._standing.retry_on_new_checkpoint(plan)
        return Scan(
            self.fileio,
            planned,
            self.manifests,
            limit=limit,
            check=lambda: self._check_readable(planned.snapshot.slot),
            commits=self._commits_of,
        )

    def stats(self) -> TableStats:
        """How much the newest snapshot holds: rows, bytes, files, file groups, by its metadata alone. Raises storage errors."""
        return self._standing.retry_on_new_checkpoint(lambda: stats_of(self.refresh(), self.manifests))

    def files(self) -> pa.Table:
        """The data files of the newest snapshot, one row for each: see `objcat.inspection.snapshot_stats.FILES`. Raises storage errors."""
        return self._standing.retry_on_new_checkpoint(lambda: files_of(self.refresh(), self.manifests))

    def partitions(self) -> pa.Table:
        """The partitions of the newest snapshot, one row for each: see `PARTITIONS` of `objcat.inspection.snapshot_stats`."""
        return self._standing.retry_on_new_checkpoint(lambda: partitions_of_snapshot(self.refresh(), self.manifests))

    def incremental(
        self, *, since: AsOf, until: AsOf | None = None, where: str | pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> ChangeFeed:
        """The latest state, as of `until`, of every row that was inserted or updated after `since`.

        Reads what was written in the range, not the table. Keys that were deleted do not appear, nor do rows that came late and lost; a
        compaction adds nothing and hides nothing.
        since: excluded; until: included, the newest when None. Each is a slot, the txn of a commit, a datetime or ISO text (the newest
        commit at or before it); since=-1 is before the first. where, columns: as of `scan`; columns may name `_commit_slot` and
        `_commit_time`, of the commit that wrote the row. Raises InvalidPredicate, InvalidInput, SnapshotExpired when `until` was cleaned
        (`since` may be).
        """
        columns = None if columns is None else name_list(columns, what="columns")
        return self._standing.retry_on_new_checkpoint(lambda: incremental(self._source(), since, until, where=where, columns=columns))

    def changes(self, *, since: AsOf, until: AsOf | None = None, columns: Sequence[str] | None = None, net: bool = False) -> ChangeFeed:
        """What every commit after `since` up to `until` inserted, updated and deleted, exactly.

        Rows have `_change_type` ("insert", "update_before", "update_after" or "delete"), `_commit_slot`, `_commit_time`, and the columns:
        of a delete and of update_before as they were. A late row that lost is no change, a compaction and a split are none, a RESTORE is
        what it changed. net: one change a key over the whole range, or none, at its last commit.
        Reads the homes that changed as of `since`, and what was written to them. Points as of `incremental`. Rows are under the schema of
        `until`. Raises InvalidInput, SnapshotExpired when files since `since` were cleaned: it names the slot from which on changes can
        be read.
        """
        columns = None if columns is None else name_list(columns, what="columns")
        return self._standing.retry_on_new_checkpoint(lambda: changes(self._source(), since, until, columns=columns, net=net))

    def _source(self) -> FeedContext:
        self.refresh()
        return FeedContext(
            timeline=self.timeline, table=self.id, name=self.name, manifests=self.manifests, commits=self._commits, view=self._standing.view
        )

    # ---- how

    def _write(
        self,
        data: Any,
        operation: Operation,
        metadata: Mapping[str, str] | None,
        app: AppVersion | None,
        schema_mode: SchemaModeName | None = None,
        *,
        delete_when: str | None = None,
        layout: WriteLayout | None = None,
    ) -> CommitResult:
        told = text_mapping({} if metadata is None else metadata, what="metadata")
        change = prepare_batch(
            self.fileio, data, self.spec, operation, schema_mode, delete_when, table=self.name, newest=lambda: self.refresh().spec
        )
        # Blind writes need no news: the slot's own put tells whether the view is the newest. The others begin from what is there. Rows
        # without a key are appended as blindly as an upsert is.
        places = operation is Operation.INSERT and not self.spec.is_keyless
        if places or self.spec.rewrites or self.spec.is_located or app is not None:
            self.refresh()
        write: WriteOperation[Any] = WriteOperation(
            timeline=self.timeline,
            table=self.id,
            manifests=self.manifests,
            committer=self._committer,
            engine=change.engine,
            data=change.data,
            operation=operation,
            schema_mode=change.schema_mode,
            delete_when=change.delete_when,
            layout=layout,
            metadata=told,
            app=app,
            advice=self._advice,
        )
        began = self._standing.view.slot
        try:
            # A write that meets a collected checkpoint has not asked for a slot, and has removed its files.
            result, followed = self._standing.retry_on_new_checkpoint(lambda: write.run(self._standing.view))
        except CommitConflict:
            # The next try begins from what has won; and a table that was dropped is better called so.
            with contextlib.suppress(FileIOError):
                self.refresh()
            raise
        with after_commit(result.slot):
            try:
                self._standing.advance(followed)
            except (ObjcatError, FileIOError) as error:
                # The write is durable, whatever comes after it. The handle is behind, as if another process had written.
                logger.warning("%r could not fold its own commit at slot %d, which is durable: %s", self, result.slot, error)
            self.timeline.after_commit(self._standing.view, self._standing.rebase)
            if not result.already_applied:
                self._look_after(began, spark=session_of(change.data))
                self._tell(result)
        return result

    def _snapshot_of(self, view: LogView[Tables]) -> Snapshot:
        return snapshot_of(view, self.id, where=self.fileio.url)

    def _commits_of(self, txns: Collection[Txn]) -> Mapping[Txn, CommitInfo]:
        """When transactions that rows name were committed, see `objcat.planning.commits`. The handle has seen their slots."""
        return self._standing.retry_on_new_checkpoint(lambda: self._commits.find(self._standing.view.outcomes, txns))

    def _check_readable(self, slot: int) -> None:
        check_readable(self.timeline.refresh(self._standing.view).log, self.id, slot, where=self.fileio.url)

    def _warn_of_clocks(self, newest: Snapshot) -> None:
        """A moment is looked up in the times of commits, which nobody can check where the store has no clock."""
        ahead_ms = newest.committed_at_ms - self.fileio.env.now_ms()
        if ahead_ms > CLOCKS_APART_MS and not self.fileio.capabilities.store_clock:
            logger.warning(
                "the newest commit of %r is dated %d s ahead of this machine's clock: one of the two is wrong, so that a moment may name "
                "another slot than is meant; table.history() has the slots",
                self,
                ahead_ms // 1000,
            )

    def _snapshot_as_of(self, as_of: AsOf) -> Snapshot:
        newest = self.refresh()
        if isinstance(as_of, int):
            if as_of < 0 or as_of > newest.slot:
                raise InvalidInput(f"the table {self.name!r} has no slot {as_of}: slots go from 0 to {newest.slot}")
            view = self.timeline.at(as_of)
        else:
            when_ms = moment_ms(as_of, what="as_of")
            self._warn_of_clocks(newest)
            try:
                view = self.timeline.at_time(when_ms, self._standing.view)
            except InvalidInput as error:
                raise InvalidInput(f"the table {self.name!r} did not exist at {as_of}: it was created later") from error
        check_readable(newest.log, self.id, view.slot, where=self.fileio.url)
        if self.id not in view.state:
            self.timeline.check_checkpoint(view)
            raise InvalidInput(f"the table {self.name!r} did not exist at {as_of}: it was created later, in a log that others share")
        return self._snapshot_of(view)
