"""`Lake`: the tables below one URL, with their names. `connect` opens it.

Begin with `connect`, which sends no request. `create_table` and `table` return handles (`objcat.table.table`); `write` creates and writes
in one call; `sql` runs statements; `transaction` changes several tables in one commit; `namespaces` has the namespaces.
A name is bound to a table by a commit to the lake's catalog (`objcat.catalog`). So creating, renaming and dropping are safe between
processes: of two that claim one name, one wins. `LakeContext` holds what the methods share.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

import pyarrow as pa

from fileio.env import Env
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.write_outcomes import RetryPolicy
from objcat.catalog.catalog import Catalog
from objcat.catalog.names import DroppedTable, check_name
from objcat.catalog.names_plugin import split_catalog_options
from objcat.catalog.plans import plan_rename
from objcat.catalog.plugin_catalog import named_catalog
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import (
    IfExists,
    IsolationName,
    KeyScope,
    TableType,
    case_folded,
    session,
)
from objcat.errors import (
    TableClosed,
    TableNotFound,
)
from objcat.inspection.verify_files import VERIFIED_BYTES
from objcat.lake.context import LakeContext
from objcat.lake.create import checked_names, create_named_table, write_named_table
from objcat.lake.create_in_place import spec_in_place
from objcat.lake.derived import DerivedTablesLake, with_refreshes
from objcat.lake.drop import drop_table, dropped_tables, purge_table, undrop_table
from objcat.lake.namespaces import LakeNamespaces, below_namespace
from objcat.lake.precompute_advice import SAMPLE_BYTES, PrecomputeAdvice, advise_precomputed
from objcat.lake.settings import NamedTableSettings, new_spec
from objcat.maintenance.clean import CleanResult
from objcat.maintenance.maintain import MaintenanceReport
from objcat.maintenance.metrics import Sample, prometheus_text, samples_of
from objcat.metadata.in_place import Files
from objcat.metadata.table_spec import Index
from objcat.sql.call import SERVICES, call
from objcat.sql.context import Context
from objcat.sql.duckdb_runner import LocalRunner
from objcat.sql.runner import Runner
from objcat.sql.statements import run_row_statement, run_statement
from objcat.table.maintain_tables import maintain_tables
from objcat.table.table import Table
from objcat.table.transaction import Transaction
from objcat.timeline.entry import parse_txn
from objcat.timeline.log_state import AppVersion
from objcat.timeline.position import SourcePosition
from objcat.timeline.rollback import Resolution
from objcat.write.transaction import CommitResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def connect(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, env: Env | None = None, policy: RetryPolicy | None = None
) -> Lake:
    """Connect to the lake at a URL. Sends no request.

    Args:
        url: `s3://bucket/prefix`, `gs://`, `az://`, `file:/path`, a bare path, or `memory:`.
        options: of the store, see `docs/reference/store-options.md`. `catalog` names an installed catalog of names, which gets the options
            `catalog.<option>`; without it the names are below the lake.
        env: time, ids and threads, for tests.
        policy: limits of retries; the default policy when None.

    Returns:
        The lake, which may be empty.

    Raises:
        fileio.errors.InvalidConfig: the URL or an option is not valid.
        PluginMissing, PluginFailed: the catalog of names cannot be opened.
    """
    name, of_catalog, of_store = split_catalog_options(options)
    fileio = open_store(url, of_store, env=env, policy=policy)
    return Lake(fileio, named_catalog(fileio, name, of_catalog))


@reports_full_memory
class Lake(DerivedTablesLake):
    """The tables below one prefix of a store, with their names. Safe for many threads.

    It caches what it has seen of the catalog and of tables, so opening a table again costs one GET for each.
    """

    def __init__(self, fileio: FileIO, catalog: Catalog | None = None) -> None:
        """catalog: of the names; a log below the lake when None."""
        super().__init__(LakeContext(fileio, catalog))

    @property
    def namespaces(self) -> LakeNamespaces:
        """The namespaces of the lake: `create`, `drop`, `list`, `properties` and `set_properties`."""
        return LakeNamespaces(self._context.catalog, self.fileio.url)

    def __repr__(self) -> str:
        return f"Lake({self.fileio.url!r})"

    # ---- tables

    @overload
    def create_table(
        self,
        name: str,
        schema: pa.Schema | StructType,
        *,
        key: Sequence[str] | None,
        ordering: str | Sequence[str] | None = None,
        allowed_lateness: str | dt.timedelta | None = None,
        partition_by: Sequence[str] = (),
        key_scope: KeyScope = "table",
        index: Index | None = None,
        table_type: TableType = "merge_on_read",
        properties: Mapping[str, str] | None = None,
        defaults: dict[str, Any] | None = None,
        shared_log: str | None = None,
    ) -> Table: ...

    @overload
    def create_table(
        self,
        name: str,
        schema: pa.Schema | StructType | None = None,
        *,
        source: Files,
        properties: Mapping[str, str] | None = None,
        shared_log: str | None = None,
    ) -> Table: ...

    def create_table(
        self,
        name: str,
        schema: pa.Schema | StructType | None = None,
        *,
        source: Files | None = None,
        shared_log: str | None = None,
        **settings: Any,
    ) -> Table:
        """Create a table. Of several processes that create one name, exactly one wins.

        Args:
            name: such as `city.trips`: `trips` in the namespace `city`, which is created if it does not exist.
            schema: an Arrow schema, or that of a Spark DataFrame. Types are narrowed to those that Spark shares.
            source: the files of other programs that are the rows, `objcat.Files(...)`: no byte is copied, and nobody writes rows. Then
                schema may be left out, to be inferred from the first files; of the settings, only properties and shared_log fit. The table
                is empty until `refresh_files`.
            key: the columns that identify a row, never null. None: a table without a key, which keeps every row.
            ordering: the column whose greater value wins when a key is written twice (event time, a version), never null. Several, such as
                `["at", "sequence"]`, are compared in order. None: the later commit wins.
            allowed_lateness: for a first ordering column of times: how long before its commit a row's time may be, "7 days" or a timedelta.
                Older rows count for nothing, so deletes need not be remembered forever. An `insert` into buckets without rows is not
                measured.
            partition_by: columns, or `hour(column)`, `day`, `month`, `year` (of dates and times, in UTC), `truncate(column, width)`. Rows
                of a partition have files of their own. Every batch has these columns, which may be null.
            key_scope: "table": a key is one row of the table. With buckets, partition columns must then be key columns; with another index,
                a row that comes with another partition moves. "partition": a key is one row of its partition, and an upsert with another
                partition is another row.
            index: `BucketIndex(16)` for each partition by default; or `SimpleIndex()`, `BloomIndex()`, `MemoryIndex()`, `RecordIndex()`.
            table_type: "merge_on_read" or "copy_on_write".
            properties: settings and notes, see `docs/reference/properties.md`.
            defaults: by column, its value in batches that leave it out, see `TableAlterer.set_default`.
            shared_log: tables with one shared log can change together in one transaction. None: the table has a log of its own.

        Returns:
            A handle on the new table.

        Raises:
            TableExists: names the winner.
            NamespaceNotFound: the namespace was dropped meanwhile.
            InvalidInput, InvalidSchema: an argument does not fit.
            fileio.errors.StoreUnfit: the store ignores conditions, so commits on it would be lost.
        """
        name, shared_log = checked_names(name, shared_log)
        if source is not None:
            return create_named_table(self._context, name, spec_in_place(self.fileio, source, schema, settings), shared_log)
        if "key" not in settings:
            raise TypeError("create_table() needs a schema and key=[...]; key=None is for a table without a key.")
        # A missing schema is refused there.
        return create_named_table(self._context, name, new_spec(self.fileio, cast("pa.Schema", schema), **settings), shared_log)

    def write(
        self, data: Any, name: str, *, key: Sequence[str] | None, if_exists: IfExists = "upsert", **settings: Unpack[NamedTableSettings]
    ) -> CommitResult:
        """Write a batch to a table, which is created with the columns of the batch if it does not exist.

        Of several processes that create it, one wins, and all write. Rows in memory are checked before the table is created. A table that
        was created for rows that are refused later (of a Spark DataFrame or a stream) is dropped, unless others have written to it. It
        stays when the store fails. With `if_exists="error"`, a table gets its name after its rows: it is there with them, or not at all.

        Args:
            data: see `Table.upsert`.
            name: of the table.
            key: of the table, whether it exists or not.
            if_exists: "upsert" (without a key: insert), "insert" or "error".
            settings: of `create_table`, for a new table.

        Returns:
            The commit of the rows.

        Raises:
            TableExists: the table exists and `if_exists` is "error".
            InvalidInput: the table has another key, or a setting is unknown.
            ObjcatError: the errors of `create_table` and `Table.upsert`.
        """
        return write_named_table(self._context, data, name, key, if_exists, settings)

    @overload
    def sql(self, text: str, spark: None = None) -> pa.Table: ...

    @overload
    def sql(self, text: str, spark: SparkSession) -> DataFrame: ...

    def sql(self, text: str, spark: SparkSession | None = None) -> pa.Table | DataFrame:
        """Run one SQL statement (Spark's dialect) over the tables of the lake.

        Tables have their names here, `shop.orders`; `orders VERSION AS OF 7` and `orders TIMESTAMP AS OF '2026-01-31 12:00:00'` read the
        past. `docs/reference/sql.md` lists the statements.

        Args:
            text: the statement.
            spark: the session in which queries run. None: DuckDB, in this process.

        Returns:
            An Arrow table, or a lazy DataFrame with `spark`. A statement that writes rows returns one row of slot, rows, inserted, updated
            and deleted. One without a result returns no row.

        Raises:
            InvalidSql: the statement is not supported or does not parse; nothing was done.
            MissingDependency: DuckDB or sqlglot is missing.
            ObjcatError: the errors of the operations that the statement runs.
        """
        runner: Runner = LocalRunner()
        if spark is not None:
            from objcat.spark.sql import SparkRunner

            runner = SparkRunner(session(spark))
        return run_statement(text, Context(self, runner))

    def advise_precomputed(self, name: str, queries: Sequence[str], *, sample_bytes: int = SAMPLE_BYTES) -> PrecomputeAdvice:
        """Say which precomputed columns of a table in place would answer queries, and what they would take. Changes nothing.

        Args:
            name: of the table.
            queries: texts as `sql` takes them, each as often as it is run.
            sample_bytes: of source files to read, about.

        Raises:
            InvalidInput: the table is not in place.
            SourceFileChanged, TableNotFound, storage errors.
        """
        return advise_precomputed(self, self.table(name), queries, sample_bytes=sample_bytes)

    def _run_in_spark(self, text: str, spark: SparkSession, *, before: str, table: str, rows: DataFrame | None) -> None:
        """Run an UPDATE, DELETE or MERGE of `spark.sql` on a table, see `run_row_statement`."""
        from objcat.spark.sql import SparkRunner

        run_row_statement(text, self.table(table), SparkRunner(spark), before=before, rows=rows)

    def _call_in_spark(self, text: str, spark: SparkSession) -> DataFrame:
        """Run a service of CALL, `name(argument => value, ...)`, in a session. Raises as `sql`."""
        from objcat.spark.sql import SparkRunner

        found: DataFrame = call(Context(self, SparkRunner(spark)), text)
        return found

    def _services(self) -> list[str]:
        """The names of all services of CALL."""
        return sorted(SERVICES)

    def table(self, name: str) -> Table:
        """Open a table at its newest slot.

        Args:
            name: of the table.

        Returns:
            A handle.

        Raises:
            TableNotFound: names the nearest one.
            TableClosed: the table is being dropped.
        """
        return self._context.open_table(name)

    def tables(self, namespace: str | None = None) -> list[str]:
        """The names of the tables in a namespace and below it, sorted; of all tables when None.

        Raises:
            NamespaceNotFound: there is no such namespace.
        """
        names = self._context.catalog.refresh()
        below = below_namespace(names, namespace)
        return sorted(bound.binding.name for key, bound in names.tables.items() if key.startswith(below))

    def rename_table(self, name: str, new_name: str) -> None:
        """Give a table another name, perhaps in another namespace. It never has both or none. Its data and log stay where they are.

        Args:
            name: the current name.
            new_name: the new one, with its namespace.

        Raises:
            TableNotFound, TableExists, InvalidInput: see `objcat.errors`.
        """
        new_name = check_name(new_name)
        before = self._context.binding_of(name).binding
        first = self._context.catalog.names
        if case_folded(name) != case_folded(new_name):
            self._context.check_free(self._context.catalog.names, new_name)

        self._context.catalog.change(lambda names: plan_rename(names, before, new_name, first=first, where=self.fileio.url))

    def drop_table(self, name: str) -> None:
        """Drop a table: it does not change any more, and its name is free at once. It can come back until it is purged.

        Commits before the drop stay; writers under way are refused with TableClosed or CommitConflict. Of a shared log only this table is
        dropped. A drop that was interrupted is finished by the next one.

        Args:
            name: of the table.

        Raises:
            TableNotFound: there is no such table.
        """
        drop_table(self._context, name)

    def undrop_table(self, name: str, *, new_name: str | None = None, table: str | None = None) -> Table:
        """Bring a dropped table back as it was, under its old name or another one.

        Args:
            name: that it had.
            new_name: the name to give it; the old one when None.
            table: its id, where several tables of that name were dropped (see `dropped_tables`); the last one when None.

        Returns:
            A handle on the table.

        Raises:
            TableNotFound: no such table was dropped, or it was purged.
            TableExists: the name is taken.
            SnapshotExpired: its files were cleaned.
        """
        return undrop_table(self._context, name, new_name=new_name, table=table)

    def dropped_tables(self, namespace: str | None = None) -> list[DroppedTable]:
        """The dropped tables that can come back, the last one first; those of a namespace and below it, or all when None."""
        return dropped_tables(self._context, namespace)

    def purge_table(self, name: str, *, older_than_s: float, table: str | None = None) -> CleanResult:
        """Delete the data files of a dropped table. It cannot be restored afterwards.

        A slot in the table's log comes before the deletes. The log stays, and other tables of a shared log are not touched. An interrupted
        purge is finished by the next call.

        Args:
            name: that the table had.
            older_than_s: how many seconds ago it must have been dropped.
            table: its id, where several tables of that name were dropped; the last one when None.

        Returns:
            The clean that deleted the files.

        Raises:
            TableNotFound: no such table was dropped.
            TableExists: the table is there again.
            InvalidInput: it was dropped too recently, or has savepoints.
            ObjcatError: the errors of `Table.maintenance.clean`.
        """
        return purge_table(self._context, name, older_than_s=older_than_s, table=table)

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
        """Refresh the derived tables that are due, and run `table.maintenance.run` for every table of a namespace or of the lake.

        All share one budget. Several machines may do so at once. A table that fails is left, and its report says why.

        Args:
            namespace: only tables in it and below; all when None.
            io_bytes_max: bytes that compactions read and write, over all tables.
            seconds_max: nothing begins later.
            verify_bytes_max: about how many bytes of each table to verify.
            spark: the session whose executors compact and cluster.

        Returns:
            A report for each table.

        Raises:
            NamespaceNotFound, InvalidInput, storage errors of reading the catalog: see `objcat.errors`.
        """
        names = self.tables(namespace)
        refreshed = self._refresh_due(names)
        done = maintain_tables(
            names,
            lambda name: self.table(name).maintenance,
            self.fileio.env,
            io_bytes_max=io_bytes_max,
            seconds_max=seconds_max,
            verify_bytes_max=verify_bytes_max,
            spark=spark,
        )
        return with_refreshes(done, refreshed)

    def metrics(self, *, namespace: str | None = None, recent: int = 100, verify_bytes_max: int = 0) -> str:
        """The text of `table.maintenance.metrics` for every table that can be opened. Arguments as there; `namespace`: only tables in it
        and below."""
        found: list[Sample] = []
        for name in self.tables(namespace):
            with contextlib.suppress(TableNotFound, TableClosed):
                table = self.table(name)
                found += samples_of(table._context.timeline, table.id, name=name, recent=recent, verify_bytes_max=verify_bytes_max)
                found += self._lag_samples(table)
        return prometheus_text(found)

    # ---- several tables

    def transaction(
        self,
        *,
        isolation: IsolationName = "snapshot",
        metadata: Mapping[str, str] | None = None,
        app: AppVersion | None = None,
        shared_log: str | None = None,
        position: SourcePosition | None = None,
    ) -> Transaction:
        """A block that reads and writes several tables with one shared log. It is committed in one slot at its end.

            with lake.transaction() as tx:
                tx["accounts"].upsert(accounts)
                tx["entries"].insert(entries)

        Args:
            isolation: for a block that reads. "snapshot": it fails when others changed buckets that it writes since it began; what it reads
                may change. "serializable": it also fails when others changed a table that it reads. A block that reads nothing does not
                fail because of other writes.
            metadata, app: see `Table.upsert`.
            shared_log: the log of the tables. None: that of the first table that the block names.
            position: how far the reader of a source has come with this block. It is committed with the rows, also without any, and needs
                `shared_log`. Other commits do not conflict with it.

        Returns:
            The transaction, a context manager.

        Raises:
            PositionConflict: when the block begins, or at its end: another reader of the source committed; nothing is visible.
            StreamRewound: a RESTORE may have taken back rows of the source.
            CommitConflict: at the end of the block; nothing is visible, so run it again.
            TableClosed: a table was dropped meanwhile.
            CommitUnknown: the outcome is unknown; see `Table.resolve`.
            ObjcatError: the errors of `Table.upsert`.
        """
        return Transaction(
            self._context.catalog,
            self._context.open_log,
            self._context.remember,
            isolation=isolation,
            metadata={} if metadata is None else metadata,
            app=app,
            position=position,
            shared_log=shared_log,
            auto_maintenance=self._context.auto_maintenance,
        )

    # ---- outcomes

    def resolve(self, txn: str) -> Resolution:
        """Settle a change of names whose outcome is unknown (CommitUnknown). The outcome is final. Like `Table.resolve`, for the
        catalog."""
        return self._context.catalog.resolve(parse_txn(txn))
