"""What users hold of one table: a handle that writes and reads it, and scans of it."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, overload

import pyarrow as pa
import pyarrow.compute as pc

from objcat.catalog.table_lifecycle import change_properties
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import (
    AsOf,
    KeyScope,
    OnExisting,
    ScanMode,
    SchemaModeName,
    SortName,
    TableType,
    name_list,
    one_of,
    text,
)
from objcat.errors import InvalidInput
from objcat.maintenance.restore import RestoreResult, restore
from objcat.metadata.partitioning import fields_asked
from objcat.metadata.properties import SchemaMode
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import Index, TableSpec, index_asked
from objcat.planning.scan import SNAPSHOT
from objcat.table.alter import TableAlterer
from objcat.table.apply_changes import DELETES, batch_of, check_follows, version_of
from objcat.table.batch_input import parse_layout
from objcat.table.change_feed import ChangeFeed, changes, incremental
from objcat.table.context import TableContext
from objcat.table.delete import delete_where
from objcat.table.erase import ErasureCertificate, ErasurePlan, plan_erasure
from objcat.table.erase import erase as erase_for_good
from objcat.table.insert import insert_new
from objcat.table.inspect import TableInspector
from objcat.table.maintenance import TableMaintenance
from objcat.table.merge import Merge, soft_delete, update, upsert_partial
from objcat.table.notebook import SHOWN_COMMITS, table_html
from objcat.table.open_scan import open_scan
from objcat.table.overwrite import delete_partition, overwrite
from objcat.table.scan import Scan
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
class Table:
    """A handle on a table, at the newest slot that it has seen. Safe for many threads; not picklable (open the table there)."""

    def __init__(self, context: TableContext) -> None:
        """Users get handles from `Lake.table`, `Lake.create_table` and `objcat.table_at`."""
        self._context = context

    def __repr__(self) -> str:
        return f"Table({self.name!r} at {self.url!r}, slot {self._context.view.slot})"

    def _repr_html_(self) -> str:
        """What a notebook shows: settings, columns and the newest commits. Reads the newest entries of the log, and no data."""
        facts = [(name, getattr(self, name)) for name in ("url", "table_type", "key", "ordering", "index", "partitioning", "properties")]
        commits = self.inspect.history(limit=SHOWN_COMMITS)
        return table_html(repr(self), facts, self.spec, commits)

    # ---- what it is

    @property
    def name(self) -> str:
        """Its name in the lake; of a table without a lake, its URL."""
        return self._context.name

    @property
    def id(self) -> str:
        """The id of the table in its log, which renames do not change."""
        return self._context.id

    @property
    def maintenance(self) -> TableMaintenance:
        """Table services: compact, cluster, clean, savepoints, archive, and `run` for all that is due."""
        return TableMaintenance(self._context)

    @property
    def alter(self) -> TableAlterer:
        """Changes of columns and of the partition spec."""
        return TableAlterer(self._context)

    @property
    def inspect(self) -> TableInspector:
        """What the metadata says: files, partitions, statistics, history."""
        return TableInspector(self._context)

    def refresh(self) -> Snapshot:
        """The newest snapshot: one GET when nothing is new."""
        return self._context.refresh()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot that this handle has seen."""
        return self._context.snapshot

    @property
    def spec(self) -> TableSpec:
        """What the table is, as its log has it: columns by id."""
        return self.snapshot.spec

    @property
    def url(self) -> str:
        """Where the table's log and files are. No secret is in it."""
        return self._context.fileio.url

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow fields, by the names that they have now."""
        return self.spec.table_schema.to_arrow()

    @property
    def key(self) -> list[str] | None:
        """The key columns by name; None for a table that only grows."""
        return [column.name for column in self.spec.key_columns] or None

    @property
    def ordering(self) -> str | None:
        """The name of the column whose greater value wins; None where the later commit wins."""
        column = self.spec.ordering_column
        return None if column is None else column.name

    @property
    def index(self) -> Index | None:
        """How a key finds its file group, as `create_table` takes it; None for a table without a key. Of buckets the count is that of now;
        a partition that was split by itself has more."""
        snapshot = self.snapshot
        return index_asked(snapshot.spec, snapshot.table.bucket_count(""))

    @property
    def table_type(self) -> TableType:
        """ "merge_on_read" or "copy_on_write": what `create_table` takes as `table_type`."""
        return cast("TableType", self.spec.table_type)

    @property
    def partitioning(self) -> list[str]:
        """Where new rows go, as `partition_by` of `create_table` says it, such as `["city", "day(at)"]`; empty: one partition for all."""
        spec = self.spec
        return fields_asked(spec.partitioning, spec.table_schema)

    @property
    def key_scope(self) -> KeyScope:
        """ "table" or "partition": within what a key is unique."""
        return cast("KeyScope", self.spec.key_scope)

    @property
    def allowed_lateness(self) -> dt.timedelta | None:
        """How far before its commit a row may lie; None: as far as it likes."""
        lateness_ms = self.spec.lateness_ms
        return None if lateness_ms is None else dt.timedelta(milliseconds=lateness_ms)

    @property
    def properties(self) -> dict[str, str]:
        """Text to text: settings, and notes of users."""
        return dict(self.spec.properties)

    def set_properties(self, properties: Mapping[str, str] | None = None, *, unset: Iterable[str] = ()) -> None:
        """Set and take away properties of the table, as one commit; others stay, those that somebody else sets meanwhile too.

        `docs/reference/properties.md` lists those that are settings; all others are notes. Raises InvalidInput, also for a note whose name
        was meant for a setting, TableClosed, Contention, WriterFenced, CommitUnknown.
        """
        self._context.latest.set_if_newer(
            change_properties(self._context.timeline, self._context.view, self.id, set_=properties or {}, unset=unset)
        )

    # ---- the newest state

    def resolve(self, txn: str) -> Resolution:
        """Settle a write whose outcome nobody knows (CommitUnknown), or whose writer died: for ever.

        Returns CommittedAt when it is durable. Otherwise rolls it back: from then on its writer, should it still run, is refused with
        WriterFenced; its files are deleted. Safe beside the writer and beside other calls. Raises CommitUnknown when the store does not
        answer: call it again."""
        return resolve(self._context.fileio, parse_txn(txn), view=self._context.view)

    def restore(self, *, to: int) -> RestoreResult:
        """Have the rows, the schema and the versions of applications of an earlier slot again, as one commit that writes no data.

        Slots since then stay readable. Raises SnapshotExpired when the slot was cleaned, TableClosed for a table that was dropped (it has
        no name: undrop_table() brings it back under one), else as `restore`.
        """
        self._context.refresh()
        return self._context.after_service(restore(self._context.timeline, self._context.id, to=to))

    def on_commit(self, listener: Callable[[CommitResult], None]) -> Callable[[], None]:
        """Call a function after every commit of rows through this handle, in the thread that wrote, with what the write returns.

        It is told of durable commits only. An error of it is logged, and fails no write. Returns a function that ends it.
        """
        self._context.listeners.append(listener)

        def end() -> None:
            if listener in self._context.listeners:
                self._context.listeners.remove(listener)

        return end

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
        StreamRewound (a RESTORE took back versions of `app`), WriterFenced, CommitUnknown (look before you write again).
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

        on_existing: what becomes of a row whose key is in the table. "replace": nobody looks; the caller declares the keys new, and one
        that is there is replaced as by `upsert`. "fail": the batch is refused, and the error names some of the keys. "skip": the row is
        left out, and what is there stays; None is returned when no row is left. Both read the keys of the file groups concerned, and are
        judged again where another commit writes to these first: at the slot of the commit no inserted key was there. They are merges, so a
        batch names each key once (in a table with an ordering column the newest row of a key counts), has the table's columns, and takes no
        schema_mode. Else as `upsert`. Raises KeyExists, InvalidInput for tables without a key or with allowed_lateness, MissingDependency
        (DuckDB joins the keys in this process), else as `upsert`."""
        if one_of(on_existing, get_args(OnExisting), what="on_existing") == "replace":
            return write_batch(self._context, data, Operation.INSERT, metadata, app, schema_mode)
        if schema_mode not in (None, SchemaMode.STRICT):
            raise InvalidInput(
                f"insert() with on_existing={on_existing!r} changes no schema: add the columns by alter(), or upsert the batch"
            )
        return insert_new(self._context, data, fails=on_existing == "fail", metadata=metadata, app=app)

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
        return write_batch(self._context, data, Operation.INSERT, metadata, app, schema_mode, layout=parse_layout(sort, self.spec))

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
        such terms in a table with allowed_lateness, and CommitConflict when others change the same buckets faster than they can be read.
        Or a batch with the key columns; others are ignored. In a table with an ordering column: a batch that has that column too
        deletes only what is not newer, and keeps older late rows out; without it, everything written before is deleted. Keys that do not
        exist are no error. Else as `upsert`.
        """
        if isinstance(keys, (str, pc.Expression)):
            if app is not None:
                raise InvalidInput("delete() with a filter takes no app: what it deletes depends on when it runs")
            return delete_where(self._context, keys, metadata=metadata, spark=spark)
        return write_batch(self._context, keys, Operation.DELETE, metadata, app)

    def plan_erasure(self, keys: str | Any) -> ErasurePlan:
        """What `erase` would do now; sends reads only. keys: as of `erase`. Raises InvalidPredicate, and as `scan`."""
        return plan_erasure(self._context, keys)

    def erase(self, keys: str | Any, *, older_than_s: float = 3600) -> ErasureCertificate:
        """Delete rows, and every file that holds them or held them; all slots but the newest expire.

        keys: a batch of up to 1,000 keys, as of `delete`, or a filter as SQL text, such as `"visitor = 'ana'"`. Log rows of the whole table
        are merged, since a log file has rows of many file groups; what writers left that have been silent for `older_than_s` is rolled
        back, as by `maintenance.rollback_failed_writes`. Writers go on meanwhile: what they write is not touched. Cut short, it is finished
        when it is called again. Raises InvalidInput when a savepoint keeps such rows (it names them: release them first), Unavailable when
        the store did not delete a file (call it again), InvalidPredicate, InvalidBatch, NullKey, CommitConflict, WriterFenced,
        CommitUnknown and storage errors."""
        return erase_for_good(self._context, keys, older_than_s=older_than_s, reliably=self._context.retry_on_new_checkpoint)

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
        return update(self._context, values, where, metadata=metadata, app=app, spark=spark)

    def merge(self, source: Any, *, on: str | None = None, source_alias: str = "source", target_alias: str = "target") -> Merge:
        """Begin a merge: say what happens to rows that match by key and to those that do not, then `execute()` it.

        source: a batch as of `upsert`; a Spark DataFrame is merged by Spark. It may have any columns beside those of the key. on: which
        column of the source equals which key column, `"source.customer = target.id"`; the same names when None. source_alias,
        target_alias: what expressions call the two.
        """
        aliases = (text(source_alias, what="source_alias"), text(target_alias, what="target_alias"))
        return Merge(self._context, source, on, aliases)

    def upsert_partial(self, data: Any, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None) -> CommitResult | None:
        """Insert or update rows by key, of which the batch has only some columns: the others stay as they are, and are null in new rows.

        A merge that updates all columns of the batch: see `Merge.execute`, also for what it raises and returns. In a list of dicts each row
        may have other columns: what a dict lacks stays as it is, and None is null. Such rows count one after the other, as if each came by
        itself, in one commit: of one key the later row wins, column by column. A frame or an Arrow table has the same columns in every row,
        and null there is null.
        """
        return upsert_partial(self._context, data, metadata=metadata, app=app)

    def app_version(self, app_id: str) -> int | None:
        """The version that an application has reached in this table; None when it has written nothing. One GET when nothing is new."""
        self.refresh()
        reached = self._context.view.log.marks(self.id).apps.get(text(app_id, what="app_id"))
        return None if reached is None else reached.version

    def apply_changes(
        self, source: ChangeFeed, *, app_id: str, metadata: Mapping[str, str] | None = None, spark: SparkSession | None = None
    ) -> CommitResult | None:
        """Follow another table: write its changes here, rows and deletes, as one commit that counts once; None when there are none.

        source: `source.changes(since=table.app_version("job"), net=True)`, or since=-1 the first time. The columns that this table has too
        are written. app_id: names the work; its version is the last slot of the changes, so that changes which are tried again are written
        once. Net changes begin where the version is: a key that came and went would else be neither in them nor gone. spark: reads and
        writes on Spark. Raises InvalidInput when changes would be left out, CommitConflict when others have brought some of them (read them
        anew), else as `upsert`."""
        reached = self.app_version(app_id)
        check_follows(source, reached, app_id=app_id)
        known = self._context.view.log.marks(self.id).apps.get(app_id)
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
        """Replace partitions by a batch, as one commit: all of their rows go, whatever their ordering, and those of the batch come.

        where: which partitions, a filter over partition columns, of which the batch must be too; None: those in which the batch has rows
        (of a table without partitions: the whole table). A commit of another that writes there first is replaced as well, and the batch is
        not written again for it; one that comes later finds the new rows. Partitions that the filter names and that another commit creates
        at the same time stay. Older slots keep the rows. Else as `insert`. Raises InvalidInput when the filter names other columns or
        divides a partition, and where rows of the batch live in a partition of an earlier partitioning that no filter names; else as
        `insert`.
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
        """Replace all rows of the table by a batch, as one commit. Else as `insert_overwrite`."""
        return overwrite(self._context, data, where=None, whole=True, metadata=metadata, app=app, schema_mode=schema_mode)

    def delete_partition(self, where: str | pc.Expression, *, metadata: Mapping[str, str] | None = None) -> CommitResult | None:
        """Take partitions away, as one commit that reads and writes no data; None when there are none.

        where: a filter over partition columns. In a table with an ordering column older rows that come late are let in again. Raises
        InvalidInput when the filter names other columns or divides a partition, InvalidPredicate, CommitConflict when others write there
        faster than this can be planned, WriterFenced, CommitUnknown.
        """
        return delete_partition(self._context, where, metadata=metadata)

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
        "snapshot", every row; or "read_optimized", of a merge-on-read table what its base files hold, as fast as Parquet: rows that no
        compaction has merged yet are not there (of a copy-on-write table the same as "snapshot"). Raises InvalidPredicate, InvalidInput,
        and SnapshotExpired when the slot was cleaned.
        """
        return open_scan(self._context, where=where, columns=columns, as_of=as_of, limit=limit, mode=mode)

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
        return self._context.retry_on_new_checkpoint(
            lambda: incremental(self._context.feed_context(), since, until, where=where, columns=columns)
        )

    def changes(self, *, since: AsOf, until: AsOf | None = None, columns: Sequence[str] | None = None, net: bool = False) -> ChangeFeed:
        """What every commit after `since` up to `until` inserted, updated and deleted, exactly.

        Rows have `_change_type` ("insert", "update_before", "update_after" or "delete"), `_commit_slot`, `_commit_time`, and the columns:
        of a delete and of update_before as they were. A late row that lost is no change, a compaction and a split are none, a RESTORE is
        what it changed. net: one change a key over the whole range, or none, at its last commit. Reads the file groups that changed as of
        `since`, and what was written to them. Points as of `incremental`. Rows are under the schema of `until`. Raises InvalidInput,
        SnapshotExpired when files since `since` were cleaned: it names the slot from which on changes can be read."""
        columns = None if columns is None else name_list(columns, what="columns")
        return self._context.retry_on_new_checkpoint(lambda: changes(self._context.feed_context(), since, until, columns=columns, net=net))
