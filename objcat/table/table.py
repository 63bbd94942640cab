"""`Table`: the handle that users hold of one table. It writes and reads rows, and gives access to everything else.

Begin with `Table`; `Lake.table`, `Lake.create_table` and `objcat.table_at` return one. Rows: `upsert`, `insert`, `delete`, `merge`, `scan`,
`changes`. Services are under `table.maintenance`, schema and partition changes under `table.alter`, metadata under `table.inspect`.
Every write is one commit. It returns after the commit is durable, or raises: after CommitConflict nothing is visible; after CommitUnknown,
`resolve` tells. Each method is a few lines; the work is in the modules of `objcat.table` and below.
"""

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
        """The name in the lake; the URL for a table without a lake."""
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
        """Read and return the newest snapshot: one GET when nothing is new."""
        return self._context.refresh()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot that this handle has seen."""
        return self._context.snapshot

    @property
    def spec(self) -> TableSpec:
        """The definition of the table as its log stores it: columns by id."""
        return self.snapshot.spec

    @property
    def url(self) -> str:
        """Where the table's log and files are, without secrets."""
        return self._context.fileio.url

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow fields, by their current names."""
        return self.spec.table_schema.to_arrow()

    @property
    def key(self) -> list[str] | None:
        """The key columns by name; None for a table without a key."""
        return [column.name for column in self.spec.key_columns] or None

    @property
    def ordering(self) -> str | None:
        """The name of the column whose greater value wins; None where the later commit wins."""
        column = self.spec.ordering_column
        return None if column is None else column.name

    @property
    def index(self) -> Index | None:
        """The index as `create_table` takes it; None without a key. A bucket count is the current one; a partition split by itself has
        more."""
        snapshot = self.snapshot
        return index_asked(snapshot.spec, snapshot.table.bucket_count(""))

    @property
    def table_type(self) -> TableType:
        """ "merge_on_read" or "copy_on_write", as for `create_table`."""
        return cast("TableType", self.spec.table_type)

    @property
    def partitioning(self) -> list[str]:
        """The partition spec as `partition_by` of `create_table` takes it, such as `["city", "day(at)"]`; empty: one partition for all."""
        spec = self.spec
        return fields_asked(spec.partitioning, spec.table_schema)

    @property
    def key_scope(self) -> KeyScope:
        """ "table" or "partition": where a key is unique."""
        return cast("KeyScope", self.spec.key_scope)

    @property
    def allowed_lateness(self) -> dt.timedelta | None:
        """How long before its commit a row's ordering time may be; None: no limit."""
        lateness_ms = self.spec.lateness_ms
        return None if lateness_ms is None else dt.timedelta(milliseconds=lateness_ms)

    @property
    def properties(self) -> dict[str, str]:
        """Properties, text to text: settings, and notes of users."""
        return dict(self.spec.properties)

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

        A merge-on-read table is not read: the rows are appended. A copy-on-write table reads and rewrites the buckets that hold the keys;
        if another commit rewrites one of them first, only that bucket is done again. A Spark DataFrame is then computed again: cache or
        checkpoint one that does not give the same rows each time.

        Args:
            data: an Arrow table or reader, a pandas or polars frame, or a list of dicts (written by this process), or a Spark DataFrame
                (written by Spark). Columns match by name. A missing nullable column is null, also for a single dict that lacks it;
                `upsert_partial` leaves it as it is.
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
        if one_of(on_existing, get_args(OnExisting), what="on_existing") == "replace":
            return write_batch(self._context, data, Operation.INSERT, metadata, app, schema_mode)
        if schema_mode not in (None, SchemaMode.STRICT):
            raise InvalidInput(
                f"insert() with on_existing={on_existing!r} changes no schema. Nothing was written. Add the columns with "
                "table.alter, or upsert the batch."
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
        A batch of keys deletes these rows; keys that do not exist are no error. In a table with an ordering column, a batch that has that
        column deletes only what is not newer, and keeps older late rows out; without it, everything written before is deleted.

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
        if isinstance(keys, (str, pc.Expression)):
            if app is not None:
                raise InvalidInput("delete() with a filter takes no app=, because what it deletes depends on when it runs. Leave out app=.")
            return delete_where(self._context, keys, metadata=metadata, spark=spark)
        return write_batch(self._context, keys, Operation.DELETE, metadata, app)

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

        Returns:
            The commit; None when no row passes.

        Raises:
            InvalidInput: a value does not fit its column, or a column is of the key.
            InvalidPredicate: an expression does not parse or fit.
            MissingDependency: DuckDB, which evaluates in this process, is missing.
            ObjcatError: the errors of `Merge.execute`.
        """
        return update(self._context, values, where, metadata=metadata, app=app, spark=spark)

    def merge(self, source: Any, *, on: str | None = None, source_alias: str = "source", target_alias: str = "target") -> Merge:
        """Begin a merge: add clauses for rows that match by key and rows that do not, then call `execute()`.

        Args:
            source: a batch as for `upsert`, with any columns besides the key; a Spark DataFrame is merged by Spark.
            on: which source column equals which key column, `"source.customer = target.id"`; the same names when None.
            source_alias, target_alias: the names of the two in expressions.

        Returns:
            A `Merge` without clauses.

        Raises:
            InvalidInput: `on` or an alias does not fit.
        """
        aliases = (text(source_alias, what="source_alias"), text(target_alias, what="target_alias"))
        return Merge(self._context, source, on, aliases)

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

    def app_version(self, app_id: str) -> int | None:
        """The version that an application has reached in this table; None when it has written nothing.

        One GET when nothing is new. `app_id`: the `app` of its AppVersion.
        """
        self.refresh()
        reached = self._context.view.log.marks(self.id).apps.get(text(app_id, what="app_id"))
        return None if reached is None else reached.version

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
        """Plan a scan of the newest snapshot, or of an earlier one. Rows are read when a method of the result is called.

        Args:
            where: SQL text, e.g. `"fare > 10 and city = 'Rome'"`, or a `pyarrow.compute.Expression`.
            columns: names, in order; all when None. `_file`, `_commit_slot` and `_commit_time` come only when named.
            as_of: a slot, or a datetime or ISO text (UTC where it has no zone): the newest commit at or before it.
            limit: rows at most, no particular ones.
            mode: "snapshot": every row. "read_optimized": only base files, as fast as Parquet; a merge-on-read table then lacks rows not
                yet compacted.

        Returns:
            A `Scan`: `to_arrow()`, `to_spark(spark)`, `to_pandas()` and others.

        Raises:
            InvalidPredicate: the filter does not parse or fit.
            InvalidInput: an argument does not fit the table.
            SnapshotExpired: the slot was cleaned.
        """
        return open_scan(self._context, where=where, columns=columns, as_of=as_of, limit=limit, mode=mode)

    def incremental(
        self, *, since: AsOf, until: AsOf | None = None, where: str | pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> ChangeFeed:
        """The latest state, as of `until`, of every row that was inserted or updated after `since`.

        Reads what was written in the range, not the table. Deleted keys do not appear, nor do rows that came late and lost. A compaction
        adds nothing and hides nothing.

        Args:
            since: excluded: a slot, a txn, a datetime or ISO text (the newest commit at or before it); -1 is before the first. It may be
                cleaned.
            until: included, given like `since`; the newest when None.
            where: see `scan`.
            columns: see `scan`; may name `_commit_slot` and `_commit_time`, of the commit that wrote the row.

        Returns:
            A `ChangeFeed`.

        Raises:
            InvalidPredicate, InvalidInput: an argument does not fit.
            SnapshotExpired: `until` was cleaned.
        """
        columns = None if columns is None else name_list(columns, what="columns")
        return self._context.retry_on_new_checkpoint(
            lambda: incremental(self._context.feed_context(), since, until, where=where, columns=columns)
        )

    def changes(self, *, since: AsOf, until: AsOf | None = None, columns: Sequence[str] | None = None, net: bool = False) -> ChangeFeed:
        """Exactly what every commit after `since` up to `until` inserted, updated and deleted.

        Rows have `_change_type` ("insert", "update_before", "update_after" or "delete"), `_commit_slot`, `_commit_time` and the columns;
        those of a delete and of update_before as they were. A late row that lost, a compaction and a split are no changes; a RESTORE is
        what it changed. Reads the file groups that changed as of `since`, and what was written to them. Rows have the schema of `until`.

        Args:
            since, until: see `incremental`.
            columns: names, in order; all when None.
            net: at most one change per key over the whole range, at its last commit.

        Returns:
            A `ChangeFeed`.

        Raises:
            InvalidInput: an argument does not fit.
            SnapshotExpired: files since `since` were cleaned; it names the slot from which on changes can be read.
        """
        columns = None if columns is None else name_list(columns, what="columns")
        return self._context.retry_on_new_checkpoint(lambda: changes(self._context.feed_context(), since, until, columns=columns, net=net))
