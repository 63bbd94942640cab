"""What users hold of a place: a lake at a URL, with its names and the tables that they mean; and tables without a lake."""

from __future__ import annotations

import contextlib
import datetime as dt
import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import pyarrow as pa

from fileio.check.probe import check_commit_store
from fileio.env import Env
from fileio.errors import FileIOError
from fileio.options import nearest
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.write_outcomes import RetryPolicy
from objcat.catalog.catalog import Catalog
from objcat.catalog.names import CatalogNames, DroppedTable, NameBinding, TableEntry, check_name, log_prefix
from objcat.catalog.plans import (
    PlanOutdated,
    check_name_free,
    find_dropped,
    plan_create,
    plan_drop,
    plan_purge,
    plan_rename,
    plan_undrop,
    renamed,
)
from objcat.catalog.table_lifecycle import close, create, reopen
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import (
    IfExists,
    IsolationName,
    KeyScope,
    TableType,
    folded,
    name_list,
    one_of,
    seconds,
    session,
    text,
)
from objcat.engine.local import is_untyped, to_arrow_batch
from objcat.errors import (
    CommitUnknown,
    Contention,
    InvalidInput,
    ObjcatError,
    SharedTransaction,
    TableClosed,
    TableExists,
    TableNotFound,
)
from objcat.inspection.verify_files import VERIFIED_BYTES
from objcat.lake.create import check_rows, drop_created_table
from objcat.lake.import_parquet import COMMIT_BYTES, ImportResult, find_source, import_files, inspect_source
from objcat.lake.namespaces import LakeNamespaces, below_namespace
from objcat.lake.standalone import EMPTY_LOG_VIEW, TableSettings, new_spec
from objcat.maintenance.auto import AutoMaintenance
from objcat.maintenance.clean import CleanResult
from objcat.maintenance.maintain import MaintenanceReport
from objcat.maintenance.metrics import Sample, prometheus_text, samples_of
from objcat.maintenance.purge import purge
from objcat.metadata.replay import TablesReducer
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_spec import Index, TableSpec
from objcat.metadata.table_state import Tables
from objcat.sql.context import Context
from objcat.sql.duckdb_runner import LocalRunner
from objcat.sql.runner import Runner
from objcat.sql.statements import run_statement
from objcat.table.batch_input import schema_of_batch, session_of
from objcat.table.context import TableContext
from objcat.table.maintenance import maintain_tables
from objcat.table.table import Table
from objcat.table.transaction import Transaction
from objcat.tasks.model import Operation
from objcat.timeline.entry import Txn, new_txn, parse_txn
from objcat.timeline.intents import remove_files
from objcat.timeline.log_state import AppVersion
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.rollback import Resolution, resolve
from objcat.write.transaction import CommitResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ATTEMPTS_MAX = 20
VIEWS_KEPT_MAX = 64

R = TypeVar("R")


def connect(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, env: Env | None = None, policy: RetryPolicy | None = None
) -> Lake:
    """The lake at a URL: `s3://bucket/prefix`, `gs://`, `az://`, `file:/path`, a bare path, or `memory:`. Sends no request.

    options: of the storage backend, see `docs/`. Raises `fileio.errors.InvalidConfig` for a URL or an option that is not valid.
    """
    return Lake(open_store(url, options, env=env, policy=policy))


@dataclass(frozen=True, slots=True)
class _TablePlace:
    """Where a table's log is. shared: other tables were created in it before."""

    prefix: str
    shared: bool


@reports_full_memory
class Lake:
    """Names below one prefix of a store, and the tables that they mean. Safe for many threads.

    Keeps what it has seen of the catalog and of tables: opening a table again costs one GET for each.
    """

    def __init__(self, fileio: FileIO) -> None:
        self.fileio = fileio
        self.catalog = Catalog(fileio)
        self._lock = threading.Lock()
        self._views: dict[str, LogView[Tables]] = {}
        self._auto_maintenance = AutoMaintenance()
        self._checked = False

    @property
    def namespaces(self) -> LakeNamespaces:
        """The namespaces of the lake: `create`, `drop`, `list`, `properties` and `set_properties`."""
        return LakeNamespaces(self.catalog, self.fileio.url)

    def __repr__(self) -> str:
        return f"Lake({self.fileio.url!r})"

    # ---- tables

    def create_table(  # noqa: PLR0913 - one for each setting that a table has
        self,
        name: str,
        schema: pa.Schema | StructType,
        *,
        key: Sequence[str] | None,
        ordering: str | None = None,
        allowed_lateness: str | dt.timedelta | None = None,
        partition_by: Sequence[str] = (),
        key_scope: KeyScope = "table",
        index: Index | None = None,
        table_type: TableType = "merge_on_read",
        properties: Mapping[str, str] | None = None,
        shared_log: str | None = None,
    ) -> Table:
        """Create a table; of several processes that create one name, exactly one wins.

        name: as in `city.trips`: `trips` in the namespace `city`, which is created when it is not there. schema: Arrow's, or that of a
        Spark DataFrame; types are narrowed to those that Spark shares. key: the columns that identify a row, never null; None: a table that
        only grows, and keeps every row. ordering: the column whose greater value wins when a key is written twice (event time, a version),
        never null; None: the later commit wins. allowed_lateness: of an ordering column of times, how far before its commit a row may lie,
        "7 days" or a timedelta: what is older counts for nothing, so that deletes need not be remembered for ever; an `insert` into buckets
        without rows is not measured. partition_by: which rows lie together in files of their own: columns, or `hour(column)`, `day`,
        `month`, `year` (of dates and times, in UTC), `truncate(column, width)`; every batch has these columns, which may be null.
        key_scope: "table": a key is one row of the table: with buckets partition columns are key columns then, and with another index a row
        that comes with another partition moves; "partition": a key is one row of its partition, and an upsert with another partition is
        another row. index: `BucketIndex(16)` by default, for each partition; `SimpleIndex()`, `BloomIndex()`, `MemoryIndex()` or
        `RecordIndex()`. shared_log: tables with one shared log can change together in one transaction; None: the table has a log of its
        own. Raises TableExists that names the winner, NamespaceNotFound when the namespace is dropped meanwhile, InvalidInput, and
        `fileio.errors.StoreUnfit` for a store that ignores conditions: commits on it would be lost."""
        name, shared_log = _checked(name, shared_log)
        spec = new_spec(
            self.fileio,
            schema,
            key=key,
            ordering=ordering,
            allowed_lateness=allowed_lateness,
            partition_by=partition_by,
            key_scope=key_scope,
            index=index,
            table_type=table_type,
            properties=properties,
        )
        return self._create(name, spec, shared_log)

    def _create(self, name: str, spec: TableSpec, shared_log: str | None) -> Table:
        """`create_table`, of checked names."""
        first = self.catalog.refresh()
        self.catalog.check_writable()
        self._check_free(first, name)
        self._check_store()
        txn = new_txn(self.fileio.env)
        for _ in range(ATTEMPTS_MAX):
            place = self._place(name, shared_log)
            timeline = self._timeline(place.prefix)
            view = self._create_in(timeline, EMPTY_LOG_VIEW if not place.shared else timeline.open(), spec, txn)
            binding = NameBinding(name=name, table=spec.table, prefix=place.prefix, shared_log=shared_log or "", opened=view.slot)
            try:
                self.catalog.change(partial(plan_create, binding=binding, first=first, where=self.fileio.url), txn=txn)
            except CommitUnknown:
                raise
            except PlanOutdated:
                self._abandon(timeline, view, spec.table, shared=place.shared)
                continue
            except (ObjcatError, FileIOError):
                self._abandon(timeline, view, spec.table, shared=place.shared)
                raise
            self._remember(place.prefix, view)
            return Table(TableContext(name, timeline, spec.table, view, auto_maintenance=self._auto_maintenance))
        raise _contended(f"the shared log {shared_log!r} moved {ATTEMPTS_MAX} times", self.catalog)

    def write(
        self, data: Any, name: str, *, key: Sequence[str] | None, if_exists: IfExists = "upsert", **settings: Unpack[TableSettings]
    ) -> CommitResult:
        """Write a batch to a table, which is created when it is not there: with the columns of the batch.

        data: as of `Table.upsert`. key: of the table, whether it is there or not. if_exists: "upsert" (a table without a key takes
        inserts), "insert" or "error". settings: of `create_table`, for a new table. Of several processes that create it, one wins, and all
        write. Rows in memory are checked before the table is created; one that was created for rows that are refused later (a frame of
        Spark's, a stream) is dropped, unless somebody has written to it meanwhile. Raises TableExists, InvalidInput, else as `create_table`
        and `Table.upsert`; a table that was created stays when the store fails.
        """
        one_of(if_exists, ("upsert", "insert", "error"), what="if_exists")
        operation = Operation.INSERT if key is None or if_exists == "insert" else Operation.UPSERT

        @cache
        def rows() -> Any:
            # A stream can be read once; rows without types are read anew, as the table says what is a map in them.
            return data if is_untyped(data) or session_of(data) is not None else to_arrow_batch(data)

        def check(spec: TableSpec) -> None:
            check_rows(self.fileio, rows(), spec, operation, table=name)

        def write(table: Table) -> CommitResult:
            return table.insert(rows()) if operation is Operation.INSERT else table.upsert(rows())

        for _ in range(ATTEMPTS_MAX):
            try:
                return self._write_first(
                    name, lambda: schema_of_batch(rows())[1], key, settings, write, check=check, must_be_new=if_exists == "error"
                )
            except TableClosed:
                # By another process, whose own first write was refused.
                continue
        raise _contended(f"the table {name!r} was dropped {ATTEMPTS_MAX} times meanwhile", self.catalog)

    def import_parquet(
        self,
        source: str | os.PathLike[str],
        name: str,
        *,
        key: Sequence[str] | None,
        options: Mapping[str, Any] | None = None,
        commit_bytes: int = COMMIT_BYTES,
        **settings: Unpack[TableSettings],
    ) -> ImportResult:
        """Insert the rows of Parquet files into a table, which is created when it is not there: with the columns of the first file.

        source: a file, or a place with files below it. Directories such as `day=2026-01-31`, as Hive and Spark write them, say a column
        that files lack: whole numbers, dates, or text; and what the table says where it is there. options: of its store. key, settings: as
        of `write`; keys are declared new. commit_bytes: of source files, that make one commit. An import that ended early goes on where it
        was when it is called again; a table that was created is dropped when the first commit is refused, as by `write`. Raises as
        `objcat.lake.import_parquet.import_files` and `create_table`.
        """
        found = inspect_source(find_source(source, options))

        def write(table: Table) -> ImportResult:
            return import_files(table, found, commit_bytes=commit_bytes)

        return self._write_first(name, lambda: found.schema, key, settings, write)

    @overload
    def sql(self, text: str, spark: None = None) -> pa.Table: ...

    @overload
    def sql(self, text: str, spark: SparkSession) -> DataFrame: ...

    def sql(self, text: str, spark: SparkSession | None = None) -> pa.Table | DataFrame:
        """Run one SQL statement (Spark's dialect) over the tables of the lake.

        A table is called by its name here, `shop.orders`; `orders VERSION AS OF 7` and `orders TIMESTAMP AS OF '2026-01-31 12:00:00'` are
        its past. spark: the session in which queries run, and whose frame is returned; without one they run in DuckDB, in this process, and
        an Arrow table is returned. A statement that writes rows returns one row of slot, rows, inserted, updated and deleted; one that
        has nothing to tell returns no row. `docs/reference/sql.md` lists the statements. Raises InvalidSql (nothing was done),
        MissingDependency, else as the operations that a statement is made of.
        """
        runner: Runner = LocalRunner()
        if spark is not None:
            from objcat.spark.sql import SparkRunner

            runner = SparkRunner(session(spark))
        return run_statement(text, Context(self, runner))

    def table(self, name: str) -> Table:
        """Open a table at its newest slot. Raises TableNotFound that names the nearest one, TableClosed for one that is being dropped."""
        bound = self._bound(name)
        timeline, view = self._open(bound.binding.prefix)
        try:
            snapshot_of(view, bound.binding.table, where=timeline.fileio.url)
        except TableClosed as error:
            raise TableClosed(
                f"{error}, but the name {name!r} still means it: finish with lake.drop_table({name!r}), "
                f"or bring it back with lake.undrop_table({name!r})"
            ) from error
        return Table(TableContext(bound.binding.name, timeline, bound.binding.table, view, auto_maintenance=self._auto_maintenance))

    def tables(self, namespace: str | None = None) -> list[str]:
        """Names of the tables in a namespace and below it, sorted; of all tables when None. Raises NamespaceNotFound."""
        names = self.catalog.refresh()
        below = below_namespace(names, namespace)
        return sorted(bound.binding.name for key, bound in names.tables.items() if key.startswith(below))

    def rename_table(self, name: str, new_name: str) -> None:
        """Give a table another name, perhaps in another namespace: at no moment it has both or none. Its data and log stay where they are.

        Raises TableNotFound, TableExists, InvalidInput.
        """
        new_name = check_name(new_name)
        before = self._bound(name).binding
        first = self.catalog.names
        if folded(name) != folded(new_name):
            self._check_free(self.catalog.names, new_name)

        self.catalog.change(lambda names: plan_rename(names, before, new_name, first=first, where=self.fileio.url))

    def drop_table(self, name: str) -> None:
        """Drop a table: nothing changes it any more, and its name is free at once. It can come back until it is purged.

        What writers have committed before is kept; those under way are refused with TableClosed or CommitConflict. Of a shared log only
        this table is dropped. A drop that was interrupted is finished by the next one. Raises TableNotFound."""
        binding = self._bound(name).binding
        self.catalog.check_writable()
        self._finish_drop(binding.table, self._close(binding))

    def undrop_table(self, name: str, *, new_name: str | None = None, table: str | None = None) -> Table:
        """Bring a dropped table back as it was, under its old name or another one.

        table: the id, where several tables of that name were dropped (see `dropped_tables`); the last one when None.
        Raises TableNotFound, TableExists when the name is taken, SnapshotExpired when its files were cleaned away.
        """
        target = check_name(new_name if new_name is not None else name)
        for _ in range(ATTEMPTS_MAX):
            names = self.catalog.refresh()
            self.catalog.check_writable()
            bound = names.table(name)
            if bound is not None and self._complete_drop(bound):
                names = self.catalog.names
            dropped = find_dropped(names, name, table, where=self.fileio.url)
            self._check_free(names, target)
            timeline, view = self._open(dropped.binding.prefix)
            view = reopen(timeline, view, dropped.table)
            self._remember(dropped.binding.prefix, view)
            binding = renamed(dropped.binding, target, opened=view.slot)
            try:
                self.catalog.change(partial(plan_undrop, dropped=dropped, binding=binding, first=names, where=self.fileio.url))
            except PlanOutdated:
                continue
            return Table(TableContext(target, timeline, dropped.table, view, auto_maintenance=self._auto_maintenance))
        raise _contended(f"the table {name!r} was dropped and brought back {ATTEMPTS_MAX} times meanwhile", self.catalog)

    def dropped_tables(self, namespace: str | None = None) -> list[DroppedTable]:
        """Tables that were dropped and can come back, the last one first; those that were in a namespace or below it."""
        names = self.catalog.refresh()
        below = "" if namespace is None else folded(text(namespace, what="name of a namespace")) + "."
        found = [table for table in names.dropped.values() if folded(table.name).startswith(below) and not table.is_purged]
        return sorted(found, key=lambda table: table.slot, reverse=True)

    def purge_table(self, name: str, *, older_than_s: float, table: str | None = None) -> CleanResult:
        """Delete the data files of a table that was dropped at least so many seconds ago, for good: it cannot be brought back any more.

        Claims a slot in the table's log before it deletes; its log stays, and other tables of a shared log are not touched. table: the id,
        where several tables of that name were dropped; the last one when None. Interrupted, it is finished when it is called again. Raises
        TableNotFound, TableExists, InvalidInput when it was dropped too recently or has savepoints, and as `Table.maintenance.clean`."""
        seconds(older_than_s, what="older_than_s")
        names = self.catalog.refresh()
        self.catalog.check_writable()
        bound = names.table(check_name(name))
        if bound is not None and self._complete_drop(bound):
            names = self.catalog.names
        dropped = find_dropped(names, name, table, where=self.fileio.url)
        done = purge(self._timeline(dropped.binding.prefix), dropped.table, older_than_s=older_than_s)
        self.catalog.change(lambda names: plan_purge(names, dropped))
        return done

    # ---- maintenance

    def maintain(
        self,
        *,
        namespace: str | None = None,
        io_bytes_max: int | None = None,
        seconds_max: float | None = None,
        verify_bytes_max: int = VERIFIED_BYTES,
        spark: SparkSession | None = None,
    ) -> list[MaintenanceReport]:
        """Do for every table, of a namespace or of the lake, what `table.maintenance.run` does for one, within one budget for all of them.

        Several machines may do so at once. A table that fails is left, and the result says why. verify_bytes_max: of each table. Raises
        NamespaceNotFound, InvalidInput, and storage errors of reading the catalog.
        """
        return maintain_tables(
            self.tables(namespace),
            lambda name: self.table(name).maintenance,
            self.fileio.env,
            io_bytes_max=io_bytes_max,
            seconds_max=seconds_max,
            verify_bytes_max=verify_bytes_max,
            spark=spark,
        )

    def metrics(self, *, namespace: str | None = None, recent: int = 100, verify_bytes_max: int = 0) -> str:
        """What `table.maintenance.metrics` says, of every table that can be opened, in one text."""
        found: list[Sample] = []
        for name in self.tables(namespace):
            with contextlib.suppress(TableNotFound, TableClosed):
                table = self.table(name)
                found += samples_of(table._context.timeline, table.id, name=name, recent=recent, verify_bytes_max=verify_bytes_max)
        return prometheus_text(found)

    # ---- several tables

    def transaction(
        self, *, isolation: IsolationName = "snapshot", metadata: Mapping[str, str] | None = None, app: AppVersion | None = None
    ) -> Transaction:
        """A block that reads and writes several tables with one shared log, and is committed in one slot when it ends:

            with lake.transaction() as tx:
                tx["accounts"].upsert(accounts)
                tx["entries"].insert(entries)

        isolation: of a block that reads. "snapshot": it fails when somebody changed, since it began, buckets that it writes; what it reads
        may change. "serializable": it fails when somebody changed a table that it reads. A block that reads nothing does not fail because
        of other writes. metadata, app: as of `Table.upsert`.
        The block raises CommitConflict when it ends (nothing is visible: run it again), TableClosed when a table was dropped meanwhile,
        CommitUnknown, and what `Table.upsert` raises.
        """
        return Transaction(
            self.catalog,
            self._open,
            self._remember,
            isolation=isolation,
            metadata={} if metadata is None else metadata,
            app=app,
            auto_maintenance=self._auto_maintenance,
        )

    # ---- outcomes

    def resolve(self, txn: str) -> Resolution:
        """Settle a change of names whose outcome nobody knows (CommitUnknown), for ever. As `Table.resolve`, for the catalog."""
        return resolve(self.catalog.fileio, parse_txn(txn))

    # ---- how

    def _write_first(
        self,
        name: str,
        schema: Callable[[], pa.Schema],
        key: Sequence[str] | None,
        settings: Mapping[str, Any],
        write: Callable[[Table], R],
        *,
        check: Callable[[TableSpec], None] = lambda _: None,
        must_be_new: bool = False,
    ) -> R:
        """Write to a table of this name and key, which is created when it is not there, and taken back when it was and `write` is refused.

        check: refuses a spec before a table of it is created. Raises TableExists, InvalidInput, and what `write` raises.
        """
        known = set(inspect.signature(self.create_table).parameters) - {"name", "schema", "key"}
        for setting in settings:
            if setting not in known:
                raise InvalidInput(f"{setting!r} is not a setting of a table: {nearest(setting, known)}")
        wanted = None if key is None else name_list(key, what="key")
        found = None if must_be_new else self._found(name, wanted)
        if found is not None:
            return write(found)
        name, shared_log = _checked(name, settings.get("shared_log"))
        spec = new_spec(self.fileio, schema(), key=wanted, **{given: value for given, value in settings.items() if given != "shared_log"})
        check(spec)
        try:
            table = self._create(name, spec, shared_log)
        except TableExists:
            if must_be_new:
                raise
            found = self._found(name, wanted)
            if found is None:
                raise TableClosed(
                    f"the table {name!r} of {self.fileio.url} was created and dropped by others meanwhile: write again"
                ) from None
            return write(found)
        opened = table.snapshot.slot
        try:
            return write(table)
        except (CommitUnknown, SharedTransaction, FileIOError):
            raise
        except Exception:
            drop_created_table(self.catalog, table._context.timeline, table.id, opened=opened)
            raise

    def _found(self, name: str, key: list[str] | None) -> Table | None:
        """A table of this name and key; None when it is not there, or on its way out. Raises InvalidInput for one of another key."""
        try:
            return _of_key(self.table(name), key)
        except (TableNotFound, TableClosed):
            return None

    def _check_store(self) -> None:
        if not self._checked:
            check_commit_store(self.fileio)
            self._checked = True

    def _timeline(self, prefix: str) -> Timeline[Tables]:
        return Timeline(self.fileio.child(prefix), TablesReducer())

    def _open(self, prefix: str) -> tuple[Timeline[Tables], LogView[Tables]]:
        """A log at its head: from the view of it that was kept, where there is one."""
        timeline = self._timeline(prefix)
        kept = self._views.get(prefix)
        view = timeline.open() if kept is None else timeline.refresh(kept)
        self._remember(prefix, view)
        return timeline, view

    def _remember(self, prefix: str, view: LogView[Tables]) -> None:
        with self._lock:
            kept = self._views.pop(prefix, None)
            self._views[prefix] = view if kept is None or kept.slot <= view.slot else kept
            while len(self._views) > VIEWS_KEPT_MAX:
                del self._views[next(iter(self._views))]

    def _bound(self, name: str) -> TableEntry:
        check_name(name)
        names = self.catalog.refresh()
        bound = names.table(name)
        if bound is None:
            raise names.not_found(name, where=self.fileio.url)
        return bound

    def _check_free(self, names: CatalogNames, name: str) -> None:
        """Raises TableExists. A table whose drop was interrupted does not keep its name."""
        bound = names.table(name)
        if bound is None or not self._complete_drop(bound):
            check_name_free(names, name, where=self.fileio.url)

    # ---- how: create

    def _place(self, name: str, shared_log: str | None) -> _TablePlace:
        known = None if shared_log is None else self.catalog.names.shared_logs.get(folded(shared_log))
        if known is not None:
            return _TablePlace(known, shared=True)
        return _TablePlace(log_prefix(shared_log or name, self.fileio.env.new_id()), shared=False)

    def _create_in(self, timeline: Timeline[Tables], base: LogView[Tables], spec: TableSpec, txn: Txn) -> LogView[Tables]:
        try:
            return create(timeline, base, spec, txn)
        except CommitUnknown as error:
            # Whether it landed or not, no name means it, and none will: that is certain, and all that a user can see.
            if isinstance(error.__cause__, FileIOError):
                raise error.__cause__ from None
            raise

    def _abandon(self, timeline: Timeline[Tables], view: LogView[Tables], table: str, *, shared: bool) -> None:
        """Take back a table that has no name, and certainly never will. Best effort: what stays is seen by nobody."""
        try:
            if shared:
                close(timeline, view, table)
            else:
                remove_files(timeline.fileio, list(timeline.fileio.list_keys()), why=table)
        except (ObjcatError, FileIOError):
            return

    # ---- how: drop and undrop

    def _close(self, binding: NameBinding) -> int:
        """The slot at which a table is closed from now on. Where its log was deleted by hand, all that is left of it is its name."""
        timeline, view = self._open(binding.prefix)
        if view.slot < 0:
            return binding.opened + 1
        try:
            view = close(timeline, view, binding.table)
        except TableNotFound:
            return binding.opened + 1
        self._remember(binding.prefix, view)
        return _closed_at(view, binding.table)

    def _complete_drop(self, bound: TableEntry) -> bool:
        """Finish a drop that was interrupted between its two steps. Returns whether it was."""
        binding = bound.binding
        _, view = self._open(binding.prefix)
        if view.log.marks(binding.table).closed_at is None:
            return False
        self._finish_drop(binding.table, _closed_at(view, binding.table))
        return True

    def _finish_drop(self, table: str, closed: int) -> None:
        self.catalog.change(lambda names: plan_drop(names, table, closed))


def _checked(name: str, shared_log: str | None) -> tuple[str, str | None]:
    """Names of a table and of a shared log, as they are kept. Raises InvalidInput."""
    return check_name(name), None if shared_log is None else check_name(shared_log, what="shared_log")


def _of_key(table: Table, key: list[str] | None) -> Table:
    """The table. Raises InvalidInput when it has another key."""
    own = [column.name for column in table.spec.key_columns]
    if own != (key or []):
        raise InvalidInput(f"the table {table.name!r} has the key {own or None}, not {key}: name its key, or write to another table")
    return table


def _closed_at(view: LogView[Tables], table: str) -> int:
    closed = view.log.marks(table).closed_at
    assert closed is not None
    return closed


def _contended(what: str, catalog: Catalog) -> Contention:
    return Contention(f"{what}: try again later", winner_slot=catalog.slot)
