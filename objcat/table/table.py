"""`Table`: the handle that users hold of one table. It writes and reads rows, and gives access to everything else.

Begin with `Table`; `Lake.table`, `Lake.create_table` and `objcat.table_at` return one. What only reads is in its base, `TableReader`:
`scan`, `changes`, the facts of the table. Here are the writes: `upsert`, `insert`, `delete`, `merge` and others. Services are under
`table.maintenance`, schema and partition changes under `table.alter`, metadata under `table.inspect`.
Every write is one commit. It returns after the commit is durable, or raises: after CommitConflict nothing is visible; after CommitUnknown,
`resolve` tells. Each method is a few lines; the work is in the modules of `objcat.table` and below.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow.compute as pc

from objcat.catalog.table_lifecycle import change_properties
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import (
    OnExisting,
    SchemaModeName,
    SortName,
    one_of,
    text,
)
from objcat.maintenance.restore import RestoreResult, restore
from objcat.metadata.properties import SchemaMode
from objcat.table.alter import TableAlterer
from objcat.table.apply_changes import apply_changes
from objcat.table.batch_input import parse_layout
from objcat.table.change_feed import ChangeFeed
from objcat.table.delete import delete
from objcat.table.erase import ErasureCertificate, ErasurePlan, plan_erasure
from objcat.table.erase import erase as erase_for_good
from objcat.table.insert import insert
from objcat.table.maintenance import TableMaintenance
from objcat.table.merge import Merge, soft_delete, update, upsert_partial
from objcat.table.overwrite import delete_partition, overwrite
from objcat.table.refresh_files import RefreshableTable
from objcat.table.write_batch import write_batch
from objcat.tasks.model import Operation
from objcat.timeline.entry import parse_txn
from objcat.timeline.log_state import AppVersion
from objcat.timeline.rollback import Resolution, resolve
from objcat.write.transaction import CommitResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("objcat")


@reports_full_memory
class Table(RefreshableTable):
    """A handle on a table, at the newest slot that it has seen. Safe for many threads; not picklable (open the table there)."""

    @property
    def maintenance(self) -> TableMaintenance:
        """Table services: compact, cluster, clean, savepoints, archive, and `run` for all that is due."""
        return TableMaintenance(self._context)

    @property
    def alter(self) -> TableAlterer:
        """Changes of columns and of the partition spec."""
        return TableAlterer(self._context)

    def set_properties(self, properties: Mapping[str, str] | None = None, *, unset: Iterable[str] = ()) -> None:
        """Set and remove table properties, as one commit. Other properties stay, also those that others set meanwhile.

        `docs/reference/properties.md` lists the settings; all other names are notes.

        Args:
            properties: names and values to set.
            unset: names to remove.

        Raises:
            InvalidInput: a value does not fit its setting, or a note's name looks like a misspelled setting.
            TableClosed, Contention, WriterFenced, CommitUnknown: see `objcat.errors`.
        """
        self._context.latest.set_if_newer(
            change_properties(self._context.timeline, self._context.view, self.id, set_=properties or {}, unset=unset)
        )
        self._context.mirror_later()

    # ---- the newest state

    def resolve(self, txn: str) -> Resolution:
        """Settle a write whose outcome is unknown (CommitUnknown), or whose writer died. The outcome is final.

        Safe next to the writer and to other calls.

        Args:
            txn: the transaction id, as in the error or the log.

        Returns:
            CommittedAt when it is durable. Otherwise RolledBackAt: it is rolled back, its files are deleted, and its writer, if it still
                runs, gets WriterFenced.

        Raises:
            CommitUnknown: the store does not answer; call it again.
        """
        return resolve(self._context.fileio, parse_txn(txn), view=self._context.view)

    def restore(self, *, to: int) -> RestoreResult:
        """Restore the rows, schema and application versions of an earlier slot, as one commit that writes no data.

        Slots since then stay readable.

        Args:
            to: the slot.

        Raises:
            SnapshotExpired: the slot was cleaned.
            TableClosed: the table was dropped and has no name; undrop_table() brings it back.
            InvalidInput, CommitConflict, CommitUnknown: see `objcat.errors`.
        """
        self._context.refresh()
        return self._context.after_service(restore(self._context.timeline, self._context.id, to=to))

    def on_commit(self, listener: Callable[[CommitResult], None]) -> Callable[[], None]:
        """Call a function after every commit of rows through this handle, in the thread that wrote.

        Args:
            listener: gets what the write returns, for durable commits only. Its errors are logged and fail no write.

        Returns:
            A function that ends the calls.
        """
        return self._context.add_listener(listener)

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

        A merge-on-read table is not read: the rows are appended. A copy-on-write table reads and rewrites the buckets that hold the keys;
        if another commit rewrites one of them first, only that bucket is done again. A Spark DataFrame is then computed again: cache or
        checkpoint one that does not give the same rows each time.

        Args:
            data: an Arrow table, reader or dataset, an iterable of Arrow batches, a pandas or polars frame, or a list of dicts (written by
                this process), or a Spark DataFrame (written by Spark). Columns match by name. A missing nullable column is null, also for a
                single dict that lacks it; `upsert_partial` leaves it as it is.
            metadata: text stored with the commit and shown in the log.
            app: makes a repeated write count once. If the table has this version already, nothing is written and `already_applied` is set.
            schema_mode: "strict": the batch must fit the table. "add": the commit adds missing columns and fields. "widen": it also widens
                types. None: the property `schema_mode`, else "strict".
            delete_when: SQL text over the batch, e.g. `"op = 'd'"`; rows for which it is true are deletes. A column that only it names need
                not be in the table.

        Returns:
            The commit: slot, txn, rows written.

        Raises:
            InvalidBatch, InvalidPredicate, NullKey: nothing was written.
            CommitConflict: nothing is visible; write again.
            StreamRewound: a RESTORE took back versions of `app`.
            WriterFenced: the writer was taken for dead and rolled back.
            CommitUnknown: the outcome is unknown; call `resolve` before you write again.
        """
        return write_batch(self._context, data, Operation.UPSERT, metadata, app, schema_mode, delete_when=delete_when)

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

        "fail" and "skip" read the keys of the file groups concerned, and check again when another commit writes to these first: at the slot
        of the commit no inserted key existed. They are merges: a batch names each key once (with an ordering column the newest row of a key
        counts), has the table's columns, and takes no schema_mode.

        Args:
            data: see `upsert`.
            on_existing: "replace": you declare the keys new, nothing is checked, and an existing row is replaced as by `upsert`. "fail":
                the batch is refused. "skip": rows with existing keys are left out.
            metadata, app, schema_mode: see `upsert`.

        Returns:
            The commit; None when "skip" leaves no row.

        Raises:
            KeyExists: "fail" found existing keys; the error names some of them.
            InvalidInput: "fail" or "skip" for a table without a key or with allowed_lateness.
            MissingDependency: DuckDB, which joins the keys in this process, is missing.
            ObjcatError: the errors of `upsert`.
        """
        return insert(self._context, data, on_existing=on_existing, metadata=metadata, app=app, schema_mode=schema_mode)

    def bulk_insert(
        self,
        data: Any,
        *,
        sort: SortName | Sequence[str] = "none",
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        schema_mode: SchemaModeName | None = None,
    ) -> CommitResult:
        """Insert very many rows, as one commit, into new files of about `target_file_bytes`. Existing files stay as they are.

        Memory is limited: a stream, such as an Arrow reader, goes through local disk.

        Args:
            data: see `upsert`. The keys are declared new.
            sort: for a table without a key: "none" (the fastest), "partition" (few tasks write to one partition), or columns, so that each
                file (here: each piece of about 128 MB) holds a range of their values. With a key, rows lie by bucket and key.
            metadata, app, schema_mode: see `upsert`.

        Returns:
            The commit.

        Raises:
            InvalidInput: an argument does not fit; and the errors of `insert`.
        """
        return write_batch(self._context, data, Operation.INSERT, metadata, app, schema_mode, layout=parse_layout(sort, self.spec))

    @overload
    def delete(self, keys: str, *, metadata: Mapping[str, str] | None = None, spark: SparkSession | None = None) -> CommitResult | None: ...

    @overload
    def delete(self, keys: Any, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None) -> CommitResult: ...

    def delete(
        self, keys: Any, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None, spark: SparkSession | None = None
    ) -> CommitResult | None:
        """Delete rows by key or by a filter, as one commit.

        A filter deletes the rows for which it is true at the moment of the commit. With an ordering column, older rows of their keys that
        come late stay out too.
        A batch of keys deletes these rows; keys that do not exist are no error. In a table with ordering columns, a batch that has
        them deletes only what is not newer, and keeps older late rows out; without them, everything written before is deleted.

        Args:
            keys: a filter (SQL text or an Arrow expression, as for `scan`; other terms such as functions, LIKE and arithmetic are computed
                for each remaining row), or a batch with the key columns; other columns are ignored.
            metadata: see `upsert`.
            app: see `upsert`; not with a filter.
            spark: the session that finds and deletes the rows of a filter.

        Returns:
            The commit; None when no row passes the filter.

        Raises:
            InvalidPredicate: the filter does not parse or fit.
            InvalidInput: computed terms in a table with allowed_lateness, or app with a filter.
            CommitConflict: others change the same buckets faster than they can be read.
            ObjcatError: the errors of `upsert`.
        """
        return delete(self._context, keys, metadata=metadata, app=app, spark=spark)

    def plan_erasure(self, keys: str | Any) -> ErasurePlan:
        """What `erase` would do; only reads. `keys` as for `erase`. Raises InvalidPredicate, and the errors of `scan`."""
        return plan_erasure(self._context, keys)

    def erase(self, keys: str | Any, *, older_than_s: float = 3600) -> ErasureCertificate:
        """Delete rows with every file that holds or held them. All slots but the newest expire.

        Log rows of the whole table are merged, because a log file has rows of many file groups. Writers go on meanwhile; what they write is
        not touched. An erasure that stops halfway is finished by the next call.

        Args:
            keys: up to 1,000 keys, as a batch like for `delete`, or a filter as SQL text, such as `"visitor = 'ana'"`.
            older_than_s: seconds of silence after which a writer counts as dead and is rolled back.

        Returns:
            A certificate of what was deleted and checked.

        Raises:
            InvalidInput: savepoints retain such rows; release those that it names.
            Unavailable: the store did not delete a file; call it again.
            InvalidPredicate, InvalidBatch, NullKey, CommitConflict, WriterFenced, CommitUnknown, storage errors: see `objcat.errors`.
        """
        return erase_for_good(self._context, keys, older_than_s=older_than_s, reliably=self._context.retry_on_new_checkpoint)

    def update(
        self,
        values: Mapping[str, Any],
        *,
        where: str | pc.Expression | None = None,
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        spark: SparkSession | None = None,
        counts: bool = True,
    ) -> CommitResult | None:
        """Set columns of the rows for which a filter is true at the moment of the commit.

        With an ordering column, an update that would make a row older does nothing. If others change the same buckets first, everything is
        read and computed again.

        Args:
            values: new values by column: SQL text over the row, e.g. `{"fare": "fare * 2", "note": "'late'"}`, a number, a bool or None.
                All see the row before the update.
            where: SQL text or an Arrow expression; all rows when None. A scan uses what it can of it to skip files.
            metadata, app: see `upsert`.
            spark: the session to run on; this process updates a table without a key.
            counts: False: Spark computes the rows once, in the job that writes them, and does not count them.

        Returns:
            The commit, with the count of updated rows, if it is known; None when no row passes.

        Raises:
            InvalidInput: a value does not fit its column, or a column is of the key.
            InvalidPredicate: an expression does not parse or fit.
            MissingDependency: DuckDB, which evaluates in this process, is missing.
            ObjcatError: the errors of `Merge.execute`.
        """
        return update(self._context, values, where, metadata=metadata, app=app, spark=spark, counts=counts)

    def merge(
        self,
        source: Any,
        *,
        on: str | None = None,
        source_alias: str = "source",
        target_alias: str = "target",
        schema_mode: SchemaModeName = "strict",
    ) -> Merge:
        """Begin a merge: add clauses for rows that match by key and rows that do not, then call `execute()`.

        Args:
            source: a batch as for `upsert`, with any columns besides the key; a Spark DataFrame is merged by Spark.
            on: which source column equals which key column, `"source.customer = target.id"`; the same names when None.
            source_alias, target_alias: the names of the two in expressions.
            schema_mode: "add": the commit also adds columns that the table lacks: those of the source that a clause without values takes
                and those that values name if the source has them. "widen": it also widens types. The property `schema_mode` does not count.

        Returns:
            A `Merge` without clauses.

        Raises:
            InvalidInput: `on`, an alias or the mode does not fit.
        """
        aliases = (text(source_alias, what="source_alias"), text(target_alias, what="target_alias"))
        mode = SchemaMode(one_of(schema_mode, SchemaMode, what="schema_mode"))
        return Merge(self._context, source, on, aliases, schema_mode=mode)

    def upsert_partial(self, data: Any, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None) -> CommitResult | None:
        """Insert or update rows by key of which the batch has only some columns. The others keep their values, and are null in new rows.

        It is a merge that updates all columns of the batch.

        Args:
            data: a batch as for `upsert`. In a list of dicts each row may have other columns: a missing one stays, None is null. Such rows
                count in order, as if each came alone: the later row of a key wins, column by column. In a frame or Arrow table null is
                null.
            metadata, app: see `upsert`.

        Returns:
            The commit; None when nothing changes.

        Raises:
            ObjcatError: the errors of `Merge.execute`.
        """
        return upsert_partial(self._context, data, metadata=metadata, app=app)

    def apply_changes(
        self, source: ChangeFeed, *, app_id: str, metadata: Mapping[str, str] | None = None, spark: SparkSession | None = None
    ) -> CommitResult | None:
        """Follow another table: write its changes here, rows and deletes, as one commit that counts once.

        Net changes must begin at the version: otherwise a key that was added and removed would be neither in them nor deleted here.

        Args:
            source: `source.changes(since=table.app_version("job"), net=True)`, with since=-1 the first time. Columns that this table has
                too are written.
            app_id: names the work. Its version is the last slot of the changes, so repeated changes are written once.
            metadata: see `upsert`.
            spark: the session that reads and writes.

        Returns:
            The commit; None when there are no changes.

        Raises:
            InvalidInput: changes would be left out.
            CommitConflict: others have written some of them; read them again.
            ObjcatError: the errors of `upsert`.
        """
        return apply_changes(self._context, source, app_id=app_id, metadata=metadata, spark=spark)

    def soft_delete(
        self,
        where: str | pc.Expression,
        *,
        flag: str | None = None,
        metadata: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
    ) -> CommitResult | None:
        """Empty the rows for which a filter is true: all columns but key, partition and ordering become null. The rows stay.

        Scans return such rows like all others.

        Args:
            where: a filter as for `update`.
            flag: a bool column to set to true instead; the other columns stay.
            metadata, spark: see `update`.

        Returns:
            The commit; None when no row passes.

        Raises:
            ObjcatError: the errors of `update`.
        """
        return soft_delete(self._context, self.refresh().spec, where, flag=flag, metadata=metadata, spark=spark)

    def insert_overwrite(
        self,
        data: Any,
        *,
        where: str | pc.Expression | None = None,
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        schema_mode: SchemaModeName | None = None,
    ) -> CommitResult:
        """Replace partitions by a batch, as one commit: all their rows go, whatever their ordering, and the batch's rows come.

        A commit of others that writes there first is replaced too, without writing the batch again; a later one finds the new rows.
        Partitions that match the filter and that another commit creates at the same time stay. Older slots retain the rows.

        Args:
            data: see `upsert`.
            where: a filter over partition columns, which the batch must pass too; None: the partitions of the batch's rows (without
                partitions: the whole table).
            metadata, app, schema_mode: see `upsert`.

        Returns:
            The commit.

        Raises:
            InvalidInput: the filter names other columns or divides a partition, or rows of the batch are in a partition of a previous
                partition spec that no filter names.
            ObjcatError: the errors of `insert`.
        """
        return overwrite(self._context, data, where=where, whole=False, metadata=metadata, app=app, schema_mode=schema_mode)

    def overwrite(
        self,
        data: Any,
        *,
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        schema_mode: SchemaModeName | None = None,
    ) -> CommitResult:
        """Replace all rows of the table by a batch, as one commit. Arguments, result and errors as for `insert_overwrite`."""
        return overwrite(self._context, data, where=None, whole=True, metadata=metadata, app=app, schema_mode=schema_mode)

    def delete_partition(self, where: str | pc.Expression, *, metadata: Mapping[str, str] | None = None) -> CommitResult | None:
        """Remove partitions, as one commit that reads and writes no data.

        With an ordering column, older rows that come late are let in again.

        Args:
            where: a filter over partition columns.
            metadata: see `upsert`.

        Returns:
            The commit; None when there are no such partitions.

        Raises:
            InvalidInput: the filter names other columns or divides a partition.
            CommitConflict: others write there faster than this can be planned.
            InvalidPredicate, WriterFenced, CommitUnknown: see `objcat.errors`.
        """
        return delete_partition(self._context, where, metadata=metadata)
